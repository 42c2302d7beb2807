"""The stages of a déjà vu audit after training: embedding, search, probing, scoring and the report page."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.curves import curves
from memlib.audits.deja_vu.gains import change_rows
from memlib.audits.deja_vu.recipe import DIRECTIONS, Config, Direction, Recipe
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.audits.deja_vu.summary import probe_rows, rows_of, settled
from memlib.audits.deja_vu.tables import UNITS
from memlib.data.crops import periphery_crops
from memlib.data.splits import PUBLIC, REFERENCE, SHARED, TARGET, members_digest, named_classes, select
from memlib.data.stages import Shard, members_of
from memlib.findings import Row
from memlib.observe.encoders import OutsideEncoder, given_layers, name_of
from memlib.provenance import Declared
from memlib.results import (
    CURVES_FILE,
    PARTS_FILE,
    SUMMARY_FILE,
    UNITS_FILE,
    PageStage,
    ScoresStage,
    Tables,
)
from memlib.specs import CropSpec, ModelSpec, Precision
from memlib.specs.encoders import GivenEmbeddings
from memlib.stage import AnyArtifact, Artifact, Place, Stage, remembered
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, SUMMARY, read_table, write_table
from memlib.training.fit import TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.audits.deja_vu.backgrounds import Backgrounds
    from memlib.audits.deja_vu.report import Facts, Shown
    from memlib.audits.deja_vu.stability import Compared
    from memlib.models.encoder import Encoder
    from memlib.models.own_encoders import OwnEncoder
    from memlib.report.page import Page

IDS, NEIGHBORS, DISTANCES, PROBE = "ids.parquet", "neighbors.npy", "distances.npy", "probe.parquet"
CROP = ("crop_x0", "crop_y0", "crop_x1", "crop_y1")
ROLE_OF: dict[str, str] = {"A": TARGET, "B": REFERENCE}
SET_OF = {TARGET: "A", REFERENCE: "B", SHARED: "C", PUBLIC: "X"}  # the paper's names of the sets


BLOCK_ROWS = 2**16  # maximum number of images per part of an embedding
BATCH_ROWS = 256  # parts consist of whole batches, so that rounding does not depend on the partition


@dataclass(frozen=True)
class View:
    """A selection of images to show to a model, either whole or as one background crop each."""

    roles: tuple[str, ...]
    crop: CropSpec | None = None

    def spec(self) -> dict[str, Any]:
        """Return the view's contribution to a content key; the examples enter separately, by their digest."""
        return {"crop": None if self.crop is None else self.crop.model_dump(mode="json") | self.crop.rule}


PUBLIC_VIEW, PROBED_VIEW = View((PUBLIC,)), View((TARGET, REFERENCE, SHARED))


class Embeddings:
    """Embeddings of a view, or of a part of a view, at some layers, with the ids of their rows."""

    def __init__(self, artifact: Artifact[Embeddings]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """Table with example_id, row, label and, for crops, crop_x0 ... crop_y1."""
        return read_table(self._artifact.path(IDS))

    def layer(self, name: str) -> NDArray[np.floating]:
        """Return one layer's embeddings (num_examples, dim), memory-mapped."""
        array: NDArray[np.floating] = np.load(self._artifact.path(f"{name}.npy"), mmap_mode="r")
        return array


class EmbeddedView:
    """The embeddings of a view under one model, in parts, each a block of rows.

    Args:
        parts: artifacts of the parts, in row order.
    """

    def __init__(self, parts: Sequence[Artifact[Embeddings]]) -> None:
        self.parts = tuple(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (EmbeddedView, (self.parts,))  # without the cached ids

    @property
    def key(self) -> Any:
        """Key by which downstream stages refer to the embeddings; a list of keys if there are several parts."""
        return joint_key(self.parts)

    @cached_property
    def ids(self) -> pa.Table:
        """The ids of all parts, as in `Embeddings.ids`."""
        return pa.concat_tables([part.content.ids for part in self.parts])

    def layer(self, name: str) -> list[NDArray[np.floating]]:
        """Return one layer's embeddings as memory-mapped arrays (num_examples, dim), one per part."""
        return [part.content.layer(name) for part in self.parts]


def joint_key(parts: Sequence[AnyArtifact]) -> Any:
    """Return the keys of artifacts that are read as one; for a single artifact, return its key instead of a list."""
    return parts[0].key if len(parts) == 1 else [part.key for part in parts]


@dataclass(frozen=True)
class Embed(Stage[Embeddings]):
    """Embed a view with a model: <layer>.npy for every layer in one pass, and ids.parquet."""

    declared: ClassVar[Declared] = Declared("embed", 2)
    title: ClassVar[str] = "embed images"
    place: ClassVar[Place] = "anywhere"
    passing: ClassVar[str] = "*.npy"  # ids are kept: scores and pages read them

    model: Artifact[TrainedModel] | OutsideEncoder
    epoch: int
    view: View
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    layers: tuple[str, ...]
    rows: tuple[int, int] | None = None
    dtype: Literal["float32", "float16"] = "float32"
    precision: Precision = "float32"

    def in_parts(self, layers: Collection[str]) -> list[Embed]:
        """Return stages that each compute a block of rows of these embeddings; just this stage if one block is enough.

        Args:
            layers: the layers that will be read. For a large view, only these are stored.
        """
        count = members_of(self.splits, *self.view.roles).num_rows
        if count <= BLOCK_ROWS:
            return [self]
        kept, unit = tuple(layer for layer in self.layers if layer in layers), min(BATCH_ROWS, BLOCK_ROWS)
        size = unit * math.ceil(count / math.ceil(count / BLOCK_ROWS) / unit)  # blocks of about equal size
        parts = [replace(self, rows=(start, min(start + size, count)), layers=kept) for start in range(0, count, size)]
        return [part for part in parts if part.units]  # without blocks in which no image has a crop

    @property
    def spec(self) -> Mapping[str, Any]:
        """Checkpoint, layers and crop."""
        rows = {} if self.rows is None else {"rows": list(self.rows)}
        stored = {} if self.dtype == "float32" else {"dtype": self.dtype}
        precise = {} if self.precision == "float32" else {"precision": self.precision}
        return {"epoch": self.epoch, "layers": list(self.layers), **self.view.spec(), **rows, **stored, **precise}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model and the examples."""
        return {"model": model_key(self.model), "shard": self.shard.key, "examples": self._shown.digest}

    @property
    def units(self) -> float:
        """Number of examples."""
        return float(self._shown.members.num_rows)

    @property
    def label(self) -> str:
        """Checkpoint, roles and crop."""
        return f"epoch {self.epoch}, {' and '.join(self.view.roles)}, {self.view.crop.mode if self.view.crop else 'whole'}"

    @property
    def near(self) -> Ref | None:
        """The model."""
        return None if isinstance(self.model, OutsideEncoder) else self.model.ref

    @property
    def _shown(self) -> ShownRows:
        return shown_rows(self.splits, self.shard, self.view, self.rows)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write ids and embeddings."""
        members, boxes = self._shown.members, self._shown.crops
        ids = members.select(["example_id", "row", "label"])
        if boxes is not None:
            for side, name in enumerate(CROP):
                ids = ids.append_column(name, pa.array(boxes[:, side], type=pa.int32()))
        pq.write_table(ids, attempt.path(IDS), compression="zstd")
        if isinstance(self.model, OutsideEncoder) and isinstance(self.model.spec, GivenEmbeddings):
            mode = None if self.view.crop is None else self.view.crop.mode
            names = [name_of(row, mode) for row in ids["row"].to_pylist()]
            for layer, vectors in given_layers(self.model.spec, names, self.layers, dtype=self.dtype).items():
                np.save(attempt.path(f"{layer}.npy"), vectors)
            return
        from memlib.observe.embeddings import embed

        encoder, side = encoder_of(self.model, self.epoch)
        embed(
            encoder,
            self.shard.content.images,
            ids["row"].to_numpy(),
            input_size=side,
            folder=attempt.folder,
            layers=self.layers,
            rectangles=boxes,
            batch_size=BATCH_ROWS,
            dtype=np.dtype(self.dtype),
            precision=self.precision,
            device=device,
            progress=attempt.progress,
        )

    @classmethod
    def open(cls, artifact: Artifact[Embeddings]) -> Embeddings:
        """Return ids and embeddings."""
        return Embeddings(artifact)


def model_key(model: Artifact[TrainedModel] | OutsideEncoder) -> str:
    """Return the key of a trained model, or the digest of an external encoder."""
    return model.digest if isinstance(model, OutsideEncoder) else model.key


def encoder_of(model: Artifact[TrainedModel] | OutsideEncoder, epoch: int) -> tuple[Encoder | OwnEncoder, int]:
    """Return a model's checkpoint at an epoch, and the side of its input images in pixels."""
    from memlib.models.encoder import Encoder
    from memlib.models.own_encoders import load_own_encoder

    if isinstance(model, OutsideEncoder):
        assert not isinstance(model.spec, GivenEmbeddings)
        own = load_own_encoder(model.spec)
        return own, own.side
    encoder, spec = model.content.load(epoch=epoch)
    assert isinstance(encoder, Encoder)
    assert isinstance(spec, ModelSpec)
    return encoder, spec.input_size


@dataclass(frozen=True)
class ShownRows:
    """The images of a view.

    Attributes:
        members: rows of the splits.
        crops: their background crops (num_members, 4) x0, y0, x1, y1 in stored pixels; None for whole images.
        digest: digest of the members.
    """

    members: pa.Table
    crops: NDArray[np.int64] | None
    digest: str


@remembered  # the views are the same for all models
def shown_rows(
    splits: Artifact[pa.Table], shard: Artifact[Shard], view: View, rows: tuple[int, int] | None = None
) -> ShownRows:
    """Return the rows of the splits that a view shows, or a block of them; for a crop, only images that have such a crop."""
    members, crops = members_of(splits, *view.roles), None
    if rows is not None:
        members = members.slice(rows[0], rows[1] - rows[0])
    if view.crop is not None:
        places = shard.content.places[members["row"].to_numpy()]
        crops = periphery_crops(shard.content.geometry.take(pa.array(places)), view.crop)
        has_crop = crops[:, 0] >= 0
        members, crops = members.filter(pa.array(has_crop)), crops[has_crop]
    return ShownRows(members, crops, members_digest(members))


def views_of(recipe: Recipe) -> list[View]:
    """Return all views that the audit shows to models: background crops of the audited images, and whole images."""
    return [*(View((TARGET, REFERENCE), crop) for crop in recipe.crops), PUBLIC_VIEW, PROBED_VIEW]


def pictures_of(splits: Artifact[pa.Table], shard: Artifact[Shard], view: View) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the images of a view in row order: id (see `name_of`) and pixels (height, width, channels)."""
    shown, images = shown_rows(splits, shard, view), shard.content.images
    mode = None if view.crop is None else view.crop.mode
    rows = shown.members["row"].to_numpy()
    for start in range(0, len(rows), BATCH_ROWS):
        part = rows[start : start + BATCH_ROWS]
        boxes = None if shown.crops is None else shown.crops[start : start + BATCH_ROWS]
        for place, image in enumerate(images[part]):
            x0, y0, x1, y1 = (0, 0, image.shape[1], image.shape[0]) if boxes is None else boxes[place]
            yield name_of(int(part[place]), mode), image[y0:y1, x0:x1]


class Neighbors:
    """The nearest public images of each query."""

    def __init__(self, artifact: Artifact[Neighbors]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """The ids of the queries, as in `Embeddings.ids`."""
        return read_table(self._artifact.path(IDS))

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the public ids (num_queries, k), nearest first."""
        array: NDArray[np.int64] = np.load(self._artifact.path(NEIGHBORS))
        return array


@dataclass(frozen=True)
class Search(Stage[Neighbors]):
    """Find the k nearest public images of each query in a part, at one layer; for a smaller k, use the first columns.

    Files: ids.parquet (of the queries), neighbors.npy (num_queries, k) int64 rows of the public ids,
    distances.npy (num_queries, k) float32 squared L2.
    """

    declared: ClassVar[Declared] = Declared("search", 1)
    title: ClassVar[str] = "search neighbours"
    place: ClassVar[Place] = "anywhere"

    queries: Artifact[Embeddings]
    public: EmbeddedView
    layer: str
    k: int
    storage: Literal["float32", "float16"] = "float32"  # affects only speed and memory

    @property
    def spec(self) -> Mapping[str, Any]:
        """Layer and k."""
        return {"layer": self.layer, "k": self.k}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Embeddings of the queries and of the public images."""
        return {"queries": self.queries.key, "public": self.public.key}

    @property
    def label(self) -> str:
        """The layer."""
        return self.layer

    @property
    def reads_passing(self) -> Sequence[AnyArtifact]:
        """The embeddings of the queries and of the public images."""
        return (self.queries, *self.public.parts)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write neighbours and distances."""
        from memlib.observe.search import search

        queries, public = self.queries.content.layer(self.layer), self.public.layer(self.layer)
        nearest = search(queries, public, self.k, device=device, storage=self.storage, progress=attempt.progress)
        np.save(attempt.path(NEIGHBORS), nearest[0])
        np.save(attempt.path(DISTANCES), nearest[1])
        pq.write_table(self.queries.content.ids, attempt.path(IDS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[Neighbors]) -> Neighbors:
        """Return ids and neighbours."""
        return Neighbors(artifact)


VOTERS, MOST_RECOGNISED = 20, 10_000  # neighbours that vote on an image; whole images per model, at most
PROBES = pa.schema(
    [(name, pa.string()) for name in ("layer", "direction")]
    + [("pair", pa.int64()), ("n", pa.int64())]
    + [("train_accuracy", pa.float64()), ("test_accuracy", pa.float64())]
    + [("knn_accuracy", pa.float64()), ("knn_n", pa.int64())]  # null if no neighbours voted
)


@dataclass(frozen=True)
class Probe(Stage[pa.Table]):
    """Probe what a model knows about whole images: probe.parquet.

    A linear probe is fitted to the model's own training images and tested on those of the other model. The `VOTERS` nearest
    public images also vote on the classes of at most `MOST_RECOGNISED` of these test images.

    Attributes:
        images: the model's embeddings of the whole images of A, B and C.
        public: the model's embeddings of the public images.
        searched: the layers at which neighbours vote.
    """

    declared: ClassVar[Declared] = Declared("probe", 3)
    title: ClassVar[str] = "probe whole images"
    place: ClassVar[Place] = "anywhere"

    images: EmbeddedView
    public: EmbeddedView
    splits: Artifact[pa.Table]
    direction: Direction
    pair: int
    layers: tuple[str, ...]
    searched: tuple[str, ...]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Direction, pair and layers."""
        layers = {"layers": list(self.layers), "searched": list(self.searched)}
        return {"direction": self.direction, "pair": self.pair, **layers}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Embeddings and splits."""
        return {"images": self.images.key, "public": self.public.key, "splits": self.splits.key}

    @property
    def reads_passing(self) -> Sequence[AnyArtifact]:
        """The embeddings."""
        return (*self.images.parts, *self.public.parts)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the accuracies at each layer."""
        from memlib.observe.search import search
        from memlib.stats.neighbors import vote
        from memlib.stats.probe import Rows, probe_accuracies

        splits, ids = self.splits.content, self.images.ids
        labels = ids["label"].to_numpy()
        own, other = (ROLE_OF[self.direction], SHARED), (ROLE_OF["B" if self.direction == "A" else "A"],)
        train, test = (_is_of(ids, select(splits, *roles)) for roles in (own, other))
        shown, voters = _some_of(test, MOST_RECOGNISED), self.public.ids["label"].to_numpy()
        rows = []
        for layer in self.layers:
            arrays = self.images.layer(layer)
            own_rows, others = Rows(arrays, labels, train), Rows(arrays, labels, test)
            accuracies = probe_accuracies(own_rows, others, num_classes=int(labels.max()) + 1, device=device)
            row = {"layer": layer, "direction": self.direction, "pair": self.pair, "n": int(test.sum())}
            row |= {"train_accuracy": accuracies[0], "test_accuracy": accuracies[1]}
            if layer in self.searched:
                queries, true = Rows(arrays, labels, shown).whole()
                nearest, _ = search(queries.numpy(), self.public.layer(layer), min(VOTERS, len(voters)), device=device)
                named, _ = vote(voters[nearest])
                row |= {"knn_accuracy": float((named == true.numpy()).mean()), "knn_n": len(true)}
            rows.append(row)
        pq.write_table(pa.Table.from_pylist(rows, schema=PROBES), attempt.path(PROBE))

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return a table with the schema PROBES."""
        return read_table(artifact.path(PROBE))


def _some_of(which: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return a mask of at most `most` of the true rows, evenly spaced; the order of ids carries no information."""
    chosen = np.flatnonzero(which)
    mask = np.zeros_like(which)
    mask[chosen[np.linspace(0, len(chosen) - 1, min(most, len(chosen))).round().astype(np.int64)]] = True
    return mask


def _is_of(ids: pa.Table, members: pa.Table) -> NDArray[np.bool_]:
    """Return a mask of the rows whose example is among the members, (num_rows,)."""
    mask: NDArray[np.bool_] = pc.is_in(ids["example_id"], value_set=members["example_id"].combine_chunks()).to_numpy()
    return mask


class Found:
    """The neighbours of all queries under one model, in parts.

    Args:
        parts: artifacts of the parts, in order of the queries' rows.
    """

    def __init__(self, parts: Sequence[Artifact[Neighbors]]) -> None:
        self.parts = tuple(parts)

    @property
    def key(self) -> Any:
        """Key by which downstream stages refer to the neighbours; a list of keys if there are several parts."""
        return joint_key(self.parts)

    @property
    def ids(self) -> pa.Table:
        """The ids of the queries, as in `Embeddings.ids`; not cached, so that memory holds only one setting at a time."""
        return pa.concat_tables([part.open().ids for part in self.parts])

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the public ids (num_queries, k), nearest first."""
        return np.concatenate([part.open().rows for part in self.parts])


@dataclass(frozen=True)
class Searches:
    """The neighbours at one setting for one pair of models, or for a single model.

    Attributes:
        pair, layer, epoch, crop: the setting.
        by_model: the neighbours under the model trained on A and, if there is one, under the model trained on B.
        public: embeddings of the public images, for their ids.
        backgrounds: answers of the classifiers that replace the second model; None with two models.
    """

    pair: int
    layer: str
    epoch: int
    crop: str
    by_model: tuple[Found, ...]
    public: EmbeddedView
    backgrounds: Backgrounds | None = None


MOST_UNITS = 2**20  # rows of units up to which all settings are scored by one stage


@dataclass(frozen=True)
class ScoreSetting(ScoresStage):
    """Score one layer, epoch, crop and k of a large audit: units, curves, and findings that are not settled yet.

    Attributes:
        searches: neighbours of all pairs.
        config: the configuration with this k only.
        headline: whether this is the run's first setting.
    """

    declared: ClassVar[Declared] = Declared("score_setting", 3)
    title: ClassVar[str] = "score a setting of déjà vu"
    place: ClassVar[Place] = "cores"

    searches: Sequence[Searches]
    splits: Artifact[pa.Table]
    class_names: Sequence[str]
    config: Config
    headline: bool

    @property
    def spec(self) -> Mapping[str, Any]:
        """Decoding, and the setting."""
        return _scored(self) | {"headline": self.headline}

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
        rows = rows_of(units, self.config, num_classes=classes, headline=self.headline, reference=reference)
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        write_table(pa.Table.from_pylist(rows, schema=SUMMARY.arrow), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(units, alone=reference is not None), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compute votes, categories, curves and findings from the neighbours.

    Attributes:
        by_chance: whether images were assigned to A and B at random.
        checks: comparison of given sets that were declared to be drawn at random, for one model alone; see `sets`.
        fine_tuned: whether to report changes since the first epoch.
        parts: scores of the settings of a large audit, computed in parallel; not part of the key, as results are the same.
    """

    declared: ClassVar[Declared] = Declared("score", 11)
    title: ClassVar[str] = "score déjà vu"
    place: ClassVar[Place] = "cores"

    searches: Sequence[Searches]
    probes: Sequence[Artifact[pa.Table]]
    splits: Artifact[pa.Table]
    class_names: Sequence[str]
    config: Config
    stability: Sequence[Compared] = ()
    fine_tuned: bool = False
    by_chance: bool = True
    checks: Artifact[pa.Table] | None = None
    parts: tuple[Artifact[Tables], ...] = ()

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
                searches, self.splits, self.class_names, self.config.model_copy(update={"k": (k,)}), number == place == 0
            )
            for number, searches in enumerate(settings.values())
            for place, k in enumerate(self.config.k)
        ]

    def _of(self, k: int) -> Config:
        return self.config.model_copy(update={"k": (k,)})

    @property
    def spec(self) -> Mapping[str, Any]:
        """Decoding, and the settings."""
        flags = ({"fine_tuned": True} if self.fine_tuned else {}) | ({} if self.by_chance else {"by_chance": False})
        return _scored(self) | flags

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Searches, probes, splits and distances between views."""
        stability = {"stability": [one.key for one in self.stability]} if self.stability else {}
        checks = {} if self.checks is None else {"checks": self.checks.key}
        return _read(self) | {"probes": [probe.key for probe in self.probes]} | stability | checks

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves; if `parts` were scored separately, write a list of them instead of units."""
        rows: list[Row] = []
        if self.parts:
            listed = {"units": [str(part) for part in self.parts]}
            attempt.path(PARTS_FILE).write_text(json.dumps(listed), encoding="utf-8")
            points = pa.concat_tables([part.content["curves"] for part in self.parts])
            for part in self.parts:
                rows += part.content["summary"].to_pylist()
        else:
            units = score(_decodings(self), self.class_names, self.config)
            write_table(units, UNITS, attempt.path(UNITS_FILE))
            reference = _stands(self)
            rows += rows_of(units, self.config, num_classes=len(self.class_names), reference=reference)
            points = curves(units, alone=reference is not None)
        if self.fine_tuned:
            tables = [units] if not self.parts else [next(part.content.parts("units")) for part in self.parts]
            headline = {"crop": self.searches[0].crop, "k": self.config.k[0]}
            alone = _stands(self) is not None
            rows += change_rows(pa.concat_tables(tables), headline, alone=alone, seed=self.config.seed)
        rows += probe_rows(pa.concat_tables([probe.content for probe in self.probes]))
        if self.stability:
            from memlib.audits.deja_vu.stability import stability_rows

            layers = dict.fromkeys(one.layer for one in self.searches)
            rows += stability_rows(self.stability, self.splits.content, list(layers), self.config)
        if self.checks is not None:
            from memlib.audits.deja_vu.sets import check_rows

            rows += check_rows(self.checks.content)
        write_table(settled(rows, self.config, by_chance=self.by_chance), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(points, CURVES, attempt.path(CURVES_FILE))


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

    declared: ClassVar[Declared] = Declared("report", 7)
    title: ClassVar[str] = "report déjà vu"
    place: ClassVar[Place] = "cores"

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
            self.recipe, self.run, next(tables.parts("units")), tables["summary"], tables["curves"], self._facts(),
            _Pictures(self).show, attempt.path("figures"),
        )  # fmt: skip

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
