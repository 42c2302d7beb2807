"""Differences between two runs: recipes, findings and artifacts; that of the headlines is tested where the design allows."""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from memlib.audits import AUDITS, audit_of
from memlib.audits.base import Cell
from memlib.audits.outcomes import cell_of, scores_of
from memlib.errors import CorruptArtifact, UserError
from memlib.findings import SHOWN, Finding, Findings
from memlib.identity import flat
from memlib.report.format import format_interval, format_setting, in_words, say_p
from memlib.runs.records import RunRecord
from memlib.runs.run import Run

Key = tuple[str, frozenset[tuple[str, str | None]]]  # metric, and params with their values


class RecipeChange(TypedDict):
    """A dotted recipe key and its two different values; a value is None if that recipe lacks the key."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class FindingChange:
    """One finding in two runs; a run that lacks it has None."""

    first: Finding | None
    second: Finding | None

    @property
    def metric(self) -> str:
        """Name of the finding's metric."""
        return next(row.metric for row in (self.first, self.second) if row is not None)

    @property
    def params(self) -> dict[str, Any]:
        """The params on which both runs agree; all params of a finding that one run lacks."""
        a, *others = (row.params for row in (self.first, self.second) if row is not None)
        return {name: value for name, value in a.items() if all(name in b and b[name] == value for b in others)}

    @property
    def both_params(self) -> dict[str, Any]:
        """The params in either run; a param that differs has both values, as text."""
        a, b = ({} if row is None else row.params for row in (self.first, self.second))
        differing = [name for name in a if name in b and a[name] != b[name]]
        return {**a, **b, **{name: f"{format_setting(name, a[name])} / {in_words(b[name])}" for name in differing}}

    @property
    def difference(self) -> float | None:
        """Value of the second run minus that of the first; None if either has none."""
        difference = math.nan if self.first is None or self.second is None else self.second.value - self.first.value
        return None if math.isnan(difference) else difference

    @property
    def apart(self) -> bool:
        """True if the intervals do not overlap; this is no test of the difference, as runs share data and seeds."""
        return _lies_above(self.first, self.second) or _lies_above(self.second, self.first)

    @property
    def is_same(self) -> bool:
        """True if both runs say the same: value, interval, p-values and verdict."""
        if self.first is None or self.second is None:
            return False
        a, b = ((row.value, row.low, row.high, row.p_value, row.p_adjusted, row.verdict) for row in (self.first, self.second))
        return a == b

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON, with the whole row of each run in `rows`."""
        rows = [None if row is None else _as_json(row) for row in (self.first, self.second)]
        first, second = (None if row is None else row["value"] for row in rows)
        return {
            "metric": self.metric, "params": self.params, "first": first, "second": second, "difference": self.difference,
            "apart": self.apart, "rows": rows,
        }  # fmt: skip


def _as_json(row: Finding) -> dict[str, Any]:
    return row.row() | {"params": row.params, "value": None if math.isnan(row.value) else row.value}


@dataclass(frozen=True)
class HeadlineDifference:
    """The difference between the headlines of two runs."""

    row: Finding | None  #: the second headline minus the first; None if the runs cannot be compared example by example.
    reason: str = ""  #: reason why the difference is not tested; "" if it is.

    def sentence(self, first: str, second: str) -> str:
        """Return the outcome of the test of two runs of these names, or the reason why there is none."""
        if self.row is None or self.reason:
            return f"The difference of the headlines is not tested: {self.reason}."
        more, less = (second, first) if self.row.value > 0 else (first, second)
        if self.row.verdict == SHOWN:
            return f"Tested: {more} is shown to memorize more than {less}."
        return "Tested: neither run is shown to memorize more than the other."

    def numbers(self, first: str, second: str) -> str:
        """Return the difference between two runs of these names with its interval and p-value; "" without one."""
        row = self.row
        if row is None:
            return ""
        metric = f"{row.metric[:1].upper()}{row.metric[1:]}"
        value = f"{metric} ({second} minus {first}): {row.value:.3f}, 95 % interval {format_interval(row)}"
        return f"{value}, {say_p(row.p_value)} at level {row.alpha:g}." if row.is_test else f"{value}."


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs of the same audit. Only the difference of their headlines is tested, where the design allows it.

    Attributes:
        first, second: manifests of the runs.
        headlines: the difference of the headlines, see `headline_difference`.
        recipe: values of the recipes that differ.
        findings: findings of either run, matched, see `finding_changes`.
        artifacts: names of artifacts, see `shared_artifacts`.
    """

    first: RunRecord
    second: RunRecord
    headlines: HeadlineDifference
    recipe: list[RecipeChange]
    findings: list[FindingChange]
    artifacts: dict[str, list[str]]

    def __repr__(self) -> str:
        differing = sum(not change.is_same for change in self.findings)
        counts = f"{len(self.recipe)} recipe values and {differing} findings differ"
        return f"<memlib diff of {self.first.run} and {self.second.run}: {counts}>"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON."""
        runs = [run.model_dump(include={"run", "title", "finished", "verdict"}) for run in (self.first, self.second)]
        findings = [change.as_json() for change in self.findings]
        row = self.headlines.row
        return {
            "runs": runs, "recipe": self.recipe, "findings": findings, "tested": row is not None and row.is_test,
            "difference": None if row is None else _as_json(row), "not_tested": self.headlines.reason,
            "artifacts": self.artifacts,
        }  # fmt: skip

    def tests(self, change: FindingChange) -> bool:
        """Return whether the difference of a finding is the one that is tested."""
        heads = [Findings.of_run(run).head for run in (self.first, self.second)]
        return not self.headlines.reason and [change.first, change.second] == heads

    def in_words(self) -> str:
        """Return sentences on the tests of the differences."""
        names, others = (self.first.run, self.second.run), "The differences"
        said = f"{self.headlines.sentence(*names)} {self.headlines.numbers(*names)}".rstrip()
        if not self.headlines.reason:
            said += " This is the test of one pair; a sweep adjusts for the number of pairs that it compares."
            others = "The other differences"
        return f"{said} {others} of findings are not tested, not even where intervals lie apart."


def compare(one: Run, other: Run) -> Comparison:
    """Compare the recipes, findings and artifacts of two runs, and test the difference of their headlines if possible.

    Raises:
        UserError: for runs of different audits.
    """
    first, second = one.record, other.record
    if first.audit != second.audit:
        named = " and ".join(f"{run.run} ({audit_of(run.audit)})" for run in (first, second))
        raise UserError(f"cannot compare runs of different audits: {named}")
    parts = recipe_changes(first.recipe, second.recipe), finding_changes(first, second), shared_artifacts(first, second)
    return Comparison(first, second, headline_difference(one, other), *parts)


def headline_difference(first: Run, second: Run) -> HeadlineDifference:
    """Test the difference between the headlines of two runs of one audit, as a sweep tests that of two cells."""
    name = audit_of(first.audit)
    compare = AUDITS[name].compare if name in AUDITS else None
    if compare is None:
        others = ", ".join(other for other, audit in AUDITS.items() if audit.compare is not None)
        return HeadlineDifference(None, f"only runs of {others} can be compared example by example")
    if scores_of(first.record) == scores_of(second.record):
        return HeadlineDifference(None, "both runs have the same scores")
    try:
        cells = [_cell(run) for run in (second, first)]
    except _Incomparable as error:
        return HeadlineDifference(None, str(error))
    rows = compare(cells)
    if not rows:
        return HeadlineDifference(None, "the runs do not audit the same examples on the same sides")
    return HeadlineDifference(rows[0], rows[0].params.get("not_ranked", ""))


class _Incomparable(Exception):
    """A run whose scores cannot be compared."""


def _cell(run: Run) -> Cell:
    """Return a run with its units.

    Raises:
        _Incomparable: when they cannot be read, or an earlier version of memlib wrote them without some of their columns.
    """
    if "scores" not in run.record.artifacts:
        raise _Incomparable(f"run {run.id} does not record its scores")
    try:
        cell = cell_of(run.store, run.id, run.record)
    except CorruptArtifact as error:
        raise _Incomparable(f"the scores of run {run.id} cannot be read ({error}); run its audit again") from error
    expected = AUDITS[audit_of(run.audit)].tables["units"].arrow.names
    if missing := [name for name in expected if name not in cell.units.column_names]:
        raise _Incomparable(f"run {run.id}, of an earlier version of memlib, has no {missing[0]}; run its audit again")
    return cell


def recipe_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[RecipeChange]:
    """Return the dotted recipe keys whose values differ, with both values; None if a recipe lacks the key."""
    a, b = dict(flat(first)), dict(flat(second))
    names = dict.fromkeys([*a, *b])
    return [{"key": name, "first": a.get(name), "second": b.get(name)} for name in names if a.get(name) != b.get(name)]


def finding_changes(first: RunRecord, second: RunRecord) -> list[FindingChange]:
    """Return the findings of either run, matched by metric and by params.

    A value of a param that occurs in one run alone, such as the number of epochs where it was changed, matches any such value
    of the other run. Counts that are recorded as params can coincide by chance: findings that are left over are matched by
    the params whose values are the same in both runs. Findings that still tie are matched in order.
    """
    rows, others = Findings.of_run(first), dict(enumerate(Findings.of_run(second)))
    a, b = _values(rows), _values(others.values())
    common = {name: a[name] & b[name] for name in a.keys() & b.keys()}
    equal = {name: values for name, values in common.items() if a[name] == b[name]}
    matches: dict[int, int] = {}
    for known in (common, equal):
        taken, waiting = set(matches.values()), defaultdict[Key, deque[int]](deque)
        for place, row in others.items():
            if place not in taken:
                waiting[_key(row, known)].append(place)
        for place, row in enumerate(rows):
            if place not in matches and (found := waiting[_key(row, known)]):
                matches[place] = found.popleft()
    changes = [FindingChange(row, others.pop(matches.get(place, -1), None)) for place, row in enumerate(rows)]
    return [*changes, *(FindingChange(None, row) for row in others.values())]


def _values(rows: Iterable[Finding]) -> dict[str, set[str]]:
    """Return the values of each param, as JSON."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.params.items():
            values.setdefault(name, set()).add(json.dumps(value, sort_keys=True))
    return values


def _key(row: Finding, known: Mapping[str, set[str]]) -> Key:
    """Return the metric and params by which a finding is matched; values that are not `known` become None."""
    params = {name: json.dumps(value, sort_keys=True) for name, value in row.params.items() if name in known}
    return row.metric, frozenset((name, value if value in known[name] else None) for name, value in params.items())


def _lies_above(row: Finding | None, other: Finding | None) -> bool:
    """Return whether a finding's interval lies above that of another one."""
    if row is None or other is None or row.low is None or other.high is None:
        return False
    return row.low > other.high


def shared_artifacts(first: RunRecord, second: RunRecord) -> dict[str, list[str]]:
    """Return artifact names in four groups: same in both runs, different, only in the first, only in the second."""
    a, b = first.artifacts, second.artifacts
    return {
        "same": sorted(name for name in a if a[name] == b.get(name)),
        "differ": sorted(name for name in a if name in b and a[name] != b[name]),
        "first only": sorted(a.keys() - b.keys()),
        "second only": sorted(b.keys() - a.keys()),
    }
