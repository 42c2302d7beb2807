"""The audits there are: the name on the command line, the recipe's schema, and the flow that runs it."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memlib.specs import Spec

if TYPE_CHECKING:
    from memlib.stage import AnyStage


@dataclass(frozen=True)
class Audit:
    """An audit as the command line knows it; its code is imported when it is needed, as torch is slow to load."""

    name: str
    question: str
    holds_others: bool = False
    """Its recipes hold, or name, recipes of other audits."""

    @property
    def recipe(self) -> type[Spec]:
        """The schema of its recipes."""
        found: type[Spec] = importlib.import_module(f"memlib.audits.{self._module}").Recipe
        return found

    def in_brief(self, params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
        """Whether a finding with these params is shown where there is little room."""
        return bool(importlib.import_module(f"memlib.audits.{self._module}").in_brief(params, headline))

    def limits(self, recipe: Any) -> Sequence[str]:
        """What the recipe cannot show, whatever the data: tests that are too small to reject, controls that are missing."""
        found = getattr(importlib.import_module(f"memlib.audits.{self._module}"), "limits", None)
        return list(found(recipe)) if found is not None else []

    @property
    def flow(self) -> Any:
        """The Prefect flow that runs it."""
        return importlib.import_module("flows.running").flow_of(self)

    def read(self, content: dict[str, Any]) -> dict[str, Any]:
        """A recipe's content with the files that it names read, where recipes of this audit name others."""
        return dict(importlib.import_module(f"flows.{self._module}").resolved(content)) if self.holds_others else content

    @property
    def body(self) -> Any:
        """What the flow does with a runner and a recipe."""
        return importlib.import_module(f"flows.{self._module}").audit

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that it can have, in order."""
        return tuple(dict.fromkeys(kind.declared.name for kind in self.kinds))

    @property
    def kinds(self) -> "tuple[type[AnyStage], ...]":
        """The stages that it can have, in order."""
        found: tuple[type[AnyStage], ...] = importlib.import_module(f"flows.{self._module}").STAGES
        return found

    @property
    def _module(self) -> str:
        return self.name.replace("-", "_")


AUDITS = {
    audit.name: audit
    for audit in (
        Audit("deja-vu", "Does an image model name the object of a training image from its background alone?"),
        Audit("unique-feature", "Does a classifier remember something that stood in a single training image?"),
        Audit("self-influence", "Which training examples does a classifier lean on itself for?"),
        Audit("forgetting", "Has a model used, or forgotten, this data set?"),
        Audit("exposure", "How many bits has a sequence model given away of a secret in its training text?"),
        Audit(
            "sweep", "How do many audits compare: by epochs, regularisation, architecture, seed, or audit?", holds_others=True
        ),
    )
}


def audit_of(recipe_name: str) -> str:
    """The command-line name of the audit that a recipe's `audit` field names."""
    return recipe_name.replace("_", "-")
