"""The table that only the toy has."""

from memlib.tables import INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="A row per class.",
    columns=(
        Column("class_name", TEXT, "", "the class"),
        Column("examples", INT, "count", "how many examples it has"),
    ),
    keys=("class_name",),
)
