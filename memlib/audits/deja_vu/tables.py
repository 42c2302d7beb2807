"""Tables specific to déjà vu audits."""

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=2,
    meaning="The neighbours' votes on each audited example: one row per example, pair of models, layer, epoch, crop and k. "
    "Each example has one direction.",
    columns=(
        Column("example_id", TEXT, "", "the audited training image"),
        Column(
            "direction",
            TEXT,
            "",
            "the set of the image: A (the target model trained on it) or B (roles swapped; with a single model: held out)",
        ),
        Column("pair", INT, "", "number of the pair of trained models, from 0"),
        Column("layer", TEXT, "", "layer whose embedding was decoded: backbone, projector_1, ..., classifier"),
        Column("epoch", INT, "epoch", "epoch of the checkpoint"),
        Column("crop", TEXT, "", "the background crop: maximal, official or corner"),
        Column("k", INT, "", "number of public neighbours that voted"),
        Column("label", INT, "class index", "class of the object"),
        Column("class_name", TEXT, "", "name of the object's class"),
        Column(
            "target_prediction", INT, "class index", "vote under the model trained on the example, or under the only model"
        ),
        Column(
            "reference_prediction",
            INT,
            "class index",
            "vote under the model that never saw the example, or the background classifier's prediction",
        ),
        Column("target_confidence", FLOAT, "nat", "negative entropy of the vote under the target model, at most 0"),
        Column("reference_confidence", FLOAT, "nat", "the same for the reference model or the background classifier"),
        Column("group", TEXT, "", "group of examples that the split assigned together; null for an ungrouped example"),
        Column("category", TEXT, "", "memorized, misrepresented, correlated or unassociated"),
    ),
    keys=("example_id", "direction", "pair", "layer", "epoch", "crop", "k"),
)
