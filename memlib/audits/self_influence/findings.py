"""The findings of a self-influence audit: concentration, agreement between checkpoints, and means by class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.findings import DESCRIPTIVE, Finding, Findings, Interval, Verdict, diagnostic, estimate
from memlib.report.format import format_interval, percent
from memlib.stats.inference import percentile_interval
from memlib.tables import CURVES, point

SHARES = (0.01, 0.1)  # top shares of the examples for which the share of self-influence is reported
MIN_EXAMPLES = 20  # examples needed for an interval


def summarize(units: pa.Table) -> pa.Table:
    """Return the concentration of self-influence, its agreement between checkpoints and its class means, without tests.

    Returns:
        tables.SUMMARY.
    """
    values = units["self_influence"].to_numpy()
    count = len(values)
    base = {"checkpoints": units["checkpoints"][0].as_py()}
    rows = [_share_row(values, share, base) for share in SHARES]
    rows.append(diagnostic("self_influence_median", base, float(np.median(values)), n=count))
    rows.append(diagnostic("self_influence_max", base, float(values.max()), n=count))
    rows += _agreement(np.array(units["gradient_norms"].to_pylist()), base)
    names = units["class_name"].to_pylist()
    for name in dict.fromkeys(sorted(names)):
        of_class = values[[n == name for n in names]]
        rows.append(diagnostic("self_influence_mean", {**base, "class": name}, float(of_class.mean()), n=len(of_class)))
    return Findings(rows).table(verdict(rows[0]))


def verdict(head: Finding) -> Verdict:
    """Return the headline in a sentence; the verdict is descriptive, as nothing is tested."""
    if not np.isfinite(head.value):
        return Verdict(
            DESCRIPTIVE,
            "Self-influence could not be compared, because it is not a finite number for every example.",
            "Some gradients overflow: audit earlier checkpoints, or train with a lower learning rate.",
        )
    ends = format_interval(head, _percent)
    interval = f" (95 % interval {ends})" if ends else ""
    top = max(1, round(SHARES[0] * head.n))
    which = "The most influential" if top == 1 else f"The {top:,} most influential"
    accounts = "accounts" if top == 1 else "account"
    return Verdict(
        DESCRIPTIVE,
        f"{which} of {head.n:,} training examples {accounts} for {_percent(head.value)} of all "
        f"self-influence{interval}.",
        "The interval is over examples, for this one training run. The model's predictions for these examples depend most on "
        "having been trained on them: they may be mislabelled, atypical, or carry something that no other example has. Look "
        "for memory there first; high self-influence alone does not prove it.",
    )  # fmt: skip


def _percent(value: float) -> str:
    return percent(value, 1)


def _share_row(values: NDArray[np.float64], share: float, base: Mapping[str, Any]) -> Finding:
    interval = None
    if len(values) >= MIN_EXAMPLES and np.ptp(values):
        interval = Interval(*percentile_interval(resampled_shares(values, share)), "examples")
    value = float(_top_share(np.sort(values)[::-1][None], np.ones((1, len(values))), share)[0])
    return estimate("influence_share", {**base, "top": share}, value, n=len(values), interval=interval)


def resampled_shares(values: NDArray[np.float64], share: float, *, replicates: int = 500) -> NDArray[np.float64]:
    """Compute the share of self-influence held by the top share of examples in bootstrap samples of the examples.

    Args:
        values: (num_examples,) self-influence of each example.
        share: top share of the examples, such as 0.01.
        replicates: number of bootstrap samples.

    Returns:
        (replicates,).
    """
    rng, count = np.random.default_rng(0), len(values)
    ordered = np.sort(values)[::-1][None]
    return np.concatenate(
        [_top_share(ordered, rng.multinomial(count, np.full(count, 1 / count), size=1), share) for _ in range(replicates)]
    )


def _top_share(ordered: NDArray[np.float64], copies: NDArray[Any], share: float) -> NDArray[np.float64]:
    """Return the share of the total held by the top share, (num_samples,).

    Args:
        ordered: (1, num_examples) values in descending order.
        copies: (num_samples, num_examples) copies of each value in each sample.
        share: top share of the examples.
    """
    top = max(1, round(share * ordered.shape[1]))
    taken = np.clip(top - (np.cumsum(copies, axis=1) - copies), 0, copies)
    total = (copies * ordered).sum(axis=1)
    shares: NDArray[np.float64] = (taken * ordered).sum(axis=1) / np.where(total > 0, total, 1)
    return shares


def _agreement(norms: NDArray[np.float64], base: Mapping[str, Any]) -> list[Finding]:
    """Return the rank correlation between the norms summed over odd and over even checkpoints, if it can be computed."""
    if norms.shape[1] < 2 or len(norms) < 3:
        return []
    halves = norms[:, ::2].sum(axis=1), norms[:, 1::2].sum(axis=1)
    agreement = float(scipy.stats.spearmanr(*halves).statistic)
    if not np.isfinite(agreement):
        return []
    return [diagnostic("checkpoint_agreement", {**base, "statistic": "Spearman"}, agreement, n=len(norms))]


def curves(units: pa.Table) -> pa.Table:
    """Return the curve influence_by_rank: share of all self-influence held by the most influential share of examples."""
    shares = np.cumsum(units["share"].to_numpy())
    chosen = np.unique(np.geomspace(1, len(shares), min(200, len(shares))).round().astype(int))
    rows = [point("influence_by_rank", "examples", {}, n / len(shares), shares[n - 1]) for n in chosen]
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)
