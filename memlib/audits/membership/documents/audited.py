"""Documents with the scores of all models, in the form that the attacks of a membership audit read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.asked import row_of
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.rankings import Scores, Signal
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.units import Copies, Pool, Units, units_of
from memlib.data.blind_features import BlindFeatures
from memlib.findings import Finding
from memlib.observe.service_checks import ServiceCheck
from memlib.observe.token_scores import TokenScores, zlib_ratio
from memlib.pipeline.stage import AnyArtifact
from memlib.stats.shadows import by_person, log_p


@dataclass(frozen=True)
class DocumentsAudited(Audited):
    """Documents with the scores of all models.

    The log odds are those of the geometric mean of a document's token probabilities, so that their log p is its mean log
    probability per token; "right answers" are the share of tokens that a model predicts.
    """

    has_classes: ClassVar[bool] = False

    #: (num_documents,) of the target and (num_models, num_documents) of the shadow models, by attack.
    scores: Mapping[str, Signal]
    known: BlindFeatures  #: features of the documents that are known without a model.
    base: NDArray[np.float64] | None = (
        None  #: (num_documents,) mean log probability under the pretrained model, if there is one.
    )
    checks: Sequence[ServiceCheck] = ()  #: tests of services that were asked, before and after.
    asked: Sequence[AnyArtifact] = ()  #: what was asked between them.

    @classmethod
    def of(
        cls,
        *,
        recipe: DocumentsRecipe,
        pool: Pool,
        rows: pa.Table,
        member: NDArray[np.bool_],
        listed: NDArray[np.bool_],
        inside: NDArray[np.bool_],
        target: TokenScores,
        shadows: Sequence[TokenScores],
        base: TokenScores | None,
        compressed: NDArray[np.int64],
        known: BlindFeatures,
        nobody: pa.Table,
        copies: Copies | None = None,
        checks: Sequence[ServiceCheck] = (),
        asked: Sequence[AnyArtifact] = (),
    ) -> Self:
        """Return the listed documents with their scores.

        Args:
            recipe: attacks, tests and claim.
            member, listed: (num_documents,) whether the target was trained on the document, and whether it is audited.
            inside: (num_models, num_documents) training sets of the shadow models.
            target, shadows: scores of all documents under the target and the shadow models.
            base: the scores of the pretrained model; None without one.
            compressed: (num_documents,) bytes of the compressed texts.
            nobody: table without rows, with the columns of tables.SPLITS.
            copies: copies of members among the listed documents.
            checks, asked: tests of services that were asked, before and after, and what was asked between them.
        """
        signals = {
            name: Signal(score[0][listed], score[1:][:, listed])
            for name, score in signals_of([target, *shadows], base, compressed).items()
        }
        return cls(
            recipe=recipe, pool=pool, rows=rows, member=member[listed], target=answers_of([target]).of(listed),
            shadows=answers_of(shadows, len(listed)).of(listed), inside=inside[:, listed], held_out=nobody,
            is_drawn=recipe.is_drawn, scores=signals, known=replace(known, values=known.values[listed]), copies=copies,
            base=None if base is None else base.mean_log_p[listed], checks=checks, asked=asked,
        )  # fmt: skip

    @cached_property
    def units(self) -> Units:
        """The documents, or persons, whose membership is audited."""
        found = units_of(self.pool, self.target, self.shadows, self.member, self.inside, self.recipe.score.persons)
        return replace(found, word="documents" if self.recipe.split.group is None else "persons", copied=self.copied)

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The scores of units."""
        return {
            name: Signal(self._by_unit(signal.target), self._by_unit(signal.shadows)) for name, signal in self.scores.items()
        }

    @property
    def row_signals(self) -> Mapping[str, Signal]:
        """The scores of single documents."""
        return self.scores

    @property
    def agreement(self) -> None:
        """None: no model stands for what the target finds hard, so that a declared draw stays declared.

        A model that was fine-tuned on other documents of the members' source knows this source. Models that saw neither side
        do not, and shadow models know both sides', so that a difference of sources can look like memory to all of them.
        """
        return None

    @property
    def others(self) -> Sequence[Scores]:
        """The mean log probability of each unit under the pretrained model, which was trained on none."""
        if self.base is None:
            return []
        return [np.bincount(self.pool.groups, weights=self.base) / np.bincount(self.pool.groups)]

    @property
    def spread(self) -> float:
        """Standard deviation of the documents' mean log probabilities, beyond the pretrained model's if there is one."""
        own = self.scores["ratio"].target if "ratio" in self.scores else log_p(self.target.odds[0, 0])
        return float(np.std(own))

    @property
    def service(self) -> Finding | None:
        """The finding on the service that was asked; None for a model at hand."""
        if not self.checks:
            return None
        trained: Any = self.recipe.target.trained
        return row_of(trained, self.checks, self.asked, spread=self.spread, n=len(self.member))

    @property
    def features(self) -> BlindFeatures:
        """Features of the documents that are known without a model."""
        return self.known

    def _by_unit(self, values: Scores) -> Scores:
        if not self.pool.has_groups:
            return values
        return np.asarray(by_person(values, self.pool.groups, self.recipe.score.persons), dtype=np.float64)


def signals_of(
    models: Sequence[TokenScores], base: TokenScores | None, compressed: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Return the scores of documents that do not follow from log odds, (num_models, num_documents) by attack.

    Args:
        base: scores of the pretrained model, with whose tokens those of `models` were compared; without it, the ratio follows
            from log odds and is not returned.
        compressed: (num_documents,) bytes of the compressed texts.
    """
    found = {
        "min_k": np.stack([model.lowest for model in models]),
        "zlib": zlib_ratio(np.stack([model.log_p for model in models]), compressed),
    }
    if base is not None:
        found["ratio"] = np.stack([model.mean_log_p for model in models]) - base.mean_log_p
        found["ez"] = np.stack([model.error_zone() for model in models])
        found["wbc"] = np.stack([model.windows() for model in models])
    return found


def answers_of(models: Sequence[TokenScores], count: int = 0) -> Answers:
    """Return the answers of models on documents: log odds of the mean log probability, and shares of predicted tokens.

    Args:
        count: number of documents, needed only if `models` is empty.
    """
    if not models:
        return Answers(np.zeros((0, 1, count), np.float32), np.zeros((0, count), bool), np.zeros((0, 0), bool))
    mean = np.minimum(np.stack([model.mean_log_p for model in models]), -1e-12)  # log odds of probability 1 are infinite
    odds = mean - np.log(-np.expm1(mean))
    correct = np.stack([model.correct for model in models])
    nobody = np.zeros((len(models), 0), bool)
    return Answers(odds[:, None].astype(np.float32), correct, nobody)  # type: ignore[arg-type]  # a document has many answers
