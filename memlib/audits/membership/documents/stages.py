"""The last stages of a membership audit of documents: scores and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.documents.audited import DocumentsAudited
from memlib.audits.membership.documents.corpus import StoredDocuments
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.stages import Report, Score
from memlib.audits.membership.supplied import UNLISTED
from memlib.audits.membership.units import Pool
from memlib.data.splits import HELD_OUT, TRAIN
from memlib.data.subsets import TARGET, Subsets
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact

if TYPE_CHECKING:
    from memlib.observe.token_scores import TokenScores


@dataclass(frozen=True)
class ScoreDocuments(Score):
    """Attack the target by its scores of documents, and test its coins.

    Attributes:
        shadows: the training sets of the shadow models.
    """

    declared: ClassVar[Declared] = Declared("score_documents", 2)
    title: ClassVar[str] = "score membership of documents"

    recipe: DocumentsRecipe  #: attacks, tests and claim.
    #: answers, target: the scores of the shadow models and of the target.
    answers: Sequence[Artifact[TokenScores]]  # type: ignore[assignment]
    target: Artifact[TokenScores]  # type: ignore[assignment]
    corpus: Artifact[StoredDocuments]  #: the documents.
    base: Artifact[TokenScores] | None  #: the scores of the pretrained model; None for models that were trained from scratch.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents and all scores."""
        return {**super().inputs, **({} if self.base is None else {"base": self.base.key})}

    def audited(self) -> Audited:
        """Return the documents with all scores; of an external target, those that the owner's list names."""
        content = self.corpus.content
        inside = self._inside(self.shadows)
        if self.members is None:
            shadows = self.recipe.shadows
            own = self._inside([Subsets(self.data, (TARGET,), shadows.share, shadows.seed)])[0]
            listed = np.ones(len(own), dtype=bool)
        else:
            own, listed = self.members.content == 1, self.members.content != UNLISTED
        rows = content.table.filter(pa.array(listed))
        return DocumentsAudited.of(
            recipe=self.recipe, pool=Pool.of(content.table, listed), rows=rows, member=own, listed=listed, inside=inside,
            target=self.target.content, shadows=[answers.content for answers in self.answers],
            base=None if self.base is None else self.base.content, compressed=content.sizes.compressed,
            known=content.features, nobody=self.data.members(HELD_OUT),
        )  # fmt: skip

    def _inside(self, subsets: Sequence[Subsets]) -> Any:
        """Return masks of the documents in each model's training set, (num_models, num_documents).

        A training set contains all windows of a document or none, so its first window decides.
        """
        first = self.corpus.content.sizes.first
        parts = [each.inside[:, first] for each in subsets]
        return np.concatenate([np.zeros((0, len(first)), dtype=bool), *parts])


@dataclass(frozen=True)
class ReportDocuments(Report):
    """Draw the page of a membership audit of documents."""

    title: ClassVar[str] = "report membership of documents"

    corpus: Artifact[StoredDocuments]

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The documents."""
        return (self.corpus,)

    def _sizes(self) -> Mapping[str, int]:
        """Return the number of documents."""
        return {TRAIN: self.corpus.content.table.num_rows, HELD_OUT: 0}
