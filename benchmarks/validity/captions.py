"""Image-text models: excess recall of models that cannot remember a pair, or whose memory counts against them, and planted memory."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

import memlib
from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from memlib.audits.arrangement import body_of
from memlib.audits.captions.findings import summarize
from memlib.audits.captions.recipe import Config
from memlib.audits.captions.retrieval import TrainPairs
from memlib.audits.captions.stages import Score
from memlib.data.splits import EXTRA
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.pipeline.stage import Artifact, Out, Stage
from memlib.recipes.request import AuditRequest
from memlib.running.runners import PlainRunner
from memlib.stats.inference import mean_interval
from memlib.store import Store

RECIPE = "captions_smoke"
SMALL: dict[str, Any] = {
    "data.source.num_examples": 1600, "split.train_per_class": 200, "split.public_per_class": 900, "split.extra_per_class": 200,
    "training.batch_size": 50,
}  # fmt: skip
QUICK = Config(replicates=100, permutations=199)
RUNS, REDRAWS = 4, 500  # audits of one kind; redraws of the sides for each
UNTRAINED, ELSEWHERE, UNEQUAL, OWN = (
    "untrained", "trained on other pairs", "trained on other pairs, one at a third of the rate", "trained on their sides"
)  # fmt: skip
EXCHANGED = "sides exchanged"  # with models trained on their sides
KINDS = (UNTRAINED, ELSEWHERE, UNEQUAL, OWN)


def seeded(seed: int) -> dict[str, Any]:
    """Return the changes of a recipe that draw new pairs, sides and trainings."""
    return dict.fromkeys(("data.source.seed", "split.seed", "training.seed"), seed)


class Watching(PlainRunner):
    """A runner that keeps the units of the scores, and trains other models than the recipe's if `changed` is given."""

    changed: Callable[[TrainPairs], TrainPairs] | None = None
    units: pa.Table

    def _run(self, stage: Stage[Out], parts: int) -> Artifact[Out]:
        if isinstance(stage, TrainPairs) and self.changed is not None:
            stage = cast(Stage[Out], self.changed(stage))
        artifact = super()._run(stage, parts)
        if isinstance(stage, Score):
            self.units = cast(Any, artifact.content)["units"]
        return artifact


def units_of(kind: str, number: int) -> pa.Table:
    """Audit a pair of models of one kind by the stages of the recipe, and return the units."""
    torch.set_num_threads(1)
    changes = SMALL | seeded(derive_seed(number, kind) % 2**31) | ({"training.epochs": 0} if kind == UNTRAINED else {})

    def elsewhere(stage: TrainPairs) -> TrainPairs:
        return replace(stage, roles=(EXTRA,))

    def unequal(stage: TrainPairs) -> TrainPairs:
        """Give the model of B a third of the optimizer's rate, so that it is as good as one that was trained less long."""
        optimizer = stage.training.optimizer
        slower = optimizer.model_copy(update={"learning_rate": optimizer.learning_rate / 3})
        training = stage.training.model_copy(update={"optimizer": slower}) if stage.name == "model B0" else stage.training
        return replace(elsewhere(stage), training=training)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner, request = Watching(Store(folder)), AuditRequest.read(RECIPE, changes)
        runner.changed = {ELSEWHERE: elsewhere, UNEQUAL: unequal}.get(kind)
        body_of(request.audit)(runner, request.recipe)
        return runner.units


def p_of(units: pa.Table, of_a: NDArray[np.bool_]) -> float:
    """Return the p-value of the headline if other pairs had been on side A; pairs that are held out stay so."""
    direction = np.array(units["direction"].to_pylist(), dtype=object)
    direction[direction != "H"] = np.where(of_a, "A", "B")
    moved = units.set_column(units.column_names.index("direction"), "direction", pa.array(direction, pa.string()))
    (epoch,) = set(units["epoch"].to_pylist())
    return float(summarize(moved, QUICK, epochs=(epoch,), chance=0.0)[0].p_value or 0.0)


def judge_null(unit: str) -> Row:
    """Audit one pair of models, and test the excess for redrawn sides and for the actual ones."""
    kind, number = unit.rsplit("/", 1)
    units = units_of(kind, int(number))
    trained = np.array([name == "A" for name in units["direction"].to_pylist() if name != "H"])
    rng, redrawn = np.random.default_rng(derive_seed(int(number), "redraws", kind)), []
    for _ in range(REDRAWS):
        of_a = rng.permutation(trained)
        if kind == OWN and (of_a == trained).mean() > 0.5:
            of_a = ~of_a  # so that memory counts against the models
        redrawn.append(p_of(units, of_a))
    return {"kind": kind, "p": redrawn, "actual": p_of(units, trained)}


def report_null(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rejections under redrawn sides, and the p-values under the actual ones."""
    yield f"Up to {RUNS} audits of {SMALL['split.train_per_class']} pairs a side for each kind of models, and {REDRAWS} redraws of the sides for"
    yield "each. Models and neighbours are fixed, so that every draw is as likely as any other. So that memory counts against models that"
    yield "were trained on their sides, A and B are exchanged where most pairs lie on the side of the model that was trained on them."
    yield ""
    found: dict[str, tuple[int, int]] = {}
    for kind in KINDS:
        p = [value for row in rows if row["kind"] == kind for value in row["p"]]
        if p:
            found[EXCHANGED if kind == OWN else kind] = (sum(value <= 0.05 for value in p), len(p))
    yield from level_lines("models", found, alpha=0.05)
    yield ""
    yield "Under the sides that were drawn for the audit, one p-value a run:"
    yield ""
    lines = []
    for kind in KINDS:
        values = sorted(row["actual"] for row in rows if row["kind"] == kind)
        if values:
            share = rate(sum(p <= 0.05 for p in values), len(values))
            lines.append((kind, share, ", ".join(f"{p:.3f}" for p in values)))
    yield from table(("models", "runs with p at most .05", "p-values"), lines)


SPLITS = 10


def judge_plant(unit: str) -> Row:
    """Audit pairs of models that were trained on their sides, with other pairs, sides and trainings each time."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = memlib.run(RECIPE, store=folder, changes=SMALL | seeded(int(unit)), quiet=True)
        findings = Findings.of_run(run.record)
    gaps = {row.params["direction"]: row.value for row in findings.all("population_gap")}
    recall = {name: findings.first(f"recall_{name}").value for name in ("target", "reference")}
    return {"word": run.verdict.word, "excess": findings.head.value, "p": findings.head.p_adjusted, **gaps, **recall}


def report_plant(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how often memory is shown, and the mean of each number over the runs."""
    yield f"Audits of {SMALL['split.train_per_class']} pairs a side, models trained on their sides, with other pairs, sides and trainings each time."
    yield ""
    shown = rate(sum(row["word"] == "shown" for row in rows), len(rows))
    names = {
        "excess": "excess recall", "target": "recall, model trained on the pair", "reference": "recall, other model (chance 1/3)",
        "A": "population gap, pairs of A", "B": "population gap, pairs of B", "H": "population gap, held-out pairs",
    }  # fmt: skip
    lines = [("shown", shown, "")]
    for name, text in names.items():
        values = np.array([row[name] for row in rows])
        low, high = mean_interval(values, replicates=2000, seed=0) if len(values) > 1 else (np.nan, np.nan)
        lines.append((text, f"{values.mean():.3f} ({low:.3f} to {high:.3f})", f"{values.min():.3f} to {values.max():.3f}"))
    yield from table(("number", f"mean over {len(rows)} runs, 95 % interval", "smallest to largest"), lines)


PARTS = (
    Part(
        "captions-null",
        "Image-text models that cannot have remembered a pair, or whose memory counts against them: is an excess found?",
        lambda: crossed(KINDS, RUNS), judge_null, report_null,
    ),
    Part(
        "captions-plant",
        "Image-text models that were trained on their sides: is memory shown, and is the gap on held-out pairs 0?",
        lambda: (str(seed) for seed in range(SPLITS)), judge_plant, report_plant,
    ),
)  # fmt: skip
