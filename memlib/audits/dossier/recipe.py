"""The recipe of a dossier: its subject, and what its readers decide about."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.audits import PACKAGES
from memlib.audits.attacks import Access
from memlib.audits.cells import CellsSpec
from memlib.specs import Spec
from memlib.specs.base import MOST_NUMBER

OPENED = {
    "weights": "the weights are given away",
    "probabilities": "queries are answered with probabilities or likelihoods",
    "labels": "queries are answered with labels alone",
    "texts": "queries are answered with generated texts or pictures",
    "internal": "only its owner queries it",
}
"""Forms of release, in words."""

NOT_SHOWN = (
    "Other attacks than those listed as run. A stronger one, or one with more queries, may find what these missed.",
    "Other models: weights from another training, or another checkpoint, may remember more or less.",
    "Whether the use of the data was lawful, or the model is anonymous in the sense of a law.",
)


LEVEL = 0.05
"""Level of a dossier: with all its audits, it falsely shows something with at most this probability."""


class SubjectSpec(Spec):
    """The subject of a dossier: a data set, a model, or runs."""

    added_later: ClassVar[frozenset[str]] = frozenset({"beside"})

    data: str = ""
    """Digest of a data set, or its beginning: the newest runs of the store on these data belong to the dossier."""
    model: str = ""
    """Digest (sha256) of a file of weights or of supplied outputs, or its beginning: the same for the runs on this model."""
    runs: tuple[str, ...] = ()
    """Ids of further runs."""
    beside: tuple[str, ...] = ()
    """Further stores in which runs are looked for whose verdict contradicts the dossier's; they do not become part of it."""


class ReleaseSpec(Spec):
    """The intended release, as its owner states it; nothing of it is checked."""

    added_later: ClassVar[frozenset[str]] = frozenset({"digest", "released", "policy", "author"})

    model: str = ""
    """Name and version of the model."""
    digest: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Digest (sha256) of the released file, or of the files of the released folder: memlib verify --digest prints it."""
    released: str = ""
    """Date of the release."""
    policy: str = ""
    """Policy by which the release is decided, and the outcome of its gate."""
    author: str = ""
    """Author of the audits, and who checked them."""
    purpose: str = ""
    """Purpose of the model."""
    audience: str = ""
    """Recipients of the model, or of its answers."""
    access: Access | None = None
    """Access of the audience: weights, probabilities, labels, texts, or internal."""
    persons: str = ""
    """Persons whose data the model was trained on."""
    measures: tuple[str, ...] = ()
    """Measures against memorization taken in training or in operation."""
    residual_risk: str = ""
    """The owner's assessment of the remaining risk."""
    contact: str = ""
    """Contact for questions about the model."""


class Recipe(CellsSpec):
    """All audits about one model or data set, joined into one document; cells, if there are any, are run first."""

    added_later: ClassVar[frozenset[str]] = frozenset({"not_run"})

    audit: Literal["dossier"] = "dossier"
    title: str = "Dossier"
    """Heading of the report."""
    subject: SubjectSpec = SubjectSpec()
    every: Mapping[str, Any] = {}
    """Changes to the recipes of all cells by dotted key, such as {data: {source: {kind: image_folder, path: photos}}}."""
    not_run: Mapping[str, str] = {}
    """Reasons why audits were not run, by the audit's name, such as {self-influence: the model was trained elsewhere}. The
    dossier prints them as its owner's; audits that do not apply to the data are recognized without it."""
    release: ReleaseSpec = ReleaseSpec()
    most_days: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Age in days from which a run is stale and no longer counts."""
    named_share: float = Field(default=0.01, gt=0, le=0.5)
    """Share of the records that an audit names as most exposed."""
    ids: bool = True
    """Whether the ids of exposed persons and examples are part of the dossier; otherwise it holds aggregates and digests."""

    def changes(self) -> list[tuple[str, str | Mapping[str, Any], dict[str, Any]]]:
        """Return (name, recipe, changes by dotted key) for every cell, with the changes that all of them share."""
        return [(name, recipe, {**self.every, **change}) for name, recipe, change in super().changes()]

    @model_validator(mode="after")
    def _reasons_are_of_audits(self) -> "Recipe":
        if unknown := self.not_run.keys() - PACKAGES.keys():
            raise ValueError(f"not_run names {min(unknown)!r}, which is no audit; choose from {', '.join(PACKAGES)}")
        return self

    @model_validator(mode="after")
    def _has_a_subject(self) -> "Recipe":
        if self.subject == SubjectSpec() and not (self.cells or self.grid):
            raise ValueError("a dossier needs a subject (data or model, as a digest; or runs), or cells")
        return self
