"""Linear probes and déjà vu scores as stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import deja_vu
from memlib.data.splits import REFERENCE, SHARED, TARGET, select
from memlib.stats.probe import probe_accuracies
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, DEJA_VU_UNITS, SUMMARY, write_table
from tasks import declared
from tasks.data import read_splits
from tasks.observing import read_ids, read_layer, read_neighbors
from tasks.runtime import Context
from tasks.stage import run_stage, stage_task

UNITS_FILE, SUMMARY_FILE, CURVES_FILE, PROBE_FILE = (
    "units.parquet",
    "summary.parquet",
    "curves.parquet",
    "probe.parquet",
)
ROLE_OF: dict[str, str] = {"A": TARGET, "B": REFERENCE}


@dataclass(frozen=True)
class Searches:
    """What was found for one setting of one pair: the searches under A's and B's model, and the public ids."""

    pair: int
    layer: str
    epoch: int
    crop: str
    by_model: tuple[Ref, Ref]  # under the model trained on A, on B
    public: Ref


@stage_task("linear probe")
def probe_model(
    context: Context, images: Ref, splits: Ref, direction: Literal["A", "B"], pair: int, layers: tuple[str, ...]
) -> Any:
    """Fits a probe on a model's own training images and tests it on the other model's."""

    def compute(attempt: Attempt) -> None:
        table = read_splits(context, splits)
        own = set(select(table, ROLE_OF[direction], SHARED)["example_id"].to_pylist())
        other = set(select(table, ROLE_OF["B" if direction == "A" else "A"])["example_id"].to_pylist())
        ids = read_ids(context, images)
        names, labels = ids["example_id"].to_pylist(), ids["label"].to_numpy()
        train = np.array([name in own for name in names])
        test = np.array([name in other for name in names])
        rows = []
        for layer in layers:
            array = read_layer(context, images, layer)
            accuracies = probe_accuracies(
                array[train], labels[train], array[test], labels[test],
                num_classes=int(labels.max()) + 1, device=context.device,
            )  # fmt: skip
            row = {"layer": layer, "direction": direction, "pair": pair, "n": int(test.sum())}
            rows.append({**row, "train_accuracy": accuracies[0], "test_accuracy": accuracies[1]})
        pq.write_table(pa.Table.from_pylist(rows), attempt.path(PROBE_FILE))

    spec = {"direction": direction, "pair": pair, "layers": list(layers)}
    inputs = {"images": images.key, "splits": splits.key}
    return run_stage(context, declared.PROBE, spec=spec, inputs=inputs, compute=compute)


@stage_task("score")
def score_deja_vu(
    context: Context,
    searches: Sequence[Searches],
    probes: Sequence[Ref],
    splits: Ref,
    class_names: Sequence[str],
    config: deja_vu.Config,
) -> Any:
    """Votes, categories, curves and findings: units.parquet, curves.parquet, summary.parquet."""

    def compute(attempt: Attempt) -> None:
        units = deja_vu.score(_decodings(context, searches, splits), class_names, config)
        probed = pa.concat_tables([pq.read_table(context.store.local_path(ref, PROBE_FILE)) for ref in probes])
        summary = deja_vu.summarize(units, config, num_classes=len(class_names), probes=probed)
        write_table(units, DEJA_VU_UNITS, attempt.path(UNITS_FILE))
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(deja_vu.curves(units), CURVES, attempt.path(CURVES_FILE))

    described = [[s.pair, s.layer, s.epoch, s.crop] for s in searches]
    spec = {"config": config.model_dump(mode="json"), "classes": list(class_names), "searches": described}
    inputs = {
        "searches": [[ref.key for ref in s.by_model] for s in searches],
        "public": [s.public.key for s in searches],
        "probes": [ref.key for ref in probes],
        "splits": splits.key,
    }
    return run_stage(context, declared.SCORE_DEJA_VU, spec=spec, inputs=inputs, compute=compute)


def _decodings(context: Context, searches: Sequence[Searches], splits: Ref) -> Iterator[deja_vu.Decoding]:
    table = read_splits(context, splits)
    for found in searches:
        public_labels = read_ids(context, found.public)["label"].to_numpy()
        ids = [read_ids(context, ref) for ref in found.by_model]
        assert ids[0].equals(ids[1]), "the two models were shown different crops"
        names, labels = ids[0]["example_id"].to_pylist(), ids[0]["label"].to_numpy()
        classes = [public_labels[read_neighbors(context, ref)] for ref in found.by_model]
        for direction in deja_vu.DIRECTIONS:
            audited = select(table, ROLE_OF[direction])
            role = dict(zip(audited["example_id"].to_pylist(), _groups(audited), strict=True))
            rows = np.flatnonzero([name in role for name in names])
            target, reference = classes if direction == "A" else classes[::-1]
            yield deja_vu.Decoding(
                direction=direction,
                pair=found.pair,
                layer=found.layer,
                epoch=found.epoch,
                crop=found.crop,
                example_ids=[names[i] for i in rows],
                labels=labels[rows],
                target=target[rows],
                reference=reference[rows],
                groups=[role[names[i]] for i in rows],
            )


def _groups(splits: pa.Table) -> list[str | None]:
    """Names of groups; artifacts of before groups have none."""
    return splits["group"].to_pylist() if "group" in splits.column_names else [None] * splits.num_rows
