"""Tables specific to unique-feature audits."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=2,
    meaning="One row per net and score; nets were trained with the feature, or without it as controls.",
    columns=(
        Column("variant", TEXT, "", "the recipe's variant; empty without variants"),
        Column("data_seed", INT, "", "number of the draw of the data, counted from 0"),
        Column("net", INT, "", "number of the net; a control has the number of the canary net that it is paired with"),
        Column("canary", INT, "", "number of the canary; for a control, number of the canary whose clean twin it saw"),
        Column("example_id", TEXT, "", "training example of the canary"),
        Column("control", FLAG, "", "whether the feature was left out of the training set"),
        Column("seed", INT, "", "seed of initial weights, example order and dropout; the two nets of a pair share it"),
        Column("epoch", INT, "epoch", "epoch whose weights were scored"),
        Column("metric", TEXT, "", "m_white, m_grey, m_black (Hartley 2023), m_w, m_kl (2022), flips"),
        Column(
            "output",
            TEXT,
            "",
            "output from which the score is computed: probability, logit, log_probability or divergence (nat); flips: the "
            "examples, training_examples or held_out_examples of other classes",
        ),
        Column("feature", TEXT, "", "feature shown: canary, canary without some pixels, or the name of a null feature"),
        Column("draw", INT, "", "number of the draw of random partners (m_w and m_kl)"),
        Column("label", INT, "class index", "label of the score; m_grey, m_black: the label with the highest centred score"),
        Column(
            "own_label",
            FLAG,
            "",
            "whether the score counts: m_white, m_w, flips only at the canary's label, others always",
        ),
        Column(
            "value",
            FLOAT,
            "output's",
            "the score: with_feature - without_feature - centre; flips: share of examples that change to the label",
        ),
        Column(
            "with_feature",
            FLOAT,
            "output's",
            "mean output with the feature (m_w: log-probability; m_kl: divergence; flips: whether the label is predicted)",
        ),
        Column("without_feature", FLOAT, "output's", "mean output without the feature; m_w, m_kl: with a random partner"),
        Column(
            "centre",
            FLOAT,
            "output's",
            "m_grey, m_black: mean at the label over controls of other seeds (external models: over all features); else 0",
        ),
        Column("published_p", FLOAT, "probability", "one-sided paired t-test over examples, as published"),
        Column(
            "corrected_p",
            FLOAT,
            "probability",
            "published_p; for m_grey, multiplied by the number of labels tried; null for m_black",
        ),
        Column("calibrated_p", FLOAT, "probability", "p by rank among the controls of other seeds; null with fewer than 19"),
        Column("n", INT, "", "number of examples that the score averages"),
    ),
    keys=("variant", "data_seed", "net", "control", "metric", "output", "feature", "draw", "label"),
)

NETS_HISTORY = Table(
    name="nets_history",
    version=1,
    meaning="Training history of stacked nets: one row per net and epoch, and per output where every epoch was scored.",
    columns=(
        Column("position", INT, "", "position of the net in the artifact"),
        Column("epoch", INT, "epoch", "number of finished epochs"),
        Column("best_epoch", INT, "epoch", "epoch whose weights were kept"),
        Column("training_loss", FLOAT, "nat", "mean training loss over the epoch's steps"),
        Column("accuracy", FLOAT, "fraction", "accuracy on the training batches during the training steps"),
        Column("validation_loss", FLOAT, "nat", "loss on the validation examples; null if there are none"),
        Column("output", TEXT, "", "output of M; log_probability: M_w, divergence: M_kl; null if the epoch was not scored"),
        Column("value", FLOAT, "output's", "white-box M or M_w at the canary's label, or M_kl"),
        Column("published_p", FLOAT, "probability", "one-sided paired t-test over examples"),
    ),
    keys=("position", "epoch", "output"),
)


def with_column(units: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """Return rows of UNITS with other values in one column."""
    return units.set_column(units.schema.get_field_index(name), name, pa.array(values, type=units.schema.field(name).type))
