"""Classifiers of sides without the model: exact under the declared draw, and they find what differs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.stats.blind import RIDGE, _whole_groups, described_baseline, folds_by_group, tested_baseline
from memlib.stats.randomization import Design
from tests.assignments import assert_exact, each_observed
from tests.chance import least_of


def drawn(rng: np.random.Generator, count: int = 120) -> Design:
    persons, labels, sides = np.arange(count) // 3, np.arange(count) // 3 % 2, np.zeros(count // 3, dtype=bool)
    for label in (0, 1):
        sides[rng.permutation(np.flatnonzero(np.arange(count // 3) % 2 == label))[: count // 12]] = True
    return Design.of(sides[persons], labels, persons)


DESIGNS = {
    "4 of 8": Design.of(np.arange(8) < 4, np.zeros(8, dtype=int)),
    "2 of 4 twice": Design.of(np.arange(8) % 4 < 2, np.arange(8) // 4),
    "3 of 6 persons": Design.of(np.arange(12) < 6, np.zeros(12, dtype=int), np.arange(12) // 2),
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("features", ["distinct", "tied"])
def test_blind_tests_are_exact_for_every_draw_of_the_sides(design: str, features: str) -> None:
    drawn, rng = DESIGNS[design], np.random.default_rng(1)
    table = (
        rng.normal(size=(len(drawn.first), 3)) if features == "distinct" else rng.integers(0, 2, (len(drawn.first), 3)) * 1.0
    )
    folds = drawn.group % 3
    largest = [tested_baseline(table, "aab", one, folds, redraws=1, seed=0).p_value for one in each_observed(drawn)]
    assert_exact([1.0 if p is None else p for p in largest])


def test_sides_are_told_apart_by_features_that_differ() -> None:
    found, aucs = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        design = drawn(rng)
        features = rng.normal(size=(40, 10))[design.group] + 0.3 * rng.normal(size=(120, 10))
        features[:, 0] += 2.0 * design.first
        told = tested_baseline(features, "a" * 10, design, design.group % 4, redraws=99, seed=seed)
        found += (told.p_value or 1.0) <= 0.05
        aucs.append(told.auc)
    assert found >= 14
    assert np.mean(aucs) > 0.7


def test_constant_features_give_a_p_value_of_1() -> None:
    design = drawn(np.random.default_rng(0))
    assert p_value(np.ones((120, 2)), design, redraws=19, seed=0) == 1.0


def p_value(features: NDArray[np.float64], design: Design, *, redraws: int, seed: int) -> float:
    """The p-value of one family of features; equal statistics of all features and of the only family count once."""
    found = tested_baseline(features, "a" * features.shape[1], design, design.group % 4, redraws=redraws, seed=seed).p_value
    assert found is not None
    return found


def plain_p(features: NDArray[np.float64], design: Design, folds: NDArray[np.int64], redraws: int, seed: int) -> float:
    """The p-value of one family, one draw, fold and stratum at a time."""
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    statistics = []
    for sides in np.concatenate([design.first[None], *design.redraws(redraws, seed=seed)]).astype(float):
        for stratum in np.unique(design.stratum):
            sides[design.stratum == stratum] -= sides[design.stratum == stratum].mean()
        total = 0.0
        for fold in np.unique(folds):
            rest = scaled[folds != fold]
            penalty = RIDGE * len(rest) * np.eye(features.shape[1])
            weights = np.linalg.solve(rest.T @ rest + penalty, rest.T @ sides[folds != fold])
            total += float(scaled[folds == fold] @ weights @ sides[folds == fold])
        statistics.append(total)
    return float(np.mean(np.array(statistics) >= statistics[0] - 1e-9))


@pytest.mark.parametrize("seed", range(6))
def test_the_blind_p_value_equals_refitting_on_every_redraw(seed: int) -> None:
    rng = np.random.default_rng(seed)
    design = drawn(rng)
    features = rng.normal(size=(120, 4)) + 0.3 * (seed % 2) * design.first[:, None]
    found = p_value(features, design, redraws=59, seed=seed)
    assert found == pytest.approx(plain_p(features, design, design.group % 4, 59, seed))


def test_tied_units_count_one_half_in_any_order() -> None:
    for first in (np.arange(12) < 6, np.arange(12) >= 6):
        design = Design.of(first, np.zeros(12, dtype=int))
        assert tested_baseline(np.ones((12, 1)), "a", design, np.arange(12) % 3, redraws=9, seed=0).auc == 0.5


def test_folds_keep_groups_whole_and_have_equal_sizes() -> None:
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(50), rng.integers(1, 7, 50)))
    folds = folds_by_group(groups, 5, seed=1)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in range(50))
    assert np.ptp(np.bincount(folds, minlength=5)) <= 6
    assert (folds != folds_by_group(groups, 5, seed=2)).any()


def test_as_many_whole_groups_are_kept_as_fit() -> None:
    groups = np.repeat(np.arange(5), 4)
    for most, kept in ((20, 20), (19, 16), (8, 8), (7, 4), (3, 4)):
        units = _whole_groups(groups, most, seed=0)
        assert len(units) == kept
        assert (np.bincount(groups[units]) % 4 == 0).all()


FAMILIES = ("a",) * 30 + ("b",) * 30


def test_one_telling_column_among_60_is_found_in_its_family() -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        design = Design.of(rng.permutation(200) < 100, np.arange(200) % 2)
        features = rng.normal(size=(200, 60))
        features[:, 40] += 1.2 * design.first
        told = tested_baseline(features, FAMILIES, design, np.arange(200) % 5, redraws=99, seed=seed)
        assert told.by_family["b"] > told.by_family["a"]
        assert told.low < told.auc < told.high
        found += (told.p_value or 1.0) <= 0.05
    assert found >= 18


def test_described_baseline_finds_differences_that_only_boosted_trees_find() -> None:
    rng = np.random.default_rng(0)
    first = np.arange(300) % 2 == 0
    features = rng.normal(size=(300, 3))
    features[:, 0] = np.where(first, 1, rng.choice([0.3, 3.0], 300)) * rng.choice([-1, 1], 300) * (1 + 0.1 * rng.random(300))
    told = described_baseline(features, ("sizes", "other", "other"), first, np.arange(300), seed=0)
    assert told.by_learner["boosted trees"] > 0.9 > 0.65 > told.by_learner["linear"]
    assert told.auc == max(told.by_learner.values())
    assert told.by_family["sizes"] > 0.9 > 0.7 > told.by_family["other"]
    assert told.low > 0.85
    assert told.p_value is None


def test_the_interval_of_an_uninformative_baseline_covers_one_half() -> None:
    covered = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        person = np.arange(120) // 3
        first = rng.permutation(40)[person] < 20
        features = rng.normal(size=(40, 4))[person] + 0.1 * rng.normal(size=(120, 4))
        told = described_baseline(features, ("a",) * 4, first, person, folds=2, seed=seed)
        covered += told.low <= 0.5 <= told.high
    assert covered >= least_of(10, 0.95)


def test_a_side_without_units_gives_no_difference() -> None:
    told = described_baseline(np.arange(30.0)[:, None], ["ids"], np.ones(30, dtype=bool), np.arange(30), seed=0)
    assert (told.auc, told.low, told.high) == (0.5, 0.0, 1.0)
