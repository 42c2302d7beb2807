"""Embedding and searching as stages. Each artifact keeps its arrays beside the ids of their rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from memlib.data.shards import IMAGES, INDEX_FILE, read_images, read_index
from memlib.data.splits import crop_rectangles, members_digest, select
from memlib.observe.embeddings import embed
from memlib.observe.search import search
from memlib.specs import CropSpec
from memlib.store import Attempt, Ref, Store
from memlib.training.fit import load_trained
from tasks import declared
from tasks.data import read_splits
from tasks.runtime import Context
from tasks.stage import run_stage, stage_task

IDS = "ids.parquet"


@dataclass(frozen=True)
class View:
    """Which images a model is shown, and how: whole, or one background crop each."""

    roles: tuple[str, ...]
    crop: CropSpec | None = None

    def spec(self) -> dict[str, Any]:
        """What a key says of it; the examples are named by their digest."""
        return {"crop": None if self.crop is None else self.crop.model_dump(mode="json")}


@stage_task("embed")
def embed_view(context: Context, model: Ref, epoch: int, view: View, shard: Ref, splits: Ref, layers: tuple[str, ...]) -> Any:
    """Embeds a view with a trained model: <layer>.npy for every layer in one pass, and ids.parquet."""
    members = select(read_splits(context, splits), *view.roles)
    if view.crop is not None:
        index = read_index(context.store.local_path(shard, INDEX_FILE))
        crops = crop_rectangles(index, members["example_id"].to_pylist(), view.crop)
        members = members.filter(pa.array([name in crops for name in members["example_id"].to_pylist()], type=pa.bool_()))
        boxes = [crops[name] for name in members["example_id"].to_pylist()]
    else:
        boxes = None

    ids = members.select(["example_id", "row", "label"])
    if boxes is not None:
        for side, name in enumerate(("crop_x0", "crop_y0", "crop_x1", "crop_y1")):
            ids = ids.append_column(name, pa.array([box[side] for box in boxes], type=pa.int32()))
    work = Embedding(context.store, model, epoch, shard, layers, ids)

    def compute(attempt: Attempt) -> None:
        with context.counter("embedding") as progress:
            work.write(attempt, context.device, progress)

    spec = {"epoch": epoch, "layers": list(layers), **view.spec()}
    inputs = {"model": model.key, "shard": shard.key, "examples": members_digest(members)}
    return run_stage(
        context, declared.EMBED, spec=spec, inputs=inputs, compute=compute, on_cluster=work.write,
        units=members.num_rows,
    )  # fmt: skip


@dataclass(frozen=True)
class Embedding:
    """What is to be embedded with which model: all that another machine needs to do it."""

    store: Store
    model: Ref
    epoch: int
    shard: Ref
    layers: tuple[str, ...]
    ids: pa.Table  # example_id, row, label and, for crops, crop_x0 ... crop_y1

    def write(self, attempt: Attempt, device: torch.device, progress: Callable[[int, int], None] | None = None) -> None:
        """Fills the artifact."""
        encoder, spec = load_trained(self.store, self.model, epoch=self.epoch)
        sides = [name for name in self.ids.column_names if name.startswith("crop_")]
        boxes = np.stack([self.ids[name].to_numpy() for name in sides], axis=1).astype(np.int64) if sides else None
        pq.write_table(self.ids, attempt.path(IDS), compression="zstd")
        embed(
            encoder,
            read_images(self.store.local_path(self.shard, IMAGES)),
            self.ids["row"].to_numpy(),
            input_size=spec.input_size,
            folder=attempt.folder,
            layers=self.layers,
            rectangles=boxes,
            device=device,
            progress=progress,
        )


@stage_task("search")
def search_neighbors(context: Context, queries: Ref, public: Ref, layer: str, k: int) -> Any:
    """The k nearest public images of each query, at one layer; neighbours for fewer are its first columns.

    Files: ids.parquet (of the queries), neighbors.npy (num_queries, k) int64 rows of the public ids,
    distances.npy (num_queries, k) float32 squared L2.
    """

    def compute(attempt: Attempt) -> None:
        storage: Literal["float32", "float16"] = "float16" if context.resources.index_float16 else "float32"
        array = read_layer(context, queries, layer)
        with context.counter("searching") as progress:
            public_array = read_layer(context, public, layer)
            found = search(array, public_array, k, device=context.device, storage=storage, progress=progress)
        np.save(attempt.path("neighbors.npy"), found[0])
        np.save(attempt.path("distances.npy"), found[1])
        pq.write_table(read_ids(context, queries), attempt.path(IDS), compression="zstd")

    spec, inputs = {"layer": layer, "k": k}, {"queries": queries.key, "public": public.key}
    return run_stage(context, declared.SEARCH, spec=spec, inputs=inputs, compute=compute)


def read_ids(context: Context, ref: Ref) -> pa.Table:
    """The ids of an artifact's rows."""
    return pq.read_table(context.store.local_path(ref, IDS))


def read_layer(context: Context, ref: Ref, layer: str) -> NDArray[np.float32]:
    """One layer's embeddings (num_examples, dim) float32, memory-mapped."""
    array: NDArray[np.float32] = np.load(context.store.local_path(ref, f"{layer}.npy"), mmap_mode="r")
    return array


def read_neighbors(context: Context, ref: Ref) -> NDArray[np.int64]:
    """The neighbours found by a search: (num_queries, k) int64 rows of the public ids."""
    array: NDArray[np.int64] = np.load(context.store.local_path(ref, "neighbors.npy"))
    return array
