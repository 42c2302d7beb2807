"""Tables specific to dossiers."""

import pyarrow as pa

from memlib.tables import FLAG, FLOAT, INT, TEXT, Column, Table

AUDITS = Table(
    name="audits",
    version=3,
    meaning="One row per attack that an audit of the dossier contains, one per audit that failed, one per run beside the "
    "dossier that contradicts it, and one per attack known to the field that none of them contains. Audits are counted "
    "by the rows that lead.",
    columns=(
        Column("attack", TEXT, "", "name of the attack; empty for an audit that failed"),
        Column("state", TEXT, "", "run, failed, beside, not run (it applies to the data), not in memlib, or not applicable"),
        Column("reason", TEXT, "", "why it was not run, or does not apply; of a run: why it does not count, if so"),
        Column("item", TEXT, "", "item of EDPB Opinion 28/2024, par. 55, under which the attack falls; empty for none"),
        Column("access", TEXT, "", "access that the attacker needs"),
        Column(
            "possible_by", pa.list_(TEXT), "", "forms of release that give this access, as in release.access; none: internal"
        ),
        Column("run", TEXT, "", "run of the audit; null without one"),
        Column("audited", TEXT, "", "audit of the run"),
        Column("title", TEXT, "", "title of the run"),
        Column("finished", pa.timestamp("us", tz="UTC"), "", "time of the run's last publication"),
        Column("counts", FLAG, "", "whether the dossier's verdict may name the run: it is neither stale nor powerless"),
        Column("leads", FLAG, "", "whether the run's headline is this attack's: true in one row of each run"),
        Column(
            "word",
            TEXT,
            "",
            "the run's own verdict, not adjusted for the other audits; of a row that does not lead: that of "
            "its finding, if any",
        ),
        Column("sentence", TEXT, "", "the run's own verdict in a sentence; null in rows that do not lead"),
        Column(
            "p_dossier",
            FLOAT,
            "probability",
            "p-value of its headline, adjusted over all audits and looks (Holm); null in rows that do not lead, and without "
            "a test that can show something",
        ),
        Column("shown", FLAG, "", "whether p_dossier is at most .05 and the level of the run; null without it"),
        Column("metric", TEXT, "", "metric of the attack's finding: the headline, else its strongest test or first finding"),
        Column("params", TEXT, "JSON", "settings of its finding"),
        Column("value", FLOAT, "metric's", "value of its finding"),
        Column("ci_low", FLOAT, "metric's", "lower end of its 95 % interval"),
        Column("ci_high", FLOAT, "metric's", "upper end of its 95 % interval"),
        Column("chance", FLOAT, "metric's", "value under the null"),
        Column("upper_bound", FLOAT, "metric's", "one-sided 95 % upper bound"),
        Column("bound", FLOAT, "metric's", "bound fixed by the recipe"),
        Column("detectable", FLOAT, "metric's", "effect that would have been found with 80 % power"),
        Column("n", INT, "", "number of units of the finding"),
        Column(
            "over", TEXT, "", "units that its interval accounts for: examples, groups, nets, canaries, ...; null without one"
        ),
        Column("alpha", FLOAT, "probability", "level of the run's tests"),
        Column("examined", TEXT, "", "model that the run was given, or models that it trained"),
        Column("subject", TEXT, "", "digest of that model, or of the data: equal for audits that examined the same"),
        Column("advice", TEXT, "", "what to do about what the run shows; null if it is not shown"),
        Column("entry", TEXT, "", "first run of the same design and draws: they are one entry of the adjustment"),
        Column("planned", FLAG, "", "whether the run follows a plan that was frozen before it"),
        Column("models", INT, "", "artifacts of models that memlib trained for the run"),
        Column("external", pa.list_(TEXT), "sha256", "digests of the files of an external model, or of supplied outputs"),
        Column("digests", pa.list_(TEXT), "sha256", "the same, and digests of the weights that memlib wrote"),
        Column("wholes", pa.list_(TEXT), "sha256", "digest of each given model, as memlib verify --digest prints it"),
        Column("data", TEXT, "sha256", "digest of the run's data"),
        Column("seeds", TEXT, "", "seeds that the recipe states"),
        Column("utility", FLOAT, "fraction", "utility of the run's models; null if it was not measured"),
    ),
    keys=("attack", "run", "title"),
)

RISK = Table(
    name="risk",
    version=2,
    meaning="The persons, examples, canaries and documents that the audited models were trained on, the most exposed first.",
    columns=(
        Column("place", INT, "", "place in the list, from 1"),
        Column("id", TEXT, "", "group (a person), or example without one; number of a canary; id of a document"),
        Column("kind", TEXT, "", "group, example, canary or document"),
        Column("data", TEXT, "sha256", "digest of the data that hold it; equal ids of other data are other records"),
        Column("examples", INT, "count", "examples of hers that audits examined"),
        Column("named", INT, "count", "audits that name one of them among their most exposed"),
        Column("examined", INT, "count", "audits that examined one of them"),
        Column("p_value", FLOAT, "probability", "smallest p-value times their number (Bonferroni); null without any"),
        Column("p_adjusted", FLOAT, "probability", "adjusted over all rows of the table (Benjamini and Hochberg)"),
        Column("smallest_p", FLOAT, "probability", "smallest p_value that the numbers of reference records allow"),
        Column("found", TEXT, "JSON", "per audit: run, score, best place among the members, number of members, p-value"),
    ),
    keys=("kind", "id", "data"),
    optional=True,
)
