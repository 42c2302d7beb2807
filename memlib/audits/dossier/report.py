"""The document: one summary page, then what was and was not tested, the persons at risk, and how to repeat each number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.attacks import attacks
from memlib.audits.dossier.findings import PARETO
from memlib.audits.dossier.listed import BESIDE, FAILED, NOT_APPLICABLE, NOT_IN_MEMLIB, NOT_RUN, RUN
from memlib.audits.dossier.recipe import LEVEL, NOT_SHOWN, OPENED, Recipe, ReleaseSpec
from memlib.audits.dossier.risk import fewest_that_can_pass
from memlib.audits.ranking import CANARY
from memlib.findings import BOUNDED, DESCRIPTIVE, SHOWN, Finding, Findings
from memlib.report.format import format_p, format_value, once_in, percent
from memlib.report.glossary import terms
from memlib.report.intervals import Mark, bars
from memlib.report.page import SENTENCE_END, Content, Section, TableView, advice_of, facts_table, filled, meaning_of
from memlib.report.spreadsheet import columns_of
from memlib.sanitize import count_of

FORMAT, MOST_LISTED, MOST_IN_JSON, DIGITS = 3, 25, 100, 16
METHOD = ("Shown: ", "P-values are ", "An audit counts ")  # sentences of the explanation that are not in the verdict's box
MOST_SECTIONS = 20  # that are always visible; each section says itself whether it is folded
Row = Mapping[str, Any]


def compose(
    recipe: Recipe,
    audits: pa.Table,
    findings: Findings,
    risk: pa.Table | None,
    names: Mapping[str, str],
    data: str,
) -> Content:
    """Compose the content of the document.

    Args:
        audits, risk: tables.AUDITS and RISK; None without ids.
        findings: findings of the dossier, with its verdict.
        names: name of each run's model, as in the index of the store.
        data: the data of the runs, in words.
    """
    rows = audits.to_pylist()
    runs, failed = _by_run(rows), [row for row in rows if row["state"] == FAILED]
    shown = [row for row in runs if row["shown"] and row["counts"]]
    word, said = findings.verdict.word, SENTENCE_END.split(findings.verdict.explanation)
    return Content(
        meaning=meaning_of(
            word,
            shown=f"It takes {_needed(shown)}. What an audit shows of single models or single records, its own page says. "
            "Audits in this document that do not show it prove no absence.",
            bounded="With the attack of an audit that bounds memory, an outsider gains at most its bound below, each at 95 % "
            "by itself. Other attacks, also those listed without a bound, may gain more.",
        ),
        advice=advice_of(word, shown=_advice(shown, recipe.release)),
        limits=NOT_SHOWN,
        terms=tuple(terms()),
        model="; ".join(dict.fromkeys(row["examined"] for row in runs)),
        about=_about(runs, recipe, data),
        first=MOST_SECTIONS,
        lead=" ".join(text for text in said if not text.startswith(METHOD)),
        numbers=[
            (str(len(shown)), "audits that count show memory, adjusted", ""),
            (str(sum(row["p_dossier"] is not None for row in runs)), "audits with a test", ""),
            (str(sum(row["state"] in (NOT_RUN, NOT_IN_MEMLIB) for row in rows)), "known attacks not run", ""),
            *([(str(len(failed)), "audits failed", "")] if failed else []),
        ],
        sections=[
            _bars(runs),
            _tested(runs),
            _beside([row for row in rows if row["state"] == BESIDE]),
            _structure(rows),
            _untested(rows),
            _release(recipe.release),
            _at_risk(risk, findings, recipe),
            _regulators(rows, recipe.release),
            Section("How the verdict was reached", findings.verdict.explanation, is_folded=True),
            _numbers_behind(runs),
            _scope(runs, [row for row in rows if row["state"] == RUN], recipe.release, names),
            _mitigations(findings),
            _together(findings),
            _repeat(runs),
        ],
    )


def _needed(shown: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(str(row["access"]) for row in shown))


def _advice(shown: Sequence[Row], release: ReleaseSpec) -> str:
    """Return the advice that follows from what was shown, and about what it was shown."""
    given = [row for row in shown if row["external"]]
    asked = dict.fromkeys(row["advice"] for row in shown if row["advice"])
    if given and is_another(given, release):
        first = "The released model was not examined: audit it, and do not take these results for its own."
    elif given:
        first = (
            "Do not give the model in this form to anyone with that access, or say which of the attacks the access rules out."
        )
    else:
        first = (
            "No finished model was examined: the audits trained models of their own. A model that was trained in this way "
            "may remember as much; audit the one that is to be released (target.trained)."
        )
    return " ".join([first, *asked])


def is_another(runs: Sequence[Row], release: ReleaseSpec) -> bool:
    """Return whether the owner states the digest of a released model that none of the runs examined."""
    given = [row for row in runs if row["external"]]
    return bool(release.digest) and not any(release.digest in (*row["wholes"], *row["external"]) for row in given)


def _about(runs: Sequence[Row], recipe: Recipe, data: str) -> dict[str, str]:
    """Return what a reader must know of the document, by heading."""
    release = recipe.release
    given = any(row["external"] for row in runs)
    match = ""
    if release.digest:
        match = "another model than the audited ones" if is_another(runs, release) else "the audited model"
    elif given:
        match = "not stated (release.digest)"
    return {
        "audited": "; ".join(dict.fromkeys(row["examined"] for row in runs)),
        "released model": ", ".join(filter(None, (release.model, release.released, match))),
        "decided by": release.policy,
        "audits by": release.author,
        "data": data,
    }


def _by_run(rows: Sequence[Row]) -> list[Row]:
    """Return one row per run: a run that contains several attacks is listed under the one of its headline."""
    runs = [row for row in rows if row["leads"]]
    times = Counter(row["title"] for row in runs)
    return [{**row, "title": f"{row['title']} ({row['run'][:6]})"} if times[row["title"]] > 1 else row for row in runs]


def _bars(runs: Sequence[Row]) -> Section | None:
    """Return a drawing of each audit's interval against chance and bound, each on its own scale."""
    drawn = [(row["title"], _finding(row), _bar(row)) for row in runs if row["ci_low"] is not None]
    solid = "; solid: the bound of the recipe" if any(row["bound"] is not None for row in runs) else ""
    text = (
        "Each audit's headline with its 95 % interval, on a scale of its own. Dashed: the value without memory"
        f"{solid}; red: shown, adjusted over all audits."
    )
    return Section("In one picture", text, TableView(("audit", "finding", "interval"), drawn)) if drawn else None


_NUMBERS = (
    "run",
    "title",
    "metric",
    "value",
    "ci_low",
    "ci_high",
    "over",
    "chance",
    "upper_bound",
    "bound",
    "detectable",
    "n",
)


def _finding(row: Row) -> str:
    """Return the headline of a run in words, with its interval and its value without memory."""
    without = f"; without memory {_number(row, 'chance')}" if row["chance"] is not None else ""
    return f"{_in_words(row)}: {_number(row, 'value')} (95 %: {_ends(row)}{without})"


def _bar(row: Row) -> Markup:
    values = {"without memory": "chance", "bound": "bound"}
    beside = [f"{said} {_number(row, name)}" for said, name in values.items() if row[name] is not None]
    numbers = f"{_in_words(row)} {_number(row, 'value')} ({_ends(row)})"
    style = "found" if row["shown"] and row["counts"] else "first"
    mark = Mark(row["value"], row["ci_low"], row["ci_high"], style, "; ".join([f"{row['title']}: {numbers}", *beside]))
    return bars([mark], null=row["chance"], bound=row["bound"])


def _in_words(row: Row) -> str:
    """Return the metric of a run's headline in plain words."""
    known = AUDITS[audit_of(row["audited"])].metrics.get(row["metric"])
    return str(row["metric"]).replace("_", " ") if known is None else known.words


def _tested(runs: Sequence[Row]) -> Section:
    said = [(row["title"], row["sentence"], row["word"], _sure(row), _power(row), _remark(row)) for row in runs]
    text = (
        "Verdicts are copied from each audit's own page, and not adjusted for the other audits. By chance: how often so "
        "strong a result would come without memory, adjusted for all audits; one in twenty or rarer counts as shown, "
        "unless a remark says that the audit does not count. Found: the smallest effect that the test "
        "shows in four of five cases, in the unit of the picture above."
    )
    headings = ("audit", "its own verdict", "in a word", "by chance", "smallest effect detectable", "remark")
    return Section("What was tested", text, filled(headings, said))


def _remark(row: Row) -> str:
    return row["reason"] or ("it describes, and tests nothing" if row["word"] == DESCRIPTIVE else "")


def _sure(row: Row) -> str:
    return once_in(row["p_dossier"]).removeprefix("by chance ")


def _power(row: Row) -> str:
    if row["p_dossier"] is None:
        return ""
    return "nothing" if row["detectable"] is None else f"from {_number(row, 'detectable')}"


def _beside(rows: Sequence[Row]) -> Section | None:
    """Return the runs that do not belong to the dossier and say otherwise; None without any."""
    cells = [(f"{row['title']} (run {row['run']})", row["sentence"], row["word"], row["reason"]) for row in rows]
    text = "Runs on the same subject that do not belong to this document, and whose verdict contradicts it."
    table = filled(("audit", "its verdict", "in a word", "remark"), cells)
    return Section("What other runs say", text, table) if cells else None


def _structure(rows: Sequence[Row]) -> Section | None:
    """Return the numbers that audits state beside their attacks; None without any."""
    names = {attack.name for _, attack in attacks() if not attack.is_attack}
    cells = [
        (row["title"], row["attack"].partition(": ")[2], f"{row['value']:,.0f}", f"{row['n']:,}")
        for row in rows
        if row["state"] == RUN and row["attack"] in names
    ]
    text = "What the model's outputs tell apart among its training rows without an attack. It is counted, and not tested."
    headings = ("audit", "number", "count", "of training rows")
    return Section("Structure of the outputs", text, TableView(headings, cells)) if cells else None


def _numbers_behind(runs: Sequence[Row]) -> Section:
    numbers = [
        (
            row["title"],
            f"{_in_words(row)} {_number(row, 'value')}",
            _ends(row) + (f", over {row['over']}" if row["over"] else ""),
            _number(row, "chance"),
            "" if row["word"] == SHOWN else _number(row, "upper_bound"),
            _number(row, "bound"),
            format_p(row["p_dossier"]),
        )
        for row in runs
    ]
    text = (
        "Intervals are over the units that are named; verdicts rest on tests, so that an interval over few canaries or "
        "trainings may include chance where a test shows memory. At most: a one-sided 95 % upper limit, where nothing is "
        "shown. Bound: the limit of the recipe, below which an effect is called bounded; it was fixed beforehand if the "
        "run follows a frozen plan, as its page says. The p-value is adjusted for all audits (Holm)."
    )
    headings = ("audit", "finding", "95 % interval", "without memory", "at most", "bound", "p, all audits")
    return Section(
        "The numbers behind each verdict", text, filled(headings, numbers, columns_of(runs, *_NUMBERS)), is_folded=True
    )


def _ends(row: Row) -> str:
    if row["ci_low"] is None:
        return ""
    low = _number(row, "ci_low")
    return f"at least {low}" if row["ci_high"] is None else f"{low} to {_number(row, 'ci_high')}"


def _number(row: Row, name: str) -> str:
    """Return a value of a run as its own page gives it: shares in per cent, other numbers with three decimals."""
    value = row[name]
    if value is None or value != value:
        return ""
    known = AUDITS[audit_of(row["audited"])].metrics.get(row["metric"])
    return percent(value) if known is not None and known.is_share else f"{value:.3g}"


def _untested(rows: Sequence[Row]) -> Section:
    missing = [(row["title"], "", f"failed: {row['reason']}") for row in rows if row["state"] == FAILED]
    missing += [(row["attack"], row["item"], row["reason"]) for row in rows if row["state"] in (NOT_RUN, NOT_IN_MEMLIB)]
    beside = [(row["attack"], row["reason"]) for row in rows if row["state"] == NOT_APPLICABLE]
    return Section(
        "What was not tested, and why",
        "Nothing above says anything about these attacks." if missing else "All known attacks on such data were run.",
        TableView(("attack, or audit that failed", "EDPB 28/2024, par. 55", "reason"), missing) if missing else None,
        TableView(("attack", "reason"), beside, folded="Attacks that do not apply to these data") if beside else None,
    )


def _release(release: ReleaseSpec) -> Section | None:
    """Return the owner's statements about the release; None without any."""
    facts = {
        "model": release.model,
        "digest (sha256)": release.digest,
        "date": release.released,
        "policy and gate": release.policy,
        "audits by": release.author,
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
    """Return the persons and examples that stand out from records that the model was not trained on, by id."""
    heading = "Who stands out"
    if not recipe.ids:
        return Section(heading, "This dossier holds no ids. memlib risk prints the list from the store.")
    if risk is None:
        return Section(heading, "None of the audits ranks single persons or examples.")
    passed = [row for row in risk.to_pylist() if row["p_adjusted"] is not None and row["p_adjusted"] <= LEVEL]
    first = passed[:MOST_LISTED]
    rows = [(str(row["place"]), _who(row), once_in(row["p_adjusted"]).removeprefix("by chance ")) for row in first]
    listed = f" Listed are the first {len(first)}." if len(passed) > len(first) else ""
    text = (
        "Ids are those of the data source: only its holder knows whose records they are. The file that memlib risk --csv "
        f"FILE writes has all {count_of(risk.num_rows, 'record')} of training sets that the audits examined, in the order "
        f"of their scores; whoever is not listed here is not shown to stand out.{listed}"
    )
    table = TableView(("place", "who", "by chance"), rows, data=columns_of(first, *_OF_RISK)) if rows else None
    method = (
        "The p-value of a record is its rank among those of its class that the model was not trained on, in an audit that "
        "shows memory; that of a person, or of a record in several audits, is the smallest one times their number. All "
        "are adjusted together (Benjamini and Hochberg): of those listed, one in twenty is named by mistake, on average."
    )
    return Section(heading, _power_of_list(risk), table, text, method if rows else None)


_OF_RISK = ("place", "kind", "id", "named", "examined", "p_value", "p_adjusted")


def _who(row: Row) -> str:
    of_run = f" of run {json.loads(row['found'])[0]['run']}" if row["kind"] == CANARY else ""
    return (str(row["id"]) if str(row["id"]).startswith(row["kind"]) else f"{row['kind']} {row['id']}") + of_run


def _power_of_list(risk: pa.Table) -> str:
    """Say whether any single row stands out, and whether any could, given the number of reference records."""
    fewest = fewest_that_can_pass(risk, LEVEL)
    if fewest is None:
        return "No audit compares single records with others that the model was not trained on, so nobody is singled out."
    adjusted = [p for p in risk["p_adjusted"].to_pylist() if p is not None]
    passed, of_all = sum(p <= LEVEL for p in adjusted), count_of(len(adjusted), "record")
    said = (
        f"Of the {of_all} with a p-value, no single one is shown to stand out from records that the model was not trained on."
    )
    if passed:
        stand = "stands" if passed == 1 else "stand"
        said = f"Of the {of_all} with a p-value, {passed:,} {stand} out from records that the model was not trained on."
    if len(adjusted) < risk.num_rows:
        others = risk.num_rows - len(adjusted)
        said += f" The other {others:,} have none: their audits show no memory, or compare no single records."
    if passed or fewest == 1:
        return said
    return (
        f"{said} There are so few records to compare them with that at least {fewest} would have to stand out equally "
        "strongly before any could be named."
    )


def _together(findings: Findings) -> Section | None:
    """Return how many records several scores name that were in the training set; None without two scores of one draw."""
    said = [_named_together(row) for row in findings.all("members_named_together")]
    return Section("Records that several scores name", *said, is_folded=True) if said else None


def _named_together(row: Finding) -> str:
    at = row.params
    if not row.n:
        share = percent(at["share"])
        return f"No record is among the first {share} of two of {at['scores']} scores on one draw of the training set."
    found = round(row.value * row.n)
    return (
        f"{count_of(row.n, 'record')} {'is' if row.n == 1 else 'are'} among the first {percent(at['share'])} of at least "
        f"{at['named_by']} of {at['scores']} scores of the same draw of the training set, which may be attacks on the "
        f"answers of one model; {found} of them {'was' if found == 1 else 'were'} in the training set, against "
        f"{at['expected']:.1f} expected without memory ({once_in(row.p_value)})."
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
    return Section("Mitigations compared", text, TableView(headings, rows), is_folded=True) if rows else None


def _scope(runs: Sequence[Row], attacks: Sequence[Row], release: ReleaseSpec, names: Mapping[str, str]) -> Section:
    titles = {row["run"]: row["title"] for row in runs}
    scope = [
        (
            titles[row["run"]],
            row["attack"],
            row["access"],
            _is_possible(row, release),
            f"{row['n']:,}",
            _number(row, "detectable"),
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
        "finding. Detectable: the smallest finding, in its own unit, that the test shows in four of five cases, for the "
        "kind of effect that the audit's page names. Models that were trained for the audit speak for models trained in "
        "this way, not for a finished one. Utility: what the audit's page gives as such, a share of right answers or of "
        "objects named. Models have the names that memlib index gives them; digests are sha256, shortened."
    )
    possible = "with the intended access" if release.access else ""
    return Section(
        "Threat model and scope of each audit",
        text,
        filled(("audit", "attack", "attacker needs", possible, "n", "detectable", "model", "utility"), scope),
        filled(("audit", "date", "seeds", "data", "model", "weights or outputs"), origin),
        is_folded=True,
    )


def _is_possible(row: Row, release: ReleaseSpec) -> str:
    """Say whether the intended release gives the access that the attack needs; "" if its access is not stated."""
    if release.access is None:
        return ""
    return "possible" if release.access in row["possible_by"] else "not possible"


def _regulators(rows: Sequence[Row], release: ReleaseSpec) -> Section:
    """Return the rows of regulators' lists that the audits bear on, each as its audits decide it."""
    items: dict[str, list[Row]] = {}
    for row in rows:
        if row["item"]:
            items.setdefault(row["item"], []).append(row)
    cells = [(f"par. 55 {item}", *_state_of(of_item)) for item, of_item in sorted(items.items())]
    cells.append(("par. 58: documentation of threat model, measures and tests", *_documented(release)))
    cells.append(("OWASP AISVS 1.0, 11.2.5: attack accuracy no better than guessing", *_no_better(rows)))
    text = (
        "Rows of EDPB Opinion 28/2024 (par. 55, 58) and OWASP AISVS, each as these audits decide it: met, by which run; not "
        "met; cannot apply; or not in memlib. An item of par. 55 is met if it was tested, whatever the result. Par. 55 names "
        "examples of tests; whether these suffice is for the controller to judge. This is no legal advice."
    )
    return Section("Regulators' lists", text, TableView(("item", "state", "why"), cells))


def _state_of(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the state of an item of par. 55, and the reason: tested if a run contains one of its attacks and counts."""
    states: dict[str, list[Row]] = {}
    for row in rows:
        states.setdefault(row["state"], []).append(row)
    counted = [row for row in states.get(RUN, []) if row["counts"]]
    own = {attack.name for audit, attack in attacks() if audit}
    missing = [f"{row['attack']}: {row['reason']}" for row in states.get(NOT_RUN, [])]
    missing += [f"{row['title']}: {row['reason']}" for row in states.get(RUN, []) if not row["counts"]]
    elsewhere = [row for row in states.get(NOT_APPLICABLE, []) if row["attack"] in own]
    lacking = [f"{row['attack']}: {row['reason']}" for row in (*states.get(NOT_IN_MEMLIB, []), *elsewhere)]
    if counted:
        by = dict.fromkeys(f"{row['title']} (run {row['run']}): {_tested_as(row)}" for row in counted)
        rest = [*missing, *lacking]
        runs = ", ".join(dict.fromkeys(str(row["run"]) for row in counted))
        return f"met by run {runs}", "; ".join([*by, *([f"not tested of this item: {'; '.join(rest)}"] if rest else [])])
    if missing:
        return "not met", "; ".join([*missing, *lacking])
    if lacking:
        return NOT_IN_MEMLIB, "; ".join(lacking)
    return "cannot apply", "; ".join(dict.fromkeys(row["reason"] for row in states.get(NOT_APPLICABLE, [])))


def _tested_as(row: Row) -> str:
    """Return what a run says of an attack, and of what."""
    whose = "" if row["external"] else ", of models that the audit trained"
    return f"{row['word'] or 'not tested, described'}{whose}"


def _documented(release: ReleaseSpec) -> tuple[str, str]:
    """Return whether the document names the access of the release and measures against memorization."""
    others = "an impact assessment, advice of the data protection officer and sources of data are not part of this document"
    lacking = [name for name in ("access", "measures") if not getattr(release, name)]
    if lacking:
        return "not met", f"the owner has not stated {' and '.join(f'release.{name}' for name in lacking)}; {others}"
    return "met by this document", f"threat model and tests by memlib, release and measures as stated by the owner; {others}"


def _no_better(rows: Sequence[Row]) -> tuple[str, str]:
    """Return whether membership audits of a given model bound the accuracy of attacks."""
    runs = [row for row in rows if row["leads"] and row["audited"] == "membership"]
    counted = [row for row in runs if row["counts"]]
    if not counted:
        reason = "no membership audit counts" if runs else "no membership audit belongs to this document"
        return "not met", reason
    said = "; ".join(f"{row['title']} (run {row['run']}): {_tested_as(row)}" for row in counted)
    if all(row["word"] == BOUNDED and row["external"] for row in counted):
        by = ", ".join(str(row["run"]) for row in counted)
        return f"met by run {by}", f"{said}; its page has subgroups if they were asked for (score.slices)"
    return "not met", said


def _repeat(runs: Sequence[Row]) -> Section:
    cells = [(row["title"], f"memlib show {row['run']}", f"memlib verify {row['run']}") for row in runs]
    text = (
        "Each number is in the tables of its run. verify checks every digest; verify --recompute computes the numbers again."
    )
    return Section("How to repeat each number", text, TableView(("audit", "numbers", "check"), cells), is_folded=True)


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
