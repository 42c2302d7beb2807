"""Likeness of a target model and its shadow models: utility and calibration of the target within the shadows' range.

An attack that is calibrated on shadow models holds for a target only as far as the target is like them. The comparison can
show that a target is unlike its shadows; it cannot show that it is like them in what was not measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.randomization import two_sided_p

BINS = 15  # of the calibration error (Guo et al. 2017)
FAR = 4.0  # distance, in standard deviations, from which a target is unlike its shadows
SKEW = 5  # Student's law gets a fifth of the level, as the numbers of a few models are skewed
MANY = 16  # shadows from which on it counts that none of them varies
MEMBERS, NON_MEMBERS, POOLED = "members", "non-members", "all"

Utility = Mapping[str, NDArray[np.float64]]
"""Numbers of models by name, such as "loss, members": (num_models,) each."""


@dataclass(frozen=True)
class Likeness:
    """A statistic of the target compared with the same statistic of its shadows."""

    name: str  #: the statistic, and the examples over which it was computed.
    value: float  #: the target's value.
    low: float  #: low, high: smallest and largest value among the shadows.
    high: float
    #: two-sided, from the target's rank among the N shadows: min(1, 2 (1 + b) / (N + 1)), where b is the number of shadows at
    #: or above the target's value, or at or below it, whichever is smaller.
    p_value: float
    #: target minus mean of the shadows, in standard deviations of a new shadow's difference from that mean; infinite if the
    #: shadows do not vary and the target differs.
    distance: float
    shadows: int  #: number of shadows.


def utility(
    odds: NDArray[np.floating],
    correct: NDArray[np.bool_],
    member: NDArray[np.bool_] | None = None,
    *,
    confidence: NDArray[np.floating] | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Compute mean loss, accuracy, calibration error and mean confidence of models, on members and on non-members.

    The loss is -log p of the true class; the calibration error is the expected one over 15 bins of equal width (Guo et al.
    2017).

    Args:
        odds: (num_models, num_units) or (num_units,) log odds of the true class, finite.
        correct: of the same shape, whether the model's answer is the true class.
        member: of the same shape, or (num_units,) for all models, whether the model was trained on the unit; None if this is
            not known, for numbers over all units together.
        confidence: of the same shape, probability of the model's answer; None: p of the true class where it is the answer,
            else 1 - p, which is the same for two classes and an upper bound for more. Shadows and target must be treated
            alike.

    Returns:
        (num_models,) by name; NaN for a model without members, or without non-members.

    Raises:
        UserError: for log odds that are not finite.

    Example:
        >>> import numpy as np
        >>> found = utility(np.log([[3.0, 3.0, 1 / 3]]), np.array([[True, True, False]]), np.array([[True, False, False]]))
        >>> found["accuracy, members"].tolist(), found["accuracy, non-members"].tolist(), len(found)
        ([1.0], [0.5], 8)
    """
    if not np.isfinite(odds).all():
        wrong = int((~np.isfinite(odds)).sum())
        raise UserError(f"{wrong} of {odds.size} log odds are not finite; smooth or clip probabilities of 0 and 1")
    values, right = np.atleast_2d(odds).astype(np.float64), np.atleast_2d(correct)
    own = scipy.special.expit(values)
    sure = np.where(right, own, 1 - own) if confidence is None else np.atleast_2d(confidence).astype(np.float64)
    loss = np.logaddexp(0.0, -values)
    found = {}
    for name, mask in _sides(member, values.shape):
        found[f"loss, {name}"] = _mean(loss, mask)
        found[f"accuracy, {name}"] = _mean(right.astype(np.float64), mask)
        found[f"calibration error, {name}"] = _calibration_error(sure, right, mask)
        found[f"confidence, {name}"] = _mean(sure, mask)
    return found


def likeness(shadows: Utility, target: Mapping[str, float | NDArray[np.float64]]) -> tuple[Likeness, ...]:
    """Compare the numbers of a target with those of its shadows, name by name.

    Args:
        shadows: `utility` of the shadows, at least three.
        target: `utility` of the target, one number per name; only names that both have are compared.

    Returns:
        a row for each name, in the target's order; numbers that the target or fewer than three shadows have are left out.

    Raises:
        UserError: if shadows and target have no number in common.

    Example:
        >>> import numpy as np
        >>> row, = likeness({"loss, all": np.array([0.9, 1.0, 1.1])}, {"loss, all": 1.0})
        >>> row.p_value, row.distance
        (1.0, 0.0)
    """
    rows = []
    for name, given in target.items():
        value = float(np.asarray(given).reshape(()) if np.ndim(given) == 0 else np.asarray(given).reshape(-1)[0])
        others = np.asarray(shadows.get(name, ()), dtype=np.float64)
        others = others[np.isfinite(others)]
        if len(others) >= 3 and math.isfinite(value):
            rows.append(_row(name, value, others))
    if not rows:
        raise UserError(
            "no measure is finite for the target and at least 3 shadows; compute `utility` of both on the same examples"
        )
    return tuple(rows)


def is_out(row: Likeness, level: float) -> bool:
    """Return True if one number of a target is out of its shadows' law at a level.

    It is out of it if its rank p-value is at most the level (which takes many shadows), or if its distance exceeds 4 and, for
    few shadows, Student's quantile for a fifth of that level. A number in which fewer than 16 shadows do not vary at all
    decides nothing. At a level of 5 % divided by the number of rows, some number is out of it for at most about 5 % of the
    targets that were trained like their shadows.
    """
    if math.isinf(row.distance) and row.shadows < MANY:
        return False
    far = max(FAR, float(scipy.stats.t.isf(level / (2 * SKEW), row.shadows - 1)))
    return row.p_value <= level or abs(row.distance) > far


def _row(name: str, value: float, others: NDArray[np.float64]) -> Likeness:
    count, spread = len(others), float(others.std(ddof=1))
    gap = value - float(others.mean())
    tiny = 1e-12 * max(1.0, abs(value))  # rounding of a mean of equal numbers
    scale = spread * math.sqrt(1 + 1 / count)
    away = gap / scale if spread > tiny else 0.0 if abs(gap) <= tiny else math.copysign(math.inf, gap)
    return Likeness(name, value, float(others.min()), float(others.max()), two_sided_p(value, others), away, count)


def _sides(member: NDArray[np.bool_] | None, shape: tuple[int, ...]) -> list[tuple[str, NDArray[np.bool_]]]:
    if member is None:
        return [(POOLED, np.ones(shape, dtype=bool))]
    inside = np.broadcast_to(np.atleast_2d(member), shape)
    return [(MEMBERS, inside), (NON_MEMBERS, ~inside)]


def _mean(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean of each row where the mask is set, (num_models,); NaN where it is set nowhere."""
    return _per_unit((values * mask).sum(axis=1), mask)


def _calibration_error(
    confidence: NDArray[np.float64], correct: NDArray[np.bool_], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the expected calibration error of each model (Guo et al. 2017, equation 3), (num_models,)."""
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # bins are open below, closed above
    models = len(confidence)
    flat = (np.arange(models)[:, None] * BINS + place)[mask]
    gaps = np.bincount(flat, weights=(confidence - correct)[mask], minlength=models * BINS).reshape(models, BINS)
    return _per_unit(np.abs(gaps).sum(axis=1), mask)


def _per_unit(sums: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    found, count = np.full(len(sums), np.nan), mask.sum(axis=1)
    np.divide(sums, count, out=found, where=count > 0)
    return found
