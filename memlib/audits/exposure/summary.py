"""The findings of an exposure audit: tests of canaries, exposures, differences of variants, extraction, privacy.

Families of tests, each at alpha (Holm 1979): "headline", all canaries of a variant together; "canaries", each one, which is
named only where its variant's headline is shown; "variants", differences to the first one; "privacy", what is claimed;
"documents", whether a variant's models know documents that they were trained on better than others.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.exposure.documents import document_rows
from memlib.audits.exposure.evidence import Held, evidence_of_drawn, evidence_of_given, held, largest
from memlib.audits.exposure.privacy import ERROR, privacy_rows
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.scores import TINY, Scored, exposure_by_sampling
from memlib.audits.exposure.verdict import verdict
from memlib.errors import RunError
from memlib.findings import Interval, Row, diagnostic, estimate, settle, summary_table, tested
from memlib.specs.text import GIVEN, UNSEEN

HEADLINE, CANARIES, VARIANTS = "headline", "canaries", "variants"
MEAN_BY_CHANCE = 1 / float(np.log(2))  # bits: of -log2 of a uniform number; its median is 1
FLIPS = 9_999
ENUMERATED_FLIPS = 12  # units whose signs are all enumerated


def summarize(
    models: Sequence[Scored], units: pa.Table, extractions: pa.Table, recipe: Recipe, *, size: int,
    documents: pa.Table | None = None,
) -> pa.Table:  # fmt: skip
    """Make the findings at the last checkpoint, the headline first.

    Args:
        models: what was seen.
        units: tables.EXPOSURE_UNITS.
        extractions: tables.EXTRACTION.
        recipe: variants and level.
        size: |R|.
        documents: tables.DOCUMENTS, where documents were asked for.

    Returns:
        tables.SUMMARY.

    Raises:
        RunError: when there is nothing to say of.
    """
    frame = units.to_pandas()
    if not len(frame):
        raise RunError("no canary was scored")
    last = at_last(frame)
    rows = settle(
        [
            *_tests(models, last, recipe, size),
            *_estimates(last),
            *_differences(last, recipe),
            *_null_rows(last),
            *privacy_rows(models, size),
            *_extraction_rows(extractions),
            *([] if documents is None or recipe.discoverable is None else document_rows(documents, recipe.discoverable)),
        ],
        alpha=recipe.score.alpha,
    )
    _name_only_shown(rows)
    rows = settle(rows, alpha=recipe.score.alpha)
    said = verdict([{**row, "params": json.loads(row["params"])} for row in rows], recipe, size=size)
    return summary_table(rows, said)


def at_last(frame: pd.DataFrame) -> pd.DataFrame:
    """The units of every training at its last checkpoint; early stopping may end them at different epochs."""
    training = ["variant", "seed", "canary", "insertions"]
    return frame[frame["epoch"] == frame.groupby(training)["epoch"].transform("max")]


def _name_only_shown(rows: Sequence[Row]) -> None:
    """A single canary is named only where its variant's canaries together are shown, so that one error holds for both."""
    heads = {_variant(row): row["p_adjusted"] for row in rows if row["family"] == HEADLINE}
    for row in rows:
        if row["family"] == CANARIES:
            row["p_adjusted"] = max(row["p_adjusted"], heads[_variant(row)])


def _variant(row: Row) -> str:
    return str(json.loads(row["params"]).get("variant", ""))


def variants_of(last: pd.DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Names of variants, and what params say of each."""
    return [(name, {"variant": name} if name else {}) for name in dict.fromkeys(last["variant"])]


# -- tests --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """What all tests of a run share.

    Attributes:
        recipe: level and bound.
        last: units at the last checkpoint.
        size: |R|.
        variants, canaries: how many are tested in all.
    """

    recipe: Recipe
    last: pd.DataFrame
    size: int
    variants: int
    canaries: int

    @property
    def level(self) -> float:
        """What is left to a variant, whatever the others are."""
        return self.recipe.score.alpha / self.variants

    @property
    def needed(self) -> float:
        """Bits from which a canary is found, whatever the others are: Holm's first step, in either part of the headline."""
        return math.log2(min(2, self.canaries) * self.canaries / self.recipe.score.alpha)

    def of(self, at: Mapping[str, str]) -> pd.DataFrame:
        """The units of canaries that nets of a variant saw."""
        return self.last[(self.last["variant"] == at.get("variant", "")) & (self.last["insertions"] > 0)]


def _tests(models: Sequence[Scored], last: pd.DataFrame, recipe: Recipe, size: int) -> Iterator[Row]:
    """A test of all canaries of each variant, and then of each canary."""
    seen = [(at, held(models, name)) for name, at in variants_of(last)]
    seen = [(at, mine) for at, mine in seen if mine and _has_null(mine)]
    run = _Run(recipe, last, size, len(seen), sum(len(mine) for _, mine in seen))
    for at, mine in seen:
        yield _given_head(at, mine, run) if mine[0].kind == GIVEN else _drawn_head(at, mine, run)
    for at, mine in seen:
        for one in mine:
            yield _given_row(at, one, run) if one.kind == GIVEN else _drawn_row(at, one, run)


def _has_null(canaries: Sequence[Held]) -> bool:
    """Secrets that the text held need others that it did not hold."""
    return canaries[0].kind != GIVEN or len(canaries[0].unseen) > 0


def _drawn_head(at: Mapping[str, str], canaries: Sequence[Held], run: _Run) -> Row:
    values = run.of(at).groupby("canary")["exposure"].mean().to_numpy()
    found = evidence_of_drawn(canaries, run.size, alpha=run.level)
    return tested(
        "exposure", at, values.mean(), n=len(canaries), p_value=found.p_value, family=HEADLINE, null_value=MEAN_BY_CHANCE,
        interval=mean_interval(values, math.log2(run.size)), bound=run.recipe.score.bound,
        upper_bound=largest([canary.upper(run.size, ERROR / run.canaries) for canary in canaries]),
        detectable=found.detectable, smallest_p=found.smallest_p,
    )  # fmt: skip


def _drawn_row(at: Mapping[str, str], canary: Held, run: _Run) -> Row:
    units, floor = run.of(at), canary.smallest_p(run.size)
    units = units[units["canary"] == canary.canary]
    return tested(
        "exposure", {**at, **_canary_params(units)}, units["exposure"].mean(), n=len(canary.nets),
        p_value=canary.p(run.size), family=CANARIES, null_value=MEAN_BY_CHANCE, interval=_unit_interval(units),
        upper_bound=canary.upper(run.size, ERROR), bound=run.recipe.score.bound,
        detectable=run.needed if -math.log2(max(floor, TINY)) >= run.needed else None, smallest_p=floor,
    )  # fmt: skip


def _given_head(at: Mapping[str, str], secrets: Sequence[Held], run: _Run) -> Row:
    values, unseen = np.array([-np.log2(secret.p_among_unseen()) for secret in secrets]), len(secrets[0].unseen)
    found = evidence_of_given(secrets, alpha=run.level, seed=run.recipe.score.seed)
    return tested(
        "exposure_among_unseen", {**at, "unseen": unseen}, values.mean(), n=len(secrets), p_value=found.p_value,
        family=HEADLINE, null_value=MEAN_BY_CHANCE, interval=mean_interval(values, math.log2(1 + unseen)),
        upper_bound=largest([secret.upper_among_unseen(ERROR / run.canaries) for secret in secrets]),
        bound=run.recipe.score.bound, detectable=found.detectable, smallest_p=found.smallest_p,
    )  # fmt: skip


def _given_row(at: Mapping[str, str], secret: Held, run: _Run) -> Row:
    unseen = len(secret.unseen)
    value, low, high = exposure_by_sampling(int((secret.unseen <= secret.cost).sum()), unseen)
    return tested(
        "exposure_among_unseen", {**at, "canary": secret.canary, "insertions": secret.insertions}, value,
        n=len(secret.nets), p_value=secret.p_among_unseen(), family=CANARIES, null_value=MEAN_BY_CHANCE,
        interval=Interval(low, high, "references"), upper_bound=secret.upper_among_unseen(ERROR),
        bound=run.recipe.score.bound, detectable=run.needed if math.log2(1 + unseen) >= run.needed else None,
        smallest_p=1 / (1 + unseen),
    )  # fmt: skip


# -- estimates ----------------------------------------------------------------------------------------


def _canary_params(units: pd.DataFrame) -> dict[str, Any]:
    """Which canary it is; of a single net also how its exposure was measured."""
    first = units.iloc[0]
    params: dict[str, Any] = {
        "canary": int(first["canary"]), "insertions": int(first["insertions"]), "nets": len(units)
    }  # fmt: skip
    params["log_perplexity"] = round(float(units["log_perplexity"].mean()), 2)
    if len(units) == 1:
        params |= {"method": str(first["method"]), "epoch": float(first["epoch"])}
        if first["rank"] is not None and not np.isnan(first["rank"]):
            params["rank"] = int(first["rank"])
    return params


def _unit_interval(units: pd.DataFrame) -> Interval | None:
    """Of a single net's sampled exposure; an exact one has none."""
    if len(units) != 1 or np.isnan(units.iloc[0]["ci_low"]):
        return None
    high = units.iloc[0]["ci_high"]
    return Interval(float(units.iloc[0]["ci_low"]), None if np.isnan(high) else float(high), "references")


def mean_interval(values: NDArray[np.float64], most: float | None, over: str = "canaries") -> Interval | None:
    """Student's interval of a mean, clipped to what exposure can be; none where nothing was sampled often enough."""
    if len(values) < 2 or not np.ptp(values):
        return None
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    return Interval(max(0.0, float(low)), float(high) if most is None else min(most, float(high)), over)


def _estimates(last: pd.DataFrame) -> Iterator[Row]:
    """Mean exposure by insertions, each given secret's, and the validation loss."""
    bits = float(last["space_bits"].iloc[0])
    for name, at in variants_of(last):
        mine = last[last["variant"] == name]
        seen = mine[mine["insertions"] > 0]
        for insertions, alike in sorted(seen.groupby("insertions"), key=lambda item: -int(item[0])):
            means = alike.groupby("canary")["exposure"].mean().to_numpy()  # seeds of one canary are no further canaries
            interval = mean_interval(means, bits)
            yield estimate("exposure", {**at, "insertions": int(insertions)}, means.mean(), n=len(means), interval=interval)
        for _, alike in seen[seen["kind"] == GIVEN].groupby("canary"):
            interval = _unit_interval(alike)
            params = {**at, **_canary_params(alike)}
            yield estimate("exposure", params, alike["exposure"].mean(), n=len(alike), interval=interval)
        losses = mine.groupby("seed")["validation_loss"].mean().to_numpy()
        interval = mean_interval(losses, None, "trainings")
        yield estimate("validation_loss", at, losses.mean(), n=len(losses), interval=interval)


def _differences(last: pd.DataFrame, recipe: Recipe) -> Iterator[Row]:
    """Each variant's exposure less the first one's, over the canaries that both saw.

    Canaries in nets of their own are independent; those that share nets are not, so there each training is a unit.
    """
    seen = last[last["insertions"] > 0]
    first, *others = variants_of(last)
    shared = recipe.canaries.together or recipe.canaries.file is not None
    by = ["seed"] if shared and recipe.seeds > 1 else ["canary"]
    base = seen[seen["variant"] == first[0]].groupby(by)["exposure"].mean()
    for name, at in others:
        mine = seen[seen["variant"] == name].groupby(by)["exposure"].mean()
        values = (mine - base).dropna().to_numpy()
        if not len(values):
            continue
        params, over = {**at, "less": first[0]}, "trainings" if by == ["seed"] else "canaries"
        interval = _difference_interval(values, over)
        if len(values) > 1 and (by == ["seed"] or not shared):
            yield tested(
                "exposure_difference", params, values.mean(), n=len(values), p_value=sign_flip_p(values), family=VARIANTS,
                interval=interval, smallest_p=max(2.0 ** (1 - len(values)), 1 / (1 + FLIPS)),
            )  # fmt: skip
        else:
            yield estimate("exposure_difference", params, values.mean(), n=len(values), interval=interval)


def _difference_interval(values: NDArray[np.float64], over: str) -> Interval | None:
    if len(values) < 2 or not np.ptp(values):
        return None
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    return Interval(float(low), float(high), over)


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """Test two-sided whether paired differences are symmetric about 0, by flipping their signs; exactly where there are few.

    Args:
        differences: (num_pairs,), independent of one another.
    """
    count, observed = len(differences), abs(differences.sum())
    if count <= ENUMERATED_FLIPS:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        return float((np.abs(signs @ differences) >= observed - 1e-9).mean())
    signs = np.random.default_rng(0).choice((-1, 1), size=(FLIPS, count))
    return (1 + int((np.abs(signs @ differences) >= observed - 1e-9).sum())) / (1 + FLIPS)


def _null_rows(last: pd.DataFrame) -> Iterator[Row]:
    """Canaries that a model never saw: 2^-exposure of drawn ones is uniform, its mean 1/2 and the median exposure 1.

    That of unseen secrets of a kind that the model knows is smaller: no uniform null fits them.
    """
    never = last[last["insertions"] == 0]
    for name, at in variants_of(never):
        mine = never[never["variant"] == name]
        for metric, drawn in (("", mine["kind"] != UNSEEN), ("unseen_", mine["kind"] == UNSEEN)):
            alike = mine[drawn]
            if not len(alike):
                continue
            values = np.exp2(-alike["exposure"]).groupby(alike["canary"]).mean().to_numpy()
            params = {**at, "insertions": 0}
            yield diagnostic(
                f"{metric}two_to_minus_exposure", params, values.mean(), n=len(values), interval=mean_interval(values, 1.0)
            )
            yield diagnostic(f"{metric}exposure_median", params, float(alike["exposure"].median()), n=len(values))


def _extraction_rows(extractions: pa.Table) -> Iterator[Row]:
    frame = extractions.to_pandas()
    for keys, mine in frame.groupby(["variant", "search", "known", "insertions"], sort=False):
        variant, search, known, insertions = keys
        at = {"variant": variant} if variant else {}
        params = {**at, "search": search, "known": int(known), "insertions": int(insertions)}
        shares = mine.groupby("canary")["extracted"].mean().to_numpy()  # nets of one canary are no further canaries
        chance = {"by_chance": round(float(mine["by_chance"].mean()), 9)}
        yield estimate("extracted", params | chance, shares.mean(), n=len(shares), interval=share_interval(shares))
        if search == "shortest_path":
            yield diagnostic("extraction_queries", params, float(mine["queries"].median()), n=len(shares))


def share_interval(shares: NDArray[np.float64]) -> Interval:
    """Clopper and Pearson's interval over canaries; a canary that some of its nets give away counts in part.

    Args:
        shares: (num_canaries,) of its nets.
    """
    hits, count = float(shares.sum()), len(shares)
    low = float(scipy.stats.beta.ppf(0.025, hits, count - hits + 1)) if hits else 0.0
    high = float(scipy.stats.beta.ppf(0.975, hits + 1, count - hits)) if hits < count else 1.0
    return Interval(low, high, "canaries")
