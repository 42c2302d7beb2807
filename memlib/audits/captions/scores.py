"""Objects named by public neighbours of a caption, and by its words alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

BLOCK = 4096  # captions whose votes are dense at a time
NEARER = 1e-6  # weight of a vote's rank: between equal votes, objects of nearer images come first
RIDGE = 1.0  # weight of the penalty of the word model
SHIFTS = 20  # exchanges of neighbours for the recall by chance


@dataclass(frozen=True)
class Asked:
    """Objects in the images of the captions that are asked, and those that are known without a model.

    Attributes:
        objects: all objects in the images, (num_captions, num_objects).
        named: those that the captions name.
        implied: unnamed objects that the words make more likely than not.
    """

    objects: scipy.sparse.csr_array
    named: scipy.sparse.csr_array
    implied: scipy.sparse.csr_array

    @property
    def unnamed(self) -> scipy.sparse.csr_array:
        """Objects in the images that the captions do not name."""
        return scipy.sparse.csr_array(self.objects - self.named)


@dataclass(frozen=True)
class Answers:
    """Numbers of objects of several kinds among those named for each caption, (num_captions,) each."""

    recovered: NDArray[np.int64]
    wrong: NDArray[np.int64]
    unimplied: NDArray[np.int64]
    named: NDArray[np.int64]


def votes_of(neighbors: NDArray[np.int64], public: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return the votes for each object, (num_captions, num_objects): the number of neighbours whose image shows it.

    Args:
        neighbors: (num_captions, k) rows of the public images, nearest first.
        public: objects of the public images.
    """
    count, k = neighbors.shape
    weights = np.tile(1 + NEARER * np.arange(k, 0, -1), count)
    places = (np.repeat(np.arange(count), k), neighbors.reshape(-1))
    chosen = scipy.sparse.csr_array((weights, places), shape=(count, public.shape[0]))
    return scipy.sparse.csr_array(chosen @ public)


def most_voted(votes: NDArray[np.float64], count: int, *, without: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Return the objects with the most votes, at most `count` for each caption, as a mask (num_captions, num_objects).

    Args:
        votes: (num_captions, num_objects); objects without votes are never chosen.
        count: number of objects.
        without: objects that are not chosen.

    Example:
        >>> import numpy as np
        >>> most_voted(np.array([[3.0, 2.0, 1.0, 0.0]]), 2, without=np.array([[True, False, False, False]])).tolist()
        [[False, True, True, False]]
    """
    open_ = votes if without is None else np.where(without, 0.0, votes)
    taken = np.argsort(-open_, axis=1, kind="stable")[:, :count]
    mask = np.zeros(votes.shape, dtype=bool)
    np.put_along_axis(mask, taken, True, axis=1)
    found: NDArray[np.bool_] = mask & (open_ > 0)
    return found


def answers(votes: scipy.sparse.csr_array, asked: Asked, count: int) -> Answers:
    """Return how many objects of each kind are among the `count` objects with the most votes that the caption does not name.

    Named objects are counted among as many objects with the most votes as the caption names.
    """
    parts = []
    for start in range(0, votes.shape[0], BLOCK):
        rows = slice(start, start + BLOCK)
        dense, objects, named, implied = (part[rows].toarray() for part in (votes, asked.objects, asked.named, asked.implied))
        objects, named, implied = objects > 0, named > 0, implied > 0
        guesses, unnamed = most_voted(dense, count, without=named), objects & ~named
        most = int(named.sum(axis=1).max(initial=0))
        order = np.argsort(-dense, axis=1, kind="stable")[:, :most]
        is_asked = np.arange(most)[None] < named.sum(axis=1)[:, None]
        of_named = np.take_along_axis(named & (dense > 0), order, axis=1) & is_asked
        right = guesses & unnamed
        kinds = (right, guesses & ~objects, right & ~implied, of_named)
        parts.append([mask.sum(axis=1) for mask in kinds])
    columns: list[NDArray[np.int64]] = [np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True)]
    return Answers(*columns)


def likelihoods(
    words: NDArray[np.int32], public_words: NDArray[np.int32], public: scipy.sparse.csr_array, num_words: int
) -> NDArray[np.float32]:
    """Return how likely each object is given the words of a caption, without any image: (num_captions, num_objects).

    A linear model of the presence of each word is fitted to the public captions by ridge regression.

    Args:
        words: (num_captions, length) numbers of words; numbers below 2 stand for no known word.
        public_words: the same for the public captions.
        public: objects of the public images.
        num_words: number of words that occur.
    """
    seen, frequency = _presence(public_words, num_words), np.asarray(public.mean(axis=0)).ravel()
    kept = np.flatnonzero(np.asarray(seen.sum(axis=0)).ravel() > 1)  # a word of one caption says nothing of others
    seen, asked = seen[:, kept], _presence(words, num_words)[:, kept]
    mean = np.asarray(seen.mean(axis=0)).ravel()
    gram = (seen.T @ seen).toarray() - seen.shape[0] * np.outer(mean, mean) + RIDGE * np.eye(len(kept))
    moments = (seen.T @ public).toarray() - seen.shape[0] * np.outer(mean, frequency)
    weights = scipy.linalg.solve(gram, moments, assume_a="pos")
    found: NDArray[np.float32] = (asked @ weights - mean @ weights + frequency).astype(np.float32)
    return found


def _presence(words: NDArray[np.int32], num_words: int) -> scipy.sparse.csr_array:
    """Return indicators of the words of each caption, (num_captions, num_words)."""
    rows, places = np.nonzero(words > 1)
    matrix = scipy.sparse.csr_array((np.ones(len(rows)), (rows, words[rows, places])), shape=(len(words), num_words))
    matrix.data[:] = 1.0  # a word that occurs twice in a caption counts once
    return matrix


def chance(votes: scipy.sparse.csr_array, asked: Asked, count: int) -> float:
    """Return the mean recall of unnamed objects if each caption had the neighbours of another one.

    The neighbours of all captions are shifted by `SHIFTS` different numbers of captions.
    """
    total, number = asked.unnamed.sum(axis=1), votes.shape[0]
    known, found = total > 0, []
    for shift in np.unique(np.linspace(1, number - 1, min(SHIFTS, number - 1)).astype(int)):
        moved = votes[np.roll(np.arange(number), shift)]
        found.append((answers(moved, asked, count).recovered[known] / total[known]).mean())
    return float(np.mean(found)) if found else float("nan")
