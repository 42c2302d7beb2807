"""Stages that search for nearest public neighbours of crops and of whole images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Direction
from memlib.data.splits import SHARED, select
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, AnyArtifact, Artifact, Place, Stage
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

from memlib.audits.deja_vu.embedding import DISTANCES, IDS, NEIGHBORS, PROBE, ROLE_OF, EmbeddedView, Embeddings, joint_key


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
    storage: Literal["float32", "float16"] = field(default="float32", metadata=UNKEYED)  # affects only speed and memory

    @property
    def label(self) -> str:
        """The layer."""
        return self.layer

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The embeddings of the queries and of the public images."""
        return (self.queries, *self.public.parts)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write neighbours and distances."""
        from memlib.observe.embeddings import search

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

    A linear probe is fitted to the images of the model's own set (A or B) and of C, and tested on those of the other set. At
    the layers in `searched`, the `VOTERS` nearest public images also vote on the classes of at most `MOST_RECOGNISED` test
    images.
    """

    declared: ClassVar[Declared] = Declared("probe", 4)
    title: ClassVar[str] = "probe whole images"
    place: ClassVar[Place] = "anywhere"

    images: EmbeddedView  #: the model's embeddings of the whole images of A, B and C.
    public: EmbeddedView  #: the model's embeddings of the public images.
    splits: Artifact[pa.Table]
    direction: Direction
    pair: int
    layers: tuple[str, ...]
    searched: tuple[str, ...]  #: the layers at which neighbours vote.

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The embeddings."""
        return (*self.images.parts, *self.public.parts)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the accuracies at each layer."""
        from memlib.observe.embeddings import search
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
