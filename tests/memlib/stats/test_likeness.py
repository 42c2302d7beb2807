"""Likeness of a target and its shadows: numbers solved by hand, level for exchangeable targets, unlike ones found."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.likeness import BINS, Likeness, is_out, likeness, utility
from tests.assignments import assert_exact
from tests.chance import most_of


def models(
    rng: np.random.Generator, count: int, units: int = 150, *, sharpness: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Log odds, right answers and members of models of one law; members have larger odds."""
    member = rng.random((count, units)) < 0.5
    skill = 1.5 + 0.2 * rng.standard_gamma(2.0, size=(count, 1))  # models differ, and not by a normal law
    odds = skill + 0.7 * member + rng.normal(size=(count, units))
    return sharpness * odds, odds > 0, member


def is_unlike(rows: Sequence[Likeness]) -> bool:
    """Return whether any number is out of the shadows' law, at a level of 5 % over all of them."""
    return any(is_out(row, 0.05 / len(rows)) for row in rows)


def test_utility_equals_numbers_solved_by_hand() -> None:
    p = np.array([0.9, 0.7, 0.2, 0.5])
    found = utility(np.log(p / (1 - p)), np.array([True, True, False, True]), np.array([True, True, False, False]))
    expected = {
        "loss, members": -(math.log(0.9) + math.log(0.7)) / 2,
        "accuracy, members": 1.0,
        "calibration error, members": 0.2,  # |.9 - 1| and |.7 - 1| in bins of their own
        "confidence, members": 0.8,
        "loss, non-members": -(math.log(0.2) + math.log(0.5)) / 2,
        "accuracy, non-members": 0.5,
        "calibration error, non-members": (0.8 + 0.5) / 2,
        "confidence, non-members": (0.8 + 0.5) / 2,
    }
    assert list(found) == list(expected)
    assert {name: float(value[0]) for name, value in found.items()} == pytest.approx(expected)


def test_the_calibration_error_equals_its_plain_definition() -> None:
    rng = np.random.default_rng(0)
    odds, correct, member = models(rng, 3)
    confidence = rng.random(odds.shape)
    found = utility(odds, correct, member, confidence=confidence)["calibration error, members"]
    for model in range(3):
        inside = member[model]
        error = 0.0
        for number in range(BINS):
            low, high = number / BINS, (number + 1) / BINS
            here = inside & (confidence[model] > low) & (confidence[model] <= high)
            if here.any():
                error += here.sum() / inside.sum() * abs(correct[model][here].mean() - confidence[model][here].mean())
        assert found[model] == pytest.approx(error)


def test_without_known_membership_numbers_are_pooled() -> None:
    odds, correct, member = models(np.random.default_rng(1), 2)
    pooled, parted = utility(odds, correct), utility(odds, correct, member)
    share = member.mean(axis=1)
    for name in ("loss", "accuracy", "confidence"):
        mixed = share * parted[f"{name}, members"] + (1 - share) * parted[f"{name}, non-members"]
        assert pooled[f"{name}, all"] == pytest.approx(mixed)
    assert len(pooled) == 4


@pytest.mark.parametrize("shadows", [4, 8, 64])
@pytest.mark.parametrize("known", [True, False])
def test_a_target_trained_like_its_shadows_is_called_unlike_at_most_at_the_level(shadows: int, known: bool) -> None:
    unlike = 0
    for seed in range(150):
        odds, correct, member = models(np.random.default_rng(seed), shadows + 1)
        some = utility(odds[1:], correct[1:], member[1:] if known else None)
        target = utility(odds[:1], correct[:1], member[:1] if known else None)
        unlike += is_unlike(likeness(some, target))
    assert unlike <= most_of(150, 0.05)


@pytest.mark.parametrize("shadows", [16, 64])
def test_a_target_with_sharper_confidences_is_unlike_its_shadows(shadows: int) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        odds, correct, member = models(rng, shadows, units=1000)
        others = models(rng, 1, units=1000, sharpness=4.0)
        rows = likeness(utility(odds, correct, member), utility(*others))
        assert is_unlike(rows)
        by_name = {row.name: row for row in rows}
        row = by_name["confidence, members"]
        assert not row.low <= row.value <= row.high
        assert max(abs(row.distance) for row in rows) > 4


def test_a_number_at_just_the_level_is_out() -> None:
    (row,) = likeness({"loss, all": np.arange(39.0)}, {"loss, all": 39.5})
    assert (row.p_value, abs(row.distance) < 4) == (2 / 40, True)
    assert [is_out(row, level) for level in (0.05, 0.0499)] == [True, False]


@pytest.mark.parametrize("count", [7, 8])
def test_ranks_are_exact_if_each_of_a_number_of_models_is_the_target(count: int) -> None:
    values = 2.0 ** np.arange(count)
    rows = [likeness({"loss, all": np.delete(values, place)}, {"loss, all": value})[0] for place, value in enumerate(values)]
    assert_exact([row.p_value for row in rows])
    assert rows[0].p_value == rows[-1].p_value == 2 / count


def test_likeness_is_decided_by_rank_with_many_shadows() -> None:
    rng = np.random.default_rng(0)
    heavy = rng.standard_t(2, size=2000)
    (row,) = likeness({"loss, all": heavy}, {"loss, all": float(heavy.max()) + 1e-6})
    assert abs(row.distance) < 40
    assert row.p_value == pytest.approx(2 / 2001)
    assert is_unlike([row])
    (middle,) = likeness({"loss, all": heavy}, {"loss, all": 0.0})
    assert not is_unlike([middle])
    assert middle.p_value > 0.9


def test_any_difference_from_constant_shadows_is_unlike() -> None:
    (same,) = likeness({"accuracy, members": np.full(20, 0.1)}, {"accuracy, members": 0.1})
    (other,) = likeness({"accuracy, members": np.full(20, 0.1)}, {"accuracy, members": 0.05})
    assert (same.distance, other.distance) == (0.0, -math.inf)
    assert [is_unlike([same]), is_unlike([other])] == [False, True]


def test_a_few_shadows_that_do_not_vary_decide_nothing() -> None:
    (row,) = likeness({"accuracy, members": np.ones(5)}, {"accuracy, members": 0.9})
    assert row.distance == -math.inf
    assert not is_unlike([row])
    fifteen, sixteen = (likeness({"loss, all": np.ones(count)}, {"loss, all": 0.9}) for count in (15, 16))
    assert [is_unlike(fifteen), is_unlike(sixteen)] == [False, True]


def test_the_distance_has_the_variance_of_a_new_model() -> None:
    (row,) = likeness({"loss, all": np.array([1.0, 2.0, 3.0])}, {"loss, all": 4.0})
    assert row.distance == pytest.approx(2 / math.sqrt(1 + 1 / 3))
    assert (row.low, row.high, row.p_value) == (1.0, 3.0, 0.5)


def test_log_odds_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UserError, match="1 of 2 log odds are not finite"):
        utility(np.array([1.0, np.inf]), np.array([True, True]))


def test_likeness_requires_a_number_in_common() -> None:
    with pytest.raises(UserError, match="no measure is finite"):
        likeness({"loss, all": np.arange(5.0)}, {"loss, members": 1.0})
