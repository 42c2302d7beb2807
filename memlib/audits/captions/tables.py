"""Tables specific to audits of image-text models."""

from memlib.tables import FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="Objects recovered from each caption: one row per pair of image and caption, pair of models, epoch and k.",
    columns=(
        Column("example_id", TEXT, "", "the pair of image and caption"),
        Column("direction", TEXT, "", "its set: A, B, or H (held out from all models)"),
        Column("pair", INT, "", "number of the pair of trained models, from 0"),
        Column("epoch", INT, "epoch", "epoch of the checkpoint"),
        Column("k", INT, "", "number of public images that voted"),
        Column("group", TEXT, "", "group of pairs that the split assigned together; null for one that is alone"),
        Column("copies", INT, "", "times that a model whose set holds the pair was trained on it in each epoch"),
        Column("num_named", INT, "object", "objects in the image that the caption names"),
        Column("num_unnamed", INT, "object", "objects in the image that it does not name"),
        Column("num_implied", INT, "object", "those of them that the caption's words make more likely than not"),
        Column("a_recovered", INT, "object", "unnamed objects that the model trained on A names"),
        Column("b_recovered", INT, "object", "the same for the model trained on B; null without such a model"),
        Column("a_wrong", INT, "object", "objects that the model trained on A names and the image does not show"),
        Column("b_wrong", INT, "object", "the same for the model trained on B; null without such a model"),
        Column("a_unimplied", INT, "object", "unnamed objects that the words do not imply and the model trained on A names"),
        Column("b_unimplied", INT, "object", "the same for the model trained on B; null without such a model"),
        Column("a_named", INT, "object", "named objects among those with the most votes under the model trained on A"),
        Column("b_named", INT, "object", "the same for the model trained on B; null without such a model"),
        Column("prior_recovered", INT, "object", "unnamed objects that the caption's words alone give, without any model"),
        Column("distance", FLOAT, "squared L2", "from the caption to the nearest public image, mean over the models"),
    ),
    keys=("example_id", "pair", "epoch", "k"),
)
