"""Limits on memory of images like the audited ones, for gates.

The tests of a run hold for the audited images: they take the images as given, and only the sides as random. A gate is about
further images like the audited ones, so the number of memorized images that the redraws leave possible is taken as a sample:
its exact interval over images (or over persons, where images are grouped) is compared with the limit.
"""

import math

import numpy as np
import pyarrow as pa

from memlib.audits.base import Judgement
from memlib.audits.deja_vu.analysis import Analysis, settings
from memlib.audits.deja_vu.recipe import HEADLINE, Recipe
from memlib.audits.deja_vu.verdict import recognition
from memlib.findings import Finding, Findings
from memlib.identity import derive_seed
from memlib.runs.run import Run
from memlib.stats.inference import exact_interval
from memlib.stats.randomization import attributable_bound, attributable_least

LEVEL = 0.025  # of each of the two steps, at either end


def judge(run: Run, row: Finding, limit: float) -> Judgement | None:
    """Judge the headline's share excess against a limit; return None for any other finding.

    The gate is passed if, with 95 % confidence, the share of memorized images is at most the limit, and failed if, with 95 %
    confidence, the share exceeds the limit.
    """
    if row.metric != "share_excess" or row.family != HEADLINE:
        return None
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
