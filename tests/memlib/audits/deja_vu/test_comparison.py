"""Audits of the same images are compared image by image: ranked at a valid level, or not ranked, with the reason."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy

from memlib.audits.base import Cell
from memlib.audits.deja_vu.comparison import compare, gains_of
from memlib.findings import Findings, Interval, estimate, settle, tested
from memlib.runs.records import FindingRecord, RunRecord
from memlib.stats.inference import widened_interval, widened_p

HEAD = {"layer": "last", "epoch": 9, "crop": "maximal", "k": 3}


def run_of(knowledge: float | None = 0.9, *, epoch: int = 9) -> RunRecord:
    rows = [tested("share_excess", HEAD | {"epoch": epoch}, 0.1, n=9, p_value=0.5, family="f")]
    if knowledge is not None:
        interval = Interval(knowledge - 0.1, knowledge + 0.1, "examples")
        rows.append(estimate("knn_accuracy", {}, knowledge, n=100, interval=interval))
    rows.append(estimate("accuracy_target", {"chance": 0.1}, 0.5, n=9))
    findings = [FindingRecord(**row.row()) for row in settle(rows, alpha=0.05)]
    return RunRecord(run="r", audit="deja_vu", title="t", finished=1.0, findings=findings)


def units_of(gains: np.ndarray, *, epoch: int = 9, shift: int = 0) -> pa.Table:
    """Units with these gains (num_pairs, num_images), shuffled, among those of another setting."""
    rows: list[dict[str, Any]] = []
    for pair, values in enumerate(gains):
        for image, gain in enumerate(values):
            label = image % 3
            named = {"target_prediction": label if gain > 0 else 9, "reference_prediction": label if gain < 0 else 9}
            where = {"pair": pair, "direction": "AB"[image % 2], "example_id": f"{image + shift:04d}", "label": label}
            rows += [HEAD | {"epoch": epoch} | where | named, HEAD | {"k": 99} | where | named]
    return pa.Table.from_pylist(rows).take(np.random.default_rng(0).permutation(len(rows)))


def drawn(rng: np.random.Generator, share: float, *, pairs: int = 3, images: int = 300) -> np.ndarray:
    return rng.choice([1, 0, -1], p=[share, 0.8 - share, 0.2], size=(pairs, images))


def cell(name: str, gains: np.ndarray, **more: Any) -> Cell:
    return Cell(name, run_of(**more), units_of(gains, epoch=more.get("epoch", 9)))


def test_gains_come_from_the_headline_setting_in_the_order_of_the_images() -> None:
    gains = drawn(np.random.default_rng(1), 0.4)
    found = gains_of(Findings.of_run(run_of()).head, units_of(gains))
    order = [*range(0, 300, 2), *range(1, 300, 2)]  # by side
    of_a = np.arange(300)[order] % 2 == 0
    assert np.array_equal(found.gains, np.where(of_a, 0.5, -0.5) * gains[:, order])
    assert found.design.stratum[:3].tolist() == [0, 2, 1]


def test_compare_finds_the_audit_with_more_memory_and_does_not_rank_equal_ones() -> None:
    rng = np.random.default_rng(0)
    shares = {"much": 0.6, "little": 0.25, "as little": 0.25}
    cells = [cell(name, drawn(rng, share, pairs=6, images=600)) for name, share in shares.items()]
    rows = {(row.params["cell"], row.params["other"]): row for row in compare(cells)}
    apart, alike = rows["much", "little"], rows["little", "as little"]
    assert apart.value == pytest.approx(0.35, abs=0.08)
    assert apart.verdict == rows["much", "as little"].verdict == "shown"
    assert alike.verdict == "inconclusive"
    assert (alike.p_adjusted or 0) > 0.05
    assert all(row.interval is not None and row.interval.over == "examples and trainings" for row in rows.values())
    assert 0 < (apart.low or 0) < apart.value < (apart.high or 0)


def test_compare_states_why_two_cells_are_not_ranked() -> None:
    rng = np.random.default_rng(0)
    known, few = cell("known", drawn(rng, 0.6)), cell("few", drawn(rng, 0.2, pairs=1))
    ignorant = cell("ignorant", drawn(rng, 0.2), knowledge=0.15)
    (row,) = compare([known, few])
    assert "same number of pairs of models, 3 or more" in row.params["not_ranked"]
    assert (row.verdict, row.p_value) == (None, None)
    assert row.interval is not None
    assert row.interval.over == "examples"
    (row,) = compare([known, ignorant])
    assert row.params["not_ranked"] == "the models of ignorant know too little about whole images"
    untrained = cell("untrained", drawn(rng, 0.2), knowledge=0.85, epoch=0)
    (row,) = compare([known, untrained])
    assert "the models of known know too little" in row.params["not_ranked"]  # 0.8 at least, and untrained ones 0.95 at most
    said = known.run.findings[0].model_copy(update={"role": "estimate", "p_value": None})
    untested = Cell("untested", known.run.model_copy(update={"findings": [said, *known.run.findings[1:]]}), known.units)
    (row,) = compare([known, untested])
    assert row.params["not_ranked"] == "untested was not tested"
    assert not compare([known, Cell("others", run_of(), units_of(drawn(rng, 0.2), shift=5))])


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_comparison_of_equal_shares_keeps_its_level_even_if_trainings_vary(spread: float) -> None:
    rng, wrong, covered = np.random.default_rng(3), 0, 0
    for _ in range(400):
        sides = []
        for _ in range(2):
            shares = np.clip(0.3 + spread * rng.normal(size=3), 0.05, 0.75)
            sides.append(np.concatenate([drawn(rng, float(share), pairs=1, images=200) for share in shares]))
        apart = (sides[0].mean(axis=0) - sides[1].mean(axis=0)).astype(float)
        means = np.array([rng.choice(apart, size=200).mean() for _ in range(200)])
        repeats = sides[0].mean(axis=1) - sides[1].mean(axis=1)
        low, high = widened_interval(means, repeats)
        covered += low <= 0 <= high
        wrong += widened_p(means, repeats) <= 0.05
    assert wrong == 400 - covered  # one says what the other does
    assert wrong <= scipy.stats.binom.ppf(0.999, 400, 0.05)


def test_widened_p_is_the_level_at_which_the_interval_touches_zero() -> None:
    rng = np.random.default_rng(0)
    replicates, repeats = rng.normal(0.1, 0.03, size=1000), np.array([0.05, 0.12, 0.13])
    p = widened_p(replicates, repeats)
    assert widened_interval(replicates, repeats, level=1 - p)[0] == pytest.approx(0, abs=1e-9)
    assert widened_p(replicates, -repeats) == pytest.approx(p)
    assert widened_p(np.zeros(10), np.zeros(3)) == 1.0
    assert widened_p(np.zeros(10), np.ones(3)) < 1e-100
