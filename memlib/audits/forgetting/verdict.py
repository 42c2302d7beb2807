"""Whether a model still answers as one that was trained on the query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from memlib.audits.forgetting.distances import Distances, Observed, likelihoods
from memlib.audits.forgetting.recipe import FORGOTTEN, NULL, RETAINED, UNDECIDED, VerdictSpec
from memlib.stats.likelihood import rounded


@dataclass(frozen=True)
class Decision:
    """A verdict with the chances it rests on.

    Attributes:
        verdict: retained, forgotten or undecided.
        p_null: that a null model lies as low as the target.
        p_retained: that a retained model lies as high.
    """

    verdict: str
    p_null: float
    p_retained: float


def decide(
    value: float,
    null: NDArray[np.float64],
    retained: NDArray[np.float64],
    *,
    alpha: float,
    calibration: NDArray[np.float64] | None = None,
) -> Decision:
    """The verdict on a value, low where D_Q is remembered, against models that have and have not seen it.

    Each chance is Student's for one more value of the same kind (a prediction interval).

    Args:
        value: of the target.
        null: (num_models,) of null models, at least 2.
        retained: (num_models,) of retained models, at least 2.
        alpha: level of all tests.
        calibration: (num_models,) of calibration models, which saw none of D_Q either; a target that lies above them and
            above null models is like no model that was trained as it should be (noise, a broken checkpoint, or, by rho,
            surer of D_Q than any query model), and nothing is decided.
    """
    p_null = _chance_below(value, null)
    p_retained = 1 - _chance_below(value, retained)
    if p_null < alpha:
        return Decision(RETAINED, p_null, p_retained)
    beyond = [1 - _chance_below(value, unaware) < alpha for unaware in (null, calibration) if unaware is not None]
    return Decision(FORGOTTEN if p_retained < alpha and not all(beyond) else UNDECIDED, p_null, p_retained)


def _chance_below(value: float, sample: NDArray[np.float64]) -> float:
    """The chance that one more of the sample's kind lies at the value or below."""
    count = len(sample)
    spread = float(sample.std(ddof=1)) * np.sqrt(1 + 1 / count)
    if spread == 0:
        return 0.5 if value == sample[0] else float(value > sample[0])
    return float(scipy.stats.t.cdf((value - sample.mean()) / spread, count - 1))


class Judge:
    """Verdicts on models, from all of D_Q or from resampled examples and models."""

    def __init__(self, distances: Distances, verdict: VerdictSpec) -> None:
        self._distances, self._spec = distances, verdict
        of = {group: [m for m in distances.models.values() if m.group == group] for group in (NULL, RETAINED)}
        self.null, self.retained = of[NULL], of[RETAINED]

    def statistic(
        self,
        model: Observed,
        *,
        replicate: int = 0,
        query: Sequence[int] | None = None,
        calibration: Sequence[int] | None = None,
    ) -> float:
        """What the verdict compares, low where D_Q is remembered, from some query and calibration models."""
        distances = self._distances
        q = list(range(len(distances.query))) if query is None else list(query)
        c = list(range(len(distances.calibration))) if calibration is None else list(calibration)
        if self._spec.statistic == "rho":
            return float(distances.rho(model)[np.ix_(q, c)][..., replicate].mean())
        known = likelihoods([distances.query[i] for i in q], [distances.calibration[i] for i in c], model.decimals)
        ratios = np.clip(known.ratio(rounded(model.log_odds, model.decimals)), -5, 5)  # no example decides alone
        weights = distances.weights[replicate]
        return -float(ratios @ weights / weights.sum())

    def judge(self, model: Observed, **resampled: Any) -> Decision:
        """The verdict on a model; it is not compared with itself."""
        alike = {"decimals": model.decimals}
        subset = {name: resampled.pop(name, None) for name in ("null", "retained")}
        values = {}
        for name, models in ((NULL, self.null), (RETAINED, self.retained)):
            chosen = models if subset[name] is None else [models[i] for i in subset[name]]
            others = [_alike(m, **alike) for m in chosen if (m.group, m.number) != (model.group, model.number)]
            values[name] = np.array([self.statistic(m, **resampled) for m in others])
        value = self.statistic(model, **resampled)
        calibration = self._calibration_values(model, **resampled)
        return decide(value, values[NULL], values[RETAINED], alpha=self._spec.alpha, calibration=calibration)

    def _calibration_values(self, model: Observed, **resampled: Any) -> NDArray[np.float64] | None:
        """Each calibration model's value by the others; None where they are too few to leave one out."""
        given = resampled.pop("calibration", None)
        chosen = list(range(len(self._distances.calibration))) if given is None else list(given)
        if len(chosen) < 3:
            return None
        return np.array(
            [
                self.statistic(
                    _alike(self._distances.calibration[one], decimals=model.decimals),
                    calibration=[other for other in chosen if other != one],
                    **resampled,
                )
                for one in chosen
            ]
        )

    def resampled(self, models: Sequence[Observed], *, count: int, seed: int) -> list[str]:
        """Verdicts on one of the models at a time, from resampled examples and four fifths of the auditor's models."""
        rng = np.random.default_rng(seed)
        found = []
        for replicate in range(count):
            sizes = {
                "query": len(self._distances.query), "calibration": len(self._distances.calibration),
                "null": len(self.null), "retained": len(self.retained),
            }  # fmt: skip
            parts = {name: rng.permutation(size)[: max(2, -(-4 * size // 5))].tolist() for name, size in sizes.items()}
            row = 1 + replicate % (len(self._distances.weights) - 1)
            found.append(self.judge(models[int(rng.integers(len(models)))], replicate=row, **parts).verdict)
        return found


def _alike(model: Observed, *, decimals: int | None) -> Observed:
    """The model as if its outputs had been rounded like the target's."""
    return model if decimals is None else Observed(model.group, model.target, model.number, model.log_odds, decimals)
