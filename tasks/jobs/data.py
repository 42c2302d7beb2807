"""Stored examples, where a job finds them."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.shards import IMAGES, INDEX_FILE, read_images, read_index
from memlib.data.splits import TRAIN, members_digest, select
from memlib.store import Ref, Store
from memlib.training.fit import SPLITS_FILE


@dataclass(frozen=True)
class TrainingData:
    """Stored examples and who may see them, where a job finds them."""

    store: Store
    shard: Ref
    splits: Ref

    @functools.cached_property
    def images(self) -> NDArray[Any]:
        """The stored examples, memory-mapped."""
        return read_images(self.store.local_path(self.shard, IMAGES))

    @functools.cached_property
    def table(self) -> pa.Table:
        """tables.SPLITS."""
        return pq.read_table(self.store.local_path(self.splits, SPLITS_FILE))

    @functools.cached_property
    def labels(self) -> NDArray[np.int64]:
        """(num_stored,) int64 by stored row."""
        index = read_index(self.store.local_path(self.shard, INDEX_FILE))
        labels = np.zeros(index.num_rows, dtype=np.int64)
        labels[index["row"].to_numpy()] = index["label"].to_numpy()
        return labels

    def members(self, *roles: str) -> pa.Table:
        """The rows of the splits with one of the roles."""
        return select(self.table, *roles)

    @property
    def num_classes(self) -> int:
        """Of the training examples."""
        return len(set(self.members(TRAIN)["label"].to_pylist()))

    def inputs(self, *roles: str) -> dict[str, str]:
        """What a key says of the examples."""
        return {"shard": self.shard.key} | {role: members_digest(self.members(role)) for role in roles}

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "shard": self.shard, "splits": self.splits}
