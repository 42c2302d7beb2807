"""The stages of a déjà vu audit after training: embedding, searching, probing, scoring, the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.curves import curves
from memlib.audits.deja_vu.recipe import Config, Recipe
from memlib.audits.deja_vu.scores import DIRECTIONS, Decoding, Direction, score
from memlib.audits.deja_vu.summary import summarize
from memlib.audits.deja_vu.tables import UNITS
from memlib.data.crops import Box
from memlib.data.splits import REFERENCE, SHARED, TARGET, crop_rectangles, members_digest, select
from memlib.data.stages import Shard
from memlib.provenance import Declared
from memlib.results import CURVES_FILE, FINDINGS, PAGES, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage, Tables
from memlib.specs import CropSpec, ModelSpec
from memlib.stage import AnyArtifact, Artifact, Place, Stage
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, SUMMARY, read_table, write_table
from memlib.training.fit import TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.audits.deja_vu.report import Facts, Shown
    from memlib.report.page import Page

IDS, NEIGHBORS, DISTANCES, PROBE = "ids.parquet", "neighbors.npy", "distances.npy", "probe.parquet"
CROP = ("crop_x0", "crop_y0", "crop_x1", "crop_y1")
ROLE_OF: dict[str, str] = {"A": TARGET, "B": REFERENCE}
_HERE = "memlib.audits.deja_vu"


BLOCK_ROWS = 2**16  # images of a part of an embedding; whole batches, so that parts round as the whole does


@dataclass(frozen=True)
class View:
    """Which images a model is shown, and how: whole, or one background crop each."""

    roles: tuple[str, ...]
    crop: CropSpec | None = None

    def spec(self) -> dict[str, Any]:
        """Return what a key says of it; the examples are named by their digest."""
        return {"crop": None if self.crop is None else self.crop.model_dump(mode="json") | self.crop.rule}


class Embeddings:
    """Embeddings of a view at some layers, or of a part of one, beside the ids of their rows."""

    def __init__(self, artifact: Artifact[Embeddings]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """example_id, row, label and, for crops, crop_x0 ... crop_y1."""
        return read_table(self._artifact.path(IDS))

    def layer(self, name: str) -> NDArray[np.float32]:
        """Return one layer's embeddings (num_examples, dim), memory-mapped."""
        array: NDArray[np.float32] = np.load(self._artifact.path(f"{name}.npy"), mmap_mode="r")
        return array


class EmbeddedView:
    """A view of a model whose embeddings are in parts, each a block of rows.

    Args:
        parts: in order of their rows.
    """

    def __init__(self, parts: Sequence[Artifact[Embeddings]]) -> None:
        self.parts = tuple(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (EmbeddedView, (self.parts,))  # without what was read of them here

    @property
    def key(self) -> Any:
        """What stages that read it name: a key, or a list of them where there are several parts."""
        return joint_key(self.parts)

    @cached_property
    def ids(self) -> pa.Table:
        """The ids of all parts, as in `Embeddings.ids`."""
        return pa.concat_tables([part.content.ids for part in self.parts])

    def layer(self, name: str) -> list[NDArray[np.float32]]:
        """Return one layer's embeddings, an array (num_examples, dim) a part, memory-mapped."""
        return [part.content.layer(name) for part in self.parts]


def joint_key(parts: Sequence[AnyArtifact]) -> Any:
    """Return what a key says of several artifacts that are read as one; of a single one its key, as if it were no part."""
    return parts[0].key if len(parts) == 1 else [part.key for part in parts]


@dataclass(frozen=True)
class Embed(Stage[Embeddings]):
    """Embed a view with a trained model: <layer>.npy for every layer in one pass, and ids.parquet."""

    declared: ClassVar[Declared] = Declared("embed", 2, ("memlib.observe.embeddings", "memlib.models", "memlib.data.crops"))
    title: ClassVar[str] = "embed images"
    place: ClassVar[Place] = "anywhere"

    model: Artifact[TrainedModel]
    epoch: int
    view: View
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    layers: tuple[str, ...]
    rows: tuple[int, int] | None = None

    def in_parts(self) -> list[Embed]:
        """Return the stages that make these embeddings a block of rows each; itself where one block is enough."""
        count = select(self.splits.content, *self.view.roles).num_rows
        if count <= BLOCK_ROWS:
            return [self]
        starts = range(0, count, BLOCK_ROWS)
        parts = [replace(self, rows=(start, min(start + BLOCK_ROWS, count))) for start in starts]
        return [part for part in parts if part.units]  # but for blocks without any crop

    @property
    def spec(self) -> Mapping[str, Any]:
        """Checkpoint, layers and crop."""
        rows = {} if self.rows is None else {"rows": list(self.rows)}
        return {"epoch": self.epoch, "layers": list(self.layers), **self.view.spec(), **rows}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model and the examples."""
        return {"model": self.model.key, "shard": self.shard.key, "examples": self._shown.digest}

    @property
    def units(self) -> float:
        """Examples."""
        return float(self._shown.members.num_rows)

    @property
    def near(self) -> Ref | None:
        """The model."""
        return self.model.ref

    @property
    def _shown(self) -> ShownRows:
        return shown_rows(self.splits, self.shard, self.view, self.rows)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write ids and embeddings."""
        from memlib.models.encoder import Encoder
        from memlib.observe.embeddings import embed

        members, crops = self._shown.members, self._shown.crops
        ids, boxes = members.select(["example_id", "row", "label"]), None
        if crops is not None:
            cut = [crops[name] for name in members["example_id"].to_pylist()]
            boxes = np.array(cut, dtype=np.int64).reshape(-1, 4)
            for side, name in enumerate(CROP):
                ids = ids.append_column(name, pa.array(boxes[:, side], type=pa.int32()))
        pq.write_table(ids, attempt.path(IDS), compression="zstd")
        encoder, spec = self.model.content.load(epoch=self.epoch)
        assert isinstance(encoder, Encoder)
        assert isinstance(spec, ModelSpec)
        embed(
            encoder,
            self.shard.content.images,
            ids["row"].to_numpy(),
            input_size=spec.input_size,
            folder=attempt.folder,
            layers=self.layers,
            rectangles=boxes,
            device=device,
            progress=attempt.progress,
        )

    @classmethod
    def open(cls, artifact: Artifact[Embeddings]) -> Embeddings:
        """Return ids and embeddings."""
        return Embeddings(artifact)


@dataclass(frozen=True)
class ShownRows:
    """What a view shows.

    Attributes:
        members: rows of the splits.
        crops: their background crops by example id; None where whole images are shown.
        digest: of the members.
    """

    members: pa.Table
    crops: Mapping[str, Box] | None
    digest: str


@lru_cache(maxsize=256)  # models, and cells of a sweep, are shown the same views
def shown_rows(
    splits: Artifact[pa.Table], shard: Artifact[Shard], view: View, rows: tuple[int, int] | None = None
) -> ShownRows:
    """Return the rows of the splits that a view shows, or a block of them; of crops those images that have one."""
    members, crops = select(splits.content, *view.roles), None
    if rows is not None:
        members = members.slice(rows[0], rows[1] - rows[0])
    if view.crop is not None:
        crops = crop_rectangles(shard.content.index, members["example_id"].to_pylist(), view.crop)
        has_crop = pa.array([name in crops for name in members["example_id"].to_pylist()], type=pa.bool_())
        members = members.filter(has_crop)
    return ShownRows(members, crops, members_digest(members))


class Neighbors:
    """The public images that are nearest to each query."""

    def __init__(self, artifact: Artifact[Neighbors]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """The ids of the queries, as in `Embeddings.ids`."""
        return read_table(self._artifact.path(IDS))

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the public ids (num_queries, k), the nearest first."""
        array: NDArray[np.int64] = np.load(self._artifact.path(NEIGHBORS))
        return array


@dataclass(frozen=True)
class Search(Stage[Neighbors]):
    """Find the k nearest public images of each query of a part, at one layer; neighbours for fewer are its first columns.

    Files: ids.parquet (of the queries), neighbors.npy (num_queries, k) int64 rows of the public ids,
    distances.npy (num_queries, k) float32 squared L2.
    """

    declared: ClassVar[Declared] = Declared("search", 1, ("memlib.observe.search", "memlib.stats.neighbors"))
    title: ClassVar[str] = "search neighbours"
    place: ClassVar[Place] = "anywhere"

    queries: Artifact[Embeddings]
    public: EmbeddedView
    layer: str
    k: int
    storage: Literal["float32", "float16"] = "float32"  # changes nothing but speed and memory

    @property
    def spec(self) -> Mapping[str, Any]:
        """Layer and k."""
        return {"layer": self.layer, "k": self.k}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Both sides."""
        return {"queries": self.queries.key, "public": self.public.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write neighbours and distances."""
        from memlib.observe.search import search

        queries, public = self.queries.content.layer(self.layer), self.public.layer(self.layer)
        found = search(queries, public, self.k, device=device, storage=self.storage, progress=attempt.progress)
        np.save(attempt.path(NEIGHBORS), found[0])
        np.save(attempt.path(DISTANCES), found[1])
        pq.write_table(self.queries.content.ids, attempt.path(IDS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[Neighbors]) -> Neighbors:
        """Return ids and neighbours."""
        return Neighbors(artifact)


@dataclass(frozen=True)
class Probe(Stage[pa.Table]):
    """Fit a linear probe on a model's own training images and test it on the other model's: probe.parquet."""

    declared: ClassVar[Declared] = Declared("probe", 1, ("memlib.stats.probe", f"{_HERE}.stages"))
    title: ClassVar[str] = "linear probe"
    place: ClassVar[Place] = "anywhere"

    images: EmbeddedView
    splits: Artifact[pa.Table]
    direction: Direction
    pair: int
    layers: tuple[str, ...]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Which model, and its layers."""
        return {"direction": self.direction, "pair": self.pair, "layers": list(self.layers)}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Embeddings and splits."""
        return {"images": self.images.key, "splits": self.splits.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write accuracies by layer."""
        from memlib.stats.probe import probe_accuracies

        splits, ids = self.splits.content, self.images.ids
        own = set(select(splits, ROLE_OF[self.direction], SHARED)["example_id"].to_pylist())
        other = set(select(splits, ROLE_OF["B" if self.direction == "A" else "A"])["example_id"].to_pylist())
        names, labels = ids["example_id"].to_pylist(), ids["label"].to_numpy()
        train = np.array([name in own for name in names])
        test = np.array([name in other for name in names])
        rows = []
        for layer in self.layers:
            arrays = self.images.layer(layer)
            inner, outer = _rows_of(arrays, train), _rows_of(arrays, test)
            num_classes = int(labels.max()) + 1
            accuracies = probe_accuracies(inner, labels[train], outer, labels[test], num_classes=num_classes, device=device)
            row = {"layer": layer, "direction": self.direction, "pair": self.pair, "n": int(test.sum())}
            rows.append({**row, "train_accuracy": accuracies[0], "test_accuracy": accuracies[1]})
        pq.write_table(pa.Table.from_pylist(rows), attempt.path(PROBE))

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return layer, direction, pair, n, train_accuracy, test_accuracy."""
        return read_table(artifact.path(PROBE))


def _rows_of(arrays: Sequence[NDArray[np.float32]], wanted: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the wanted rows of arrays that are one below the other, (num_wanted, dim)."""
    found = np.empty((int(wanted.sum()), arrays[0].shape[1]), dtype=np.float32)
    start = put = 0
    for array in arrays:
        chosen = wanted[start : start + len(array)]
        found[put : put + int(chosen.sum())] = array[chosen]
        start, put = start + len(array), put + int(chosen.sum())
    return found


class Found:
    """The neighbours of all queries under one model, in parts.

    Args:
        parts: in order of the queries' rows.
    """

    def __init__(self, parts: Sequence[Artifact[Neighbors]]) -> None:
        self.parts = tuple(parts)

    @property
    def key(self) -> Any:
        """What stages that read it name."""
        return joint_key(self.parts)

    @property
    def ids(self) -> pa.Table:
        """The ids of the queries, as in `Embeddings.ids`; read anew, a setting at a time."""
        return pa.concat_tables([part.open().ids for part in self.parts])

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the public ids (num_queries, k), the nearest first."""
        return np.concatenate([part.open().rows for part in self.parts])


@dataclass(frozen=True)
class Searches:
    """What was found for one setting of one pair: the searches under A's and B's model, and the public embeddings."""

    pair: int
    layer: str
    epoch: int
    crop: str
    by_model: tuple[Found, Found]  # under the model trained on A, on B
    public: EmbeddedView


@dataclass(frozen=True)
class Score(ScoresStage):
    """Take votes, categories, curves and findings from the neighbours."""

    declared: ClassVar[Declared] = Declared(
        "score",
        4,
        (
            *(f"{_HERE}.{room}" for room in ("analysis", "curves", "recipe", "scores", "stages", "summary", "verdict")),
            *FINDINGS,
        ),
    )
    title: ClassVar[str] = "score déjà vu"

    searches: Sequence[Searches]
    probes: Sequence[Artifact[pa.Table]]
    splits: Artifact[pa.Table]
    class_names: Sequence[str]
    config: Config

    @property
    def spec(self) -> Mapping[str, Any]:
        """How to decode, and what the settings are."""
        described = [[s.pair, s.layer, s.epoch, s.crop] for s in self.searches]
        return {"config": self.config.model_dump(mode="json"), "classes": list(self.class_names), "searches": described}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Searches, probes and splits."""
        return {
            "searches": [[found.key for found in s.by_model] for s in self.searches],
            "public": [s.public.key for s in self.searches],
            "probes": [probe.key for probe in self.probes],
            "splits": self.splits.key,
        }

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves."""
        units = score(self._decodings(), self.class_names, self.config)
        probed = pa.concat_tables([probe.content for probe in self.probes])
        summary = summarize(units, self.config, num_classes=len(self.class_names), probes=probed)
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(units), CURVES, attempt.path(CURVES_FILE))

    def _decodings(self) -> Iterator[Decoding]:
        for found in self.searches:
            public_labels = found.public.ids["label"].to_numpy()
            ids = found.by_model[0].ids
            assert ids.equals(found.by_model[1].ids), "the two models were shown different crops"
            labels = ids["label"].to_numpy()
            classes = [public_labels[neighbors.rows] for neighbors in found.by_model]
            for direction in DIRECTIONS:
                audited = select(self.splits.content, ROLE_OF[direction])
                places = pc.index_in(ids["example_id"], value_set=audited["example_id"].combine_chunks())
                rows = np.flatnonzero(pc.is_valid(places).to_numpy())
                names = ids["example_id"].take(rows).to_pylist()
                target, reference = classes if direction == "A" else classes[::-1]
                yield Decoding(
                    direction=direction,
                    pair=found.pair,
                    layer=found.layer,
                    epoch=found.epoch,
                    crop=found.crop,
                    example_ids=names,
                    labels=labels[rows],
                    target=target[rows],
                    reference=reference[rows],
                    groups=_groups(audited.take(places.take(rows))),
                )


def _groups(splits: pa.Table) -> list[str | None]:
    """Return names of groups; artifacts of before groups have none."""
    return splits["group"].to_pylist() if "group" in splits.column_names else [None] * splits.num_rows


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a déjà vu audit."""

    declared: ClassVar[Declared] = Declared("report", 3, (*PAGES, f"{_HERE}.report", f"{_HERE}.stages"))
    title: ClassVar[str] = "report déjà vu"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    searches: Sequence[Searches]
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    models: Mapping[str, Artifact[TrainedModel]]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores, and images for the galleries."""
        return {"scores": self.scores.key, "shard": self.shard.key, "splits": self.splits.key}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images and splits."""
        return (self.shard, self.splits)

    def page(self, attempt: Attempt) -> Page:
        """Draw the figures and compose the page."""
        from memlib.audits.deja_vu.report import build_page

        tables = self.scores.content
        return build_page(
            self.recipe, self.run, tables["units"], tables["summary"], tables["curves"], self._facts(),
            _Pictures(self).show, attempt.path("figures"),
        )  # fmt: skip

    def _facts(self) -> Facts:
        from memlib.audits.deja_vu.report import Facts

        splits = self.splits.content
        reasons = [reason.split(" of ")[0].split(":")[0] for reason in splits["reason"].to_pylist() if reason]
        return Facts(
            counts=Counter(splits["role"].to_pylist()),
            left_out=Counter(reasons),
            seconds={name: model.facts["training_seconds"] for name, model in self.models.items()},
        )


class _Pictures:
    """Finds the pictures for the galleries."""

    def __init__(self, stage: Report) -> None:
        self._searches = {(s.pair, s.layer, s.epoch, s.crop): s for s in stage.searches}
        self._most, self._images, splits = stage.recipe.report.neighbors, stage.shard.content.images, stage.splits.content
        self._class_names = dict(zip(splits["label"].to_pylist(), splits["class_name"].to_pylist(), strict=True))
        self._rows_of, self._nearest_of = lru_cache(self._read_rows), lru_cache(lambda found: found.rows[:, : self._most])

    def _read_rows(self, content: EmbeddedView | Found) -> dict[str, dict[str, Any]]:
        return {row["example_id"]: {**row, "position": i} for i, row in enumerate(content.ids.to_pylist())}

    def show(self, unit: Mapping[str, Any]) -> Shown:
        """Return the pictures of one row of the units."""
        from memlib.audits.deja_vu.report import Shown

        found = self._searches[unit["pair"], unit["layer"], unit["epoch"], unit["crop"]]
        target, reference = found.by_model if unit["direction"] == "A" else found.by_model[::-1]
        entry = self._rows_of(target)[unit["example_id"]]
        x0, y0, x1, y1 = (entry[side] for side in CROP)
        public = list(self._rows_of(found.public).values())

        def nearest(side: Found) -> list[tuple[Any, str]]:
            position = self._rows_of(side)[unit["example_id"]]["position"]
            chosen = [public[row] for row in self._nearest_of(side)[position]]
            return [(self._images[c["row"]], self._class_names[c["label"]]) for c in chosen]

        return Shown(self._images[entry["row"]], (x0, y0, x1, y1), nearest(target), nearest(reference))
