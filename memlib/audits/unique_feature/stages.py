"""Stages of a unique-feature audit: canaries, many nets, their scores, the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.audits.unique_feature.calibrated_maxima import ByLabel, maxima
from memlib.audits.unique_feature.comparisons import comparisons_of
from memlib.audits.unique_feature.external import own_units, summarize_external
from memlib.audits.unique_feature.findings import summarize
from memlib.audits.unique_feature.recipe import Config, Recipe
from memlib.audits.unique_feature.score_nets import NetTables, Scored, ScoreNets
from memlib.audits.unique_feature.scoring import Pull, calibrate
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.audits.unique_feature.train_nets import TrainNets
from memlib.data.canaries.features import choose_canaries, null_kind
from memlib.data.splits import HELD_OUT, TRAIN
from memlib.data.stages import TrainingData
from memlib.findings import Finding
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Stage
from memlib.pipeline.tables import Tables
from memlib.specs import CanarySpec
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, read_table, write_table
from memlib.training.small_nets import Nets

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

__all__ = ["ChooseCanaries", "Report", "Score", "ScoreNets", "ScoreOwn", "Scored", "TrainNets"]

CANARIES = "canaries.parquet"


@dataclass(frozen=True)
class ChooseCanaries(Stage[list[dict[str, Any]]]):
    """Choose the training examples that carry the feature: canaries.parquet, rows of tables.SPLITS in order of choice."""

    declared: ClassVar[Declared] = Declared("canaries", 1)
    title: ClassVar[str] = "choose canaries"

    canary: CanarySpec  #: number of canaries, and how they are chosen.
    data: TrainingData  #: the training examples.
    influence: Artifact[Tables] | None  #: self-influence of each example, if the choice depends on it.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The selection rule, without the settings for inserting the feature into the chosen examples."""
        return self.canary.model_dump(mode="json", exclude={"feature", "mode", "repeats"})

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys of the examples and of their self-influence."""
        known = {} if self.influence is None else {"influence": self.influence.key}
        return self.data.inputs(TRAIN) | known

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write canaries.parquet."""
        known = None if self.influence is None else influence_by_example(self.influence)
        chosen = choose_canaries(self.data.members(TRAIN), self.canary, known)
        values = [known[name] if known is not None else None for name in chosen["example_id"].to_pylist()]
        chosen = chosen.append_column("self_influence", pa.array(values, type=pa.float64()))
        pq.write_table(chosen, attempt.path(CANARIES))

    @classmethod
    def open(cls, artifact: Artifact[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the chosen examples: example_id, row, label, class_name, self_influence."""
        rows: list[dict[str, Any]] = read_table(artifact.path(CANARIES)).to_pylist()
        return rows


def influence_by_example(influence: Artifact[Tables]) -> Mapping[str, float]:
    """Return self-influence by example id."""
    units = influence.content["units"]
    return dict(zip(units["example_id"].to_pylist(), units["self_influence"].to_pylist(), strict=True))


@dataclass(frozen=True)
class Score(ScoresStage):
    """Calibrate the scores of nets against their controls and summarize the findings."""

    declared: ClassVar[Declared] = Declared("score", 12)
    title: ClassVar[str] = "score unique features"

    cells: Sequence[Scored]  #: the nets, by variant and data seed.
    config: Config  #: outputs, significance level, intervals.
    #: baseline of each variant that is compared; by default the first variant.
    baselines: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Scoring settings, the cells with their self-influences, and which variants are compared."""
        known = [[[canary["example_id"], canary["self_influence"]] for canary in cell.canaries] for cell in self.cells]
        return {
            "config": self.config.model_dump(mode="json"),
            "cells": [[cell.variant, cell.data_seed, [asdict(pull) for pull in cell.pulls]] for cell in self.cells],
            "influence": known,
        } | ({"baselines": dict(self.baselines)} if self.baselines else {})

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys of the nets' scores."""
        return {"scores": [[scores.key for scores in cell.scores] for cell in self.cells]}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and curves."""
        from memlib.audits.unique_feature.characterization import epoch_rows
        from memlib.audits.unique_feature.curves import canary_curves, draw_curves, epoch_curves, removal_curves

        cells, config = self.cells, self.config
        by_label = {(cell.variant, cell.data_seed): _by_label(cell) for cell in cells}
        units = pa.concat_tables([_units(cell, by_label[cell.variant, cell.data_seed], config) for cell in cells])
        write_table(units, UNITS, attempt.path(UNITS_FILE))
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
        compared = comparisons_of(_data(cells), self.baselines)
        known = [history for history in map(_history, cells) if history.num_rows]
        history = pa.concat_tables(known) if known else None
        characterized = [] if history is None else [*epoch_rows(history, config)]
        characterized += [row for cell in cells if config.latent for row in _latent_rows(cell, config)]
        summary = summarize(
            units, whole, config, influence=influence, pulls=pulls, compared=compared, characterized=characterized
        )
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        drawn = [*draw_curves(units, config), *removal_curves(units), *canary_curves(units)]
        drawn += [point for cell in cells if config.latent for point in _latent(cell)]
        drawn += [] if history is None else epoch_curves(history, config)
        write_table(pa.Table.from_pylist(drawn, schema=CURVES.arrow), CURVES, attempt.path(CURVES_FILE))


def _data(cells: Sequence[Scored]) -> dict[str, list[Any]]:
    """Return the keys of each variant's examples and roles, one per draw of the data."""
    keys: dict[str, list[Any]] = {}
    for cell in cells:
        keys.setdefault(cell.variant, []).append(cell.data.inputs(TRAIN))
    return keys


def _by_label(cell: Scored) -> dict[str, ByLabel]:
    """Return the grey- and black-box scores of a cell's nets at every label, by feature."""
    nets = [net for group in cell.nets for net in group]
    parts = [scores.content.by_label for scores in cell.scores]
    names = parts[0][0]
    scores = np.concatenate([scores for _, scores in parts], axis=1)
    return {name: ByLabel(nets, part) for name, part in zip(names, scores, strict=True)}


def _units(cell: Scored, by_label: Mapping[str, ByLabel], config: Config) -> pa.Table:
    units = calibrate(pa.concat_tables([scores.content.units for scores in cell.scores]))
    epochs = dict(zip(_who(units), units["epoch"].to_pylist(), strict=True))
    tops = pa.concat_tables([maxima(part, config, feature=name) for name, part in by_label.items()])
    units = pa.concat_tables([units, with_column(tops, "epoch", [epochs[net] for net in _who(tops)])])
    ids = [str(canary["example_id"]) for canary in cell.canaries]
    names = [ids[canary] if canary < len(ids) else None for canary in units["canary"].to_pylist()]
    units = with_column(units, "variant", [cell.variant] * units.num_rows)
    units = with_column(units, "data_seed", [cell.data_seed] * units.num_rows)
    return with_column(units, "example_id", names)


def _who(units: pa.Table) -> list[tuple[int, bool]]:
    return list(zip(units["net"].to_pylist(), units["control"].to_pylist(), strict=True))


def _latent_shares(cell: Scored) -> dict[str, Any]:
    """Return how often each unit is excited, (num_nets, num_units) by series, see `latent_curves`.

    The controls are those of the canary nets' seed: a unit of the same number in nets of another seed is another unit.
    """
    nets = [net for group in cell.nets for net in group]
    shares = np.concatenate([scores.content.latent for scores in cell.scores], axis=1)
    seeds = {net.seed for net in nets if not net.control}
    feature, random = shares[:, [not net.control for net in nets]]
    control = shares[0, [net.control and net.seed in seeds for net in nets]]
    return {"feature": feature, "random": random, "control": control}


def _latent(cell: Scored) -> Iterator[dict[str, Any]]:
    """Return curves of the units that only the feature excites, in canary nets and in controls."""
    from memlib.audits.unique_feature.curves import latent_curves

    return latent_curves(cell.variant, _latent_shares(cell))


def _latent_rows(cell: Scored, config: Config) -> Iterator[Finding]:
    """Return estimates of the unit that the feature excites most."""
    from memlib.audits.unique_feature.characterization import latent_rows

    canaries = [net.canary for nets in cell.nets for net in nets if not net.control]
    return latent_rows(cell.variant, **_latent_shares(cell), canaries=canaries, config=config)


@dataclass(frozen=True)
class ScoreOwn(ScoresStage):
    """Summarize the findings on an external model."""

    declared: ClassVar[Declared] = Declared("score_own", 5)
    title: ClassVar[str] = "score an external model"

    scores: Artifact[NetTables]  #: scores of the feature and of other features of its kind.
    config: Config  #: outputs and significance level.
    canary: CanarySpec  #: the feature, and its label if known.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Scoring settings, the kind of null features, and the canary's label."""
        config = self.config.model_dump(mode="json", include={"alpha", "outputs", "bound"})
        return config | {"null": null_kind(self.canary.feature), "label": self.canary.label}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Key of the scores."""
        return {"scores": self.scores.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, summary and empty curves."""
        names, scores = self.scores.content.by_label
        units = own_units(names, scores[:, 0], self.config, label=self.canary.label)
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        summary = summarize_external(units, self.config, null=null_kind(self.canary.feature))
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(CURVES.arrow.empty_table(), CURVES, attempt.path(CURVES_FILE))


def _history(cell: Scored) -> pa.Table:
    """Return the training histories of small nets, with columns that identify the nets."""
    parts = []
    for models, nets in zip(cell.models, cell.nets, strict=True):
        content = models.content
        if not isinstance(content, Nets):
            continue  # the history of a large model is not per net
        table = content.history
        trained = [nets[position] for position in table["position"].to_pylist()]
        for name in ("net", "canary", "control", "seed", "label"):
            values = [net.number if name == "net" else getattr(net, name) for net in trained]
            table = table.append_column(name, pa.array(values))
        table = table.append_column("variant", pa.array([cell.variant] * table.num_rows, type=pa.string()))
        parts.append(table.append_column("data_seed", pa.array([cell.data_seed] * table.num_rows, type=pa.int64())))
    return pa.concat_tables(parts) if parts else pa.table({})


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a unique-feature audit."""

    declared: ClassVar[Declared] = Declared("report", 15)
    title: ClassVar[str] = "report unique features"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    cells: Sequence[Scored]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys of the scores and of the examples that are shown."""
        roles = (TRAIN, HELD_OUT) if self.recipe.report.gradcam else (TRAIN,)
        return {"scores": self.scores.key, "data": [cell.data.inputs(*roles) for cell in self.cells]}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images and splits of the first draw of the data."""
        return (self.cells[0].data.shard, self.cells[0].data.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the content of the page."""
        from memlib.audits.unique_feature.page_content import material_of
        from memlib.audits.unique_feature.report import compose

        tables = self.scores.content
        units, summary, curves = (tables[name] for name in ("units", "summary", "curves"))
        material = material_of(self.recipe, self.cells, units, attempt.warn)
        return compose(self.recipe, units, summary, curves, material, attempt.path("figures"))
