"""The gate: the rules of a policy, applied to finished runs of a store, and to the run of a baseline.

Only manifests and published tables are read. Nothing passes that is missing, stale or underpowered: the outcome is undecided.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.subject import models_in
from memlib.audits.judging import Judged, Outcome, audit_by, findings_of, has, joint_outcome, judged_by
from memlib.audits.policy import AuditRules, Policy
from memlib.errors import UserError
from memlib.recipes.files import beside, read_spec
from memlib.recipes.request import AuditRequest
from memlib.running.baseline import check_baseline, compared
from memlib.runs.index import Runs, find_run, list_runs, measured_at, read_run, rows_of
from memlib.runs.records import RunEntry, RunRecord
from memlib.runs.run import Run
from memlib.specs.question import asks_but_seeds, asks_digest
from memlib.store import Store

DAY = 86_400.0  # seconds
SKEW = 300.0  # seconds by which clocks may differ


@dataclass(frozen=True)
class AuditDecision:
    """The decision about one run, or about a run that is missing.

    Attributes:
        rules: the rules for its audit.
        run: the run's manifest; None if the store has no such run.
        findings: the decision of every rule.
    """

    rules: AuditRules
    run: RunRecord | None
    findings: list[Judged]

    @property
    def outcome(self) -> Outcome:
        """Joint outcome of the rules."""
        return joint_outcome(judged.outcome for judged in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        findings = [judged._asdict() for judged in self.findings]
        return {
            "audit": self.rules.audit, "title": None if self.run is None else self.run.title,
            "run": None if self.run is None else self.run.run, "outcome": self.outcome, "findings": findings,
        }  # fmt: skip


@dataclass(frozen=True)
class GateDecision:
    """The decision of a policy.

    Attributes:
        policy: the policy.
        audits: the decisions about the runs, in the order of the policy.
    """

    policy: Policy
    audits: list[AuditDecision]

    @property
    def outcome(self) -> Outcome:
        """Outcome of the build: failed if any rule failed, passed if all rules passed, otherwise undecided."""
        return joint_outcome(audit.outcome for audit in self.audits)

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        return {
            "policy": self.policy.title, "outcome": self.outcome, "audits": [audit.as_json() for audit in self.audits],
        }  # fmt: skip


def read_policy(path: Path) -> Policy:
    """Read and validate a policy; recipes that it names are looked for beside it.

    Raises:
        UserError: if there is no such file, or its content is not valid.
    """
    policy = read_spec(path, Policy, "policy")
    for rules in policy.audits:
        if rules.non_inferiority and AUDITS[rules.audit].trainings is None:
            able = " and ".join(name for name, audit in AUDITS.items() if audit.trainings is not None)
            raise UserError(
                f"non_inferiority cannot be tested for {rules.audit}, whose tables hold no values of independent "
                f"trainings; it can for {able} (in {path})"
            )
    named = [
        rules if rules.recipe is None else rules.model_copy(update={"recipe": beside(path, rules.recipe)})
        for rules in policy.audits
    ]
    return policy.model_copy(update={"audits": tuple(named)})


def gate(
    policy: Policy,
    store: Store,
    *,
    now: float,
    runs: Sequence[str] = (),
    data: str | None = None,
    baseline: str | None = None,
) -> GateDecision:
    """Decide by a policy from finished runs of a store whether a build passes.

    Args:
        now: the time, in seconds since 1970, from which the age of runs is counted.
        runs: ids of runs or unique prefixes; by default, of each required audit, the newest run.
        data: digest of data, or its first digits, on which the newest runs are looked for; by default, the policy's.
        baseline: id of the run, or a unique prefix, with which runs of the same audit are compared.

    Raises:
        UserError: if the policy has no rule for a given run, asks for a comparison without a baseline, or names a finding
            that a run does not have.
    """
    if runs and data is not None:
        raise UserError("give either runs or --data, not both: runs that are named are judged whatever their data are")
    before = None if baseline is None else Run(store, find_run(store, baseline))
    check_baseline(policy, before)
    listed = list_runs(store)
    entries = listed.entries
    current = {name for name, row in rows_of(entries).items() if row["current"]}
    named = {find_run(store, run).run for run in runs}
    pool = [entry for entry in entries if entry["run"] in named] if runs else _on_data(entries, data or policy.data)
    decisions, judged = [], set()
    for rules in policy.audits:
        found = _matching(pool, rules)
        records = [read_run(store, entry["run"]) for entry in (found if runs else found[:1])]
        judged |= {record.run for record in records}
        for record in records:
            rows = [*_freshness(store, record, policy, before, now=now, is_current=record.run in current)]
            rows += [] if rules.model is None else [_of_model(store, record, rules.model)]
            rows += _of_run(Run(store, record), rules, before)
            rows += [] if runs or not listed.damaged else [_unread(listed)]
            decisions.append(AuditDecision(rules, record, rows))
        others = [] if runs else [one for one in found[1:] if one["run"] in current]
        for record in _alike(store, others, records[0]) if others else ():
            decisions.append(AuditDecision(rules, record, _of_run_alike(Run(store, record), rules)))
        if not records:
            decisions.append(AuditDecision(rules, None, [_missing(rules, store)]))
    if unused := named - judged:
        raise UserError(
            f"the policy has no rule for run {min(unused)}; leave it out, or see its audit, title and recipe there"
        )
    return GateDecision(policy, decisions)


def _on_data(entries: Iterable[RunEntry], data: str | None) -> list[RunEntry]:
    return [entry for entry in entries if data is None or entry["ledger"]["data"].startswith(data)]


def _matching(pool: Iterable[RunEntry], rules: AuditRules) -> list[RunEntry]:
    """Return the runs of the audit with the title and the recipe that the rules name, newest first."""
    found = [entry for entry in pool if audit_of(entry["audit"]) == rules.audit]
    if rules.title is not None:
        found = [entry for entry in found if entry["title"] == rules.title]
    if rules.recipe is not None:
        recipe = AuditRequest.read(rules.recipe, expected=rules.audit).recipe
        digest = asks_digest(recipe.model_dump(mode="json"))
        found = [entry for entry in found if entry["asks"] == digest]
    return found


def _alike(store: Store, entries: Iterable[RunEntry], newest: RunRecord) -> list[RunRecord]:
    """Return the others of a rule's runs on the same data that differ in seeds alone, or examine the same given model.

    Else whoever repeats an audit with other seeds until it passes would pass.
    """
    others = [
        read_run(store, entry["run"])
        for entry in entries
        if entry["run"] != newest.run and entry["audit"] == newest.audit and entry["ledger"]["data"] == newest.ledger.data
    ]
    given, asked = set(models_in(store, newest).external), asks_but_seeds(newest.recipe)
    return [
        run
        for run in others
        if asks_but_seeds(run.recipe) == asked or (given and set(models_in(store, run).external) == given)
    ]


def _of_run_alike(run: Run, rules: AuditRules) -> list[Judged]:
    """Judge verdict and ceilings of a run beside the newest one: what it finds counts, whatever its age and power."""
    findings = findings_of(run)
    ceilings = tuple(text for text in rules.ceilings if has(run, findings, text))
    only = rules.model_copy(update={"ceilings": ceilings, "detectable": None, "bound": None, "n": None})
    return list(judged_by(run, only, is_lost=audit_by(run).is_lost_by_looks(run.record)))


def _of_model(store: Store, run: RunRecord, digest: str) -> Judged:
    """Return whether a run examined a file of a model: weights or outputs that were given, or weights that it trained."""
    same = any(one.startswith(digest) for one in models_in(store, run).digests)
    said = f"the run {'examined' if same else 'did not examine'} a file with this sha256"
    return Judged(f"model={digest[:12]}", "run", {}, "passed" if same else "undecided", said)


def _unread(listed: Runs) -> Judged:
    """Return that runs cannot be read: any of them may be newer than the run that is judged in its place."""
    return Judged("readable", "run", {}, "undecided", listed.warning())


def _missing(rules: AuditRules, store: Store) -> Judged:
    return Judged("required", "run", {}, "undecided", f"there is no run of {rules.named} among those in {store.uri}")


def _freshness(
    store: Store, run: RunRecord, policy: Policy, baseline: Run | None, *, now: float, is_current: bool
) -> Iterator[Judged]:
    """Yield whether a run is recent, current, and on the data of the policy and of the baseline of its audit."""

    def row(name: str, passes: bool, reason: str) -> Judged:
        return Judged(name, "run", {}, "passed" if passes else "undecided", reason)

    if policy.max_age_days is not None:
        days = (now - measured_at(store, run)) / DAY
        said = f"its numbers are {days:.1f} days old" if days >= 0 else f"its numbers are dated {-days:.1f} days ahead"
        yield row(f"max_age_days={policy.max_age_days:g}", -SKEW / DAY <= days <= policy.max_age_days, said)
    if policy.current:
        said = "no newer run has" if is_current else "stale: a newer run has"
        yield row("current", is_current, f"{said} the same recipe and data")
    if policy.data is not None:
        same = run.ledger.data.startswith(policy.data)
        yield row(f"data={policy.data[:12]}", same, _said_of_data(run, same, "the policy names"))
    if baseline is not None and baseline.audit == run.audit:
        same = run.ledger.data == baseline.record.ledger.data
        yield row("data=baseline", same, _said_of_data(run, same, "the baseline audits"))


def _said_of_data(run: RunRecord, same: bool, who: str) -> str:
    return f"the run audits {'the' if same else 'other'} data {run.ledger.data[:12]}{' that' if same else ' than'} {who}"


def _of_run(run: Run, rules: AuditRules, baseline: Run | None) -> Iterator[Judged]:
    yield from judged_by(run, rules, is_lost=audit_by(run).is_lost_by_looks(run.record))
    for rule in rules.non_inferiority:
        assert baseline is not None, "checked before"
        yield from compared(run, baseline, rule)
