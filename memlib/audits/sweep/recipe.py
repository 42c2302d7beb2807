"""The recipe of a sweep: a grid, a list of cells, or both."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from memlib.audits.cells import CellsSpec
from memlib.identity import content_key
from memlib.specs.question import NAME_LENGTH, PageSpec

EQUAL_UTILITY = 0.05

NOT_SHOWN = (
    "A difference between cells: that one cell shows memorization and another does not is not enough to tell them "
    "apart. Where no difference is tested above, the cells give no reason to prefer one.",
)


class Recipe(CellsSpec):
    """A sweep of audits."""

    added_later: ClassVar[frozenset[str]] = frozenset({"equal_utility", "report"})

    audit: Literal["sweep"] = "sweep"
    title: str = "Sweep"
    """Heading of the report."""
    equal_utility: float = Field(default=EQUAL_UTILITY, gt=0, lt=1)
    """Difference in utility, as a fraction of 1, within which cells are equally useful: the whole interval must lie
    within it. Fix it in advance."""
    report: PageSpec = PageSpec()

    @model_validator(mode="after")
    def _has_cells(self) -> "Recipe":
        if not self.grid and not self.cells:
            raise ValueError("a sweep needs grid or cells; give at least one of them")
        return self


def run_of(recipe: Recipe) -> str:
    """Return the id of a sweep's run."""
    spec = recipe.model_dump(mode="json", exclude={"concurrent_cells", "report"})
    return content_key("sweep", version=1, spec=spec, inputs={})[:NAME_LENGTH]
