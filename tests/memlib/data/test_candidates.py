"""Candidates of a rank: the same for every draw of the sets, never of the same group, and those of a slow plain version."""

import numpy as np
import pytest

from memlib.data.candidates import class_candidates, hashed_order
from memlib.identity import derive_seed


def test_hashed_order_does_not_depend_on_the_other_ids() -> None:
    ids = [f"image {n}" for n in range(40)]
    order = [ids[place] for place in hashed_order(ids, 3)]
    assert order == sorted(ids, key=lambda name: derive_seed(3, "candidate", name))
    assert [ids[::-1][place] for place in hashed_order(ids[::-1], 3)] == order
    assert [name for name in order if name in ids[:20]] == [ids[:20][place] for place in hashed_order(ids[:20], 3)]
    assert order != [ids[place] for place in hashed_order(ids, 4)]


@pytest.mark.parametrize("most", [1, 4, 99])
def test_candidates_equal_a_slow_plain_version(most: int) -> None:
    rng = np.random.default_rng(most)
    ids, labels = [f"{n}" for n in range(60)], rng.integers(3, size=60)
    groups = rng.integers(25, size=60)
    found = {}
    for members, candidates in class_candidates(ids, labels, groups, most=most, seed=0):
        for own, others in zip(members.tolist(), candidates, strict=True):
            found[own] = members[others].tolist()
    order = hashed_order(ids, 0).tolist()
    assert found == {
        own: [other for other in order if labels[other] == labels[own] and groups[other] != groups[own]][:most]
        for own in range(60)
    }
