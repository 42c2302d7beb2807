"""Execution of stages: compute and commit the artifacts that are missing. Only the store records which work is done."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.states import Completed

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.pipeline.stage import NO_CELLS, AnyArtifact, AnyStage, Artifact, Ended, Out, Stage
from memlib.pipeline.tables import Tables
from memlib.running.publishing import publish_audit, said_of_erased
from memlib.running.reuse import Reuse, is_damaged
from memlib.running.threads import threads_of
from memlib.runs.records import RunRecord
from memlib.specs import Resources, Spec
from memlib.store import Ref, Store
from tasks.cluster import Part, map_on_ray
from tasks.display import shown
from tasks.progress import Bars, duration
from tasks.remote import compute_there
from tasks.runtime import Context
from tasks.training import train_missing

log = logging.getLogger("memlib")
SHOWN_LABELS = 4
LONGEST_NAMES = 60  # characters of the labels in a line of progress; longer ones are left out
Refs = list[Ref]


@dataclass(frozen=True)
class StageRunner:
    """Runner of an audit's stages, shown in Prefect and computed on Ray or by the driver, depending on a stage's place."""

    context: Context  #: store, machines and display of the run.

    @property
    def store(self) -> Store:
        """Store of the artifacts."""
        return self.context.store

    @property
    def resources(self) -> Resources:
        """Machines, which have no effect on results."""
        return self.context.resources

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage unless its artifact is committed; return the artifact."""
        return self.run_all([stage])[0]

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run those parts of a step that are not committed, and return the artifacts of all parts in the order given.

        Each part commits when it is done, so an interrupted run loses at most the parts in progress. A failed part does not
        stop the others.

        Raises:
            UserError, RunError: the first failure, with the number of failures.
        """
        if not stages:
            return []
        kind, work = type(stages[0]), functools.partial(_run_all, self.context, stages)
        refs: Refs = as_task(kind.title, work, label=_label(stages))
        return [Artifact(self.store, ref, kind) for ref in refs]

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Mark artifacts whose files may be evicted once the run, or its sweep, has ended."""
        self.context.shared.transient += artifacts

    def warn(self, text: str) -> None:
        """Print a warning, on a terminal as well as in a log."""
        self.context.warn(text)

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord:
        """Publish a run's tables and page, and return the run's manifest."""
        if said := said_of_erased(self.store, artifacts.values()):
            self.warn(said)
        work = functools.partial(publish_audit, self.store, self.context.work, recipe, scores, report, artifacts, cells=cells)
        published: RunRecord = as_task("publish", work)
        return published


def _label(stages: Sequence[AnyStage]) -> str:
    """Return the name of a step in Prefect, with its models, checkpoints or settings."""
    title, named = type(stages[0]).title, _listed(stage.label for stage in stages)
    parts = f" ({len(stages)} parts)" if len(stages) > 1 else ""
    return f"{title}: {named}{parts}" if named else f"{title}{parts}"


def _line_name(context: Context, stages: Mapping[Ref, AnyStage]) -> str:
    """Return the name of a step in lines of progress, in words; in a verbose run, with its artifacts."""
    named = _listed(f"{ref.stage} {ref.key[:8]}" if context.options.verbose else stage.label for ref, stage in stages.items())
    title = next(iter(stages.values())).title
    return f"{title} ({named})" if 0 < len(named) <= LONGEST_NAMES or context.options.verbose else title


def _listed(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, names)))
    more = [f"and {len(distinct) - SHOWN_LABELS} more"] if len(distinct) > SHOWN_LABELS else []
    return "; ".join([*distinct[:SHOWN_LABELS], *more])


def as_task(name: str, work: Callable[[], Any], *, label: str = "") -> Any:
    """Do some work as a Prefect task, or without Prefect if its server is gone.

    Prefect's caching is off: its records are independent of the store and could refer to artifacts that no longer exist.
    """
    with TagsContext(current_tags=set()):  # each tag of a task costs two calls
        named = _task_of(name).with_options(task_run_name=(label or name).replace("{", "{{").replace("}", "}}"))
        outcome = shown(lambda within: named(within, return_state=True).result(), work)
    return outcome.data if isinstance(outcome, State) else outcome


@functools.cache
def _task_of(name: str) -> Any:
    def carry_out(work: Callable[[], Any]) -> Any:
        return work()

    carry_out.__qualname__ = name  # Prefect distinguishes tasks by this name
    return task(name=name, cache_policy=NO_CACHE)(carry_out)


def _refs_of(context: Context, stages: Sequence[AnyStage]) -> Refs:
    assert len({type(stage) for stage in stages}) == 1, "parts of one step are of one class"
    refs = [stage.identity.ref for stage in stages]
    for ref, stage in zip(refs, stages, strict=True):
        context.shared.known.add(ref)
        if stage.transient:
            context.shared.stages[ref], context.shared.parts[ref] = stage, len(set(refs))
    return refs


def _run_all(context: Context, stages: Sequence[AnyStage]) -> Refs | State[Refs]:
    """Compute the missing artifacts and return all refs, in the state Cached if none was missing."""
    kind, refs = type(stages[0]), _refs_of(context, stages)
    name = kind.declared.name
    with context.turn(name):
        missing = {ref: stage for ref, stage in zip(refs, stages, strict=True) if not committed(context, ref, kind)}
        reused = [ref for ref in dict.fromkeys(refs) if ref not in missing]
        if reused:
            found = {ref: stage for ref, stage in zip(refs, stages, strict=True) if ref not in missing}
            context.note(f"{_line_name(context, found)}: found in the store")
            for line in context.shared.old_code.note(context.store, reused[0], stages[refs.index(reused[0])]):
                context.warn(line)
        if missing:
            _make_again(context, list(missing.values()))
            with _at_work(context, missing) as bars:
                _compute(context, kind, missing, len(set(refs)), bars)
        context.work.reused += [str(ref) for ref in reused]
        for ref in reused:
            context.journal.note("cached", ref.stage, ref.key)
    return refs if missing else Completed(name="Cached", message="found in the store", data=refs)


def committed(context: Context, ref: Ref, kind: type[AnyStage]) -> bool:
    """Return whether an artifact is reused, see `Reuse.holds`."""
    shared = context.shared
    return Reuse(context.store, shared.known, context.options, context.warn, shared.renewed).holds(ref, kind)


def _compute(context: Context, kind: type[AnyStage], missing: Mapping[Ref, AnyStage], of: int, bars: Bars) -> None:
    """Compute the missing parts of a step that has `of` parts."""
    (where,) = {stage.where for stage in missing.values()}
    warn = functools.partial(context.warn, names_data=True)
    if where == "fleet":
        train_missing(context, missing, of, bars)
    elif where in ("anywhere", "cores") and (len(missing) > 1 or context.resources.ray_address is not None):
        near = _nodes_near(context, list(missing.values()))
        parts = [
            Part(f"{stage.label or 'part'} {number}", (context.store, ref, context.record_of(stage), stage.fill), node)
            for number, ((ref, stage), node) in enumerate(zip(missing.items(), near, strict=True), start=1)
        ]
        for line in map_on_ray(context, kind.declared.name, compute_there, parts, of, bars, gpu=where == "anywhere"):
            warn(line)
    else:
        bars.expect(len(missing))
        threads = threads_of(context.resources, next(iter(missing.values())), of)
        for number, (ref, stage) in enumerate(missing.items(), start=1):
            record, started = context.record_of(stage), time.monotonic()
            with context.store.artifacts.write(ref, **record) as attempt:
                attempt.progress, attempt.warn = functools.partial(bars.move, stage.label or f"part {number}"), warn
                stage.fill(attempt, context.device, threads)
            context.spend(1, time.monotonic() - started)
            for line in kind.described(Artifact(context.store, ref, kind)):
                log.info("%s: %s", kind.title, line, extra={"run": context.run, "stage": ref.stage, "key": ref.key})


def _make_again(context: Context, readers: Sequence[AnyStage]) -> None:
    """Recompute artifacts whose files were evicted and are now needed again."""
    read = sorted({artifact.ref for stage in readers for artifact in stage.reads_transient}, key=str)
    for name in dict.fromkeys(ref.stage for ref in read):
        with context.turn(name):  # another cell may be about to recompute the same artifacts
            complete = {ref: context.store.artifacts.is_complete(ref) for ref in read if ref.stage == name}
            evicted = {ref: context.shared.stages[ref] for ref, is_complete in complete.items() if not is_complete}
            if not evicted:
                continue
            context.note(f"{_line_name(context, evicted)}: recomputing, as evicted files are needed again")
            for ref in evicted:
                if not context.store.artifacts.is_complete(ref):  # another driver may have recomputed it meanwhile
                    context.discard(ref, evicted=True)
            first, kind = next((ref, type(stage)) for ref, stage in evicted.items())
            with _at_work(context, evicted) as bars:
                _compute(context, kind, evicted, context.shared.parts[first], bars)


@contextlib.contextmanager
def _at_work(context: Context, stages: Mapping[Ref, AnyStage]) -> Iterator[Bars]:
    """Record and show that artifacts of a stage are being computed, then that they are done or why they failed."""
    refs, started = list(stages), time.monotonic()
    stage, title, name = refs[0].stage, stages[refs[0]].title, _line_name(context, stages)
    key = refs[0].key if len(refs) == 1 else ""
    context.journal.note("computing", stage, key, count=len(refs))
    context.begin(f"{name}: started{f', {len(refs)} parts' if len(refs) > 1 else ''}")
    try:
        with context.bars(stage, title) as bars:
            yield bars
    except BaseException as error:
        problem = str(error) if isinstance(error, UserError | RunError) else type(error).__name__
        context.journal.note("failed", stage, key, problem=problem)
        ended = "failed" if isinstance(error, Exception) else "stopped"
        context.note(f"{name}: {ended} after {duration(time.monotonic() - started)}", logging.ERROR)
        if isinstance(error, CorruptArtifact) and error.ref is not None and is_damaged(context.store, error.ref):
            context.discard(error.ref)  # the damage was found while reading; the next run recomputes the artifact
        raise
    seconds = time.monotonic() - started
    context.work.computed += [str(ref) for ref in refs]
    context.journal.note("computed", stage, key, count=len(refs), seconds=round(seconds, 2))
    context.note(f"{name}: done in {duration(seconds)}")


def _nodes_near(context: Context, stages: Sequence[AnyStage]) -> list[str | None]:
    """Return the id of the node that holds a copy of each stage's input; None on one machine or in a shared folder."""
    if context.store.is_local or context.resources.ray_address is None:
        return [None] * len(stages)
    refs = [stage.near for stage in stages]
    workers = {ref: context.store.artifacts.manifest(ref).facts.get("worker", {}) for ref in set(refs) if ref is not None}
    return [None if ref is None else workers[ref].get("node_id") for ref in refs]
