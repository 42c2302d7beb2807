"""Sections of the page on the declared draw, slices, hidden columns, persons and structure."""

from collections.abc import Sequence

from memlib.audits.asked import CARRIED_OUT, NOT_POSSIBLE, service_section
from memlib.audits.membership.hidden import DECIMALS
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.slices import ANSWER, MOST
from memlib.audits.membership.verdict import NAMES
from memlib.findings import Finding, Findings
from memlib.report.format import format_interval, format_p, percent, say_p
from memlib.report.page import Section, TableView, WordsView, filled

OF_WEIGHTS = ("min_k", "lira", "rmia")  # attacks that no service allows
DRAW_TESTS = {
    "blind": "members against non-members without the model, by ids, sizes, dates and content",
    "difficulty": "members against non-members by models that were not trained on them",
    "counts": "numbers of members by class, against independent coins",
}
NUMBERS = {
    "output_classes": "different outputs",
    "smallest": "rows of the rarest output (k-anonymity)",
    "rows_below_k": "rows whose output is shared by fewer than {k}",
    "single_rows": "rows whose output no other row has",
    "pure_classes": "outputs of several rows that all have one label (class disclosure)",
    "pure_rows": "rows with such an output",
    "certain_rows": "rows for which a class has probability 1",
    "excluding_rows": "rows for which a class has probability 0",
    "small_cells": "pairs of output and label with fewer than {k} rows",
    "small_cell_rows": "rows in these",
    "residual_freedom": "rows less fitted parameters",
}
"""Text on the page by name of the number, see `memlib.stats.structure.StructuralRisk`."""


def declared_section(findings: Findings) -> Section | None:
    """Return the section on a declared random draw."""
    declared = findings.get("declared_draw")
    if declared is None:
        return None
    cells = [
        (text, format_p(declared.params[f"p_{name}"]) if f"p_{name}" in declared.params else "not made")
        for name, text in DRAW_TESTS.items()
        if name != "counts" or declared.params["drawn"] == "coins"
    ]
    outcome = (
        f"It is contradicted: {declared.params['reason']}. Nothing is tested."
        if declared.params["contradicted"]
        else f"Its tests together do not contradict it ({say_p(declared.value)})."
        if declared.params["examined"]
        else "It was not examined by models that were not trained on the examples, or not without a model, so the result "
        "rests on the owner's word."
    )
    raw = [
        (NAMES[row.params["attack"]], f"{row.value:.3f}", f"{findings.first('auc', attack=row.params['attack']).value:.3f}")
        for row in findings.all("auc_unadjusted")
    ]
    return Section(
        "The declared draw",
        f"The owner of the model declares that members were drawn at random ({declared.params['drawn']}). {outcome}",
        TableView(("test of the declaration", "p"), cells, data=[declared]),
        TableView(
            ("attack", "AUC of its scores", "adjusted for difficulty"),
            raw,
            folded="Scores before they were adjusted",
            data=findings.all("auc_unadjusted"),
        )
        if raw
        else None,
    )


def slices_section(findings: Findings, recipe: Recipe) -> Section | None:
    """Return the section on slices."""
    rows = findings.all("auc_of_slice", "small_slice")
    if not rows:
        return None
    headings = ("by", "", "members, non-members", "AUC (95 %)", "adjusted p", "named", "at false alarms")
    left_out = findings.get("slices_left_out")
    more = "" if left_out is None else f" The {int(left_out.value):,} smallest classes, beyond {MOST}, are not listed."
    small = next(iter(findings.all("small_slice")), None)
    least = "" if small is None else f" Slices with fewer than {small.params['fewest']} members or non-members are too small."
    tests = (
        "Coins were redrawn within each slice; p-values are adjusted over all slices (Holm). "
        if findings.all("auc_of_slice").tests()
        else ""
    )
    answers = (
        "No slice was tested."
        if not tests
        else f"Slices by {ANSWER} are described and not tested: a model answers those rightly that it remembers, so the "
        "answer depends on membership itself."
        if findings.all("auc_of_slice", slice=ANSWER)
        else ""
    )
    return Section(
        "Slices",
        f"AUC and true alarms of {NAMES[recipe.score.headline]} within parts of the pool. {tests}{answers}{least}{more}",
        filled(
            headings,
            [_slice_cells(row, findings) for row in rows],
            [*rows, *findings.all("true_alarms_of_slice", "above_all_of_slice")],
        ),
    )


def _slice_cells(row: Finding, findings: Findings) -> tuple[str, ...]:
    params = row.params
    first = (params["slice"], params["value"], f"{params['members']:,}, {params['nonmembers']:,}")
    if row.metric == "small_slice":
        return (*first, "too small", "", "", "")
    place = {"slice": params["slice"], "value": params["value"]}
    found = findings.all("true_alarms_of_slice", "above_all_of_slice", **place)[0]
    rate = found.params.get("false_alarms")
    at = f"above all {found.params['nonmembers']:,} non-members" if rate is None else percent(rate)
    named = f"{percent(found.value)} ({format_interval(found, percent)})"
    return (*first, f"{row.value:.3f} ({format_interval(row)})", format_p(row.p_adjusted), named, at)


def hidden_section(findings: Findings) -> Section | None:
    """Return the section on hidden columns."""
    rows = findings.all("guessed_column", "column_unknown")
    if not rows:
        return None
    headings = ("column", "values", "by the prior alone", "members", "non-members", "difference (95 %)", "adjusted p")
    return Section(
        "Hidden columns",
        "Each column was hidden and guessed from the class, all other columns and the model's answers with every value in "
        "turn (Fredrikson et al. 2014; Yeom et al. 2018). Right guesses of non-members come from the population; only the "
        "difference between members and non-members is memory.",
        filled(headings, [_column_cells(row) for row in rows], rows),
    )


def _column_cells(row: Finding) -> tuple[str, ...]:
    params = row.params
    if row.metric == "column_unknown":
        return (params["column"], str(params["values"]), "", "", "", f"too few rows with a value ({int(row.value):,})", "")
    rates = (percent(params[name]) for name in ("by_prior", "members", "nonmembers"))
    difference = f"{row.value:.3f} ({format_interval(row)})"
    return (params["column"], str(params["values"]), *rates, difference, format_p(row.p_adjusted))


def persons_section(findings: Findings) -> Section | None:
    """Return the section on rows of persons."""
    correlation = findings.get("intraclass_correlation")
    if correlation is None:
        return None
    by_person, by_row = findings.first("auc_of_rows"), findings.first("auc_of_rows_alone")
    ratio = findings.first("interval_width_ratio")
    params, noun = correlation.params, correlation.params["over"]
    return Section(
        f"Rows and {noun}",
        f"Scores of rows of the same {noun[:-1]} have an intraclass correlation of {correlation.value:.2f}, given membership "
        f"({params['rows']:,} rows of {params['units']:,} {noun}). The AUC over single rows is {by_person.value:.3f}; its "
        f"interval over {noun}, {format_interval(by_person)}, is {ratio.value:.2f} times as wide as that over rows, "
        f"{format_interval(by_row)}. " + ("Rows alone make intervals too narrow." if ratio.value > 1 else ""),
    )


def asked_section(findings: Findings) -> Section | None:
    """Return the section on a service that was asked, and on attacks that its access does not allow."""
    made = {row.params["attack"] for row in findings.all("auc")}
    possible = ("ratio", "ez", "wbc", "zlib", "loss")
    said = {NAMES[name]: CARRIED_OUT if name in made else "not asked for" for name in possible}
    return service_section(findings, said | dict.fromkeys(map(NAMES.__getitem__, OF_WEIGHTS), NOT_POSSIBLE))


def words_section(documents: Sequence[tuple[str, Sequence[tuple[str, float | None]]]]) -> Section:
    """Return the section on words of documents.

    Args:
        documents: id of each document; and of each of its tokens, text and gain in nats, None for one that is not scored.
    """
    return Section(
        "Words that carry the evidence",
        "The documents with the highest scores. A token that the target finds likelier than the pretrained model does is "
        "marked, the darker the more, up to e^2 times; underlined, one that it finds less likely. A high score is no "
        "evidence about a single document unless memory is shown.",
        *(WordsView(name, [(text, _shade(gain), _nats(gain)) for text, gain in tokens]) for name, tokens in documents),
    )


def _shade(gain: float | None) -> int:
    """Return the shade of a gain, from -4 to 4: 4 from two nats on."""
    return 0 if gain is None else max(-4, min(4, round(2 * gain)))


def _nats(gain: float | None) -> str:
    return "not scored" if gain is None else f"{gain:+.2f} nats"


def structure_section(findings: Findings) -> Section | None:
    """Return the section on structural risk."""
    rows = findings.all("structure")
    if not rows:
        return None
    numbers = {row.params["structure"]: int(row.value) for row in rows}
    k = rows[0].params["k"]
    cells = [(text.format(k=k), f"{numbers[name]:,}") for name, text in NUMBERS.items() if name in numbers]
    stores = (
        "The model contains training rows as they are (nearest neighbours, support vectors): whoever has the model has them."
        if numbers["instance_based"]
        else "The model does not contain training rows as they are."
    )
    return Section(
        "Structure",
        f"Numbers of rows that the model's outputs tell apart among its {rows[0].n:,} training rows, without an attack; "
        f"outputs that agree in {DECIMALS} decimals count as one. {stores} These numbers describe the model; none is tested.",
        TableView(("number", "count"), cells, data=rows),
    )
