"""The findings of a déjà vu audit: tests by redrawing the sides, estimates with intervals, and one verdict.

The side of an image is the set, A or B, that it was drawn into.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import DIRECTIONS, HEADLINE, HEADLINES, SETS, Config
from memlib.audits.deja_vu.scores import CATEGORIES, ease
from memlib.audits.deja_vu.units import SIDES, Analysis, settings, split_by
from memlib.audits.deja_vu.verdict import recognition, verdict
from memlib.data.given_sets import Difference
from memlib.findings import Finding, Findings, Interval, diagnostic, estimate, settle, tested, untested
from memlib.identity import derive_seed
from memlib.stats.difficulty import CONTRADICTED, difference_p, num_statistics
from memlib.stats.inference import (
    accuracy_curve,
    difference_interval,
    exact_interval,
    mcnemar_p,
    paired_interval,
    permutation_p,
)
from memlib.stats.randomization import Design, attributable_bound, detectable, detectable_answers
from memlib.stats.totals import grouped_interval, resampled_differences
from memlib.tables import CURVES, point

SETTINGS, CLASSES = "settings", "classes"
LEVEL = CONTRADICTED / 2  # of each of the two tests of a declared draw
GAPS, GAP_CHANGE = ("probe_gap_backbone", "probe_gap_projector"), "change in probe_gap"


def summarize(
    units: pa.Table, config: Config, *, num_classes: int, probes: pa.Table | None = None, reference: str | None = None
) -> pa.Table:
    """Return the findings, starting with the share excess at the headline's setting, which uses every example.

    Its test is exact by design: for each class, the split drew at random which images model A trained on and which images
    model B trained on. If nothing is memorized, the side of an image does not change any answer, and every draw is as likely
    as the actual one. All pairs of models share one draw. The other settings and scores form one family and the classes
    another, each adjusted by Benjamini and Hochberg.

    The 95 % intervals come from a bootstrap over examples, stratified by direction and class, that selects the p % most
    confident examples again in each replicate; they apply to the trained models at hand. With three or more pairs of models,
    the intervals of rows for both directions are widened to cover the variation between training runs. Intervals do not enter
    the verdict.

    With a single model, "both" is a difference of differences: what the model names beyond the background classifier among
    its training images, minus the same among held-out images. The same redraws of the sides test it, because the classifier
    does not depend on the sides.

    Args:
        units: tables.UNITS.
        config: p, level, bound, replicates, permutations, seed.
        num_classes: number of classes; the chance level is 1 / num_classes.
        probes: table with the schema searching.PROBES; adds the probe gaps and the accuracies on whole images.
        reference: kind of the classifier that replaces the second model; None with two models.

    Returns:
        tables.SUMMARY.
    """
    rows = rows_of(units, config, num_classes=num_classes, reference=reference)
    return settled([*rows, *([] if probes is None else probe_rows(probes))], config)


def rows_of(
    units: pa.Table,
    config: Config,
    *,
    num_classes: int,
    headline: bool = True,
    reference: str | None = None,
    beyond: bool = False,
    declared: bool = False,
) -> list[Finding]:
    """Return the findings of some settings, not yet settled; see `summarize`.

    Args:
        units, config, num_classes, reference: as in `summarize`.
        headline: whether the first setting is the headline's.
        beyond: whether memory beyond the class is tested, too.
        declared: whether the images were only declared to be assigned at random.
    """
    rows: list[Finding] = []
    for number, (setting, part) in enumerate(settings(units)):
        analysis = Analysis(part, config, alone=reference is not None)
        setting |= {} if reference is None else {"reference": reference}
        family = HEADLINE if headline and number == 0 else SETTINGS
        level = config.headline_level(beyond=beyond) if family == HEADLINE else config.level
        rows += _rows_of_setting(analysis, setting, config, num_classes, family=family, level=level)
        rows += _class_rows(analysis, setting, config, headline=headline and number == 0)
        if declared and family == HEADLINE:
            rows.append(_draw_row(analysis, config))
    return rows


def settled(rows: Iterable[Finding], config: Config, *, by_chance: bool = True) -> pa.Table:
    """Return the findings of all settings and probes as tables.SUMMARY: adjust the tests and add the verdict.

    Args:
        rows: findings from `rows_of`, `probe_rows` and similar functions, the headline first.
        config: level.
        by_chance: whether images were assigned to the sides at random; otherwise tests become estimates, as they do where
            sets that were declared to be drawn at random differ.
    """
    findings = Findings(rows)
    if not by_chance or findings.all(SETS, differs=True):
        findings = Findings(map(untested, findings))
    recognized = recognition(findings)
    if recognized is not None and recognized.is_blind:
        findings = Findings(replace(row, bound=None) for row in findings)  # who names nothing bounds nothing
    adjust = {SETTINGS: "benjamini-hochberg", CLASSES: "benjamini-hochberg"}
    findings = settle(findings, alpha=config.level, adjust=adjust, headlines=HEADLINES)
    return findings.table(verdict(findings))


def _rows_of_setting(
    analysis: Analysis, setting: Mapping[str, Any], config: Config, num_classes: int, *, family: str, level: float
) -> Iterator[Finding]:
    at = {**setting, "direction": "both", "pairs": analysis.num_pairs}

    def row(name: str, direction: str = "both", **params: float) -> Finding:
        key = f"{name}@{params['p']:g}/{direction}" if "p" in params else f"{name}/{direction}"
        n = int(analysis.units_of(direction).sum())
        interval = analysis.interval(key)
        return estimate(name, at | {"direction": direction} | params, analysis.value(key), n=n, interval=interval)

    yield _excess_row(analysis, at | analysis.comparison, config, family=family, level=level)
    yield _score_row(analysis, at | {"p": config.p}, config)
    for which in DIRECTIONS if analysis.alone else ("both",):
        for share in sorted({config.p, 1.0}):
            for side in ("target", "reference"):
                yield row(f"accuracy_{side}", which, p=share, chance=1 / num_classes)
        for name in CATEGORIES:
            yield row(f"share_{name}", which)
    if analysis.num_pairs == 1 and not analysis.alone:
        yield _mcnemar_row(analysis, at)
    for direction in DIRECTIONS:
        yield row("share_excess", direction)
        yield row("deja_vu_score", direction, p=config.p)
        for side in () if analysis.alone else ("target", "reference"):
            yield row(f"accuracy_{side}", direction, p=config.p, chance=1 / num_classes)


def _draw_row(analysis: Analysis, config: Config) -> Finding:
    """Return the test, two-sided, of a declared draw by what the models of A and B find easy.

    Memory of both alike leaves no difference in the sum, and memory of the first alone leaves none in the second. Only where
    the sides differ in both are the images of one side easier. Of one model alone, the classifiers of backgrounds, which know
    no sides, are asked: `detectable` is the difference in right answers that is found with a power of 80 %.
    """
    answers = {side: zip(analysis.right[side], analysis.confidence[side], strict=True) for side in SIDES}
    own, other = (np.mean([ease(*of_pair) for of_pair in answers[side]], axis=0) for side in SIDES)
    of_b, seed = np.where(analysis.of_a, other, own), derive_seed(config.seed, "declared draw")
    p = max(
        difference_p(
            values, analysis.of_a, analysis.label, redraws=config.permutations, seed=seed, groups=analysis.groups
        )
        for values in ((other,) if analysis.alone else (own + other, of_b))
    )  # fmt: skip
    sides, design = ("reference",) if analysis.alone else SIDES, analysis.design
    named = np.mean([analysis.right[side].mean(axis=0) for side in sides], axis=0)
    by, missed = "models", None
    if analysis.alone:
        by, deviation = "backgrounds", design.null_deviation(named) / design.balance
        missed = detectable(deviation, LEVEL / num_statistics(analysis.label), two_sided=True)
    params = {"by": by, "p": p, "differs": p <= LEVEL, "detectable": missed}
    return diagnostic(SETS, params, design.difference(named), n=analysis.num_units)


def check_row(found: Difference) -> Finding:
    """Return the comparison of declared sets without a model; its value is an AUC."""
    params = {"by": "features", "p": found.p_value, "differs": found.p_value <= LEVEL, "told": found.told}
    return diagnostic(SETS, params, found.auc, n=found.n)


def _excess_row(analysis: Analysis, params: Mapping[str, Any], config: Config, *, family: str, level: float) -> Finding:
    """Return the share excess, tested by redrawing the sides, with an upper bound on memory (Rosenbaum 2001).

    Args:
        analysis, params, config, family: of the finding.
        level: level at which power is stated.
    """
    design, gains = analysis.design, analysis.gains
    answers = int(analysis.trained_on.sum()) * analysis.num_pairs
    seed = derive_seed(config.seed, "sides")
    right = analysis.right["target"].sum(axis=0) * analysis.trained_on
    bound = attributable_bound(design, gains, right, permutations=config.permutations, seed=seed, level=config.error)
    enough = detectable_answers(design, gains, analysis.wrong, alpha=level, seed=seed)
    return tested(
        "share_excess", params, analysis.value("share_excess/both"), n=analysis.num_units,
        interval=analysis.interval("share_excess/both"), family=family,
        p_value=design.tail_p(gains, permutations=config.permutations, seed=seed),
        upper_bound=None if bound is None else bound / answers, bound=config.bound,
        detectable=None if enough is None or enough > answers else enough / answers,
        smallest_p=max(design.smallest_p(gains), 0.0 if design.is_even else 1 / (1 + config.permutations)),
    )  # fmt: skip


def _score_row(analysis: Analysis, params: Mapping[str, Any], config: Config) -> Finding:
    """Return the paper's score at p, tested by redrawing the sides; each model is scored on its own most confident crops.

    Where the sides contain a class in unequal numbers, the score is the excess over the mean of the redraws: a side with more
    images of a class that is easy for one of the models differs without memory.
    """
    name = f"deja_vu_score@{config.p:g}/both"
    null = analysis.redrawn_scores(config.permutations, seed=derive_seed(config.seed, "sides of the score"))
    value, interval = analysis.value(name), analysis.interval(name)
    expected = 0.0 if analysis.is_balanced else float(null.mean())  # what unequal shares of classes explain
    interval = Interval(max(-2.0, interval.low - expected), min(2.0, (interval.high or 0.0) - expected), interval.over)
    return tested(
        "deja_vu_score", params, value - expected, n=analysis.num_units, interval=interval, family=SETTINGS,
        p_value=permutation_p(value, null), smallest_p=1 / (1 + len(null)) if np.ptp(null) else 1.0,
    )  # fmt: skip


def _mcnemar_row(analysis: Analysis, params: Mapping[str, Any]) -> Finding:
    """Return the exact McNemar test of one pair; it compares the two trained models rather than the two sides of a draw."""
    target, reference = analysis.right["target"][0], analysis.right["reference"][0]
    wins, losses = int((target & ~reference).sum()), int((~target & reference).sum())
    return diagnostic("mcnemar_p", {**params, "wins": wins, "losses": losses}, mcnemar_p(wins, losses), n=wins + losses)


def _class_rows(analysis: Analysis, setting: Mapping[str, Any], config: Config, *, headline: bool) -> Iterator[Finding]:
    """Yield the share excess within each class; at the headline's setting, test it (one family over all classes)."""
    gains, design = analysis.gains, analysis.design
    order = np.argsort(analysis.label, kind="stable")
    members = np.split(order, np.cumsum(np.unique(analysis.label, return_counts=True)[1])[:-1])
    for units, (label, name) in zip(members, analysis.class_names.items(), strict=True):
        part = Design(design.first[units], design.stratum[units], design.group[units])
        if not part.balance:
            continue  # the class has images on one side only
        params = {**setting, "direction": "both", "pairs": analysis.num_pairs, "class": name, "label": label}
        value, interval = analysis.scale * part.difference(gains[units]), _interval_of_class(analysis, units, part, config)
        if not headline:
            yield estimate("share_excess", params, value, n=len(units), interval=interval)
            continue
        p = part.tail_p(gains[units], permutations=config.permutations, seed=derive_seed(config.seed, "class", label))
        yield tested(
            "share_excess", params, value, n=len(units), interval=interval, family=CLASSES, p_value=p,
            smallest_p=part.smallest_p(gains[units]),
        )  # fmt: skip


def _interval_of_class(analysis: Analysis, units: NDArray[np.int64], part: Design, config: Config) -> Interval:
    """Return the interval of a class's share excess; by group where images belong together."""
    own = (analysis.right["target"][:, units].astype(float) - analysis.right["reference"][:, units]).mean(axis=0)
    first = part.first
    low, high = difference_interval(own[first], own[~first]) if analysis.alone else paired_interval(own)
    if part.has_groups:
        seed, gains = derive_seed(config.seed, "class", int(analysis.label[units[0]])), analysis.scale * analysis.gains[units]
        replicates = resampled_differences(gains[:, None], part, config.replicates, seed=seed)
        ends = grouped_interval(replicates[:, 0], part)
        low, high = max(-2.0, min(ends[0], low)), min(2.0, max(ends[1], high))
    return Interval(low, high, analysis.sampled)


def rows_through_training(earlier: Mapping[int, pa.Table], probes: pa.Table, *, last: int) -> Iterator[Finding]:
    """Yield the accuracies of earlier checkpoints on whole images, and how the probe gap has changed since the first of them.

    Both ends of a change use the same images; its interval is computed as if they used different ones, which makes it wider.

    Args:
        earlier: table with the schema searching.PROBES of each earlier checkpoint, by epoch.
        probes: the same of the last checkpoint.
        last: epoch of the last checkpoint.
    """
    for epoch in sorted(earlier):
        yield from probe_rows(earlier[epoch], epoch=epoch)
    since = min(earlier)
    before = {row.params["probe_layer"]: row for row in probe_rows(earlier[since]) if row.metric in GAPS}
    for row in probe_rows(probes):
        if row.metric in GAPS:
            first = before[row.params["probe_layer"]]
            value = row.value - first.value
            half = math.hypot((row.high or 0.0) - row.value, (first.high or 0.0) - first.value)
            params = {"probe_layer": row.params["probe_layer"], "epoch": last, "since": since}
            interval = Interval(max(-2.0, value - half), min(2.0, value + half), "examples")
            yield diagnostic(GAP_CHANGE, params, value, n=row.n, interval=interval)


def probe_rows(probes: pa.Table, *, epoch: int | None = None) -> Iterator[Finding]:
    """Yield the models' accuracies on whole images, averaged over directions and pairs; these do not detect déjà vu.

    probe_gap: training minus test accuracy of a linear probe; its interval is over examples and computed as if there were no
    more training images than test images. knn_accuracy: share of the other model's images whose class the nearest public
    images name correctly.

    Args:
        probes: table with the schema searching.PROBES of one checkpoint.
        epoch: epoch of the checkpoint, for the params; None for the last checkpoint.
    """
    at = {} if epoch is None else {"epoch": epoch}
    records = probes.to_pylist()
    for layer in dict.fromkeys(row["layer"] for row in records):
        rows = [row for row in records if row["layer"] == layer]
        train, test = (float(np.mean([row[f"{part}_accuracy"] for row in rows])) for part in ("train", "test"))
        name = GAPS[0] if layer == "backbone" else GAPS[1]
        params = {**at, "probe_layer": layer, "train_accuracy": round(train, 4), "test_accuracy": round(test, 4)}
        count = sum(row["n"] for row in rows)
        each = count / len({row["pair"] for row in rows})  # all pairs share the examples
        half = float(scipy.stats.norm.ppf(0.975)) * np.sqrt((train * (1 - train) + test * (1 - test)) / each)
        interval = Interval(train - test - half, train - test + half, "examples")
        yield estimate(name, params, train - test, n=count, interval=interval)
        voted = [row for row in rows if row["knn_n"]]
        if voted:
            right, count = float(np.mean([row["knn_accuracy"] for row in voted])), sum(row["knn_n"] for row in voted)
            each = count / len({row["pair"] for row in voted})
            interval = Interval(*exact_interval(right * each, round(each)), "examples")
            yield estimate("knn_accuracy", {**at, "probe_layer": layer}, right, n=count, interval=interval)


CURVE_POINTS = 200


HELD_OUT = "_held_out"  # suffix of the series for held-out images


def curves(units: pa.Table, *, alone: bool = False) -> pa.Table:
    """Return label-inference accuracy by share of most confident examples (Fig. 3), averaged over directions and pairs.

    Args:
        units: tables.UNITS.
        alone: True if there is no second model; training and held-out images are then separate series.

    Returns:
        tables.CURVES, curve accuracy_by_confidence, series target and reference; with a single model also target_held_out
        and reference_held_out.
    """
    if alone:
        sides = {direction: units.filter(pc.field("direction") == direction) for direction in DIRECTIONS}
        return pa.concat_tables([_curves(part, "" if side == "A" else HELD_OUT) for side, part in sides.items()])
    return _curves(units, "")


def _curves(units: pa.Table, suffix: str) -> pa.Table:
    shares = np.unique(np.concatenate([np.geomspace(0.01, 1, CURVE_POINTS // 2), np.linspace(0.01, 1, CURVE_POINTS // 2)]))
    rows = []
    for setting, part in settings(units):
        for side in ("target", "reference"):
            lines = []
            for _, group in split_by(part, ("pair", "direction")):
                members = part.take(group)
                right = members[f"{side}_prediction"].to_numpy() == members["label"].to_numpy()
                x, y = accuracy_curve(members[f"{side}_confidence"].to_numpy(), right)
                chosen = np.maximum(1, np.round(shares * len(x))).astype(int)
                lines.append(y[chosen - 1])
            rows += [
                point("accuracy_by_confidence", side + suffix, setting, x_, y_)
                for x_, y_ in zip(shares, np.mean(lines, axis=0), strict=True)
            ]
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def most_memorized(units: pa.Table, count: int) -> pa.Table:
    """Return the memorized examples on which the target's confidence most exceeds the reference's (A.1)."""
    return _chosen(units, "memorized", count, lambda target, reference: target - reference)


def most_correlated(units: pa.Table, count: int) -> pa.Table:
    """Return the correlated examples with the highest confidence under both models (A.1), by the lower of the two."""
    return _chosen(units, "correlated", count, np.minimum)


def _chosen(units: pa.Table, category: str, count: int, merit: Any) -> pa.Table:
    members = units.filter(pc.field("category") == category)
    value = merit(members["target_confidence"].to_numpy(), members["reference_confidence"].to_numpy())
    keys = pa.table({"merit": pa.array(-value), "example_id": members["example_id"]})
    return members.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])[:count])
