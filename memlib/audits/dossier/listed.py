"""The audits of a dossier, each with its headline as adjusted over all audits, and the reasons why it may not count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from memlib.audits import AUDITS, audit_of
from memlib.audits.attacks import Attack, not_for
from memlib.audits.dossier.attacks import attacks, kind_of
from memlib.audits.dossier.subject import AuditedModels, seeds_in
from memlib.audits.dossier.tables import AUDITS as AUDITS_TABLE
from memlib.audits.outcomes import Outcome, adjusted
from memlib.findings import INCONCLUSIVE, Finding, Findings, cannot_reject, families_of
from memlib.runs.records import RunRecord, VerdictRecord
from memlib.specs.base import Kind

NOT_RUN, NOT_APPLICABLE, RUN, FAILED = "not run", "not applicable", "run", "failed"
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
    p_value: float | None  #: p-value of its headline, adjusted over all audits and looks; None without a test.
    doubts: tuple[str, ...]  #: reasons why its test does not count.

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
    def is_shown(self) -> bool:
        """True if the headline is shown by the p-value that is adjusted over all audits and looks."""
        own = self.verdict.word == "shown"
        return own and self.p_value is not None and self.p_value <= (self.headline.alpha or 0.0)

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
    p_values = adjusted(outcomes, further=looks)
    found = []
    for outcome, of_run in zip(outcomes, models, strict=True):
        run = outcome.run
        assert run is not None, "a dossier lists finished runs"
        kind = kind_of(run.recipe, run.audit)
        found.append(Listed(outcome, kind, of_run, p_values.get(outcome.cell), tuple(_doubts(outcome, run, stale))))
    return found


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
        if not mine and kinds & attack.kinds:
            stated = "" if of_audit else (f"its audit failed ({names})" if names else not_run.get(audit_of(name), ""))
            reason = attack.reason if of_audit or not name else Attack.reason
            rows.append((attack, NOT_RUN, stated or reason, None))
        elif not mine:
            rows.append((attack, NOT_APPLICABLE, not_for(attack.kinds, kinds), None))
    return rows


def audits_table(audits: Sequence[Listed], not_run: Mapping[str, str], failed: Sequence[Failed] = ()) -> pa.Table:
    """Return the dossier's list as tables.AUDITS; the arguments are those of `rows_of`."""
    without = [
        {"attack": "", "state": FAILED, "reason": one.problem, "title": one.title, "audited": one.audit or None}
        for one in failed
    ]
    rows = [_row(*row) for row in rows_of(audits, not_run, failed)]
    return pa.Table.from_pylist([*without, *rows], schema=AUDITS_TABLE.arrow)


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
        "models": one.models.trained,
        "external": list(one.models.external),
        "digests": list(one.models.digests),
        "data": run.ledger.data,
        "seeds": seeds_in(run.recipe),
        "utility": one.utility,
    }
