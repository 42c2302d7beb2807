"""The toy audit's own table."""

from memlib.tables import INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="One row per class.",
    columns=(
        Column("class_name", TEXT, "", "the class"),
        Column("examples", INT, "count", "number of examples of the class"),
    ),
    keys=("class_name",),
)
