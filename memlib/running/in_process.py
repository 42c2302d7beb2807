"""Audits in the calling process, without Prefect and Ray: stages one after another, with the artifacts of every engine."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memlib.audits.arrangement import body_of, check_stages
from memlib.errors import RunError, UserError
from memlib.pipeline.stage import AnyStage, Artifact, Out, Stage
from memlib.recipes.named_files import require_files
from memlib.recipes.request import AuditRequest
from memlib.running.finished import finished
from memlib.running.limits import check_hours, check_time
from memlib.running.reuse import evict, going_on
from memlib.running.runners import PlainRunner
from memlib.running.threads import settings_of
from memlib.runs.journal import Journal
from memlib.runs.plans import given_plan, unrecorded
from memlib.runs.records import RunRecord
from memlib.runs.requests import announced
from memlib.sanitize import plain
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store

LINE_SECONDS = 30.0  # between two lines of progress
MOST_LABELS = 4  # parts that a line names


def carry_out_here(
    request: AuditRequest,
    store: Store,
    options: RunOptions,
    *,
    device: str = "",
    say: Callable[[str], None],
    runner_class: "Callable[..., StepsRunner] | None" = None,
) -> RunRecord:
    """Run an audit in this process; if nothing is left to compute, publish the run again.

    Args:
        request: the audit, its recipe and the machine settings.
        store: store for artifacts, results and reports.
        options: what the run prints and recomputes.
        device: device on which PyTorch computes; by default a GPU if there is one and the resources do not exclude it.
        say: called with warnings.
        runner_class: the runner that carries it out, called with the arguments of `StepsRunner`, the default.

    Raises:
        UserError: if the recipe, the data, the store or the device cannot be used as they are.
        RunError: if a stage fails.
    """
    audit, recipe, resources = request.audit, request.recipe, request.resources
    store.check_writable()
    check_stages(audit, [*options.force, *resources.stages])
    plan = given_plan(options)
    record = None
    if not options.force:
        record = finished(audit, recipe, store, resources, say=say, plan=plan)
    if record is not None:
        return record
    require_files(recipe)
    import torch

    if not device:
        device = "cuda" if torch.cuda.is_available() and resources.gpu is not False else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device is {device!r}, but PyTorch finds no GPU on this machine; use 'cpu'")
    runner = (runner_class or StepsRunner)(store, torch.device(device), resources, plan, options)
    with announced(store, audit.name, recipe, resources, runner.computed, say=say, plan=plan, look=options.look) as run:
        runner.journal = Journal(store, run, {"title": str(getattr(recipe, "title", "")), "started": time.time()})
        try:
            record = going_on(lambda: body_of(audit)(runner, recipe), store, runner.known, runner.warn)
        except BaseException as error:
            for line in dict.fromkeys(runner.warnings):
                say(line)
            problem = str(error) if isinstance(error, UserError | RunError | OSError) else type(error).__name__
            runner.journal.end("failed" if isinstance(error, Exception) else "stopped", problem)
            raise
        runner.journal.end("completed")
    assert record is not None  # only plans return None
    for line in dict.fromkeys((*audit.limits(recipe), *runner.warnings, *runner.old_code.lines, *unrecorded(record, plan))):
        say(line)
    evict(store, runner.transient, resources, say=say)
    return record


class Worked:
    """The time that a run, with all its cells, has spent on computing artifacts."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._began: float | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block, also while it lasts."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._ended, self._began = self.seconds(), None

    def seconds(self) -> float:
        """Return the time so far."""
        return self._ended + (0.0 if self._began is None else time.monotonic() - self._began)


class StepsRunner(PlainRunner):
    """A runner that records and prints which step is under way, how far it has come, and how long it took."""

    journal: Journal  #: journal of the run.

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._begun: tuple[str, float] | None = None  # the step that is being computed: title, time of its start
        self._step, self._done, self._parts, self._said = "", 0, 1, 0.0
        self._worked = Worked()

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a step of one part."""
        return self.run_all([stage])[0]

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run the parts of a step, and print what was found and what was computed."""
        if not stages:
            return []
        name, before = stages[0].declared.name, len(self.computed)
        self._expect(name, len(stages))
        try:
            artifacts = super().run_all(stages)
        except BaseException as error:
            if self._begun is not None:
                problem = str(error) if isinstance(error, UserError | RunError) else type(error).__name__
                self.journal.note("failed", name, problem=problem)
                self._print(
                    f"{self._begun[0]}: {'failed' if isinstance(error, Exception) else 'stopped'} after {self._taken()}"
                )
            raise
        made = len(self.computed) - before
        if self._begun is None:
            self._print(f"{_line(stages)}: found in the store")
        else:
            seconds = round(time.monotonic() - self._begun[1], 2)
            self.journal.note("computed", name, count=made, seconds=seconds)
            self._print(f"{self._begun[0]}: done in {self._taken()}")
        if made < len(stages):
            self.journal.note("cached", name, count=len(stages) - made)
        return artifacts

    def _expect(self, name: str, parts: int) -> None:
        """Begin with a step of which nothing has been computed yet."""
        self._begun, self._step, self._done, self._parts = None, name, 0, parts

    def _make(self, stage: AnyStage, ref: Ref, parts: int) -> None:
        if stage.declared.name != self._step:
            self._print(f"{stage.title}: recomputing, as evicted files are needed again")
            super()._make(stage, ref, parts)
            return
        if self._begun is None:
            self._begun = stage.title, time.monotonic()
            self._said = time.monotonic()
            self.journal.note("computing", ref.stage, "" if parts > 1 else ref.key)
            self._print(f"{stage.title}{f' ({stage.label})' if stage.label and parts == 1 else ''}: started")
        self._check_limits(stage)
        super()._make(stage, ref, parts)
        self._done += 1
        self._show(ref.stage, self._done, self._parts, "")

    def _compute(self, stage: AnyStage, ref: Ref, threads: int) -> None:
        with self._worked.measuring():
            super()._compute(stage, ref, threads)

    def progress(self, stage: AnyStage, done: float, total: float) -> None:
        """Show how far the computation of a part has come, and stop it at a limit of its time."""
        self._check_limits(stage)
        if stage.declared.name != self._step:
            return
        if self._parts > 1:
            part = f"{stage.label or f'part {self._done + 1}'} {done:,.0f} of {total:,.0f}"
            self._show(stage.declared.name, self._done, self._parts, part)
        else:
            self._show(stage.declared.name, done, total, "")

    def _check_limits(self, stage: AnyStage) -> None:
        """Raise RunError if the run, or the step, has taken longer than its resources allow."""
        assert self._begun is not None
        check_hours(self.resources, self._worked.seconds())
        check_time(self.resources, settings_of(self.resources, stage), time.monotonic() - self._begun[1])

    def _show(self, name: str, done: float, total: float, note: str) -> None:
        self.journal.note("progress", name, done=done, total=total, note=note)
        if self._begun is not None and time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            self._print(f"{self._begun[0]}: {done:,.0f} of {total:,.0f}{f' ({note})' if note else ''}")

    def _taken(self) -> str:
        assert self._begun is not None
        return f"{max(time.monotonic() - self._begun[1], 0.1):.1f} s"

    def _print(self, text: str) -> None:
        if not self._options.quiet:
            print(plain(text), file=sys.stderr, flush=True)


def _line(stages: Sequence[AnyStage]) -> str:
    """Return the title of a step and the labels of its parts, if they are few."""
    labels = [label for label in dict.fromkeys(stage.label for stage in stages) if label]
    return f"{stages[0].title} ({'; '.join(labels)})" if 0 < len(labels) <= MOST_LABELS else stages[0].title
