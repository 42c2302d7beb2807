"""Decoding and splitting as stages."""

from typing import Any

import pyarrow.parquet as pq

from memlib.data.datasets import open_source
from memlib.data.shards import INDEX_FILE, read_index, write_shard
from memlib.data.splits import hold_out, split_examples
from memlib.specs import DataSpec, HoldOutSpec, SplitSpec
from memlib.store import Attempt, Ref
from memlib.tables import SPLITS, write_table
from memlib.training.fit import SPLITS_FILE
from tasks.runtime import Context
from tasks.stage import run_stage, stage_task

WHEREABOUTS = {"path", "root", "annotations", "download"}  # of a source; its content digest stands for them


def described_data(spec: DataSpec) -> dict[str, Any]:
    """The spec without where its files happen to lie."""
    described = spec.model_dump(mode="json")
    for source in (described["source"], *(part["source"] for part in described["source"].get("parts", {}).values())):
        for name in WHEREABOUTS:
            source.pop(name, None)
    return described


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
    return run_stage(context, "decode", version=1, spec=described, inputs=inputs, compute=compute, secret=True)


@stage_task("split examples")
def split_roles(context: Context, spec: SplitSpec, shard: Ref) -> Any:
    """Gives every example its role."""

    def compute(attempt: Attempt) -> None:
        table = split_examples(read_index(context.store.local_path(shard, INDEX_FILE)), spec)
        write_table(table, SPLITS, attempt.path(SPLITS_FILE))

    described = spec.model_dump(mode="json")
    return run_stage(context, "split", version=1, spec=described, inputs={"shard": shard.key}, compute=compute)


@stage_task("hold out examples")
def hold_out_examples(context: Context, spec: HoldOutSpec, shard: Ref) -> Any:
    """Says which examples train, which stop the training, and which no model sees."""

    def compute(attempt: Attempt) -> None:
        table = hold_out(read_index(context.store.local_path(shard, INDEX_FILE)), spec)
        write_table(table, SPLITS, attempt.path(SPLITS_FILE))

    described = spec.model_dump(mode="json")
    return run_stage(context, "hold_out", version=1, spec=described, inputs={"shard": shard.key}, compute=compute)


def read_splits(context: Context, splits: Ref) -> Any:
    """tables.SPLITS of a run."""
    return pq.read_table(context.store.local_path(splits, SPLITS_FILE))
