"""The stage that draws the page of a déjà vu audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.deja_vu.embedding import CROP, joint_key
from memlib.audits.deja_vu.recipe import Recipe
from memlib.audits.deja_vu.reconstruction.sampling import Reconstructions
from memlib.audits.deja_vu.reconstruction.tables import NEIGHBORS
from memlib.audits.deja_vu.scoring import Searches
from memlib.audits.deja_vu.searching import Found
from memlib.audits.last_stages import PageStage
from memlib.data.splits import named_classes
from memlib.data.stages import Shard
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place
from memlib.pipeline.tables import Tables
from memlib.store import Attempt
from memlib.training.fit import TrainedModel

if TYPE_CHECKING:
    from memlib.audits.deja_vu.reconstruction.section import Drawn
    from memlib.audits.deja_vu.report import Facts, Shown
    from memlib.report.page import Content


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a déjà vu audit."""

    declared: ClassVar[Declared] = Declared("report", 12)
    title: ClassVar[str] = "report déjà vu"
    place: ClassVar[Place] = "cores"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    searches: Sequence[Searches]
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    models: Mapping[str, Artifact[TrainedModel]]
    #: reconstructions by the first pair's model trained on A and by its model trained on B, in blocks; empty if none.
    drawn: Sequence[Sequence[Artifact[Reconstructions]]] = ()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores, and images for the galleries."""
        drawn = {"drawn": [joint_key(parts) for parts in self.drawn]} if self.drawn else {}
        return {"scores": self.scores.key, "shard": self.shard.key, "splits": self.splits.key, **drawn}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images and splits."""
        return (self.shard, self.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the audit's part of the page."""
        from memlib.audits.deja_vu.report import compose

        tables, pictures = self.scores.content, _Pictures(self)
        units, folder = next(tables.parts("units")), attempt.path("figures")
        found, drawn = (units, tables["summary"], tables["curves"]), _Reconstructed.of(self, pictures)
        return compose(self.recipe, *found, self._facts(), pictures.show, folder, reconstructed=drawn)

    def _facts(self) -> Facts:
        from memlib.audits.deja_vu.report import Facts

        splits = self.splits.content
        reasons = [reason.split(" of ")[0].split(":")[0] for reason in splits["reason"].drop_null().to_pylist() if reason]
        return Facts(
            counts={entry["values"]: entry["counts"] for entry in pc.value_counts(splits["role"]).to_pylist()},
            left_out=Counter(reasons),
            seconds={name: model.facts["training_seconds"] for name, model in self.models.items()},
        )


class _Pictures:
    """Access to the pictures for the galleries."""

    def __init__(self, stage: Report) -> None:
        self._searches = {(s.pair, s.layer, s.epoch, s.crop): s for s in stage.searches}
        self._most, self._picture, splits = stage.recipe.report.neighbors, stage.shard.content.pictures, stage.splits.content
        self._class_names = named_classes(splits)
        self._ids_of, self._nearest_of = lru_cache(lambda content: content.ids), lru_cache(lambda found: found.rows)

    def show(self, unit: Mapping[str, Any]) -> Shown:
        """Return the pictures for one row of the units."""
        from memlib.audits.deja_vu.report import Shown

        searches = self._searches[unit["pair"], unit["layer"], unit["epoch"], unit["crop"]]
        target, *others = searches.by_model if unit["direction"] == "A" else searches.by_model[::-1]
        place = pc.index(self._ids_of(target)["example_id"], unit["example_id"]).as_py()
        (entry,) = self._ids_of(target).slice(place, 1).to_pylist()
        x0, y0, x1, y1 = (entry[side] for side in CROP)

        def nearest(side: Found) -> list[tuple[Any, str]]:
            query = pc.index(self._ids_of(side)["example_id"], unit["example_id"]).as_py()
            chosen = self._ids_of(searches.public).take(self._nearest_of(side)[query, : self._most]).to_pylist()
            return [(self._picture(c["row"]), self._class_names[c["label"]]) for c in chosen]

        seen = [near for other in others for near in nearest(other)]
        return Shown(self._picture(entry["row"]), (x0, y0, x1, y1), nearest(target), seen)


class _Reconstructed:
    """Access to the reconstructions of the first pair.

    Attributes:
        ids: the reconstructed images in hashed order.
    """

    def __init__(self, stage: Report, pictures: _Pictures) -> None:
        self._pictures = pictures
        blocks = [[part.content for part in parts] for parts in stage.drawn]
        self.ids: list[str] = [name for part in blocks[0] for name in part.ids["example_id"].to_pylist()]
        self._drawn = [np.concatenate([part.drawn(NEIGHBORS) for part in parts]) for parts in blocks]

    @classmethod
    def of(cls, stage: Report, pictures: _Pictures) -> _Reconstructed | None:
        """Return the reconstructions that a page shows; None if there are none."""
        return cls(stage, pictures) if stage.drawn else None

    def draw(self, unit: Mapping[str, Any]) -> Drawn:
        """Return the pictures for one row of the units."""
        from memlib.audits.deja_vu.reconstruction.section import Drawn

        shown, place = self._pictures.show(unit), self.ids.index(unit["example_id"])
        own, other = self._drawn if unit["direction"] == "A" else self._drawn[::-1]
        return Drawn(shown.image, shown.box, own[place], other[place], shown.target[0][0])
