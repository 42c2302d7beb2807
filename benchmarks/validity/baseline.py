"""The gate on memory beyond a baseline: how often does a retrained model fail, and one that remembers more pass?

Both runs of a comparison are trained nets, scored by the audit's own code, and compared by the code of `memlib gate`.
"""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

from benchmarks.validity.harness import Part, Row, rate, table, upper_limit
from benchmarks.validity.unique_feature import CONFIG, LETTER, Draw, Scored, draw_of, scored
from memlib.audits.policy import NonInferiority
from memlib.audits.unique_feature.scoring import Net
from memlib.audits.unique_feature.summary import summarize
from memlib.audits.unique_feature.trainings import trainings
from memlib.data.canaries import build_feature, training_rows
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.running.baseline import compared
from memlib.runs.records import FindingRecord, RunRecord
from memlib.runs.run import Run
from memlib.specs import CanarySpec
from memlib.stats.noninferiority import decidable_margin

TRAININGS, NULLS, LEAKS, COPIES = 10, 100, 20, 10
KINDS = ("at the margin", "at half the margin", "more copies")


def nets_of(draw: Draw, name: str, copies: int) -> Scored:
    """Train the nets of one run: some that saw the feature in one or more copies of the canary, and their controls."""
    feature, spec = build_feature(LETTER, (24, 28, 1)), CanarySpec(feature=LETTER, mode="append", repeats=copies)
    nets = [
        Net(i, 0, control, derive_seed(0, name, i), draw.label) for control in (False, True) for i in range(TRAININGS)
    ]
    rows = [training_rows(draw.members, draw.canary, spec, with_feature=not net.control) for net in nets]
    return scored(draw, nets, rows, feature, [draw.canary])


def run_of(draw: Draw, name: str, *, copies: int = 1) -> Run:
    """Return the finished run of an audit, with its tables, and the stage that trained its nets in its manifest."""
    units, cell = nets_of(draw, name, copies).audit([(i, TRAININGS + i) for i in range(TRAININGS)])
    key = f"{derive_seed(0, name):064x}"
    record = RunRecord(
        run=key[-12:], audit="unique_feature", title=name, finished=0.0, computed=[f"train_nets/{key}"],
        findings=[FindingRecord(metric="m_white", params="{}")],
    )  # fmt: skip
    summary = summarize(units, {("", 0): cell}, CONFIG)
    run = SimpleNamespace(
        id=record.run, audit=record.audit, record=record, units=units, summary=summary, tables={"summary": summary},
    )  # fmt: skip
    return cast(Run, run)


def compute(unit: str) -> Row:
    """Compare a run with a baseline of the same recipe, and at times one whose nets saw more copies of the canary."""
    draw = draw_of(5000 + int(unit))
    baseline, again = run_of(draw, f"{unit} baseline"), run_of(draw, f"{unit} again")
    found = trainings(baseline, Findings.read(baseline.summary).head)
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
        f"Unique feature on digits, {TRAININGS} nets and their controls per run, one draw of the data per pair of runs. The "
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
