"""The audits of a dossier, each with its headline as adjusted over all audits, and the reasons why it may not count."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from memlib.audits import AUDITS, audit_of
from memlib.audits.asked import NOT_POSSIBLE, SERVICE
from memlib.audits.attacks import Attack, not_for
from memlib.audits.dossier.attacks import attacks, kind_of
from memlib.audits.dossier.beside import Beside, passes
from memlib.audits.dossier.recipe import LEVEL
from memlib.audits.dossier.subject import AuditedModels, Examined, examined, model_digest, seeds_in
from memlib.audits.dossier.tables import AUDITS as AUDITS_TABLE
from memlib.audits.outcomes import Outcome, models_of, scores_of
from memlib.findings import INCONCLUSIVE, Finding, Findings, cannot_reject, families_of
from memlib.identity import canonical_json
from memlib.observe.service_checks import LEVELS
from memlib.runs.records import RunRecord, VerdictRecord
from memlib.specs.base import Kind
from memlib.specs.question import asks_but_seeds
from memlib.stats.multiplicity import holm_in_groups

NOT_RUN, NOT_APPLICABLE, RUN, FAILED, BESIDE = "not run", "not applicable", "run", "failed", "beside"
NOT_IN_MEMLIB = "not in memlib"
STALE = "stale: older than the dossier allows"
LOST = "shown only if earlier looks at these data are not counted"
BLIND = "powerless: it would have found no effect of any size with 80 % power"
POWERLESS = "powerless: with this size its test can show nothing"


@dataclass(frozen=True)
class Listed:
    """An audit of the dossier."""

    outcome: Outcome  #: its manifest, with findings and verdict as its scores have them.
    kind: Kind  #: kind of its data.
    models: AuditedModels  #: its models.
    examined: Examined  #: the model that it was given, or the models that it trained.
    #: p-value of its headline, adjusted over all audits and looks; None without a test, and for one that can show nothing.
    p_value: float | None
    doubts: tuple[str, ...]  #: reasons why its test does not count.
    entry: str = ""  #: id of the first run of the same design and draws; these are one entry of the adjustment.
    is_planned: bool = False  #: whether it follows a plan that was frozen before it.

    @property
    def run(self) -> RunRecord:
        """The manifest of the run."""
        assert self.outcome.run is not None, "a dossier lists finished runs"
        return self.outcome.run

    @property
    def findings(self) -> Findings:
        """The findings of the run."""
        return self.outcome.findings

    @property
    def headline(self) -> Finding:
        """The test of the headline families with the smallest p-value, else the first finding."""
        return self.outcome.headline

    def headline_of(self, attack: Attack) -> Finding | None:
        """Return the run's headline if it is the attack's, else its strongest test or first finding; None without any."""
        others = [one.holds for one in AUDITS[audit_of(self.run.audit)].attacks if one.holds is not None]
        if attack.holds is not None:
            mine = [row for row in self.findings if attack.holds(row)]
        else:
            mine = [row for row in self.findings if not any(holds(row) for holds in others)]
        if self.headline in mine:
            return self.headline
        tests = [row for row in mine if row.is_test and row.p_value is not None]
        return min(tests, key=lambda row: row.p_value or 0.0) if tests else next(iter(mine), None)

    @property
    def verdict(self) -> VerdictRecord:
        """The run's own verdict."""
        assert self.run.verdict is not None, "a run whose scores were read has a verdict"
        return self.run.verdict

    @property
    def level(self) -> float:
        """The level at which it counts as shown: that of its recipe, and at most that of dossiers."""
        return min(LEVEL, self.headline.alpha or 0.0)

    @property
    def passes(self) -> bool:
        """True if the run shows memory by itself, whatever remains of it after the adjustment over all audits."""
        return passes(self.run, self.headline) and LOST not in self.doubts

    @property
    def is_shown(self) -> bool:
        """True if the run shows memory, and still does by the p-value that is adjusted over all audits and looks."""
        return self.passes and self.p_value is not None and self.p_value <= self.level

    @property
    def utility(self) -> float | None:
        """Utility of the run's models, as a fraction; None if it was not measured."""
        found = AUDITS[audit_of(self.run.audit)].utility(self.findings)
        return None if found is None else found.value


def listed(outcomes: Sequence[Outcome], models: Sequence[AuditedModels], *, looks: int, stale: Sequence[str]) -> list[Listed]:
    """Return the audits with their adjusted p-values, and the reasons why some of them do not count.

    Args:
        outcomes: the runs, with findings read from their scores.
        looks: number of further tests of the same data, see `memlib.audits.dossier.subject.further_looks`.
        stale: ids of the runs that are too old.
    """
    runs = [_finished(outcome) for outcome in outcomes]
    doubts = [tuple(_doubts(outcome, run, stale)) for outcome, run in zip(outcomes, runs, strict=True)]
    entries = entries_of(runs, models)
    p_values = adjusted_together(
        [one for one, doubted in zip(outcomes, doubts, strict=True) if POWERLESS not in doubted], entries, looks=looks
    )
    return [
        Listed(
            outcome,
            kind_of(run.recipe, run.audit),
            of_run,
            subject,
            p_values.get(run.run),
            doubted,
            entries[run.run],
            is_planned(run),
        )
        for outcome, run, of_run, subject, doubted in zip(outcomes, runs, models, examined(runs, models), doubts, strict=True)
    ]


def _finished(outcome: Outcome) -> RunRecord:
    assert outcome.run is not None, "a dossier lists finished runs"
    return outcome.run


def is_planned(run: RunRecord) -> bool:
    """Return whether a run follows a plan that was frozen before its results can have been known."""
    return run.plan is not None and not run.plan.departures and run.plan.frozen <= run.plan.began


def entries_of(runs: Sequence[RunRecord], models: Sequence[AuditedModels]) -> dict[str, str]:
    """Return for each run the first one of the same design and draws, by ids.

    Two runs of an audit on the same data are alike if their recipes differ in seeds alone, if they share trained models or
    scores, or if they examine the same given model, whose training chance decided once.
    """
    order = sorted(zip(runs, models, strict=True), key=lambda one: (begun(one[0]), one[0].run))
    first: dict[str, str] = {}
    known: dict[tuple[str, ...], str] = {}
    for run, of_run in order:
        keys = [(run.audit, run.ledger.data, kind, key) for kind, key in _alike(run, of_run)]
        found = sorted({first[known[key]] for key in keys if key in known}, key=list(first).index)
        first[run.run] = found[0] if found else run.run
        for name, one in first.items():
            if one in found:
                first[name] = found[0]
        known |= dict.fromkeys(keys, run.run)
    return first


def begun(run: RunRecord) -> float:
    """Return the time of the first publication of a run."""
    return min((one.started for one in run.history), default=run.finished)


def _alike(run: RunRecord, models: AuditedModels) -> Iterator[tuple[str, str]]:
    """Yield what runs of one design have in common, as kind and key."""
    yield "scores", scores_of(run)
    yield from (("model", ref) for ref in models_of(run))
    if models.external:
        yield "given", model_digest(models.external)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # recipes of other versions
        yield "asks", canonical_json(asks_but_seeds(run.recipe))


def adjusted_together(outcomes: Sequence[Outcome], entries: Mapping[str, str], *, looks: int) -> dict[str, float]:
    """Return the p-value of each run with a test, adjusted over all entries, by run.

    The first audit of an entry has half of its level, and all further ones share the other half: whoever repeats an audit
    neither dilutes the first result nor gets a second chance. Runs that follow frozen plans are one group, and all others
    another, see `memlib.stats.multiplicity.holm_in_groups`; runs of the same scores count once.

    Args:
        outcomes: the runs whose tests can show something.
        entries: the first run of the same design, by run.
        looks: number of further tests of the same data whose p-values are not known, and are taken for 1.
    """
    tests: dict[str, dict[str, tuple[float, float]]] = {}
    planned: dict[str, bool] = {}
    for outcome in outcomes:
        run, head = _finished(outcome), outcome.headline
        if head.is_test and head.p_adjusted is not None:
            entry = entries[run.run]
            earlier = tests.setdefault(entry, {}).get(scores_of(run), (math.inf, 0.0))
            tests[entry][scores_of(run)] = min(earlier, (begun(run), head.p_adjusted))
            planned[entry] = planned.get(entry, True) and is_planned(run)
    p_of = {entry: _p_of_entry([p for _, p in sorted(found.values())]) for entry, found in tests.items()}
    groups = [[entry for entry in p_of if planned[entry]], [entry for entry in p_of if not planned[entry]]]
    found = holm_in_groups([[p_of[one] for one in groups[0]], [*(p_of[one] for one in groups[1]), *[1.0] * looks]])
    by_entry = {
        name: float(p) for names, values in zip(groups, found, strict=True) for name, p in zip(names, values, strict=False)
    }
    tested = [run.run for one in outcomes if (run := _finished(one)) and one.headline.is_test]
    return {run: by_entry[entries[run]] for run in tested if entries[run] in by_entry}


def _p_of_entry(p_values: Sequence[float]) -> float:
    """Return the p-value of an entry from those of its audits, the first one first."""
    first, *others = p_values
    return min(1.0, 2 * first, 2 * len(others) * min(others)) if others else first


def _doubts(outcome: Outcome, run: RunRecord, stale: Sequence[str]) -> list[str]:
    audit = AUDITS[audit_of(run.audit)]
    head = outcome.headline
    doubts = [STALE] if run.run in stale else []
    doubts += [LOST] if audit.is_lost_by_looks(run) else []
    if cannot_reject(head, families_of(outcome.findings, audit.headlines)):
        doubts.append(POWERLESS)
    if head.is_test and head.verdict == INCONCLUSIVE and head.detectable is None and POWERLESS not in doubts:
        doubts.append(BLIND)
    return doubts


@dataclass(frozen=True)
class Failed:
    """An audit that was to belong to the dossier and has no result."""

    title: str  #: title of its recipe, or name of the cell.
    audit: str  #: its audit, as in recipes; "" if unknown.
    problem: str  #: reason for the failure.


def rows_of(
    audits: Sequence[Listed], not_run: Mapping[str, str], failed: Sequence[Failed] = ()
) -> list[tuple[Attack, str, str, Listed | None]]:
    """Return the rows of the dossier's list: attack, state, reason and audit; every run of an attack has a row of its own.

    Args:
        not_run: the owner's reasons why audits were not run, by name on the command line.
        failed: the audits without a result.
    """
    kinds = {one.kind for one in audits}
    rows: list[tuple[Attack, str, str, Listed | None]] = []
    for name, attack in attacks():
        of_audit = [one for one in audits if one.run.audit == name and one.kind in attack.kinds]
        mine = [one for one in of_audit if one.headline_of(attack) is not None]
        names = ", ".join(one.title for one in failed if name and one.audit == name)
        rows += [(attack, RUN, "; ".join(one.doubts), one) for one in mine]
        if not mine and not attack.is_attack:
            continue
        if not mine and kinds & attack.kinds:
            stated = "" if of_audit else (f"its audit failed ({names})" if names else not_run.get(audit_of(name), ""))
            reason = attack.reason if of_audit or not name else Attack.reason
            served = [row for one in of_audit if (row := one.findings.get(SERVICE)) is not None]
            if served and len(served) == len(of_audit) and "texts" not in attack.by:
                reason = f"{NOT_POSSIBLE}: the service {LEVELS[served[0].params['level']]}"
            rows.append((attack, NOT_RUN if name else NOT_IN_MEMLIB, stated or reason, None))
        elif not mine:
            rows.append((attack, NOT_APPLICABLE, not_for(attack.kinds, kinds), None))
    return rows


def audits_table(
    audits: Sequence[Listed], not_run: Mapping[str, str], failed: Sequence[Failed] = (), beside: Iterable[Beside] = ()
) -> pa.Table:
    """Return the dossier's list as tables.AUDITS.

    Args:
        beside: runs that do not belong to the dossier, and whose word contradicts its own.
        not_run, failed: as for `rows_of`.
    """
    without = [
        {"attack": "", "state": FAILED, "reason": one.problem, "title": one.title, "audited": one.audit or None}
        for one in failed
    ]
    rows = [_row(*row) for row in rows_of(audits, not_run, failed)]
    return pa.Table.from_pylist([*without, *rows, *map(_row_beside, beside)], schema=AUDITS_TABLE.arrow)


def _row_beside(one: Beside) -> dict[str, Any]:
    head = AUDITS[audit_of(one.run.audit)].decisive_of(one.run)
    return {
        "attack": "",
        "state": BESIDE,
        "reason": one.reason or (f"in {one.store}" if one.store else ""),
        "run": one.run.run,
        "audited": one.run.audit,
        "title": one.run.title,
        "finished": datetime.fromtimestamp(one.run.finished, tz=UTC),
        "word": one.word,
        "sentence": one.run.verdict.sentence if one.run.verdict else None,
        "p_dossier": None,
        "metric": head.metric,
        "value": head.value,
        "n": head.n,
        "alpha": head.alpha,
        "data": one.run.ledger.data,
    }


def _row(attack: Attack, state: str, reason: str, one: Listed | None) -> dict[str, Any]:
    known = {
        "attack": attack.name,
        "state": state,
        "reason": reason,
        "item": attack.item,
        "access": attack.access,
        "possible_by": sorted(attack.by),
    }
    if one is None:
        return known
    run, head = one.run, one.headline_of(attack)
    assert head is not None, "the run contains the attack"
    leads = head == one.headline
    return known | {
        "leads": leads,
        "run": run.run,
        "audited": run.audit,
        "title": run.title,
        "finished": datetime.fromtimestamp(run.finished, tz=UTC),
        "counts": not one.doubts,
        "word": one.verdict.word if leads else head.verdict,
        "sentence": one.verdict.sentence if leads else None,
        "p_dossier": one.p_value if leads else None,
        "shown": one.is_shown if leads and one.p_value is not None else None,
        "metric": head.metric,
        "params": json.dumps(dict(head.params), sort_keys=True),
        "value": head.value,
        "ci_low": head.low,
        "ci_high": head.high,
        "chance": head.null_value,
        "upper_bound": head.upper_bound,
        "bound": head.bound,
        "detectable": head.detectable,
        "n": head.n,
        "over": None if head.interval is None else head.interval.over,
        "alpha": head.alpha,
        "examined": one.examined.name,
        "subject": one.examined.key,
        "advice": AUDITS[audit_of(run.audit)].leak(head).advice if leads and one.is_shown else None,
        "entry": one.entry,
        "planned": one.is_planned,
        "models": one.models.trained,
        "external": list(one.models.external),
        "digests": list(one.models.digests),
        "wholes": sorted(one.models.wholes),
        "data": run.ledger.data,
        "seeds": seeds_in(run.recipe),
        "utility": one.utility,
    }
