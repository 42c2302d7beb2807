"""The tables that only exposure audits have."""

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

UNITS = Table(
    name="units",
    version=3,
    meaning="A row a canary, model and checkpoint. No secrets: canaries are named by id.",
    columns=(
        Column("variant", TEXT, "", "which variant of the recipe; empty without variants"),
        Column("seed", INT, "", "which training of the variant, counted from 0"),
        Column("epoch", FLOAT, "epoch", "of the checkpoint; not whole where it lies within one"),
        Column("canary", INT, "", "its id"),
        Column(
            "kind", TEXT, "", "drawn and inserted, drawn and never inserted (never), given by a file, or unseen of a file"
        ),
        Column("insertions", INT, "count", "how often this model's training data hold it; 0: never"),
        Column("log_perplexity", FLOAT, "bit", "of the canary after its known prefix (Carlini 2019, Definition 1)"),
        Column("exposure", FLOAT, "bit", "log2 |R| - log2 rank (Definition 4), by the method"),
        Column("ci_low", FLOAT, "bit", "lower end of its 95 % interval over random references; null where it is exact"),
        Column("ci_high", FLOAT, "bit", "upper end; null where exact, and where no reference lies below"),
        Column("method", TEXT, "", "pruned or enumerated (exact rank), sampled, or extrapolated (skew-normal)"),
        Column("rank", INT, "", "candidates at most as costly (Definition 2); null unless exact"),
        Column(
            "p_value",
            FLOAT,
            "probability",
            "that a canary that was never inserted ranks as low; of a given secret, among the unseen ones",
        ),
        Column("exposure_sampled", FLOAT, "bit", "from the share of random references at most as costly"),
        Column("exposure_extrapolated", FLOAT, "bit", "from the skew-normal law of the references; not bounded by log2 |R|"),
        Column(
            "fit_p",
            FLOAT,
            "probability",
            "parametric-bootstrap goodness of fit of the law; null where nothing rests on it",
        ),
        Column("space_bits", FLOAT, "bit", "log2 |R|"),
        Column("evaluations", INT, "count", "prefixes evaluated for the exact rank; null unless exact"),
        Column("validation_loss", FLOAT, "nat", "of the model on windows no model trains on, a symbol"),
    ),
    keys=("variant", "seed", "epoch", "canary", "insertions"),
)

DOCUMENTS = Table(
    name="documents",
    version=1,
    meaning="A row a document of the text and model, at its last checkpoint: what comes out of a document whose beginning is "
    "known. Documents are named by number, in the order of the source.",
    columns=(
        Column("variant", TEXT, "", "which variant of the recipe; empty without variants"),
        Column("seed", INT, "", "which training of the variant"),
        Column("document", INT, "", "its number, from 0"),
        Column("held_out", FLAG, "", "whether no model trained on it"),
        Column("copies", INT, "count", "how often it stands on its side"),
        Column("bits", FLOAT, "bit", "-log2 of the probability of its suffix after its prefix, untruncated, temperature 1"),
        Column("scheme_bits", FLOAT, "bit", "-log2 p_z under the recipe's scheme of sampling; null where it cannot come out"),
        Column("greedy", FLAG, "", "whether the likeliest token at each place gives the suffix"),
        Column("near", INT, "count", "samples that come near the suffix; null where none were drawn"),
    ),
    keys=("variant", "seed", "document"),
)

EXTRACTION = Table(
    name="extractions",
    version=2,
    meaning="A row a canary and search in the model that saw it. Canaries of one model share a search that is told nothing.",
    columns=(
        Column("variant", TEXT, "", "which variant of the recipe; empty without variants"),
        Column("seed", INT, "", "which training of the variant"),
        Column("canary", INT, "", "its id"),
        Column("insertions", INT, "count", "how often the model's training data hold it"),
        Column("known", INT, "symbol", "symbols of the holes that the search was told"),
        Column("search", TEXT, "", "shortest_path, greedy, or beam"),
        Column("extracted", FLAG, "", "whether it is among as many likeliest candidates as the model saw canaries"),
        Column("by_chance", FLOAT, "", "the probability of that for a model that knows nothing"),
        Column("position", INT, "", "its place among the candidates found, from 1; null if it is not among them"),
        Column(
            "queries", INT, "count", "prefixes whose next symbols were asked for until it, or the search's end, was found"
        ),
        Column("ended", TEXT, "", "found, exhausted, or the limit that ended the search: evaluations, seconds"),
        Column("exact", FLAG, "", "whether no likelier candidate can have been missed"),
    ),
    keys=("variant", "seed", "canary", "known", "search"),
)
