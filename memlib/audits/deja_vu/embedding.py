"""The stage that embeds images and background crops, and the views that it shows to a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Recipe
from memlib.data.images.crops import periphery_crops
from memlib.data.splits import PUBLIC, REFERENCE, SHARED, TARGET, members_digest
from memlib.data.stages import Shard, members_of
from memlib.observe.encoders import ExternalEncoder, encoder_key, given_layers, name_of
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place, Stage, remembered
from memlib.specs import CropSpec, ModelSpec, Precision
from memlib.specs.encoders import SuppliedEmbeddings
from memlib.store import Attempt, Ref
from memlib.tables import read_table
from memlib.training.fit import TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.models.encoder import Encoder
    from memlib.models.external.network import ExternalNetwork


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


def taken(parts: Sequence[NDArray[np.floating]], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return some rows of arrays that follow one another, such as a layer's parts of a view: (num_rows, dim).

    Args:
        parts: (num_rows_of_part, dim) each.
        rows: (num_rows,) numbers of rows, counted over all parts.
    """
    starts = np.cumsum([0, *(len(part) for part in parts)])
    part_of = np.searchsorted(starts, rows, side="right") - 1
    found = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
    for number in np.unique(part_of):
        here = part_of == number
        found[here] = parts[number][rows[here] - starts[number]]
    return found


def joint_key(parts: Sequence[AnyArtifact]) -> Any:
    """Return the keys of artifacts that are read as one; for a single artifact, return its key instead of a list."""
    return parts[0].key if len(parts) == 1 else [part.key for part in parts]


@dataclass(frozen=True)
class Embed(Stage[Embeddings]):
    """Embed a view with a model: <layer>.npy for every layer in one pass, and ids.parquet."""

    declared: ClassVar[Declared] = Declared("embed", 2)
    title: ClassVar[str] = "embed images"
    place: ClassVar[Place] = "anywhere"
    transient: ClassVar[str] = "*.npy"  # ids are kept: scores and pages read them

    model: Artifact[TrainedModel] | ExternalEncoder
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
        return {"model": encoder_key(self.model), "shard": self.shard.key, "examples": self._shown.digest}

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
        return None if isinstance(self.model, ExternalEncoder) else self.model.ref

    @property
    def _shown(self) -> ShownRows:
        return shown_rows(self.splits, self.shard, self.view, self.rows)

    @property
    def ids(self) -> pa.Table:
        """The ids of the embedded images, as `Embeddings.ids`."""
        ids = self._shown.members.select(["example_id", "row", "label"])
        if (boxes := self._shown.crops) is not None:
            for side, name in enumerate(CROP):
                ids = ids.append_column(name, pa.array(boxes[:, side], type=pa.int32()))
        return ids

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write ids and embeddings."""
        boxes, ids = self._shown.crops, self.ids
        pq.write_table(ids, attempt.path(IDS), compression="zstd")
        if isinstance(self.model, ExternalEncoder) and isinstance(self.model.spec, SuppliedEmbeddings):
            names = [_name_of(row, self.view, self.shard) for row in ids["row"].to_pylist()]
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


def encoder_of(model: Artifact[TrainedModel] | ExternalEncoder, epoch: int) -> tuple[Encoder | ExternalNetwork, int]:
    """Return a model's checkpoint at an epoch, and the side of its input images in pixels."""
    from memlib.models.encoder import Encoder
    from memlib.models.external.encoders import load_external_encoder

    if isinstance(model, ExternalEncoder):
        assert not isinstance(model.spec, SuppliedEmbeddings)
        own = load_external_encoder(model.spec)
        return own, own.side
    encoder, spec = model.content.load(epoch=epoch)
    assert isinstance(encoder, Encoder)
    assert isinstance(spec, ModelSpec)
    return encoder, spec.input_size


@dataclass(frozen=True)
class ShownRows:
    """The images of a view."""

    members: pa.Table  #: rows of the splits.
    #: their background crops (num_members, 4) x0, y0, x1, y1 in stored pixels; None for whole images.
    crops: NDArray[np.int64] | None
    digest: str  #: digest of the members.


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
    """Return all views that the audit shows to models: background crops of the audited images, and whole images.

    Crops of public images are included if generators of reconstructions are trained on them.
    """
    public_crops = [View((PUBLIC,), recipe.crops[0])] if recipe.reconstruct and recipe.reconstruct.crops else []
    return [*(View((TARGET, REFERENCE), crop) for crop in recipe.crops), PUBLIC_VIEW, PROBED_VIEW, *public_crops]


def pictures_of(splits: Artifact[pa.Table], shard: Artifact[Shard], view: View) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the images of a view in row order: id (see `name_of`) and pixels (height, width, channels)."""
    shown, images = shown_rows(splits, shard, view), shard.content.images
    rows = shown.members["row"].to_numpy()
    for start in range(0, len(rows), BATCH_ROWS):
        part = rows[start : start + BATCH_ROWS]
        boxes = None if shown.crops is None else shown.crops[start : start + BATCH_ROWS]
        for place, image in enumerate(images[part]):
            x0, y0, x1, y1 = (0, 0, image.shape[1], image.shape[0]) if boxes is None else boxes[place]
            yield _name_of(int(part[place]), view, shard), image[y0:y1, x0:x1]


def _name_of(row: int, view: View, shard: Artifact[Shard]) -> str:
    """Return the id under which an encoder's owner sees an image of a view."""
    return name_of(row, None, shard.key) if view.crop is None else name_of(row, view.crop.mode, shard.key, str(view.crop))
