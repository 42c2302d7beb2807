"""A drill of failures between machines: Prefect on PostgreSQL, S3 by Swift, and a Ray cluster of three machines.

    python -m deployments.cluster.drill [--images 320000]

The machines are namespaces of this one, with a network and a disk of their own and no folder in common but the code; cables
between them are cut and slowed. S3, Ray's head and Prefect's worker are on the bridge that connects them, the database and
Prefect's server on loopback. Needs Linux, root, iproute2, PostgreSQL's binaries, memlib's extra `test`, and Swift, which is
installed once; the host's network is not touched. Prints a table; takes half an hour with 320,000
images, which are noise with a coloured object.
"""

import argparse
import contextlib
import functools
import importlib.util
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import s3fs

from deployments.cluster.machines import HERE, Machine, enter, fill, missing, slow_disk, small_disk
from deployments.local.api import TERMINAL
from deployments.local.drill import DEPLOYMENTS, IN_RAY, Drill, check_cached, scheduled_run, state_of
from deployments.local.processes import (
    Unexpected,
    call,
    command_of,
    descendants,
    free_port,
    kill,
    kill_marked,
    start,
    wait_for,
)
from deployments.local.services import PREFECT, environment_for, postgres, postgres_binaries, prefect_server
from deployments.local.steps import SAVED, UNEQUAL, latest_step, markdown, rehearse
from deployments.local.swift import Missing, SwiftServer, install

LONGER = {"training.epochs": 200}  # long enough to be disturbed in the middle
BUCKET = "audits"
USERS = ("ann", "ben")
IN_CLUSTER = {"resources": {"ray_address": "auto"}}
EXTRA = ("duckdb", "polars", "psutil")  # of memlib's extra `test`
TRAINING, STARTED = "ray::RayTrainWorker", "Ray runtime started"  # Ray's name of a process, and its words
SOON = {"interval": 20}
PLANNED = 320.0  # seconds from planning to start: below 300, Prefect's automations see the run's end 15 minutes late
DISK = 1500  # mebibytes of each machine's disk
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
        """Switch a machine on, and let it join the Ray cluster with one core."""
        if not machine.is_on:
            machine.boot(self.environment)
        node = [f"--address={self.head}", f"--node-ip-address={machine.address}", "--num-cpus=1", "--disable-usage-stats"]
        log = machine.disk.with_suffix(".ray.log")
        self.start_ray(machine.command("ray", "start", *node, "--block"), log, machine.name)

    def start_ray(self, command: Sequence[str], log: Path, where: str) -> None:
        """Start Ray and wait until it runs."""
        before = log.stat().st_size if log.exists() else 0
        ray = start(command, self.environment, log)

        def said() -> str:
            return log.read_text(errors="replace")[before:]

        wait_for(lambda: STARTED in said() or ray.poll() is not None, f"Ray on {where}", seconds=120)
        if ray.poll() is not None:
            raise Unexpected(f"Ray on {where} has ended: {said()[-1000:]}")

    def night(self, name: str) -> dict[str, Any]:
        """Return the parameters of the longer audit in a store of its own."""
        settings = {"ray_address": "auto", "resume_seconds": 1}
        return {"changes": LONGER, "resources": settings, "store": self.uri(name)}

    def training(self, name: str, *, schedule: dict[str, Any] | None = None) -> "Training":
        """Start the longer audit in a store of its own, and wait until a state of its training is saved.

        Args:
            name: name of the store.
            schedule: the schedule that starts it; by default it is started at once.
        """
        given = self.night(name)
        if schedule is None:
            run = self.start("cluster", **given)
        else:
            run = str(scheduled_run(self, "cluster", schedule, "Running", **given)["id"])

        def saved() -> int:
            self.check_running(run)
            return self.saved_step(name)

        step = wait_for(saved, "a training to be saved", seconds=400)
        machine = wait_for(lambda: next((one for one in self.machines if one.runs(TRAINING)), None), "a machine that trains")
        return Training(run, name, machine, step)

    def check_running(self, run: str) -> None:
        """Check that a run has not ended."""
        found = self.api.flow_run(run)
        if found["state_type"] in TERMINAL:
            raise Unexpected(f"run {found['name']} has ended as {found['state_name']}: {found['state']['message']}")

    def saved_step(self, name: str) -> int:
        """Return the latest saved training step in a store."""
        return latest_step(self.files.glob(f"{BUCKET}/{name}/{SAVED}"))

    def tables(self, name: str) -> dict[str, bytes]:
        """Return all published tables of a store, but those of who ran what, when and where."""
        start = f"{BUCKET}/{name}/"
        paths = [path for path in self.files.glob(f"{start}results/**/*.parquet") if UNEQUAL not in path.split("/")]
        return {path.removeprefix(start): self.files.cat_file(path) for path in paths}

    def equal(self, run: str, name: str) -> str:
        """Check that a run completes with the tables of the undisturbed one, byte by byte."""
        ended = self.api.completed(run, seconds=900)
        tables, expected = self.tables(name), self.tables("quiet")
        if tables != expected or not tables:
            unlike = sorted(path for path in {*tables, *expected} if tables.get(path) != expected.get(path))
            raise Unexpected(f"other results than those of the undisturbed run: {unlike or 'none'}")
        attempts = "" if ended["run_count"] == 1 else f" at attempt {ended['run_count']}"
        return f"Completed{attempts}, its {len(tables)} tables equal those of the undisturbed run"


@dataclass(frozen=True)
class Training:
    """A run whose models are trained: its id, the name of its store, a machine that trains, and the last saved step."""

    run: str
    store: str
    machine: Machine
    step: int


def undisturbed(drill: Cluster) -> str:
    """Deploy; run the audit on S3 and in the cluster."""
    call(["bash", str(DEPLOYMENTS / "set-up.sh")], drill.environment, cwd=drill.folder)
    drill.new_worker_in_ray(drill.head, drill.environment)
    drill.api.completed(drill.training("quiet").run, seconds=900)
    return f"Completed, {len(drill.tables('quiet'))} tables on S3"


def two_users(drill: Cluster) -> str:
    """Let two users with a queue each start audits at once: one of each runs, and ann's second waits for her first."""
    for number, user in enumerate(USERS, start=1):
        queue = [user, "--pool", IN_RAY, "--limit", "1", "--priority", str(number)]
        call([*PREFECT, "work-queue", "create", *queue], drill.environment, cwd=drill.folder)
        deployment = ["flows.deployed.audit", "--name", user, "--pool", IN_RAY, "--work-queue", user, "--tag", "memlib"]
        call([*PREFECT, "deploy", *deployment], drill.environment, cwd=drill.folder)
    ids = [drill.start(user, store=drill.uri(user), **IN_CLUSTER) for user in ("ann", "ann", "ben")]
    runs = [drill.api.completed(run, seconds=900) for run in ids]
    first, second = sorted(runs[:2], key=lambda run: str(run["start_time"]))
    if second["start_time"] < first["end_time"]:
        raise Unexpected("two runs of a queue with a limit of one ran at once")
    if not first["start_time"] < runs[2]["end_time"] or not runs[2]["start_time"] < first["end_time"]:
        raise Unexpected("the runs of two users did not run side by side")
    check_cached(drill.api.stages(second["id"]))
    found = {user: len(drill.tables(user)) for user in USERS}
    return f"ann's first and ben's side by side, ann's second after her first, all its stages Cached; tables: {found}"


def nightly(drill: Cluster) -> str:
    """Give ann's deployment a schedule, and wait for a run of it; nothing is left to compute."""
    every = {"cron": "* * * * *", "timezone": "UTC"}
    found = scheduled_run(drill, "ann", every, store=drill.uri("ann"), **IN_CLUSTER)
    check_cached(drill.api.stages(found["id"]))
    return f"planned for {found['expected_start_time'][11:19]}, Completed, all stages Cached"


def nights(drill: Cluster) -> str:
    """Let a schedule start three nights: one run is killed, one finds a full disk, and the third goes on where it ended."""
    begin = datetime.now(UTC) + timedelta(seconds=PLANNED)
    first = drill.training("first", schedule={"interval": 86400, "anchor_date": begin.isoformat()})
    (worker,) = drill.workers
    kill([pid for pid in descendants(worker.pid) if "prefect.engine" in command_of(pid)])
    wait_for(lambda: state_of(drill.api, first.run, "AwaitingRetry"), "the automation to run the killed run again")
    # it may be Crashed once more first, as the worker reports the end of the process after its runner did
    wait_for(lambda: state_of(drill.api, first.run, "Completed"), "the killed run to complete", seconds=900)
    said = [f"killed at step {first.step}: Crashed; {drill.equal(first.run, first.store)}"]
    second = drill.training("second", schedule=SOON)
    filler = fill(second.machine.disk)
    drill.check_running(second.run)
    ended = drill.api.ended(second.run, seconds=900)
    filler.unlink()
    said.append(
        f"the disk of {second.machine.name} full at step {second.step}: {ended['state_name']}: {ended['state']['message']}"
    )
    third = scheduled_run(drill, "cluster", SOON, "Running", **drill.night(second.store))
    said.append(f"the third: {drill.equal(third['id'], second.store)}")
    return "; ".join(said)


def short_cut(drill: Cluster) -> str:
    """Cut the cable of a machine that trains for a few seconds."""
    training = drill.training("short")
    training.machine.cut()
    drill.check_running(training.run)
    time.sleep(CUT)
    training.machine.mend()
    said = drill.equal(training.run, training.store)
    return f"{training.machine.name} cut off for {CUT:.0f} s at step {training.step}; {said}"


def long_cut(drill: Cluster) -> str:
    """Cut the cable of a machine that trains until the run has completed; then let the machine join again."""
    training = drill.training("long")
    machine = training.machine
    machine.cut()
    drill.check_running(training.run)
    said = drill.equal(training.run, training.store)
    machine.mend()
    wait_for(lambda: not machine.runs("raylet"), f"Ray on {machine.name} to notice that it was given up", seconds=180)
    drill.join(machine)
    return f"{machine.name} cut off at step {training.step}; {said}; then {machine.name} ended its Ray, and joined again"


def power(drill: Cluster) -> str:
    """Cut the power of a machine that trains, and let it join again after the run."""
    training = drill.training("power")
    training.machine.lose_power()
    drill.check_running(training.run)
    said = drill.equal(training.run, training.store)
    drill.join(training.machine)
    return f"{training.machine.name} lost at step {training.step}; {said}"


def slow_network(drill: Cluster) -> str:
    """Slow the cables of two of three machines down."""
    slow = drill.machines[:2]
    for machine in slow:
        machine.slow_down("4mbit")
    transfer, began = min(machine.seconds_of_a_transfer() for machine in slow), time.monotonic()
    if transfer < 1:
        raise Unexpected(f"a mebibyte passed a slow cable in {transfer:.1f} s")
    said = drill.equal(drill.training("slow").run, "slow")
    seconds = time.monotonic() - began
    for machine in slow:
        machine.speed_up()
    return f"4 Mbit/s in each direction for two machines (a mebibyte in {transfer:.1f} s): {seconds:.0f} s; {said}"


def slow_storage(drill: Cluster) -> str:
    """Give one machine a disk that writes two mebibytes a second, and then its own one again."""
    machine = drill.machines[0]
    own = machine.disk
    with slow_disk(drill.folder / "disks" / "slow.image", DISK) as disk:
        machine.lose_power()
        try:
            machine.disk = disk
            drill.join(machine)
            began = time.monotonic()
            said = drill.equal(drill.training("disk").run, "disk")
            seconds = time.monotonic() - began
            machine.lose_power()
        finally:
            machine.disk = own
    drill.join(machine)
    return f"2 MiB/s on {machine.name}: {seconds:.0f} s; {said}"


def no_s3(drill: Cluster) -> str:
    """Kill S3 while a model is trained, and start it again."""
    training = drill.training("outage")
    drill.swift.stop()
    drill.check_running(training.run)
    time.sleep(OUTAGE)
    drill.swift.start()
    return f"killed at step {training.step} for {OUTAGE:.0f} s; {drill.equal(training.run, training.store)}"


def large(drill: Cluster) -> str:
    """Audit many images, which lie on S3, while DuckDB and Polars read published results."""
    recipe, images = drill.folder / "large.json", drill.folder / "images"
    recipe.write_text(call([sys.executable, "-c", MAKE, str(images), str(drill.images)], os.environ, cwd=DEPLOYMENTS.parent))
    drill.files.put(str(images), f"{BUCKET}/images", recursive=True)
    given = {"recipe": str(recipe), "changes": {"data.source.path": f"s3://{BUCKET}/images"}}
    run = drill.start("cluster", **given, **IN_CLUSTER, store=drill.uri("quiet"))
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
    "three nights: one killed, one with a full disk": nights,
    "a cable is cut for seconds": short_cut,
    "a cable is cut for good": long_cut,
    "a machine loses its power": power,
    "two slow cables": slow_network,
    "a slow disk": slow_storage,
    "S3 is gone for a while": no_s3,
    "many images on S3, while others read": large,
}


@contextlib.contextmanager
def everything(folder: Path, images: int) -> Iterator[Cluster]:
    """Run the database, the server, S3 and the machines, and end all processes in any case."""
    mark, own = uuid.uuid4().hex, folder / "o"  # a short name, as paths of sockets are short
    own.mkdir()
    environment = environment_for(folder, mark) | {
        "RAY_TMPDIR": str(own), "TMPDIR": str(own), "XDG_CACHE_HOME": str(own / "cache"), "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "MEMLIB_STORE": f"s3://{BUCKET}/runs",
    }  # fmt: skip
    swift = SwiftServer(folder / "swift", install(), HERE)
    with contextlib.ExitStack() as ending:
        disks = {name: ending.enter_context(small_disk(folder / "disks" / name, DISK)) for name in ("n1", "n2", "n3")}
        machines = [Machine(name, number, own, disk) for number, (name, disk) in enumerate(disks.items(), start=11)]
        ending.callback(kill_marked, mark)
        ending.callback(swift.stop)
        try:
            swift.prepare()
        except Missing as error:
            raise Unexpected(str(error)) from None
        swift.start()
        swift.make_bucket(BUCKET)
        environment |= swift.environment
        database = ending.enter_context(postgres(folder / "postgres", environment))
        server = ending.enter_context(prefect_server(folder, environment, database))
        drill = Cluster(folder, *server, swift=swift, head=f"{HERE}:{free_port()}", machines=machines, images=images)
        ending.callback(drill.end_workers)
        _start_ray(drill)
        yield drill


def _start_ray(drill: Cluster) -> None:
    """Start a head without cores, and the machines."""
    node = [f"--node-ip-address={HERE}", f"--port={drill.head.rpartition(':')[2]}", "--num-cpus=0"]
    options = ["--include-dashboard=false", "--disable-usage-stats", "--block"]
    drill.start_ray(["ray", "start", "--head", *node, *options], drill.folder / "ray-head.log", "the head")
    for machine in drill.machines:
        drill.join(machine)


def main() -> int:
    """Run the drill and print the table; say in one line what is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=320_000, help="images of the large audit")
    chosen = parser.parse_args()
    lacking = missing() or ("" if postgres_binaries() else "not installed (Debian: apt-get install postgresql)")
    if absent := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        lacking = lacking or f"not installed: {', '.join(absent)} (pip install -e '.[test]' in memlib's folder)"
    if not lacking:
        try:
            install()
        except Missing as error:
            lacking = str(error)
    if lacking:
        print(lacking, file=sys.stderr)
        return 2
    enter("deployments.cluster.drill", sys.argv[1:])
    return rehearse("cluster", functools.partial(everything, images=chosen.images), STEPS, markdown)


if __name__ == "__main__":
    sys.exit(main())
