"""A drill of failures that occur in production, with a Prefect server on PostgreSQL, workers and the deployments.

    python -m deployments.local.drill

Everything is in a temporary folder and on loopback, except Ray, which listens on all addresses and requires a token; all
processes are ended afterwards. Needs Linux and PostgreSQL's binaries; takes a quarter of an hour.
"""

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deployments.local.api import Api
from deployments.local.processes import Unexpected, call, descendants, free_port, kill, kill_marked, start, wait_for
from deployments.local.services import PREFECT, environment_for, postgres, prefect_server, start_worker
from deployments.local.steps import SAVED, Row, latest_step, rehearse

DEPLOYMENTS = Path(__file__).parents[1]
TINY = Path(__file__).with_name("tiny.yaml")
IN_RAY = "in-ray-cluster"  # the pool of workers in a Ray cluster
LONGER = {"training.epochs": 200}  # long enough to be killed in the middle


@dataclass
class Drill:
    """A server with workers."""

    folder: Path
    api: Api
    environment: Mapping[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """The store that the runs write to."""
        return self.folder / "store"

    def new_worker(self) -> None:
        """Start another worker."""
        self.workers.append(start_worker(self.folder, self.environment, f"worker-{len(self.workers)}"))

    def new_worker_in_ray(self, head: str, environment: Mapping[str, str]) -> None:
        """Start a worker that joins the Ray cluster of this head by in-ray-cluster.sh."""
        worker = [*PREFECT, "worker", "start", "--pool", IN_RAY]
        command = ["bash", str(DEPLOYMENTS / "in-ray-cluster.sh"), head, *worker]
        own = dict(environment) | {"PREFECT_WORKER_QUERY_SECONDS": "2"}
        self.workers.append(start(command, own, self.folder / "worker-in-ray.log", cwd=self.folder))

    def end_workers(self) -> None:
        """Kill all workers and what they run."""
        for worker in self.workers:
            kill([*descendants(worker.pid), worker.pid])

    def start(self, deployment: str = "smoke", **parameters: Any) -> str:
        """Start a run through the command line, and return its id."""
        given = {"recipe": str(TINY)} | parameters
        options = [part for name, value in given.items() for part in ("--param", f"{name}={json.dumps(value)}")]
        before = {run["id"] for run in self.api.runs_of(self.api.deployment(deployment)["id"])}
        call([*PREFECT, "deployment", "run", f"audit/{deployment}", *options], self.environment, cwd=self.folder)
        new: str
        (new,) = {run["id"] for run in self.api.runs_of(self.api.deployment(deployment)["id"])} - before
        return new


def deploy(drill: Drill) -> str:
    """Run set-up.sh twice, as after a change, and start a worker."""
    for _ in range(2):
        call(["bash", str(DEPLOYMENTS / "set-up.sh")], drill.environment, cwd=drill.folder)
    automations = [found["name"] for found in drill.api.ask("/automations/filter", {})]
    if len(automations) != len(set(automations)) or not automations:
        raise Unexpected(f"expected automations, each of them once; found {automations}")
    drill.new_worker()
    names = sorted(found["name"] for found in drill.api.ask("/deployments/filter", {}))
    nightly = drill.api.deployment("nightly")
    planned = wait_for(
        lambda: [run["expected_start_time"] for run in drill.api.runs_of(nightly["id"]) if run["state_name"] == "Scheduled"],
        "the nightly runs to be planned",
        seconds=90,
    )
    return f"{len(automations)} automations; {', '.join(names)}; the next nightly run is planned for {min(planned)[:16]}"


def run_two(drill: Drill) -> str:
    """Start two runs at once; the concurrency limit of one makes the second wait."""
    first, second = drill.start(), drill.start()
    wait_for(
        lambda: drill.api.flow_run(second)["state_name"] == "AwaitingConcurrencySlot" or None,
        "the second run to wait for the first",
    )
    drill.api.completed(first)
    drill.api.completed(second)
    computed, reused = drill.api.stages(first), drill.api.stages(second)
    if any("Completed" not in states for states in computed.values()):
        raise Unexpected(f"the first run found stages in an empty store: {computed}")
    check_cached(reused)
    return f"both Completed, the second after AwaitingConcurrencySlot and with its {len(reused) - 1} stages Cached"


def refuse(drill: Drill) -> str:
    """Check that a bad parameter value fails in one line before anything runs, and that a bad name or type creates no run."""
    path = f"/deployments/{drill.api.deployment('smoke')['id']}/create_flow_run"
    try:
        drill.api.ask(path, {"parameters": {"resources": {"gpus": 1}}})
    except Unexpected as refused:
        if "gpus" not in str(refused):
            raise
    else:
        raise Unexpected("a run with resources.gpus was created")
    ended = drill.api.ended(drill.start(recipe="smok"))
    message = ended["state"]["message"]
    if ended["state_name"] != "Failed" or message != "no recipe 'smok'; did you mean smoke?":
        raise Unexpected(f"ended as {ended['state_name']}: {message}")
    return f"resources.gpus is refused; the run is Failed: {message}"


def kill_and_resume(drill: Drill) -> str:
    """Kill the worker and all its processes in the middle of a training; the automations must resume the run."""
    run = drill.start(changes=LONGER)
    wait_for(lambda: _saved_step(drill.store) or None, "a training to be saved")
    worker = drill.workers[-1]
    kill([*descendants(worker.pid), worker.pid])
    killed, step = _now(), _saved_step(drill.store)
    drill.new_worker()
    if (state := drill.api.flow_run(run)["state_name"]) != "Running":
        raise Unexpected(f"a killed run cannot report its end, but its state is {state}")
    crashed = wait_for(lambda: state_of(drill.api, run, "Crashed"), "the automation to mark the run as crashed", seconds=600)
    wait_for(lambda: state_of(drill.api, run, "AwaitingRetry"), "the automation to retry it", seconds=120)
    wait_for(lambda: drill.api.flow_run(run)["state_name"] != "Crashed" or None, "the run to be scheduled")
    ended = drill.api.completed(run, seconds=400)
    stages = drill.api.stages(run, since=killed)
    check_cached({name: states for name, states in stages.items() if name in ("decode examples", "split examples")})
    if ended["run_count"] != 2:
        raise Unexpected(f"the run ended after {ended['run_count']} attempts")
    return (
        f"killed while Running, saved at step {step}; {crashed}; second attempt Completed, Cached: {_names(stages, 'Cached')}"
    )


def run_again(drill: Drill) -> str:
    """Start the same audit as a new run; nothing is left to compute."""
    run = drill.start(changes=LONGER)
    drill.api.completed(run)
    stages = drill.api.stages(run)
    check_cached(stages)
    return f"Completed, all {len(stages) - 1} stages Cached"


def mend_and_retry(drill: Drill) -> str:
    """Make a stage fail with a file in place of its folder; after the fix, retry the run like the UI's button."""
    changes = {"title": "another page", "report.gallery": 1}
    folder = drill.store / "artifacts" / "report"
    aside = folder.with_name("report-aside")
    folder.rename(aside)
    folder.write_text("in the way")
    run = drill.start(changes=changes)
    failed = drill.api.ended(run)
    if failed["state_name"] != "Failed":
        raise Unexpected(f"a run that cannot write its report ended as {failed['state_name']}")
    before = drill.api.stages(run)
    folder.unlink()
    aside.rename(folder)
    mended = _now()
    drill.api.retry(run)
    drill.api.completed(run)
    stages = drill.api.stages(run, since=mended)
    check_cached(stages, but=("report déjà vu",))
    return f"Failed in {_names(before, 'Failed')}; retried: Completed, Cached: {_names(stages, 'Cached')}"


def schedule(drill: Drill) -> str:
    """Check that a schedule starts runs."""
    found = scheduled_run(drill, "smoke", {"interval": 20})
    return f"{found['name']}, planned for {found['expected_start_time'][11:19]}, Completed"


def scheduled_run(
    drill: Drill, name: str, schedule: Mapping[str, Any], until: str = "Completed", **parameters: Any
) -> dict[str, Any]:
    """Give a deployment a schedule, wait until a run of it is in a state, end the schedule and return the run."""
    deployment = drill.api.deployment(name)["id"]
    before = {run["id"] for run in drill.api.runs_of(deployment)}
    every = {"active": True, "schedule": schedule, "parameters": {"recipe": str(TINY)} | parameters}
    (created,) = drill.api.ask(f"/deployments/{deployment}/schedules", [every])

    def scheduled() -> dict[str, Any] | None:
        runs = (run for run in drill.api.runs_of(deployment) if run["id"] not in before and run["auto_scheduled"])
        return next((run for run in runs if run["state_name"] == until), None)

    found = wait_for(scheduled, f"a scheduled run to be {until}", seconds=600)
    drill.api.ask(f"/deployments/{deployment}/schedules/{created['id']}", {"active": False}, "PATCH")
    return found


def run_in_ray(drill: Drill) -> str:
    """Start a Ray head with a token and a worker that joins it by in-ray-cluster.sh, as compose.yaml does; run an audit."""
    port = free_port()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    own = dict(drill.environment) | token | {"RAY_TMPDIR": str(drill.folder)}
    node = ["--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false", "--disable-usage-stats", "--block"]
    start(["ray", "start", "--head", "--num-cpus=2", *node], own, drill.folder / "ray-head.log")
    drill.new_worker_in_ray(f"127.0.0.1:{port}", own)
    run = drill.start("cluster", changes={"training.seed": 1}, resources={"ray_address": "auto"})
    drill.api.completed(run, seconds=400)
    stages = drill.api.stages(run)
    return f"Completed, computed {_names(stages, 'Completed')}"


STEPS: dict[str, Callable[[Drill], str]] = {
    "set-up.sh, twice, and a worker": deploy,
    "two runs of smoke at once, limit 1": run_two,
    "bad parameters": refuse,
    "kill -9 of worker and run during training": kill_and_resume,
    "the same run as a new one": run_again,
    "a stage fails, is fixed, Retry in the UI": mend_and_retry,
    "a schedule of every 20 seconds": schedule,
    "a worker in a Ray cluster behind a token": run_in_ray,
}


def _saved_step(store: Path) -> int:
    """Return the latest saved training step in the store."""
    return latest_step(store.glob(SAVED))


def _now() -> str:
    return datetime.now(UTC).isoformat()


def state_of(api: Api, run: str, name: str) -> str | None:
    """Return a state that a run was in, with its message; None if it was not."""
    states = [state for state in api.ask(f"/flow_run_states/?flow_run_id={run}") if state["name"] == name]
    return f"{name} ({states[0]['message']})" if states else None


def check_cached(stages: Mapping[str, set[str]], *, but: tuple[str, ...] = ()) -> None:
    """Check that every stage was found in the store, apart from some."""
    but = (*but, "publish")  # not a stage: it records the run
    recomputed = {name: states for name, states in stages.items() if states != {"Cached"} and name not in but}
    if recomputed or not stages:
        raise Unexpected(f"stages in the store were recomputed: {recomputed or 'no stages found'}")


def _names(stages: Mapping[str, set[str]], state: str) -> str:
    return ", ".join(name for name, states in stages.items() if state in states)


@contextlib.contextmanager
def everything(folder: Path) -> Iterator[Drill]:
    """Run the database and the server, and end all processes in any case."""
    mark = uuid.uuid4().hex
    environment = environment_for(folder, mark)
    try:
        with postgres(folder / "postgres", environment) as database, prefect_server(folder, environment, database) as server:
            drill = Drill(folder, *server)
            try:
                yield drill
            finally:
                drill.end_workers()
    finally:
        kill_marked(mark)


def lines(rows: Sequence[Row]) -> str:
    """Return a line for each step."""
    return "\n".join(f"{row.verdict:<7} {row.seconds:4.0f} s  {row.what:<42} {row.saw}" for row in rows)


def main() -> int:
    """Run the drill and print the results."""
    return rehearse("drill", everything, STEPS, lines)


if __name__ == "__main__":
    sys.exit(main())
