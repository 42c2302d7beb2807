"""Candidates among which a true image is ranked: other images of its class, chosen by a hash of their ids."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from memlib.identity import derive_seed


def hashed_order(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return the places of ids in the order of a hash (SHA-256) of seed and id: (num_ids,).

    The order depends on nothing else, such as the sets that the examples are in.

    Example:
        >>> order = hashed_order(["a", "b", "c"], seed=0)
        >>> sorted(order.tolist()), order.tolist() == hashed_order(["a", "b", "c"], seed=0).tolist()
        ([0, 1, 2], True)
    """
    hashes = [derive_seed(seed, "candidate", name) for name in ids]
    return np.array(sorted(range(len(ids)), key=lambda place: (hashes[place], ids[place])), dtype=np.int64)


def class_candidates(
    ids: Sequence[str], labels: NDArray[np.int64], groups: NDArray[np.int64], *, most: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], list[NDArray[np.int64]]]]:
    """Yield, for each class, the places of its examples in hashed order, and the candidates of each of these examples.

    An example's candidates are the first examples of other groups (a person's images, copies of one picture) in this order.
    They are given as positions in the class's order, and do not depend on the sets that the examples are in.

    Args:
        ids: (num_examples,) ids of all examples, whatever set they are in.
        labels: (num_examples,) classes.
        groups: (num_examples,) group numbers; an example without a group is a group of its own.
        most: largest number of candidates.
    """
    order = hashed_order(ids, seed)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        own = groups[members]
        reach = most + int(np.unique(own, return_counts=True)[1].max())  # no group takes more places than its own
        yield members, [np.flatnonzero(own[:reach] != group)[:most] for group in own]
