"""The document: one summary page, then what was and was not tested, the persons at risk, and how to repeat each number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from memlib.audits.dossier.findings import ALPHA, PARETO
from memlib.audits.dossier.listed import FAILED, NOT_APPLICABLE, NOT_RUN, RUN
from memlib.audits.dossier.recipe import NOT_SHOWN, OPENED, Recipe, ReleaseSpec
from memlib.audits.dossier.risk import fewest_that_can_pass
from memlib.audits.ranking import CANARY
from memlib.findings import SHOWN, Finding, Findings
from memlib.report.format import format_p, format_value, percent, say_p
from memlib.report.glossary import terms
from memlib.report.intervals import Mark, bars
from memlib.report.page import Content, Section, TableView, advice_of, facts_table, filled, meaning_of
from memlib.report.spreadsheet import columns_of
from memlib.sanitize import count_of

FORMAT, MOST_LISTED, MOST_IN_JSON, DIGITS = 2, 25, 100, 16
Row = Mapping[str, Any]


def compose(recipe: Recipe, audits: pa.Table, findings: Findings, risk: pa.Table | None, names: Mapping[str, str]) -> Content:
    """Compose the content of the document.

    Args:
        audits, risk: tables.AUDITS and RISK; None without ids.
        findings: findings of the dossier, with its verdict.
        names: name of each run's model, as in the index of the store.
    """
    rows = audits.to_pylist()
    runs, failed = _by_run(rows), [row for row in rows if row["state"] == FAILED]
    word = findings.verdict.word
    return Content(
        meaning=meaning_of(
            word,
            shown="Anyone with the access that is listed beside an audit that is shown can learn what its sentence says of "
            "the training data. An audit that does not show it proves nothing.",
            bounded="With the attack of an audit that bounds memory, an outsider gains at most its bound below, each at 95 % "
            "by itself. Other attacks, also those listed without a bound, may gain more.",
        ),
        advice=advice_of(
            word,
            shown="Do not release the model in this form to anyone with that access. Train again with a mitigation (fewer "
            "epochs, deduplicated data, private training), without the persons at the top of the list where they object, and "
            "audit again; or restrict the access, and say which of the attacks below it rules out.",
        ),
        limits=NOT_SHOWN,
        terms=tuple(terms()),
        numbers=[
            (str(sum(bool(row["shown"]) and row["counts"] for row in runs)), "audits that count show memory, adjusted", ""),
            (str(sum(row["p_dossier"] is not None for row in runs)), "audits with a test", ""),
            (str(sum(row["state"] == NOT_RUN for row in rows)), "known attacks not run", ""),
            *([(str(len(failed)), "audits failed", "")] if failed else []),
        ],
        sections=[
            _bars(runs),
            _tested(runs),
            _untested(rows),
            _release(recipe.release),
            _at_risk(risk, findings, recipe),
            _mitigations(findings),
            _scope(runs, [row for row in rows if row["state"] == RUN], recipe.release, names),
            _regulators(rows),
            _repeat(runs),
        ],
    )


def _by_run(rows: Sequence[Row]) -> list[Row]:
    """Return one row per run: a run that contains several attacks is listed under the one of its headline."""
    runs = [row for row in rows if row["leads"]]
    times = Counter(row["title"] for row in runs)
    return [{**row, "title": f"{row['title']} ({row['run'][:6]})"} if times[row["title"]] > 1 else row for row in runs]


def _bars(runs: Sequence[Row]) -> Section | None:
    """Return a drawing of each audit's interval against chance and bound, each on its own scale."""
    drawn = [(row["title"], _in_words(row["metric"]), _bar(row)) for row in runs if row["ci_low"] is not None]
    text = (
        "Each audit's headline with its 95 % interval, on a scale of its own. Dashed: the value by chance alone; solid: the "
        "bound that the recipe calls acceptable; red: shown, adjusted over all audits."
    )
    return Section("In one picture", text, TableView(("audit", "finding", "interval"), drawn)) if drawn else None


_NUMBERS = ("run", "title", "metric", "value", "ci_low", "ci_high", "over", "chance", "upper_bound", "bound")


def _bar(row: Row) -> Markup:
    values = {"by chance": row["chance"], "acceptable": row["bound"]}
    beside = [f"{name} {_number(value)}" for name, value in values.items() if value is not None]
    numbers = f"{_in_words(row['metric'])} {_number(row['value'])} ({_ends(row['ci_low'], row['ci_high'])})"
    style = "found" if row["shown"] and row["counts"] else "first"
    mark = Mark(row["value"], row["ci_low"], row["ci_high"], style, "; ".join([f"{row['title']}: {numbers}", *beside]))
    return bars([mark], null=row["chance"], bound=row["bound"])


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _tested(runs: Sequence[Row]) -> Section:
    said = [(row["title"], row["sentence"], row["word"], format_p(row["p_dossier"]), row["reason"]) for row in runs]
    numbers = [
        (
            row["title"],
            f"{_in_words(row['metric'])} {_number(row['value'])}",
            _ends(row["ci_low"], row["ci_high"]) + (f", over {row['over']}" if row["over"] else ""),
            _number(row["chance"]),
            _number(row["upper_bound"]),
            _number(row["bound"]),
        )
        for row in runs
    ]
    text = (
        "Sentence and word are those of the audit's own page, not adjusted for the other audits. The p-value is adjusted: "
        "audits in which it is at most their level (.05 unless their recipe says otherwise) count as shown above, unless a "
        "remark says that they do not count."
    )
    return Section(
        "What was tested",
        text,
        filled(("audit", "its own verdict", "in a word", "p, all audits", "remark"), said),
        "The numbers behind each verdict. Intervals are over the units that are named; verdicts rest on tests, so "
        "that an interval over few canaries or trainings may include chance where a test shows memory. At most: a one-sided "
        "95 % upper limit. Acceptable: the bound that the recipe fixed beforehand.",
        filled(
            ("audit", "finding", "95 % interval", "by chance", "at most", "acceptable"), numbers, columns_of(runs, *_NUMBERS)
        ),
    )


def _ends(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f"at least {_number(low)}" if high is None else f"{_number(low)} to {_number(high)}"


def _number(value: float | None) -> str:
    """Return a value with three significant digits; findings of different kinds share a column."""
    return "" if value is None or value != value else f"{value:.3g}"


def _untested(rows: Sequence[Row]) -> Section:
    missing = [(row["title"], "", f"failed: {row['reason']}") for row in rows if row["state"] == FAILED]
    missing += [(row["attack"], row["item"], row["reason"]) for row in rows if row["state"] == NOT_RUN]
    beside = [(row["attack"], row["reason"]) for row in rows if row["state"] == NOT_APPLICABLE]
    return Section(
        "What was not tested",
        "Nothing above says anything about these attacks." if missing else "All known attacks on such data were run.",
        TableView(("attack, or audit that failed", "EDPB 28/2024, par. 55", "reason"), missing) if missing else None,
        TableView(("attack", "reason"), beside, folded="Attacks that do not apply to these data") if beside else None,
    )


def _release(release: ReleaseSpec) -> Section | None:
    """Return the owner's statements about the release; None without any."""
    facts = {
        "model": release.model,
        "purpose": release.purpose,
        "audience": release.audience,
        "access": "" if release.access is None else OPENED[release.access],
        "persons in the data": release.persons,
        "measures": "; ".join(release.measures),
        "residual risk": release.residual_risk,
        "contact": release.contact,
    }
    stated = {name: text for name, text in facts.items() if text}
    text = "As stated by the owner of the model; memlib has checked none of it."
    return Section("Intended release, and the owner's assessment", text, facts_table(stated)) if stated else None


def _at_risk(risk: pa.Table | None, findings: Findings, recipe: Recipe) -> Section:
    """Return the list of the most exposed persons and examples, by id."""
    heading = "Who is most exposed"
    together = [_together(row) for row in findings.all("members_named_together")]
    counts = [
        f"{count_of(int(row.value), 'record')} of {row.n:,} that several audits examined are named by {row.params['by']}."
        for row in findings.all("named_most_exposed")
    ]
    if not recipe.ids:
        return Section(heading, "This dossier holds no ids. memlib risk prints the list from the store.", *counts, *together)
    if risk is None:
        return Section(heading, "None of the audits ranks single persons or examples.", *together)
    first = risk.slice(0, MOST_LISTED).to_pylist()
    rows = [
        (str(row["place"]), _who(row), _named_by(row), format_p(row["p_value"]), format_p(row["p_adjusted"])) for row in first
    ]
    several = [row for row in risk.to_pylist() if row["named"] > 1][:MOST_LISTED]
    headings = ("place", "who", "named by", "p", "p, adjusted")
    text = (
        f"The first {min(MOST_LISTED, risk.num_rows)} of {risk.num_rows:,} records of training sets; memlib risk --csv FILE "
        "lists all of them. Ids are those of the data source: only its holder knows whose records they are. Each audit names "
        f"the {percent(recipe.named_share)} of the records with its highest scores. The p-value of a record is its rank "
        "among those of its class that the model was not trained on, in an audit that shows memory; that of a person, or of "
        "a record in several audits, is the smallest one times their number. All are adjusted together (Benjamini and "
        "Hochberg). Records with equal p-values are ordered by the number of audits that name them, records without any by "
        "their mean place."
    )
    named = [(str(row["place"]), _who(row), _named_by(row)) for row in several]
    return Section(
        heading, text, _power_of_list(risk), filled(headings, rows, columns_of(first, *_OF_RISK)), *counts,
        TableView(("place", "who", "named by"), named, folded="Named by at least two audits") if named else None, *together,
    )  # fmt: skip


_OF_RISK = ("place", "kind", "id", "named", "examined", "p_value", "p_adjusted")


def _who(row: Row) -> str:
    of_run = f" of run {json.loads(row['found'])[0]['run']}" if row["kind"] == CANARY else ""
    return (str(row["id"]) if str(row["id"]).startswith(row["kind"]) else f"{row['kind']} {row['id']}") + of_run


def _named_by(row: Row) -> str:
    return f"{row['named']} of {row['examined']}"


def _power_of_list(risk: pa.Table) -> str:
    """Say whether any single row could pass, given the number of reference records."""
    fewest = fewest_that_can_pass(risk, ALPHA)
    if fewest is None:
        return "No audit gives p-values for single records, so this list singles out nobody."
    adjusted = [p for p in risk["p_adjusted"].to_pylist() if p is not None]
    passed, known = sum(p <= ALPHA for p in adjusted), f"Of the {count_of(len(adjusted), 'record')} with a p-value"
    limit = min(p for p in risk["smallest_p"].to_pylist() if p is not None)
    said = f"{known}, none can be told from records that the model was not trained on (adjusted p above {ALPHA:g})."
    if passed:
        said = (
            f"{known}, {passed:,} {'stands' if passed == 1 else 'stand'} out from records that the model was not trained on "
            f"(adjusted p at most {ALPHA:g}: at most one in {round(1 / ALPHA)} of them by mistake, on average)."
        )
    if len(adjusted) < risk.num_rows:
        said += (
            f" The other {risk.num_rows - len(adjusted):,} have none, as their audits show no memory or rank nobody by it."
        )
    if passed or fewest == 1:
        return said
    return (
        f"{said} With so few reference records no p is below {limit:.2g}: at least {fewest} records would have to reach it "
        "before any of them can be shown."
    )


def _together(row: Finding) -> str:
    at = row.params
    if not row.n:
        share = percent(at["share"])
        return f"No record is among the first {share} of two of {at['scores']} scores on one draw of the training set."
    return (
        f"{row.n:,} records are among the first {percent(at['share'])} of at least {at['named_by']} of {at['scores']} scores "
        f"on one random draw of the training set; {round(row.value * row.n)} of them were in it, "
        f"against {at['expected']:.1f} by chance "
        f"({say_p(row.p_value)}{', shown' if row.verdict == SHOWN else ''})."
    )


def _mitigations(findings: Findings) -> Section | None:
    """Return runs that ask the same of different models: memory beside utility; None if there are none."""
    rows = [
        (
            str(row.params["title"]),
            format_value(row.params["memory"]),
            format_value(row.params["utility"]),
            percent(row.value, 0),
        )
        for row in findings.all(PARETO)
    ]
    text = (
        "Audits that ask the same of models made differently. Last: probability that no other one remembers less at higher "
        "utility (parametric bootstrap from both intervals, as if the models were independent)."
    )
    headings = ("audit", "memory", "utility", "on the Pareto front")
    return Section("Mitigations compared", text, TableView(headings, rows)) if rows else None


def _scope(runs: Sequence[Row], attacks: Sequence[Row], release: ReleaseSpec, names: Mapping[str, str]) -> Section:
    titles = {row["run"]: row["title"] for row in runs}
    scope = [
        (
            titles[row["run"]],
            row["attack"],
            row["access"],
            _is_possible(row, release),
            f"{row['n']:,}",
            _number(row["detectable"]),
            "given" if row["external"] else "trained for the audit",
            format_value(row["utility"]),
        )
        for row in attacks
    ]
    origin = [
        (
            row["title"],
            f"{row['finished']:%Y-%m-%d}",
            row["seeds"],
            row["data"][:DIGITS],
            names[row["run"]],
            ", ".join(digest[:DIGITS] for digest in row["digests"][:3]) + (" ..." if len(row["digests"]) > 3 else ""),
        )
        for row in runs
    ]
    text = (
        "Whoever has the access in the third column can do what the audit shows of the attack. n: units behind the "
        "finding. Detectable: the smallest finding, in its own unit, that the test shows in four of five cases. Models that "
        "were trained for the audit speak for models trained in this way, not for a finished one. Utility: share of right "
        "answers to unseen examples. Models have the names that memlib index gives them; digests are sha256, shortened."
    )
    possible = "with the intended access" if release.access else ""
    return Section(
        "Threat model and scope of each audit",
        text,
        filled(("audit", "attack", "attacker needs", possible, "n", "detectable", "model", "utility"), scope),
        filled(("audit", "date", "seeds", "data", "model", "weights or outputs"), origin),
    )


def _is_possible(row: Row, release: ReleaseSpec) -> str:
    """Say whether the intended release gives the access that the attack needs; "" if its access is not stated."""
    if release.access is None:
        return ""
    return "possible" if release.access in row["possible_by"] else "not possible"


def _regulators(rows: Sequence[Row]) -> Section:
    """Return the rows of regulators' lists that the audits bear on."""
    items: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["item"]:
            items.setdefault(row["item"], {}).setdefault(row["state"], []).append(row["title"] or row["attack"])
    cells = [
        (item, "; ".join(dict.fromkeys(states.get(RUN, []))) or "none", "; ".join(states.get(NOT_RUN, [])) or "none")
        if states.keys() & {RUN, NOT_RUN}
        else (item, "", "does not apply to these data")
        for item, states in sorted(items.items())
    ]
    cells.append(("par. 58: documentation of threat model, measures and tests", "this document", ""))
    cells.append(("OWASP AISVS 1.0, 11.2.5: attack accuracy against guessing", "the column 'by chance' above", ""))
    text = "Which rows of EDPB Opinion 28/2024 (par. 55, 58) and OWASP AISVS these audits bear on. This is no legal advice."
    return Section("Regulators' lists", text, TableView(("item", "audits", "not run"), cells))


def _repeat(runs: Sequence[Row]) -> Section:
    cells = [(row["title"], f"memlib show {row['run']}", f"memlib verify {row['run']}") for row in runs]
    text = "Each number is in the tables of its run; verify recomputes every digest."
    return Section("How to repeat each number", text, TableView(("audit", "numbers", "check"), cells))


def as_json(recipe: Recipe, run: str, audits: pa.Table, findings: Findings, risk: pa.Table | None) -> dict[str, Any]:
    """Return the dossier as plain JSON; `format` is raised when readers would notice a change.

    Args:
        audits, risk: tables.AUDITS and RISK; None without ids.
        findings: findings of the dossier, with its verdict.
    """
    said = findings.verdict
    return {
        "format": FORMAT,
        "run": run,
        "title": recipe.title,
        "subject": recipe.subject.model_dump(mode="json"),
        "release": recipe.release.model_dump(mode="json"),
        "verdict": {"word": said.word, "sentence": said.sentence, "explanation": said.explanation},
        "audits": [_plain(row) for row in audits.to_pylist()],
        "findings": [_plain({**row.row(), "params": dict(row.params)}) for row in findings],
        "risk": None if risk is None else {"rows": risk.num_rows, "first": _first(risk)},
    }


def _first(risk: pa.Table) -> list[dict[str, Any]]:
    """Return the first rows; the table holds all of them."""
    return [_plain({**row, "found": json.loads(row["found"])}) for row in risk.slice(0, MOST_IN_JSON).to_pylist()]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it: times as text, no NaN."""
    values = {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
    return {name: None if isinstance(value, float) and value != value else value for name, value in values.items()}
