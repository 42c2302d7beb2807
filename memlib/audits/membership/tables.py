"""Tables specific to membership audits."""

import pyarrow as pa

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=4,
    meaning="One row per example or, with groups, per person: what each attack says of its membership in the target's "
    "training set. Larger scores speak for membership. Where a declared draw was tested beside enough shadow models, "
    "attacks' scores are normal scores less what difficulty (log_odds_out) explains, which is what was tested.",
    columns=(
        Column("unit", TEXT, "", "id of the example, or of the first example of the person"),
        Column("examples", INT, "", "number of examples: 1, or a person's"),
        Column("label", INT, "class index", "class of the example, or of most of a person's examples"),
        Column("class_name", TEXT, "", "name of the class"),
        Column("member", FLAG, "", "whether the target was trained on it"),
        Column("log_odds", FLOAT, "nat", "log p / (1 - p) of the true class, over queries and examples; given scores"),
        Column("log_odds_in", FLOAT, "nat", "mean log odds of the shadow models that were trained on it; null without such"),
        Column("log_odds_out", FLOAT, "nat", "mean log odds of the other shadow models; null without such"),
        Column("lira", FLOAT, "nat", "log likelihood ratio of in and out models (Carlini 2022); null if not asked for"),
        Column("lira_offline", FLOAT, "nat", "-log of the tail probability under out models"),
        Column("rmia", FLOAT, "nat", "log of the confidence over its mean in shadow models (RMIA's ratio; BASE)"),
        Column("rmia_offline", FLOAT, "nat", "the same, from out models alone"),
        Column("calibrated_loss", FLOAT, "nat", "log confidence minus its mean in out models"),
        Column("loss", FLOAT, "nat", "log confidence, the negative loss"),
        Column("gap", FLOAT, "", "share of right answers"),
        Column(
            "trajectory",
            FLOAT,
            "nat",
            "log likelihood ratio over several epochs; of persons, -log of its tail",
        ),
        Column("ratio", FLOAT, "nat", "documents: mean log probability per token minus that of the pretrained or out models"),
        Column(
            "ez", FLOAT, "", "documents: log of gains over losses beside the pretrained model, in wrong tokens (Ilic 2026)"
        ),
        Column("wbc", FLOAT, "fraction", "documents: windows of tokens with a gain beside the pretrained model (Chen 2026)"),
        Column("min_k", FLOAT, "", "documents: Min-K%++, mean of the lowest standardized log probabilities (Zhang 2024)"),
        Column("zlib", FLOAT, "", "documents: log probability relative to the compressed size, in bits (Carlini 2021)"),
        Column("scores", FLOAT, "", "scores of an attack elsewhere, larger for members; null unless they were given"),
        Column(
            "above_nonmembers",
            FLOAT,
            "fraction",
            "share of non-members whose headline score is smaller; of a non-member, among the others",
        ),
    ),
    keys=("unit",),
)

EXAMPLES = Table(
    name="examples",
    version=1,
    meaning="One row per example of the pool: counterfactual memorization over all models (Feldman and Zhang 2020; Zhang "
    "2021).",
    columns=(
        Column("example_id", TEXT, "", "id of the example"),
        Column("group", TEXT, "", "group of the example; null for an example without a group"),
        Column("label", INT, "class index", "class of the example"),
        Column("class_name", TEXT, "", "name of the class"),
        Column("models_in", INT, "", "number of models that were trained on it"),
        Column("models_out", INT, "", "number of other models"),
        Column("correct_in", FLOAT, "fraction", "share of right answers of the models that were trained on it"),
        Column("correct_out", FLOAT, "fraction", "share of right answers of the others"),
        Column("memorization", FLOAT, "fraction", "difference of the two shares"),
        Column("ci_low", FLOAT, "fraction", "lower end of its 95 % interval over models (Newcombe 1998)"),
        Column("ci_high", FLOAT, "fraction", "upper end of the interval"),
        Column("p_adjusted", FLOAT, "probability", "Fisher's exact test, one-sided, adjusted over all examples (Holm)"),
    ),
    keys=("example_id",),
    optional=True,
)

INFLUENCE = Table(
    name="influence",
    version=1,
    meaning="Pairs of a memorized example of the pool and a held-out example on which training on the first one matters.",
    columns=(
        Column("example_id", TEXT, "", "the memorized example"),
        Column("held_out_id", TEXT, "", "the held-out example"),
        Column("influence", FLOAT, "fraction", "right answers on the held-out example with minus without the memorized one"),
        Column("p_adjusted", FLOAT, "probability", "Fisher's exact test, one-sided, adjusted over all pairs (Holm)"),
    ),
    keys=("example_id", "held_out_id"),
    optional=True,
)

MODELS = Table(
    name="models",
    version=1,
    meaning="One row per model: its utility, and how well the headline attack tells its own members when the other shadow "
    "models are its shadows.",
    columns=(
        Column("model", INT, "", "number of the shadow model; -1: the target"),
        Column("members", INT, "", "number of examples in its training set"),
        Column("accuracy_in", FLOAT, "fraction", "share of right answers on its training set; null if it is unknown"),
        Column("accuracy_out", FLOAT, "fraction", "share of right answers on the other examples of the pool"),
        Column("loss_in", FLOAT, "nat", "mean loss on its training set; null if it is unknown"),
        Column("loss_out", FLOAT, "nat", "mean loss on the other examples"),
        Column("auc", FLOAT, "", "area under the ROC curve of the headline attack, over examples or persons"),
        Column("p_value", FLOAT, "probability", "p-value of this area by redraws of the model's coins"),
        Column(
            "true_alarms",
            pa.list_(FLOAT),
            "fraction",
            "true alarms at each rate of false alarms of the recipe; NaN if unknown",
        ),
    ),
    keys=("model",),
)
