"""A drill of failures that occur on a cluster: audit.sbatch on a Slurm with two nodes, started for it on this machine.

    python -m deployments.slurm.drill

Installs nothing; needs Linux, Slurm's and munge's programs, and no service of theirs. Everything is in a temporary folder and
on loopback, except Ray, which listens on all addresses and requires a token; all processes are ended afterwards. The nodes
share this machine: a step that is lost is killed, not cut off. Prints a table; takes half an hour.
"""

import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.local.processes import Unexpected, call, command_of, descendants, kill_marked, marked, wait_for
from deployments.local.services import environment_for
from deployments.local.steps import SAVED, UNEQUAL, latest_step, markdown, rehearse
from deployments.slurm.services import Cluster, missing, search_path, slurm

SCRIPT = Path(__file__).with_name("audit.sbatch")
TINY = Path(__file__).parents[1] / "local" / "tiny.yaml"
SWEEP = Path(__file__).with_name("sweep.yaml")
LONGER = {"training.epochs": 1500}  # minutes: long enough to be cut four times
DEJA_VU = ("deja-vu", "--recipe", str(TINY), *(part for key, value in LONGER.items() for part in ("--set", f"{key}={value}")))
EXPOSURE = ("sweep", "--recipe", str(SWEEP), "--cell", "1")
OVERRIDDEN = ("--cpus-per-task=1", "--gpus-per-node=0")  # 64 and 8 in audit.sbatch
ALONE = "import json, memlib, sys; memlib.run(sys.argv[1], store=sys.argv[2], changes=json.loads(sys.argv[3]), quiet=True)"


@dataclass
class Drill:
    """A cluster, with the job that is under way and the mark of all processes."""

    cluster: Cluster
    mark: str
    job: int = 0

    @property
    def alone(self) -> Path:
        """The store of the same audits on one machine, in one process, without Slurm and Ray."""
        return self.cluster.folder / "alone"

    def submit(self, store: str, *audit: str, nodes: int = 2, options: Sequence[str] = ()) -> int:
        """Submit audit.sbatch with the machine's resources, and return the job's id."""
        log = f"--output={self.cluster.folder}/%j.log"
        given = [*OVERRIDDEN, f"--nodes={nodes}", "--time=60", log, *options, str(SCRIPT), *audit]
        return self.cluster.submit(*given, "--store", str(self.cluster.folder / store), "--set", "resources.resume_seconds=1")

    def completed(self, job: int | str) -> str:
        """Wait until a job has ended as it should, and nothing of it is left; return its state."""
        found = self.cluster.ended(job)
        if found["JobState"] != "COMPLETED":
            raise Unexpected(f"job {job} ended as {found['JobState']} ({found['ExitCode']}): {self.log(found['JobId'])}")
        self.check_nothing_left()
        return f"{found['JobState']} ({found['ExitCode']}), restarts {found['Restarts']}"

    def log(self, job: int | str) -> str:
        """Return the end of a job's output."""
        return (self.cluster.folder / f"{job}.log").read_text(errors="replace")[-3000:]

    def says(self, job: int, line: str) -> None:
        """Check that a job's output has a line with this text."""
        if line not in (self.cluster.folder / f"{job}.log").read_text(errors="replace"):
            raise Unexpected(f"job {job} does not say {line!r}: {self.log(job)}")

    def check_nothing_left(self) -> None:
        """Wait until no process but Slurm's daemons is left, and check that no token is."""
        daemons = {daemon.pid for daemon in self.cluster.daemons.values()}
        daemons |= set(descendants(self.cluster.daemons["slurmctld"].pid))  # it has a process of its own for scripts
        try:
            wait_for(lambda: not set(marked(self.mark)) - daemons, "the last process", seconds=60)
        except Unexpected:
            left = [command_of(pid)[:200] or str(pid) for pid in set(marked(self.mark)) - daemons]
            raise Unexpected(f"processes are left: {'; '.join(left)}") from None
        if tokens := list(self.home.glob(".memlib-ray-*")):
            raise Unexpected(f"Ray's token is left: {tokens}")

    @property
    def home(self) -> Path:
        """The home folder of the jobs."""
        return Path(self.cluster.environment["HOME"])

    def runs(self, store: str) -> str:
        """Return the state and, for finished runs, the artifacts of each run of a store, from `memlib runs`."""
        return ", ".join(sorted(self._state(run, store) for run in self._asked("runs", store)))

    def _state(self, run: Mapping[str, Any], store: str) -> str:
        if not run["finished"]:
            return f"{run['audit']} {self._asked('status', store, run['run'])['state']}"
        return f"{run['audit']} completed ({len(run['computed'])} artifacts computed, {len(run['reused'])} reused)"

    def _asked(self, command: str, store: str, *arguments: str) -> Any:
        """Return what a command of memlib says of a store as JSON."""
        place = str(self.cluster.folder / store)
        return json.loads(call(["memlib", command, *arguments, "--json", "--store", place], self.environment))

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of commands."""
        return self.cluster.environment

    def equal(self, store: str) -> str:
        """Check that all published tables are equal, byte by byte, to those of one machine; return their number."""
        tables = _tables(self.cluster.folder / store)
        alone = _tables(self.alone)
        unlike = [name for name, content in tables.items() if content != alone.get(name)]
        if unlike or not tables:
            raise Unexpected(f"other results than on one machine: {unlike or 'none'}")
        return f"its {len(tables)} tables equal those of one machine"


def run_alone(drill: Drill) -> str:
    """Run the audits in one process each."""
    for recipe, changes in ((TINY, LONGER), (SWEEP, {})):
        command = [sys.executable, "-c", ALONE, str(recipe), str(drill.alone), json.dumps(changes)]
        call(command, drill.environment, cwd=drill.cluster.folder)
    return drill.runs("alone")


def exposure(drill: Drill) -> str:
    """Run an exposure audit on two nodes, undisturbed."""
    job = drill.submit("exposure", *EXPOSURE)
    said = drill.completed(job)
    return f"{said}; memlib: {drill.runs('exposure')}; {drill.equal('exposure')}"


def time_limit(drill: Drill) -> str:
    """Start a déjà vu audit; shorten its time limit once it trains, and wait until the script has queued it again."""
    drill.job = drill.submit("deja-vu", *DEJA_VU, options=["--signal=B:USR1@60"])
    step = _wait_until_it_trains(drill)
    hours, minutes, _ = map(int, drill.cluster.job(drill.job)["RunTime"].split(":"))
    limit = f"TimeLimit={60 * hours + minutes + 2}"
    call(["scontrol", "update", f"JobId={drill.job}", limit], drill.environment)
    drill.cluster.queued_again(drill.job, times=1)
    drill.says(drill.job, "out of time: the job is queued again")
    drill.check_nothing_left()
    return f"training was saved at step {step}; queued again by the script: PENDING; memlib: {drill.runs('deja-vu')}"


def _go_on(drill: Drill) -> tuple[int, int]:
    """Let the job go on until it trains; return the step that was saved before, and the one that has been saved since."""
    before = _saved_step(drill)
    drill.cluster.run_now(drill.job)
    return before, _wait_until_it_trains(drill, after=before)


def node_lost(drill: Drill) -> str:
    """Let the job go on; kill the slurmd of the second node and all that runs there: Slurm must queue the job again."""
    before, step = _go_on(drill)
    drill.cluster.lose_node("n2")
    drill.cluster.queued_again(drill.job, times=2)
    drill.check_nothing_left()
    state = drill.cluster.node_state("n2")
    drill.cluster.start_node("n2")
    return f"resumed from step {before}, lost at {step}; n2 {state}, the job PENDING again; memlib: {drill.runs('deja-vu')}"


def step_lost(drill: Drill) -> str:
    """Let the job go on; kill Ray on the second node, whose slurmd stays, and wait until the script has queued it again."""
    before, step = _go_on(drill)
    drill.cluster.lose_step("n2")
    drill.cluster.queued_again(drill.job, times=3)
    drill.says(drill.job, "Ray has ended on a node: the job is queued again")
    drill.check_nothing_left()
    return f"resumed from step {before}, lost at {step}; queued again by the script: PENDING; memlib: {drill.runs('deja-vu')}"


def cancelled(drill: Drill) -> str:
    """Let the job go on, and cancel it; it must not come back."""
    before, step = _go_on(drill)
    call(["scancel", str(drill.job)], drill.environment)
    found = drill.cluster.ended(drill.job)
    drill.check_nothing_left()
    if (state := drill.cluster.job(drill.job)["JobState"]) != "CANCELLED":
        raise Unexpected(f"a cancelled job is {state}")
    return f"resumed from step {before}, cancelled at {step}: {state} ({found['ExitCode']}); memlib: {drill.runs('deja-vu')}"


def again(drill: Drill) -> str:
    """Submit the cancelled audit again."""
    before = _saved_step(drill)
    said = drill.completed(drill.submit("deja-vu", *DEJA_VU))
    return f"resumed from step {before}: {said}; memlib: {drill.runs('deja-vu')}; {drill.equal('deja-vu')}"


def array(drill: Drill) -> str:
    """Run the cells of a sweep as a job array, one on each node, and then the sweep, which compares them."""
    job = drill.submit("sweep", "sweep", "--recipe", str(SWEEP), nodes=1, options=["--array=1-2"])
    after = f"--dependency=afterok:{job}"
    comparing = drill.submit("sweep", "sweep", "--recipe", str(SWEEP), nodes=1, options=[after])
    said = [drill.cluster.ended(f"{job}_{task}")["JobState"] for task in (1, 2)]
    compared = drill.completed(comparing)
    return f"cells {', '.join(said)}; sweep {compared}; memlib: {drill.runs('sweep')}; {drill.equal('sweep')}"


STEPS: dict[str, Callable[[Drill], str]] = {
    "both audits on one machine, in one process each": run_alone,
    "an exposure audit on two nodes": exposure,
    "a déjà vu audit on two nodes reaches its time limit": time_limit,
    "it goes on; a node is lost (slurmd and all processes)": node_lost,
    "it goes on; Ray is killed on a node": step_lost,
    "it goes on; scancel": cancelled,
    "the same audit as a new job": again,
    "a sweep as a job array, then compared": array,
}


def _wait_until_it_trains(drill: Drill, *, after: int = 0) -> int:
    """Wait until a training state later than a step is saved, and return its step."""

    def saved() -> int:
        found = drill.cluster.job(drill.job)
        if found["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING"):
            raise Unexpected(f"job {drill.job} is {found['JobState']} before it trains: {drill.log(drill.job)}")
        return step if (step := _saved_step(drill)) > after else 0

    return wait_for(saved, "a training to be saved", seconds=900)


def _saved_step(drill: Drill) -> int:
    """Return the latest saved training step of the déjà vu audit."""
    return latest_step((drill.cluster.folder / "deja-vu").glob(SAVED))


def _tables(store: Path) -> dict[str, bytes]:
    paths = (path for path in store.glob("results/**/*.parquet") if UNEQUAL not in path.parts)
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


@contextlib.contextmanager
def everything(folder: Path) -> Iterator[Drill]:
    """Run Slurm, and end all processes in any case."""
    mark = uuid.uuid4().hex
    home = folder / "home"
    home.mkdir(mode=0o700)
    own = environment_for(folder, mark)
    own |= {"PATH": f"{own['PATH']}:{search_path()}", "HOME": str(home), "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        with slurm(folder, own) as cluster:
            yield Drill(cluster, mark)
    finally:
        kill_marked(mark)


def main() -> int:
    """Run the drill and print the table; say in one line what is not installed."""
    if lacking := missing(search_path()):
        print(lacking, file=sys.stderr)
        return 2
    return rehearse("slurm", everything, STEPS, markdown)


if __name__ == "__main__":
    sys.exit(main())
