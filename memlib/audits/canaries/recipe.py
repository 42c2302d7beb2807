"""The recipe of an audit of canaries in a training elsewhere."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs import ServedSpec, Spec
from memlib.specs.base import MOST_NUMBER, MOST_STEPS
from memlib.specs.question import PageSpec

HEADLINE, CLAIM = "memory", "privacy"
HEADLINES = (HEADLINE,)
NOT_SHOWN = (
    "Whether any record of the training data is remembered: canaries are random, and must be learned by heart.",
    "Other trainings: with other settings, or for longer, the same data may be remembered more or less.",
    "That a training is private: a lower bound of epsilon that is small, or 0, is no evidence of privacy.",
)


class PrivacySpec(Spec):
    """The claim of the training's owner, for one record."""

    epsilon: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """The claimed epsilon; null: none is claimed, and epsilon is bounded at `delta`."""
    delta: float = Field(default=0.0, ge=0, lt=1)
    """Delta of the claim, and of the bound."""
    adjacency: Literal["add-remove", "replace"] = "add-remove"
    """Adjacency of the claim. The coins put records in or leave them out; a claim about replacements is not compared."""
    scope: Literal["checkpoints", "last"] = "checkpoints"
    """Whether the claim is about the training with all its checkpoints, or about its last model alone, as it is where an
    accountant counts on hidden steps. The bound of the latter uses the last look alone."""


class AnswersSpec(Spec):
    """Requests for canaries to a service that does not score given texts: their beginnings are sent, and its answers are
    compared with their endings."""

    known: float = Field(default=0.5, gt=0, lt=1)
    """Share of the random part that is sent with the beginning; the rest is the ending."""
    draws: int = Field(default=4, ge=1, le=1000)
    """Number of answers to each beginning."""
    temperature: float = Field(default=1.0, ge=0, le=10)
    """Temperature of the answers."""


class Recipe(Spec):
    """Canaries that were made by memlib canaries make, and the losses that a training recorded, or a service that is asked
    for them. Level, looks and statistic are those of the canaries' plan."""

    added_later: ClassVar[frozenset[str]] = frozenset({"service", "base", "answers"})

    audit: Literal["canaries"] = "canaries"
    title: str = "Canaries"
    """Heading of the report."""
    canaries: str
    """Folder of the canaries, with coins.parquet."""
    losses: str | None = None
    """File of the losses, as written by CanaryAudit, a callback or memlib canaries score."""
    service: ServedSpec | None = None
    """The trained model behind a service, instead of losses: it is the last planned look."""
    base: ServedSpec | None = None
    """The model before the training behind a service, whose losses are taken off; null: none."""
    answers: AnswersSpec = AnswersSpec()
    """How a service that scores no given text is asked."""
    privacy: PrivacySpec | None = None
    """The claim to be tested."""
    step: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Step of another model than those of the planned looks, chosen now: nothing is tested."""
    report: PageSpec = PageSpec()

    @model_validator(mode="after")
    def _has_one(self) -> "Recipe":
        if (self.losses is None) == (self.service is None):
            raise ValueError(f"give one of losses and service, not {'both' if self.losses else 'neither'}")
        if self.base is not None and self.service is None:
            raise ValueError("base is asked beside service; a file of losses has those of its base model itself")
        return self

    @property
    def claim(self) -> dict[str, Any]:
        """Arguments of `memlib.stats.canaries.audit_canaries`."""
        if self.privacy is None:
            return {}
        claimed = self.privacy.epsilon if self.privacy.adjacency == "add-remove" else None  # else it is not compared
        return {"claimed": claimed, "delta": self.privacy.delta, "scope": self.privacy.scope}
