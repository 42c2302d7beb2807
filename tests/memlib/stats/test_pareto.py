"""Probabilities of the Pareto front against the normal law of a difference."""

import math

import pytest
from scipy.stats import norm

from memlib.stats.pareto import NORMAL, pareto_probabilities
from tests.chance import least_of, most_of


@pytest.mark.parametrize(("apart", "half"), [(0.0, 0.1), (0.05, 0.1), (0.1, 0.1)])
def test_a_less_useful_setting_is_beaten_with_the_probability_that_it_remembers_more(apart: float, half: float) -> None:
    """The difference of two values with half-widths of 95 % has the deviation sqrt 2 half / 1.96; draws are 10,000."""
    first, second = pareto_probabilities([(0.3, half), (0.3 + apart, half)], [(0.9, 1e-9), (0.1, 1e-9)])
    beaten = float(norm.cdf(apart / (math.sqrt(2) * half / NORMAL)))
    assert first == 1.0
    assert least_of(10_000, 1 - beaten) <= round(10_000 * second) <= most_of(10_000, 1 - beaten)


def test_equal_settings_do_not_beat_each_other() -> None:
    assert pareto_probabilities([(0.3, 0.0), (0.3, 0.0)], [(0.9, 0.0), (0.9, 0.0)]).tolist() == [1.0, 1.0]
    assert pareto_probabilities([(0.3, 0.0), (0.3, 0.0)], [(0.9, 0.0), (0.8, 0.0)]).tolist() == [1.0, 1.0]
    assert pareto_probabilities([(0.3, 0.0), (0.2, 0.0)], [(0.8, 0.0), (0.9, 0.0)]).tolist() == [0.0, 1.0]
