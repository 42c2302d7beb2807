"""Tables specific to forgetting audits."""

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=1,
    meaning="One row per triple of a target, null or retained model, a query model and a calibration model: their distances.",
    columns=(
        Column(
            "group",
            TEXT,
            "",
            "target, null (trained on no examples of U, the pool of D_Q) or retained (trained on a known share of D_Q)",
        ),
        Column("target", TEXT, "", "the target's name; empty for null and retained models"),
        Column("model", INT, "", "index of the model within group and target, from 0"),
        Column("query_model", INT, "", "index of the query model, trained on D_Q"),
        Column("calibration_model", INT, "", "index of the calibration model, trained on D_C"),
        Column(
            "ks_target", FLOAT, "probability", "KS distance between the query model and the model on D_Q (Liu 2020, Eq. 2)"
        ),
        Column(
            "ks_calibration", FLOAT, "probability", "KS distance between the query and the calibration model on D_Q (Eq. 3)"
        ),
        Column(
            "rho",
            FLOAT,
            "",
            "ratio of ks_target to ks_calibration (Eq. 4): 0 for models like those trained on D_Q, 1 for models like "
            "those not trained on it; null if D_C cannot calibrate",
        ),
    ),
    keys=("group", "target", "model", "query_model", "calibration_model"),
)

EXAMPLES = Table(
    name="examples",
    version=2,
    meaning="One row per example of U, the pool of D_Q, and target model: which examples carry the signal.",
    columns=(
        Column("target", TEXT, "", "the target's name"),
        Column("model", INT, "", "index of the model within the target, from 0"),
        Column("example_id", TEXT, "", "id of the example"),
        Column("role", TEXT, "", "query (D_Q), known (in every target's training data) or withheld (in no training data)"),
        Column("label", INT, "class index", "class of the example"),
        Column("class_name", TEXT, "", "name of the class"),
        Column("confidence", FLOAT, "probability", "the target's confidence p in the true class"),
        Column("log_odds", FLOAT, "nat", "log p / (1 - p)"),
        Column("log_odds_query", FLOAT, "nat", "mean log odds of the query models"),
        Column("log_odds_calibration", FLOAT, "nat", "mean log odds of the calibration models"),
        Column("log_likelihood_ratio", FLOAT, "nat", "log likelihood ratio of query (in) to calibration (out) models"),
        Column(
            "residual",
            FLOAT,
            "",
            "how much higher the target ranks the example than models that saw no examples of U predict; used by the test",
        ),
        Column("member", FLAG, "", "whether the target was trained on the example; null if unknown"),
    ),
    keys=("target", "model", "example_id"),
)
