"""The tables that only unique-feature audits have."""

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=2,
    meaning="A row a score of a net, with or without the feature in its training set.",
    columns=(
        Column("variant", TEXT, "", "the recipe's variant; empty without variants"),
        Column("data_seed", INT, "", "which draw of the data, counted from 0"),
        Column("net", INT, "", "the net; a control has the number of the canary net that it is paired with"),
        Column("canary", INT, "", "which canary; for a control, whose clean twin it saw"),
        Column("example_id", TEXT, "", "the canary's training example"),
        Column("control", FLAG, "", "whether the feature was left out of the training set"),
        Column("seed", INT, "", "of initial weights, order and dropout; a pair shares it"),
        Column("epoch", INT, "epoch", "the epoch whose weights were scored"),
        Column("metric", TEXT, "", "m_white, m_grey, m_black (2023), m_w, m_kl (2022)"),
        Column("output", TEXT, "", "what it was computed on: probability, logit, log_probability or divergence (nat)"),
        Column("feature", TEXT, "", "canary, or the name of a null feature, or canary without some pixels"),
        Column("draw", INT, "", "which draw of random partners (m_w and m_kl)"),
        Column("label", INT, "class index", "of the score; for grey and black where the centred score is highest"),
        Column("own_label", FLAG, "", "whether it is the score that counts: of the canary's label, or a maximum"),
        Column("value", FLOAT, "output's", "the score: with_feature - without_feature - centre"),
        Column("with_feature", FLOAT, "output's", "mean output (log-probability, divergence) with the feature"),
        Column("without_feature", FLOAT, "output's", "mean without it; for m_w and m_kl with a random partner"),
        Column(
            "centre",
            FLOAT,
            "output's",
            "grey and black: mean of the controls of other seeds (own models: of all features) at the label; else 0",
        ),
        Column("published_p", FLOAT, "probability", "one-sided paired t-test over examples, as published"),
        Column("corrected_p", FLOAT, "probability", "the same, for m_grey times the labels tried; null for m_black"),
        Column("calibrated_p", FLOAT, "probability", "rank among the controls of other seeds; null with fewer than 19"),
        Column("n", INT, "", "examples that the score is a mean over"),
    ),
    keys=("variant", "data_seed", "net", "control", "metric", "output", "feature", "draw", "label"),
)

NETS_HISTORY = Table(
    name="nets_history",
    version=1,
    meaning="The training of stacked nets, a row a net and epoch, and output where every epoch was scored.",
    columns=(
        Column("position", INT, "", "the net's place in the artifact"),
        Column("epoch", INT, "epoch", "epochs finished"),
        Column("best_epoch", INT, "epoch", "the epoch whose weights were kept"),
        Column("training_loss", FLOAT, "nat", "mean over the epoch's steps"),
        Column("accuracy", FLOAT, "fraction", "on the training batches, as they were trained on"),
        Column("validation_loss", FLOAT, "nat", "null without validation examples"),
        Column("output", TEXT, "", "what M was computed on; null when the epoch was not scored"),
        Column("value", FLOAT, "output's", "white-box M at the canary's label"),
        Column("published_p", FLOAT, "probability", "one-sided paired t-test over examples"),
    ),
    keys=("position", "epoch", "output"),
)
