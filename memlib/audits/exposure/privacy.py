"""Privacy audit of a training run from the ranks of canaries: a lower bound of epsilon, and a test of the claimed epsilon.

After training without the canary, a canary drawn from the space R of candidates has a rank of at most r with probability r /
|R|. After (epsilon, delta)-private training with the canary in one window, that probability is at most e^epsilon r / |R| +
delta (Dwork 2006); in k windows, e^(k epsilon) r / |R| + k e^((k - 1) epsilon) delta. A rank that is too low therefore
refutes the claim.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.exposure.recipe import PRIVACY
from memlib.audits.exposure.scores import Scored, canary_p
from memlib.findings import Finding, Interval, estimate, tested
from memlib.specs.level import ERROR
from memlib.specs.text import INSERTED

HALVINGS = 60  # number of halvings of an interval that contains the bound


@dataclass(frozen=True)
class Look:
    """A canary under a model that saw it, at one checkpoint."""

    variant: str  #: variant, seed, epoch, canary: the model and the canary.
    seed: int
    epoch: float
    canary: int
    windows: int  #: number of windows of the training data that contain the canary.
    p: float  #: probability that the canary ranks at least as low after training without the canary.
    smallest: float  #: smallest p that any rank could give.
    epsilon: float  #: epsilon, delta: the privacy that is claimed for the training; NaN and 0 (pure epsilon) without a claim.
    delta: float

    @property
    def params(self) -> Mapping[str, Any]:
        """The params that identify the look in findings, besides the variant."""
        return {
            "canary": self.canary, "seed": self.seed, "epoch": self.epoch, "insertions": self.windows, "delta": self.delta
        }  # fmt: skip


def epsilon_bound(p: float, *, looks: int, delta: float = 0.0, windows: int = 1, error: float = ERROR) -> float | None:
    """Compute a lower bound of epsilon, which is wrong with probability at most `error` over all looks.

    Args:
        p: p-value of the canary's rank, r / |R|.
        looks: number of looks (at each canary, checkpoint and training run) among which the largest bound may be picked.
        delta: delta for which epsilon is bounded, for one window.
        windows: number of windows that contain the canary.
        error: probability with which the bound may be wrong.

    Returns:
        the largest epsilon that is refuted (see `refuted_p`), or 0 if no epsilon is refuted; None if no rank could
        refute any epsilon.

    Example:
        >>> round(epsilon_bound(1e-6, looks=1), 2)  # ln(.05 / p): the canary ranks first of a million
        10.82
        >>> epsilon_bound(1e-6, looks=10) < epsilon_bound(1e-6, looks=1), epsilon_bound(0.3, looks=1)
        (True, 0.0)
    """
    if looks * windows * delta >= error:
        return None

    def is_refuted(epsilon: float) -> bool:
        return looks * refuted_p(p, epsilon=epsilon, delta=delta, windows=windows) <= error

    low, high = 0.0, max(0.0, math.log(error / looks / p) / windows)  # high: the bound for delta 0
    if high == 0 or not is_refuted(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def refuted_p(p: float, *, epsilon: float, delta: float, windows: int = 1) -> float:
    """Compute the p-value of "the training was (epsilon, delta)-private" from the rank of one canary.

    Args:
        p: p-value of the canary's rank.
        epsilon, delta: the claim, for one window.
        windows: number of windows that contain the canary.

    Example:
        >>> round(refuted_p(1e-3, epsilon=2, delta=1e-5), 4)  # e^2 p + delta
        0.0074
    """
    if windows * epsilon > 700:  # beyond any float
        return 1.0
    return min(1.0, math.exp(windows * epsilon) * p + windows * math.exp((windows - 1) * epsilon) * delta)


def most_exposed(epsilon: float, delta: float) -> float | None:
    """Compute the exposure that a canary in one window exceeds with probability at most .05 if the claim holds.

    Returns:
        log2(e^epsilon / (.05 - delta)) bits, possibly more than log2 |R|; None if delta is too large for a bound.

    Example:
        >>> round(most_exposed(epsilon=2, delta=0), 2)  # 2 / ln 2 + log2(1 / .05) bits
        7.21
    """
    return None if delta >= ERROR else epsilon / math.log(2) - math.log2(ERROR - delta)


def looks_at(models: Sequence[Scored], size: int) -> list[Look]:
    """Return one look at each inserted canary under each model that was trained on it, at every checkpoint."""
    looks = []
    for model in models:
        claim = model.privacy or {"epsilon": math.nan, "delta": 0.0}
        for place, (canary, times) in enumerate(zip(model.canaries, model.insertions, strict=True)):
            if not times or model.kinds[place] != INSERTED:
                continue
            below, references = int((model.references <= model.costs[place]).sum()), len(model.references)
            exact = model.exact.get(canary)
            p = canary_p(below, references, size=size, exact=exact)
            smallest = canary_p(0, references, size=size, exact=None if exact is None else (exact[0], 1, 0))
            of_model = (model.variant, model.seed, model.epoch)
            looks.append(Look(*of_model, canary, times, p, smallest, claim["epsilon"], float(claim["delta"])))
    return looks


def privacy_rows(models: Sequence[Scored], size: int, *, error: float = ERROR) -> Iterator[Finding]:
    """Yield for each variant the accountant's epsilon, the lower bound of epsilon, and the test of the claim.

    Args:
        size: |R|, the number of candidates.
        error: probability with which the lower bounds may be wrong.
    """
    looks = looks_at(models, size)
    for variant in dict.fromkeys(model.variant for model in models):
        at = {"variant": variant} if variant else {}
        of_variant = [look for look in looks if look.variant == variant]
        yield from _claimed(at, [model for model in models if model.variant == variant])
        yield from _bound(at, of_variant, len(looks), error)
        yield from _tested(at, [look for look in of_variant if not math.isnan(look.epsilon)])


def _claimed(at: Mapping[str, Any], models: Sequence[Scored]) -> Iterator[Finding]:
    """Yield the largest epsilon of the variant's models, whose training sets differ in size by their canaries."""
    claims = [dict(model.privacy) for model in models if model.privacy is not None]
    if claims:
        most = max(claims, key=lambda claim: claim["epsilon"])
        epsilon = most.pop("epsilon")
        yield estimate("epsilon", {**at, **most}, epsilon, n=len({model.seed for model in models}))


def _bound(at: Mapping[str, Any], looks: Sequence[Look], total: int, error: float) -> Iterator[Finding]:
    """Yield the largest lower bound, with the largest bound that any rank could have given (ceiling)."""
    bounds = []
    for look in looks:
        bound, ceiling = (
            epsilon_bound(p, looks=total, delta=look.delta, windows=look.windows, error=error)
            for p in (look.p, look.smallest)
        )
        if bound is not None and ceiling is not None:
            bounds.append((bound, ceiling, look))
    if bounds:
        bound, _, best = max(bounds, key=lambda item: item[0])
        params = {**at, **best.params, "looks": total, "ceiling": round(max(ceiling for _, ceiling, _ in bounds), 4)}
        yield estimate("epsilon_lower_bound", params, bound, n=len(looks), interval=Interval(bound, None, "canaries"))


def _tested(at: Mapping[str, Any], looks: Sequence[Look]) -> Iterator[Finding]:
    """Yield the test of a variant's claim by the canary with the strongest evidence, Bonferroni-adjusted over all looks."""
    if not looks:
        return

    def adjusted(look: Look, p: float) -> float:
        return min(1.0, len(looks) * refuted_p(p, epsilon=look.epsilon, delta=look.delta, windows=look.windows))

    best = min(looks, key=lambda look: adjusted(look, look.p))
    bound = epsilon_bound(best.p, looks=len(looks), delta=best.delta, windows=best.windows)
    yield tested(
        "privacy_claim", {**at, **best.params, "epsilon": round(best.epsilon, 4)}, bound or 0.0, n=len(looks),
        p_value=adjusted(best, best.p), family=PRIVACY, either_direction=True, null_value=best.epsilon,
        smallest_p=min(adjusted(look, look.smallest) for look in looks),
    )  # fmt: skip
