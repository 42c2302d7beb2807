"""Page of a run, composed from its sections."""

from pathlib import Path

import pyarrow as pa

from memlib.audits.unique_feature.analysis import counting
from memlib.audits.unique_feature.comparisons import CHANGE
from memlib.audits.unique_feature.page_content import Material
from memlib.audits.unique_feature.recipe import NOT_SHOWN, Recipe
from memlib.audits.unique_feature.report.figures import (
    attention_section,
    boundary_section,
    canary_section,
    draws_section,
    epoch_section,
    latent_section,
    nets_section,
    nulls_section,
    picture_section,
    removal_section,
    scores_by_epoch_section,
    settings_section,
)
from memlib.audits.unique_feature.report.tables import (
    changes_section,
    external_section,
    flips_section,
    interval_text,
    proportions_section,
    pull_section,
    tests_section,
)
from memlib.audits.unique_feature.verdict import of_score, score_name
from memlib.findings import Finding, Findings
from memlib.report.format import percent, say_p
from memlib.report.page import Content, Section, advice_of, facts_table, meaning_of

_TERMS = ("unique feature", "canary", "M", "white box, grey box, black box", "self-influence")
_IF_NAMED = (
    "If the feature tells who somebody is, such as a name on an X-ray, whoever knows it can learn whose data was trained on."
)
_MEANING_OF_ONE = (
    "Anyone who knows the feature and others of its kind, and can show this model examples with each of them, can tell from "
    f"its answers that the feature was in its training data. {_IF_NAMED}"
)
_MEANING_OF_MANY = (
    "A feature of {} changes what models trained like these compute. Whoever knows the feature, the "
    "training data and the feature's label, can ask such models, and can train others without the feature for "
    "comparison, can test for it (white box); a single model betrays it only as often as more models "
    "are flagged than by chance, and to those who know less (grey and black box) only where the page says shown. "
    f"{_IF_NAMED}"
)
_BOUNDED_OF_ONE = (
    "Anyone who shows the model the feature sees its answers change by at most the stated amount more than with a "
    "feature of the "
    "same kind that the model has not seen, with 95 % confidence."
)
_BOUNDED_OF_MANY = (
    "Models trained like these change their answers to the feature by at most the stated amount more than models that never "
    "saw it. This is a mean over trainings: a rare one may remember more."
)


def compose(
    recipe: Recipe, units: pa.Table, summary: pa.Table, curves: pa.Table, material: Material, folder: Path
) -> Content:
    """Return the content of a run's page, and save its figures to `folder`.

    Args:
        units, summary, curves: tables.UNITS, SUMMARY and CURVES.
        material: pictures, boundaries and facts.
    """
    findings, own = Findings.read(summary), recipe.trained is not None
    scores = units.filter(pa.array(counting(units))).to_pandas()
    word = findings.verdict.word
    return Content(
        meaning=meaning_of(
            word,
            shown=_MEANING_OF_ONE if own else _MEANING_OF_MANY.format(_carriers(recipe)),
            bounded=_BOUNDED_OF_ONE if own else _BOUNDED_OF_MANY,
        ),
        advice=advice_of(
            word,
            shown="Remove identifying features such as names from the data before training, and treat models trained with "
            "them as confidentially as the data. Regularization did not prevent this memory in the papers (Hartley "
            f"2022, 2023){_tested_here(findings)}: audit every changed training again.",
            more="compare the feature with more others of its kind (score.null_features)" if own else "",
        ),
        limits=NOT_SHOWN, terms=_TERMS, model=material.facts.get("model", ""),
        numbers=_numbers_of_external(findings) if own else _numbers(findings),
        sections=[
            nulls_section(units.to_pandas(), findings, folder) if own else nets_section(scores, findings, folder),
            external_section(findings) if own else tests_section(findings),
            None if own else proportions_section(findings),
            flips_section(findings),
            changes_section(findings),
            picture_section(material.pictures, own=own),
            draws_section(curves, findings, folder),
            epoch_section(curves, findings, folder),
            scores_by_epoch_section(curves, findings, folder),
            boundary_section(material.boundaries, folder),
            settings_section(scores, findings, folder),
            removal_section(curves, findings, folder),
            attention_section(material.attention),
            canary_section(curves, findings, folder),
            latent_section(curves, findings, folder),
            pull_section(findings),
            Section(
                "What was run",
                "Methods: Hartley et al. 2023, Neural networks memorise personal information from one sample (Eqs. 1 to 3), "
                "and Hartley and Tsaftaris 2022, Unintended memorisation of unique features in neural networks.",
                facts_table(material.facts),
            ),
        ],
    )  # fmt: skip


def _tested_here(findings: Findings) -> str:
    """Say whether this run compared variants of the training."""
    return (
        "; for the changes tested here see the comparison of variants"
        if findings.all(statistic=CHANGE).tests()
        else (" and was not tested here")
    )


def _carriers(recipe: Recipe) -> str:
    """Return how many training examples carry the feature, in words."""
    copies = sorted({cell.recipe.canary.repeats for cell in recipe.cells if cell.recipe.canary is not None})
    if copies == [1]:
        return "a single training example"
    return f"one training example, of which the training set holds {' or '.join(map(str, copies))} copies,"


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    head, shown = findings.head, []
    for group, title in (
        ("canary - control", "mean difference between models that saw the feature and their controls"),
        ("canary", "mean score of the models that saw the feature"),
        ("control", "mean score of all controls, which did not see it"),
    ):
        row = of_score(findings, head, head.metric, group=group)
        if row is not None:
            less = " (below 0: less confident with the feature than without it)"
            title += less if row.value < 0 and group != "canary - control" else ""
            shown.append((f"{row.value:.3g}", title, _interval(row)))
    for criterion in ("calibrated", "published"):
        row = of_score(findings, head, "proportion_memorized", criterion=criterion)
        if row is not None:
            title = f"of models flagged as memorizing by the {criterion} criterion"
            title += ", which flags models that never saw the feature, too" if criterion == "published" else ""
            shown.append((percent(row.value, 1), title, _expected(findings, row)))
    return shown


def _expected(findings: Findings, row: Finding) -> str:
    """Return the share of nets that a criterion flags by chance or among controls, or else the interval of its share."""
    if row.null_value is not None:
        return f"{percent(row.null_value, 1)} by chance, adjusted {say_p(row.p_adjusted)}"
    control = of_score(findings, row, "proportion_control", criterion=row.params["criterion"])
    return _interval(row) if control is None else f"{percent(control.value, 1)} of the controls as well"


def _interval(row: Finding) -> str:
    return f"95 % interval: {text}" if (text := interval_text(row)) else ""


def _numbers_of_external(findings: Findings) -> list[tuple[str, str, str]]:
    return [
        (
            f"{row.value:+.3g}", f"difference from the mean of other features, {score_name(row)}",
            f"adjusted {say_p(row.p_adjusted)}",
        )
        for row in findings.tests()
    ]  # fmt: skip
