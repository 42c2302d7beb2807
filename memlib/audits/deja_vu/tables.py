"""The tables that only déjà vu audits have."""

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=2,
    meaning="Votes on each audited example, by pair of models, layer, epoch, crop and k. Each example has one direction.",
    columns=(
        Column("example_id", TEXT, "", "the audited training image"),
        Column(
            "direction",
            TEXT,
            "",
            "the set it belongs to: A (target model trained on it) or B (roles swapped; under one model alone: held out)",
        ),
        Column("pair", INT, "", "which pair of trained models, counted from 0"),
        Column("layer", TEXT, "", "the embedding that was decoded: backbone, projector_1, ..., classifier"),
        Column("epoch", INT, "epoch", "the checkpoint's epoch"),
        Column("crop", TEXT, "", "the background crop: maximal, official or corner"),
        Column("k", INT, "", "public neighbours that voted"),
        Column("label", INT, "class index", "the object's class"),
        Column("class_name", TEXT, "", "its name"),
        Column(
            "target_prediction", INT, "class index", "vote under the model trained on the example, or the one that there is"
        ),
        Column(
            "reference_prediction",
            INT,
            "class index",
            "vote under the model that never saw it, or the background's classifier",
        ),
        Column("target_confidence", FLOAT, "nat", "negative entropy of the vote under the target model, at most 0"),
        Column("reference_confidence", FLOAT, "nat", "the same under the reference model"),
        Column("group", TEXT, "", "examples that the split drew as one; null for an example by itself"),
        Column("category", TEXT, "", "memorized, misrepresented, correlated or unassociated"),
    ),
    keys=("example_id", "direction", "pair", "layer", "epoch", "crop", "k"),
)
