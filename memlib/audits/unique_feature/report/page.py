"""The page of a run."""

from pathlib import Path

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
from memlib.report.page import KINDS, Page, Section, TableView, meaning_of

_TERMS = (
    "unique feature", "M", "white box, grey box, black box", "self-influence", "null", "p-value", "95 % interval", "power",
    "external model", "model seed", "diagnostic",
)  # fmt: skip
_NOT_SHOWN = (
    "Whether other features are remembered: only this one was asked about, in this place and typeface.",
    "That the feature can be read out of the model by somebody who does not know it: it is shown to the model.",
    "That a single model which was trained with the feature remembers it, unless an external model itself was audited.",
)


def build_page(
    recipe: Recipe, run: str, units: pa.Table, summary: pa.Table, curves: pa.Table, material: Material, folder: Path
) -> Page:
    """The page of a run; figures also go to `folder` as SVG and PNG.

    Args:
        recipe: what was run.
        run: its id.
        units, summary, curves: tables.UNIQUE_FEATURE_UNITS, SUMMARY and CURVES.
        material: pictures, boundaries and facts.
        folder: gets the figures.
    """
    findings = Findings(summary)
    found = verdict_of(findings.rows)
    frame = units.to_pandas()
    sections = [
        nulls_section(frame, findings, folder) if recipe.trained is not None else nets_section(frame, findings, folder),
        own_section(findings) if recipe.trained is not None else tests_section(findings),
        None if recipe.trained is not None else proportions_section(findings),
        changes_section(findings),
        picture_section(material),
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
            found.word,
            shown="Whoever can show the model pictures with and without the feature can tell from its answers that the "
            "feature stood "
            "in the training data, though it stood in a single example: for a name on an X-ray, that this patient was in it.",
            bounded="Whoever shows the model the feature sees its answers change at most by the stated amount beyond what "
            "any feature "
            "of the kind does.",
        ),
        limits=_NOT_SHOWN, terms=_TERMS, model=material.facts.get("model", ""),
        title=recipe.title, audit="unique-feature", run=run, verdict=found.sentence,
        verdict_kind=KINDS[found.word], lead=found.explanation,
        numbers=_numbers_of_own(findings) if recipe.trained is not None else _numbers(findings),
        sections=[section for section in sections if section is not None],
    )  # fmt: skip


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    at = {name: findings.headline.get(name, "") for name in ("variant", "metric", "output")}
    shown = []
    for group, title in (
        ("canary - control", "difference that the feature's appearance made"),
        ("canary", "mean score with the feature"),
        ("control", "mean score without it, over all controls"),
    ):
        row = findings.find(str(at["metric"]), **at, group=group, statistic="mean")
        if row is not None:
            shown.append((f"{row['value']:.3g}", title, interval_text(row)))
    for criterion in ("calibrated", "published"):
        row = findings.find("proportion_memorized", **at, criterion=criterion)
        if row is not None:
            expected = interval_text(row)
            if row["null_value"] is not None:
                expected = f"chance gives {percent_text(row['null_value'])}, {p_text(row['p_adjusted'])}"
            shown.append((percent_text(row["value"]), f"of nets beyond the {criterion} criterion", expected))
    return shown


def _numbers_of_own(findings: Findings) -> list[tuple[str, str, str]]:
    return [
        (f"{row['value']:.3g}", f"more than others, {score_name(row['params'])}", f"adjusted {p_text(row['p_adjusted'])}")
        for row in findings.tests
    ]
