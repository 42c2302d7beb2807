"""What an audit is to the rest of memlib: its package below memlib.audits says so in one value."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.records import RunRecord
from memlib.specs import Spec
from memlib.store import Store
from memlib.tables import Table

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """An audit among others that it is compared with.

    Attributes:
        name: of the cell.
        run: its manifest.
        units: the first part of its units, which holds those of the headline.
    """

    name: str
    run: RunRecord
    units: pa.Table


Revealed = dict[str, list[dict[str, Any]]]


def _none(recipe: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Exported:
    """What the owner of encoders is given.

    Attributes:
        pictures: of every image that the audit shows, id and pixels (height, width, channels) uint8; read one by one.
        count: how many they are.
        sets: which set each example of the data is in, for whoever trains on them.
        encoders: those that are asked for, as recipes call them, each with the sets that it is trained on.
    """

    pictures: Iterable[tuple[str, NDArray[np.uint8]]]
    count: int
    sets: Mapping[str, str]
    encoders: Mapping[str, str]


@dataclass(frozen=True, eq=False)  # there is one of each
class Audit:
    """An audit as its package declares it; light, as torch and scipy are slow to load.

    Attributes:
        name: on the command line.
        question: that it answers, in plain words.
        recipe: the schema of its recipes.
        tables: what it publishes beside the summary and the curves, by name.
        in_brief: whether a finding with these params is shown where there is little room, given those of the headline.
        limits: what a recipe cannot show, whatever the data: tests that are too small to reject, controls that are missing.
        revealed: the secrets of a run in plain text, where an audit has any: takes store, recipe and artifacts of its
            manifest, and gives rows by title.
        asked: the examples that the owner of a model is asked about, where outputs can be supplied: takes a runner and the
            recipe, and gives stored examples and the row of each by id.
        columns: metrics that a sweep shows side by side; by default the first ones.
        compare: rows about each two cells of a sweep that audit the same examples, settled.
        exported: what the owner of encoders is given, where embeddings can be supplied: takes a runner and the recipe.
        holds_others: whether its recipes hold, or name, recipes of other audits.
    """

    name: str
    question: str
    recipe: type[Spec]
    tables: Mapping[str, Table]
    in_brief: Callable[[Params, Params], bool]
    limits: Callable[[Any], Iterable[str]] = _none
    revealed: Callable[[Store, Params, Mapping[str, str]], Revealed] | None = None
    asked: Callable[[Any, Any], tuple[NDArray[Any], dict[str, int]]] | None = None
    columns: tuple[str, ...] = ()
    compare: Callable[[Sequence[Cell]], list[dict[str, Any]]] | None = None
    exported: Callable[[Any, Any], Exported] | None = None
    holds_others: bool = False

    @property
    def field(self) -> str:
        """Its name in recipes, results and module names."""
        return self.name.replace("-", "_")
