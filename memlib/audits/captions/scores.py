"""Objects named by public neighbours of a caption, and by its words alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

BLOCK = 4096  # captions whose votes are dense at a time
NEARER = 1e-6  # weight of a vote's rank: between equal votes, objects of nearer images come first
RIDGE = 1.0  # weight of the penalty of the word model
MOST_WORDS = 5_000  # words of the word model
LIKELY = 0.5  # likelihood, given the words, from which on an object is implied
SHIFTS = 20  # exchanges of neighbours for the recall by chance


@dataclass(frozen=True)
class Asked:
    """Objects in the images of the captions that are asked, and those that are known without a model."""

    objects: scipy.sparse.csr_array  #: all objects in the images, (num_captions, num_objects).
    named: scipy.sparse.csr_array  #: those that the captions name.
    implied: scipy.sparse.csr_array  #: unnamed objects that the words make more likely than not.

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


@dataclass(frozen=True)
class WordModel:
    """A linear model of objects given the words of a caption, fitted to public pairs by ridge regression; sees no image."""

    kept: NDArray[np.int64]  #: words that occur in several public captions, at most `MOST_WORDS` of the most frequent ones.
    mean: NDArray[np.float64]  #: share of the public captions that have each of these words.
    frequency: NDArray[np.float64]  #: share of the public images that show each object.
    weights: NDArray[np.float64]  #: (num_kept, num_objects).

    @classmethod
    def fit(cls, words: NDArray[np.int32], objects: scipy.sparse.csr_array) -> WordModel:
        """Fit the model to public pairs.

        Args:
            words: (num_captions, length) numbers of words, by falling frequency; numbers below 2 stand for no known word.
            objects: objects in their images.
        """
        seen = _presence(words)
        kept = np.flatnonzero(np.asarray(seen.sum(axis=0)).ravel() > 1)[:MOST_WORDS]  # a single caption's word says nothing
        seen, count = seen[:, kept], seen.shape[0]
        mean, frequency = (np.asarray(one.mean(axis=0)).ravel() for one in (seen, objects))
        gram = (seen.T @ seen).toarray() - count * np.outer(mean, mean) + RIDGE * np.eye(len(kept))
        moments = (seen.T @ objects).toarray() - count * np.outer(mean, frequency)
        return cls(kept, mean, frequency, scipy.linalg.solve(gram, moments, assume_a="pos"))

    def likelihoods(self, words: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return how likely each object is, (num_captions, num_objects), given words of captions (num_captions, length)."""
        found: NDArray[np.float64] = (_presence(words, self.kept) - self.mean) @ self.weights + self.frequency
        return found


def known_by_words(
    model: WordModel, words: NDArray[np.int32], objects: scipy.sparse.csr_array, named: scipy.sparse.csr_array, count: int
) -> tuple[scipy.sparse.csr_array, NDArray[np.int64]]:
    """Return what the words of captions say of the objects that they do not name.

    Args:
        objects, named: objects in the images, and those that the captions name.
        count: number of objects that are named for each caption.

    Returns:
        unnamed objects that are more likely than not; and (num_captions,) number of unnamed objects among the `count`
        likeliest ones.
    """
    implied, right = [], []
    for start in range(0, len(words), BLOCK):
        rows = slice(start, start + BLOCK)
        likely, is_named = model.likelihoods(words[rows]), named[rows].toarray() > 0
        unnamed = (objects[rows].toarray() > 0) & ~is_named
        implied.append(scipy.sparse.csr_array((unnamed & (likely >= LIKELY)).astype(np.float32)))
        right.append((most_voted(likely, count, without=is_named) & unnamed).sum(axis=1))
    return scipy.sparse.csr_array(scipy.sparse.vstack(implied)), np.concatenate(right)


def _presence(words: NDArray[np.int32], kept: NDArray[np.int64] | None = None) -> Any:
    """Return indicators of the words of each caption: sparse (num_captions, largest number + 1), or dense of some words."""
    rows, places = np.nonzero(words > 1)
    size = int(max(words.max(initial=1), -1 if kept is None else kept.max(initial=1))) + 1
    matrix = scipy.sparse.csr_array((np.ones(len(rows)), (rows, words[rows, places])), shape=(len(words), size))
    matrix.data[:] = 1.0  # a word that occurs twice in a caption counts once
    return matrix if kept is None else matrix[:, kept].toarray()


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
