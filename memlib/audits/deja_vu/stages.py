"""Stages that score a decoding setting and the whole audit, and draw the page of a déjà vu audit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.deja_vu.embedding import CROP, ROLE_OF, EmbeddedView, joint_key
from memlib.audits.deja_vu.findings import check_row, curves, probe_rows, rows_of, rows_through_training, settled
from memlib.audits.deja_vu.gains import change_rows
from memlib.audits.deja_vu.recipe import DIRECTIONS, Config, Recipe
from memlib.audits.deja_vu.reconstruction.sampling import Reconstructions
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.audits.deja_vu.searching import Found
from memlib.audits.deja_vu.tables import NEIGHBORS, RECONSTRUCTIONS, UNITS
from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.given_sets import Difference
from memlib.data.splits import REFERENCE, TARGET, named_classes, select
from memlib.data.stages import Shard, members_of
from memlib.findings import Finding
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place
from memlib.pipeline.tables import PARTS_FILE, Tables
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, write_table
from memlib.training.fit import TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.audits.deja_vu.backgrounds import Backgrounds
    from memlib.audits.deja_vu.beyond.findings import Beyond
    from memlib.audits.deja_vu.reconstruction.section import Drawn
    from memlib.audits.deja_vu.report import Facts, Shown
    from memlib.audits.deja_vu.stability import Compared
    from memlib.report.page import Content


@dataclass(frozen=True)
class Searches:
    """The neighbours at one setting for one pair of models, or for a single model."""

    pair: int  #: pair, layer, epoch, crop: the setting.
    layer: str
    epoch: int
    crop: str
    #: the neighbours under the model trained on A and, if there is one, under the model trained on B.
    by_model: tuple[Found, ...]
    public: EmbeddedView  #: embeddings of the public images, for their ids.
    backgrounds: Backgrounds | None = None  #: answers of the classifiers that replace the second model; None with two models.


MOST_UNITS = 2**20  # rows of units up to which all settings are scored by one stage


@dataclass(frozen=True)
class ScoreSetting(ScoresStage):
    """Score one layer, epoch, crop and k of a large audit: units, curves, and findings that are not settled yet."""

    declared: ClassVar[Declared] = Declared("score_setting", 4)
    title: ClassVar[str] = "score a setting of déjà vu"
    place: ClassVar[Place] = "cores"

    searches: Sequence[Searches]  #: neighbours of all pairs.
    splits: Artifact[pa.Table]
    class_names: Sequence[str]
    config: Config  #: the configuration with this k only.
    headline: bool  #: whether this is the run's first setting.
    beyond: bool = False  #: whether memory beyond the class is tested, too.
    declared_sets: bool = False  #: as in `Score`.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Decoding, and the setting."""
        flags = ({"beyond": True} if self.beyond else {}) | ({"declared_sets": True} if self.declared_sets else {})
        return _scored(self) | {"headline": self.headline} | flags

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Searches and splits."""
        return _read(self)

    @property
    def label(self) -> str:
        """The setting."""
        first = self.searches[0]
        return f"{first.layer}, epoch {first.epoch}, {first.crop}, k {self.config.k[0]}"

    @property
    def units(self) -> float:
        """Number of pairs of models."""
        return float(len(self.searches))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, the rows of the summary, and curves."""
        units, classes = score(_decodings(self), self.class_names, self.config), len(self.class_names)
        reference = _stands(self)
        how: Any = {"headline": self.headline, "reference": reference, "beyond": self.beyond, "declared": self.declared_sets}
        rows = rows_of(units, self.config, num_classes=classes, **how)
        summary = pa.Table.from_pylist([row.row() for row in rows], schema=SUMMARY.arrow)
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(units, alone=reference is not None), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compute votes, categories, curves and findings from the neighbours."""

    declared: ClassVar[Declared] = Declared("score", 13)
    title: ClassVar[str] = "score déjà vu"
    place: ClassVar[Place] = "cores"

    searches: Sequence[Searches]
    probes: Sequence[Artifact[pa.Table]]
    splits: Artifact[pa.Table]
    class_names: Sequence[str]
    config: Config
    stability: Sequence[Compared] = ()
    fine_tuned: bool = False  #: whether to report changes since the first epoch.
    by_chance: bool = True  #: whether images were assigned to A and B at random.
    #: comparison, without a model, of given sets that were declared to be drawn at random.
    checks: Artifact[Difference] | None = None
    #: scores of the settings of a large audit, computed in parallel; not part of the key, as results are the same.
    parts: tuple[Artifact[Tables], ...] = ()
    #: probes of checkpoints before the last, by epoch; changes since the first of them are reported.
    earlier_probes: Mapping[int, Sequence[Artifact[pa.Table]]] = field(default_factory=dict)
    #: attributes, neighbours and ranks within the class; None if the recipe does not ask for them.
    beyond: Beyond | None = None
    judged: Sequence[Artifact[pa.Table]] = ()  #: measures of reconstructions, by pair of models; see `reconstruction`.
    declared_sets: bool = False  #: whether the images were only declared to be assigned at random.

    def in_parts(self) -> list[ScoreSetting]:
        """Return one stage per setting; none for a small audit."""
        audited = members_of(self.splits, TARGET, REFERENCE).num_rows
        if audited * len(self.searches) * len(self.config.k) <= MOST_UNITS:
            return []
        settings: dict[tuple[Any, ...], list[Searches]] = {}
        for one in self.searches:
            settings.setdefault((one.layer, one.epoch, one.crop), []).append(one)
        return [
            ScoreSetting(
                searches,
                self.splits,
                self.class_names,
                self.config.model_copy(update={"k": (k,)}),
                number == place == 0,
                self.beyond is not None,
                self.declared_sets,
            )
            for number, searches in enumerate(settings.values())
            for place, k in enumerate(self.config.k)
        ]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Decoding, and the settings."""
        flags = {"fine_tuned": True} if self.fine_tuned else {}
        flags |= ({} if self.by_chance else {"by_chance": False}) | ({"declared_sets": True} if self.declared_sets else {})
        return _scored(self) | flags

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Searches, probes, splits, distances between views, and judged reconstructions."""
        stability = {"stability": [one.key for one in self.stability]} if self.stability else {}
        checks = {} if self.checks is None else {"checks": self.checks.key}
        earlier = {str(epoch): [probe.key for probe in probes] for epoch, probes in self.earlier_probes.items()}
        probes = {"probes": [probe.key for probe in self.probes]} | ({"earlier_probes": earlier} if earlier else {})
        beyond = {} if self.beyond is None else {"beyond": self.beyond.key}
        judged = {"judged": [one.key for one in self.judged]} if self.judged else {}
        return _read(self) | probes | stability | checks | beyond | judged

    @property
    def _followed(self) -> dict[str, Any]:
        """The crop, k and layer whose change through training is reported; after fine-tuning, every layer is reported."""
        first = self.searches[0]
        return {"crop": first.crop, "k": self.config.k[0]} | ({} if self.fine_tuned else {"layer": first.layer})

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves; if `parts` were scored separately, write a list of them instead of units."""
        rows: list[Finding] = []
        if self.parts:
            listed = {"units": [str(part) for part in self.parts]}
            attempt.path(PARTS_FILE).write_text(json.dumps(listed), encoding="utf-8")
            points = pa.concat_tables([part.content["curves"] for part in self.parts])
            for part in self.parts:
                rows += map(Finding.of, part.content["summary"].to_pylist())
        else:
            units = score(_decodings(self), self.class_names, self.config)
            write_table(units, UNITS, attempt.path(UNITS_FILE))
            reference = _stands(self)
            how: Any = {"reference": reference, "beyond": self.beyond is not None, "declared": self.declared_sets}
            rows += rows_of(units, self.config, num_classes=len(self.class_names), **how)
            points = curves(units, alone=reference is not None)
        if self.fine_tuned or self.earlier_probes:
            tables = [units] if not self.parts else [next(part.content.parts("units")) for part in self.parts]
            rows += change_rows(
                pa.concat_tables(tables), self._followed, alone=_stands(self) is not None, seed=self.config.seed
            )
        rows += probe_rows(_joined(self.probes))
        if self.earlier_probes:
            earlier = {epoch: _joined(probes) for epoch, probes in self.earlier_probes.items()}
            rows += rows_through_training(earlier, _joined(self.probes), last=self.searches[0].epoch)
        if self.stability:
            from memlib.audits.deja_vu.stability import stability_rows

            layers = dict.fromkeys(one.layer for one in self.searches)
            beyond = self.beyond is not None
            rows += stability_rows(self.stability, self.splits.content, list(layers), self.config, beyond=beyond)
        if self.beyond is not None:
            from memlib.audits.deja_vu.beyond.findings import beyond_rows

            rows += beyond_rows(self.beyond, self.splits.content, self.config)
        if self.checks is not None:
            rows.append(check_row(self.checks.content))
        if self.judged:
            from memlib.audits.deja_vu.reconstruction.findings import reconstruction_rows

            tables = [one.content for one in self.judged]
            rows += reconstruction_rows(tables, self.splits.content, self.config)
            write_table(pa.concat_tables(tables), RECONSTRUCTIONS, attempt.path(f"{RECONSTRUCTIONS.name}.parquet"))
        write_table(settled(rows, self.config, by_chance=self.by_chance), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(points, CURVES, attempt.path(CURVES_FILE))


def _joined(probes: Sequence[Artifact[pa.Table]]) -> pa.Table:
    return pa.concat_tables([probe.content for probe in probes])


def _scored(stage: Score | ScoreSetting) -> dict[str, Any]:
    described = [[s.pair, s.layer, s.epoch, s.crop] for s in stage.searches]
    return {"config": stage.config.model_dump(mode="json"), "classes": list(stage.class_names), "searches": described}


def _read(stage: Score | ScoreSetting) -> dict[str, Any]:
    return {
        "searches": [
            [found.key for found in s.by_model] + ([s.backgrounds.key] if s.backgrounds else []) for s in stage.searches
        ],
        "public": [s.public.key for s in stage.searches],
        "splits": stage.splits.key,
    }


def _stands(stage: Score | ScoreSetting) -> str | None:
    """Return the kind of the classifiers that replace the second models; None with two models."""
    backgrounds = stage.searches[0].backgrounds
    return None if backgrounds is None else backgrounds.kind


def _decodings(stage: Score | ScoreSetting) -> Iterator[Decoding]:
    for searches in stage.searches:
        public_labels = searches.public.ids["label"].to_numpy().astype(np.int32)  # int32 halves the memory of the votes
        ids = searches.by_model[0].ids
        assert all(ids.equals(other.ids) for other in searches.by_model[1:]), "the two models were shown different crops"
        labels = ids["label"].to_numpy()
        classes = [public_labels[neighbors.rows[:, : max(stage.config.k)]] for neighbors in searches.by_model]
        known = None if searches.backgrounds is None else searches.backgrounds.answers(ids["example_id"])
        for direction in DIRECTIONS:
            audited = select(stage.splits.content, ROLE_OF[direction])
            places = pc.index_in(ids["example_id"], value_set=audited["example_id"].combine_chunks())
            rows = np.flatnonzero(pc.is_valid(places).to_numpy())
            target = classes[0 if direction == "A" or known else 1][rows]
            reference = classes[1 if direction == "A" else 0][rows] if known is None else known.of(rows)
            members = audited.take(places.take(rows))
            yield Decoding(
                direction=direction,
                pair=searches.pair,
                layer=searches.layer,
                epoch=searches.epoch,
                crop=searches.crop,
                example_ids=ids["example_id"].take(rows),
                labels=labels[rows],
                target=target,
                reference=reference,
                groups=members["group"] if "group" in members.column_names else None,  # older splits have no groups
            )


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a déjà vu audit."""

    declared: ClassVar[Declared] = Declared("report", 13)
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
