"""The findings of a forgetting audit, with intervals, tests and one verdict, and the curves of its page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.forgetting.distances import Distances, Observed
from memlib.audits.forgetting.recipe import HEADLINES, NULL, RETAINED, TARGET, TARGETS, Recipe
from memlib.audits.forgetting.trace import (
    FOUND,
    count_found,
    estimate_effects,
    find_trace,
    power_by_redraws,
    residuals,
    share_interval,
    share_limit,
    strength_of,
    strongest_trace,
)
from memlib.audits.forgetting.verdict import verdict
from memlib.data.given_sets import Difference, p_of_draw
from memlib.findings import Finding, Interval, diagnostic, estimate, settle, tested
from memlib.identity import derive_seed
from memlib.specs.data import CALIBRATION, KNOWN, QUERY, WITHHELD
from memlib.stats.difficulty import CONTRADICTED, difference_p
from memlib.stats.likelihood import confidences
from memlib.tables import CURVES, point


@dataclass(frozen=True)
class Control:
    """The positive control of a target."""

    effect: float  #: trace of the known examples.
    power: float  #: share of redraws in which the known examples are found.
    #: upper confidence limit (95 % jointly over targets) of the trace of D_Q, the data set under audit, relative to that of
    #: the known examples.
    limit: float
    strength: float  #: how far the known examples stand out, in standard deviations of withheld ones.
    #: largest strength that ordinary training data may have, see `strongest_trace`; None if it is not known.
    strongest: float | None
    is_controlled: bool  #: whether the target was trained on the known examples as on others, see `Recipe.is_controlled`.

    @property
    def holds(self) -> bool:
        """True if the trace of D_Q can be compared with that of the known examples.

        The known examples must be found often enough for the absence of a trace to mean something, and must be no stronger
        than other training data.
        """
        is_usual = self.strongest is not None and self.strength <= self.strongest
        return self.is_controlled and is_usual and self.effect > 0 and self.power >= FOUND


def summarize(distances: Distances, recipe: Recipe, checks: Difference | None = None) -> pa.Table:
    """Compute the findings: the trace of D_Q in each target, then rho and its distances, and the test on known models.

    Args:
        distances: distances between all models.
        recipe: targets, verdict and config.
        checks: comparison without a model of D_Q with withheld examples that others drew; None if memlib drew.

    Returns:
        tables.SUMMARY.
    """
    rows: list[Finding] = []
    found: list[Finding] = []
    controls: dict[str, Control] = {}
    draw = None if checks is None else _draw(distances, recipe, checks)
    if distances.pool.has(WITHHELD) and not (draw is not None and draw.params["contradicted"]):
        found = [_found_row(group, distances, recipe) for group in (NULL, RETAINED)]
        if distances.pool.has(KNOWN):
            controls = {name: _control(distances, recipe, name) for name in recipe.targets}
        rows += [_trace_row(name, distances, recipe, controls.get(name)) for name in recipe.targets]
        rows += [
            row for name, control in controls.items() for row in _control_rows(name, control, distances.pool.count(KNOWN))
        ]
    headline = {} if rows else {"kind": TARGET}  # rho, if nothing could be tested
    for name in recipe.targets:
        models = distances.of(TARGET, name)
        rows += _rho_rows({"target": name, "models": len(models)} | headline, models, distances)
        rows += _distance_rows(name, models, distances)
        if name in controls and controls[name].holds and found[1].value >= FOUND:
            rows += _share_rows(name, models, distances)
    for group in (NULL, RETAINED):
        params = {"target": f"{group} models", "kind": group}
        rows += _rho_rows(params, distances.of(group), distances)
    rows += found
    rows += [] if draw is None else [draw]
    if recipe.compare is not None and not distances.problems:
        rows.append(_change_row(recipe.compare, distances))
    settled = settle(rows, alpha=recipe.verdict.level, headlines=HEADLINES)
    run_verdict = verdict(settled, recipe)
    remark = " ".join(f"rho is not given: {problem}." for problem in distances.problems.values())
    return settled.table(replace(run_verdict, explanation=f"{run_verdict.explanation} {remark}".strip()))


def _draw(distances: Distances, recipe: Recipe, checks: Difference) -> Finding:
    """Return the test of a draw that the owner declares, without a model and by models that saw none of the pool."""
    pool = distances.pool
    rows, _ = pool.against_withheld(QUERY)
    p = difference_p(
        _unseen(distances).mean(axis=0)[rows], pool.query[rows], pool.labels[rows], redraws=recipe.score.permutations,
        seed=derive_seed(recipe.score.seed, "declared draw"), groups=pool.groups[rows],
    )  # fmt: skip
    told = {"told": checks.told} if checks.p_value < p else {}
    p = p_of_draw(checks.p_value, [p])
    return diagnostic("declared_draw", {"contradicted": p <= CONTRADICTED} | told, p, n=len(rows))


def _unseen(distances: Distances, without: Observed | None = None) -> NDArray[np.float64]:
    """Return the log odds of the null models, which saw no examples of U, except model `without`: (num_models, num_pool)."""
    return np.stack([m.log_odds for m in distances.of(NULL) if m is not without])


def _residuals(models: Sequence[Observed], distances: Distances, without: Observed | None = None) -> NDArray[np.float64]:
    """Return the residuals, averaged over models, against null models except `without`: (num_pool,)."""
    unseen = _unseen(distances, without)
    mean: NDArray[np.float64] = np.mean([residuals(model.log_odds, unseen) for model in models], axis=0)
    return mean


def _trace_row(name: str, distances: Distances, recipe: Recipe, control: Control | None) -> Finding:
    """Return the test of D_Q against withheld examples in all models of a target together."""
    models, pool, config = distances.of(TARGET, name), distances.pool, recipe.score
    trace = find_trace(
        _residuals(models, distances),
        pool,
        permutations=config.permutations,
        seed=derive_seed(config.seed, "redraws", name),
        error=recipe.verdict.error,
    )
    params = {
        "target": name, "kind": TARGET, "models": len(models),
        "examples": pool.count(QUERY), "withheld": pool.count(WITHHELD),
    }  # fmt: skip
    bounds: dict[str, float] = {"upper_bound": trace.upper} if np.isfinite(trace.upper) else {}
    if control is not None and control.holds and np.isfinite(control.limit):
        bounds = {"upper_bound": control.limit * control.effect, "bound": recipe.verdict.share_bound * control.effect}
    return tested(
        "trace", params, trace.effect, n=pool.count(QUERY) + pool.count(WITHHELD), p_value=trace.p_value,
        family=TARGETS, either_direction=True,
        interval=Interval(trace.low, trace.high, "examples") if np.isfinite(trace.low) else None,
        detectable=trace.detectable(_level(recipe)), smallest_p=min(1.0, trace.smallest_p * len(recipe.targets)), **bounds,
    )  # fmt: skip


def _control_rows(name: str, control: Control, count: int) -> Iterator[Finding]:
    """Yield the findings of a target's positive control, which has `count` known examples."""
    yield diagnostic("control_power", {"target": name}, control.power, n=count)
    strongest = {} if control.strongest is None else {"strongest": round(control.strongest, 4)}
    yield diagnostic("control_strength", {"target": name, **strongest}, control.strength, n=count)
    if np.isfinite(control.limit):
        yield diagnostic("share_limit", {"target": name}, control.limit, n=count)


def _level(recipe: Recipe) -> float:
    """Return the level at which one target is significant whatever the others show (Bonferroni)."""
    return recipe.verdict.level / len(recipe.targets)


def _control(distances: Distances, recipe: Recipe, name: str) -> Control:
    """Evaluate the positive control of a target; the limits of several targets hold jointly at 95 %."""
    models, pool, config = distances.of(TARGET, name), distances.pool, recipe.score
    values = _residuals(models, distances)
    seed = derive_seed(config.seed, "control", name)
    known, _ = estimate_effects(values, pool).contrast({KNOWN: 1.0})
    power = power_by_redraws(values, pool, alpha=_level(recipe), redraws=config.resamples, seed=seed)
    limit = share_limit(values, pool, level=1 - recipe.verdict.error / len(recipe.targets))
    retained = distances.of(RETAINED)
    own = [model.members & pool.query for model in retained if model.members is not None]
    strongest = strongest_trace(_strengths(retained, distances, own))
    strength = float(np.mean(_strengths(models, distances, [pool.roles == KNOWN] * len(models))))
    return Control(known, power, limit, strength, strongest, recipe.is_controlled(name))


def _strengths(models: Sequence[Observed], distances: Distances, used: Sequence[NDArray[np.bool_]]) -> list[float]:
    """Return how far the examples that each model was trained on stand out; models without any are left out."""
    unseen, withheld = _unseen(distances), distances.pool.roles == WITHHELD
    pairs = zip(models, used, strict=True)
    return [strength_of(model.log_odds, unseen, own, withheld) for model, own in pairs if own.any()]


def _found_row(group: str, distances: Distances, recipe: Recipe) -> Finding:
    """Return the share of the auditor's models of a group in which the test detects D_Q; it should be 0 for null models."""
    models, config = distances.of(group), recipe.score
    values = [_residuals([model], distances, without=model) for model in models]
    seeds = [derive_seed(config.seed, "redraws", group, model.number) for model in models]
    hits = count_found(values, distances.pool, permutations=config.permutations, seeds=seeds, alpha=_level(recipe))
    params = {"target": f"{group} models", "alpha": _level(recipe)}
    return diagnostic("found_share", params, hits / len(models), n=len(models))


def _distance_rows(name: str, models: Sequence[Observed], distances: Distances) -> Iterator[Finding]:
    to_query = np.stack([distances.to_query(model) for model in models]).mean(axis=0)
    yield _row("ks_target", {"target": name}, to_query, ())
    yield _row("ks_calibration", {"target": name}, distances.calibrations(models[0].decimals), (0, 1))


def _share_rows(name: str, models: Sequence[Observed], distances: Distances) -> Iterator[Finding]:
    """Yield the estimated share of D_Q that was used: the trace of D_Q divided by that of the known examples.

    The control must hold, and the auditor's own retained models, which used a known share, must be found as well.
    """
    share, low, high = share_interval(_residuals(models, distances), distances.pool)
    if low <= 1 and (share > 0 or np.isfinite(high)):  # no share of use explains a reversed trace
        params = {"target": name, "assumes": "used as the known examples were"}
        interval = Interval(max(0.0, low), min(1.0, high), "examples")
        share = min(1.0, max(0.0, share))
        yield estimate("share_used", params, share, n=distances.pool.count(QUERY), interval=interval)


def _rho_rows(params: Mapping[str, Any], models: Sequence[Observed], distances: Distances) -> Iterator[Finding]:
    """Yield rho, a descriptive estimate: a value below 1 is no evidence, as models without D_Q lie below 1 as well."""
    if models[0].decimals not in distances.problems:
        values = np.stack([distances.rho(model) for model in models])
        seeds = (0, 1, 2) if len(models) > 1 else (1, 2)
        yield _row("rho", params, values, seeds, most=distances.largest_rho(models[0].decimals))


def _row(
    metric: str, params: Mapping[str, Any], values: NDArray[np.float64], seeds: Sequence[int], *, most: float = 1.0
) -> Finding:
    """Return the row of a mean over all but the last axis (the sample, then bootstrap replicates of examples).

    Args:
        metric, params: metric and params of the row.
        values: (..., 1 + num_replicates).
        seeds: axes of `values` that correspond to model seeds; each adds the variance of its means.
        most: the largest possible value; the smallest is 0.
    """
    centre, half = _centre_and_half(values, seeds)
    over = "seeds and examples" if seeds else "examples"
    interval = Interval(max(0.0, centre - half), min(most, centre + half), over)
    return estimate(metric, params, centre, n=values[..., 0].size, interval=interval)


def _centre_and_half(
    values: NDArray[np.float64], seeds: Sequence[int], *, apart: Sequence[NDArray[np.float64]] = ()
) -> tuple[float, float]:
    """Compute the mean over all but the last axis, and half the width of its 95 % interval.

    Args:
        values: (..., 1 + num_replicates).
        seeds: axes of `values` that correspond to model seeds; each adds the variance of its means.
        apart: (num_models, ..., 1 + num_replicates) arrays of models that were averaged already; each adds the variance over
            its models.
    """
    over = tuple(range(values.ndim - 1))
    means = values.mean(axis=over)
    sample = values[..., 0]
    by_seed = [sample.mean(axis=tuple(other for other in over if other != axis)) for axis in seeds]
    by_seed += [side[..., 0].reshape(len(side), -1).mean(axis=1) for side in apart if len(side) > 1]
    variance = float(means[1:].var(ddof=1)) + sum(float(seed_means.var(ddof=1)) / len(seed_means) for seed_means in by_seed)
    quantile = float(scipy.stats.t.ppf(0.975, min(len(seed_means) for seed_means in by_seed) - 1)) if by_seed else 1.96
    return float(means[0]), quantile * float(np.sqrt(variance))


def _change_row(names: tuple[str, str], distances: Distances) -> Finding:
    """Return the change of rho between two targets, on the same examples, query models and calibration models."""
    sides = [np.stack([distances.rho(model) for model in distances.of(TARGET, name)]) for name in names]
    first, last = (distances.of(TARGET, name)[0] for name in names)
    centre, half = _centre_and_half(sides[1].mean(axis=0) - sides[0].mean(axis=0), (0, 1), apart=sides)
    params = {"from": names[0], "to": names[1]}
    single = min(len(side) for side in sides) == 1  # with a single model, the target's training seed is not varied
    over = "the auditor's seeds and examples" if single else "seeds and examples"
    least, most = -distances.largest_rho(first.decimals), distances.largest_rho(last.decimals)
    interval = Interval(max(least, centre - half), min(most, centre + half), over)
    return estimate("rho_change", params, centre, n=sides[0][0][..., 0].size, interval=interval)


def curves(distances: Distances, recipe: Recipe) -> pa.Table:
    """Compute the points that the page draws.

    Curves: confidence_ecdf (empirical distribution of the confidences on D_Q of the first model of each kind) and
    rho_by_share (rho by share of D_Q).
    """
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, str], Observed] = {}
    for model in distances.models.values():
        first.setdefault((model.group, model.target), model)
    # all curves are rounded like the outputs of the first target
    decimals = next(m.decimals for m in distances.models.values() if m.group == TARGET)
    for (group, target), model in first.items():
        values = np.sort(confidences(model.log_odds[distances.pool.query], decimals))
        places = np.unique(np.linspace(0, len(values) - 1, min(400, len(values))).round().astype(int))
        for place in places:
            rows.append(point("confidence_ecdf", target or group, {"group": group}, values[place], (place + 1) / len(values)))
    for name, spec in recipe.targets.items():
        if spec.mix is not None and CALIBRATION in spec.mix and not distances.problems:
            for model in (m for m in distances.models.values() if m.target == name):
                y = float(distances.rho(model)[..., 0].mean())
                kind = "with other sets" if set(spec.mix) - {QUERY, CALIBRATION} else "D_C and D_Q"
                rows.append(point("rho_by_share", kind, {"model": model.number}, spec.mix.get(QUERY, 0.0), y))
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)
