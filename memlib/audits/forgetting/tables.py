"""The tables that only forgetting audits have."""

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="Distances of each triple: a target, null or retained model, a query model and a calibration model.",
    columns=(
        Column("group", TEXT, "", "target, null (nothing of U) or retained (a known share of D_Q)"),
        Column("target", TEXT, "", "the target's name; empty for null and retained models"),
        Column("model", INT, "", "which model of the group and target, counted from 0"),
        Column("query_model", INT, "", "which model trained on D_Q"),
        Column("calibration_model", INT, "", "which model trained on D_C"),
        Column("ks_target", FLOAT, "probability", "KS distance of query model and model on D_Q (Liu 2020, Eq. 2)"),
        Column("ks_calibration", FLOAT, "probability", "KS distance of query and calibration model (Eq. 3)"),
        Column("rho", FLOAT, "", "their ratio (Eq. 4): 0 as if trained on D_Q, 1 if not; null where D_C cannot calibrate"),
    ),
    keys=("group", "target", "model", "query_model", "calibration_model"),
)

EXAMPLES = Table(
    name="examples",
    version=2,
    meaning="Each example of U, the pool of D_Q, under each target model: which examples carry the signal.",
    columns=(
        Column("target", TEXT, "", "the target's name"),
        Column("model", INT, "", "which model of the target, counted from 0"),
        Column("example_id", TEXT, "", "the example"),
        Column("role", TEXT, "", "query (D_Q), known (in every target) or withheld (given to nobody)"),
        Column("label", INT, "class index", "its class"),
        Column("class_name", TEXT, "", "the class's name"),
        Column("confidence", FLOAT, "probability", "the target's, in the true class"),
        Column("log_odds", FLOAT, "nat", "log p / (1 - p) of it"),
        Column("log_odds_query", FLOAT, "nat", "mean of the query models"),
        Column("log_odds_calibration", FLOAT, "nat", "mean of the calibration models"),
        Column("log_likelihood_ratio", FLOAT, "nat", "of query (in) to calibration (out) models, as in LiRA"),
        Column("residual", FLOAT, "", "how much higher the target ranks it than models that saw none of U; tested"),
        Column("member", FLAG, "", "whether the target trained on it; null when that is not known"),
    ),
    keys=("target", "model", "example_id"),
)
