"""Ranks of true items among those of their candidates that a draw puts on the item's own side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray


def halves_nearer(own: float, others: NDArray[np.floating]) -> NDArray[np.int8]:
    """Return for each candidate 2 if it is nearer than the true item, 1 if as near, else 0: (num_candidates,).

    Args:
        own: distance of the true item.
        others: (num_candidates,) distances of the candidates.

    Example:
        >>> import numpy as np
        >>> halves_nearer(2.0, np.array([1.0, 2.0, 3.0])).tolist()
        [2, 1, 0]
    """
    return (others <= own).astype(np.int8) + (others < own).astype(np.int8)


@dataclass(frozen=True)
class Ranks:
    """Comparisons of true items with their candidates, from which ranks follow for any draw of the sides."""

    #: (num_items, num_items) 1 where the candidate is nearer than the true item, 1/2 where it is as near, else 0.
    nearer: scipy.sparse.csr_array
    candidates: scipy.sparse.csr_array  #: (num_items, num_items) 1 for the candidates of each item, else 0.

    @classmethod
    def of(cls, candidates: Sequence[NDArray[np.integer]], halves: Sequence[NDArray[np.integer]]) -> "Ranks":
        """Return the comparisons of items.

        Args:
            candidates: places of each item's candidates among the items.
            halves: `halves_nearer` of each item.
        """
        counts = np.array([len(places) for places in candidates])
        ends, count = np.concatenate([[0], np.cumsum(counts)]), len(counts)
        places = np.concatenate(candidates).astype(np.int64)
        near, all_of_them = np.concatenate(halves) / 2.0, np.ones(len(places))
        nearer, known = (scipy.sparse.csr_array((one, places, ends), shape=(count, count)) for one in (near, all_of_them))
        return cls(nearer, known)

    def on_own_side(self, sides: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the share of each item's candidates on its own side that are nearer than the true item; ties count one half.

        At 0, the true item is the nearest. Without information about the item, the mean share is 1/2; an item without
        candidates on its side has the share 1/2, too.

        Args:
            sides: (num_draws, num_items) bool, True for the items on the first side of each draw.

        Returns:
            (num_draws, num_items).
        """
        first = sides.T.astype(np.float64)
        near, known = (self._of_side(table, first) for table in (self.nearer, self.candidates))
        return np.divide(near, known, out=np.full_like(near, 0.5), where=known > 0).T

    def _of_side(self, table: scipy.sparse.csr_array, first: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of a table's rows over the columns on the row's own side, (num_items, num_draws)."""
        on_first, whole = table @ first, np.asarray(table.sum(axis=1)).reshape(-1, 1)
        sums: NDArray[np.float64] = np.where(first > 0, on_first, whole - on_first)
        return sums
