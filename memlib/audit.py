"""The interface of an audit to the rest of memlib: each package below memlib.audits declares one `Audit`."""

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
    """One cell of a sweep, to be compared with the others.

    Attributes:
        name: of the cell.
        run: manifest of its run.
        units: the first part of the run's units table, which holds the units of the headline.
    """

    name: str
    run: RunRecord
    units: pa.Table


Revealed = dict[str, list[dict[str, Any]]]


def _none(recipe: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Exported:
    """The images handed to the owner of external encoders.

    Attributes:
        pictures: id and pixels (height, width, channels) uint8 of every image that the audit embeds; read one at a time.
        count: number of pictures.
        sets: the set of each example of the data, needed to train the encoders.
        encoders: the encoders that the audit needs, by their names in recipes, each with the sets that it is trained on.
    """

    pictures: Iterable[tuple[str, NDArray[np.uint8]]]
    count: int
    sets: Mapping[str, str]
    encoders: Mapping[str, str]


@dataclass(frozen=True, eq=False)  # one instance per audit, compared by identity
class Audit:
    """An audit as declared by its package; importing it loads neither torch nor scipy, which are slow to load.

    Attributes:
        name: on the command line.
        question: the question that it answers, in plain words.
        recipe: schema of its recipes.
        tables: the tables that it publishes besides the summary and the curves, by name.
        in_brief: whether a finding with these params is shown where space is limited, given the params of the headline.
        limits: what a recipe cannot show, whatever the data: tests that are too small to reject, controls that are missing.
        revealed: function that returns the secrets of a run in plain text, for audits that have secrets: takes the store and
            the recipe and artifacts of the run's manifest, and returns rows by title.
        asked: function that returns the examples on which the owner of a model runs it, for audits that accept supplied
            outputs: takes a runner and the recipe, and returns the stored examples and the row of each by id.
        columns: metrics that a sweep shows side by side; by default the first ones.
        compare: function that compares each pair of cells of a sweep that audit the same examples; returns settled rows.
        exported: function that returns the images for the owner of encoders, for audits that accept supplied embeddings:
            takes a runner and the recipe.
        holds_others: whether its recipes contain, or name, recipes of other audits.
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
        """The audit's name in recipes, results and module names."""
        return self.name.replace("-", "_")
