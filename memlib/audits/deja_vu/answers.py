"""Answers to other parts of memlib about a déjà vu audit: values by training, rankings of images, and limits for gates.

The face of the audit names them; they load neither scipy nor torch, which are slow to load, before a limit is asked for.

The tests of a run hold for the audited images: they take the images as given, and only the sides as random. A gate is about
further images like the audited ones, so the number of memorized images that the redraws leave possible is taken as a sample:
its exact interval over images (or over persons, where images are grouped) is compared with the limit.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.base import Judgement, Trainings
from memlib.audits.deja_vu.recipe import HEADLINE, Recipe
from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Finding, Findings
from memlib.identity import derive_seed
from memlib.pipeline.tables import Tables
from memlib.runs.run import Run

SETTING = ("layer", "crop", "k")  # of another run; its last epoch may be another one


def trainings(run: Run, row: Finding) -> Trainings | None:
    """Return the share excess of each pair of models at the setting of a finding, over both directions; None for others."""
    if row.metric != "share_excess" or row.params.get("direction") != "both" or "class" in row.params:
        return None
    units = run.units
    for name in (*SETTING, "epoch"):
        units = units.filter(pc.equal(units[name], row.params[name]))
    alone = Recipe.model_validate(run.recipe).reference is not None
    pairs = [units.filter(pc.equal(units["pair"], pair)) for pair in pc.unique(units["pair"]).to_pylist()]
    values = np.array([_share_excess(pair, alone=alone) for pair in pairs])
    audited = frozenset(zip(*(pairs[0][name].to_pylist() for name in ("example_id", "direction")), strict=True))
    return Trainings(values, {name: row.params[name] for name in SETTING}, audited)


def _share_excess(pair: pa.Table, *, alone: bool) -> float:
    """Return the share excess of one pair: gains on side A minus gains on side B within classes, see `Design.difference`."""
    first = pc.equal(pair["direction"], "A").to_numpy()
    right = [pc.equal(pair[f"{side}_prediction"], pair["label"]).to_numpy() for side in ("target", "reference")]
    own = right[0].astype(np.float64) - right[1]
    gains = np.where(first | alone, own, -own)
    return (1.0 if alone else 0.5) * _difference(gains, first, _strata(pair))


def _difference(gains: NDArray[np.float64], first: NDArray[np.bool_], strata: NDArray[np.int64]) -> float:
    ours, theirs = (np.bincount(strata, weights=side) for side in (first, ~first))
    sums, theirs_sums = (np.bincount(strata, weights=gains * side) for side in (first, ~first))
    weight = ours * theirs / (ours + theirs)
    drawn = weight > 0
    means = sums[drawn] / ours[drawn] - theirs_sums[drawn] / theirs[drawn]
    return float((weight[drawn] * means).sum() / weight[drawn].sum())


def _strata(pair: pa.Table) -> NDArray[np.int64]:
    """Return the class within which the side of each image was drawn: its own, or that of most images of its group."""
    labels: NDArray[np.int64] = pair["label"].to_numpy()
    if "group" in pair.column_names and pair["group"].null_count < pair.num_rows:
        from memlib.audits.sides import numbers_of_groups
        from memlib.stats.randomization import home_labels

        groups = numbers_of_groups(pair)
        labels = home_labels(labels, groups)[groups]
    return np.unique(labels, return_inverse=True)[1]


OF_SETTING = ("layer", "epoch", "crop", "k")


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the images of both sides at the headline's setting.

    The score is the confidence of the neighbours' vote, exp(-entropy), where it is right and the other model's is not, else
    0; its mean over pairs of models. It has no p-value.
    """
    at = findings.head.params
    if not set(OF_SETTING) <= at.keys():  # an audit of stability alone
        return []
    parts = [part.filter(_at(part, at)) for part in tables.parts("units")]
    units = pa.concat_tables(parts)
    right = pc.equal(units["target_prediction"], units["label"])
    alone = pc.and_(right, pc.not_equal(units["reference_prediction"], units["label"]))
    score = np.where(alone.to_numpy(), np.exp(np.nan_to_num(units["target_confidence"].to_numpy())), 0.0)
    scored = pa.table({"id": units["example_id"], "side": units["direction"], "score": score})
    by_id = scored.group_by(["id", "side"], use_threads=False).aggregate([("score", "mean")])
    members = pc.equal(by_id["side"], "A").to_numpy()
    return [Ranking("share_excess", EXAMPLE, by_id["id"].to_pylist(), by_id["score_mean"].to_numpy(), members)]


def _at(units: pa.Table, params: Mapping[str, Any]) -> pa.ChunkedArray:
    """Return whether each row belongs to the given setting."""
    rows = pa.chunked_array([pa.repeat(True, units.num_rows)])
    for name in OF_SETTING:
        rows = pc.and_(rows, pc.equal(units[name], params[name]))
    return rows


LEVEL = 0.025  # of each of the two steps, at either end


def judge(run: Run, row: Finding, limit: float) -> Judgement | None:
    """Judge the headline's share excess against a limit; return None for any other finding.

    The gate is passed if, with 95 % confidence, the share of memorized images is at most the limit, and failed if, with 95 %
    confidence, the share exceeds the limit.
    """
    if row.metric != "share_excess" or row.family != HEADLINE:
        return None
    from memlib.audits.deja_vu.verdict import recognition  # loads scipy

    recipe = Recipe.model_validate(run.recipe)
    recognized = recognition(Findings.read(run.summary))
    if recognized is not None and recognized.is_blind:
        return Judgement("undecided", "the attack does not even name whole images that the model has not seen")
    ends = shares(run.units, recipe)
    if ends is None:
        return Judgement("undecided", "no limit can be given: no answer is right, or fewer than chance alone would give")
    low, high, count = ends
    reason = f"between {100 * low:.1f} % and {100 * high:.1f} % of images like these ({count} audited) are memorized"
    return Judgement("passed" if high <= limit else "failed" if low > limit else "undecided", reason)


def shares(units: pa.Table, recipe: Recipe) -> tuple[float, float, int] | None:
    """Return limits of the share of memorized images, each with an error of .05 / looks, and the number of images or persons.

    Args:
        units: tables.UNITS of the run.
        recipe: the run's recipe.

    Returns:
        lower limit, upper limit, number; None if the answers contradict that sides can only add right answers.
    """
    from memlib.audits.deja_vu.units import Analysis, settings  # these load scipy
    from memlib.stats.inference import exact_interval
    from memlib.stats.randomization import attributable_bound, attributable_least

    config = recipe.decode.model_copy(update={"replicates": 100})  # of a bootstrap that is not used here
    _, part = next(iter(settings(units)))
    analysis = Analysis(part, config, alone=recipe.reference is not None)
    design, gains = analysis.design, analysis.gains
    right = analysis.right["target"].sum(axis=0) * analysis.trained_on
    seed = derive_seed(config.seed, "gate")
    draws, level = config.permutations, LEVEL / config.looks
    most = attributable_bound(design, gains, right, permutations=draws, seed=seed, level=level) if right.sum() else 0
    if most is None:
        return None
    least = attributable_least(design, gains, right, permutations=draws, seed=seed, level=level)
    answers = int(analysis.trained_on.sum()) * analysis.num_pairs
    count = len(np.unique(analysis.groups[analysis.trained_on]))
    low, _ = exact_interval(math.floor(least / answers * count), count, level=1 - 2 * level)
    _, high = exact_interval(math.ceil(most / answers * count), count, level=1 - 2 * level)
    return low, high, count
