"""Findings from scores: one headline test per variant, its other scores as a second family, and estimates."""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, of_variant, settings
from memlib.audits.unique_feature.calibrated_maxima import ByLabel
from memlib.audits.unique_feature.comparisons import Comparison, VariantScore, compare
from memlib.audits.unique_feature.exchange import Exchanged, exchange
from memlib.audits.unique_feature.flips import flip_rows
from memlib.audits.unique_feature.recipe import FEWEST_CONTROLS, FLIPS, HEADLINE, HEADLINES, RANGE, Config
from memlib.audits.unique_feature.scoring import Pull
from memlib.audits.unique_feature.verdict import verdict
from memlib.findings import Finding, Interval, diagnostic, estimate, settle, tested
from memlib.stats.inference import exact_interval, exceedance_p, largest_mean
from memlib.stats.operating import most_alarms
from memlib.stats.randomization import POWER

Cells = Mapping[tuple[str, int], ByLabel]
Influence = Mapping[tuple[str, int, str], float]


def summarize(
    units: pa.Table,
    cells: Cells,
    config: Config,
    *,
    influence: Influence | None = None,
    pulls: Mapping[str, Sequence[Pull]] | None = None,
    compared: Sequence[Comparison] = (),
    characterized: Iterable[Finding] = (),
) -> pa.Table:
    """Return the findings for each variant, score and output, with the verdict of the run on the first row.

    The headline test of a variant concerns the paired difference in m_white on the first output, that is, the effect on the
    nets of the feature's appearance in training; it is adjusted by Holm over variants. The differences of the other scores
    form a second family, adjusted by max-T over all scores; the numbers of single nets that exceed the controls form a third;
    for the comparisons of variants, see `compare`, for flipped decisions, `flip_rows`. All other rows are estimates and
    diagnostics.

    Args:
        units: tables.UNITS, calibrated.
        cells: grey- and black-box scores at every label by (variant, data seed), in the order of the units' nets.
        config: alpha, bound, replicates, permutations, seed.
        influence: self-influence by (variant, data seed, example id), if canaries were chosen by it.
        pulls: self-influence of canaries with and without the feature, by variant.
        compared: comparisons of variants with their baselines.
        characterized: further estimates, see `characterization`.

    Returns:
        tables.SUMMARY.
    """
    variants: dict[str, list[VariantScore]] = {}
    for params, parts in settings(units):
        scored = VariantScore(params, [Analysis(part, config) for part in parts], config)
        variants.setdefault(str(params.get("variant", "")), []).append(scored)
    heads: list[Finding] = []
    rest: list[Finding] = []
    for variant, scores in variants.items():
        seeds = dict.fromkeys(s for name, s in cells if name == variant)
        head, *others = _rows_of_variant(variant, scores, [cells[variant, s] for s in seeds], config, len(variants))
        heads.append(head)
        rest += others
    rest += compare(variants, compared)
    rest += flip_rows(units, config)
    rest += _correlations(units, influence or {})
    rest += [row for variant, of_canaries in (pulls or {}).items() for row in _pull_rows(variant, of_canaries)]
    rest += characterized
    findings = settle([*heads, *rest], alpha=config.level, headlines=HEADLINES)
    return findings.table(verdict(findings, alpha=config.level))


def _rows_of_variant(
    variant: str, scores: Sequence[VariantScore], cells: Sequence[ByLabel], config: Config, num_variants: int
) -> Iterator[Finding]:
    """Yield the rows of one variant, the headline first."""
    level = config.level / num_variants
    exchanged = exchange([s.score for s in scores], cells, alpha=level, permutations=config.permutations, seed=config.seed)
    for place, scored in enumerate(scores):
        if not len(scored.gains):
            continue
        if exchanged is None:
            yield _difference(scored)
        elif place == 0:
            yield _tested_difference(scored, exchanged, 0, family=HEADLINE, level=level, bound=config.bound)
        else:
            family = _family("scores", variant)
            yield _tested_difference(scored, exchanged, place, family=family, level=config.level / len(scores))
    for scored in scores:
        yield from _group_rows(scored)
        yield from _proportions(scored, variant, len(scores))


def _family(name: str, variant: str) -> str:
    return f"{name} {variant}".strip()


def _difference(scored: VariantScore) -> Finding:
    gains, over = scored.gains, scored.over(scored.paired)
    at = {**scored.params, "group": "canary - control", "statistic": "mean"}
    return estimate(scored.metric, at, float(gains.mean()), n=len(gains), interval=scored.interval(gains, over))


def _tested_difference(
    scored: VariantScore, found: Exchanged, place: int, *, family: str, level: float, bound: float | None = None
) -> Finding:
    """Return the difference with its test; scores other than the headline carry their max-T p-value."""
    row, gains = _difference(scored), scored.gains
    is_bounded = scored.params["output"] == "probability" and scored.metric != "m_w"
    pairs = sum(len(pairs) for pairs in scored.paired)
    return tested(
        row.metric, {**row.params, "pairs": pairs, "exchanged": found.over}, row.value, n=row.n, interval=row.interval,
        p_value=float(found.p_values[place]), family=family,
        p_adjusted=None if family == HEADLINE else float(found.adjusted[place]),
        upper_bound=RANGE * largest_mean(gains / RANGE, level=scored.config.error) if is_bounded else None, bound=bound,
        detectable=found.detectable(float(found.deviations[place]), level),
        smallest_p=found.smallest_p,
    )  # fmt: skip


def _group_rows(scored: VariantScore) -> Iterator[Finding]:
    """Yield mean and maximum of canary nets and of controls."""
    for group, chosen in (("canary", [d.nets for d in scored.draws]), ("control", [d.controls for d in scored.draws])):
        if not all(len(nets) for nets in chosen):
            continue
        values = [d.values[nets] for d, nets in zip(scored.draws, chosen, strict=True)]
        means = scored.means(values, chosen)
        at = {**scored.params, "group": group}
        interval = scored.interval(means, scored.over(chosen))
        yield estimate(scored.metric, {**at, "statistic": "mean"}, float(means.mean()), n=len(means), interval=interval)
        top, count = max(float(v.max()) for v in values), sum(len(v) for v in values)
        yield diagnostic(scored.metric, {**at, "statistic": "max"}, top, n=count)


# -- single nets --------------------------------------------------------------------------------------


def _proportions(scored: VariantScore, variant: str, num_scores: int) -> Iterator[Finding]:
    if scored.one_seed:
        return
    criteria = [draw.criteria for draw in scored.draws]
    if all("calibrated" in masks for masks in criteria):
        yield _calibrated(scored, [masks["calibrated"] for masks in criteria], variant, num_scores)
    yield from _published(scored, [masks["published"] for masks in criteria])


def _calibrated(scored: VariantScore, beyond: Sequence[NDArray[np.bool_]], variant: str, num_scores: int) -> Finding:
    """Return the share of nets above the controls' threshold: a test with one draw of the data, an estimate with several."""
    nets = [d.nets for d in scored.draws]
    means = scored.means([b[n].astype(float) for b, n in zip(beyond, nets, strict=True)], nets)
    at = {**scored.params, "criterion": "calibrated"}
    name, value = "proportion_memorized", float(means.mean())
    if len(scored.draws) > 1:
        return estimate(name, at, value, n=len(means), interval=_share(scored.interval(means, "data")))
    draw, level = scored.draws[0], scored.config.level / num_scores
    count, controls = len(draw.nets), len(draw.controls)
    hits = int(beyond[0][draw.nets].sum())
    p = [exceedance_p(h, count, rank=draw.rank, num_controls=controls) for h in (hits, count)]
    places = np.concatenate([draw.nets, draw.controls])
    canaries = {example for _, example in draw.identities(draw.nets)}  # nets of one canary are not independent
    is_net, few = np.arange(len(places)) < count, controls < FEWEST_CONTROLS or len(canaries) > 1
    most = None if few else most_alarms(draw.values[places], is_net, scored.config.level, error=scored.config.error)
    return tested(
        name, at, hits / count, n=count, p_value=p[0], family=_family("single nets", variant),
        null_value=draw.rank / (controls + 1), smallest_p=p[1], upper_bound=most,
        detectable=_detectable_share(count, draw.rank, controls, level),
    )  # fmt: skip


def _detectable_share(count: int, rank: int, controls: int, level: float) -> float | None:
    """Return the share of nets above the threshold that leads to rejection with a power of 80 %."""
    hits = range(1, count + 1)
    place = bisect.bisect_left(hits, -level, key=lambda h: -exceedance_p(h, count, rank=rank, num_controls=controls))
    return float(scipy.stats.beta.ppf(POWER, hits[place], count - hits[place] + 1)) if place < count else None


def _published(scored: VariantScore, memorized: Sequence[NDArray[np.bool_]]) -> Iterator[Finding]:
    """Yield the shares of canary nets and of controls that meet the papers' criterion, and their difference within pairs."""
    at = {**scored.params, "criterion": "published"}
    nets, controls = [d.nets for d in scored.draws], [d.controls for d in scored.draws]
    for name, chosen in (("proportion_memorized", nets), ("proportion_control", controls)):
        if all(len(members) for members in chosen):
            means = scored.means([m[c].astype(float) for m, c in zip(memorized, chosen, strict=True)], chosen)
            yield estimate(name, at, float(means.mean()), n=len(means), interval=_fixed(scored, means, scored.over(chosen)))
    if all(len(pairs) for pairs in scored.paired):
        gains = [m[d.pairs[:, 0]].astype(float) - m[d.pairs[:, 1]] for m, d in zip(memorized, scored.draws, strict=True)]
        means = scored.means(gains, scored.paired)
        interval = _share(scored.interval(means, scored.over(scored.paired)), low=-1.0)
        yield estimate("proportion_excess", at, float(means.mean()), n=len(means), interval=interval)


def _fixed(scored: VariantScore, means: NDArray[np.float64], over: str) -> Interval | None:
    """Return the exact interval of a proportion above a fixed threshold, over nets, canaries or draws of the data."""
    if not scored.has_interval(means):
        return None
    return Interval(*exact_interval(float(means.sum()), len(means)), over)


def _share(interval: Interval | None, *, low: float = 0.0) -> Interval | None:
    """Clip the interval of a proportion to its range; return None if equal units gave it no width."""
    if interval is None or interval.high is None or interval.high - interval.low < 1e-12:
        return None
    return Interval(max(low, interval.low), min(1.0, interval.high), interval.over)


# -- correlations -------------------------------------------------------------------------------------


def _correlations(units: pa.Table, influence: Influence) -> Iterator[Finding]:
    """Yield correlations of m_white with the other scores (2023, Figs. 6 and 7) and of self-influence with M (2022, 3.3)."""
    scores: dict[tuple[str, str], dict[str, dict[Any, float]]] = {}
    for row in units.to_pylist():
        if row["control"] or not row["own_label"] or row["draw"] or row["feature"] != "canary" or row["metric"] == FLIPS:
            continue
        net = (row["data_seed"], row["net"], row["example_id"])
        outputs = {row["output"]} if row["output"] in ("probability", "logit") else {"probability", "logit"}
        for output in outputs:
            scores.setdefault((row["variant"], output), {}).setdefault(row["metric"], {})[net] = row["value"]
    for (variant, output), by_metric in scores.items():
        pairs = {
            ("m_white", other): (by_metric["m_white"], by_metric[other])
            for other in by_metric
            if "m_white" in by_metric and other != "m_white"
        }
        for metric in by_metric:
            known = {
                net: influence[variant, net[0], net[2]] for net in by_metric[metric] if (variant, net[0], net[2]) in influence
            }
            pairs["self_influence", metric] = (known, by_metric[metric])
        for (first, second), (a, b) in pairs.items():
            params = {"metric": "correlation", "of": f"{first} and {second}", "output": output, "statistic": "Pearson"}
            row = _correlation(of_variant(variant) | params, a, b, by_canary=first == "self_influence")
            if row is not None:
                yield row


def _correlation(
    params: Mapping[str, str], a: Mapping[Any, float], b: Mapping[Any, float], *, by_canary: bool
) -> Finding | None:
    """Return Pearson's correlation over nets, or over canaries if one side has only one value per canary."""
    nets = sorted(a.keys() & b.keys())
    x, y = np.array([a[net] for net in nets]), np.array([b[net] for net in nets])
    canaries = np.unique([f"{net[0]} {net[2]}" for net in nets], return_inverse=True)[1]
    if by_canary and len(nets):
        counts = np.bincount(canaries)
        x, y = np.bincount(canaries, weights=x) / counts, np.bincount(canaries, weights=y) / counts
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    result = scipy.stats.pearsonr(x, y)
    interval = None
    if by_canary or canaries.max() == 0:  # nets of several canaries are not independent
        ends = result.confidence_interval()
        interval = Interval(float(ends.low), float(ends.high), "canaries" if by_canary else "nets")
    return diagnostic("correlation", params, float(result.statistic), n=len(x), interval=interval)


def _pull_rows(variant: str, pulls: Sequence[Pull]) -> Iterator[Finding]:
    """Yield each canary's self-influence with the feature and without it."""
    for pull in pulls:
        for group, value in (("with the feature", pull.with_feature), ("without", pull.without_feature)):
            params = {"metric": "self_influence", "example": pull.example_id, "group": group}
            yield diagnostic("self_influence_canary", of_variant(variant) | params, value, n=1)
