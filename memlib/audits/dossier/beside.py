"""Runs beside a dossier: those that do not belong to it, are about its subject, and say otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.recipe import LEVEL
from memlib.audits.dossier.subject import AuditedModels, models_in, naming
from memlib.findings import BOUNDED, SHOWN, Finding, Findings
from memlib.runs.index import list_runs, read_run, refs_of
from memlib.runs.ledger import Past, Same
from memlib.runs.records import RunEntry, RunRecord
from memlib.store import Store


@dataclass(frozen=True)
class Beside:
    """A run that is about the subject of a dossier without belonging to it."""

    run: RunRecord  #: its manifest.
    store: str  #: address of its store; "" for that of the dossier.
    passes: bool  #: whether it shows memory at its level and at that of dossiers, earlier looks allowed for.
    reason: str  #: why it does not count, if it says that it shows memory; "" otherwise.

    @property
    def word(self) -> str:
        """The word of its verdict."""
        assert self.run.verdict is not None, "only runs with a verdict are compared"
        return self.run.verdict.word

    @property
    def name(self) -> str:
        """Its title, its id, and the store that holds it if that is another one."""
        return f"{self.run.title} (run {self.run.run}{f' in {self.store}' if self.store else ''})"


def passes(run: RunRecord, headline: Finding) -> bool:
    """Return whether a run shows memory at the level of its recipe and at that of dossiers.

    Args:
        headline: the test that decides its verdict, if it has one.
    """
    p = headline.p_adjusted if headline.is_test else None
    said = None if run.verdict is None else run.verdict.word
    return said == SHOWN and p is not None and p <= min(LEVEL, headline.alpha or 0.0)


def runs_beside(
    store: Store,
    entries: Sequence[RunEntry],
    members: Sequence[RunRecord],
    models: Sequence[AuditedModels],
    *,
    address: str = "",
) -> list[Beside]:
    """Return the runs of a store that show or bound memory of what a dossier examines, and that do not belong to it.

    Args:
        entries: all runs of the store.
        members: the runs of the dossier.
        models: the models of each.
        address: address of the store, if it is another one than that of the dossier.
    """
    own = set() if address else {run.run for run in members}
    said = [one for one in entries if _word_in(one) in (SHOWN, BOUNDED) and one["run"] not in own and _is_audit(one)]
    is_same_data = [Same(run.ledger) for run, of_run in zip(members, models, strict=True) if not of_run.external]
    given = {of_run.external for of_run in models if of_run.external}
    files = {digest for one in given for digest in one}
    named = naming(store, said, files) if files else frozenset()
    found = []
    for entry in said:
        past = Past.of(entry)
        is_near = bool(refs_of(entry) & named) or any(is_same(past) for is_same in is_same_data)
        if not is_near:
            continue
        run = read_run(store, entry["run"])
        external = set(models_in(store, run).external)
        if _examines(external, given) or (not external and any(is_same(past) for is_same in is_same_data)):
            found.append(_read(run, address))
    return sorted(found, key=lambda one: (one.word != SHOWN, one.run.finished))


def beside_in(
    store: Store, entries: Sequence[RunEntry], members: Sequence[RunRecord], addresses: Sequence[str]
) -> list[Beside]:
    """Return the runs beside a dossier in its store, of which all runs are given, and in stores at further addresses."""
    models = [models_in(store, run) for run in members]
    found = runs_beside(store, entries, members, models)
    for address in addresses:
        other = Store(address)
        found += runs_beside(other, list_runs(other).entries, members, models, address=other.uri)
    return found


def _word_in(entry: RunEntry) -> str:
    return "" if entry["verdict"] is None else entry["verdict"]["word"]


def _is_audit(entry: RunEntry) -> bool:
    name = audit_of(entry["audit"])
    return name in AUDITS and not AUDITS[name].has_cells


def _examines(external: set[str], given: set[tuple[str, ...]]) -> bool:
    return bool(external) and any(external <= set(one) or set(one) <= external for one in given)


def _read(run: RunRecord, address: str) -> Beside:
    audit, findings = AUDITS[audit_of(run.audit)], Findings.of_run(run)
    head, is_lost = audit.decisive(findings), audit.is_lost_by_looks(run)
    shows = run.verdict is not None and run.verdict.word == SHOWN
    passed = passes(run, head) and not is_lost
    reason = ""
    if shows and not passed:
        reason = "earlier looks at its data leave nothing of it" if is_lost else "its level is above that of dossiers"
    return Beside(run, address, passed, reason)


def contradicting(word: str, beside: Sequence[Beside]) -> Iterator[Beside]:
    """Yield the runs whose word contradicts that of a dossier; every word but "shown" is contradicted by a shown run."""
    yield from (one for one in beside if one.word == (BOUNDED if word == SHOWN else SHOWN))
