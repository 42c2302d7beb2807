"""Extraction of documents that a model was trained on, compared with documents that were held out at random.

Memory is tested by permuting which documents were held out. The statistic is the difference between held-out and trained
documents in the mean of -log2 of the suffixes' untruncated probabilities, averaged over a variant's training runs. Shares of
documents that are reproduced within n tries are estimates; for held-out documents they show what a model reproduces without
having seen them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.exposure.recipe import DOCUMENTS, DiscoverableSpec
from memlib.findings import INCONCLUSIVE, SHOWN, Finding, Findings, Interval, Verdict, cannot_reject, estimate, tested
from memlib.identity import derive_seed
from memlib.report.format import percent, say_p
from memlib.stats.inference import exact_interval
from memlib.stats.power import detectable_shift
from memlib.stats.randomization import Design

GAP, SHARE, GREEDY, NEAR = "document_bits", "discoverable", "discoverable_greedy", "discoverable_near"
PERMUTATIONS = 9_999


def document_rows(
    documents: pa.Table, how: DiscoverableSpec, *, alpha: float, given: NDArray[np.int64] | None = None
) -> Iterator[Finding]:
    """Yield the findings of each variant: a test, and the shares reproduced among trained and held-out documents.

    Args:
        documents: tables.DOCUMENTS.
        how: the numbers of tries n, the probability p of at least one reproduction in n tries, and the settings of near
            samples.
        alpha: family-wise level; the power of each variant's test is computed at an equal part of it (Bonferroni).
        given: (num_redraws, num_held_out) places of held-out documents, in the order of their numbers, to use instead of
            random ones.
    """
    frame = documents.to_pandas()
    variants = list(dict.fromkeys(frame["variant"]))
    for variant in variants:
        at = {"variant": variant} if variant else {}
        group = frame[frame["variant"] == variant]
        bits = group.groupby("document")["bits"].mean()
        held_out = group.groupby("document")["held_out"].first().to_numpy(dtype=bool)
        yield _test(at, bits.to_numpy(), held_out, level=alpha / len(variants), given=given)
        for side, part in (("trained", group[~group["held_out"]]), ("held_out", group[group["held_out"]])):
            yield from _shares({**at, "side": side}, part, how)


def _test(
    at: Mapping[str, Any],
    bits: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    *,
    level: float,
    given: NDArray[np.int64] | None = None,
) -> Finding:
    """Test how many fewer bits suffixes of trained documents cost, by permuting which documents were held out."""
    value = float(bits[held_out].mean() - bits[~held_out].mean())
    rng = np.random.default_rng(derive_seed(0, "documents"))
    second = int(held_out.sum())
    redraws = (rng.permutation(len(bits))[:second] for _ in range(PERMUTATIONS)) if given is None else given
    null = np.empty(PERMUTATIONS if given is None else len(given))
    for draw, out in enumerate(redraws):
        total = float(bits[out].sum())
        null[draw] = total / second - (float(bits.sum()) - total) / (len(bits) - second)
    above = int((null >= value - 1e-9 * max(1.0, abs(value))).sum())
    welch = scipy.stats.ttest_ind(bits[held_out], bits[~held_out], equal_var=False).confidence_interval(0.95)
    design = Design.of(held_out, np.zeros(len(bits), dtype=np.int64))
    return tested(
        GAP, at, value, n=len(bits), p_value=(1 + above) / (1 + len(null)), family=DOCUMENTS,
        interval=Interval(welch.low, welch.high, "documents"),
        detectable=detectable_shift(design, bits, alpha=level, seed=derive_seed(0, "power of documents")),
        smallest_p=max(1 / (1 + len(null)), 1 / math.comb(len(bits), min(second, 1000))),
    )  # fmt: skip


def _shares(at: Mapping[str, Any], part: pd.DataFrame, how: DiscoverableSpec) -> Iterator[Finding]:
    """Yield the shares of documents that are reproduced; each document is first averaged over the training runs."""
    from memlib.observe.discovery import needed_bits

    measures: list[tuple[str, dict[str, Any], pd.Series]] = [(GREEDY, {}, part["greedy"].astype(float))]
    for tries in how.tries:
        params = {"tries": tries, "probability": how.probability}
        measures.append((SHARE, params, (part["scheme_bits"] <= needed_bits(tries, how.probability)).astype(float)))
    if how.samples:
        params = {"samples": how.samples, "near": how.near}
        measures.append((NEAR, params, (part["near"] > 0).astype(float)))
    for metric, params, hits in measures:
        shares = hits.groupby(part["document"]).mean().to_numpy()
        interval = Interval(*exact_interval(float(shares.sum()), len(shares)), "documents")
        yield estimate(metric, {**at, **params}, float(shares.mean()), n=len(shares), interval=interval)


def said_of_documents(rows: Findings) -> Verdict | None:
    """Return the verdict on documents: which variant remembers them and how many it reproduces; None without a test."""
    tests, shown = rows.all(GAP), rows.all(GAP).shown()
    if not tests:
        return None
    if not shown:
        least = tests.strongest()
        missed = (
            "so few documents could not have shown anything"
            if least.detectable is None or cannot_reject(least)
            else f"a difference of {least.detectable:.1f} bits a document would have been found with a power of 80 %"
        )
        text = (
            "The continuations of documents that were trained on were compared with those of documents held out at random "
            f"({say_p(least.p_adjusted)}); {missed}."
        )
        return Verdict(INCONCLUSIVE, "It was not shown to remember documents that it was trained on.", text)
    most = max(shown, key=lambda row: row.value)
    variant = most.params.get("variant")
    name = f" of variant {variant!r}" if variant else ""
    shares = rows.all(SHARE, variant=variant)
    tries = max(row.params["tries"] for row in shares)
    trained, held_out = (shares.first(SHARE, side=side, tries=tries) for side in ("trained", "held_out"))
    others = f" The same is shown for {len(shown) - 1} more of the variants." if len(shown) > 1 else ""
    return Verdict(
        SHOWN,
        "The model remembers documents that it was trained on.",
        f"The continuation of a document costs the model{name} {most.value:.1f} bits less if it was trained on the "
        f"document than if the document was held out at random ({say_p(most.p_adjusted)}).{others} Within {tries:,} "
        f"tries, {percent(trained.value, 0)} of the documents that it was trained on are reproduced with a probability of "
        f"at least {trained.params['probability']:g}, and {percent(held_out.value, 0)} of the held-out documents.",
    )
