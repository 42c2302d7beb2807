"""Cells: audits that run as parts of another run, as its recipe states them."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, model_validator

from memlib.specs import Spec
from memlib.specs.base import MOST_MODELS

MOST_CELLS = 10_000


class CellSpec(Spec):
    """A cell of a sweep outside the grid."""

    name: str = ""
    """Name of the cell; by default, its changes or the name of its recipe."""
    recipe: str | Mapping[str, Any] | None = None
    """Name of a shipped recipe, a file, or the recipe itself, for any audit; by default the sweep's recipe."""
    set: Mapping[str, Any] = {}
    """Changes to the recipe by dotted key: {training.epochs: 50}."""


class CellsSpec(Spec):
    """A grid of audits, a list of audits, or both."""

    recipe: str | Mapping[str, Any] | None = None
    """Base recipe of the cells: name of a shipped recipe, a file, or the recipe itself."""
    set: Mapping[str, Any] = {}
    """Changes to the base recipe by dotted key, for every cell that uses it."""
    grid: Mapping[str, tuple[Any, ...]] = {}
    """Values by dotted key; every combination is a cell: {training.epochs: [10, 50], training.seed: [0, 1, 2]}."""
    cells: tuple[CellSpec, ...] = ()
    """Additional individual cells."""
    concurrent_cells: int = Field(default=2, ge=1, le=MOST_MODELS)
    """Number of cells that run concurrently. Each stage runs in one cell at a time, so shared work is computed once."""

    @model_validator(mode="after")
    def _cells_have_recipes(self) -> "CellsSpec":
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
        for name, times in Counter(name for name, _, _ in cells).most_common(1):
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
