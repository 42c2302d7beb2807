"""Recomputation of a finished run from its recipe and data on this machine, and comparison with what the store holds.

Stages compute with the threads that are recorded of them. With the same code and libraries, on a processor of the same kind,
every file then comes out equal byte for byte, but for pages, which state times. Elsewhere floats are rounded differently, and
the tables of results are compared by value.
"""

import functools
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from memlib.audits import audit_of
from memlib.audits.last_stages import REPORT_FILE
from memlib.errors import UserError
from memlib.pipeline.definitions import pinned_codes
from memlib.pipeline.old_code import other_libraries
from memlib.pipeline.stage import AnyStage
from memlib.recipes.request import AuditRequest
from memlib.running.absences import Problem
from memlib.running.checks import and_more, keys_in, with_members
from memlib.running.in_process import StepsRunner, carry_out_here
from memlib.running.verification import Verification
from memlib.runs.erasures import check_recipe, erased_part
from memlib.runs.index import find_run, refs_of
from memlib.runs.records import RunRecord
from memlib.runs.run import Run
from memlib.sanitize import count_of, plain
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store
from memlib.store.permissions import PRIVATE, make_folder, user_folder
from memlib.store.records import ArtifactRecord
from memlib.tables import RUNS

TOLERANCE = 1e-3  # of floats above 1 relatively, of others absolutely, or relative to a column of which all are below 1
MOST_THREADS = 256
DOSSIER = "dossier"
IN_ROUNDING = ("device", "halved", "stack_size", "world_size")  # facts on which rounding depends, beside the machine


@dataclass(frozen=True)
class Recomputed:
    """The result of recomputing a run.

    Attributes:
        artifacts: number of artifacts of the run, and of the runs that it joins or compares.
        equal: number of them of which all files but pages are equal byte for byte.
        difference: largest difference of floats in its tables of results, see TOLERANCE.
        because: why other artifacts may be rounded differently: libraries, processors and code that differ.
        problems: what differs though nothing explains it, and what cannot be compared.
    """

    artifacts: int
    equal: int
    difference: float
    because: list[str]
    problems: list[Problem]

    @property
    def sentence(self) -> str:
        """The result in words."""
        said = f"recomputed here: {self.equal} of {count_of(self.artifacts, 'artifact')} came out equal byte for byte"
        if self.equal == self.artifacts or not self.because:
            return said
        return f"{said}, as there were {', '.join(self.because)}; its results differ by at most {self.difference:.2g}"


def recompute(store: Store, name: str, *, quiet: bool, say: Callable[[str], None]) -> Recomputed:
    """Compute a finished run again from its recipe and data, in this process, and compare all that it computed.

    What is computed lies in the user's cache folder, so that an interrupted recomputation can be resumed; at the end it is
    deleted unless it differs. Code that the recipe names runs only if the user has allowed it, as for `memlib resume`.

    Args:
        name: name of the run, or a unique prefix of it.
        quiet: do not print a line for each stage.
        say: called with warnings.

    Raises:
        UserError: when the data, or files that the recipe names, cannot be used as they are, or the run is a dossier.
        RunError: when the recipe was redacted, or a stage fails.
    """
    run = find_run(store, name)
    if run.audit == DOSSIER:  # which names the manifests of its members, with their times, and other runs of the store
        members = ", ".join(sorted(one for one in run.cells.values() if one is not None))
        raise UserError(f"run {run.run} is a dossier: recompute the runs that it joins ({members}), one by one")
    check_recipe(erased_part(store, run.run), run)
    runs = with_members(store, run)
    made = store.artifacts.manifests_of(refs_of(*runs))
    request = AuditRequest.read(run.recipe, expected=audit_of(run.audit))
    device = "" if any("gpu" in _machine(manifest) for manifest in made.values()) else "cpu"
    folder = user_folder("cache") / "recomputed" / run.run
    make_folder(folder.parent, PRIVATE.folder)
    here = Store(str(folder))
    runner_class = functools.partial(_AsRecorded, made)
    again = carry_out_here(request, here, RunOptions(quiet=quiet), device=device, say=say, runner_class=runner_class)
    found = _compared(store, runs, made, here, with_members(here, again))
    if any(not problem.is_unchecked for problem in found.problems):
        say(f"what was computed here is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return found


def with_recomputed(found: Verification, store: Store, name: str, *, quiet: bool, say: Callable[[str], None]) -> Verification:
    """Add to the verification of a run what comes of recomputing it, see `recompute`, unless it has changed.

    Args:
        found: the verification of the run by itself.
    """
    if found.changed:
        return replace(found, recomputed="not recomputed, as it has changed since it was committed")
    again = recompute(store.trusting(None), name, quiet=quiet, say=say)
    return replace(found, problems=[*found.problems, *again.problems], recomputed=again.sentence)


class _AsRecorded(StepsRunner):
    """A runner that gives each stage the threads with which it was computed before."""

    def __init__(self, made: Mapping[Ref, ArtifactRecord], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._made = made

    def _compute(self, stage: AnyStage, ref: Ref, threads: int) -> None:
        recorded = _machine(self._made[ref]).get("threads") if ref in self._made else None
        if isinstance(recorded, int) and 0 < recorded <= MOST_THREADS:
            threads = recorded
        super()._compute(stage, ref, threads)


def _machine(manifest: ArtifactRecord) -> Mapping[str, Any]:
    """Return what an artifact records of the machine that computed it."""
    machine = manifest.facts.get("machine", {"threads": manifest.facts.get("threads")})
    return machine if isinstance(machine, dict) else {}


def _compared(
    store: Store, runs: Sequence[RunRecord], made: Mapping[Ref, ArtifactRecord], here: Store, again: Sequence[RunRecord]
) -> Recomputed:
    """Compare runs of a store with the same runs that were computed here.

    Args:
        runs: the run, and those that it joins or compares.
        made: the manifests of their artifacts.
        here: the store of what was computed here.
        again: the runs that were computed here.
    """
    mine = here.artifacts.manifests_of(refs_of(*again))
    others = [Problem(str(ref), problem, unchecked) for ref, problem, unchecked in _of_other_keys(made, mine)]
    unlike = [ref for ref in made.keys() & mine.keys() if _unlike(made[ref], mine[ref])]
    because: dict[str, None] = {}
    problems: list[Problem] = []
    for ref in sorted(unlike, key=str):
        if made[ref].reads != mine[ref].reads:  # as what it reads came out differently
            continue
        reasons = list(_reasons(ref, made[ref], mine[ref]))
        because |= dict.fromkeys(reasons)
        if not reasons:
            names = sorted(_unlike(made[ref], mine[ref]))
            problems.append(Problem(str(ref), f"came out differently here: {names[0]}{and_more(names)}"))
    difference = 0.0
    if not others:
        difference, found = _of_results(store, runs, here, {one.run: one for one in again})
        problems += [Problem(what, problem, is_unchecked=bool(because)) for what, problem in found]
    equal = len(made.keys() & mine.keys()) - len(unlike)
    return Recomputed(len(made), equal, difference, list(because), [*others, *problems])


def _of_other_keys(made: Mapping[Ref, ArtifactRecord], mine: Mapping[Ref, ArtifactRecord]) -> Iterator[tuple[Ref, str, bool]]:
    """Yield the first artifacts to which none computed here corresponds, why, and whether only their version differs."""
    lost = {ref.key for ref in made.keys() - mine.keys()}
    for ref in sorted(made.keys() - mine.keys(), key=str):
        before = made[ref]
        if not lost.isdisjoint(keys_in(before.inputs)):
            continue
        others = [mine[one] for one in mine.keys() - made.keys() if one.stage == ref.stage]
        if any(other.version != before.version for other in others):
            yield ref, f"is of version {before.version} of its stage, which here has version {others[0].version}", True
        elif changed := sorted({plain(part) for other in others for part in _changed_parts(before, other)}):
            yield ref, f"would be computed from other {', '.join(changed)} here than it was", False
        else:
            yield ref, "is not computed here", False


def _changed_parts(before: ArtifactRecord, now: ArtifactRecord) -> set[str]:
    """Return the names of the parts of the spec and the inputs that differ between two artifacts of a stage."""
    first, second = ({**(one.spec if isinstance(one.spec, dict) else {}), **one.inputs} for one in (before, now))
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


def _unlike(before: ArtifactRecord, now: ArtifactRecord) -> set[str]:
    """Return the files that differ, without pages."""
    names = {name for name in before.files.keys() | now.files.keys() if name != REPORT_FILE}
    return {name for name in names if before.files.get(name) != now.files.get(name)}


def _reasons(ref: Ref, before: ArtifactRecord, now: ArtifactRecord) -> Iterator[str]:
    """Yield what explains that an artifact is rounded differently here."""
    yield from other_libraries(before, now.libraries)
    facts = [{**{name: one.facts.get(name) for name in IN_ROUNDING}, **_machine(one)} for one in (before, now)]
    for name in facts[1]:
        there, value = facts[0].get(name), facts[1][name]
        if there != value:
            yield f"{name.replace('_', ' ')} {plain(str(there))} (here {value})"
    known = pinned_codes().get(ref.stage_name, set())
    codes = {(one.version, one.definitions) for one in (before, now)}
    if (len(codes) > 1 and not codes <= known) or before.named != now.named:
        yield f"other code of {ref.stage_name}"


def _of_results(
    store: Store, runs: Sequence[RunRecord], here: Store, again: Mapping[str, RunRecord]
) -> tuple[float, list[tuple[str, str]]]:
    """Compare the published tables of runs by value; return the largest difference, and what lies beyond the tolerance."""
    largest, found = 0.0, list[tuple[str, str]]()
    for run in runs:
        other = again.get(run.run)
        if other is None:
            found.append((f"run {run.run}", "was not computed here: what it joins or compares has another name"))
            continue
        if (run.verdict, run.problems) != (other.verdict, other.problems):
            found.append((f"run {run.run}", "has another verdict here"))
        mine, theirs = Run(store, run).tables, Run(here, other).tables
        for name in sorted((mine.keys() | theirs.keys()) - {RUNS.name}):
            both = name in mine and name in theirs
            difference = _difference(mine[name], theirs[name]) if both else math.inf
            largest = max(largest, difference)
            if difference > TOLERANCE:
                found.append((f"run {run.run}", f"its table {name} differs here{_by(difference)}"))
    return largest, found


def _by(difference: float) -> str:
    return f" by {difference:.2g}" if math.isfinite(difference) else " in more than its numbers"


def _difference(first: pa.Table, second: pa.Table) -> float:
    """Return the largest difference of floats, relative as for TOLERANCE; infinity if anything else differs."""
    if first.schema.remove_metadata() != second.schema.remove_metadata() or first.num_rows != second.num_rows:
        return math.inf
    if first.equals(second):
        return 0.0
    columns = zip(first.to_pydict().values(), second.to_pydict().values(), strict=True)
    return max((_apart(mine, theirs, _largest(mine) or 1.0) for mine, theirs in columns), default=0.0)


def _largest(value: Any) -> float:
    """Return the largest finite float of a value, at any depth, without its sign; 0 if there is none."""
    if isinstance(value, float):
        return abs(value) if math.isfinite(value) else 0.0
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((_largest(one) for one in inner), default=0.0)


def _apart(first: Any, second: Any, largest: float) -> float:
    """Return the largest relative difference of the floats of two values, at any depth; infinity if anything else differs.

    Args:
        largest: the largest float of the column.
    """
    if isinstance(first, float) and isinstance(second, float):
        if first == second or (math.isnan(first) and math.isnan(second)):
            return 0.0
        scale = min(max(1.0, abs(first), abs(second)), largest)
        return abs(first - second) / scale if math.isfinite(first - second) else math.inf
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max((_apart(mine, theirs, largest) for mine, theirs in zip(first, second, strict=True)), default=0.0)
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return max((_apart(first[name], second[name], largest) for name in first), default=0.0)
    return 0.0 if first == second else math.inf
