"""Decoding and splitting as stages."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.datasets import open_source
from memlib.data.groups import groups_digest, groups_of
from memlib.data.shards import IMAGES, INDEX_FILE, read_images, read_index, write_shard
from memlib.data.splits import hold_out, split_examples
from memlib.runs import without_whereabouts
from memlib.specs import DataSpec, GroupSpec, HoldOutSpec, SplitSpec
from memlib.store import Attempt, Ref
from memlib.tables import SPLITS, write_table
from memlib.training.fit import SPLITS_FILE
from tasks import declared
from tasks.runtime import Context
from tasks.stage import run_stage, stage_task


def described_data(spec: DataSpec) -> dict[str, Any]:
    """The spec without where its files happen to lie."""
    return without_whereabouts(spec.model_dump(mode="json"))


@stage_task("decode images")
def decode_images(context: Context, spec: DataSpec) -> Any:
    """Decodes a source into a shard that everything else reads."""
    source = open_source(spec.source)

    def compute(attempt: Attempt) -> None:
        with context.counter("decoding images") as progress:
            table = write_shard(source, spec, attempt.folder, progress=progress)
        attempt.facts["num_examples"] = table.num_rows

    described = described_data(spec)
    inputs = {"source": source.content_digest()}
    return run_stage(context, declared.DECODE, spec=described, inputs=inputs, compute=compute)


@stage_task("split examples")
def split_roles(context: Context, spec: SplitSpec, shard: Ref) -> Any:
    """Gives every example its role."""

    def compute(attempt: Attempt) -> None:
        index = read_index(context.store.local_path(shard, INDEX_FILE))
        table = split_examples(index, spec, _groups(context, shard, index, spec.group))
        write_table(table, SPLITS, attempt.path(SPLITS_FILE))

    described = spec.model_dump(mode="json")
    inputs = {"shard": shard.key} | groups_digest(spec.group)
    return run_stage(context, declared.SPLIT, spec=described, inputs=inputs, compute=compute)


@stage_task("hold out examples")
def hold_out_examples(context: Context, spec: HoldOutSpec, shard: Ref) -> Any:
    """Says which examples train, which stop the training, and which no model sees."""

    def compute(attempt: Attempt) -> None:
        index = read_index(context.store.local_path(shard, INDEX_FILE))
        table = hold_out(index, spec, _groups(context, shard, index, spec.group))
        write_table(table, SPLITS, attempt.path(SPLITS_FILE))

    described = spec.model_dump(mode="json")
    inputs = {"shard": shard.key} | groups_digest(spec.group)
    return run_stage(context, declared.HOLD_OUT, spec=described, inputs=inputs, compute=compute)


def _groups(context: Context, shard: Ref, index: pa.Table, spec: GroupSpec | None) -> NDArray[np.int64] | None:
    if spec is None:
        return None
    images = read_images(context.store.local_path(shard, IMAGES)) if spec.near is not None else None
    return groups_of(index.to_pylist(), images, spec)


def read_splits(context: Context, splits: Ref) -> Any:
    """tables.SPLITS of a run."""
    return pq.read_table(context.store.local_path(splits, SPLITS_FILE))
