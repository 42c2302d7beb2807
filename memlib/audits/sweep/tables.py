"""The tables that only sweep audits have."""

from memlib.tables import FLOAT, SUMMARY, TEXT, Column, Table

SWEEP = Table(
    name="sweep",
    version=3,
    meaning="The findings of all cells of a sweep; a cell that broke has one row without a metric. Cells of the "
    "same audit on the same examples are compared in pairs, a row each; along a key of numbers a row speaks of all cells.",
    columns=(
        Column("cell", TEXT, "", "the cell's name; of two that are compared, the first one's - the second one's"),
        Column("cell_audit", TEXT, "", "the audit that it is"),
        Column("cell_run", TEXT, "", "its run, whose own tables hold the rest; null when it broke"),
        Column("changes", TEXT, "JSON", "what sets it apart, by dotted key of the recipe"),
        Column("state", TEXT, "", "completed or failed; compared of a row about two cells"),
        Column("problem", TEXT, "", "why it failed"),
        Column("p_adjusted_sweep", FLOAT, "probability", "of a cell's headline: Holm over the headlines of all cells"),
        *SUMMARY.columns,
    ),
    keys=("cell", "metric", "params"),
)
