"""The Arrow schemas of everything that is published, with the unit and meaning of each column.

Every file carries its table's name and version in the Parquet metadata, and the meaning of each column in that
column's own. A change that readers would notice raises the version.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072


@dataclass(frozen=True)
class Column:
    """One column: its type, unit ("" for names and categories) and meaning."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A named, versioned list of columns; `keys` are the columns that identify a row."""

    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, with unit and meaning as field metadata."""
        fields = [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in self.columns]
        metadata = {
            "memlib.table": self.name,
            "memlib.version": str(self.version),
            "memlib.keys": json.dumps(self.keys),
        }
        return pa.schema(fields, metadata=metadata)


def write_table(table: pa.Table, schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table as Parquet: zstd, row groups of 131,072, schema version and extra metadata in the file."""
    arrow = schema.arrow
    arrow = arrow.with_metadata({**arrow.metadata, **{k.encode(): v.encode() for k, v in (metadata or {}).items()}})
    pq.write_table(table.cast(arrow), path, compression="zstd", row_group_size=ROW_GROUP)


_TEXT, _INT, _FLOAT, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_RECTANGLE = pa.list_(pa.int32())

INDEX = Table(
    name="index",
    version=1,
    meaning="The images of a source as they were decoded, a row each, sorted by example id.",
    columns=(
        Column("example_id", _TEXT, "", "path or row within the source"),
        Column("row", _INT, "row", "position in images.npy"),
        Column("label", _INT, "class index", "the object's class"),
        Column("class_name", _TEXT, "", "its name"),
        Column("boxes", _RECTANGLE, "pixel", "x0, y0, x1, y1 of each object, half open, in the stored image"),
        Column("content", _RECTANGLE, "pixel", "x0, y0, x1, y1 of the picture in the stored (maybe padded) image"),
        Column("original_width", _INT, "pixel", "before resizing"),
        Column("original_height", _INT, "pixel", "before resizing"),
        Column("digest", _TEXT, "sha256", "of the stored pixels: equal for duplicates"),
        Column("unreadable", _TEXT, "", "why the image could not be decoded; null when it was"),
    ),
    keys=("example_id",),
)

SPLITS = Table(
    name="splits",
    version=2,
    meaning="Which role each example plays in the audit.",
    columns=(
        Column("example_id", _TEXT, "", "path or row within the source"),
        Column("row", _INT, "row", "position in the shard's images.npy"),
        Column(
            "role",
            _TEXT,
            "",
            "target (A), reference (B), shared (C), public (X), train, validation, held_out, left_out, or set",
        ),
        Column("label", _INT, "class index", "the object's class"),
        Column("class_name", _TEXT, "", "its name"),
        Column("crop_x0", pa.int32(), "pixel", "left edge of the background crop in the stored image; null without one"),
        Column("crop_y0", pa.int32(), "pixel", "its top edge"),
        Column("crop_x1", pa.int32(), "pixel", "its right edge, exclusive"),
        Column("crop_y1", pa.int32(), "pixel", "its bottom edge, exclusive"),
        Column("reason", _TEXT, "", "why the example was left out; null when it was not"),
        Column("group", _TEXT, "", "examples of one group have one role; null for an example by itself"),
    ),
    keys=("example_id",),
)

TRAINING = Table(
    name="training",
    version=1,
    meaning="What a training reported, a row an epoch.",
    columns=(
        Column("epoch", _INT, "epoch", "epochs finished"),
        Column("step", _INT, "step", "optimiser steps taken"),
        Column("learning_rate", _FLOAT, "", "in the last step of the epoch"),
        Column("term", _TEXT, "", "loss, or one of its terms"),
        Column("value", _FLOAT, "", "its mean over the epoch"),
    ),
    keys=("epoch", "term"),
)

NETS_HISTORY = Table(
    name="nets_history",
    version=1,
    meaning="The training of stacked nets, a row a net and epoch, and output where every epoch was scored.",
    columns=(
        Column("position", _INT, "", "the net's place in the artifact"),
        Column("epoch", _INT, "epoch", "epochs finished"),
        Column("best_epoch", _INT, "epoch", "the epoch whose weights were kept"),
        Column("training_loss", _FLOAT, "nat", "mean over the epoch's steps"),
        Column("accuracy", _FLOAT, "fraction", "on the training batches, as they were trained on"),
        Column("validation_loss", _FLOAT, "nat", "null without validation examples"),
        Column("output", _TEXT, "", "what M was computed on; null when the epoch was not scored"),
        Column("value", _FLOAT, "output's", "white-box M at the canary's label"),
        Column("published_p", _FLOAT, "probability", "one-sided paired t-test over examples"),
    ),
    keys=("position", "epoch", "output"),
)

SUMMARY = Table(
    name="summary",
    version=2,
    meaning="The findings, one per metric and setting. The first row is the headline and carries the verdict of the run.",
    columns=(
        Column("metric", _TEXT, "", "the metric's name"),
        Column("params", _TEXT, "JSON", "what the metric was computed at (layer, k, p, direction, ...)"),
        Column("role", _TEXT, "", "test (has a null and a verdict), estimate, or diagnostic"),
        Column("value", _FLOAT, "metric's", "the estimate: a fraction, a probability, or as params say"),
        Column("ci_low", _FLOAT, "metric's", "lower end of the 95 % interval; null when there is none"),
        Column("ci_high", _FLOAT, "metric's", "its upper end; null where only a lower bound is known"),
        Column("interval", _TEXT, "", "what the interval is over: examples, trainings, nets, canaries, references, data"),
        Column("null_value", _FLOAT, "metric's", "the value under the null of the test; null when not tested"),
        Column("p_value", _FLOAT, "probability", "of a value at least as extreme under the null; null when not tested"),
        Column("family", _TEXT, "", "the tests that the p-value is adjusted with"),
        Column("p_adjusted", _FLOAT, "probability", "adjusted within the family (Holm, max-T or Benjamini-Hochberg)"),
        Column("alpha", _FLOAT, "probability", "level of the test"),
        Column("verdict", _TEXT, "", "of a test: shown, bounded or inconclusive; null otherwise"),
        Column("upper_bound", _FLOAT, "metric's", "one-sided 95 % upper bound of the value; null when unknown"),
        Column("bound", _FLOAT, "metric's", "fixed by the recipe: an upper bound below it reads bounded"),
        Column("detectable", _FLOAT, "metric's", "what the test finds with 80 % power at this size; null: nothing"),
        Column("smallest_p", _FLOAT, "probability", "no data of this size give a smaller p-value"),
        Column("n", _INT, "", "units the estimate rests on"),
        Column("conclusion", _TEXT, "", "first row only: the verdict of the run; descriptive when it tests nothing"),
        Column("sentence", _TEXT, "", "first row only: the verdict of the run in a plain sentence"),
        Column("explanation", _TEXT, "", "first row only: the numbers behind it, and what could have been missed"),
    ),
    keys=("metric", "params"),
)

CURVES = Table(
    name="curves",
    version=1,
    meaning="The points of every curve in the report.",
    columns=(
        Column("curve", _TEXT, "", "the curve's name"),
        Column("series", _TEXT, "", "which line of the curve"),
        Column("params", _TEXT, "JSON", "what the curve was computed at"),
        Column("x", _FLOAT, "curve's", "share of the most confident examples, epoch, pixels removed, ... as the curve says"),
        Column("y", _FLOAT, "curve's", "label inference accuracy among them, proportion, M, loss, ..."),
    ),
    keys=("curve", "series", "params", "x"),
)

DEJA_VU_UNITS = Table(
    name="units",
    version=2,
    meaning="Votes on each audited example, by pair of models, layer, epoch, crop and k. Each example has one direction.",
    columns=(
        Column("example_id", _TEXT, "", "the audited training image"),
        Column("direction", _TEXT, "", "the set it belongs to: A (target model trained on it) or B (roles swapped)"),
        Column("pair", _INT, "", "which pair of trained models, counted from 0"),
        Column("layer", _TEXT, "", "the embedding that was decoded: backbone, projector_1, ..., classifier"),
        Column("epoch", _INT, "epoch", "the checkpoint's epoch"),
        Column("crop", _TEXT, "", "the background crop: maximal, official or corner"),
        Column("k", _INT, "", "public neighbours that voted"),
        Column("label", _INT, "class index", "the object's class"),
        Column("class_name", _TEXT, "", "its name"),
        Column("target_prediction", _INT, "class index", "vote under the model trained on the example"),
        Column("reference_prediction", _INT, "class index", "vote under the model that never saw it"),
        Column("target_confidence", _FLOAT, "nat", "negative entropy of the vote under the target model, at most 0"),
        Column("reference_confidence", _FLOAT, "nat", "the same under the reference model"),
        Column("group", _TEXT, "", "examples that the split drew as one; null for an example by itself"),
        Column("category", _TEXT, "", "memorized, misrepresented, correlated or unassociated"),
    ),
    keys=("example_id", "direction", "pair", "layer", "epoch", "crop", "k"),
)

UNIQUE_FEATURE_UNITS = Table(
    name="units",
    version=2,
    meaning="A row a score of a net, with or without the feature in its training set.",
    columns=(
        Column("variant", _TEXT, "", "the recipe's variant; empty without variants"),
        Column("data_seed", _INT, "", "which draw of the data, counted from 0"),
        Column("net", _INT, "", "the net; a control has the number of the canary net that it is paired with"),
        Column("canary", _INT, "", "which canary; for a control, whose clean twin it saw"),
        Column("example_id", _TEXT, "", "the canary's training example"),
        Column("control", _FLAG, "", "whether the feature was left out of the training set"),
        Column("seed", _INT, "", "of initial weights, order and dropout; a pair shares it"),
        Column("epoch", _INT, "epoch", "the epoch whose weights were scored"),
        Column("metric", _TEXT, "", "m_white, m_grey, m_black (2023), m_w, m_kl (2022)"),
        Column("output", _TEXT, "", "what it was computed on: probability, logit, log_probability or divergence (nat)"),
        Column("feature", _TEXT, "", "canary, or the name of a null feature, or canary without some pixels"),
        Column("draw", _INT, "", "which draw of random partners (m_w and m_kl)"),
        Column("label", _INT, "class index", "of the score; for grey and black where the centred score is highest"),
        Column("own_label", _FLAG, "", "whether it is the score that counts: of the canary's label, or a maximum"),
        Column("value", _FLOAT, "output's", "the score: with_feature - without_feature - centre"),
        Column("with_feature", _FLOAT, "output's", "mean output (log-probability, divergence) with the feature"),
        Column("without_feature", _FLOAT, "output's", "mean without it; for m_w and m_kl with a random partner"),
        Column(
            "centre",
            _FLOAT,
            "output's",
            "grey and black: mean of the controls of other seeds (own models: of all features) at the label; else 0",
        ),
        Column("published_p", _FLOAT, "probability", "one-sided paired t-test over examples, as published"),
        Column("corrected_p", _FLOAT, "probability", "the same, for m_grey times the labels tried; null for m_black"),
        Column("calibrated_p", _FLOAT, "probability", "rank among the controls of other seeds; null with fewer than 19"),
        Column("n", _INT, "", "examples that the score is a mean over"),
    ),
    keys=("variant", "data_seed", "net", "control", "metric", "output", "feature", "draw", "label"),
)

SELF_INFLUENCE_UNITS = Table(
    name="units",
    version=1,
    meaning="A row a training example, the most influential first.",
    columns=(
        Column("example_id", _TEXT, "", "the training example"),
        Column("label", _INT, "class index", "its class"),
        Column("class_name", _TEXT, "", "the class's name"),
        Column("rank", _INT, "", "1 for the most influential"),
        Column("self_influence", _FLOAT, "nat", "TracInCP: sum of learning rate times squared gradient norm"),
        Column("share", _FLOAT, "fraction", "of the self-influence of all examples"),
        Column("checkpoints", pa.list_(_INT), "epoch", "the checkpoints it is a sum over"),
        Column("gradient_norms", pa.list_(_FLOAT), "nat^2", "squared gradient norm at each of them"),
    ),
    keys=("example_id",),
)

FORGETTING_UNITS = Table(
    name="units",
    version=1,
    meaning="Distances of each triple: a target, null or retained model, a query model and a calibration model.",
    columns=(
        Column("group", _TEXT, "", "target, null (nothing of U) or retained (a known share of D_Q)"),
        Column("target", _TEXT, "", "the target's name; empty for null and retained models"),
        Column("model", _INT, "", "which model of the group and target, counted from 0"),
        Column("query_model", _INT, "", "which model trained on D_Q"),
        Column("calibration_model", _INT, "", "which model trained on D_C"),
        Column("ks_target", _FLOAT, "probability", "KS distance of query model and model on D_Q (Liu 2020, Eq. 2)"),
        Column("ks_calibration", _FLOAT, "probability", "KS distance of query and calibration model (Eq. 3)"),
        Column("rho", _FLOAT, "", "their ratio (Eq. 4): 0 as if trained on D_Q, 1 if not; null where D_C cannot calibrate"),
    ),
    keys=("group", "target", "model", "query_model", "calibration_model"),
)

FORGETTING_EXAMPLES = Table(
    name="examples",
    version=2,
    meaning="Each example of U, the pool of D_Q, under each target model: which examples carry the signal.",
    columns=(
        Column("target", _TEXT, "", "the target's name"),
        Column("model", _INT, "", "which model of the target, counted from 0"),
        Column("example_id", _TEXT, "", "the example"),
        Column("role", _TEXT, "", "query (D_Q), known (in every target) or withheld (given to nobody)"),
        Column("label", _INT, "class index", "its class"),
        Column("class_name", _TEXT, "", "the class's name"),
        Column("confidence", _FLOAT, "probability", "the target's, in the true class"),
        Column("log_odds", _FLOAT, "nat", "log p / (1 - p) of it"),
        Column("log_odds_query", _FLOAT, "nat", "mean of the query models"),
        Column("log_odds_calibration", _FLOAT, "nat", "mean of the calibration models"),
        Column("log_likelihood_ratio", _FLOAT, "nat", "of query (in) to calibration (out) models, as in LiRA"),
        Column("residual", _FLOAT, "", "how much higher the target ranks it than models that saw none of U; tested"),
        Column("member", _FLAG, "", "whether the target trained on it; null when that is not known"),
    ),
    keys=("target", "model", "example_id"),
)

CANARIES = Table(
    name="canaries",
    version=2,
    meaning="Canaries, a row each. Secret: it is published nowhere.",
    columns=(
        Column("canary", _INT, "", "its id, which is all that results say of it"),
        Column(
            "kind", _TEXT, "", "drawn and inserted, drawn and never inserted (never), given by a file, or unseen of a file"
        ),
        Column("insertions", _INT, "count", "how often it stands in the corpus; 0: never"),
        Column("choices", pa.list_(pa.int32()), "", "for each place of the sequence which of its symbols"),
        Column("text", _TEXT, "", "the canary itself"),
    ),
    keys=("canary",),
)

EXPOSURE_UNITS = Table(
    name="units",
    version=3,
    meaning="A row a canary, model and checkpoint. No secrets: canaries are named by id.",
    columns=(
        Column("variant", _TEXT, "", "which variant of the recipe; empty without variants"),
        Column("seed", _INT, "", "which training of the variant, counted from 0"),
        Column("epoch", _FLOAT, "epoch", "of the checkpoint; not whole where it lies within one"),
        Column("canary", _INT, "", "its id"),
        Column(
            "kind", _TEXT, "", "drawn and inserted, drawn and never inserted (never), given by a file, or unseen of a file"
        ),
        Column("insertions", _INT, "count", "how often this model's training data hold it; 0: never"),
        Column("log_perplexity", _FLOAT, "bit", "of the canary after its known prefix (Carlini 2019, Definition 1)"),
        Column("exposure", _FLOAT, "bit", "log2 |R| - log2 rank (Definition 4), by the method"),
        Column("ci_low", _FLOAT, "bit", "lower end of its 95 % interval over random references; null where it is exact"),
        Column("ci_high", _FLOAT, "bit", "upper end; null where exact, and where no reference lies below"),
        Column("method", _TEXT, "", "pruned or enumerated (exact rank), sampled, or extrapolated (skew-normal)"),
        Column("rank", _INT, "", "candidates at most as costly (Definition 2); null unless exact"),
        Column(
            "p_value",
            _FLOAT,
            "probability",
            "that a canary that was never inserted ranks as low; of a given secret, among the unseen ones",
        ),
        Column("exposure_sampled", _FLOAT, "bit", "from the share of random references at most as costly"),
        Column("exposure_extrapolated", _FLOAT, "bit", "from the skew-normal law of the references; not bounded by log2 |R|"),
        Column("fit_p", _FLOAT, "probability", "parametric-bootstrap goodness of fit of the law"),
        Column("space_bits", _FLOAT, "bit", "log2 |R|"),
        Column("evaluations", _INT, "count", "prefixes evaluated for the exact rank; null unless exact"),
        Column("validation_loss", _FLOAT, "nat", "of the model on windows no model trains on, a symbol"),
    ),
    keys=("variant", "seed", "epoch", "canary", "insertions"),
)

EXTRACTION = Table(
    name="extractions",
    version=2,
    meaning="A row a canary and search in the model that saw it. Canaries of one model share a search that is told nothing.",
    columns=(
        Column("variant", _TEXT, "", "which variant of the recipe; empty without variants"),
        Column("seed", _INT, "", "which training of the variant"),
        Column("canary", _INT, "", "its id"),
        Column("insertions", _INT, "count", "how often the model's training data hold it"),
        Column("known", _INT, "symbol", "symbols of the holes that the search was told"),
        Column("search", _TEXT, "", "shortest_path, greedy, or beam"),
        Column("extracted", _FLAG, "", "whether it is among as many likeliest candidates as the model saw canaries"),
        Column("by_chance", _FLOAT, "", "the probability of that for a model that knows nothing"),
        Column("position", _INT, "", "its place among the candidates found, from 1; null if it is not among them"),
        Column(
            "queries", _INT, "count", "prefixes whose next symbols were asked for until it, or the search's end, was found"
        ),
        Column("ended", _TEXT, "", "found, exhausted, or the limit that ended the search: evaluations, seconds"),
        Column("exact", _FLAG, "", "whether no likelier candidate can have been missed"),
    ),
    keys=("variant", "seed", "canary", "known", "search"),
)

SWEEP = Table(
    name="sweep",
    version=2,
    meaning="The findings of all cells of a sweep; a cell that broke has one row without a metric.",
    columns=(
        Column("cell", _TEXT, "", "the cell's name"),
        Column("cell_audit", _TEXT, "", "the audit that it is"),
        Column("cell_run", _TEXT, "", "its run, whose own tables hold the rest; null when it broke"),
        Column("changes", _TEXT, "JSON", "what sets it apart, by dotted key of the recipe"),
        Column("state", _TEXT, "", "completed or failed"),
        Column("problem", _TEXT, "", "why it failed"),
        Column("p_adjusted_sweep", _FLOAT, "probability", "of a cell's headline: Holm over the headlines of all cells"),
        *SUMMARY.columns,
    ),
    keys=("cell", "metric", "params"),
)

RUNS = Table(
    name="runs",
    version=1,
    meaning="A row a run, written last: tables of runs without one are of runs that were killed, or of a memlib before 0.2.",
    columns=(
        Column("finished", pa.timestamp("us", tz="UTC"), "", "when it was last published"),
        Column("title", _TEXT, "", "of its report"),
        Column("data", _TEXT, "sha256", "digest of its data; empty for a sweep"),
        Column("asks", _TEXT, "sha256", "digest of its recipe without titles, galleries and where the data lie"),
        Column("scores", _TEXT, "", "the artifact that its numbers are of; null for a sweep"),
        Column("current", _FLAG, "", "whether no newer run asks the same of the same data, as after an update of memlib"),
        Column("verdict", _TEXT, "", "in a word"),
        Column("sentence", _TEXT, "", "the verdict in a sentence"),
        Column("memlib", _TEXT, "", "the version that published it"),
    ),
    keys=("asks", "data", "scores"),
)

PUBLISHED: Mapping[str, Mapping[str, Table]] = {
    "runs": {"": RUNS},
    "summary": {"": SUMMARY},
    "curves": {"": CURVES},
    "units": {
        "deja_vu": DEJA_VU_UNITS,
        "unique_feature": UNIQUE_FEATURE_UNITS,
        "self_influence": SELF_INFLUENCE_UNITS,
        "forgetting": FORGETTING_UNITS,
        "exposure": EXPOSURE_UNITS,
    },
    "extractions": {"exposure": EXTRACTION},
    "examples": {"forgetting": FORGETTING_EXAMPLES},
    "sweep": {"sweep": SWEEP},
}
"""Tables below results/, by name and audit ("" where all audits share one)."""
