"""The last stages of a membership audit: scores and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.controls import check_draw, control_findings
from memlib.audits.membership.findings import person_findings, summarize
from memlib.audits.membership.hidden import target_findings
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.rows import curves, example_rows, influence_rows, model_rows, unit_rows
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.slices import slice_findings
from memlib.audits.membership.supplied import UNLISTED
from memlib.audits.membership.tables import EXAMPLES, INFLUENCE, MODELS, UNITS
from memlib.audits.membership.target import Columns, TargetAnswers
from memlib.audits.membership.units import Copies, Pool, Units
from memlib.data.groups import ALIKE
from memlib.data.overlap import Set, overlap
from memlib.data.splits import HELD_OUT, TRAIN
from memlib.data.stages import TrainingData
from memlib.data.subsets import TARGET, Subsets
from memlib.errors import UserError
from memlib.findings import Finding
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place
from memlib.pipeline.tables import Tables
from memlib.stats.likelihood import rounded
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

MOST_COMPARED = 50_000  # images among which alike ones are looked for
FAR_SHARE = 0.1  # difference of the shares of examples from which shadow models are trained on too many, or too few
EXAMPLES_FILE, MODELS_FILE, INFLUENCE_FILE = "examples.parquet", "models.parquet", "influence.parquet"


@dataclass(frozen=True)
class Score(ScoresStage):
    """Attack the target and every shadow model, test the target's coins, and compute memorization, influence and epsilon."""

    declared: ClassVar[Declared] = Declared("score_membership", 5)
    title: ClassVar[str] = "score membership"
    place: ClassVar[Place] = "cores"

    recipe: Recipe  #: attacks, tests and claim.
    data: TrainingData  #: the pool.
    shadows: Sequence[Subsets]  #: the training sets of the shadow models, by artifact of their answers.
    answers: Sequence[Artifact[Answers]]  #: the answers of the shadow models.
    target: Artifact[Answers]  #: the answers of the target.
    members: Artifact[NDArray[np.int8]] | None  #: the training examples of an external target.
    columns: Artifact[Columns] | None = field(default=None, kw_only=True)  #: the subgroup column of a table.
    queried: Artifact[TargetAnswers] | None = field(default=None, kw_only=True)  #: more answers of the target on a table.
    #: squared gradient norms of the target after each kept epoch; empty without self-influence.
    norms: Sequence[Artifact[NDArray[np.float64]]] = field(default=(), kw_only=True)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Attacks, tests, claim and coins."""
        recipe = self.recipe
        return {
            "score": recipe.score.model_dump(mode="json"),
            "privacy": None if recipe.privacy is None else recipe.privacy.model_dump(mode="json"),
            "coins": [recipe.shadows.share, recipe.shadows.seed, recipe.shadows.count],
            # last: the version of the comparison without the model, in which ids that memlib made were evidence before
            "target": [recipe.target.drawn, recipe.target.coins, 2] if recipe.target.is_external else None,
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The pool and the answers; if there are any, also members, columns, further answers and gradient norms."""
        inputs: dict[str, Any] = {
            "shard": self.data.shard.key, "splits": self.data.splits.key, "answers": [each.key for each in self.answers],
            "target": self.target.key,
        }  # fmt: skip
        more = {"members": self.members, "columns": self.columns, "queried": self.queried}
        inputs |= {name: artifact.key for name, artifact in more.items() if artifact is not None}
        return inputs | ({"norms": [each.key for each in self.norms]} if self.norms else {})

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the tables."""
        audited = self.audited()
        refuse_too_few(audited.units)
        if (unlike := _other_share(audited)) is not None:
            attempt.warn(unlike)
        checks = check_draw(audited, self.data)
        if checks.contradicts:
            attempt.warn(checks.warning)
            audited = audited.withdrawn()
        more = [*control_findings(audited, checks), *self._details(audited)]
        write_table(summarize(audited, more), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(unit_rows(audited), UNITS, attempt.path(UNITS_FILE))
        if audited.has_memorization:
            write_table(example_rows(audited), EXAMPLES, attempt.path(EXAMPLES_FILE))
        write_table(model_rows(audited), MODELS, attempt.path(MODELS_FILE))
        write_table(curves(audited), CURVES, attempt.path(CURVES_FILE))
        if audited.has_influence:
            write_table(influence_rows(audited), INFLUENCE, attempt.path(INFLUENCE_FILE))

    def _details(self, audited: Audited) -> list[Finding]:
        """Return the findings on slices, persons, hidden columns and structure."""
        rows = slice_findings(audited, {} if self.columns is None else self.columns.content.subgroup)
        rows += person_findings(audited)
        if self.queried is not None:
            rows += target_findings(audited, self.data.members(TRAIN), self.queried.content)
        return rows

    def audited(self) -> Audited:
        """Return the pool with all answers; for an external target, only the examples that the owner's list names."""
        rows = self.data.members(TRAIN)
        target, none = self.target.content, np.zeros((0, rows.num_rows), dtype=np.bool_)
        inside = np.concatenate([none, *(subsets.inside for subsets in self.shadows)])
        shadows = Answers.joined([target.none, *(answers.content for answers in self.answers)])
        if self.members is None:
            own = Subsets(self.data, (TARGET,), self.recipe.shadows.share, self.recipe.shadows.seed).inside[0]
            listed = np.ones(len(own), dtype=bool)
        else:
            own, listed = self.members.content == 1, self.members.content != UNLISTED
        target, shadows = comparable(target.of(listed), shadows.of(listed), self.target.facts.get("decimals"))
        if self.recipe.reads_losses:
            target, shadows = more_likely_right(target), more_likely_right(shadows)
        pool = Pool.of(rows, listed)
        return Audited(
            recipe=self.recipe,
            pool=pool,
            rows=rows.filter(pa.array(listed)),
            member=own[listed],
            target=target,
            shadows=shadows,
            inside=inside[:, listed],
            held_out=self.data.members(HELD_OUT),
            is_drawn=self.recipe.is_drawn,
            norms=np.array([each.content for each in self.norms]) if self.norms else None,
            copies=copies_of(self.data, pool.ids, own[listed]),
        )


def copies_of(data: TrainingData, ids: Sequence[str], member: NDArray[np.bool_]) -> Copies:
    """Return the non-members that have a copy among the members; of many images, only equal ones are looked for.

    Args:
        data: the stored examples.
        ids, member: (num_examples,) the audited examples.
    """
    names, shard = np.array(ids, dtype=object), data.shard.content
    near = ALIKE if shard.has_images and len(ids) <= MOST_COMPARED else 0.0
    first, second = (Set.of(shard, only=names[side].tolist(), looks=near > 0) for side in (~member, member))
    found = set(overlap(first, second, near=near, shared=1.0)["example_id"].to_pylist())
    return Copies(np.array([name in found for name in ids]), near)


def refuse_too_few(units: Units) -> None:
    """Raise UserError if some model has fewer than two members or non-members, which no attack can tell apart."""
    inside = np.concatenate([units.member[None], units.shadows.inside])
    least = int(np.minimum(inside.sum(axis=1), (~inside).sum(axis=1)).min())
    if least < 2:
        raise UserError(
            f"of {len(units)} {units.noun}, at least one model has fewer than two members or non-members ({least}); audit "
            "more data, or choose shadows.share nearer to 0.5"
        )


def comparable(target: Answers, shadows: Answers, decimals: int | None) -> tuple[Answers, Answers]:
    """Return both answers on one scale: shadow models rounded as the target is, and its log odds clipped to their range.

    An external model may be certain (p = 1), while the auditor's models are smoothed: its certainty then counts as their
    largest log odds. Rankings change only by ties.

    Args:
        target, shadows: answers on the same examples.
        decimals: decimals to which the target's probabilities are rounded; None: they are not.
    """
    if decimals is not None:
        shadows = replace(shadows, odds=rounded(shadows.odds.astype(np.float64), decimals).astype(np.float32))
    if not len(shadows.odds):
        return target, shadows
    within = np.clip(target.odds, shadows.odds.min(), shadows.odds.max())
    return replace(target, odds=within), shadows


def _other_share(audited: Audited) -> str | None:
    """Return a caution if shadow models were trained on another share of the examples than an external target was."""
    own, share = float(audited.member.mean()), audited.recipe.shadows.share
    if not audited.recipe.target.is_external or not audited.recipe.shadows.count or abs(own - share) <= FAR_SHARE:
        return None
    return (
        f"the target was trained on {own:.0%} of the listed examples, but each shadow model on {share:.0%}; set "
        f"shadows.share to {own:.2f} for stronger attacks"
    )


def more_likely_right(answers: Answers) -> Answers:
    """Return answers that count as right where the true class has more than half of the probability.

    A loss does not reveal the most probable class, so the same rule is applied to the target and to shadow models.
    """
    return replace(answers, correct=answers.odds[:, 0] > 0)


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a membership audit."""

    declared: ClassVar[Declared] = Declared("report", 6)
    title: ClassVar[str] = "report membership"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    data: TrainingData

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores, and the examples that are shown."""
        return {"scores": self.scores.key, "shard": self.data.shard.key, "splits": self.data.splits.key}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Examples and splits."""
        return (self.data.shard, self.data.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the content of the page."""
        from memlib.audits.membership.report import compose

        names = [name for name in ("units", "examples", "models", "summary", "curves", "influence") if self._has(name)]
        tables = {name: self.scores.content[name] for name in names}
        return compose(self.recipe, tables, self.data.pictures(TRAIN, HELD_OUT), self._sizes(), attempt.path("figures"))

    def _has(self, name: str) -> bool:
        return f"{name}.parquet" in self.scores.files

    def _sizes(self) -> Mapping[str, int]:
        """Return the number of examples of each role."""
        return {role: self.data.members(role).num_rows for role in (TRAIN, HELD_OUT)}
