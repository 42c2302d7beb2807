"""Preflight for canaries in a trainer elsewhere: checks that its data pipeline trains on them at all.

Canaries that are masked, cut off or left out cannot be remembered, and an audit of such a training would find nothing,
whatever the model remembers of other data. Nor would it if the training also got the canaries whose coin is "out". The checks
look at batches as the owner's collator makes them.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import nn

from memlib.errors import UserError
from memlib.observe.canary_likelihoods import EncodedCanary
from memlib.sanitize import count_of

GRAM = 4  # tokens in a row by which a part of a canary is recognized, at least
CHANCE = 1e-6  # probability of such tokens by chance in another canary, at most; rows of single digits need more of them
IGNORED = -100  # label without a loss in PyTorch and transformers
MOST_CUT = 0.2  # share of canaries that may be cut where texts are packed into blocks
ENOUGH = 8  # items that are collated at a time; canaries to look at where the collator tokenizes the data
UNFAIR = 1e-6  # p-value of the number of canaries below which no fair coin has chosen them
MORE = 1.5  # factor between rows with a canary and repeats from which on it is remarked on
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of the digests of rows of tokens


@dataclass(frozen=True)
class BatchCheck:
    """The result of a preflight."""

    seen: int  #: occurrences of canaries, whole or in part.
    found: int  #: number of different canaries among them.
    cut: int  #: number of occurrences with missing tokens.
    masked: int  #: number of occurrences without a loss on any token.
    part_masked: int  #: number of occurrences with a loss on some tokens only.
    problems: tuple[str, ...]  #: reasons why the canaries are not trained on, each with a remedy; none if they are.
    remarks: tuple[str, ...] = ()  #: observations that need not be a problem.


@dataclass(frozen=True)
class _Tally:
    """Counts of canaries in batches, as in `BatchCheck`; `shifted` is True if some labels differ from the input tokens.

    `found` holds the numbers of the canaries, and `whole` of those without a missing token.
    """

    seen: int = 0
    found: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    cut: int = 0
    masked: int = 0
    part_masked: int = 0
    shifted: bool = False
    labelled: bool = True

    def __add__(self, other: "_Tally") -> "_Tally":
        return _Tally(
            self.seen + other.seen, self.found | other.found, self.whole | other.whole, self.cut + other.cut,
            self.masked + other.masked, self.part_masked + other.part_masked,
            self.shifted or other.shifted, self.labelled and other.labelled,
        )  # fmt: skip


@dataclass
class _Occurrence:
    """An occurrence of a canary in one row: the canary's number, and places in the row by index of the token."""

    canary: int
    places: dict[int, int] = field(default_factory=dict)


class CanaryIndex:
    """Index of canaries by sequences of their tokens, for finding them in batches, whole or in part; `count` is their number.

    The first and the last token of a random part are left out, as they may merge with the text around it.

    Args:
        canaries: tokens of the random part of each canary.

    Raises:
        UserError: when no canary has a sequence of tokens that occurs in no other canary.
    """

    def __init__(self, canaries: Sequence[Sequence[int]]) -> None:
        inner = [tuple(row[1:-1] if len(row) > 2 * GRAM else row) for row in canaries]
        self.count = len(inner)
        self._size = min(_recognizable(inner), min((len(row) for row in inner), default=0))
        places: dict[tuple[int, ...], tuple[int, int] | None] = {}
        for number, row in enumerate(inner):
            for offset in range(len(row) - self._size + 1):
                gram = row[offset : offset + self._size]
                places[gram] = None if gram in places else (number, offset)
        self._places = {gram: place for gram, place in places.items() if place is not None}
        if not self._size or not self._places:
            raise UserError("the canaries cannot be told apart by their tokens; use a longer format")
        self._digests = np.unique(_digests(np.array(list(self._places), dtype=np.int64).reshape(-1), self._size, self._size))
        self._whole: dict[int, set[int]] = {}
        for number, offset in self._places.values():
            self._whole.setdefault(number, set()).update(range(offset, offset + self._size))

    @classmethod
    def of(cls, canaries: Iterable[EncodedCanary]) -> "CanaryIndex":
        """Return the index of encoded canaries."""
        return cls([one.span for one in canaries])

    def find(self, row: NDArray[np.integer]) -> list[_Occurrence]:
        """Return the canaries of which at least a part is in a row of tokens (length,)."""
        found: dict[int, _Occurrence] = {}
        for start in self._candidates(row):
            place = self._places.get(tuple(row[start : start + self._size].tolist()))
            if place is not None:
                occurrence = found.setdefault(place[0], _Occurrence(place[0]))
                occurrence.places |= {place[1] + step: start + step for step in range(self._size)}
        return list(found.values())

    def is_whole(self, occurrence: _Occurrence) -> bool:
        """Return True if all tokens by which the canary is recognized were found."""
        return occurrence.places.keys() >= self._whole[occurrence.canary]

    def _candidates(self, row: NDArray[np.integer]) -> list[int]:
        digests = _digests(row, self._size, 1)
        places = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        hits: list[int] = np.flatnonzero(self._digests[places] == digests).tolist()
        return hits


def check_batch(
    batch: Mapping[str, Any], canaries: CanaryIndex | Sequence[Sequence[int]], *, model: nn.Module | None = None
) -> BatchCheck:
    """Check that a batch trains a model on the canaries in it.

    Args:
        batch: a batch of the collator: input_ids (num_rows, length), and labels of the same shape.
        canaries: an index, or the tokens of the random part of each canary.
        model: the model; its parameters are checked, too.

    Example:
        >>> canary, row = [5, 7, 1, 8, 2, 6], [0, 5, 7, 1, 8, 2, 6, 0]
        >>> check_batch({"input_ids": [row], "labels": [row]}, [canary]).problems
        ()
        >>> masked = check_batch({"input_ids": [row], "labels": [[-100] * 8]}, [canary])
        >>> masked.masked, masked.problems[0][:42]
        (1, 'labels are -100 on all tokens of 1 of 1 ca')
    """
    index = canaries if isinstance(canaries, CanaryIndex) else CanaryIndex(canaries)
    return _judged(_tallied(batch, index), model)


def check_dataset(
    dataset: Any,
    collate: Callable[[list[Any]], Mapping[str, Any]],
    canaries: CanaryIndex,
    *,
    model: nn.Module | None = None,
    inside: NDArray[np.bool_] | None = None,
    repeats: int = 1,
) -> BatchCheck:
    """Check that a training set and its collator train a model on the inserted canaries; random states are restored.

    Without coins, the canaries must be as many as fair coins choose. A data set whose items are tokenized by the collator is
    searched up to the first `ENOUGH` canaries only.

    Args:
        dataset: a training set with a length, whose items the collator takes.
        model: the model; its parameters are checked, too.
        inside: the coins (num_canaries,), if they are known.
        repeats: number of times that each inserted canary was given.
    """
    total, is_whole = _Tally(), True
    with same_random_states():
        for items in _with_canaries(dataset, canaries):
            total += _tallied(collate(items), canaries)
            is_whole &= all(map(_has_tokens, items))
            if not is_whole and total.seen >= ENOUGH:
                break
    judged = _judged(total, model)
    if not total.seen:
        return judged
    if not is_whole:
        part = f"the first {count_of(total.seen, 'canary', 'canaries')} were looked at, as the collator tokenizes the data"
        return replace(judged, remarks=(*judged.remarks, part))
    if inside is None:
        problems, remarks = _as_fair_coins_choose(total, canaries.count)
    else:
        problems, remarks = _as_inserted(total, inside, repeats)
    return replace(judged, problems=(*judged.problems, *problems), remarks=(*judged.remarks, *remarks))


def _as_fair_coins_choose(tally: _Tally, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a problem if fair coins do not choose as many canaries, and a remark if they do not choose as few.

    Parts of other canaries may be in the data by chance, and a process of several may hold a part of the data.
    """
    found = max(len(tally.whole), min(len(tally.found), count // 2))
    said = f"{found} of {count} canaries are in the training data, where fair coins choose about half"
    if scipy.stats.binomtest(found, count).pvalue >= UNFAIR:
        return (), ()
    if found > count / 2:
        return (f"{said}; add insert.jsonl, not all.jsonl",), ()
    return (), (f"{said}; add the whole of insert.jsonl, unless this is a part of the data",)


def _as_inserted(tally: _Tally, inside: NDArray[np.bool_], repeats: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the differences between the canaries of a training set and those that were inserted: problems, and remarks."""
    wanted = set(np.flatnonzero(inside).tolist())
    missing, others, times = len(wanted - tally.found), len(tally.whole - wanted), tally.seen / len(tally.found)
    asked = count_of(repeats, "time was", "times were")
    occur = f"a canary is in {times:.3g} rows on average, where {asked} asked for; keep repeated texts, and repeat no others"
    problems = {
        f"{missing} of {len(wanted)} inserted canaries are not in the training data; add the whole of insert.jsonl": missing
        > 0,
        f"{others} of {len(inside) - len(wanted)} canaries whose coin is 'out' are in the training data; add insert.jsonl, "
        "not all.jsonl": others,
    }
    is_odd = times > MORE * repeats or MORE * times < repeats
    return tuple(text for text, holds in problems.items() if holds), (occur,) if is_odd else ()


@contextmanager
def same_random_states() -> Iterator[None]:
    """Restore the random states of Python, NumPy and PyTorch after a block, which collators may advance."""
    python, numpy = random.getstate(), np.random.get_state()
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _with_canaries(dataset: Any, canaries: CanaryIndex) -> Iterator[list[Any]]:
    """Yield lists of a training set's items; items that have tokens already are left out if they hold no canary."""
    items = (dataset[row] for row in range(len(dataset)))
    chosen = (item for item in items if not _has_tokens(item) or canaries.find(_row(item["input_ids"])))
    while some := list(islice(chosen, ENOUGH)):
        yield some


def _has_tokens(item: Any) -> bool:
    return isinstance(item, Mapping) and "input_ids" in item


def _row(values: Any) -> NDArray[np.int64]:
    """Return tokens or labels, a tensor or a list, as (length,)."""
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, dtype=np.int64).reshape(-1)


def _tallied(batch: Mapping[str, Any], index: CanaryIndex) -> _Tally:
    labels = batch.get("labels")
    total = _Tally(labelled=labels is not None)
    for place, ids in enumerate(batch["input_ids"]):
        row = _row(ids)
        for occurrence in index.find(row):
            total += _one(occurrence, index, row, row if labels is None else _row(labels[place]))
    return total


def _one(occurrence: _Occurrence, index: CanaryIndex, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> _Tally:
    places, number, is_whole = list(occurrence.places.values()), frozenset({occurrence.canary}), index.is_whole(occurrence)
    trained = labels[places] != IGNORED
    return _Tally(
        seen=1,
        found=number,
        whole=number if is_whole else frozenset(),
        cut=int(not is_whole),
        masked=int(not trained.any()),
        part_masked=int(trained.any() and not trained.all()),
        shifted=bool((trained & (labels[places] != ids[places])).any()),
    )


def _judged(tally: _Tally, model: nn.Module | None) -> BatchCheck:
    of, many = f"of {count_of(tally.seen, 'canary', 'canaries')}", tally.cut > MOST_CUT * tally.seen
    cut = f"tokens are missing from {tally.cut} {of}"
    problems = {
        "no parameter of the model requires a gradient; load adapters as trainable (is_trainable=True)": _is_frozen(model),
        "there are no labels, so that the model computes no loss; use a collator that adds them": not tally.labelled,
        "no canary was found; add insert.jsonl to the training data, and check with the training's tokenizer": not tally.seen,
        f"labels are -100 on all tokens of {tally.masked} {of}; unmask the part with the canary": tally.masked > 0,
        f"labels are -100 on some tokens of {tally.part_masked} {of}; unmask the part with the canary": tally.part_masked > 0,
        f"labels differ from the input tokens in some {of}; leave shifting labels to the model": tally.shifted,
        f"{cut}; raise the maximum length, or make canaries of a shorter format": many,
    }
    remarks = (f"{cut}, as happens when texts are packed into blocks",) if tally.cut and not many else ()
    found = tuple(text for text, holds in problems.items() if holds)
    return BatchCheck(tally.seen, len(tally.found), tally.cut, tally.masked, tally.part_masked, found, remarks)


def _is_frozen(model: nn.Module | None) -> bool:
    return model is not None and not any(parameter.requires_grad for parameter in model.parameters())


def _recognizable(rows: Sequence[Sequence[int]]) -> int:
    """Return the number of successive tokens that are unlikely to recur by chance, by the entropy of the rows' tokens."""
    tokens = [token for row in rows for token in row]
    _, counts = np.unique(tokens, return_counts=True)
    entropy = float(scipy.stats.entropy(counts)) if len(counts) > 1 else 1.0
    return max(GRAM, math.ceil(math.log(max(1, len(tokens)) / CHANCE) / entropy))


def _digests(row: NDArray[np.integer], size: int, step: int) -> NDArray[np.uint64]:
    """Return digests of each `size` tokens in a row (length,), from every `step`th place on."""
    windows = np.lib.stride_tricks.sliding_window_view(row, size)[::step] if len(row) >= size else np.zeros((0, size), int)
    digests = np.zeros(len(windows), dtype=np.uint64)
    for column in windows.T:
        digests = digests * MULTIPLIER + column.astype(np.uint64)
    return digests
