"""What an audit is to the rest of memlib: its package below memlib.audits says so in one value."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from memlib.specs import Spec
from memlib.store import Store
from memlib.tables import Table

Params = Mapping[str, Any]
Revealed = dict[str, list[dict[str, Any]]]


def _none(recipe: Any) -> Iterable[str]:
    return ()


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
    holds_others: bool = False

    @property
    def field(self) -> str:
        """Its name in recipes, results and module names."""
        return self.name.replace("-", "_")
