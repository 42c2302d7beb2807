"""Findings of a run: rows of tests, estimates and diagnostics, their families, and one verdict in plain words.

A test compares its statistic with a null. Its p-value is adjusted within its family, and only tests have a verdict:

    shown         p_adjusted is at most alpha, and the effect has the direction of memory
    bounded       not shown, and the 95 % upper bound lies below a bound fixed by the recipe
    inconclusive  neither; `detectable` is the effect that the test would have detected with a power of 80 %

Each audit names its headline families. They share one alpha, and the word of a run is a function of their rows alone
(`word_of`). Tests of other families have a verdict only in a run that shows memory, and cannot contradict it.

An estimate has an interval that accounts for the sampling of examples, models or other units. All other rows are diagnostics.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import pyarrow as pa

from memlib.stats.multiplicity import ADJUSTMENTS, holm_over_families
from memlib.tables import SUMMARY

if TYPE_CHECKING:
    from memlib.runs.records import RunRecord

Word = Literal["shown", "bounded", "inconclusive", "descriptive"]
SHOWN: Word = "shown"
BOUNDED: Word = "bounded"
INCONCLUSIVE: Word = "inconclusive"
DESCRIPTIVE: Word = "descriptive"
TEST, ESTIMATE, DIAGNOSTIC = "test", "estimate", "diagnostic"


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, and the units that were sampled."""

    low: float  #: lower end in the metric's unit.
    high: float | None  #: upper end; None where only a lower bound is known.
    over: str  #: the sampled units: examples, groups, trainings, nets, canaries, references, or data.


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run in plain words."""

    word: Word  #: shown, bounded, inconclusive, or descriptive when the audit tests nothing.
    sentence: str  #: the result for readers who read nothing else.
    explanation: str  #: the numbers behind it, and the effects that could have been missed.


@dataclass(frozen=True)
class Finding:
    """A finding: one row of tables.SUMMARY.

    Attributes:
        metric: name of the metric.
        params: settings at which it was computed, as plain JSON.
        value: the estimate; NaN if it is unknown.
        n: number of units on which it is based.
        role: test, estimate or diagnostic.
        interval: its interval; None if too few units were sampled to compute one.
        null_value: the statistic's value under the null.
        p_value: p-value under the null.
        family: name of the family of tests within which the p-value is adjusted.
        p_adjusted: the adjusted p-value.
        upper_bound: one-sided 95 % upper bound of the value.
        bound: bound fixed by the recipe; the verdict is bounded if `upper_bound` lies below it.
        detectable: the effect that would have been detected with a power of 80 %; None if no effect would have been.
        smallest_p: the smallest p-value that data of this size can give.
        alpha: significance level.
        verdict: shown, bounded or inconclusive; None for other rows than tests, and for tests outside the headline families
            of a run that shows no memory.
        either_direction: whether memory can also be shown by a value at or below the null's; not a column of the table.
    """

    metric: str
    params: Mapping[str, Any]
    value: float
    n: int
    role: str
    interval: Interval | None = None
    null_value: float | None = None
    p_value: float | None = None
    family: str | None = None
    p_adjusted: float | None = None
    upper_bound: float | None = None
    bound: float | None = None
    detectable: float | None = None
    smallest_p: float | None = None
    alpha: float | None = None
    verdict: str | None = None
    either_direction: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Finding":
        """Return the finding in a row of a summary, or of a manifest, which repeats some columns."""
        low, columns = row.get("ci_low"), {name: row.get(name) for name in _AS_THEY_ARE}
        return cls(
            **cast("dict[str, Any]", columns),
            params=json.loads(row["params"]),
            value=math.nan if row["value"] is None else row["value"],
            interval=None if low is None else Interval(low, row.get("ci_high"), row.get("interval") or ""),
        )

    @property
    def is_test(self) -> bool:
        """True if the finding is a test."""
        return self.role == TEST

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.interval is None else self.interval.low

    @property
    def high(self) -> float | None:
        """Upper end of the interval; None also where only a lower bound is known."""
        return None if self.interval is None else self.interval.high

    def has(self, **params: Any) -> bool:
        """Return whether the finding has these params; a value of None also matches a missing param."""
        return all(self.params.get(name) == value for name, value in params.items())

    def row(self) -> dict[str, Any]:
        """Return the columns of tables.SUMMARY, those of the run's verdict empty."""
        empty: dict[str, Any] = dict.fromkeys(SUMMARY.arrow.names)
        row = {name: getattr(self, name) for name in _AS_THEY_ARE}
        if self.interval is not None:
            row |= {"ci_low": self.interval.low, "ci_high": self.interval.high, "interval": self.interval.over}
        return empty | row | {"params": json.dumps(dict(self.params), sort_keys=True), "value": self.value}


_AS_THEY_ARE = (
    "metric", "n", "role", "null_value", "p_value", "family", "p_adjusted", "upper_bound", "bound", "detectable",
    "smallest_p", "alpha", "verdict",
)  # fmt: skip


class Findings(Sequence[Finding]):
    """The findings of a run, the headline first.

    Example:
        >>> from memlib.findings import Findings, estimate
        >>> found = Findings([estimate("share", {"side": side}, value, n=9) for side, value in (("A", 0.5), ("B", 0.25))])
        >>> found.get("share", side="B").value, found.get("share", side="C"), len(found.all("share"))
        (0.25, None, 2)
    """

    def __init__(self, rows: Iterable[Finding], verdict: Verdict | None = None) -> None:
        """Keep the findings and the verdict of the run, if there is one already."""
        self._rows, self._verdict = tuple(rows), verdict

    @classmethod
    def read(cls, summary: pa.Table) -> "Findings":
        """Return the findings and the verdict in a table of schema tables.SUMMARY."""
        return cls(map(Finding.of, summary.to_pylist()), verdict_of(summary))

    @classmethod
    def of_run(cls, run: "RunRecord") -> "Findings":
        """Return the findings that a run's manifest repeats, without its verdict."""
        return cls(Finding.of(record.model_dump()) for record in run.findings)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        assert self._verdict is not None, "these findings have no verdict yet"
        return self._verdict

    @property
    def head(self) -> Finding:
        """The headline."""
        return self._rows[0]

    def get(self, metric: str, /, **params: Any) -> Finding | None:
        """Return the first finding of a metric with these params; None if there is none."""
        return next(iter(self.all(metric, **params)), None)

    def first(self, metric: str, /, **params: Any) -> Finding:
        """Return the first finding of a metric with these params, which must exist."""
        found = self.get(metric, **params)
        assert found is not None, f"no finding {metric} with {params}"
        return found

    def all(self, *metrics: str, **params: Any) -> "Findings":
        """Return the findings of some metrics, or of any, that have these params."""
        return Findings(row for row in self if (not metrics or row.metric in metrics) and row.has(**params))

    def tests(self, *families: str) -> "Findings":
        """Return the tests of some families, or all tests."""
        return Findings(row for row in self if row.is_test and (not families or row.family in families))

    def shown(self) -> "Findings":
        """Return the tests that show an effect."""
        return Findings(row for row in self if row.verdict == SHOWN)

    def strongest(self) -> Finding:
        """Return the finding with the smallest adjusted p-value, the first in case of ties; one must exist."""
        return min(self, key=lambda row: math.inf if row.p_adjusted is None else row.p_adjusted)

    def table(self, verdict: Verdict) -> pa.Table:
        """Return the findings as tables.SUMMARY, with the verdict on the first row."""
        rows = [row.row() for row in self]
        rows[0] |= {"sentence": verdict.sentence, "explanation": verdict.explanation, "conclusion": verdict.word}
        return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> "Findings": ...
    def __getitem__(self, place: int | slice) -> "Finding | Findings":
        """Return the finding at a place, or the findings of a slice."""
        return Findings(self._rows[place]) if isinstance(place, slice) else self._rows[place]

    def __len__(self) -> int:
        """Return the number of findings."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Finding]:
        """Yield the findings, the headline first."""
        return iter(self._rows)


def verdict_of(summary: pa.Table) -> Verdict:
    """Return the verdict in the first row of a table of schema tables.SUMMARY."""
    (first,) = summary.slice(0, 1).to_pylist()
    return Verdict(first["conclusion"], first["sentence"], first["explanation"])


def estimate(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Finding:
    """Return an estimate; pass no interval if too few units were sampled to compute one."""
    return _finding(metric, params, value, n, ESTIMATE, interval)


def diagnostic(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Finding:
    """Return a diagnostic, which describes the models or the data and has no verdict."""
    return _finding(metric, params, value, n, DIAGNOSTIC, interval)


def tested(
    metric: str,
    params: Mapping[str, Any],
    value: float,
    *,
    n: int,
    p_value: float,
    family: str,
    null_value: float = 0.0,
    interval: Interval | None = None,
    p_adjusted: float | None = None,
    upper_bound: float | None = None,
    bound: float | None = None,
    detectable: float | None = None,
    smallest_p: float = 0.0,
    either_direction: bool = False,
) -> Finding:
    """Return a test; `settle` adds p_adjusted, unless the family is adjusted jointly (max-T), and the verdict.

    The arguments are the attributes of `Finding`; the interval does not affect the verdict.
    """
    return replace(
        _finding(metric, params, value, n, TEST, interval),
        null_value=float(null_value), p_value=float(p_value), family=family, p_adjusted=p_adjusted, upper_bound=upper_bound,
        bound=bound, detectable=detectable, smallest_p=float(smallest_p), either_direction=either_direction,
    )  # fmt: skip


def untested(row: Finding) -> Finding:
    """Turn a test into an estimate, for data that violate the assumptions of the test; return other findings unchanged."""
    return Finding(row.metric, row.params, row.value, row.n, ESTIMATE, row.interval) if row.is_test else row


def voided(row: Finding) -> Finding:
    """Turn a test into one that shows nothing, for data that cannot decide it; return other findings unchanged."""
    if not row.is_test:
        return row
    adjusted = None if row.p_adjusted is None else 1.0
    return replace(row, p_value=1.0, p_adjusted=adjusted, smallest_p=1.0, detectable=None, upper_bound=None, bound=None)


def settle(
    rows: Iterable[Finding], *, alpha: float, adjust: Mapping[str, str] | None = None, headlines: Sequence[str] = ()
) -> Findings:
    """Adjust p-values within families, then over the headline families, and give the tests their verdicts.

    Args:
        rows: findings returned by `estimate`, `diagnostic` and `tested`.
        alpha: significance level of the headline families together, and of every other family.
        adjust: adjustment method by family, "holm" (the default) or "benjamini-hochberg".
        headlines: the audit's headline families; without any, every test has a verdict.
    """
    settled = list(rows)
    families: dict[str, list[int]] = {}
    for place, row in enumerate(settled):
        if row.family is not None:
            families.setdefault(row.family, []).append(place)
    p_adjusted: dict[int, float] = {}
    for name, places in families.items():
        method = ADJUSTMENTS[(adjust or {}).get(name, "holm")]
        given = {place: p for place in places if (p := settled[place].p_adjusted) is not None}
        open_ = [place for place in places if place not in given]
        found = method([settled[place].p_value or 0.0 for place in open_])
        p_adjusted |= given | dict(zip(open_, map(float, found), strict=True))
    joined = [places for name, places in families.items() if name in headlines]
    over_families = holm_over_families([[p_adjusted[place] for place in places] for places in joined])
    for places, p_values in zip(joined, over_families, strict=True):
        p_adjusted |= dict(zip(places, p_values.tolist(), strict=True))
    adjusted = [replace(row, p_adjusted=p_adjusted[n]) if n in p_adjusted else row for n, row in enumerate(settled)]
    return judged(adjusted, alpha=alpha, headlines=headlines)


def judged(rows: Iterable[Finding], *, alpha: float, headlines: Sequence[str] = ()) -> Findings:
    """Give adjusted tests their verdicts; outside headline families only in a run that shows memory.

    Args:
        rows: findings with p_adjusted.
        alpha, headlines: as for `settle`.
    """
    words = Findings(replace(row, alpha=alpha, verdict=_verdict(row, alpha)) if row.is_test else row for row in rows)
    if not headlines or word_of(words, headlines) == SHOWN:
        return words
    return Findings(row if row.family in headlines else replace(row, verdict=None) for row in words)


def word_of(rows: Iterable[Finding], headlines: Sequence[str], *, refuting: Sequence[str] = ()) -> Word:
    """Return the word of a run: a function of the verdicts in its headline families.

    Args:
        headlines: the audit's headline families.
        refuting: headline families whose tests can refute a claim of the owner's, but confirm nothing; they do not stand in
            the way of a bound.

    Returns:
        shown if any headline test is shown; bounded if all of them are bounded; inconclusive otherwise; descriptive without
        a headline test.
    """
    heads = [row for row in rows if row.is_test and row.family in headlines]
    words = [row.verdict for row in heads if row.verdict == SHOWN or row.family not in refuting]
    if SHOWN in words:
        return SHOWN
    if not heads:
        return DESCRIPTIVE
    return BOUNDED if words and set(words) == {BOUNDED} else INCONCLUSIVE


def families_of(rows: Iterable[Finding], headlines: Sequence[str]) -> int:
    """Return the number of headline families that are tested, which share one alpha; at least 1."""
    return max(1, len({row.family for row in rows if row.is_test and row.family in headlines}))


def cannot_reject(row: Finding, families: int = 1) -> bool:
    """Return whether a settled finding is a test that could not have been significant, whatever the data.

    Args:
        families: number of families that share its level.
    """
    return row.is_test and row.smallest_p is not None and row.smallest_p * families > (row.alpha or 0.0)


def _finding(metric: str, params: Mapping[str, Any], value: float, n: int, role: str, interval: Interval | None) -> Finding:
    plain = json.loads(json.dumps(dict(params), sort_keys=True))  # as they will be read from the table
    return Finding(metric, plain, float(value), int(n), role, _around(float(value), interval))


def _around(value: float, interval: Interval | None) -> Interval | None:
    """Return an interval, widened where rounding would leave the value outside."""
    if interval is None:
        return None
    high = None if interval.high is None else float(max(interval.high, value))
    return Interval(float(min(interval.low, value)), high, interval.over)


def _verdict(row: Finding, alpha: float) -> Word:
    assert row.p_adjusted is not None
    assert row.null_value is not None
    if row.p_adjusted <= alpha and (row.either_direction or row.value > row.null_value):
        return SHOWN
    bounded = row.bound is not None and row.upper_bound is not None and row.upper_bound < row.bound
    return BOUNDED if bounded else INCONCLUSIVE
