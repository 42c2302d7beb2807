"""Stages that score an audit of image-text models, and draw its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy

from memlib.audits.captions.recipe import Config, Recipe
from memlib.audits.captions.retrieval import Retrievals, copies_of
from memlib.audits.captions.tables import UNITS
from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.given_sets import Difference
from memlib.data.images.caption_stages import CaptionSet
from memlib.data.splits import PUBLIC
from memlib.data.stages import Shard, members_of
from memlib.findings import Findings
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place
from memlib.pipeline.tables import Tables
from memlib.specs.captions import DoseSpec
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.audits.captions.scores import Asked
    from memlib.report.page import Content

KINDS = ("recovered", "wrong", "unimplied", "named")


@dataclass(frozen=True)
class Score(ScoresStage):
    """Count the objects that neighbours of captions name, and compute the findings."""

    declared: ClassVar[Declared] = Declared("score_captions", 4)
    title: ClassVar[str] = "score captions"
    place: ClassVar[Place] = "cores"

    retrievals: Sequence[Retrievals]
    captions: Artifact[CaptionSet]
    splits: Artifact[pa.Table]
    dose: DoseSpec
    dose_seed: int
    config: Config
    by_chance: bool = True  #: whether pairs were assigned to A and B at random; otherwise nothing is tested.
    checks: Artifact[Difference] | None = None  #: comparison of sets of which that is only declared by their owner.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Settings of scoring, the settings that are scored, and the dose."""
        drawn = {"by_chance": False} if not self.by_chance else {"declared": True} if self.checks is not None else {}
        return drawn | {
            "config": self.config.model_dump(mode="json"), "dose": [self.dose.model_dump(mode="json"), self.dose_seed],
            "settings": [[one.pair, one.epoch] for one in self.retrievals],
        }  # fmt: skip

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Neighbours, captions and splits."""
        found = [[model.key for model in one.by_model] for one in self.retrievals]
        checks = {} if self.checks is None else {"checks": self.checks.key}
        return {"retrievals": found, "captions": self.captions.key, "splits": self.splits.key} | checks

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves."""
        from memlib.audits.captions.findings import curves, summarize
        from memlib.audits.captions.scores import chance, votes_of
        from memlib.audits.captions.verdict import verdict

        ids = self.retrievals[0].by_model[0].content.ids
        asked, prior, public = _known(self.captions.content, self.splits, ids["example_id"], self.config.objects)
        units = pa.concat_tables(
            self._units(ids, asked, prior, public, one, k) for one in self.retrievals for k in self.config.k
        )
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        epochs = tuple(dict.fromkeys(one.epoch for one in self.retrievals))
        first = self.retrievals[0].by_model[0].content.neighbors[:, : self.config.k[0]]
        guessed = chance(votes_of(first, public), asked, self.config.objects)
        checks = None if self.checks is None else self.checks.content
        found = summarize(units, self.config, epochs=epochs, chance=guessed, by_chance=self.by_chance, checks=checks)
        rows = Findings(found)
        write_table(rows.table(verdict(rows)), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(units, epochs=epochs, k=self.config.k[0]), CURVES, attempt.path(CURVES_FILE))

    def _units(
        self, ids: pa.Table, asked: Asked, prior: Any, public: scipy.sparse.csr_array, one: Retrievals, k: int
    ) -> pa.Table:
        """Return the units of one pair of models at one epoch and k."""
        from memlib.audits.captions.findings import DIRECTION_OF
        from memlib.audits.captions.scores import answers, votes_of

        found = [model.content for model in one.by_model]
        assert all(model.ids.equals(ids) for model in found), "models were asked different captions"
        splits, copies = self.splits.content, copies_of(self.splits, self.dose, self.dose_seed)
        members = splits.take(pc.index_in(ids["example_id"], value_set=splits["example_id"].combine_chunks()))
        size, names = ids.num_rows, ids["example_id"].to_pylist()
        columns: dict[str, Any] = {
            "example_id": names, "direction": [DIRECTION_OF[role] for role in ids["role"].to_pylist()],
            "pair": [one.pair] * size, "epoch": [one.epoch] * size, "k": [k] * size, "group": members["group"],
            "copies": [copies.get(name, 1) for name in names],
            "num_named": asked.named.sum(axis=1), "num_unnamed": asked.unnamed.sum(axis=1),
            "num_implied": asked.implied.sum(axis=1), "prior_recovered": prior,
            "distance": np.mean([model.distances[:, 0] for model in found], axis=0).astype(np.float64),
        }  # fmt: skip
        for place, side in enumerate("ab"):
            votes = votes_of(found[place].neighbors[:, :k], public) if place < len(found) else None
            of_model = None if votes is None else answers(votes, asked, self.config.objects)
            columns |= {f"{side}_{kind}": [None] * size if of_model is None else getattr(of_model, kind) for kind in KINDS}
        return pa.table({name: columns[name] for name in UNITS.arrow.names}).cast(UNITS.arrow)


def _known(
    captions: CaptionSet, splits: Artifact[pa.Table], ids: pa.ChunkedArray, count: int
) -> tuple[Asked, Any, scipy.sparse.csr_array]:
    """Return what is known of the asked captions, the unnamed objects that words alone give, and the public objects."""
    from memlib.audits.captions.scores import Asked, WordModel, known_by_words

    table, public_table = captions.chosen(ids), captions.chosen(members_of(splits, PUBLIC)["example_id"])
    public = captions.matrix(public_table["objects"])
    words, public_words = (captions.words[one["row"].to_numpy()] for one in (table, public_table))
    objects, named = (captions.matrix(table[name]) for name in ("objects", "named"))
    implied, prior = known_by_words(WordModel.fit(public_words, public), words, objects, named, count)
    return Asked(objects, named, implied), prior, public


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of an audit of image-text models."""

    declared: ClassVar[Declared] = Declared("report_captions", 4)
    title: ClassVar[str] = "report captions"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    retrievals: Sequence[Retrievals]
    captions: Artifact[CaptionSet]
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores, neighbours, captions and images."""
        shown = [model.key for model in self.retrievals[0].by_model]
        keys: dict[str, AnyArtifact] = {
            "scores": self.scores,
            "captions": self.captions,
            "shard": self.shard,
            "splits": self.splits,
        }
        return {name: artifact.key for name, artifact in keys.items()} | {"retrievals": shown}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images, captions and splits."""
        return (self.shard, self.captions, self.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figure and return the content of the page."""
        from memlib.audits.captions.gallery import pairs_shown
        from memlib.audits.captions.report import compose

        shown = pairs_shown(self.recipe, self.retrievals[0], self.captions.content, self.shard, self.splits)
        return compose(self.recipe, self.scores.content, shown, attempt.path("figures"))
