"""Differences of difficulty between two sides, and scores without what difficulty explains."""

import itertools

import numpy as np
import pytest
import scipy

from memlib.stats.coins import coin_tests
from memlib.stats.difficulty import adjusted, difference_p

ONE = np.zeros(8, dtype=np.int64)


def draws(strata: np.ndarray) -> list[np.ndarray]:
    """All draws of half of the units of each stratum."""
    parts = []
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        parts.append([np.isin(np.arange(len(strata)), chosen) for chosen in itertools.combinations(rows, len(rows) // 2)])
    return [np.any(each, axis=0) for each in itertools.product(*parts)]


@pytest.mark.parametrize("strata", [ONE, np.repeat([0, 1], 4)])
@pytest.mark.parametrize("values", [np.arange(8.0) ** 2, np.array([1.0, 1, 2, 2, 2, 3, 3, 3])])
def test_over_all_draws_each_p_value_is_as_frequent_as_it_says(values: np.ndarray, strata: np.ndarray) -> None:
    every = draws(strata)
    p_values = []
    for place, member in enumerate(every):
        rest = np.array(every[:place] + every[place + 1 :])
        p_values.append(difference_p(values, member, strata, redraws=len(rest), seed=0, given=rest))
    for p in np.unique(p_values):
        assert np.mean(np.array(p_values) <= p + 1e-9) == pytest.approx(p)
    assert min(p_values) < 0.2


@pytest.mark.parametrize("easier", [-1.0, 1.0])
def test_a_difference_in_either_direction_is_seen(easier: float) -> None:
    member = np.arange(200) % 2 == 0
    values = np.random.default_rng(0).normal(size=200) + easier * member
    assert difference_p(values, member, np.zeros(200, dtype=np.int64), redraws=199, seed=0) <= 0.01


@pytest.mark.parametrize("most", [1, 20])
def test_opposite_differences_of_two_strata_are_seen(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.stats.difficulty.MOST_WITHIN", most)
    rng, strata = np.random.default_rng(0), np.arange(400) % 2
    member = np.arange(400) // 2 % 2 == 0
    values = rng.normal(size=400) + np.where(strata == 0, 1.0, -1.0) * member
    assert difference_p(values, member, strata, redraws=199, seed=0) <= 0.01


def test_strata_of_thirty_units_have_slopes_of_their_own() -> None:
    rng, strata = np.random.default_rng(6), np.arange(60) % 2
    ease = rng.normal(size=60)
    scores = (np.where(strata == 0, 1.0, -1.0) * ease)[None]
    assert np.std(adjusted(scores, ease, strata)[0]) < 0.3  # a common slope leaves 1
    fewer = np.delete(np.arange(60), [0, 1])
    assert np.std(adjusted(scores[:, fewer], ease[fewer], strata[fewer])[0]) > 0.8


def test_slopes_of_large_strata_are_their_own() -> None:
    rng, strata = np.random.default_rng(5), np.arange(600) % 2
    ease = rng.normal(size=600)
    left = adjusted((np.where(strata == 0, 2.0, 0.5) * ease)[None], ease, strata)[0]
    for stratum in (0, 1):
        assert np.std(left[strata == stratum]) < 0.35  # a common slope leaves .46 and .38


@pytest.mark.parametrize("wider", [True, False])
def test_members_of_another_spread_are_seen(wider: bool) -> None:
    member = np.arange(400) % 2 == 0
    values = np.random.default_rng(1).normal(size=400) * np.where(member == wider, 2.0, 1.0)
    assert difference_p(values, member, np.zeros(400, dtype=np.int64), redraws=199, seed=0) <= 0.01


def test_the_part_that_difficulty_explains_is_taken_away_whatever_the_slope() -> None:
    rng = np.random.default_rng(2)
    difficulty, noise = rng.normal(size=(2, 600))
    strata = np.arange(600) % 3
    for slope in (0.3, 1.0, 2.0):
        left = adjusted((slope * difficulty + 0.5 * noise)[None], difficulty, strata)[0]
        assert abs(scipy.stats.spearmanr(left, difficulty).statistic) < 0.05
        assert scipy.stats.spearmanr(left, noise).statistic > 0.9


def test_slopes_are_those_within_strata() -> None:
    """A class that is harder and scored higher says nothing of the slope, and classes keep their places."""
    rng = np.random.default_rng(3)
    strata = np.arange(400) % 2
    within = rng.normal(size=400)
    left = adjusted((within + 3.0 * strata)[None], within - 3.0 * strata, strata)[0]
    assert np.ptp(left[strata == 0]) < 0.5 * np.ptp(within)
    assert left[strata == 1].mean() > left[strata == 0].mean() + 1.0


def test_units_of_unknown_difficulty_are_taken_as_medium() -> None:
    difficulty = np.random.default_rng(4).normal(size=99)
    known = adjusted(difficulty[None], difficulty, np.zeros(99, dtype=np.int64))[0]
    missing = np.append(difficulty, np.nan)
    some = adjusted(np.append(difficulty, np.median(difficulty))[None], missing, np.zeros(100, dtype=np.int64))[0]
    assert some[-1] == pytest.approx(0.0, abs=0.05)
    assert some[:-1] == pytest.approx(known, abs=0.05)


def test_a_sharper_target_is_not_guilty_of_easier_members() -> None:
    """Members easier by a fifth of a standard deviation, and a target sharper by half: the plain difference accuses it."""
    plain, fair = [], []
    for seed in range(40):
        rng, member = np.random.default_rng(seed), np.arange(1200) % 2 == 0
        ease = rng.normal(size=1200) + 0.2 * member
        measured = ease + 0.2 * rng.normal(size=1200)
        target = 1.5 * ease + 0.3 * rng.normal(size=1200)
        rows = np.stack([target - measured, adjusted(target[None], measured, np.zeros(1200, dtype=np.int64))[0]])
        of_plain, of_fair = (
            coin_tests(row[None], member, np.zeros(1200, dtype=np.int64), redraws=99, seed=0)[0].p_value for row in rows
        )
        plain.append(of_plain)
        fair.append(of_fair)
    assert np.mean(np.array(plain) <= 0.05) > 0.5
    assert scipy.stats.binomtest(int((np.array(fair) <= 0.05).sum()), 40, 0.1, alternative="greater").pvalue > 1e-3
