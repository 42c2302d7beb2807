"""A drill of failures between machines: Prefect on PostgreSQL, S3 by Swift, and a Ray cluster of three machines.

    python -m deployments.cluster.drill [--images 320000]

The machines are network namespaces of this one, with a disk of their own and no folder in common but the code; cables between
them are cut and slowed. Database, server, worker and S3 run on the bridge that connects them. Needs Linux, root, PostgreSQL's
binaries, and Swift, which is installed once; the host's network is not touched. Prints the table of docs/reliability.md;
takes half an hour with 320,000 images, which are noise with a coloured object.
"""

import argparse
import contextlib
import functools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import s3fs

from deployments.cluster.machines import HERE, Machine, enter, missing, slow_disk
from deployments.local.drill import DEPLOYMENTS, TINY, Drill
from deployments.local.processes import Unexpected, call, descendants, free_port, kill, kill_marked, start, wait_for
from deployments.local.services import PREFECT, environment_for, postgres, postgres_binaries, prefect_server
from deployments.local.steps import UNEQUAL, markdown, rehearse
from deployments.local.swift import Missing, SwiftServer, install

LONGER = {"training.epochs": 200}  # long enough to be disturbed in the middle
BUCKET = "audits"
TOOLS = Path(os.environ.get("MEMLIB_TEST_TOOLS", DEPLOYMENTS.parent / ".venv" / "tools"))
USERS = ("ann", "ben")
POOL = "in-ray-cluster"
TRAINING, STARTED = "ray::RayTrainWorker", "Ray runtime started"  # Ray's name of a process, and its words
OUTAGE, CUT = 20.0, 8.0  # seconds without S3, and of a cut that Ray survives
MAKE = """
import json, pathlib, sys
from benchmarks.imagenet import make_images, recipe_of
folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
make_images(folder, count)
print(json.dumps(recipe_of(folder, count)))
"""


@dataclass
class Cluster(Drill):
    """A Prefect server, S3 and machines in one Ray cluster."""

    swift: SwiftServer = field(kw_only=True)
    head: str = field(kw_only=True)
    machines: list[Machine] = field(kw_only=True)
    images: int = field(kw_only=True)

    def audit(self, name: str, **resources: Any) -> str:
        """Start the longer audit in a store of its own, and return the run's id."""
        settings = {"ray_address": "auto", "resume_seconds": 1} | resources
        return self.start("cluster", changes=LONGER, resources=settings, store=self.uri(name))

    def uri(self, name: str) -> str:
        """Return a store on S3."""
        return f"s3://{BUCKET}/{name}"

    @functools.cached_property
    def files(self) -> Any:
        """The bucket, as it is now: listings are not kept."""
        names = self.swift.environment
        secret = {"key": names["AWS_ACCESS_KEY_ID"], "secret": names["AWS_SECRET_ACCESS_KEY"]}
        return s3fs.S3FileSystem(endpoint_url=self.swift.endpoint, use_listings_cache=False, **secret)

    def join(self, machine: Machine) -> None:
        """Switch a machine on, if it is off, and let it join the Ray cluster with one core."""
        node = [f"--address={self.head}", f"--node-ip-address={machine.address}", "--num-cpus=1", "--disable-usage-stats"]
        log = machine.disk.with_suffix(".ray.log")
        self.start_ray(machine.command("ray", "start", *node, "--block"), log, machine.name)

    def start_ray(self, command: Sequence[str], log: Path, where: str) -> None:
        """Start Ray and wait until it runs."""
        before = log.read_text(errors="replace").count(STARTED) if log.exists() else 0
        start(command, self.environment, log)
        wait_for(lambda: log.read_text(errors="replace").count(STARTED) > before, f"Ray on {where}", seconds=120)

    def wait_until_it_trains(self, name: str) -> Machine:
        """Wait until a training of an audit is saved, and return a machine that trains."""
        wait_for(lambda: self.saved_step(name), "a training to be saved", seconds=400)
        return wait_for(lambda: next((one for one in self.machines if one.runs(TRAINING)), None), "a machine that trains")

    def saved_step(self, name: str) -> int:
        """Return the latest saved training step in a store."""
        saved = self.files.glob(f"{BUCKET}/{name}/resume/*/*/manifest.json")
        return max((int(path.split("/")[-2].partition("-")[0]) for path in saved), default=0)

    def tables(self, name: str) -> dict[str, bytes]:
        """Return all published tables of a store, but those of who ran what, when and where."""
        start = f"{BUCKET}/{name}/"
        paths = [path for path in self.files.glob(f"{start}results/**/*.parquet") if UNEQUAL not in path.split("/")]
        return {path.removeprefix(start): self.files.cat_file(path) for path in paths}

    def equal(self, run: str, name: str) -> str:
        """Check that a run completes with tables that equal those of the undisturbed one, byte by byte."""
        ended = self.api.completed(run, seconds=900)
        tables, expected = self.tables(name), self.tables("quiet")
        unlike = [path for path, content in tables.items() if content != expected.get(path)]
        if unlike or not tables:
            raise Unexpected(f"other results than those of the undisturbed run: {unlike or 'none'}")
        attempts = "" if ended["run_count"] == 1 else f" at attempt {ended['run_count']}"
        return f"Completed{attempts}, its {len(tables)} tables equal those of the undisturbed run"


def undisturbed(drill: Cluster) -> str:
    """Deploy; run the audit on S3 and in the cluster."""
    call(["bash", str(DEPLOYMENTS / "set-up.sh")], drill.environment, cwd=drill.folder)
    worker = [*PREFECT, "worker", "start", "--pool", POOL]
    script = str(DEPLOYMENTS / "in-ray-cluster.sh")
    log = drill.folder / "worker.log"
    own = dict(drill.environment) | {"PREFECT_WORKER_QUERY_SECONDS": "2"}
    drill.workers.append(start(["bash", script, drill.head, *worker], own, log, cwd=drill.folder))
    drill.api.completed(drill.audit("quiet"), seconds=900)
    return f"Completed, {len(drill.tables('quiet'))} tables on S3"


def two_users(drill: Cluster) -> str:
    """Let two users with a queue each start audits at once: one runs for each of them, and a third waits."""
    for number, user in enumerate(USERS, start=1):
        queue = [user, "--pool", POOL, "--limit", "1", "--priority", str(number)]
        call([*PREFECT, "work-queue", "create", *queue], drill.environment, cwd=drill.folder)
        deployment = ["flows.deployed.audit", "--name", user, "--pool", POOL, "--work-queue", user, "--tag", "memlib"]
        call([*PREFECT, "deploy", *deployment], drill.environment, cwd=drill.folder)
    settings = {"resources": {"ray_address": "auto"}}
    first, second = (drill.start("ann", store=drill.uri("ann"), **settings) for _ in range(2))
    other = drill.start("ben", store=drill.uri("ben"), **settings)
    waiting = wait_for(lambda: _while_two_run(drill, first, other, second), "a run of each user", seconds=120)
    for run in (first, other, second):
        drill.api.completed(run, seconds=900)
    if {states for stages in drill.api.stages(second).values() for states in stages} != {"Cached", "Completed"}:
        raise Unexpected(f"ann's second run computed stages again: {drill.api.stages(second)}")
    found = {user: len(drill.tables(user)) for user in USERS}
    return f"ann's first and ben's ran side by side while ann's second was {waiting}; all Completed; tables: {found}"


def _while_two_run(drill: Cluster, first: str, other: str, second: str) -> str | None:
    """Return the state of the second run while the two others run."""
    states = [drill.api.flow_run(run)["state_name"] for run in (first, other, second)]
    if states[2] == "Running":
        raise Unexpected("two runs of a queue with a limit of one ran at once")
    return states[2] if states[:2] == ["Running", "Running"] else None


def nightly(drill: Cluster) -> str:
    """Give ann's deployment a schedule, and wait for a run of it; nothing is left to compute."""
    deployment = drill.api.deployment("ann")["id"]
    before = {run["id"] for run in drill.api.runs_of(deployment)}
    given = {"recipe": str(TINY), "store": drill.uri("ann"), "resources": {"ray_address": "auto"}}
    every = {"active": True, "schedule": {"cron": "* * * * *", "timezone": "UTC"}, "parameters": given}
    (created,) = drill.api.ask(f"/deployments/{deployment}/schedules", [every])

    def scheduled() -> dict[str, Any] | None:
        runs = (run for run in drill.api.runs_of(deployment) if run["id"] not in before and run["auto_scheduled"])
        return next((run for run in runs if run["state_name"] == "Completed"), None)

    found = wait_for(scheduled, "a scheduled run to complete", seconds=300)
    drill.api.ask(f"/deployments/{deployment}/schedules/{created['id']}", {"active": False}, "PATCH")
    cached = sum("Cached" in states for states in drill.api.stages(found["id"]).values())
    return f"planned for {found['expected_start_time'][11:19]}, Completed, {cached} stages Cached"


def short_cut(drill: Cluster) -> str:
    """Cut the cable of a machine that trains for a few seconds."""
    run = drill.audit("short")
    machine = drill.wait_until_it_trains("short")
    step = drill.saved_step("short")
    machine.cut()
    time.sleep(CUT)
    machine.mend()
    return f"{machine.name} cut off for {CUT:.0f} s at step {step}; {drill.equal(run, 'short')}"


def long_cut(drill: Cluster) -> str:
    """Cut the cable of a machine that trains until the run has completed; then let the machine join again."""
    run = drill.audit("long")
    machine = drill.wait_until_it_trains("long")
    step = drill.saved_step("long")
    machine.cut()
    said = drill.equal(run, "long")
    machine.mend()
    wait_for(lambda: not machine.runs("raylet"), f"Ray on {machine.name} to notice that it was given up", seconds=180)
    drill.join(machine)
    return f"{machine.name} cut off at step {step}; {said}; then {machine.name} ended its Ray, and joined again"


def power(drill: Cluster) -> str:
    """Cut the power of a machine that trains, and let it join again after the run."""
    run = drill.audit("power")
    machine = drill.wait_until_it_trains("power")
    step = drill.saved_step("power")
    machine.lose_power()
    said = drill.equal(run, "power")
    machine.boot(drill.environment)
    drill.join(machine)
    return f"{machine.name} lost at step {step}; {said}"


def slow_network(drill: Cluster) -> str:
    """Slow the cables of two of three machines down."""
    for machine in drill.machines[:2]:
        machine.slow_down("4mbit")
    began = time.monotonic()
    said = drill.equal(drill.audit("slow"), "slow")
    seconds = time.monotonic() - began
    for machine in drill.machines[:2]:
        machine.speed_up()
    return f"4 Mbit/s in each direction for two machines: {seconds:.0f} s; {said}"


def slow_storage(drill: Cluster) -> str:
    """Give one machine a disk that writes two mebibytes a second."""
    machine = drill.machines[0]
    machine.lose_power()
    with slow_disk(drill.folder / "disks" / "slow.image", 1500) as machine.disk:
        machine.boot(drill.environment)
        drill.join(machine)
        began = time.monotonic()
        said = drill.equal(drill.audit("disk"), "disk")
        return f"2 MiB/s on {machine.name}: {time.monotonic() - began:.0f} s; {said}"


def no_s3(drill: Cluster) -> str:
    """Kill S3 while a model is trained, and start it again."""
    run = drill.audit("outage")
    drill.wait_until_it_trains("outage")
    step = drill.saved_step("outage")
    drill.swift.stop()
    time.sleep(OUTAGE)
    drill.swift.start()
    return f"killed at step {step} for {OUTAGE:.0f} s; {drill.equal(run, 'outage')}"


def large(drill: Cluster) -> str:
    """Audit many images, which lie on S3, while others read the results that are there."""
    recipe, images = drill.folder / "large.json", drill.folder / "images"
    recipe.write_text(call([sys.executable, "-c", MAKE, str(images), str(drill.images)], os.environ, cwd=DEPLOYMENTS.parent))
    drill.files.put(str(images), f"{BUCKET}/images", recursive=True)
    given = {"recipe": str(recipe), "changes": {"data.source.path": f"s3://{BUCKET}/images"}}
    run = drill.start("cluster", **given, resources={"ray_address": "auto"}, store=drill.uri("quiet"))
    began, reading = time.monotonic(), Reading(drill)
    reading.start()
    try:
        drill.api.completed(run, seconds=3600)
    finally:
        reading.ended.set()
        reading.join()
    if reading.failed or not reading.reads:
        raise Unexpected(f"after {reading.reads} reads: {reading.failed}")
    read = f"{reading.reads} reads each by DuckDB and Polars, none failed"
    return f"{drill.images:,} images: Completed in {time.monotonic() - began:.0f} s; meanwhile {read}"


class Reading(threading.Thread):
    """Reads of a store's results by DuckDB and Polars, one after the other, until they are ended."""

    def __init__(self, drill: Cluster) -> None:
        super().__init__(daemon=True)
        self.drill, self.ended, self.reads, self.failed = drill, threading.Event(), 0, ""
        self.expected = 0

    def run(self) -> None:
        """Read until the end, or until a read fails."""
        while not self.ended.is_set():
            try:
                self._read()
            except Exception as error:
                self.failed = f"{type(error).__name__}: {error}"
                return
            self.reads += 1
            self.ended.wait(1)

    def _read(self) -> None:
        """Count the findings of current runs in two ways, which must agree but for a run that is published in between."""
        import duckdb
        import polars

        place, names = f"s3://{BUCKET}/quiet/results", self.drill.swift.environment
        with duckdb.connect() as database:
            database.register_filesystem(self.drill.files)
            options = "hive_partitioning=true, union_by_name=true"
            query = f"""
                select count(*) from read_parquet('{place}/table=summary/**/*.parquet', {options})
                join read_parquet('{place}/table=runs/**/*.parquet', {options}) r using (audit, run) where r.current
            """
            (ours,) = database.execute(query).fetchone() or (0,)
        given: Any = {"hive_partitioning": True, "missing_columns": "insert", "extra_columns": "ignore"}
        given["storage_options"] = {name.lower(): value for name, value in names.items()} | {"aws_allow_http": "true"}
        current = polars.scan_parquet(f"{place}/table=runs/**/*.parquet", **given).filter("current")
        summary = polars.scan_parquet(f"{place}/table=summary/**/*.parquet", **given)
        found = summary.join(current, on=["audit", "run"], how="semi").collect().height
        if not self.expected <= ours <= found or not found:
            raise Unexpected(f"{self.expected}, then {ours} and {found} findings")
        self.expected = found


STEPS: dict[str, Callable[[Cluster], str]] = {
    "an audit on three machines, with S3, undisturbed": undisturbed,
    "two users with a queue each, limit 1": two_users,
    "a schedule": nightly,
    "a cable is cut for seconds": short_cut,
    "a cable is cut for good": long_cut,
    "a machine loses its power": power,
    "two slow cables": slow_network,
    "a slow disk": slow_storage,
    "S3 is gone for a while": no_s3,
    "many images, with others who read": large,
}


@contextlib.contextmanager
def everything(folder: Path, images: int) -> Iterator[Cluster]:
    """Run the database, the server, S3 and the machines, and end all processes in any case."""
    mark, own = uuid.uuid4().hex, folder / "o"  # a short name, as paths of sockets are short
    own.mkdir()
    environment = environment_for(folder, mark) | {
        "RAY_TMPDIR": str(own), "XDG_CACHE_HOME": str(own / "cache"), "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "MEMLIB_STORE": f"s3://{BUCKET}/runs",
    }  # fmt: skip
    swift = SwiftServer(folder / "swift", install(TOOLS / "swift"), HERE)
    machines = [Machine(f"n{number}", 10 + number, own, folder / "disks" / f"n{number}") for number in (1, 2, 3)]
    try:
        swift.prepare()
        swift.start()
        swift.make_bucket(BUCKET)
        environment |= swift.environment
        with postgres(folder / "postgres", environment) as database, prefect_server(folder, environment, database) as server:
            drill = Cluster(folder, *server, swift=swift, head=f"{HERE}:{free_port()}", machines=machines, images=images)
            try:
                _start_ray(drill)
                yield drill
            finally:
                for worker in drill.workers:
                    kill([*descendants(worker.pid), worker.pid])
    finally:
        swift.stop()
        kill_marked(mark)


def _start_ray(drill: Cluster) -> None:
    """Start a head without cores, and the machines."""
    node = [f"--node-ip-address={HERE}", f"--port={drill.head.rpartition(':')[2]}", "--num-cpus=0"]
    options = ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    drill.start_ray(["ray", "start", "--head", *node, *options], drill.folder / "ray-head.log", "the head")
    for machine in drill.machines:
        machine.boot(drill.environment)
        drill.join(machine)


def main() -> int:
    """Run the drill and print the table; say in one line what is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=320_000, help="images of the large audit")
    chosen = parser.parse_args()
    lacking = missing() or ("" if postgres_binaries() else "not installed (Debian: apt-get install postgresql)")
    if not lacking:
        try:
            install(TOOLS / "swift")
        except Missing as error:
            lacking = str(error)
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    enter("deployments.cluster.drill", sys.argv[1:])
    return rehearse("cluster", functools.partial(everything, images=chosen.images), STEPS, markdown)


if __name__ == "__main__":
    sys.exit(main())
