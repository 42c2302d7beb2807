"""The findings of an exposure audit: tests of canaries, exposures, differences between variants, extraction, privacy.

Headline families, at alpha together (Holm 1979): "headline", all canaries of a variant together; "privacy", claims of
differential privacy; "documents", whether a variant's models know documents that they were trained on better than held-out
documents. Further families, each at alpha: "canaries", single canaries, named only if the headline of their variant is shown;
"variants", differences from the first variant; "overtraining", changes after the lowest validation loss. Canaries of a
sanitized text are not tested: the text was sanitized by the ranks that models give them, so the rest is no random draw.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.asked import is_void
from memlib.audits.exposure.answers import largest
from memlib.audits.exposure.documents import document_rows
from memlib.audits.exposure.evidence import Held, evidence_of_drawn, evidence_of_given, held
from memlib.audits.exposure.privacy import privacy_rows
from memlib.audits.exposure.recipe import (
    CANARIES,
    HEADLINE,
    HEADLINES,
    OVERTRAINING,
    SANITIZED,
    UNSANITIZED,
    VARIANTS,
    Recipe,
)
from memlib.audits.exposure.scores import TINY, Scored, exposure_by_sampling
from memlib.audits.exposure.verdict import verdict
from memlib.errors import RunError
from memlib.findings import Finding, Findings, Interval, diagnostic, estimate, judged, settle, tested, voided
from memlib.specs.text import GIVEN, INSERTED, RECURRING, UNSEEN
from memlib.stats.changes import flipped_p

MEAN_BY_CHANCE = 1 / float(np.log(2))  # bits: mean of -log2 of a uniform number, whose median is 1
FLIPS = 9_999


def summarize(
    models: Sequence[Scored], units: pa.Table, extractions: pa.Table, recipe: Recipe, *, size: int,
    documents: pa.Table | None = None, service: Finding | None = None,
) -> pa.Table:  # fmt: skip
    """Compute the findings at the last checkpoint, the headline first.

    Args:
        units: tables.UNITS.
        extractions: tables.EXTRACTION.
        recipe: variants and level.
        size: |R|, the number of candidates.
        documents: tables.DOCUMENTS, if the recipe extracts documents.
        service: what was asked of a service, if the model is behind one.

    Returns:
        tables.SUMMARY.

    Raises:
        RunError: if no canary was scored.
    """
    frame = units.to_pandas()
    if not len(frame):
        raise RunError("no canary was scored")
    last, alpha = at_last(frame), recipe.score.level
    unselected = [model for model in models if model.variant != recipe.selected]
    private = list(privacy_rows(unselected, size, error=recipe.score.error))
    how = recipe.discoverable if documents is not None and len(documents) else None
    level = alpha / (1 + (how is not None) + any(row.is_test for row in private))
    void = voided if is_void(service) else _as_it_is
    rows = settle(
        [
            *map(void, _tests(unselected, last, recipe, size, level)),
            *_estimates(last, recipe),
            *_differences(last, recipe),
            *_equal_loss(frame, recipe),
            *_overtraining(frame, recipe),
            *_sanitizing(last, recipe),
            *_null_rows(last, recipe),
            *private,
            *_extraction_rows(extractions),
            *([] if documents is None or how is None else document_rows(documents, how, alpha=level)),
            *([] if service is None else [service]),
        ],
        alpha=alpha,
        headlines=HEADLINES,
    )
    rows = judged(_named_only_if_shown(rows), alpha=alpha, headlines=HEADLINES)
    return rows.table(verdict(rows, recipe, size=size))


def _as_it_is(row: Finding) -> Finding:
    return row


def at_last(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the units of each training run at its last checkpoint; early stopping may end runs at different epochs."""
    training = ["variant", "seed", "canary", "insertions"]
    return frame[frame["epoch"] == frame.groupby(training)["epoch"].transform("max")]


def at_equal_loss(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the units of each training run at its first checkpoint with a validation loss that every run reaches.

    That loss is the highest of the runs' lowest validation losses (Carlini 2019, A.2: better models are compared at an
    earlier epoch). Exposure plays no part in the choice.
    """
    training = ["variant", "seed", "canary", "insertions"]
    loss = frame.groupby(training)["validation_loss"].min().max()
    reached = frame[frame["validation_loss"] <= loss]
    return reached[reached["epoch"] == reached.groupby(training)["epoch"].transform("min")]


def _named_only_if_shown(rows: Findings) -> Iterator[Finding]:
    """Raise each canary's adjusted p to at least its variant's headline p, so that one error level covers both families."""
    heads = {row.params.get("variant"): row.p_adjusted or 0.0 for row in rows.tests(HEADLINE)}
    for row in rows:
        if row.family == CANARIES:
            row = replace(row, p_adjusted=max(row.p_adjusted or 0.0, heads[row.params.get("variant")]))
        yield row


def variants_of(last: pd.DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Return the variants' names, each with the params that identify it in findings."""
    return [(name, {"variant": name} if name else {}) for name in dict.fromkeys(last["variant"])]


# -- tests --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Settings and data that all tests of a run share."""

    recipe: Recipe  #: level and bound.
    last: pd.DataFrame  #: units at the last checkpoint.
    size: int  #: |R|, the number of candidates.
    variants: int  #: variants, canaries: numbers of tested variants and canaries.
    canaries: int
    alpha: float  #: level of all variants together.

    @property
    def level(self) -> float:
        """Level at which a variant is tested, regardless of the other variants (Bonferroni)."""
        return self.alpha / self.variants

    @property
    def needed(self) -> float:
        """Bits at which a canary is found, regardless of the others: Holm's first step, in either part of the headline."""
        return math.log2(min(2, self.canaries) * self.canaries / self.alpha)

    def recurring(self, at: Mapping[str, str]) -> int:
        """Return the number of a variant's given secrets that are not compared with any others; no bound holds for these."""
        units = self.of(at)
        return int(units[units["kind"] == RECURRING]["canary"].nunique())

    def of(self, at: Mapping[str, str]) -> pd.DataFrame:
        """Return the units of the canaries that a variant's models saw."""
        return self.last[(self.last["variant"] == at.get("variant", "")) & (self.last["insertions"] > 0)]


def _tests(models: Sequence[Scored], last: pd.DataFrame, recipe: Recipe, size: int, alpha: float) -> Iterator[Finding]:
    """Yield a joint test of the canaries of each variant, then a test of each canary."""
    tested_variants = [(at, held(models, name)) for name, at in variants_of(last)]
    tested_variants = [(at, canaries) for at, canaries in tested_variants if canaries and _has_null(canaries)]
    run = _Run(recipe, last, size, len(tested_variants), sum(len(canaries) for _, canaries in tested_variants), alpha)
    for at, canaries in tested_variants:
        yield _given_head(at, canaries, run) if canaries[0].kind == GIVEN else _drawn_head(at, canaries, run)
    for at, canaries in tested_variants:
        for canary in canaries:
            yield _given_row(at, canary, run) if canary.kind == GIVEN else _drawn_row(at, canary, run)


def _has_null(canaries: Sequence[Held]) -> bool:
    """Return whether the canaries can be tested: given secrets need unseen ones as their null."""
    return canaries[0].kind != GIVEN or len(canaries[0].unseen) > 0


def _drawn_head(at: Mapping[str, str], canaries: Sequence[Held], run: _Run) -> Finding:
    values = run.of(at).groupby("canary")["exposure"].mean().to_numpy()
    evidence = evidence_of_drawn(canaries, run.size, alpha=run.level)
    return tested(
        "exposure", at, values.mean(), n=len(canaries), p_value=evidence.p_value, family=HEADLINE, null_value=MEAN_BY_CHANCE,
        interval=mean_interval(values, math.log2(run.size)), bound=run.recipe.score.bound,
        upper_bound=largest([canary.upper(run.size, run.recipe.score.error / run.canaries) for canary in canaries]),
        detectable=evidence.detectable, smallest_p=evidence.smallest_p, either_direction=True,
    )  # fmt: skip


def _drawn_row(at: Mapping[str, str], canary: Held, run: _Run) -> Finding:
    units, floor = run.of(at), canary.smallest_p(run.size)
    units = units[units["canary"] == canary.canary]
    return tested(
        "exposure", {**at, **_canary_params(units)}, units["exposure"].mean(), n=len(canary.nets),
        p_value=canary.p(run.size), family=CANARIES, null_value=MEAN_BY_CHANCE, interval=_unit_interval(units),
        upper_bound=canary.upper(run.size, run.recipe.score.error), bound=run.recipe.score.bound,
        detectable=run.needed if -math.log2(max(floor, TINY)) >= run.needed else None, smallest_p=floor,
        either_direction=True,
    )  # fmt: skip


def _given_head(at: Mapping[str, str], secrets: Sequence[Held], run: _Run) -> Finding:
    values, unseen = np.array([-np.log2(secret.p_among_unseen()) for secret in secrets]), len(secrets[0].unseen)
    evidence = evidence_of_given(secrets, alpha=run.level, seed=run.recipe.score.seed)
    recurring = run.recurring(at)
    params = {**at, "unseen": unseen} | ({"recurring": recurring} if recurring else {})
    return tested(
        "exposure_among_unseen", params, values.mean(), n=len(secrets), p_value=evidence.p_value,
        family=HEADLINE, null_value=MEAN_BY_CHANCE, interval=mean_interval(values, math.log2(1 + unseen)),
        upper_bound=largest([secret.upper_among_unseen(run.recipe.score.error / run.canaries) for secret in secrets]),
        bound=None if recurring else run.recipe.score.bound, detectable=evidence.detectable, smallest_p=evidence.smallest_p,
        either_direction=True,
    )  # fmt: skip


def _given_row(at: Mapping[str, str], secret: Held, run: _Run) -> Finding:
    unseen = len(secret.unseen)
    value, low, high = exposure_by_sampling(int((secret.unseen <= secret.cost).sum()), unseen)
    return tested(
        "exposure_among_unseen", {**at, "canary": secret.canary, "insertions": secret.insertions}, value,
        n=len(secret.nets), p_value=secret.p_among_unseen(), family=CANARIES, null_value=MEAN_BY_CHANCE,
        interval=Interval(low, high, "references"), upper_bound=secret.upper_among_unseen(run.recipe.score.error),
        bound=run.recipe.score.bound, detectable=run.needed if math.log2(1 + unseen) >= run.needed else None,
        smallest_p=1 / (1 + unseen), either_direction=True,
    )  # fmt: skip


# -- estimates ----------------------------------------------------------------------------------------


def _canary_params(units: pd.DataFrame) -> dict[str, Any]:
    """Return the params that identify a canary; for a single model, also how its exposure was measured."""
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
    """Return the interval of a sampled exposure; None if it is exact or comes from several models."""
    if len(units) != 1 or np.isnan(units.iloc[0]["ci_low"]):
        return None
    high = units.iloc[0]["ci_high"]
    return Interval(float(units.iloc[0]["ci_low"]), None if np.isnan(high) else float(high), "references")


def mean_interval(
    values: NDArray[np.float64], most: float = math.inf, *, least: float = 0.0, over: str = "canaries"
) -> Interval | None:
    """Compute Student's interval of a mean, clipped to [least, most]; None for fewer than two values or equal ones."""
    if len(values) < 2 or not np.ptp(values):
        return None
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
    return Interval(max(least, float(low)), min(most, float(high)), over)


def _estimates(last: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield mean exposure by number of insertions, the exposure of each given secret, and the validation loss.

    Of a sanitized text, only the loss: see _sanitizing.
    """
    bits = float(last["space_bits"].iloc[0])
    for name, at in variants_of(last):
        of_variant = last[last["variant"] == name]
        seen = of_variant[of_variant["insertions"] > (math.inf if name == recipe.selected else 0)]
        for insertions, group in sorted(seen.groupby("insertions"), key=lambda item: -int(item[0])):
            means = group.groupby("canary")["exposure"].mean().to_numpy()  # several seeds of one canary count as one canary
            interval = mean_interval(means, bits)
            yield estimate("exposure", {**at, "insertions": int(insertions)}, means.mean(), n=len(means), interval=interval)
        for _, group in seen[seen["kind"].isin((GIVEN, RECURRING))].groupby("canary"):
            interval = _unit_interval(group)
            params = {**at, **_canary_params(group)}
            yield estimate("exposure", params, group["exposure"].mean(), n=len(group), interval=interval)
        losses = of_variant.groupby("seed")["validation_loss"].mean().to_numpy()
        interval = mean_interval(losses, over="trainings")
        yield estimate("validation_loss", at, losses.mean(), n=len(losses), interval=interval)


def _share_models(recipe: Recipe) -> bool:
    return recipe.canaries.together or recipe.canaries.file is not None


def _equal_loss(frame: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield each variant's exposure, and differences from the first variant, at the loss that all trainings reach."""
    if not recipe.score.equal_loss:
        return
    reached = at_equal_loss(frame)
    reached = without_bounds(reached[reached["insertions"] > 0])
    by = "seed" if _share_models(recipe) and recipe.seeds > 1 else "canary"
    for name, at in variants_of(reached):
        units = reached[reached["variant"] == name]
        values = units.groupby(by)["exposure"].mean().to_numpy()
        params = {
            **at, "validation_loss": round(float(units["validation_loss"].mean()), 4),
            "epoch": round(float(units["epoch"].mean()), 2),
        }  # fmt: skip
        interval = mean_interval(values, over="trainings" if by == "seed" else "canaries")
        yield estimate("exposure_at_equal_loss", params, values.mean(), n=len(values), interval=interval)
    losses = reached.groupby("variant")["validation_loss"].mean()
    for at, values, interval in _paired(reached, recipe):
        gap = {"loss_gap": round(float(losses[at["variant"]] - losses[at["less"]]), 4)}
        yield estimate("difference_at_equal_loss", {**at, **gap}, values.mean(), n=len(values), interval=interval)


def without_bounds(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units of the canaries and seeds without any exposure that is extrapolated or only a lower bound.

    Differences that involve such exposures would compare a measured rank with the most that sampling can tell.
    """
    bounds = (units["method"] == "extrapolated") | ((units["method"] == "sampled") & units["ci_high"].isna())
    return units[~bounds.groupby([units["seed"], units["canary"]]).transform("any")]


def _differences(last: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield each variant's exposure minus that of the first variant, over the canaries that both saw.

    Canaries in separate models are independent. Canaries that share models are not, so the units are then the training runs.
    Where an exposure is extrapolated or only a lower bound, the difference is an estimate without a test or an interval.
    """
    if recipe.sanitize is not None:
        return  # a sanitized text has fewer canaries: see _sanitizing
    independent = recipe.seeds > 1 or not _share_models(recipe)
    seen = last[last["insertions"] > 0]
    for params, values, interval in _paired(last, recipe):
        units = seen[seen["variant"].isin((params["variant"], params["less"]))]
        measured = len(without_bounds(units)) == len(units)
        if len(values) > 1 and independent and measured:
            yield _flipped("exposure_difference", params, values, VARIANTS, interval)
        else:
            ends = interval if measured else None
            yield estimate("exposure_difference", params, values.mean(), n=len(values), interval=ends)


def _paired(units: pd.DataFrame, recipe: Recipe) -> Iterator[tuple[dict[str, str], NDArray[np.float64], Interval | None]]:
    """Yield params, paired differences from the first variant (num_pairs,) and the interval of their mean, by variant."""
    seen = units[units["insertions"] > 0]
    by, over = ("seed", "trainings") if _share_models(recipe) and recipe.seeds > 1 else ("canary", "canaries")
    means = {name: seen[seen["variant"] == name].groupby(by)["exposure"].mean() for name, _ in variants_of(units)}
    first = next(iter(means), "")
    for name, mean in means.items():
        values = (mean - means[first]).dropna().to_numpy()
        if name != first and len(values):
            yield {"variant": name, "less": first}, values, mean_interval(values, least=-math.inf, over=over)


def _flipped(
    metric: str, params: Mapping[str, Any], values: NDArray[np.float64], family: str, interval: Interval | None
) -> Finding:
    """Test paired differences (num_pairs,) by sign flips."""
    return tested(
        metric, params, values.mean(), n=len(values), family=family, interval=interval,
        p_value=flipped_p(values, permutations=FLIPS, seed=0),
        smallest_p=max(2.0 ** (1 - len(values)), 1 / (1 + FLIPS)), either_direction=True,
    )  # fmt: skip


def _overtraining(frame: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield the changes of exposure from the lowest mean validation loss to the last checkpoint (Carlini 2019, 7.2).

    The exposure of a canary that ranks first cannot rise any further, while its extrapolated exposure can. The units are
    canaries in separate models, or else trainings. Only checkpoints that all trainings have are compared; variants with
    patience are left out, because early stopping ends their trainings at different epochs. No test rests on an extrapolation.
    """
    for name, at in variants_of(frame):
        of_variant = _at_shared_epochs(frame[frame["variant"] == name])
        losses = of_variant.groupby("epoch")["validation_loss"].mean()
        if name == recipe.selected or _has_patience(recipe, name) or len(losses) < 2:
            continue
        best, last = losses.idxmin(), losses.index.max()
        if losses[last] == losses[best]:
            continue
        seen = of_variant[(of_variant["insertions"] > 0) & of_variant["epoch"].isin((best, last))]
        by = "seed" if _share_models(recipe) or seen["canary"].nunique() == 1 else "canary"
        for column in ("exposure", "exposure_extrapolated"):
            units = without_bounds(seen) if column == "exposure" else seen
            before, after = (units[units["epoch"] == epoch].groupby(by)[column].mean() for epoch in (best, last))
            values = (after - before).dropna().to_numpy()
            if not len(values):
                continue
            interval = mean_interval(values, least=-math.inf, over="trainings" if by == "seed" else "canaries")
            params = {**at, "of": column, "from_epoch": float(best), "to_epoch": float(last)}
            if len(values) > 1 and column == "exposure":
                yield _flipped("overtraining_change", params, values, OVERTRAINING, interval)
            else:
                yield estimate("overtraining_change", params, values.mean(), n=len(values), interval=interval)


def _at_shared_epochs(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units of a variant at the checkpoints that all of its trainings have."""
    trainings = len(units.groupby(["seed", "canary", "insertions"]))
    return units[units.groupby("epoch")["epoch"].transform("size") == trainings]


def _has_patience(recipe: Recipe, variant: str) -> bool:
    cell = recipe.cells.get(variant)
    return cell is not None and cell.training is not None and cell.training.patience is not None


def _sanitizing(last: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield the share of canaries that a sanitized text has lost, and exposures of lost and other canaries before and after.

    Nothing is tested: models disagree more about unlikely canaries, so the removed ones tend to be the less likely
    candidates, and neither they nor the others rank like candidates drawn at random.
    """
    if recipe.sanitize is None:
        return
    keys = ["seed", "canary"]
    before = last[(last["variant"] == UNSANITIZED) & (last["insertions"] > 0)].set_index(keys)
    after = last[last["variant"] == SANITIZED].set_index(keys)
    both = before.join(after[["insertions", "exposure"]], rsuffix="_after", how="inner").reset_index()
    for insertions, group in both.groupby("insertions"):
        lost = group.groupby("canary")["insertions_after"].max() == 0
        params = {"insertions": int(insertions)}
        shares = share_interval(lost.to_numpy().astype(float))
        yield estimate("removed_by_sanitizing", params, float(lost.mean()), n=len(lost), interval=shares)
        for removed in (True, False):
            some = group[group["canary"].isin(lost.index[lost == removed])]
            for column, when in (("exposure", UNSANITIZED), ("exposure_after", SANITIZED)):
                values = some.groupby("canary")[column].mean().to_numpy()
                if len(values):
                    where = {**params, "removed": removed, "text": when}
                    interval = mean_interval(values, float(last["space_bits"].iloc[0]))
                    yield estimate("exposure_by_sanitizing", where, values.mean(), n=len(values), interval=interval)


def _null_rows(last: pd.DataFrame, recipe: Recipe) -> Iterator[Finding]:
    """Yield statistics of canaries that a model never saw, without those that were removed from a sanitized text.

    For drawn canaries 2^-exposure is uniform, with mean 1/2 and a median exposure of 1. For unseen secrets of a kind that the
    model knows, 2^-exposure is smaller, so no uniform null fits them.
    """
    removed = (last["variant"] == recipe.selected) & (last["kind"] == INSERTED)
    never = last[(last["insertions"] == 0) & ~removed]
    for name, at in variants_of(never):
        of_variant = never[never["variant"] == name]
        for metric, drawn in (("", of_variant["kind"] != UNSEEN), ("unseen_", of_variant["kind"] == UNSEEN)):
            group = of_variant[drawn]
            if not len(group):
                continue
            values = np.exp2(-group["exposure"]).groupby(group["canary"]).mean().to_numpy()
            params = {**at, "insertions": 0}
            yield diagnostic(
                f"{metric}two_to_minus_exposure", params, values.mean(), n=len(values), interval=mean_interval(values, 1.0)
            )
            yield diagnostic(f"{metric}exposure_median", params, float(group["exposure"].median()), n=len(values))


def _extraction_rows(extractions: pa.Table) -> Iterator[Finding]:
    frame = extractions.to_pandas()
    for keys, group in frame.groupby(["variant", "search", "known", "insertions"], sort=False):
        variant, search, known, insertions = keys
        at = {"variant": variant} if variant else {}
        params = {**at, "search": search, "known": int(known), "insertions": int(insertions)}
        shares = group.groupby("canary")["extracted"].mean().to_numpy()  # several models of one canary count as one canary
        chance = {"by_chance": round(float(group["by_chance"].mean()), 9)}
        yield estimate("extracted", params | chance, shares.mean(), n=len(shares), interval=share_interval(shares))
        if search == "shortest_path":
            yield diagnostic("extraction_queries", params, float(group["queries"].median()), n=len(shares))


def share_interval(shares: NDArray[np.float64]) -> Interval:
    """Compute Clopper and Pearson's 95 % interval of a mean share over canaries.

    Args:
        shares: (num_canaries,) share of each canary's models that give it away.
    """
    hits, count = float(shares.sum()), len(shares)
    low = float(scipy.stats.beta.ppf(0.025, hits, count - hits + 1)) if hits else 0.0
    high = float(scipy.stats.beta.ppf(0.975, hits + 1, count - hits)) if hits < count else 1.0
    return Interval(low, high, "canaries")
