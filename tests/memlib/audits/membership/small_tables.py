"""Small generated tables whose columns are about nothing but themselves, and what audits read of them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = ("a", "b", "colour", "sex", "region", "y")


def rows_of(count: int, *, seed: int = 0) -> list[list[Any]]:
    """Return rows of COLUMNS: two numbers that say much of the class, and two categories and a region that say nothing."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(count, 2))
    labels = np.where(numbers.sum(axis=1) + rng.normal(size=count) > 0, "yes", "no")
    colors, sexes = rng.choice(["red", "green", "blue"], count), rng.choice(["f", "m"], count)
    regions = rng.choice(["north", "south", "islands"], count, p=[0.55, 0.42, 0.03])
    return [
        [f"{a:.4f}", f"{b:.4f}", *others] for (a, b), *others in zip(numbers, colors, sexes, regions, labels, strict=True)
    ]


def write_table(path: Path, rows: Sequence[Sequence[Any]], columns: Sequence[str] = COLUMNS) -> Mapping[str, Any]:
    """Write a CSV file and return the data of a recipe that reads it, without the region."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    used = [name for name in columns if name not in ("region", "y", "person")]
    return {"source": {"kind": "table", "path": str(path), "label_column": "y", "columns": used}}
