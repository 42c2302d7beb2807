"""A déjà vu audit at ImageNet's size on one machine: time and memory of every stage as the number of images grows.

Images are 32 pixels wide, in 1,000 classes, each with a box; a quarter of them is audited on each side, half are public.
The encoder is tiny (64 numbers per image). The stages run on a Ray cluster of a head without cores and one node with all
cores, as on Kubernetes; the driver is the command `memlib run`. With `untrained`, models keep their initial weights and
neighbours are drawn at random, so that only training and search are left out.
"""

import argparse
import contextlib
import io
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES, SIDE, PER_FILE, K = 1000, 32, 20_000, 30
KILLED = ("decode_block", "decode", "embed", "search", "score")  # stages in which the driver is killed, if there
ALIKE = ("decode_block", "decode", "split", "report")  # stages that an untrained run computes like any other run
KILL_SECONDS = 2.0  # after the start of a stage whose parts all have a core
RECIPE: dict[str, Any] = {
    "audit": "deja_vu",
    "title": "as large as ImageNet",
    "model": {"width": 8, "projector": [64], "input_size": SIDE},
    "training": {
        "objective": {"kind": "supervised"}, "epochs": 1, "batch_size": 256,
        "optimizer": {"name": "adamw", "learning_rate": 0.002},
        "augment": {"crop_scale": [0.1, 1.0], "jitter": 0, "grey": 0, "blur": [0, 0], "solarize": [0, 0]},
    },
    "decode": {"k": [K], "layers": ["backbone"]},
}  # fmt: skip


@dataclass
class Measured:
    """Time and memory of one run.

    Attributes:
        seconds: of the whole run.
        busy: for each stage with several parts, the parts' seconds divided by the cores' seconds while the stage ran.
        stages: seconds of each stage, from the start of its first part to the end of its last.
        peaks: peak memory, in bytes, of the driver and of the largest worker.
    """

    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=lambda: {"driver": 0, "worker": 0})


def make_images(folder: Path, count: int) -> None:
    """Write Parquet files of JPEG images: noise with an object in the colours of its class, and the object's box."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    colours = rng.integers(0, 256, size=(CLASSES, 4, 4, 3), dtype=np.uint8)
    for start in range(0, count, PER_FILE):
        rows = range(start, min(start + PER_FILE, count))
        labels, boxes, images = [], [], []
        for number in rows:
            label, (x, y) = number % CLASSES, rng.integers(0, SIDE - 12, size=2)
            image = rng.integers(0, 256, size=(8, 8, 3), dtype=np.uint8).repeat(SIDE // 8, axis=0).repeat(SIDE // 8, axis=1)
            image[y : y + 12, x : x + 12] = colours[label].repeat(3, axis=0).repeat(3, axis=1)
            with io.BytesIO() as file:
                Image.fromarray(image).save(file, "JPEG", quality=85)
                images.append({"bytes": file.getvalue(), "path": None})
            labels.append(label)
            boxes.append([[int(x), int(y), int(x) + 12, int(y) + 12]])
        table = pa.table({"image": images, "label": labels, "boxes": boxes})
        pq.write_table(table, folder / f"{start // PER_FILE:04d}.parquet", row_group_size=4096)


def recipe_of(images: Path, count: int, layers: Sequence[str] = ("backbone",)) -> dict[str, Any]:
    """Return the recipe of an audit of `count` images."""
    side = count // CLASSES // 4
    source = {"kind": "parquet", "path": str(images), "boxes_column": "boxes", "box_format": "xyxy"}
    return {
        **RECIPE,
        "data": {"source": source, "image_size": SIDE},
        "split": {"train_per_class": side, "public_per_class": count // CLASSES - 2 * side, "crop": {"min_side": 0.1}},
        "decode": {**RECIPE["decode"], "layers": list(layers)},
    }


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Start a Ray head without cores and a node with all of this machine's; yield the cluster's address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # before anything imports Ray, which reads it once
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    # not where other clusters leave their addresses
    with (
        tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, RAY_TMPDIR=folder),
    ):
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            started.add_node(num_cpus=os.cpu_count() or 1)
            yield started.address
        finally:
            started.shutdown()


def audit(folder: Path, count: int, address: str, *, untrained: bool, kill_in: str | None = None) -> Measured:
    """Run the audit with its driver in another process, and measure it; with `kill_in`, kill the driver in that stage.

    Raises:
        RuntimeError: the audit ended before it could be killed.
    """
    images, store = folder / f"images-{count}", folder / f"store-{count}"
    if not images.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder / "new")
        make_images(folder / "new", count)
        (folder / "new").rename(images)
    recipe = folder / f"recipe-{count}.json"
    layers = ("backbone", "projector_1") if untrained else ("backbone",)
    recipe.write_text(json.dumps(recipe_of(images, count, layers)))
    program = [str(Path(__file__)), "--untrained-run"] if untrained else ["-m", "flows.cli.entry", "run", "deja-vu"]
    command = [sys.executable, *program, "--recipe", str(recipe), "--store", str(store)]
    command += ["--set", f"resources.ray_address={address}", "--set", "resources.threads_per_worker=1"]
    measured, started = Measured(), time.monotonic()
    environment = os.environ | {"MEMLIB_LOG": "json", "PYTHONPATH": str(Path(__file__).parents[1])}
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    watching = threading.Thread(target=_watch, args=(driver, measured), daemon=True)
    watching.start()
    assert driver.stderr is not None
    lines, killed = [], False
    for line in driver.stderr:
        lines.append(line)
        with contextlib.suppress(ValueError, KeyError):
            event = json.loads(line)
            if event["stage"] == kill_in and event["event"] == "computing":
                _wait_for_a_part(store, kind=kill_in, count=event["facts"]["count"])
                for process in [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGKILL)
                killed = True
                break
    driver.wait()
    measured.seconds = time.monotonic() - started
    if kill_in and not killed:
        raise RuntimeError(f"the audit was not killed: it ended without a part of {kill_in} under way")
    if not kill_in:
        assert driver.returncode == 0, "".join(lines[-20:])
        measured.stages, measured.busy = _spans(store)
    return measured


def _wait_for_a_part(store: Path, *, kind: str, count: int) -> None:
    """Wait until one part of a stage is done and others are under way; where each part has a core, until all are under way."""
    if count <= (os.cpu_count() or 1):  # they may end at the same time
        time.sleep(KILL_SECONDS)
        return
    while not any(store.glob(f"artifacts/{kind}/*/manifest.json")):
        time.sleep(0.05)


def _spans(store: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each stage, in order of their start, and the busy share of stages with several parts.

    Both come from the manifests of the stages' artifacts: a stage lasts from the start of its first part to the end of its
    last one, and its busy share is the parts' seconds divided by the seconds of all cores in that time.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    for path in store.glob("artifacts/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        times.setdefault(manifest["stage"], []).append(
            (manifest["finished"] - manifest["metrics"]["seconds"], manifest["finished"])
        )
    spans = {stage: (min(begun for begun, _ in parts), max(ended for _, ended in parts)) for stage, parts in times.items()}
    ordered = {stage: ended - begun for stage, (begun, ended) in sorted(spans.items(), key=lambda item: item[1])}
    work = {stage: sum(ended - begun for begun, ended in parts) for stage, parts in times.items() if len(parts) > 1}
    return ordered, {stage: work[stage] / (ordered[stage] * (os.cpu_count() or 1)) for stage in work}


def _watch(driver: subprocess.Popen[str], measured: Measured) -> None:
    """Record peak memory a few times per second: of the driver with its child processes, and of any Ray worker.

    Processes that draw models or neighbours in place of the stages (spawn_main) do not count as part of the driver.
    """
    while driver.poll() is None:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(driver.pid)
            processes = [root, *(one for one in root.children(recursive=True) if "spawn_main" not in " ".join(one.cmdline()))]
            measured.peaks["driver"] = max(measured.peaks["driver"], sum(_private(one) for one in processes))
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                if any("ray::" in part for part in process.info["cmdline"] or []):
                    measured.peaks["worker"] = max(measured.peaks["worker"], _private(process))
        time.sleep(0.3)


def _private(process: psutil.Process) -> int:
    """Return the bytes of memory that are private to the process: pages of mapped files can be reclaimed at any time."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def untrained_run(recipe: str, store: str, settings: Sequence[str]) -> None:
    """Run an audit as its driver, with untrained models and random neighbours; all other stages are real."""
    from flows.deja_vu import audit as body
    from memlib.audits import AUDITS
    from memlib.audits.deja_vu.searching import Search
    from memlib.recipes.files import load_recipe, validate
    from memlib.specs import Resources
    from memlib.specs.resources import RunOptions
    from memlib.store import Store
    from memlib.training.fit import Train
    from tasks.cluster import stop_ray
    from tasks.runtime import Context
    from tasks.stage import StageRunner

    class Given(StageRunner):
        """Runner that draws models and neighbours in a separate process before the stages look for them."""

        def run_all(self, stages: Any) -> Any:
            kind = type(stages[0]) if stages else None
            if kind in (Train, Search) and not all(self.store.artifacts.has(stage.identity.ref) for stage in stages):
                import multiprocessing
                import pickle

                make = _untrained if kind is Train else _neighbors_at_random
                making = multiprocessing.get_context("spawn").Process(target=make, args=(pickle.dumps(stages),))
                making.start()
                making.join()
                assert making.exitcode == 0
            return super().run_all(stages)

    content, resources = load_recipe(recipe, settings)
    opened = Store(store)
    with mock.patch("tasks.display.is_gone", return_value=True):  # without Prefect
        context = Context(opened, Resources(**resources), options=RunOptions(quiet=True))
        body(Given(context), validate(AUDITS["deja-vu"].recipe, content))
    stop_ray()


def _untrained(pickled: bytes) -> None:
    import pickle

    from memlib.identity import derive_seed
    from memlib.tables import TRAINING, write_table
    from memlib.training.checkpoint import save_weights
    from memlib.training.files import weights_file
    from memlib.training.fit import HISTORY, MODEL_FILE, build_model

    for stage in pickle.loads(pickled):
        with stage.store.artifacts.write(stage.identity.ref, **stage.record({})) as attempt:
            described = stage.describe(stage.shard.content.images)
            model = build_model(described, seed=derive_seed(stage.training.seed, "untrained"))
            save_weights(model, attempt.path(weights_file(stage.training.epochs)))
            write_table(pa.Table.from_pylist([], schema=TRAINING.arrow), TRAINING, attempt.path(HISTORY))
            attempt.path(MODEL_FILE).write_text(json.dumps(described))
            attempt.facts |= {"name": stage.name, "training_seconds": 0.0}


def _neighbors_at_random(pickled: bytes) -> None:
    import pickle

    from memlib.audits.deja_vu.embedding import DISTANCES, IDS, NEIGHBORS

    for number, stage in enumerate(pickle.loads(pickled)):
        if stage.public.parts[0].store.artifacts.has(stage.identity.ref):
            continue
        rng, ids = np.random.default_rng(number), stage.queries.content.ids
        public = stage.public.ids["label"].to_numpy()
        by_class = np.split(np.argsort(public, kind="stable"), np.cumsum(np.bincount(public))[:-1])
        rows = rng.integers(0, len(public), size=(ids.num_rows, stage.k))
        for label in range(CLASSES):  # two of each query's own class, so that some objects are named
            members = ids["label"].to_numpy() == label
            rows[members, :2] = rng.choice(by_class[label], size=(int(members.sum()), 2))
        with stage.queries.store.artifacts.write(stage.identity.ref, **stage.record({})) as attempt:
            np.save(attempt.path(NEIGHBORS), rows)
            np.save(attempt.path(DISTANCES), np.sort(rng.random(rows.shape, dtype=np.float32), axis=1))
            pq.write_table(ids, attempt.path(IDS), compression="zstd")


def exponent(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of log(seconds) against log(counts)."""
    return float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])


def measure(sizes: Sequence[int], largest: int, folder: Path) -> None:
    """Print times, memory and exponents of audits of these sizes, and of one that is as large as ImageNet."""
    measured: dict[int, Measured] = {}
    with cluster() as address:
        for count, untrained in [*((size, False) for size in sizes), *([(largest, True)] if largest else [])]:
            measured[count] = audit(folder, count, address, untrained=untrained)
            print(f"{count:,} images: {measured[count].seconds:.0f} s; {_memory(measured[count])}", flush=True)
            for stage, seconds in measured[count].stages.items():
                share = f", cores busy for {measured[count].busy[stage]:.0%}" if stage in measured[count].busy else ""
                print(f"    {stage}: {seconds:.1f} s{share}", flush=True)
    _print_exponents(measured, sizes)


def _memory(measured: Measured) -> str:
    return ", ".join(f"{process} at most {peak / 2**30:.2f} GiB" for process, peak in measured.peaks.items())


def _print_exponents(found: Mapping[int, Measured], trained: Sequence[int]) -> None:
    """Print the exponent of each stage's seconds.

    Stages that the untrained run computes like any other are measured there, too: its blocks fill the cores better.
    """
    if len(trained) < 2:
        return
    for stage in found[trained[0]].stages:
        counts = list(found) if stage in ALIKE else list(trained)
        slope = exponent(counts, [found[count].stages.get(stage, math.nan) for count in counts])
        remark = f" ({slope / 2:.2f} for each pair of a query and a public image)" if stage == "search" else ""
        print(f"{stage}: seconds grow with images to the power of {slope:.2f}{remark}")


def kill(count: int, folder: Path) -> bool:
    """Kill the driver with -9 in several stages, run the audit again, and print what was lost; return whether nothing was.

    The finished audit of this size tells which stages there are, and what an audit that nobody killed finds.
    """
    store, kept = folder / f"store-{count}", True
    finished, expected = _committed(store), _findings(store)
    stages = [
        stage for stage in KILLED if _parts(finished, stage) and not (stage == "decode" and _parts(finished, "decode_block"))
    ]
    with cluster() as address:
        for stage in stages:
            shutil.rmtree(store)
            audit(folder, count, address, untrained=False, kill_in=stage)
            before = _committed(store)
            measured = audit(folder, count, address, untrained=False)
            outcome = Outcome(stage, before, _committed(store), equal=_findings(store) == expected)
            print(f"{outcome}; the rest took {measured.seconds:.0f} s", flush=True)
            kept &= not outcome.faults
    return kept


@dataclass(frozen=True)
class Outcome:
    """The artifacts, with their attempts, of an audit that was killed in a stage, and of the same audit run again.

    Attributes:
        stage: the stage.
        before, after: attempt of each committed artifact after the kill and at the end.
        equal: whether the findings are those of an audit that was not killed.
    """

    stage: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    equal: bool

    @property
    def faults(self) -> list[str]:
        """Reasons for which the kill was too late, or something was lost by it."""
        again = sum(self.after.get(name) != attempt for name, attempt in self.before.items())
        found = [f"{again} of them were made again"] if again else []
        if _parts(self.before, self.stage) >= _parts(self.after, self.stage):
            found.append("the stage was finished before the kill")
        return found if self.equal else [*found, "the findings differ"]

    def __str__(self) -> str:
        done, parts = _parts(self.before, self.stage), _parts(self.after, self.stage)
        there = f"killed in {self.stage}, {done} of its {parts} parts done: {len(self.before)} artifacts were there"
        return f"{there}, " + ("FAILED: " + ", ".join(self.faults) if self.faults else "none was made again, equal findings")


def _parts(artifacts: Mapping[str, str], stage: str) -> int:
    """Return the number of artifacts of a stage."""
    return sum(name.startswith(f"{stage}/") for name in artifacts)


def _committed(store: Path) -> dict[str, str]:
    """Return the attempt of each committed artifact, by stage and key."""
    attempts = {}
    for path in store.glob("artifacts/**/manifest.json"):
        attempts[str(path.parent.relative_to(store / "artifacts"))] = json.loads(path.read_text())["attempt"]
    return attempts


def _findings(store: Path) -> Any:
    """Return the findings of the only run in a store."""
    (manifest,) = store.glob("runs/*/manifest.json")
    return json.loads(manifest.read_text())["findings"]


def imagenet(sizes: Sequence[int], largest: int, folder: str | None) -> None:
    """Run all measurements in `folder`, where finished work is used again, or in a temporary folder."""
    with contextlib.ExitStack() as stack:
        here = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        here.mkdir(parents=True, exist_ok=True)
        measure(sizes, largest, here)
        if sizes and not kill(sizes[0], here):
            raise SystemExit("a kill came too late, lost work or changed what was found")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--untrained-run", action="store_true", required=True)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    untrained_run(chosen.recipe, chosen.store, chosen.set)
