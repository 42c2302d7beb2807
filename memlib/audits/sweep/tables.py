"""Tables specific to sweeps."""

from memlib.tables import FLOAT, SUMMARY, TEXT, Column, Table

SWEEP = Table(
    name="sweep",
    version=3,
    meaning="The findings of all cells of a sweep, and their utility where it was measured; a failed cell has one row "
    "without a metric. Comparisons of two cells of the same audit on the same examples, and trends over all cells along a "
    "numeric key, have one row each.",
    columns=(
        Column("cell", TEXT, "", "name of the cell; first name - second name for a comparison; along KEY for a trend"),
        Column("cell_audit", TEXT, "", "audit of the cell"),
        Column("cell_run", TEXT, "", "run of the cell, whose own tables hold the details; null if it failed"),
        Column("changes", TEXT, "JSON", "changes of the cell to its recipe, by dotted key"),
        Column("state", TEXT, "", "completed or failed; compared for comparisons and trends"),
        Column("problem", TEXT, "", "reason for the failure"),
        Column("p_adjusted_sweep", FLOAT, "probability", "p-value of the cell's headline, adjusted over all cells (Holm)"),
        *SUMMARY.columns,
    ),
    keys=("cell", "metric", "params"),
)
