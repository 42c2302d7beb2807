"""Looks at a training while it goes on: at their level whatever the looks depend on, and deaf to what is chosen afterwards."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.canaries import Plan
from memlib.stats.looks import SPENDINGS, Spending, assignments, fewest_redraws, looked, shares, statistics_of
from tests.assignments import assert_exact
from tests.chance import most_of


def every_assignment(count: int = 8) -> NDArray[np.bool_]:
    """All ways to insert one half of some canaries."""
    chosen = itertools.combinations(range(count), count // 2)
    return np.array([np.isin(np.arange(count), some) for some in chosen])


def walks(
    seed: int, count: int, looks: int, *, correlation: float = 0.8, digits: int | None = None
) -> list[NDArray[np.float64]]:
    """Scores at the looks of a training that did not see the canaries; with few digits, many are equal."""
    rng, score, found = np.random.default_rng(seed), np.random.default_rng(seed).normal(size=count), []
    for _ in range(looks):
        score = correlation * score + np.sqrt(1 - correlation**2) * rng.normal(size=count)
        found.append(score if digits is None else score.round(digits))
    return found


@pytest.mark.parametrize("spending", SPENDINGS)
@pytest.mark.parametrize("digits", [None, 0], ids=["distinct", "tied"])
@pytest.mark.parametrize("missed", [(), (1,), (0, 2)], ids=["all looks", "one missed", "two missed"])
def test_no_more_assignments_than_the_level_are_ever_stopped(
    spending: Spending, digits: int | None, missed: tuple[int, ...]
) -> None:
    """Each assignment is the actual one in turn: of N, at most floor(alpha N) are stopped, at any level and over all looks."""
    every, looks = every_assignment(), 5
    for alpha in (0.05, 0.2, 0.5):
        scores = walks(3, every.shape[1], looks, digits=digits)
        stopped = np.zeros(len(every), dtype=bool)
        for place in range(len(every)):
            order = np.concatenate([[place], np.delete(np.arange(len(every)), place)])
            found = [None if look in missed else statistics_of(one, every[order]) for look, one in enumerate(scores)]
            result = looked(found, shares(looks, spending), alpha=alpha)
            stopped[place] = result.stopped is not None
            assert (result.p_value <= alpha) == stopped[place]
        allowed = sum(share for look, share in enumerate(np.diff([0, *shares(looks, spending)])) if look not in missed)
        assert stopped.sum() <= np.floor(alpha * allowed * len(every) + 1e-9)


def test_one_look_is_the_exact_test() -> None:
    every = every_assignment()
    scores, p_values = walks(1, every.shape[1], 1)[0], []
    for place in range(len(every)):
        order = np.concatenate([[place], np.delete(np.arange(len(every)), place)])
        p_values.append(looked([statistics_of(scores, every[order])], (1.0,), alpha=0.05).p_value)
    assert_exact(p_values)


def test_the_level_holds_where_looks_are_removed_after_they_were_seen() -> None:
    """Whoever removes looks gains nothing, as their share of the level is lost."""
    hits, tries, looks = 0, 400, 10
    for seed in range(tries):
        coins = np.random.default_rng(seed).random(60) < 0.5
        assigned = assignments(coins, 399, seed=seed)
        found = [statistics_of(one, assigned) for one in walks(seed, 60, looks, correlation=0.5)]
        best = int(np.argmin([(one >= one[0]).mean() for one in found]))
        kept = [one if look >= best else None for look, one in enumerate(found)]
        hits += any(
            looked(some, shares(looks, "equal"), alpha=0.05).stopped is not None for some in (found, kept)
        )  # fmt: skip
    assert hits <= most_of(tries, 0.05)


def test_memory_that_grows_is_found_before_the_end() -> None:
    coins = np.arange(200) % 2 == 0
    assigned = assignments(coins, 999, seed=0)
    found = [statistics_of(one + 0.1 * look * coins, assigned) for look, one in enumerate(walks(5, 200, 20))]
    result = looked(found, shares(20, "late"), alpha=0.05)
    assert result.stopped is not None
    assert 5 < result.stopped < 20


def test_a_few_canaries_that_stand_out_are_found_unless_the_rank_sum_alone_is_asked_for() -> None:
    rng, coins = np.random.default_rng(0), np.arange(400) % 2 == 0
    scores = rng.normal(size=400)
    scores[:32:2] += 9  # 16 of 200 inserted ones
    assigned = assignments(coins, 999, seed=0)
    both, alone = (looked([statistics_of(scores, assigned, name)], (1.0,), alpha=0.05) for name in ("auc_and_top", "auc"))  # type: ignore[arg-type]
    assert both.p_value <= 0.01
    assert alone.p_value > 0.05


def test_missing_scores_rank_lowest_and_constant_ones_stop_nothing() -> None:
    coins = np.arange(40) % 2 == 0
    assigned = assignments(coins, 999, seed=0)
    missing = np.where(coins, np.nan, 0.0)
    assert np.array_equal(statistics_of(missing, assigned), statistics_of(np.where(coins, -9.0, 0.0), assigned))
    assert looked([statistics_of(np.zeros(40), assigned)], (1.0,), alpha=0.05).stopped is None


def test_shares_grow_to_one_and_plans_that_cannot_stop_are_refused() -> None:
    for spending in SPENDINGS:
        found = shares(7, spending)
        assert found[-1] == 1
        assert list(found) == sorted(found)
    assert fewest_redraws(20, 0.05) == 999
    assert fewest_redraws(100, 0.05) == 4000
    assert Plan.of(500).redraws == 20_000
    for settings, said in (
        ({"looks": 0}, "0 looks"), ({"looks": 3, "epsilon_looks": 4}, "3 looks, 4 of them at epsilon"),
        ({"alpha": 1.0}, "alpha is 1.0"), ({"every_epochs": 0}, "every_epochs is 0"),
        ({"looks": 500}, "500 looks at level 0.05 need 20,000 redraws, and 9,999 are planned"), ({"redraws": 99}, "1 looks at level 0.05 need 999 redraws, and 99 are planned"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            Plan(**settings)  # type: ignore[arg-type]
