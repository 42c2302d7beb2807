"""The tables that only sweep audits have."""

from memlib.tables import FLOAT, SUMMARY, TEXT, Column, Table

SWEEP = Table(
    name="sweep",
    version=2,
    meaning="The findings of all cells of a sweep; a cell that broke has one row without a metric.",
    columns=(
        Column("cell", TEXT, "", "the cell's name"),
        Column("cell_audit", TEXT, "", "the audit that it is"),
        Column("cell_run", TEXT, "", "its run, whose own tables hold the rest; null when it broke"),
        Column("changes", TEXT, "JSON", "what sets it apart, by dotted key of the recipe"),
        Column("state", TEXT, "", "completed or failed"),
        Column("problem", TEXT, "", "why it failed"),
        Column("p_adjusted_sweep", FLOAT, "probability", "of a cell's headline: Holm over the headlines of all cells"),
        *SUMMARY.columns,
    ),
    keys=("cell", "metric", "params"),
)
