"""Findings from additional queries to a tabular target: attribute inference on hidden columns, and structural risk."""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.recipe import COLUMNS
from memlib.audits.membership.target import Guesses, TargetAnswers
from memlib.findings import Finding, Interval, diagnostic, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.attributes import AttributeInference, attribute_inference
from memlib.stats.blind import folds_by_group
from memlib.stats.randomization import Design
from memlib.stats.structure import structural_risk

FOLDS = 5
MOST_REDRAWS = 999  # the prior is estimated again in each of them
DECIMALS = 6  # to which outputs are compared: beyond these, the same computation may differ by rounding
FEWEST = 10  # members, and non-members, whose value is known


def target_findings(audited: Audited, pool: pa.Table, found: TargetAnswers) -> list[Finding]:
    """Return the findings on hidden columns, and the structural risk.

    Args:
        audited: the audited examples and their coins.
        pool: all examples of the pool, rows of tables.SPLITS.
        found: the target's answers on these examples.
    """
    listed = pc.is_in(pool["example_id"], value_set=pa.array(audited.pool.ids)).to_numpy()
    columns = [
        row
        for name, guesses in found.guesses.items()
        for row in _column_rows(name, Guesses(guesses.odds[listed], guesses.values[listed]), audited)
    ]
    return [*columns, *_structure_rows(found, found.outputs[listed], audited)]


def _column_rows(name: str, guesses: Guesses, audited: Audited) -> Iterator[Finding]:
    """Yield the advantage with which a column is guessed for members; if few values are known, only their number."""
    known = guesses.values >= 0
    member = audited.member[known]
    params = {"column": name, "values": guesses.odds.shape[1], "missing": int((~known).sum())}
    if min(member.sum(), (~member).sum()) < FEWEST:
        yield diagnostic("column_unknown", {**params, "fewest": FEWEST}, int(known.sum()), n=len(known))
        return
    found = _inferred(name, guesses, known, audited)
    interval = Interval(found.low, found.high, audited.units.noun)
    rates = {"members": found.members, "nonmembers": found.non_members, "by_prior": found.by_prior}
    params |= {side: round(rate, 6) for side, rate in rates.items()}
    if not audited.is_tested or audited.recipe.target.is_external:  # guesses are not adjusted for sides that differ
        yield estimate("guessed_column", params, found.difference, n=found.units, interval=interval)
        return
    yield tested(
        "guessed_column", params, found.difference, n=found.units, p_value=found.p_value, family=COLUMNS, interval=interval,
        detectable=found.detectable, smallest_p=1 / (1 + _redraws(audited)),
    )  # fmt: skip


def _redraws(audited: Audited) -> int:
    return min(audited.recipe.score.redraws, MOST_REDRAWS)


def _inferred(name: str, guesses: Guesses, known: NDArray[np.bool_], audited: Audited) -> AttributeInference:
    """Guess a column of the examples whose value is known, and redraw the coins of these."""
    groups, seed = audited.pool.groups, derive_seed(audited.recipe.score.seed, "hidden", name)
    design = Design(audited.member[known], audited.units.labels[groups][known], groups[known])
    return attribute_inference(
        guesses.odds[known], guesses.values[known], audited.pool.labels[known], design,
        folds=folds_by_group(groups[known], FOLDS, seed=seed), permutations=_redraws(audited), seed=seed,
    )  # fmt: skip


def _structure_rows(found: TargetAnswers, outputs: NDArray[np.float64], audited: Audited) -> Iterator[Finding]:
    """Yield the numbers of training rows that the target's outputs tell apart."""
    member = audited.member
    risk = structural_risk(
        outputs[member], audited.pool.labels[member], decimals=DECIMALS, parameters=found.parameters,
        instance_based=found.instance_based,
    )  # fmt: skip
    numbers = {name: value for name, value in asdict(risk).items() if name not in ("rows", "k") and value is not None}
    for name, value in numbers.items():
        yield diagnostic("structure", {"structure": name, "k": risk.k, "decimals": DECIMALS}, float(value), n=risk.rows)
