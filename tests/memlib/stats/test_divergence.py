"""KS distances equal scipy's, with and without ties."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from memlib.stats.divergence import ks_gap, weighted_ks

SAMPLES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.5000001, 1.0]), min_size=1, max_size=12)


@given(a=SAMPLES, b=SAMPLES)
def test_ks_is_scipys_with_ties_constants_and_single_examples(a: list[float], b: list[float]) -> None:
    assert ks_gap(np.array(a), np.array(b))[0] == pytest.approx(scipy.stats.ks_2samp(a, b, method="asymp").statistic)


def test_the_gap_lies_where_the_distributions_are_furthest_apart() -> None:
    assert ks_gap(np.array([0.1, 0.2, 0.9]), np.array([0.8, 0.9, 0.95])) == (pytest.approx(2 / 3), 0.2)


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8), seed=st.integers(0, 9))
def test_weighted_ks_equals_the_gap_of_repeated_values(pairs: list[tuple[int, int]], seed: int) -> None:
    a, b = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    counts = np.random.default_rng(seed).multinomial(len(a), np.full(len(a), 1 / len(a)), size=5)
    found = weighted_ks(a, b, counts.astype(np.float32))
    slow = [ks_gap(np.repeat(a, row), np.repeat(b, row))[0] for row in counts]
    np.testing.assert_allclose(found, slow, atol=1e-6)
