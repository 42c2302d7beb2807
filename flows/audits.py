"""The audits there are: the name on the command line, the recipe's schema, and the flow that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memlib.audits import deja_vu
from memlib.specs import Spec


@dataclass(frozen=True)
class Audit:
    """An audit as the command line knows it; the flow is imported when it is needed, as Prefect is slow to load."""

    name: str
    question: str
    recipe: type[Spec]
    load_flow: Callable[[], Any]


def _deja_vu_flow() -> Any:
    from flows.deja_vu import deja_vu as flow

    return flow


AUDITS = {
    audit.name: audit
    for audit in (
        Audit(
            name="deja-vu",
            question="Does an image model name the object of a training image from its background alone?",
            recipe=deja_vu.Recipe,
            load_flow=_deja_vu_flow,
        ),
    )
}


def audit_of(recipe_name: str) -> str:
    """The command-line name of the audit that a recipe's `audit` field names."""
    return recipe_name.replace("_", "-")
