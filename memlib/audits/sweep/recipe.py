"""The recipe of a sweep: a grid, a list of cells, or both."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from memlib.audits.cells import CellsSpec
from memlib.identity import content_key
from memlib.specs.asks import NAME_LENGTH

EQUAL_UTILITY = 0.05


class Recipe(CellsSpec):
    """A sweep of audits."""

    added_later: ClassVar[frozenset[str]] = frozenset({"equal_utility"})

    audit: Literal["sweep"] = "sweep"
    title: str = "Sweep"
    """Heading of the report."""
    equal_utility: float = Field(default=EQUAL_UTILITY, gt=0, lt=1)
    """Difference in utility, as a fraction of 1, within which cells are equally useful: the whole interval must lie
    within it. Fix it in advance."""

    @model_validator(mode="after")
    def _has_cells(self) -> "Recipe":
        if not self.grid and not self.cells:
<<<<<<< HEAD
            raise ValueError("a sweep needs a grid or cells")
        return self

=======
            raise ValueError("a sweep needs grid or cells; give at least one of them")
        if self.recipe is None and (self.grid or any(cell.recipe is None for cell in self.cells)):
            raise ValueError(
                "the sweep has no recipe; give one, or use cells that all have a recipe of their own, and no grid"
            )
        empty = [key for key, values in self.grid.items() if not values]
        if empty:
            raise ValueError(f"grid.{empty[0]} has no values; list some, or remove the key")
        return self

    def changes(self) -> list[tuple[str, str | Mapping[str, Any], dict[str, Any]]]:
        """Return (name, recipe, changes by dotted key) for every cell.

        Raises:
            ValueError: if there are too many cells, or two cells have the same name.
        """
        count = (math.prod(map(len, self.grid.values())) if self.grid else 0) + len(self.cells)
        if count > MOST_CELLS:
            raise ValueError(f"the sweep has {count} cells; reduce them to at most {MOST_CELLS}")
        cells = []
        if self.grid:
            assert self.recipe is not None
            for values in itertools.product(*self.grid.values()):
                change = dict(zip(self.grid, values, strict=True))
                varied = {key: value for key, value in change.items() if len(self.grid[key]) > 1}
                cells.append((in_words(varied or change), self.recipe, {**self.set, **change}))
        for cell in self.cells:
            base = cell.recipe if cell.recipe is not None else self.recipe
            assert base is not None
            name = cell.name or in_words(cell.set) or (base if isinstance(base, str) else str(base.get("title", "cell")))
            cells.append((name, base, {**(self.set if cell.recipe is None else {}), **cell.set}))
        ((name, times),) = Counter(name for name, _, _ in cells).most_common(1)
        if times > 1:
            raise ValueError(f"more than one cell is called {name!r}; give each of them a different name")
        return cells


def in_words(change: Mapping[str, Any]) -> str:
    """Return a cell's name from its changes, with keys shortened to the shortest unambiguous endings."""
    return " ".join(
        f"{_ending(key, change)}={json.dumps(value, default=str).strip(chr(34))}" for key, value in change.items()
    )


def _ending(key: str, keys: Iterable[str]) -> str:
    parts = key.split(".")
    endings = [".".join(parts[-count:]) for count in range(1, len(parts))]
    return next((e for e in endings if sum(f".{other}".endswith(f".{e}") for other in keys) == 1), key)

>>>>>>> e5fc606 (texts: messages of memlib/audits, flows and tasks)

def run_of(recipe: Recipe) -> str:
    """Return the id of a sweep's run."""
    spec = recipe.model_dump(mode="json", exclude={"concurrent_cells"})
    return content_key("sweep", version=1, spec=spec, inputs={})[:NAME_LENGTH]
