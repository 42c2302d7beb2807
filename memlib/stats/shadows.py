"""Shadow models: their log odds and training sets, and summaries of these per example from which a model can be left out.

The signal of a model is the log odds phi = z_y - logsumexp of the other logits z, from which log p_y = -log(1 + exp(-phi)).

In and out models are taken by masks, so any inclusion is possible. Examples with few in or out models never give NaN: with
one model, its value is the centre, and the spread is that of all examples; without any, the centre is that of the other side,
moved by the mean difference between the sides over all examples with both.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError

LOWEST = -700.0  # smallest log odds whose probability enters a mean; exp(700) is finite
NEAR = 1e-12  # relative difference below which a term is the largest: exp may round otherwise in another block
CLOSE = 1e-3  # a rest below this part of the largest term is not found by subtraction
_BLOCK = 2**17  # log odds that are summarized at a time: they fit into a cache
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Shadows:
    """Log odds of shadow models, and the examples that each was trained on."""

    #: (num_models, num_queries, num_examples) float32 or float64, finite log odds of the true class.
    odds: NDArray[np.floating]
    inside: NDArray[np.bool_]  #: (num_models, num_examples) bool, True where the model was trained on the example.
    #: (num_examples,) int, or None for a single pool; `Lira` pools the variances of examples of one pool.
    pools: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        assert self.odds.ndim == 3, f"log odds have three axes, not {self.odds.ndim}"
        models, _, examples = self.odds.shape
        assert self.inside.shape == (models, examples), "inclusion of each example by each model"
        assert np.isfinite(self.odds).all(), "log odds are finite: clip probabilities of 0 and 1 and state the clip"

    @property
    def num_models(self) -> int:
        """Number of models."""
        return len(self.odds)

    def without(self, model: int) -> "Shadows":
        """Return the other models."""
        odds, inside = (np.delete(values, model, axis=0) for values in (self.odds, self.inside))
        return dataclasses.replace(self, odds=odds, inside=inside)

    def by_person(self, persons: NDArray[np.integer], how: "How") -> "Shadows":
        """Return the shadows with persons as units; see `by_person`.

        Persons with 1, 2 to 3, 4 to 7, ... examples are in separate pools, as aggregates of many examples vary less.

        Args:
            persons: (num_examples,) person of each example; inclusion must not vary within a person.
            how: aggregate of her examples.
        """
        _, first, place, rows = np.unique(persons, return_index=True, return_inverse=True, return_counts=True)
        inside = self.inside[:, first]
        assert (inside[:, place] == self.inside).all(), "a model sees either all or none of a person's examples"
        return Shadows(by_person(self.odds, persons, how), inside, np.log2(rows).astype(np.int64))


def log_p(odds: NDArray[np.floating]) -> Values:
    """Return log p of log odds, exact at both ends: -log(1 + exp(-phi)).

    Example:
        >>> import numpy as np
        >>> log_p(np.array([0.0, 50.0, -800.0])).tolist()  # the last p is below the smallest float
        [-0.6931471805599453, -1.9287498479639178e-22, -800.0]
    """
    values = odds.astype(np.float64)
    logs: Values = np.minimum(values, 0) - np.log1p(np.exp(-np.abs(values)))
    return logs


@dataclass(frozen=True)
class Side:
    """Moments of the in models or of the out models of each example."""

    count: Values  #: (num_examples,) number of models.
    mean: Values  #: (num_queries, num_examples) mean value; 0 without models.
    squares: Values  #: (num_queries, num_examples) sum of squared deviations from the mean.

    def without(self, values: Values, present: NDArray[np.bool_]) -> "Side":
        """Return the moments without a model's values (num_queries, num_examples), where it is `present` (num_examples,)."""
        rest = self.count - present
        change = np.where(present, values - self.mean, 0.0)
        mean = np.where(rest > 0, self.mean - change / np.maximum(rest, 1), 0.0)
        squares = np.maximum(self.squares - np.square(change) * (self.count / np.maximum(rest, 1)), 0.0)
        return Side(rest, mean, np.where(rest > 1, squares, 0.0))

    def of(self, chosen: NDArray[np.bool_]) -> "Side":
        """Return the moments of some examples, by their mask (num_examples,)."""
        return Side(self.count[chosen], self.mean[:, chosen], self.squares[:, chosen])

    @property
    def freedom(self) -> Values:
        """Degrees of freedom of the spread around each example's own mean, (num_examples,)."""
        return np.maximum(self.count - 1, 0)


@dataclass(frozen=True)
class Moments:
    """Moments of the values of shadows per example, in and out; a model can be left out."""

    inner: Side  #: inner, outer: moments of the in and of the out models.
    outer: Side
    shadows: Shadows  #: the shadows.
    is_log_p: bool  #: True if the values are log p instead of log odds.

    @classmethod
    def of(cls, shadows: Shadows, *, is_log_p: bool = False) -> "Moments":
        """Compute the moments in one pass over the shadows."""
        blocks = [_sides(log_p(odds) if is_log_p else odds.astype(np.float64), inside) for odds, inside in blocks_of(shadows)]
        inner, outer = (_joined(sides) for sides in zip(*blocks, strict=True))
        return cls(inner, outer, shadows, is_log_p)

    def values(self, odds: NDArray[np.floating]) -> Values:
        """Convert log odds to the values that the moments summarize: log p if `is_log_p`, else the log odds in float64."""
        return log_p(odds) if self.is_log_p else odds.astype(np.float64)

    def without(self, model: int) -> "Moments":
        """Return the moments of the other models."""
        values, inside = self.values(self.shadows.odds[model]), self.shadows.inside[model]
        inner, outer = self.inner.without(values, inside), self.outer.without(values, ~inside)
        return dataclasses.replace(self, inner=inner, outer=outer)

    def centres(self) -> tuple[Values, Values]:
        """Return the means of the in and of the out models; see `_bridged` for sides without models."""
        return _bridged(self.inner.mean, self.outer.mean, self.inner.count, self.outer.count)


@dataclass(frozen=True)
class Sum:
    """Sum of probabilities over models, from which one can be taken away without loss of precision.

    The largest term is kept apart: what remains without it is not the difference of two nearly equal numbers.
    """

    count: Values  #: (num_examples,) number of models.
    #: (num_queries, num_examples) sum of all terms but the largest (but one of the largest, if several are equal).
    rest: Values
    top: Values  #: (num_queries, num_examples) the largest term; 0 without models.

    @classmethod
    def of(cls, terms: Values, count: Values) -> "Sum":
        """Sum terms (num_models, num_queries, num_examples), which are 0 for models on the other side."""
        top = terms.max(axis=0)
        rest = terms.sum(axis=0) - top
        query, example = np.nonzero(rest < CLOSE * top)  # few: their rest is summed without the largest term
        rest[query, example] = np.sort(terms[:, query, example], axis=0)[:-1].sum(axis=0)
        return cls(count, rest, top)

    def without(self, p: Values, present: NDArray[np.bool_]) -> "Sum":
        """Return the sum without a model, whose probabilities are p (num_queries, num_examples) where it is `present`."""
        is_top = present & (p > (1 - NEAR) * self.top)
        rest = np.where(present & ~is_top, np.maximum(self.rest - p, 0.0), self.rest)
        return Sum(self.count - present, rest, np.where(is_top, 0.0, self.top))

    @property
    def total(self) -> Values:
        """Sum of all terms, (num_queries, num_examples)."""
        return self.rest + self.top


@dataclass(frozen=True)
class Mean:
    """Mean probability p of some models, kept precise at both ends by the sums of p and of q = 1 - p."""

    p: Sum  #: p, q: sums over the models.
    q: Sum

    def without(self, p: Values, q: Values, present: NDArray[np.bool_]) -> "Mean":
        """Return the mean without a model; see `Sum.without`."""
        return Mean(self.p.without(p, present), self.q.without(q, present))

    def log(self) -> Values:
        """Return the logarithm of the mean, (num_queries, num_examples); minus infinity without models."""
        return _log_mean(self.p.total, self.q.total, self.p.count)


@dataclass(frozen=True)
class Averages:
    """Mean probabilities of the in and of the out models per example; a model can be left out."""

    inner: Mean  #: inner, outer: means over the in and over the out models.
    outer: Mean
    shadows: Shadows  #: the shadows.

    @classmethod
    def of(cls, shadows: Shadows) -> "Averages":
        """Compute the sums in one pass over the shadows."""
        blocks = [_sums(*_p_and_q(odds), inside) for odds, inside in blocks_of(shadows)]
        in_p, out_p, in_q, out_q = (_joined(sides) for sides in zip(*blocks, strict=True))
        return cls(Mean(in_p, in_q), Mean(out_p, out_q), shadows)

    def without(self, model: int) -> "Averages":
        """Return the sums over the other models."""
        (p, q), inside = _p_and_q(self.shadows.odds[model]), self.shadows.inside[model]
        return Averages(self.inner.without(p, q, inside), self.outer.without(p, q, ~inside), self.shadows)

    def log_all(self) -> Values:
        """Return the logarithm of the mean probability over in and out models, (num_queries, num_examples)."""
        count = self.inner.p.count + self.outer.p.count
        return _log_mean(self.inner.p.total + self.outer.p.total, self.inner.q.total + self.outer.q.total, count)

    def log_out(self) -> Values:
        """Return the logarithm of the mean probability over out models, (num_queries, num_examples)."""
        logs = _bridged(self.inner.log(), self.outer.log(), self.inner.p.count, self.outer.p.count)[1]
        return np.minimum(logs, 0.0)

    def log_reference(self, *, online: bool, a: float) -> Values:
        """Return RMIA's log p(x): over all models, or offline ((1 + a) p_out + 1 - a) / 2."""
        if online:
            return self.log_all()
        logs = self.log_out()
        likely = logs > -np.log(2)  # there 1 - (1 + a) / 2 (1 - p_out) keeps what distinguishes it from 1
        near = np.log1p((1 + a) / 2 * np.expm1(np.where(likely, logs, 0.0)))
        with np.errstate(divide="ignore"):
            far = np.logaddexp(np.log((1 + a) / 2) + logs, np.log((1 - a) / 2))
        return np.where(likely, near, far)


How = Literal["max", "sum", "trimmed"]


def by_person(odds: NDArray[np.floating], persons: NDArray[np.integer], how: How) -> NDArray[np.floating]:
    """Return one signal per person, in the order of `np.unique(persons)`, from those of her examples.

    Attacks then compare a person's signal with her own signals in models without her, so that the number of her examples does
    not decide. For the same reason, "sum" is divided by their number, which changes no ranking of a person among models. Of
    the attacks, only `Lira` also compares with the spread of her signals, which is larger for few examples: false alarms of
    others need `calibrated`, or else come from persons of few examples.

    Args:
        odds: (..., num_examples) log odds, as (num_models, num_queries, num_examples).
        persons: (num_examples,) person of each example.
        how: "max"; "sum", the mean; or "trimmed", the mean of values from the 40 % quantile upwards (RaMIA: Tao and Shokri
            2024), that is, without the ceil(.4 (k - 1)) lowest of k.

    Returns:
        (..., num_persons).

    Example:
        >>> import numpy as np
        >>> odds, persons = np.array([[1.0, 2.0, 6.0, 5.0]]), np.array([7, 7, 7, 3])
        >>> by_person(odds, persons, "sum").tolist(), by_person(odds, persons, "trimmed").tolist()
        ([[5.0, 3.0]], [[5.0, 4.0]])
    """
    sizes = np.unique(persons, return_counts=True)[1]
    order, ends = np.argsort(persons, kind="stable"), np.cumsum(sizes)
    signals = np.empty((*odds.shape[:-1], len(sizes)), dtype=odds.dtype)
    for size in np.unique(sizes).tolist():  # persons with equally many examples at a time
        chosen = np.flatnonzero(sizes == size)
        rows = order[(ends[chosen] - size)[:, None] + np.arange(size)]
        signals[..., chosen] = _aggregated(odds[..., rows], how)
    return signals


def _aggregated(values: NDArray[np.floating], how: How) -> NDArray[np.floating]:
    """Return the aggregate over the last axis."""
    if how == "max":
        return np.asarray(values.max(axis=-1))
    if how == "sum":
        return np.asarray(values.mean(axis=-1))
    if how == "trimmed":
        dropped = -(-2 * (values.shape[-1] - 1) // 5)  # ceil(.4 (k - 1))
        return np.asarray(np.sort(values, axis=-1)[..., dropped:].mean(axis=-1))
    raise UserError(f'persons are scored by "max", "sum" or "trimmed", not "{how}"')


def blocks_of(shadows: Shadows) -> Iterator[tuple[NDArray[np.floating], NDArray[np.bool_]]]:
    """Yield the odds and the inclusion of some examples at a time, so that copies in float64 stay small."""
    models, queries, examples = shadows.odds.shape
    size = max(64, _BLOCK // (models * queries))
    for start in range(0, examples, size):
        block = slice(start, start + size)
        yield shadows.odds[:, :, block], shadows.inside[:, block]


def _sides(values: Values, inside: NDArray[np.bool_]) -> tuple[Side, Side]:
    """Return the moments of the in and of the out models from values (num_models, num_queries, num_examples)."""
    shift = values.mean(axis=0)  # without it, squares of large values would lose the small deviations
    shifted, weight = values - shift, inside[:, None]
    own = shifted * weight
    inner = inside.sum(axis=0, dtype=np.float64)
    sums, squares = own.sum(axis=0), np.einsum("mqn,mqn->qn", own, own)
    all_squares = np.einsum("mqn,mqn->qn", shifted, shifted)
    # The shifted values sum to 0, so that the sum over out models is that over in models, negated.
    return _side(inner, sums, squares, shift), _side(len(values) - inner, -sums, all_squares - squares, shift)


def _sums(p: Values, q: Values, inside: NDArray[np.bool_]) -> tuple[Sum, ...]:
    """Return the sums over in and out models of p, then of q; p and q are (num_models, num_queries, num_examples)."""
    count, sums = inside.sum(axis=0, dtype=np.float64), []
    for terms in (p, q):
        own = terms * inside[:, None]
        sums += [Sum.of(own, count), Sum.of(np.subtract(terms, own, out=terms), len(p) - count)]
    return tuple(sums)


def _log_mean(p: Values, q: Values, count: Values) -> Values:
    """Return the logarithm of a mean probability from the sums of p and of 1 - p, the smaller of which is precise."""
    number = np.maximum(count, 1)
    with np.errstate(divide="ignore"):
        logs = np.where(q < p, np.log1p(-np.minimum(q / number, 0.5)), np.log(p / number))
    return logs


def _side(count: Values, sums: Values, squares: Values, shift: Values) -> Side:
    """Return moments from the sums of shifted values and of their squares."""
    known = np.maximum(count, 1)
    spread = np.where(count > 1, np.maximum(squares - np.square(sums) / known, 0.0), 0.0)
    return Side(count, np.where(count > 0, shift + sums / known, 0.0), spread)


T = TypeVar("T", Side, Sum)


def _joined(parts: tuple[T, ...]) -> T:
    """Join the parts of consecutive examples."""
    names = [field.name for field in dataclasses.fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names))


def _p_and_q(odds: NDArray[np.floating]) -> tuple[Values, Values]:
    """Return the probabilities p of log odds, never 0, and 1 - p."""
    ratio = odds.astype(np.float64)
    np.maximum(ratio, LOWEST, out=ratio)
    np.exp(np.negative(ratio, out=ratio), out=ratio)
    p = ratio + 1
    np.reciprocal(p, out=p)
    return p, np.multiply(ratio, p, out=ratio)


def _bridged(inner: Values, outer: Values, in_count: Values, out_count: Values) -> tuple[Values, Values]:
    """Replace the centre of a side without models by the other side's, moved by the mean difference between the sides."""
    has_in, has_out = in_count > 0, out_count > 0
    both = has_in & has_out
    if both.all():
        return inner, outer
    shift = (inner[:, both] - outer[:, both]).mean(axis=1, keepdims=True) if both.any() else 0.0
    return np.where(has_in, inner, outer + shift), np.where(has_out, outer, inner - shift)
