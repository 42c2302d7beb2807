"""Tables specific to exposure audits."""

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=3,
    meaning="One row per canary, model and checkpoint. Contains no secrets: canaries are named by id.",
    columns=(
        Column("variant", TEXT, "", "variant of the recipe; empty without variants"),
        Column("seed", INT, "", "index of the variant's training, from 0"),
        Column("epoch", FLOAT, "epoch", "epoch of the checkpoint; fractional within an epoch"),
        Column("canary", INT, "", "id of the canary"),
        Column(
            "kind",
            TEXT,
            "",
            "inserted (drawn and inserted), never (drawn, not inserted), given (canaries.file), unseen (canaries.unseen, or "
            "held out), or recurring (given, but not comparable with unseen ones)",
        ),
        Column("insertions", INT, "count", "occurrences in this model's training data; 0: never"),
        Column(
            "log_perplexity", FLOAT, "bit", "log-perplexity of the canary after its known prefix (Carlini 2019, Definition 1)"
        ),
        Column("exposure", FLOAT, "bit", "log2 |R| - log2 rank (Definition 4), by the method named in `method`"),
        Column("ci_low", FLOAT, "bit", "lower end of its 95 % interval over random references; null if exact"),
        Column("ci_high", FLOAT, "bit", "upper end; null if exact or extrapolated, or if no reference lies below"),
        Column("method", TEXT, "", "pruned or enumerated (exact rank), sampled, or extrapolated (skew-normal)"),
        Column("rank", INT, "", "number of candidates that are at least as likely (Definition 2); null unless exact"),
        Column(
            "p_value",
            FLOAT,
            "probability",
            "probability that an uninserted canary (for a given secret: an unseen secret) ranks at least as low",
        ),
        Column("exposure_sampled", FLOAT, "bit", "estimated from the share of random references that are at least as likely"),
        Column(
            "exposure_extrapolated",
            FLOAT,
            "bit",
            "estimated from a skew-normal distribution fitted to the references; not bounded",
        ),
        Column(
            "fit_p",
            FLOAT,
            "probability",
            "goodness of fit of that distribution, by parametric bootstrap; null where no exposure rests on it",
        ),
        Column("space_bits", FLOAT, "bit", "log2 |R|, where R is the space of candidates"),
        Column("evaluations", INT, "count", "prefixes evaluated for the exact rank; null unless exact"),
        Column("validation_loss", FLOAT, "nat", "per symbol, on windows that no model trains on"),
    ),
    keys=("variant", "seed", "epoch", "canary", "insertions"),
)

DOCUMENTS = Table(
    name="documents",
    version=1,
    meaning="One row per document of the text and model, at the model's last checkpoint: extraction of documents whose "
    "beginning is known. Documents are named by number, in the order of the source.",
    columns=(
        Column("variant", TEXT, "", "variant of the recipe; empty without variants"),
        Column("seed", INT, "", "index of the variant's training, from 0"),
        Column("document", INT, "", "number of the document, from 0"),
        Column("held_out", FLAG, "", "whether the document was held out, so that no model trained on it"),
        Column(
            "copies",
            INT,
            "count",
            "documents with the same text or beginning, including this one; all of them are on one side",
        ),
        Column(
            "bits",
            FLOAT,
            "bit",
            "-log2 of the probability of the document's suffix after its prefix, untruncated, at temperature 1",
        ),
        Column(
            "scheme_bits",
            FLOAT,
            "bit",
            "-log2 p_z, the suffix's probability under the recipe's sampling scheme; null if it is 0",
        ),
        Column("greedy", FLAG, "", "whether greedy decoding (the likeliest token at each position) gives the suffix"),
        Column("near", INT, "count", "samples that come near the suffix; null if none were drawn"),
    ),
    keys=("variant", "seed", "document"),
)

EXTRACTION = Table(
    name="extractions",
    version=2,
    meaning="One row per canary and search in the model that saw it. Canaries of one model share the search without known "
    "symbols.",
    columns=(
        Column("variant", TEXT, "", "variant of the recipe; empty without variants"),
        Column("seed", INT, "", "index of the variant's training, from 0"),
        Column("canary", INT, "", "id of the canary"),
        Column("insertions", INT, "count", "occurrences in the model's training data"),
        Column("known", INT, "symbol", "symbols of the secret, from the first, that the search was given"),
        Column("search", TEXT, "", "shortest_path, greedy, beam, or answers of a service"),
        Column(
            "extracted",
            FLAG,
            "",
            "whether the canary is among the k likeliest candidates, for a search that k canaries share",
        ),
        Column("by_chance", FLOAT, "", "probability of an extraction by a model that knows nothing"),
        Column("position", INT, "", "position of the canary among the candidates found, from 1; null if it was not found"),
        Column(
            "queries",
            INT,
            "count",
            "prefixes whose next symbols were queried until the canary was found or, failing that, until the search ended",
        ),
        Column("ended", TEXT, "", "found, exhausted, or the limit that ended the search: evaluations or seconds"),
        Column("exact", FLAG, "", "whether no likelier candidate can have been missed"),
    ),
    keys=("variant", "seed", "canary", "known", "search"),
)
