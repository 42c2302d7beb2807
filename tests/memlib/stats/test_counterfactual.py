"""Counterfactual memorization and influence against plain loops, and Newcombe's intervals against his published ones."""

import numpy as np
import pytest
import scipy

from memlib.stats.counterfactual import Differences, influence, memorization


def drawn(num_models: int = 40, num_examples: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inside = rng.random((num_models, num_examples)) < 0.5
    return rng.random((num_models, num_examples)) < 0.3 + 0.4 * inside, inside


def test_memorization_is_the_difference_of_two_shares() -> None:
    correct, inside = drawn()
    found = memorization(correct, inside)
    for i in range(correct.shape[1]):
        expected = correct[inside[:, i], i].mean() - correct[~inside[:, i], i].mean()
        assert found.difference[i] == pytest.approx(expected)


def test_influence_is_the_difference_on_another_example() -> None:
    held_out, inside = drawn(seed=1)
    found = influence(held_out[:, :5], inside)
    assert found.difference.shape == (12, 5)
    for i in range(12):
        for j in range(5):
            expected = held_out[inside[:, i], j].mean() - held_out[~inside[:, i], j].mean()
            assert found.difference[i, j] == pytest.approx(expected)


def test_p_values_equal_fishers_exact_test() -> None:
    correct, inside = drawn(num_models=21)
    found = memorization(correct, inside)
    for i, p in enumerate(found.p_values()):
        table = [
            [found.hits_in[i], found.num_in[i] - found.hits_in[i]],
            [found.hits_out[i], found.num_out[i] - found.hits_out[i]],
        ]
        assert p == pytest.approx(scipy.stats.fisher_exact(table, alternative="greater").pvalue)


@pytest.mark.parametrize(
    ("hits", "expected"),
    [((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090)), ((10, 10, 0, 10), (0.6075, 1.0))],
)
def test_intervals_are_newcombes_published_ones(hits: tuple[int, ...], expected: tuple[float, float]) -> None:
    one, of_one, other, of_other = (np.array([value]) for value in hits)
    low, high = Differences(of_one, of_other, one, other).interval()  # Newcombe 1998, table II, method 10
    assert (low[0], high[0]) == pytest.approx(expected, abs=1e-4)


def test_an_example_in_all_models_has_no_memorization() -> None:
    found = memorization(np.ones((5, 1), dtype=bool), np.ones((5, 1), dtype=bool))
    assert np.isnan(found.difference[0])
    assert found.p_values()[0] == 1


def test_null_p_values_are_rarely_small() -> None:
    rng = np.random.default_rng(5)
    inside = rng.random((64, 3000)) < 0.5
    found = memorization(rng.random((64, 3000)) < 0.8, inside)
    assert (found.p_values() <= 0.05).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 3000)
