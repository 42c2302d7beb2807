"""Ranks among candidates."""

import numpy as np
import pytest

from memlib.stats.ranks import mid_rank


@pytest.mark.parametrize(
    ("own", "others", "rank"),
    [
        (1.0, [2.0, 3.0], 0.0),
        (4.0, [2.0, 3.0], 1.0),
        (2.0, [2.0, 2.0], 0.5),
        (2.0, [1.0, 2.0, 3.0, 4.0], 0.375),
        (0.0, [0.0], 0.5),
    ],
)
def test_ranks_count_nearer_candidates_and_half_of_the_equal_ones(own: float, others: list[float], rank: float) -> None:
    assert mid_rank(own, np.array(others)) == rank


def test_ranks_of_items_that_are_alike_average_one_half() -> None:
    rng = np.random.default_rng(0)
    distances = rng.integers(6, size=(4000, 10)).astype(float)
    ranks = [mid_rank(row[0], row[1:]) for row in distances]
    assert abs(np.mean(ranks) - 0.5) < 0.03  # six standard errors
