"""Page of a run, composed from its sections."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from memlib.audits.unique_feature.recipe import Recipe
from memlib.audits.unique_feature.report.curves import (
    attention_section,
    boundary_section,
    canary_section,
    draws_section,
    epoch_section,
    latent_section,
    picture_section,
    removal_section,
)
from memlib.audits.unique_feature.report.findings import Findings, Material, interval_text, p_text, percent_text
from memlib.audits.unique_feature.report.nets import (
    changes_section,
    nets_section,
    nulls_section,
    own_section,
    proportions_section,
    pull_section,
    settings_section,
    tests_section,
)
from memlib.audits.unique_feature.verdict import score_name
from memlib.findings import verdict_of
from memlib.report.page import KINDS, Page, Section, TableView, advice_of, meaning_of

_TERMS = (
    "unique feature", "M", "white box, grey box, black box", "self-influence", "null", "p-value", "95 % interval", "power",
    "external model", "model seed", "diagnostic",
)  # fmt: skip
_IF_NAMED = (
    "If the feature tells who somebody is, such as a name on an X-ray, this reveals whose data the model was trained on."
)
_MEANING_OF_ONE = (
    "Anyone who can show this model examples with and without the feature can tell from its answers that the feature was in "
    f"its training data. {_IF_NAMED}"
)
_MEANING_OF_MANY = (
    "A feature of {} changes what models trained like these compute. Whoever knows the training data and the feature's "
    "label, and can ask such a model, can test for it (white box); a single model betrays it only as often as the shares of "
    "flagged models say, and to those who know less (grey and black box) only where the page says shown. "
    f"{_IF_NAMED}"
)
_BOUNDED_OF_ONE = (
    "Anyone who shows the model the feature sees its answers change by at most the stated amount more than with any feature "
    "of the same kind."
)
_BOUNDED_OF_MANY = (
    "Models trained like these change their answers to the feature by at most the stated amount more than models that never "
    "saw it. This is a mean over trainings: a rare one may remember more."
)
_NOT_SHOWN = (
    "Whether the model remembers other features: only this one was tested, as it was inserted here.",
    "That somebody who does not know the feature could read it out of the model: the audit shows it to the model.",
    "That one particular model trained with the feature remembers it, unless that model was audited as an external model.",
)


def build_page(
    recipe: Recipe, run: str, units: pa.Table, summary: pa.Table, curves: pa.Table, material: Material, folder: Path
) -> Page:
    """Return the page of a run; figures are also written to `folder` as SVG and PNG.

    Args:
        recipe: recipe of the run.
        run: id of the run.
        units, summary, curves: tables.UNITS, SUMMARY and CURVES.
        material: pictures, boundaries and facts.
        folder: destination of the figures.
    """
    findings = Findings(summary)
    conclusion = verdict_of(findings.rows)
    frame = units.to_pandas()
    sections = [
        nulls_section(frame, findings, folder) if recipe.trained is not None else nets_section(frame, findings, folder),
        own_section(findings) if recipe.trained is not None else tests_section(findings),
        None if recipe.trained is not None else proportions_section(findings),
        changes_section(findings),
        picture_section(material, own=recipe.trained is not None),
        draws_section(curves, findings, folder),
        epoch_section(curves, findings, folder),
        boundary_section(material, folder),
        settings_section(frame, findings, folder),
        removal_section(curves, findings, folder),
        attention_section(material),
        canary_section(curves, findings, folder),
        latent_section(curves, folder),
        pull_section(findings),
        Section(
            heading="What was run",
            paragraphs=[
                "Methods: Hartley et al. 2023, Neural networks memorise personal information from one sample (Eqs. 1 to 3), "
                "and Hartley and Tsaftaris 2022, Unintended memorisation of unique features in neural networks."
            ],
            table=TableView(("", ""), list(material.facts.items())),
        ),
    ]
    return Page(
        meaning=meaning_of(
            conclusion.word,
            shown=_MEANING_OF_ONE if recipe.trained is not None else _MEANING_OF_MANY.format(_carriers(recipe)),
            bounded=_BOUNDED_OF_ONE if recipe.trained is not None else _BOUNDED_OF_MANY,
        ),
        advice=advice_of(
            conclusion.word,
            shown="Remove identifying features such as names from the data before training, and treat models trained with "
            "them as confidentially as the data. Regularization does not prevent this memory (Hartley 2022, 2023): audit "
            "every changed training again.",
            more="" if recipe.trained is None else "compare the feature with more others of its kind (score.null_features)",
        ),
        limits=_NOT_SHOWN, terms=_TERMS, model=material.facts.get("model", ""),
        title=recipe.title, audit="unique-feature", run=run, verdict=conclusion.sentence,
        verdict_kind=KINDS[conclusion.word], lead=conclusion.explanation,
        numbers=_numbers_of_own(findings) if recipe.trained is not None else _numbers(findings),
        sections=[section for section in sections if section is not None],
    )  # fmt: skip


def _carriers(recipe: Recipe) -> str:
    """Return how many training examples carry the feature, in words."""
    copies = sorted({cell.recipe.canary.repeats for cell in recipe.cells if cell.recipe.canary is not None})
    if copies == [1]:
        return "a single training example"
    return f"one training example, of which the training set holds {' or '.join(map(str, copies))} copies,"


def _interval(row: Mapping[str, Any]) -> str:
    return f"95 % interval: {text}" if (text := interval_text(row)) else ""


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    at = {name: findings.headline.get(name, "") for name in ("variant", "metric", "output")}
    shown = []
    for group, title in (
        ("canary - control", "mean difference between models that saw the feature and their controls"),
        ("canary", "mean score of the models that saw the feature"),
        ("control", "mean score of all controls, which did not see it"),
    ):
        row = findings.find(str(at["metric"]), **at, group=group, statistic="mean")
        if row is not None:
            shown.append((f"{row['value']:.3g}", title, _interval(row)))
    for criterion in ("calibrated", "published"):
        row = findings.find("proportion_memorized", **at, criterion=criterion)
        if row is not None:
            expected = _interval(row)
            control = findings.find("proportion_control", **at, criterion=criterion)
            if control is not None:
                expected = f"{percent_text(control['value'])} of the controls as well"
            if row["null_value"] is not None:
                expected = f"{percent_text(row['null_value'])} by chance, adjusted {p_text(row['p_adjusted'])}"
            shown.append(
                (percent_text(row["value"]), f"of models flagged as memorizing by the {criterion} criterion", expected)
            )
    return shown


def _numbers_of_own(findings: Findings) -> list[tuple[str, str, str]]:
    return [
        (
            f"{row['value']:+.3g}", f"difference from the mean of other features, {score_name(row['params'])}",
            f"adjusted {p_text(row['p_adjusted'])}",
        )
        for row in findings.tests
    ]  # fmt: skip
