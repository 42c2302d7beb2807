"""Stages of memory beyond the class: attributes of the images, and neighbours and comparisons within the class.

The class of each image is given, and only this class is searched, so that no result depends on naming the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import EmbeddedView, Embeddings, taken
from memlib.data.attributes import attribute_digests, read_attributes
from memlib.data.candidates import class_candidates
from memlib.data.datasets import open_source
from memlib.data.groups import groups_in
from memlib.data.splits import REFERENCE, TARGET
from memlib.data.stages import Shard, members_of
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place, Stage
from memlib.specs import DataSpec
from memlib.specs.attributes import AttributeOrigin
from memlib.stats.ranks import halves_nearer
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

ATTRIBUTES_FILE, WITHIN_FILE = "attributes.parquet", "within.parquet"


@dataclass(frozen=True)
class Attributes(Stage[pa.Table]):
    """Read attributes of the images beyond the class: attributes.parquet, one row per image and attribute."""

    declared: ClassVar[Declared] = Declared("attributes", 1)
    title: ClassVar[str] = "read attributes"

    data: DataSpec  #: the source of the images, which may state attributes.
    origins: Mapping[str, AttributeOrigin]  #: where each attribute comes from, by name.
    shard: Artifact[Shard]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The attributes and their columns; tables count by their content."""
        listed = {
            name: "source" if one == "source" else one.model_dump(exclude={"path"}) for name, one in self.origins.items()
        }
        return {"attributes": listed}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The images, and the digests of the tables."""
        return {"shard": self.shard.key, "tables": attribute_digests(self.origins)}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the values."""
        source = open_source(self.data.source, self.data.intensities, self.data.labels)
        table = read_attributes(source, self.shard.content.index, self.origins)
        pq.write_table(table, attempt.path(ATTRIBUTES_FILE), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return a table with the schema ATTRIBUTES."""
        return read_table(artifact.path(ATTRIBUTES_FILE))

    @classmethod
    def described(cls, artifact: Artifact[pa.Table]) -> list[str]:
        """State the number of values of each attribute, and of images that have one."""
        found = artifact.content.group_by("attribute", use_threads=False)
        counts = found.aggregate([("value", "count_distinct"), ("value", "count")]).to_pylist()
        return [
            f"{row['attribute']}: {row['value_count_distinct']} values, of {row['value_count']:,} images" for row in counts
        ]


@dataclass(frozen=True)
class Within(Stage[pa.Table]):
    """Search each crop's own class under one model, and compare the true image with others of its class: within.parquet.

    The candidates are drawn by a hash of their ids from the audited images of both sets, so that they are the same for both
    models and for every draw of the sets. Images are compared by the squared distances between the crop's embedding and the
    embeddings of whole images, each less the image's mean distance to all audited crops of its class: otherwise an image that
    the model places far from all crops, as it may do with its training images, would never be the nearest, whatever the crop.
    """

    declared: ClassVar[Declared] = Declared("within", 1)
    title: ClassVar[str] = "search within classes"
    place: ClassVar[Place] = "anywhere"

    queries: Artifact[Embeddings]  #: embeddings of a part of the background crops.
    crops: EmbeddedView  #: embeddings of all background crops.
    public: EmbeddedView  #: embeddings of the public images.
    images: EmbeddedView  #: embeddings of whole images, those of A and B among them.
    splits: Artifact[pa.Table]
    layer: str  #: the layer that is searched.
    k: int  #: number of neighbours.
    candidates: int  #: largest number of candidates.
    seed: int  #: seed of the candidates.

    @property
    def label(self) -> str:
        """The layer."""
        return self.layer

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The embeddings of crops, public images and whole images."""
        return (self.queries, *self.crops.parts, *self.public.parts, *self.images.parts)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row per crop, in the order of the queries.

        Columns: example_id; nearest, rows of the public ids, nearest first, fewer than k in a small class; candidates,
        places of the candidates among all crops; nearer, for each candidate 2 if it lies nearer to the crop than the true
        image does, 1 if as near, else 0.
        """
        ids, queries = self.queries.content.ids, np.asarray(self.queries.content.layer(self.layer), dtype=np.float32)
        compared = self._compared(ids["example_id"], queries)
        columns = {
            "nearest": pa.array(self._neighbors(ids["label"].to_numpy(), queries, device), pa.list_(pa.int64())),
            "candidates": pa.array([places for places, _ in compared], pa.list_(pa.int32())),
            "nearer": pa.array([nearer for _, nearer in compared], pa.list_(pa.int8())),
        }
        pq.write_table(pa.table({"example_id": ids["example_id"], **columns}), attempt.path(WITHIN_FILE), compression="zstd")

    def _neighbors(
        self, labels: NDArray[np.int64], queries: NDArray[np.float32], device: torch.device
    ) -> list[NDArray[np.int64]]:
        """Return the rows of the nearest public images of each crop's own class, nearest first."""
        from memlib.observe.embeddings import search

        public, found = self.public.ids["label"].to_numpy(), [np.empty(0, dtype=np.int64)] * len(labels)
        for label in np.unique(labels):
            mine, rows = np.flatnonzero(labels == label), np.flatnonzero(public == label)
            if len(rows):
                vectors, k = taken(self.public.layer(self.layer), rows), min(self.k, len(rows))
                nearest, _ = search(queries[mine], [vectors], k, device=device)
                for place, near in zip(mine, rows[nearest], strict=True):
                    found[place] = near
        return found

    def _compared(
        self, ids: pa.ChunkedArray, queries: NDArray[np.float32]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int8]]]:
        """Return, for each query, the places of its candidates among all crops, and `halves_nearer` of these candidates."""
        crops = self.crops.ids
        names, labels = crops["example_id"].combine_chunks(), crops["label"].to_numpy()
        pool = members_of(self.splits, TARGET, REFERENCE)
        groups = groups_in(pool)[_places(names, pool["example_id"])]
        rows = _places(names, self.images.ids["example_id"])
        place = _places(names, ids)  # of each crop among the queries, -1 if it is not in this part
        compared = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int8))] * len(ids)
        chosen = class_candidates(names.to_pylist(), labels, groups, most=self.candidates, seed=self.seed)
        for members, candidates in chosen:
            if (place[members] < 0).all():
                continue
            whole = taken(self.images.layer(self.layer), rows[members]).astype(np.float64)
            centre = taken(self.crops.layer(self.layer), members).mean(axis=0, dtype=np.float64)
            for own, others in enumerate(candidates):
                query = int(place[members[own]])
                if query >= 0:
                    # |x - y|^2 less its mean over crops x is, but for a constant, 2 <mean - x, y>
                    distances = (whole[[own, *others]] * (centre - queries[query])).sum(axis=1)
                    compared[query] = members[others], halves_nearer(distances[0], distances[1:])
        return compared

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return example_id, nearest, candidates and nearer."""
        return read_table(artifact.path(WITHIN_FILE))


def _places(names: pa.Array, among: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the place of each name among others, -1 for a name that is missing: (num_names,)."""
    places: NDArray[np.int64] = pc.fill_null(pc.index_in(names, value_set=among.combine_chunks()), -1).to_numpy()
    return places.astype(np.int64)
