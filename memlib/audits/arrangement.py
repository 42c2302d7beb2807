"""The arrangement of each audit: flows/<audit>.py defines its stages (STAGES) and the function that runs them (audit).

Arrangements are loaded by their place beside memlib, never by the name `flows`: a user's project may have a flows/, too.
"""

import functools
from collections.abc import Callable, Collection, Iterable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from memlib.audits import AUDITS, PACKAGES
from memlib.audits.base import Audit
from memlib.errors import UserError

if TYPE_CHECKING:
    from memlib.pipeline.stage import AnyStage, Runner
    from memlib.runs.records import RunRecord


FOLDER = Path(__file__).resolve().parents[2] / "flows"


class Body(Protocol):
    """A function that runs the stages of an audit; it returns the run's manifest, or None in a plan."""

    def __call__(self, runner: "Runner", recipe: Any, /) -> "RunRecord | None":
        """Run an audit."""
        ...


def body_of(audit: Audit) -> Body:
    """Return the function that runs an audit, given a runner and a recipe."""
    body: Body = _module(audit).audit
    return body


def stages_of(audit: Audit) -> "tuple[type[AnyStage], ...]":
    """Return the stages that an audit can have, in order."""
    stages: tuple[type[AnyStage], ...] = _module(audit).STAGES
    return stages


def stage_names(audit: Audit, recipe: Any = None) -> tuple[str, ...]:
    """Return the names of an audit's stages, as in keys and in the store; given a recipe, only those that it may need."""
    return tuple(dict.fromkeys(stage.declared.name for stage in _needed(audit, recipe)))


def stages_within(audit: Audit, recipe: Any) -> "list[type[AnyStage]]":
    """Return the stages that a run of a recipe may need; for a sweep, those of all audits that can be cells."""
    return [stage for one in _audits_within(audit) for stage in _needed(one, recipe if one is audit else None)]


def _needed(audit: Audit, recipe: Any) -> "list[type[AnyStage]]":
    absent: Callable[[Any], Collection[type[AnyStage]]] | None = getattr(_module(audit), "absent", None)
    left_out = absent(recipe) if absent is not None and recipe is not None else ()
    return [stage for stage in stages_of(audit) if stage not in left_out]


def _audits_within(audit: Audit) -> list[Audit]:
    """Return the audits whose stages a run of an audit can have."""
    return list(AUDITS.values()) if getattr(_module(audit), "HAS_CELLS", False) else [audit]


def check_stages(audit: Audit, named: Iterable[str]) -> None:
    """Raise UserError for a stage that the audit does not have; a sweep has the stages of all audits that can be cells."""
    known = list(dict.fromkeys(stage.rpartition("/")[2] for one in _audits_within(audit) for stage in stage_names(one)))
    for stage in named:
        if stage not in known:
            raise UserError(f"{audit.name} has no stage {stage!r}; it has {', '.join(known)}")


def resolved(audit: Audit, content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's content, including the content of other recipes that it refers to."""
    resolve: Callable[[dict[str, Any]], dict[str, Any]] = getattr(_module(audit), "resolved", dict)
    return resolve(content)


def check_flow(module: str, name: str) -> None:
    """Check that a name is that of an audit's Prefect flow, and that `flows` is memlib's package.

    Args:
        name: attribute that is looked up in the module by `__getattr__`; the flow has the module's name.

    Raises:
        AttributeError: if the attribute is not the flow.
        UserError: if another package named flows hides the one beside memlib.
    """
    if name != module:
        raise AttributeError(f"module 'flows.{module}' has no attribute {name!r}")
    place = find_spec("flows")
    found = [] if place is None else list(place.submodule_search_locations or ())
    if FOLDER not in (Path(folder).resolve() for folder in found):
        state = f"hidden by {', '.join(found)}" if found else "missing"
        raise UserError(f"memlib's package flows is {state}; deploy from another folder")


def _module(audit: Audit) -> Any:
    return _loaded(PACKAGES[audit.name].rpartition(".")[2])


@functools.cache
def _loaded(name: str) -> Any:
    """Load a module of the folder flows/ beside memlib, once."""
    place = spec_from_file_location(f"memlib_flows_{name}", FOLDER / f"{name}.py")
    assert place is not None
    assert place.loader is not None
    module = module_from_spec(place)
    place.loader.exec_module(module)
    return module
