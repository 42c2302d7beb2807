"""Log odds of shadow models: log p against higher precision, persons against loops, refusals."""

import numpy as np
import pytest

from memlib.errors import UserError
from memlib.stats.shadows import How, Shadows, _bridged, by_person, log_p


def test_log_p_equals_a_computation_in_higher_precision() -> None:
    odds = np.array([-700.0, -30.0, -1e-3, 0.0, 2.0, 30.0, 40.0])
    wide = odds.astype(np.longdouble)
    np.testing.assert_allclose(log_p(odds), (-np.log1p(np.exp(-wide))).astype(np.float64), rtol=1e-14)


def test_shadows_refuse_infinite_log_odds() -> None:
    with pytest.raises(AssertionError, match="clip"):
        Shadows(np.full((1, 1, 1), np.inf), np.ones((1, 1), dtype=bool))


@pytest.mark.parametrize("how", ["max", "sum", "trimmed"])
def test_by_person_equals_the_loop_over_persons(how: How) -> None:
    rng = np.random.default_rng(22)
    persons = rng.permutation(np.repeat([4, 9, 2, 7], [1, 3, 12, 6]))
    odds = rng.normal(size=(3, 2, len(persons)))
    aggregate = {"max": np.max, "sum": np.mean, "trimmed": lambda own: own[own >= np.quantile(own, 0.4)].mean()}[how]
    expected = [[[aggregate(row[persons == person]) for person in (2, 4, 7, 9)] for row in model] for model in odds]
    np.testing.assert_allclose(by_person(odds, persons, how), expected)


def test_by_person_refuses_an_unknown_aggregate() -> None:
    with pytest.raises(UserError, match='"max", "sum" or "trimmed", not "min"'):
        by_person(np.zeros((1, 1, 2)), np.array([0, 1]), "min")  # type: ignore[arg-type]


def test_shadows_by_person_refuse_a_person_who_is_partly_inside() -> None:
    inside = np.array([[True, False, True]])
    with pytest.raises(AssertionError, match="all or none"):
        Shadows(np.zeros((1, 1, 3)), inside).by_person(np.array([0, 0, 1]), "max")
    assert Shadows(np.zeros((1, 1, 3)), inside).by_person(np.array([5, 4, 5]), "max").inside.tolist() == [[False, True]]


def test_a_side_without_models_takes_the_other_sides_centre_moved_by_the_mean_difference() -> None:
    inner, outer = np.array([[5.0, 0.0, 4.0]]), np.array([[2.0, 3.0, 0.0]])  # 0 where there is no model
    counts = np.array([1.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.0])
    moved = _bridged(inner, outer, *counts)
    assert [side.tolist() for side in moved] == [[[5.0, 6.0, 4.0]], [[2.0, 3.0, 1.0]]]  # the sides differ by 3
    apart = _bridged(inner[:, 1:], outer[:, 1:], counts[0][1:], counts[1][1:])  # no example has both sides: by nothing
    assert [side.tolist() for side in apart] == [[[3.0, 4.0]], [[3.0, 4.0]]]
