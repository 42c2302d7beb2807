"""Ranks among candidates on the own side of a draw."""

import numpy as np
import pytest

from memlib.stats.ranks import Ranks, halves_nearer


def drawn(rng: np.random.Generator, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    candidates = [rng.permutation(np.delete(np.arange(count), own))[: rng.integers(0, count)] for own in range(count)]
    return candidates, [rng.integers(3, size=len(places)) for places in candidates]


def test_equal_distances_count_one_half() -> None:
    assert halves_nearer(2.0, np.array([1.0, 2.0, 3.0, 2.0])).tolist() == [2, 1, 0, 1]
    assert halves_nearer(2.0, np.array([])).tolist() == []


def test_only_candidates_on_the_own_side_count() -> None:
    ranks = Ranks.of([np.array([1, 2, 3]), *[np.array([], dtype=int)] * 3], [np.array([2, 1, 0]), *[np.array([])] * 3])
    sides = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 0, 0, 0]], dtype=bool)
    assert ranks.on_own_side(sides)[:, 0].tolist() == [0.5, 1.0, 0.25, 0.0, 0.5]
    assert (ranks.on_own_side(sides)[:, 1:] == 0.5).all()  # without candidates


@pytest.mark.parametrize("seed", range(3))
def test_ranks_equal_a_slow_plain_version_for_either_naming_of_sides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    candidates, halves = drawn(rng, 12)
    sides = rng.random((20, 12)) < 0.5
    ranks = Ranks.of(candidates, halves)
    found = ranks.on_own_side(sides)
    for draw, side in enumerate(sides):
        for own in range(12):
            near = [half / 2 for place, half in zip(candidates[own], halves[own], strict=True) if side[place] == side[own]]
            assert found[draw, own] == pytest.approx(np.mean(near) if near else 0.5)
    assert np.allclose(ranks.on_own_side(~sides), found)
