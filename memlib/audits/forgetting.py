"""Forgetting: has this model used, or forgotten, this data set? (Liu and Tsaftaris 2020)

The query set D_Q is the data in question, D_C a calibration set of the same domain that shares no example with it.
Query models train on D_Q, calibration models on D_C, both as the target did. Of every model only the confidence in
the true class of each example of D_Q is used, and its distribution:

    rho = KS(query model, target) / KS(query model, calibration model)        (Eqs. 2 to 4)

near 0 where the target treats D_Q as a model that trained on it, 1 where it treats it as one that did not. "rho < 1:
not forgotten" (Algorithm 1) is no verdict: without D_Q rho scatters around 1, and a target that has learnt the domain
of D_Q elsewhere treats it as known; and as a KS distance has no direction, a target that is surer of D_Q than the query
models has a large rho. So the verdict compares the target with models which the auditor trains: null models, whose
data hold images like D_Q but none of it, and retained models, whose data hold a known share of it.

    retained   fewer than alpha of null models would lie as low
    forgotten  null models would, and fewer than alpha of retained models as high
    undecided  neither can be ruled out, or the target is unlike any of the auditor's models

What is compared is the likelihood ratio of the target's confidences, example by example, under query and calibration
models (as in and out models of LiRA, Carlini 2022), which has a direction; or rho itself. Both confuse domain and
membership, which is why null models should have seen images like D_Q.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray
from pydantic import Field, model_validator

from memlib.data.sets import CALIBRATION, PROVIDER, QUERY
from memlib.errors import RunError
from memlib.identity import derive_seed
from memlib.specs import ClassifierSpec, DataSpec, OutputsSpec, SetSpec, Spec, TrainedSpec, TrainingSpec
from memlib.stats.divergence import weighted_ks
from memlib.stats.likelihood import Likelihoods, confidences, rounded
from memlib.stats.tests import bootstrap_weights, wilson_interval
from memlib.tables import CURVES, FORGETTING_EXAMPLES, FORGETTING_UNITS, SUMMARY, summary_row

RETAINED, FORGOTTEN, UNDECIDED = "retained", "forgotten", "undecided"
VERDICTS = (RETAINED, FORGOTTEN, UNDECIDED)
TARGET, NULL = "target", "null"
RARE = 0.001
NON_MEMBERS_FOR_RARE = 2000

Mix = Mapping[str, Annotated[float, Field(gt=0, le=1)]]
"""Share of each set by its name."""


class TargetSpec(Spec):
    """A model in question: trained here on a mix, brought with weights, or only its outputs."""

    mix: Mix | None = None
    """What its training data D* hold, as in {calibration: 1, query: 0.1}; it is trained here, once a seed."""
    trained: TrainedSpec | None = None
    """A model that was trained elsewhere, with its weights."""
    outputs: OutputsSpec | None = None
    """Its outputs on D_Q."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "TargetSpec":
        given = [name for name in ("mix", "trained", "outputs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of mix, trained and outputs, not {' and '.join(given) or 'none'}")
        if self.trained is not None and self.trained.weights is None:
            raise ValueError("trained.weights says where the model's weights are")
        return self


class VerdictSpec(Spec):
    """The models that the verdict rests on."""

    null_mix: Mix | None = None
    """What null models train on: nothing of D_Q. By default {calibration: 1, provider: 1} where there is a set
    `provider`, of images like D_Q but none of it; else {calibration: 0.8}, a margin estimated from seeds and splits
    of D_C, which cannot tell D_Q from its domain."""
    retained_mix: Mix = Field(default={CALIBRATION: 1.0, QUERY: 0.5})
    """What retained models train on: the share of D_Q that 'forgotten' is to exclude."""
    models: int = Field(default=10, ge=3)
    """Models of each kind."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """How often a null model may be called retained, and a retained one forgotten."""
    statistic: Literal["likelihood_ratio", "rho"] = "likelihood_ratio"
    """What is compared: the mean log-likelihood ratio of D_Q's examples, or rho, which has less power and no direction."""

    @model_validator(mode="after")
    def _null_and_retained(self) -> "VerdictSpec":
        if QUERY in (self.null_mix or {}):
            raise ValueError("verdict.null_mix holds D_Q; its models must have seen none of it")
        if QUERY not in self.retained_mix:
            raise ValueError("verdict.retained_mix holds nothing of D_Q; say a share, as in {calibration: 1, query: 0.5}")
        return self


class Config(Spec):
    """How outputs are scored."""

    replicates: int = Field(default=500, ge=100)
    """Bootstrap replicates over the examples of D_Q."""
    resamples: int = Field(default=40, ge=0)
    """Verdicts on resampled models and examples, to see how often they differ."""
    min_calibration: float = Field(default=0.05, gt=0, lt=1)
    """The smallest KS distance of query and calibration models that rho is divided by."""
    seed: int = Field(default=0, ge=0)
    """Of bootstrap and resampling."""


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=8, ge=0)
    """Examples of D_Q that carry the signal most, with their pictures."""


class Recipe(Spec):
    """A forgetting audit from data to report."""

    audit: Literal["forgetting"] = "forgetting"
    title: str = "Forgetting audit"
    """Heading of the report."""
    data: DataSpec
    sets: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], SetSpec]
    """Disjoint sets of examples by name, drawn in this order: query (D_Q), calibration (D_C), and others that mixes may
    hold; provider: images like D_Q but none of it."""
    split_seed: int = Field(default=0, ge=0)
    """Draws the sets."""
    near_duplicates: float | None = Field(default=2.0, gt=0)
    """Images of another set that lie so close to one of D_Q (root mean square difference in grey levels of versions of
    16 x 16) are taken out; null: only equal ones."""
    model: ClassifierSpec
    """The target's design."""
    training: TrainingSpec
    """How the target was trained."""
    seeds: int = Field(default=5, ge=2)
    """Query models, calibration models, and models of each mix."""
    targets: Mapping[str, TargetSpec] = Field(min_length=1)
    """The models in question by name."""
    compare: tuple[str, str] | None = None
    """Two targets, as before and after an unlearning step: the change of rho between them is reported."""
    verdict: VerdictSpec = VerdictSpec()
    score: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        for name in (QUERY, CALIBRATION):
            if name not in self.sets:
                raise ValueError(f"sets lacks {name}")
        mixes = {f"targets.{name}": target.mix for name, target in self.targets.items() if target.mix is not None}
        for place, mix in (
            mixes | {"verdict.null_mix": self.null_shares, "verdict.retained_mix": self.verdict.retained_mix}
        ).items():
            unknown = [name for name in mix if name not in self.sets]
            if unknown or not mix:
                raise ValueError(f"{place} names {unknown[0] if unknown else 'no set'}; sets are {', '.join(self.sets)}")
        if self.compare is not None and (self.compare[0] == self.compare[1] or not set(self.compare) <= set(self.targets)):
            raise ValueError(f"compare names two of the targets {', '.join(self.targets)}, not {list(self.compare)}")
        if self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.training.patience is not None or self.training.checkpoint_epochs:
            raise ValueError("training.patience and checkpoint_epochs have no use here: all models train for all epochs")
        return self

    @property
    def null_shares(self) -> Mix:
        """What null models train on."""
        if self.verdict.null_mix is not None:
            return self.verdict.null_mix
        return {CALIBRATION: 1.0, PROVIDER: 1.0} if PROVIDER in self.sets else {CALIBRATION: 0.8}

    @property
    def null_has_the_domain(self) -> bool:
        """Whether null models have seen images like D_Q, so that the verdict is about D_Q and not its domain."""
        return PROVIDER in self.null_shares


# -- what is observed ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """A model's outputs on D_Q.

    Attributes:
        group: query, calibration, null, retained or target.
        target: the target's name; empty for the auditor's own models.
        number: counted within group and target.
        log_odds: (num_examples,) float64, log p / (1 - p) of the true class.
        decimals: to which the owner has rounded the probabilities; None for float32.
        members: (num_examples,) bool, which examples of D_Q it has trained on; None when that is not known.
    """

    group: str
    target: str
    number: int
    log_odds: NDArray[np.float64]
    decimals: int | None = None
    members: NDArray[np.bool_] | None = None


class Distances:
    """KS distances between models on D_Q, with a bootstrap over its examples.

    Args:
        models: every observed model.
        labels: (num_examples,) classes, the strata of the bootstrap.
        config: replicates and seed.
    """

    def __init__(self, models: Sequence[Observed], labels: NDArray[np.int64], config: Config) -> None:
        self.models = {(m.group, m.target, m.number): m for m in models}
        weights = bootstrap_weights(labels, config.replicates, seed=derive_seed(config.seed, "examples"))
        # the first row is the sample itself
        self.weights = np.concatenate([np.ones((1, len(labels)), dtype=np.float32), *weights])
        self._found: dict[Any, NDArray[np.float64]] = {}
        self.query = [m for m in models if m.group == QUERY]
        self.calibration = [m for m in models if m.group == CALIBRATION]
        for decimals in {model.decimals for model in models}:
            self._check(config.min_calibration, decimals)

    def between(self, a: Observed, b: Observed, decimals: int | None) -> NDArray[np.float64]:
        """(1 + num_replicates,) distances."""
        key = (a.group, a.target, a.number, b.group, b.target, b.number, decimals)
        if key not in self._found:
            self._found[key] = weighted_ks(confidences(a.log_odds, decimals), confidences(b.log_odds, decimals), self.weights)
        return self._found[key]

    def to_query(self, model: Observed) -> NDArray[np.float64]:
        """(num_query_models, 1 + num_replicates) of a model from every query model."""
        return np.stack([self.between(query, model, model.decimals) for query in self.query])

    def calibrations(self, decimals: int | None) -> NDArray[np.float64]:
        """(num_query_models, num_calibration_models, 1 + num_replicates)."""
        return np.stack([[self.between(query, c, decimals) for c in self.calibration] for query in self.query])

    def rho(self, model: Observed) -> NDArray[np.float64]:
        """(num_query_models, num_calibration_models, 1 + num_replicates) of one model."""
        floor = 1e-9  # a replicate without any distance
        return self.to_query(model)[:, None] / np.maximum(self.calibrations(model.decimals), floor)

    def _check(self, smallest: float, decimals: int | None) -> None:
        found = self.calibrations(decimals)[..., 0].mean()
        among = [
            float(self.between(a, b, decimals)[0]) for i, a in enumerate(self.query) for b in self.query[i + 1 :]
        ]  # fmt: skip
        noise = float(np.mean(among)) if among else 0.0
        if found < max(smallest, 2 * noise):
            if decimals is not None:
                raise RunError(
                    f"D_C cannot calibrate outputs that are rounded to {decimals} decimals (KS distance {found:.3f}, among "
                    f"query models themselves {noise:.3f}); ask the model's owner for more of them"
                )
            raise RunError(
                f"D_C cannot calibrate: calibration models treat D_Q as query models do (KS distance {found:.3f}, among "
                f"query models themselves {noise:.3f}), so that rho would divide by nothing. The models remember too little "
                "of D_Q: train longer, regularise less, or take a larger D_Q"
            )


# -- scores -------------------------------------------------------------------------------------------


def score(distances: Distances) -> pa.Table:
    """A row a triple of a model (target, null or retained), a query model and a calibration model.

    Returns:
        tables.FORGETTING_UNITS.
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
                        "ks_calibration": float(calibrations[q, c]), "rho": float(rho[q, c]),
                    }
                )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=FORGETTING_UNITS.arrow)


def likelihoods(query: Sequence[Observed], calibration: Sequence[Observed], decimals: int | None) -> Likelihoods:
    """Of models whose outputs are rounded alike."""
    inside, outside = (np.stack([rounded(m.log_odds, decimals) for m in models]) for models in (query, calibration))
    return Likelihoods(inside, outside)


def score_examples(
    models: Sequence[Observed], example_ids: Sequence[str], labels: NDArray[np.int64], class_names: Sequence[str]
) -> pa.Table:
    """A row an example of D_Q and target model.

    Returns:
        tables.FORGETTING_EXAMPLES.
    """
    query = [m for m in models if m.group == QUERY]
    calibration = [m for m in models if m.group == CALIBRATION]
    parts = []
    for model in (m for m in models if m.group == TARGET):
        known = likelihoods(query, calibration, model.decimals)
        count = len(example_ids)
        columns = {
            "target": [model.target] * count,
            "model": [model.number] * count,
            "example_id": list(example_ids),
            "label": labels,
            "class_name": list(class_names),
            "confidence": confidences(model.log_odds, model.decimals),
            "log_odds": model.log_odds,
            "log_odds_query": known.means[0],
            "log_odds_calibration": known.means[1],
            "log_likelihood_ratio": known.ratio(rounded(model.log_odds, model.decimals)),
            "member": [None] * count if model.members is None else model.members,
        }
        parts.append(pa.table(columns).cast(FORGETTING_EXAMPLES.arrow))
    return pa.concat_tables(parts)


# -- verdicts -----------------------------------------------------------------------------------------


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


# -- the summary --------------------------------------------------------------------------------------


def summarize(distances: Distances, examples: pa.Table, recipe: Recipe) -> pa.Table:
    """The findings: for each target rho, its KS distances and the verdict; then how far the verdict can be trusted.

    Intervals of rho are over the seeds of all models and the examples of D_Q together.

    Args:
        distances: of all models.
        examples: tables.FORGETTING_EXAMPLES.
        recipe: targets, verdict and config.

    Returns:
        tables.SUMMARY.
    """
    judge = Judge(distances, recipe.verdict)
    rows: list[dict[str, Any]] = []
    for name in recipe.targets:
        models = [m for m in distances.models.values() if m.group == TARGET and m.target == name]
        rows += _rows_of_target(name, models, distances, judge, recipe)
        rows += _membership_rows(name, examples)
    for group, models in ((NULL, judge.null), (RETAINED, judge.retained)):
        params = {"target": f"{group} models", "kind": group}
        rows.append(_rho_row(params, models, distances))
    rows += _trust_rows(judge, recipe.verdict)
    if recipe.compare is not None:
        rows.append(_change_row(recipe.compare, distances))
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _rows_of_target(
    name: str, models: Sequence[Observed], distances: Distances, judge: Judge, recipe: Recipe
) -> Iterator[dict[str, Any]]:
    decisions = [judge.judge(model) for model in models]
    counts = {verdict: sum(d.verdict == verdict for d in decisions) for verdict in VERDICTS}
    verdict = next((v for v in VERDICTS if 2 * counts[v] > len(models)), UNDECIDED)
    spec = recipe.verdict
    params = {
        "target": name, "kind": TARGET, "verdict": verdict, "compared": spec.statistic, "alpha": spec.alpha,
        "models": len(models),
    }  # fmt: skip
    p = decisions[0].p_null if len(decisions) == 1 else None
    yield _rho_row(params, models, distances) | {"p_value": p}
    to_query = np.stack([distances.to_query(model) for model in models]).mean(axis=0)
    yield _row("ks_target", {"target": name}, to_query, ())
    yield _row("ks_calibration", {"target": name}, distances.calibrations(models[0].decimals), (0, 1))
    if len(decisions) == 1:
        for which, value in (("null", decisions[0].p_null), ("retained", decisions[0].p_retained)):
            yield summary_row(
                f"p_{which}", {"target": name, "compared": spec.statistic}, value, None, n=recipe.verdict.models
            )
    seed = derive_seed(recipe.score.seed, "verdicts", name)
    drawn = judge.resampled(models, count=recipe.score.resamples, seed=seed)
    for title, found in (("models", [d.verdict for d in decisions]), ("resampled", drawn)):
        for verdict in VERDICTS if found else ():
            hits = sum(v == verdict for v in found)
            at = {"target": name, "verdict": verdict, "over": title}
            yield summary_row("share_of_verdicts", at, hits / len(found), wilson_interval(hits, len(found)), n=len(found))


def _rho_row(params: Mapping[str, Any], models: Sequence[Observed], distances: Distances) -> dict[str, Any]:
    values = np.stack([distances.rho(model) for model in models])
    seeds = (0, 1, 2) if len(models) > 1 else (1, 2)
    return _row("rho", params, values, seeds, null=1.0)


def _row(
    metric: str, params: Mapping[str, Any], values: NDArray[np.float64], seeds: Sequence[int], *, null: float | None = None
) -> dict[str, Any]:
    """A mean over all but the last axis (the sample, then bootstrap replicates of examples), with its interval.

    Args:
        metric, params: of the row.
        values: (..., 1 + num_replicates).
        seeds: axes that are seeds of models; each adds the variance of its means.
        null: the value without memory.
    """
    centre, half = _centre_and_half(values, seeds)
    params = {**params, "interval": "seeds and examples" if seeds else "examples"}
    interval = (max(0.0, centre - half), centre + half)
    return summary_row(metric, params, centre, interval, n=values[..., 0].size, null_value=null)


def _centre_and_half(
    values: NDArray[np.float64], seeds: Sequence[int], *, apart: Sequence[NDArray[np.float64]] = ()
) -> tuple[float, float]:
    """The mean over all but the last axis, and half its 95 % interval.

    Args:
        values: (..., 1 + num_replicates).
        seeds: axes that are seeds of models; each adds the variance of its means.
        apart: (num_models, ..., 1 + num_replicates) of models that were averaged already; each adds its seeds' variance.
    """
    over = tuple(range(values.ndim - 1))
    means = values.mean(axis=over)
    sample = values[..., 0]
    by_seed = [sample.mean(axis=tuple(other for other in over if other != axis)) for axis in seeds]
    by_seed += [side[..., 0].reshape(len(side), -1).mean(axis=1) for side in apart if len(side) > 1]
    variance = float(means[1:].var(ddof=1)) + sum(float(found.var(ddof=1)) / len(found) for found in by_seed)
    quantile = float(scipy.stats.t.ppf(0.975, min(len(found) for found in by_seed) - 1)) if by_seed else 1.96
    return float(means[0]), quantile * float(np.sqrt(variance))


def _change_row(names: tuple[str, str], distances: Distances) -> dict[str, Any]:
    """The change of rho from one target to another, on the same examples, query and calibration models."""
    sides = []
    for name in names:
        models = [m for m in distances.models.values() if m.group == TARGET and m.target == name]
        sides.append(np.stack([distances.rho(model) for model in models]))
    centre, half = _centre_and_half(sides[1].mean(axis=0) - sides[0].mean(axis=0), (0, 1), apart=sides)
    params = {"from": names[0], "to": names[1], "interval": "seeds and examples"}
    if min(len(side) for side in sides) == 1:
        params["interval"] = "the auditor's seeds and examples"  # a single target's own training is not in it
    return summary_row(
        "rho_change", params, centre, (centre - half, centre + half), n=sides[0][0][..., 0].size, null_value=0.0
    )


def _trust_rows(judge: Judge, spec: VerdictSpec) -> Iterator[dict[str, Any]]:
    """How often the verdict is right on models whose truth is known, each judged by the others."""
    for group, models in ((NULL, judge.null), (RETAINED, judge.retained)):
        found = [judge.judge(model).verdict for model in models]
        for verdict in VERDICTS:
            hits = found.count(verdict)
            params = {"target": f"{group} models", "verdict": verdict, "over": "models", "alpha": spec.alpha}
            yield summary_row("share_of_verdicts", params, hits / len(found), wilson_interval(hits, len(found)), n=len(found))


def _membership_rows(name: str, examples: pa.Table) -> Iterator[dict[str, Any]]:
    """How well the likelihood ratio tells which examples of D_Q a target has seen, where that is known."""
    frame = examples.to_pandas()
    frame = frame[(frame["target"] == name) & frame["member"].notna()]
    by_level: dict[float, list[float]] = {}
    for _, mine in frame.groupby("model"):
        member = mine["member"].to_numpy(dtype=bool)
        ratios = mine["log_likelihood_ratio"].to_numpy()
        if member.all() or not member.any():
            continue
        outside = np.sort(ratios[~member])
        for level in (0.01, RARE):
            if (level == RARE and len(outside) < NON_MEMBERS_FOR_RARE) or len(outside) * level < 1:
                continue
            allowed = int(level * len(outside))
            by_level.setdefault(level, []).append(float((ratios[member] > outside[-1 - allowed]).mean()))
    for level, rates in by_level.items():
        values = np.array(rates)
        interval = None
        if len(values) > 1 and np.ptp(values):
            low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
            interval = (max(0.0, float(low)), min(1.0, float(high)))
        params = {"target": name, "false_positive_rate": level, "compared": "likelihood_ratio"}
        yield summary_row("true_positive_rate", params, float(values.mean()), interval, n=len(values), null_value=level)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: rho of everything, and how far verdicts can be trusted."""
    return "kind" in params or "from" in params or (params.get("over") == "models" and "alpha" in params)


def curves(distances: Distances, recipe: Recipe) -> pa.Table:
    """ECDFs of the confidences on D_Q by kind of model (curve confidence_ecdf), and rho by share of D_Q (rho_by_share).

    The ECDFs are of the first model of each kind, whose gap the distances are about.
    """
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, str], Observed] = {}
    for model in distances.models.values():
        first.setdefault((model.group, model.target), model)
    shown = next(m.decimals for m in distances.models.values() if m.group == TARGET)  # all curves as the first target's
    for (group, target), model in first.items():
        values = np.sort(confidences(model.log_odds, shown))
        places = np.unique(np.linspace(0, len(values) - 1, min(400, len(values))).round().astype(int))
        for place in places:
            rows.append(
                _point("confidence_ecdf", target or group, {"group": group}, values[place], (place + 1) / len(values))
            )
    for name, spec in recipe.targets.items():
        if spec.mix is not None and CALIBRATION in spec.mix:
            for model in (m for m in distances.models.values() if m.target == name):
                y = float(distances.rho(model)[..., 0].mean())
                kind = "with other sets" if set(spec.mix) - {QUERY, CALIBRATION} else "D_C and D_Q"
                rows.append(_point("rho_by_share", kind, {"model": model.number}, spec.mix.get(QUERY, 0.0), y))
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def _point(curve: str, series: str, params: Mapping[str, Any], x: float, y: float) -> dict[str, Any]:
    return {
        "curve": curve,
        "series": series,
        "params": json.dumps(dict(params), sort_keys=True),
        "x": float(x),
        "y": float(y),
    }
