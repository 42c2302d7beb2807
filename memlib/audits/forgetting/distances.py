"""Observed outputs of models, the distances between models on D_Q, and the tables of distances and example scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.forgetting.recipe import NULL, TARGET, Config
from memlib.audits.forgetting.tables import EXAMPLES, UNITS
from memlib.audits.forgetting.trace import Pool, residuals
from memlib.errors import RunError
from memlib.identity import derive_seed
from memlib.specs.data import CALIBRATION, QUERY, WITHHELD
from memlib.stats.divergence import weighted_ks
from memlib.stats.inference import bootstrap_weights
from memlib.stats.likelihood import Likelihoods, confidences, rounded


@dataclass(frozen=True)
class Observed:
    """A model's outputs on U, the pool of D_Q: on D_Q itself and on the known and withheld examples."""

    group: str  #: query, calibration, null, retained or target.
    target: str  #: the target's name; empty for the auditor's own models.
    number: int  #: index within group and target.
    log_odds: NDArray[np.float64]  #: (num_pool,) float64, log p / (1 - p) of the true class.
    #: number of decimals to which the owner rounded the probabilities; None if they were not rounded.
    decimals: int | None = None
    #: (num_pool,) bool, whether the model was trained on each example of U; None if unknown.
    members: NDArray[np.bool_] | None = None


class Distances:
    """KS distances between models on D_Q, with a bootstrap over its examples.

    Args:
        models: all observed models.
        pool: the examples of U: membership of D_Q, and classes, which are the strata of the bootstrap.
        config: replicates, seed and smallest calibration distance.

    Raises:
        RunError: if D_C cannot calibrate and nothing was withheld, so that there is no result at all.
    """

    def __init__(self, models: Sequence[Observed], pool: Pool, config: Config) -> None:
        self.pool, self.seed, self.replicates = pool, config.seed, config.replicates
        labels = pool.labels[pool.query]
        self.models = {(m.group, m.target, m.number): m for m in models}
        weights = bootstrap_weights(labels, config.replicates, seed=derive_seed(config.seed, "examples"))
        # the first row is the sample itself
        self.weights = np.concatenate([np.ones((1, len(labels)), dtype=np.float32), *weights])
        self._found: dict[Any, NDArray[np.float64]] = {}
        self.query = [m for m in models if m.group == QUERY]
        self.calibration = [m for m in models if m.group == CALIBRATION]
        problems = {decimals: self._problem(config.min_calibration, decimals) for decimals in {m.decimals for m in models}}
        self.problems = {decimals: problem for decimals, problem in problems.items() if problem}
        """Reasons why rho cannot be computed, by number of decimals of the outputs; empty if it can be."""
        if self.problems and not pool.has(WITHHELD):  # then there is no other result either
            raise RunError(next(iter(self.problems.values())))

    def between(self, a: Observed, b: Observed, decimals: int | None) -> NDArray[np.float64]:
        """Return the distances between two models on the sample and its replicates: (1 + num_replicates,)."""
        key = (a.group, a.target, a.number, b.group, b.target, b.number, decimals)
        if key not in self._found:
            one, other = (confidences(model.log_odds[self.pool.query], decimals) for model in (a, b))
            self._found[key] = weighted_ks(one, other, self.weights)
        return self._found[key]

    def to_query(self, model: Observed) -> NDArray[np.float64]:
        """Return the distances of a model from every query model: (num_query_models, 1 + num_replicates)."""
        return np.stack([self.between(query, model, model.decimals) for query in self.query])

    def calibrations(self, decimals: int | None) -> NDArray[np.float64]:
        """Return all distances between query and calibration models: (num_query, num_calibration, 1 + num_replicates)."""
        return np.stack([[self.between(query, c, decimals) for c in self.calibration] for query in self.query])

    def of(self, group: str, target: str = "") -> list[Observed]:
        """Return the models of a group and target."""
        return [m for m in self.models.values() if m.group == group and m.target == target]

    def rho(self, model: Observed) -> NDArray[np.float64]:
        """Return rho of a model: (num_query_models, num_calibration_models, 1 + num_replicates)."""
        floor = 1e-9  # avoids division by zero in replicates whose distance is 0
        return self.to_query(model)[:, None] / np.maximum(self.calibrations(model.decimals), floor)

    def largest_rho(self, decimals: int | None) -> float:
        """Return the rho of a model as far as possible (KS 1) from every query model."""
        return float((1 / np.maximum(self.calibrations(decimals)[..., 0], 1e-9)).mean())

    def _problem(self, smallest: float, decimals: int | None) -> str:
        """Explain why D_C cannot calibrate; return an empty string if it can."""
        distance = self.calibrations(decimals)[..., 0].mean()
        among = [
            float(self.between(a, b, decimals)[0]) for i, a in enumerate(self.query) for b in self.query[i + 1 :]
        ]  # fmt: skip
        noise = float(np.mean(among)) if among else 0.0
        if distance >= max(smallest, 2 * noise):
            return ""
        measured = f"(KS distance {distance:.3f}, among query models themselves {noise:.3f})"
        if decimals is not None:
            return (
                f"D_C cannot calibrate outputs that are rounded to {decimals} decimals {measured}; ask the model's owner for "
                "more decimals (a forest of 100 trees has no more than two: only D_C that differs more from D_Q helps there)"
            )
        return (
            f"D_C cannot calibrate: calibration models treat D_Q as query models do {measured}, so rho would divide by "
            "almost 0. The models remember too little of D_Q: train longer, regularize less, or use a larger D_Q"
        )


def score(distances: Distances) -> pa.Table:
    """Compute the distances of each triple of a model (target, null or retained), query model and calibration model.

    Returns:
        tables.UNITS.
    """
    rows = []
    for model in distances.models.values():
        if model.group in (QUERY, CALIBRATION):
            continue
        to_query, calibrations, rho = (
            values[..., 0]
            for values in (distances.to_query(model), distances.calibrations(model.decimals), distances.rho(model))
        )
        for q, query in enumerate(distances.query):
            for c, calibration in enumerate(distances.calibration):
                rows.append(
                    {
                        "group": model.group, "target": model.target, "model": model.number, "query_model": query.number,
                        "calibration_model": calibration.number, "ks_target": float(to_query[q]),
                        "ks_calibration": float(calibrations[q, c]),
                        "rho": None if model.decimals in distances.problems else float(rho[q, c]),
                    }
                )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def likelihoods(query: Sequence[Observed], calibration: Sequence[Observed], decimals: int | None) -> Likelihoods:
    """Fit likelihoods to query and calibration models, with their outputs rounded to the same decimals."""
    inside, outside = (np.stack([rounded(m.log_odds, decimals) for m in models]) for models in (query, calibration))
    return Likelihoods(inside, outside)


def score_examples(
    models: Sequence[Observed], pool: Pool, example_ids: Sequence[str], class_names: Sequence[str]
) -> pa.Table:
    """Compute the scores of each example of U under each target model.

    Args:
        example_ids, class_names: (num_pool,).

    Returns:
        tables.EXAMPLES.
    """
    query = [m for m in models if m.group == QUERY]
    calibration = [m for m in models if m.group == CALIBRATION]
    unseen = np.stack([m.log_odds for m in models if m.group == NULL])
    parts = []
    for model in (m for m in models if m.group == TARGET):
        fitted = likelihoods(query, calibration, model.decimals)
        count = len(example_ids)
        columns = {
            "target": [model.target] * count,
            "model": [model.number] * count,
            "example_id": list(example_ids),
            "role": pool.roles.tolist(),
            "label": pool.labels,
            "class_name": list(class_names),
            "confidence": confidences(model.log_odds, model.decimals),
            "log_odds": model.log_odds,
            "log_odds_query": fitted.means[0],
            "log_odds_calibration": fitted.means[1],
            "log_likelihood_ratio": fitted.ratio(rounded(model.log_odds, model.decimals)),
            "residual": residuals(model.log_odds, unseen),
            "member": [None] * count if model.members is None else model.members,
        }
        parts.append(pa.table(columns).cast(EXAMPLES.arrow))
    return pa.concat_tables(parts)
