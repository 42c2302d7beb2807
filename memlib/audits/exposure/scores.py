"""Exposure and p-value of each canary under each model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.exposure.recipe import Config
from memlib.audits.exposure.tables import UNITS
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.specs.text import GIVEN, RECURRING, UNSEEN
from memlib.stats.tails import fit_skew_normal

ENOUGH_BELOW = 30  # references at or below a canary needed to sample its exposure to within a third of a bit
FITS = 0.05  # p-value of the fit from which auto trusts the skew-normal law; below it, sampling gives a lower bound
ENUMERATED = "enumerated"
TINY = float(np.finfo(np.float64).tiny)  # stands in for rank / |R| where it underflows


@dataclass(frozen=True)
class Scored:
    """Observations of one model at one checkpoint."""

    variant: str  #: variant, seed, epoch: the model and the checkpoint.
    seed: int
    epoch: float
    canaries: tuple[int, ...]  #: ids of the canaries that it scored.
    kinds: tuple[str, ...]  #: kind of each canary: inserted, given, never, unseen or recurring.
    insertions: tuple[int, ...]  #: occurrences of each canary in the model's training data.
    costs: NDArray[np.int64]  #: (num_canaries,) int64, units of 2^-16 bit.
    references: NDArray[np.int64]  #: (num_references,) int64 costs of random candidates, the same ones under every model.
    validation_loss: float  #: nats per symbol.
    #: method (pruned, enumerated), rank and evaluations by canary, for walks that were completed.
    exact: Mapping[int, tuple[str, int, int]]
    #: epsilon, delta, noise and accountant of private training up to this epoch; None without private training.
    privacy: Mapping[str, Any] | None = None
    fit_p: float | None = None  #: goodness of fit of the references' skew-normal law; None if no canary's method needs it.

    def costs_of(self, kind: str) -> NDArray[np.int64]:
        """Return the costs of the canaries of a kind, in order: (num_canaries of the kind,)."""
        return self.costs[[place for place, one in enumerate(self.kinds) if one == kind]]


def exposure_of_rank(rank: int, size: int) -> float:
    """Compute log2 |R| - log2 rank (Definition 4), exact for spaces of any size.

    Raises:
        ValueError: for a rank outside 1 to |R|.

    Example:
        >>> exposure_of_rank(1, size=2**20), exposure_of_rank(2**20, size=2**20)
        (20.0, 0.0)
    """
    if not 1 <= rank <= size:
        raise ValueError(f"a rank must be between 1 and {size}, not {rank}")
    return math.log2(size) - math.log2(rank)


def exposure_by_sampling(at_or_below: int, references: int) -> tuple[float, float, float | None]:
    """Compute -log2 of the share of random references that cost no more than the canary, and its 95 % interval (Theorem 1).

    If no reference lies below the canary, there is no upper end (None). The canary itself counts as one of the candidates,
    (1 + c) / (1 + n), so that no count gives an infinite exposure.

    Args:
        at_or_below: c, number of references that cost no more than the canary.
        references: n, number of all references.

    Example:
        >>> bits, low, high = exposure_by_sampling(0, references=1023)  # no reference costs less: there is no upper end
        >>> round(bits, 2), low < bits, high
        (10.0, True, None)
    """
    if not 0 <= at_or_below <= references or references < 1:
        raise ValueError(f"{at_or_below} of {references} references cannot lie at or below a canary")
    high = float(scipy.stats.beta.ppf(0.975, at_or_below + 1, references - at_or_below)) if at_or_below < references else 1.0
    value = -math.log2(sampled_p(at_or_below, references))
    return value, max(0.0, -math.log2(high)), upper_exposure(at_or_below, references, level=0.025)


def upper_exposure(at_or_below: int, references: int, *, level: float = 0.05) -> float | None:
    """Compute a one-sided upper bound of a sampled exposure (Clopper and Pearson); None if no reference lies below.

    Args:
        at_or_below, references: as for `exposure_by_sampling`.
        level: probability that the bound is wrong.

    Example:
        >>> upper_exposure(10, references=1000) > 7, upper_exposure(0, references=1000)  # -log2(10 / 1000) is 6.6
        (True, None)
    """
    if not at_or_below:
        return None
    return -math.log2(float(scipy.stats.beta.ppf(level, at_or_below, references - at_or_below + 1)))


def sampled_p(at_or_below: int, references: int) -> float:
    """Return (1 + c) / (1 + n), which is uniform or larger for a canary that is drawn like the references.

    Example:
        >>> sampled_p(0, references=99)
        0.01
    """
    return (1 + at_or_below) / (1 + references)


def canary_p(at_or_below: int, references: int, *, size: int, exact: tuple[str, int, int] | None = None) -> float:
    """Compute the probability that an uninserted canary ranks at least as low, from the exact rank where that is valid.

    Whether a pruned walk is completed depends on the canary, so a p-value that is exact for completed walks and sampled
    otherwise would not hold its level. The level holds if the sampled p-value is used whenever a reference lies at or below
    the canary: the exact p-value then only splits the event that no reference does, whose probability is 1 / (1 + n).

    Args:
        at_or_below, references: c of n, as for `exposure_by_sampling`.
        size: |R|, the number of candidates.
        exact: method, rank and evaluations of a completed walk.

    Example:
        >>> canary_p(0, 99, size=10**6, exact=("pruned", 1, 250)), canary_p(3, 99, size=10**6, exact=("pruned", 40, 250))
        (1e-06, 0.04)
    """
    if exact is not None and (exact[0] == ENUMERATED or not at_or_below):
        return max(exact[1] / size, TINY)
    return sampled_p(at_or_below, references)


def choose_method(config: Config, *, at_or_below: int, size: int) -> str:
    """Return the configured method; for auto, enumerated, sampled or pruned (extrapolated if the walk is not completed)."""
    if config.method != "auto":
        return config.method
    if size <= config.enumerate_up_to:
        return ENUMERATED
    return "sampled" if at_or_below >= ENOUGH_BELOW else "pruned"


def last_checkpoints(models: Sequence[Scored]) -> list[Scored]:
    """Return each training run at its last checkpoint; early stopping may end runs at different epochs."""
    last: dict[Any, Scored] = {}
    for model in models:
        training = (model.variant, model.seed, model.canaries, model.insertions)
        if training not in last or model.epoch >= last[training].epoch:
            last[training] = model
    return list(last.values())


def score(models: Sequence[Scored], size: int, config: Config) -> pa.Table:
    """Compute one row per canary, model and checkpoint.

    Args:
        size: |R|, the number of candidates.

    Returns:
        tables.UNITS.
    """
    rows = [row for model in models for row in _rows_of(model, size, config)]
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def _rows_of(model: Scored, size: int, config: Config) -> Iterator[dict[str, Any]]:
    references, unseen = np.sort(model.references), np.sort(model.costs_of(UNSEEN))
    bits = model.costs / UNITS_PER_BIT
    at_or_below = np.searchsorted(references, model.costs, side="right")
    extrapolated = _extrapolate(references / UNITS_PER_BIT, bits)
    for place, canary in enumerate(model.canaries):
        kind, cost = model.kinds[place], model.costs[place]
        below = int(at_or_below[place])
        row = {
            "variant": model.variant, "seed": model.seed, "epoch": model.epoch, "canary": canary, "kind": kind,
            "insertions": model.insertions[place], "log_perplexity": round(float(bits[place]), 2),
            "space_bits": math.log2(size), "validation_loss": model.validation_loss,
        }  # fmt: skip
        exact = model.exact.get(canary)
        row |= _sampled(below, len(references), math.log2(size))
        if kind == GIVEN and len(unseen):
            row["p_value"] = _p_among(unseen, cost)
        elif kind not in (GIVEN, UNSEEN, RECURRING):
            row["p_value"] = canary_p(below, len(references), size=size, exact=exact)
        if extrapolated is not None:
            row |= {"exposure_extrapolated": float(extrapolated[place]), "fit_p": model.fit_p}
        wanted = choose_method(config, at_or_below=below, size=size)
        if exact is not None:
            row |= _exact(exact, size)
        elif extrapolated is not None and (wanted == "extrapolated" or (wanted != "sampled" and (model.fit_p or 0) >= FITS)):
            row |= {"exposure": row["exposure_extrapolated"], "ci_high": None, "method": "extrapolated"}
        yield row


def _sampled(below: int, references: int, bits: float) -> dict[str, Any]:
    """Return the columns of a sampled exposure; without a reference at or below the canary, only a lower bound is known."""
    value, low, high = exposure_by_sampling(below, references)
    return {
        "exposure": value, "ci_low": low, "ci_high": None if high is None else min(high, bits), "method": "sampled",
        "exposure_sampled": value,
    }  # fmt: skip


def _exact(found: tuple[str, int, int], size: int) -> dict[str, Any]:
    """Return the columns of an exact rank, which has no sampling interval."""
    method, rank, evaluations = found
    return {
        "exposure": exposure_of_rank(rank, size), "ci_low": None, "ci_high": None, "method": method, "rank": rank,
        "evaluations": evaluations,
    }  # fmt: skip


def _p_among(unseen: NDArray[np.int64], cost: np.int64) -> float:
    """Compute the p-value of a given secret from its rank among secrets that the model never saw."""
    return sampled_p(int(np.searchsorted(unseen, cost, side="right")), len(unseen))


def _extrapolate(references: NDArray[np.float64], canaries: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Extrapolate exposures, (num_canaries,) bits; None if all references cost the same, as when holes are ignored."""
    return fit_skew_normal(references).exposures(canaries) if np.ptp(references) else None
