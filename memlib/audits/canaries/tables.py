"""Tables specific to audits of canaries."""

from memlib.tables import FLAG, FLOAT, INT, Column, Table

LOOKS = Table(
    name="units",
    version=1,
    meaning="One row per planned look at the training. Nothing says which canary was inserted.",
    columns=(
        Column("look", INT, "", "number of the planned look, from 1; the last is at the end of the training"),
        Column("step", INT, "step", "optimizer steps of the model; null for a look that was missed"),
        Column("auc", FLOAT, "probability", "that an inserted canary has the better score, ties counted one half"),
        Column("p_alone", FLOAT, "probability", "p-value of this look alone, which allows for no other look"),
        Column("share", FLOAT, "fraction", "share of the level that was planned for the look; lost if it was missed"),
        Column("repeated", FLAG, "", "whether a training that resumed passed the look once more; the first one counts"),
        Column("missing", INT, "count", "canaries without a finite loss, which rank lowest; null for a missed look"),
        Column("stopped", FLAG, "", "whether the test stopped at this look"),
    ),
    keys=("look",),
)
