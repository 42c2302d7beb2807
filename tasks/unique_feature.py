"""Canaries, many nets, and their scores as stages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import unique_feature
from memlib.audits.unique_feature import ByLabel, Config, Net, Pull
from memlib.data.canaries import Feature, choose_canaries, null_kind
from memlib.data.splits import TRAIN
from memlib.specs import CanarySpec
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, SUMMARY, UNIQUE_FEATURE_UNITS, write_table
from memlib.training.fit import HISTORY
from tasks import declared
from tasks.influence import read_influence
from tasks.jobs import BY_LABEL, LATENT, UNITS, NetChunk, NetScores, TrainingData, read_by_label
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_jobs, run_stage, stage_task

CANARIES = "canaries.parquet"


@stage_task("choose canaries")
def choose(context: Context, spec: CanarySpec, data: TrainingData, influence: Ref | None) -> Any:
    """Says which training examples carry the feature: canaries.parquet, rows of tables.SPLITS in order of choice."""

    def compute(attempt: Attempt) -> None:
        known = read_influence(context, influence) if influence is not None else None
        chosen = choose_canaries(data.members(TRAIN), spec, known)
        values = [known[name] if known is not None else None for name in chosen["example_id"].to_pylist()]
        chosen = chosen.append_column("self_influence", pa.array(values, type=pa.float64()))
        pq.write_table(chosen, attempt.path(CANARIES))

    described = spec.model_dump(mode="json", exclude={"feature", "mode", "repeats"})
    inputs = data.inputs(TRAIN) | ({"influence": influence.key} if influence is not None else {})
    return run_stage(context, declared.CANARIES, spec=described, inputs=inputs, compute=compute)


def read_canaries(context: Context, canaries: Ref) -> list[dict[str, Any]]:
    """The chosen examples: example_id, row, label, class_name."""
    rows: list[dict[str, Any]] = pq.read_table(context.store.local_path(canaries, CANARIES)).to_pylist()
    return rows


@stage_task("train nets")
def train_chunks(context: Context, chunks: Sequence[NetChunk]) -> Any:
    """Trains small nets, chunk by chunk, on Ray."""
    return run_jobs(context, declared.TRAIN_NETS, chunks)


@stage_task("score nets")
def score_nets(context: Context, jobs: Sequence[NetScores]) -> Any:
    """Shows the nets what they are scored on, artifact by artifact, on Ray."""
    return run_jobs(context, declared.SCORE_NETS, jobs)


@dataclass(frozen=True)
class Scored:
    """What a cell's nets are, and where their scores and histories are.

    Attributes:
        variant, data_seed: the cell.
        canaries: the chosen examples.
        feature: the unique feature, as it is put into examples.
        data: the examples.
        nets: for each artifact of models, its nets.
        models, scores: the artifacts, in the same order.
        epoch: the last one of a large model.
        pulls: what the feature did to canaries' self-influence.
    """

    variant: str
    data_seed: int
    canaries: Sequence[Mapping[str, Any]]
    feature: Feature
    data: TrainingData
    nets: Sequence[Sequence[Net]]
    models: Sequence[Ref]
    scores: Sequence[Ref]
    epoch: int = 0
    pulls: Sequence[Pull] = ()


@stage_task("score")
def summarize_nets(context: Context, cells: Sequence[Scored], config: Config) -> Any:
    """Calibrates on the controls and says what was found: units.parquet, curves.parquet, summary.parquet."""

    def compute(attempt: Attempt) -> None:
        by_label = {(cell.variant, cell.data_seed): _by_label(context, cell) for cell in cells}
        units = pa.concat_tables([_units(context, cell, by_label[cell.variant, cell.data_seed], config) for cell in cells])
        write_table(units, UNIQUE_FEATURE_UNITS, attempt.path(UNITS_FILE))
        influence = {
            (cell.variant, cell.data_seed, str(canary["example_id"])): float(canary["self_influence"])
            for cell in cells
            for canary in cell.canaries
            if canary["self_influence"] is not None
        }
        pulls: dict[str, list[Pull]] = {}
        for cell in cells:
            pulls.setdefault(cell.variant, []).extend(cell.pulls)
        whole = {key: features["canary"] for key, features in by_label.items()}
        summary = unique_feature.summarize(units, whole, config, influence=influence, pulls=pulls)
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        curves = [unique_feature.draw_curves(units, config), unique_feature.removal_curves(units)]
        curves += [unique_feature.canary_curves(units), *(_latent(context, cell) for cell in cells if config.latent)]
        histories = [_history(context, cell) for cell in cells]
        known = [history for history in histories if history.num_rows]
        if known:
            curves.append(unique_feature.epoch_curves(pa.concat_tables(known), config))
        write_table(pa.concat_tables(curves), CURVES, attempt.path(CURVES_FILE))

    known = [[[canary["example_id"], canary["self_influence"]] for canary in cell.canaries] for cell in cells]
    spec = {
        "config": config.model_dump(mode="json"),
        "cells": [[cell.variant, cell.data_seed, [asdict(pull) for pull in cell.pulls]] for cell in cells],
        "influence": known,
    }
    inputs = {"scores": [[ref.key for ref in cell.scores] for cell in cells]}
    return run_stage(context, declared.SCORE_UNIQUE_FEATURE, spec=spec, inputs=inputs, compute=compute)


def _by_label(context: Context, cell: Scored) -> dict[str, ByLabel]:
    """The grey- and black-box scores of a cell's nets at every label, by feature."""
    nets = [net for group in cell.nets for net in group]
    found = [read_by_label(context.store.local_path(ref, BY_LABEL)) for ref in cell.scores]
    names = found[0][0]
    scores = np.concatenate([scores for _, scores in found], axis=1)
    return {name: ByLabel(nets, part) for name, part in zip(names, scores, strict=True)}


def _units(context: Context, cell: Scored, by_label: Mapping[str, ByLabel], config: Config) -> pa.Table:
    read = [pq.read_table(context.store.local_path(ref, UNITS)) for ref in cell.scores]
    units = unique_feature.calibrate(pa.concat_tables(read))
    epochs = dict(zip(_who(units), units["epoch"].to_pylist(), strict=True))
    tops = pa.concat_tables([unique_feature.maxima(part, config, feature=name) for name, part in by_label.items()])
    column = pa.array([epochs[net] for net in _who(tops)], type=pa.int64())
    units = pa.concat_tables([units, tops.set_column(tops.schema.get_field_index("epoch"), "epoch", column)])
    ids = [str(canary["example_id"]) for canary in cell.canaries]
    names = [ids[canary] if canary < len(ids) else None for canary in units["canary"].to_pylist()]
    for name, values, kind in (
        ("variant", [cell.variant] * units.num_rows, pa.string()),
        ("data_seed", [cell.data_seed] * units.num_rows, pa.int64()),
        ("example_id", names, pa.string()),
    ):
        units = units.set_column(units.schema.get_field_index(name), name, pa.array(values, type=kind))
    return units


def _who(units: pa.Table) -> list[tuple[int, bool]]:
    return list(zip(units["net"].to_pylist(), units["control"].to_pylist(), strict=True))


def _latent(context: Context, cell: Scored) -> pa.Table:
    """The units that only the feature excites, in canary nets and in controls."""
    sides: dict[bool, list[Any]] = {False: [], True: []}
    for ref, nets in zip(cell.scores, cell.nets, strict=True):
        sides[nets[0].control].append(np.load(context.store.local_path(ref, LATENT)))
    feature, random = np.concatenate(sides[False], axis=1)
    control, _ = np.concatenate(sides[True], axis=1)
    return unique_feature.latent_curves(cell.variant, {"feature": feature, "random": random, "control": control})


@stage_task("score")
def summarize_own(context: Context, scores: Ref, config: Config, canary: CanarySpec) -> Any:
    """What was found on a model that was trained elsewhere: units.parquet, curves.parquet, summary.parquet."""
    null = null_kind(canary.feature)

    def compute(attempt: Attempt) -> None:
        names, found = read_by_label(context.store.local_path(scores, BY_LABEL))
        units = unique_feature.own_units(names, found[:, 0], config, label=canary.label)
        write_table(units, UNIQUE_FEATURE_UNITS, attempt.path(UNITS_FILE))
        write_table(unique_feature.summarize_own(units, config, null=null), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(CURVES.arrow.empty_table(), CURVES, attempt.path(CURVES_FILE))

    spec = config.model_dump(mode="json", include={"alpha", "outputs", "bound"}) | {"null": null, "label": canary.label}
    return run_stage(context, declared.SCORE_OWN, spec=spec, inputs={"scores": scores.key}, compute=compute)


def _history(context: Context, cell: Scored) -> pa.Table:
    """The training histories of small nets, with who they are of."""
    parts = []
    for ref, nets in zip(cell.models, cell.nets, strict=True):
        if "described" not in context.store.manifest(ref)["facts"]:
            continue  # a large model keeps its own history
        table = pq.read_table(context.store.local_path(ref, HISTORY))
        who = [nets[position] for position in table["position"].to_pylist()]
        for name in ("net", "control", "seed", "label"):
            values = [net.number if name == "net" else getattr(net, name) for net in who]
            table = table.append_column(name, pa.array(values))
        table = table.append_column("variant", pa.array([cell.variant] * table.num_rows, type=pa.string()))
        parts.append(table.append_column("data_seed", pa.array([cell.data_seed] * table.num_rows, type=pa.int64())))
    return pa.concat_tables(parts) if parts else pa.table({})
