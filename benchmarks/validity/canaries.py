"""Canaries in trainings: looks that can stop them at one level, what is chosen afterwards, power, and bounds of epsilon.

Trainings are small classifiers of pictures, looked at twenty times by `CanaryAudit`. Losses of canaries that were never given to
a training do not depend on coins that are tossed later, so that each training gives as many exact draws of the null as wanted.
"""

import functools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.validity.harness import Part, Row, by_rule, crossed, rate, table
from memlib.data.canaries.losses import read_losses, score_canaries
from memlib.data.canaries.pictures import INSERT_FILE, write_pictures
from memlib.data.canaries.plan import read_coins
from memlib.identity import derive_seed
from memlib.observe.canary_audit import CanaryAudit
from memlib.observe.canary_pictures import unit_pictures
from memlib.stats.canaries import Plan, audit_canaries
from memlib.stats.epsilon import audit_one_run, gaussian_epsilon
from memlib.stats.looks import SPENDINGS, Looked, assignments, looked, shares, statistics_of
from memlib.stats.operating import auc

LOOKS, CANARIES, ALPHA, REDRAWS = 20, 200, 0.05, 999
TRAININGS, TOSSES, BATCH = 10, 1000, 100  # of coins on each training, and of these in one unit
STEPS, DATA = 100, 400
SHIFTS = (0.1, 0.2, 0.3, 0.5, 0.8)  # standard deviations by which inserted canaries are better known at the end
NOISES = (0.5, 1.0, 2.0)
DELTA, GUESSES = 1e-5, (20, 60, 160)


@functools.cache
def training(number: int, *, inserted: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Train a classifier, with or without the inserted canaries; return scores (LOOKS, CANARIES) at its looks, and the coins."""
    seed = derive_seed(number, "canaries")
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed % 2**31)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "canaries"
        secret = rng.bytes(32)
        write_pictures(folder, CANARIES, (8, 8, 3), 10, plan=Plan.of(LOOKS), secret=secret, seed=number)
        coins = read_coins(folder)
        images, labels = torch.rand(DATA, 3, 8, 8), torch.randint(0, 10, (DATA,))
        if inserted:
            with np.load(folder / INSERT_FILE) as arrays:
                images = torch.cat([images, unit_pictures(arrays["images"])])
                labels = torch.cat([labels, torch.from_numpy(arrays["labels"])])
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        audit = CanaryAudit(folder, Path(scratch) / "losses.parquet")
        audit.begin(model)
        for step in range(1, STEPS + 1):
            chosen = torch.from_numpy(rng.permutation(len(labels))[:64])
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            audit.look(model, step, of=STEPS)
        audit.end(model, STEPS)
        recorded = read_losses(Path(scratch) / "losses.parquet")
        scores = score_canaries(recorded.table, coins.canaries, steps=set(recorded.looks.values())).values
    return np.stack([scores[recorded.looks[look]] for look in range(1, LOOKS + 1)]), coins.inside


def found_in(scores: NDArray[np.float64], coins: NDArray[np.bool_], seed: int) -> list[NDArray[np.float64]]:
    assigned = assignments(coins, REDRAWS, seed=seed)
    return [statistics_of(one, assigned) for one in scores]


def p_alone(found: NDArray[np.float64]) -> float:
    return float((found >= found[0]).mean())


def judge_looks(unit: str) -> Row:
    """Toss coins after a training without the canaries, and carry out its looks by each rule, and by what breaks it."""
    number, batch = map(int, unit.split("/"))
    scores, _ = training(number, inserted=False)
    again, _ = training(number + TRAININGS, inserted=False)  # of another training: looks that were repeated after a resume
    rng = np.random.default_rng(derive_seed(batch, "coins", number))
    hits: dict[str, int] = {}

    def count(name: str, stopped: bool) -> None:
        hits[name] = hits.get(name, 0) + stopped

    for toss in range(BATCH):
        coins, seed = rng.random(CANARIES) < 0.5, int(rng.integers(2**31))
        found = found_in(scores, coins, seed)
        alone = [p_alone(one) for one in found]
        tied = found_in(np.round(3 * (scores - scores.mean()) / scores.std()), coins, seed)

        def stop(some: Sequence[Any], spending: Any = "late") -> bool:
            return looked(some, shares(LOOKS, spending), alpha=ALPHA).stopped is not None

        for spending in SPENDINGS:
            count(f"{spending}", stop(found, spending))
            count(f"{spending}, losses of seven values", stop(tied, spending))
        best = int(np.argmin(alone))
        kept = [one if look >= best else None for look, one in enumerate(found)]
        count("late, looks before the smallest p removed", stop(kept) or stop(found))
        count("equal, looks before the smallest p removed", stop(kept, "equal") or stop(found, "equal"))
        count(
            "late, killed at a look of one's choice",
            any(stop([*found[:look], *[None] * (LOOKS - look)]) for look in (5, 10, 15, 20)),
        )
        count("naive: any look at alpha", min(alone) <= ALPHA)
        count("naive: any look at alpha / 20", min(alone) <= ALPHA / LOOKS)
        if toss % 4 == 0:  # further seeds, and repeated looks, which the rule does not allow
            seeds = [found, *(found_in(scores, coins, seed + more) for more in (1, 2))]
            hits["tosses of seeds"] = hits.get("tosses of seeds", 0) + 1
            count("best of three seeds (descriptive)", any(stop(one) for one in seeds))
            second = found_in(again, coins, seed)
            better = [one if p_alone(one) <= p_alone(other) else other for one, other in zip(found, second, strict=True)]
            count("better of two of each look (not counted)", stop(better))
    return {"hits": hits, "count": BATCH}


def report_looks(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often a training without memory is stopped."""
    yield f"{TRAININGS} trainings that never saw their {CANARIES} canaries, {LOOKS} looks each, {TOSSES} tosses of the coins on each; {REDRAWS} redraws, level {ALPHA:g}. Stopped at any look:"
    yield ""
    total = sum(row["count"] for row in rows)
    few = sum(row["hits"].get("tosses of seeds", 0) for row in rows)
    cells = []
    for name in [key for key in rows[0]["hits"] if key != "tosses of seeds"]:
        hits, of = sum(row["hits"].get(name, 0) for row in rows), few if "best of" in name or "better" in name else total
        ruled = not name.startswith("naive") and "descriptive" not in name and "not counted" not in name
        cells.append((name, rate(hits, of), by_rule(hits, of, ALPHA) if ruled else "not memlib's rule"))
    yield from table(("spending, and what was done afterwards", "stopped", "by the rule"), cells)


def judge_power(unit: str) -> Row:
    """Plant memory that grows over the looks, in losses of a training that did not see the canaries; or train on them."""
    kind, number = unit.rsplit("/", 1)
    rng = np.random.default_rng(derive_seed(int(number), "plant", kind))
    trained = kind == "trained"
    scores, coins = training(int(number) % TRAININGS, inserted=trained)
    row: dict[str, Any] = {"kind": kind, "count": 0, "last": 0}
    for _ in range(1 if trained else 40):
        moved, own = scores, coins
        if not trained:
            own = rng.random(CANARIES) < 0.5
            growth = float(kind) * np.arange(1, LOOKS + 1)[:, None] / LOOKS * scores.std(axis=1, keepdims=True)
            moved = scores + growth * own
        found = found_in(moved, own, int(rng.integers(2**31)))
        row["count"] += 1
        row["last"] += p_alone(found[-1]) <= ALPHA
        row["auc"] = row.get("auc", 0.0) + auc(moved[-1], own)
        for spending in SPENDINGS:
            result: Looked = looked(found, shares(LOOKS, spending), alpha=ALPHA)
            row[spending] = row.get(spending, 0) + (result.stopped is not None)
            row[f"{spending} at"] = row.get(f"{spending} at", 0) + (result.stopped or 0)
    return row


def report_power(rows: Sequence[Row]) -> Iterator[str]:
    """Report power by effect beside that of the last look alone, and the mean look of the stop."""
    yield f"{CANARIES} canaries, {LOOKS} looks, level {ALPHA:g}. The inserted ones are better known by a share of the standard deviation that grows evenly to the one named; trained: on the inserted pictures,"
    yield f"beside {DATA} others, for {STEPS} steps."
    yield ""
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        count = sum(row["count"] for row in mine)
        found = [rate(sum(row[name] for row in mine), count) for name in ("last", *SPENDINGS)]
        at = [sum(row[f"{name} at"] for row in mine) / max(1, sum(row[name] for row in mine)) for name in SPENDINGS]
        mean = sum(row["auc"] for row in mine) / count
        cells.append(
            (kind if kind == "trained" else f"{kind} sd", f"{mean:.3f}", *found, ", ".join(f"{look:.1f}" for look in at))
        )
    headings = (
        "plant",
        "mean AUC",
        "found by the last look alone",
        *(f"found, spending {name}" for name in SPENDINGS),
        "mean look of the stop",
    )
    yield from table(headings, cells)


def judge_epsilon(unit: str) -> Row:
    """Bound epsilon of Gaussian mechanisms at their worst case, a release at each of four looks of its own."""
    noise, number = unit.rsplit("/", 1)
    truth, plan = gaussian_epsilon(float(noise), delta=DELTA), Plan(looks=8, epsilon_looks=4, redraws=REDRAWS)
    rng = np.random.default_rng(derive_seed(int(number), "epsilon", noise))
    row = {"kind": noise, "truth": truth, "count": 0, "above": 0, "refuted": 0, "last": 0, "unpaid": 0, "bound": 0.0}
    for _ in range(50):
        coins = rng.random(CANARIES) < 0.5
        scores = {look: coins + float(noise) * rng.normal(size=CANARIES) for look in (2, 4, 6, 8)}
        every, last = (
            audit_canaries(scores, coins, plan, guesses=GUESSES, claimed=truth, delta=DELTA, scope=scope)
            for scope in ("checkpoints", "last")  # type: ignore[arg-type]
        )
        assert every.bound is not None
        assert every.claim is not None
        assert last.claim is not None
        row["count"] += 1
        row["above"] += every.bound.epsilon > truth
        row["refuted"] += every.claim.p_value <= ALPHA
        row["last"] += last.claim.p_value <= ALPHA
        row["bound"] += every.bound.epsilon
        each = [
            audit_one_run(one, coins, guesses=GUESSES, delta=DELTA, level=ALPHA, seed=0).epsilon for one in scores.values()
        ]
        row["unpaid"] += max(each) > truth
    return row


def report_epsilon(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often a bound lies above the truth, and a true claim is refuted."""
    yield f"Gaussian mechanisms at their worst case, {CANARIES} canaries; at each of four looks another release that is by itself as private as claimed, at delta {DELTA:g}."
    yield ""
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        count, above, refuted, last, unpaid = (
            sum(row[name] for row in mine) for name in ("count", "above", "refuted", "last", "unpaid")
        )
        mean = sum(row["bound"] for row in mine) / count
        cells.append((
            kind, f"{mine[0]['truth']:.2f}", f"{mean:.2f}", rate(above, count), by_rule(above, count, ALPHA), rate(refuted, count), rate(last, count),
            rate(unpaid, count),
        ))  # fmt: skip
    headings = (
        "noise",
        "epsilon",
        "mean bound",
        "bound above it",
        "by the rule",
        "true claim refuted",
        "scope: last",
        "each look at alpha (not memlib's rule)",
    )
    yield from table(headings, cells)


PARTS = (
    Part(
        "canaries-looks",
        "Trainings without memory that are looked at twenty times: how often is one stopped, whatever is chosen afterwards?",
        lambda: crossed(map(str, range(TRAININGS)), TOSSES // BATCH), judge_looks, report_looks,
    ),
    Part(
        "canaries-power",
        "Memory that grows with the training: how much of it is found, and how early, beside the last look alone?",
        lambda: (*crossed(map(str, SHIFTS), TRAININGS), *crossed(["trained"], TRAININGS)), judge_power, report_power,
    ),
    Part(
        "canaries-epsilon",
        "Bounds of epsilon at four looks: how often are they above the truth?",
        lambda: crossed(map(str, NOISES), 40), judge_epsilon, report_epsilon,
    ),
)  # fmt: skip
