"""The gate on memory beyond a baseline: how often does a retrained model fail, and one that remembers more pass?

Both runs of a comparison are trained nets, scored by the audit's own code, and compared by the code of `memlib gate`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, by_rule, rate, table
from memlib.audits.judging import findings_of
from memlib.audits.policy import NonInferiority
from memlib.audits.unique_feature.answers import trainings
from memlib.audits.unique_feature.recipe import Config
from memlib.audits.unique_feature.scoring import Net, Shown, score
from memlib.audits.unique_feature.tables import with_column
from memlib.data.builtin import TwoMoons
from memlib.data.canaries.features import build_feature, training_rows
from memlib.identity import derive_seed
from memlib.models.classifiers import build_classifier
from memlib.observe.outputs import class_scores
from memlib.running.baseline import compared
from memlib.runs.records import FindingRecord, RunRecord
from memlib.runs.run import Run
from memlib.specs import CanarySpec, ClassifierSpec, ScalarFeature, TrainingSpec, TwoMoonsSource
from memlib.stats.noninferiority import decidable_margin
from memlib.training.stacked import Examples, NetJob, StackedNet, train_nets

TRAININGS, NULLS, LEAKS, POINTS = 10, 1_000, 100, 80
EPOCHS, MORE_EPOCHS, ALPHA = 10, 60, 0.05
CPU, CONFIG = torch.device("cpu"), Config()
FEATURE = ScalarFeature(kind="scalar", value=4)
MODEL = ClassifierSpec(architecture="mlp", widths=(8,))
TRAINING = TrainingSpec.model_validate(
    {
        "objective": {"kind": "supervised"},
        "epochs": EPOCHS,
        "batch_size": None,
        "augment": None,
        "optimizer": {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    }
)
PARAMS = {"metric": "m_white", "output": "probability", "group": "canary - control", "statistic": "mean"}
KINDS = ("at the margin", "at half the margin", "more epochs")


@dataclass(frozen=True)
class Draw:
    """A draw of the data: points, their classes, and the row of the canary."""

    points: NDArray[np.float32]
    labels: NDArray[np.int64]
    canary: int

    @property
    def label(self) -> int:
        return int(self.labels[self.canary])


def draw_of(seed: int) -> Draw:
    """Draw two moons; the canary is a point of the first."""
    moons = TwoMoons(TwoMoonsSource(kind="two_moons", num_examples=POINTS, seed=seed))
    points, labels = (
        np.stack([moons[row].image for row in range(POINTS)]),
        np.array([moons[row].label for row in range(POINTS)]),
    )
    return Draw(points, labels, int(np.flatnonzero(labels == 0)[0]))


def units_of(draw: Draw, name: str, epochs: int) -> pa.Table:
    """Train the nets of one run, half of which saw the feature in the canary; return their scores."""
    spec, training = CanarySpec(feature=FEATURE), TRAINING.model_copy(update={"epochs": epochs})
    feature, members = build_feature(FEATURE, draw.points[0].shape), np.arange(POINTS)
    nets = [Net(i, 0, control, derive_seed(0, name, i), draw.label) for control in (False, True) for i in range(TRAININGS)]
    rows = [training_rows(members, draw.canary, spec, with_feature=not net.control) for net in nets]
    jobs = [NetJob(net.seed, of_net) for net, of_net in zip(nets, rows, strict=True)]
    results = train_nets(
        MODEL, training, Examples(draw.points, draw.labels, feature), jobs, 2, stack_size=len(jobs), device=CPU
    )
    net = build_classifier(MODEL, draw.points[0].shape, 2, seed=0)
    assert isinstance(net, torch.nn.Sequential)
    state = {key: torch.stack([result.state[key] for result in results]) for key in results[0].state}
    stacked = StackedNet.load(net, state, CPU)
    others = draw.points[np.setdiff1d(np.flatnonzero(draw.labels == draw.label), [draw.canary])]
    with torch.inference_mode():
        pair = [
            class_scores(lambda inputs: stacked.forward(inputs[None]), seen, num_nets=len(nets), device=CPU)
            for seen in (feature.clean(others), feature.insert(others))
        ]
    shown = Shown([draw.label], {draw.label: (pair[0], pair[1])}, (pair[0], pair[1]), {}, [])
    units = score(nets, shown, CONFIG, random=False)
    for column, value in (("variant", ""), ("data_seed", 0), ("example_id", "x"), ("epoch", 1)):
        units = with_column(units, column, [value] * units.num_rows)
    return units


def run_of(draw: Draw, name: str, *, epochs: int = EPOCHS) -> Run:
    """Return the finished run of an audit as far as the gate reads it: its tables, and the stage that trained its nets."""
    units, key = units_of(draw, name, epochs), f"{derive_seed(0, name):064x}"
    record = RunRecord(
        run=key[-12:], audit="unique_feature", title=name, finished=0.0, computed=[f"train_nets/{key}"],
        findings=[FindingRecord(metric="m_white", params=json.dumps(PARAMS))],
    )  # fmt: skip
    return cast(Run, SimpleNamespace(id=record.run, audit=record.audit, record=record, units=units, tables={}))


def compute(unit: str) -> Row:
    """Compare a run with a baseline of the same recipe, and at times one whose nets were trained longer."""
    draw = draw_of(int(unit))
    baseline, again = run_of(draw, f"{unit} baseline"), run_of(draw, f"{unit} again")
    found = trainings(baseline, findings_of(baseline).head)
    assert found is not None
    margin = decidable_margin(float(found.values.std(ddof=1)), TRAININGS, TRAININGS)
    outcomes = {
        "at the margin": outcome(again, baseline, margin * 1.000001), "at half the margin": outcome(again, baseline, margin / 2),
    }  # fmt: skip
    if int(unit) < LEAKS:
        outcomes["more epochs"] = outcome(run_of(draw, f"{unit} more", epochs=MORE_EPOCHS), baseline, margin * 1.000001)
    return {"margin": margin, "outcomes": outcomes}


def outcome(run: Run, baseline: Run, margin: float) -> str:
    """Return the gate's outcome at a margin."""
    (judged,) = compared(run, baseline, NonInferiority(metric="m_white", margin=margin))
    return judged.outcome


def report(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"Unique feature on two moons of {POINTS} points, {TRAININGS} small nets and their controls per run, one draw of the data per pair of runs. The "
        f"margin is the smallest that the baseline's spread lets {TRAININGS} trainings decide (median "
        f"{sorted(row['margin'] for row in rows)[len(rows) // 2]:.3f}). More epochs: {MORE_EPOCHS} instead of {EPOCHS}, after "
        "which the nets remember more."
    )
    yield ""
    lines = []
    for kind in KINDS:
        found = [row["outcomes"][kind] for row in rows if kind in row["outcomes"]]
        counts = [found.count(word) for word in ("passed", "failed", "undecided")]
        wrong = counts[0] if kind == KINDS[-1] else counts[1]  # runs that remember more should not pass, others not fail
        word = by_rule(wrong, len(found), ALPHA) if found else ""
        lines.append((kind, *(rate(count, len(found)) if found else "" for count in counts), word))
    yield from table(("runs", "passed", "failed", "undecided", "wrong outcomes by the rule"), lines)


PARTS = (
    Part(
        "gate-baseline",
        "How often does `memlib gate` pass and fail a retrained model against its baseline, and one that remembers more?",
        lambda: map(str, range(NULLS)), compute, report,
    ),
)  # fmt: skip
