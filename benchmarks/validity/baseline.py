"""The gate on memory beyond a baseline: how often does a retrained model fail, and one that remembers more pass?

Both runs of a comparison are trained nets, scored by the audit's own code, and compared by the code of `memlib gate`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa

from benchmarks.validity.harness import Part, Row, rate, table, upper_limit
from benchmarks.validity.unique_feature import CONFIG, LETTER, Draw, draw_of, shown, trained
from memlib.audits.gates import findings_of
from memlib.audits.policy import NonInferiority
from memlib.audits.unique_feature.scoring import Net, score
from memlib.audits.unique_feature.tables import with_column
from memlib.audits.unique_feature.trainings import trainings
from memlib.data.canaries import build_feature, training_rows
from memlib.identity import derive_seed
from memlib.running.baseline import compared
from memlib.runs.records import FindingRecord, RunRecord
from memlib.runs.run import Run
from memlib.specs import CanarySpec
from memlib.stats.noninferiority import decidable_margin
from memlib.training.stacked import NetJob

TRAININGS, NULLS, LEAKS, COPIES, EXAMPLES = 10, 100, 20, 10, 200
PARAMS = {"metric": "m_white", "output": "probability", "group": "canary - control", "statistic": "mean"}
KINDS = ("at the margin", "at half the margin", "more copies")


def small_draw(seed: int) -> Draw:
    """Draw 200 digits for training, the canary among them, and 200 others."""
    whole = draw_of(5000 + seed)
    others = np.random.default_rng(derive_seed(seed, "few")).permutation(np.setdiff1d(whole.members, [whole.canary]))
    return replace(whole, members=np.sort(np.append(others[: EXAMPLES - 1], whole.canary)))


def units_of(draw: Draw, name: str, copies: int) -> pa.Table:
    """Train the nets of one run, which saw the feature in some copies of the canary, and controls; return their scores."""
    feature, spec = build_feature(LETTER, (24, 28, 1)), CanarySpec(feature=LETTER, mode="append", repeats=copies)
    nets = [Net(i, 0, control, derive_seed(0, name, i), draw.label) for control in (False, True) for i in range(TRAININGS)]
    rows = [training_rows(draw.members, draw.canary, spec, with_feature=not net.control) for net in nets]
    forward = trained(draw, feature, [NetJob(net.seed, of_net) for net, of_net in zip(nets, rows, strict=True)])
    units = score(nets, shown(draw, forward, feature, len(nets), without=[draw.canary], random=True), CONFIG)
    for column, value in (("variant", ""), ("data_seed", 0), ("example_id", "x"), ("epoch", 1)):
        units = with_column(units, column, [value] * units.num_rows)
    return units


def run_of(draw: Draw, name: str, *, copies: int = 1) -> Run:
    """Return the finished run of an audit as far as the gate reads it: its tables, and the stage that trained its nets."""
    units, key = units_of(draw, name, copies), f"{derive_seed(0, name):064x}"
    record = RunRecord(
        run=key[-12:], audit="unique_feature", title=name, finished=0.0, computed=[f"train_nets/{key}"],
        findings=[FindingRecord(metric="m_white", params=json.dumps(PARAMS))],
    )  # fmt: skip
    return cast(Run, SimpleNamespace(id=record.run, audit=record.audit, record=record, units=units, tables={}))


def compute(unit: str) -> Row:
    """Compare a run with a baseline of the same recipe, and at times one whose nets saw more copies of the canary."""
    draw = small_draw(int(unit))
    baseline, again = run_of(draw, f"{unit} baseline"), run_of(draw, f"{unit} again")
    found = trainings(baseline, findings_of(baseline).head)
    assert found is not None
    margin = decidable_margin(float(found.values.std(ddof=1)), TRAININGS, TRAININGS)
    outcomes = {
        "at the margin": outcome(again, baseline, margin * 1.000001), "at half the margin": outcome(again, baseline, margin / 2),
    }  # fmt: skip
    if int(unit) < LEAKS:
        outcomes["more copies"] = outcome(run_of(draw, f"{unit} more", copies=COPIES), baseline, margin * 1.000001)
    return {"margin": margin, "outcomes": outcomes}


def outcome(run: Run, baseline: Run, margin: float) -> str:
    """Return the gate's outcome at a margin."""
    (judged,) = compared(run, baseline, NonInferiority(metric="m_white", margin=margin))
    return judged.outcome


def report(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"Unique feature on {EXAMPLES} digits, {TRAININGS} nets and their controls per run, one draw of the data per pair of runs. The "
        f"margin is the smallest that the baseline's spread lets {TRAININGS} trainings decide (median "
        f"{sorted(row['margin'] for row in rows)[len(rows) // 2]:.3f}); with more copies, the canary occurs {COPIES} times "
        "instead of once."
    )
    yield ""
    lines = []
    for kind in KINDS:
        found = [row["outcomes"][kind] for row in rows if kind in row["outcomes"]]
        counts = [found.count(word) for word in ("passed", "failed", "undecided")]
        limit = f"{upper_limit(counts[1], len(found)):.3f}" if found else ""
        lines.append((kind, *(rate(count, len(found)) if found else "" for count in counts), limit))
    yield from table(("runs", "passed", "failed", "undecided", "upper limit of failed"), lines)


PARTS = (
    Part(
        "gate-baseline",
        "How often does `memlib gate` pass and fail a retrained model against its baseline, and one that remembers more?",
        lambda: map(str, range(NULLS)), compute, report,
    ),
)  # fmt: skip
