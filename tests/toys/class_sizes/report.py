"""Page of the toy audit."""

import pyarrow as pa
from memlib.audits.class_sizes.recipe import Recipe

from memlib.findings import verdict_of
from memlib.report.page import KINDS, Page, Section, TableView


def build_page(recipe: Recipe, run: str, units: pa.Table, summary: pa.Table) -> Page:
    """Compose the page of a run."""
    verdict = verdict_of(summary.to_pylist())
    rows = [(row["class_name"], str(row["examples"])) for row in units.to_pylist()]
    table = Section(heading="Classes", table=TableView(("class", "examples"), rows))
    return Page(recipe.title, "class-sizes", run, verdict.sentence, KINDS[verdict.word], verdict.explanation, [], [table])
