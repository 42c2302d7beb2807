"""A déjà vu audit of the size of ImageNet on one machine: every stage's time and memory at growing numbers of images.

The images are 32 pixels wide, in 1,000 classes, each with a box; a quarter of them are audited on each side, half are public;
the encoder is tiny (64 numbers an image). A Ray cluster of a head without cores and one node of all cores carries the stages,
as on Kubernetes; the driver is the command `memlib run`. With `untrained`, models have their first weights and neighbours are
drawn at random, so that only training and search are left out.
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
PARTS = ("decode_block", "embed", "search", "score")  # stages in which the driver is killed
ALIKE = ("decode_block", "decode", "split", "report")  # stages that an untrained run has as any other
KILL_SECONDS = 2.0  # after a stage of one part has begun
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
    """What a run took.

    Attributes:
        seconds: of the whole.
        busy: of the steps whose parts fill all cores, the parts' seconds by those of the cores between the step's ends.
        stages: seconds of each stage: from the beginning of its first part to the end of its last.
        peaks: bytes of memory of the driver, and of the largest worker.
    """

    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=lambda: {"driver": 0, "worker": 0})


def make_images(folder: Path, count: int) -> None:
    """Write Parquet files of JPEG images: noise with an object in the colours of its class, in a box."""
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
    """The audit of so many images."""
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
    """A Ray head without cores and a node with all of this machine's; yields its address."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # before anything imports Ray, which reads it once
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        started.add_node(num_cpus=os.cpu_count() or 1)
        yield started.address
    finally:
        started.shutdown()


def audit(folder: Path, count: int, address: str, *, untrained: bool, kill_in: str | None = None) -> Measured:
    """Run the audit as a driver of its own, and measure it; where it is to be killed in a stage, until then."""
    images, store = folder / f"images-{count}", folder / f"store-{count}"
    if not images.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder / "new")
        make_images(folder / "new", count)
        (folder / "new").rename(images)
    recipe = folder / f"recipe-{count}.json"
    layers = ("backbone", "projector_1") if untrained else ("backbone",)
    recipe.write_text(json.dumps(recipe_of(images, count, layers)))
    what = [str(Path(__file__)), "--untrained-run"] if untrained else ["-m", "flows.entry", "run", "deja-vu"]
    command = [sys.executable, *what, "--recipe", str(recipe), "--store", str(store)]
    command += ["--set", f"resources.ray_address={address}", "--set", "resources.threads_per_worker=1"]
    measured, started = Measured(), time.monotonic()
    environment = os.environ | {"MEMLIB_LOG": "json", "PYTHONPATH": str(Path(__file__).parents[1])}
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    watching = threading.Thread(target=_watch, args=(driver, measured), daemon=True)
    watching.start()
    assert driver.stderr is not None
    lines = []
    for line in driver.stderr:
        lines.append(line)
        with contextlib.suppress(ValueError, KeyError):
            event = json.loads(line)
            if event["stage"] == kill_in and event["event"] == "computing":
                _wait_for_a_part(store, kind=kill_in, count=event["facts"]["count"])
                for process in [*psutil.Process(driver.pid).children(recursive=True), psutil.Process(driver.pid)]:
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGKILL)
                break
    driver.wait()
    measured.seconds = time.monotonic() - started
    if not kill_in:
        measured.stages, measured.busy = _spans(store)
    assert driver.returncode == 0 or kill_in, "".join(lines[-20:])
    return measured


def _wait_for_a_part(store: Path, *, kind: str, count: int) -> None:
    """Until one part of a stage is done and others are under way; of a single part until it is."""
    if count == 1:
        time.sleep(KILL_SECONDS)
        return
    while not any(store.glob(f"artifacts/{kind}/*/manifest.json")):
        time.sleep(0.05)


def _spans(store: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each stage by the manifests of its artifacts, in order: from its first part's beginning to its last one's end.

    And which share of the cores' time between these the parts took, where there are several.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    for path in store.glob("artifacts/*/*/manifest.json"):
        said = json.loads(path.read_text())
        times.setdefault(said["stage"], []).append((said["finished"] - said["metrics"]["seconds"], said["finished"]))
    spans = {stage: (min(begun for begun, _ in of), max(ended for _, ended in of)) for stage, of in times.items()}
    ordered = {stage: ended - begun for stage, (begun, ended) in sorted(spans.items(), key=lambda item: item[1])}
    work = {stage: sum(ended - begun for begun, ended in of) for stage, of in times.items() if len(of) > 1}
    return ordered, {stage: work[stage] / (ordered[stage] * (os.cpu_count() or 1)) for stage in work}


def _watch(driver: subprocess.Popen[str], measured: Measured) -> None:
    """Note the largest memory of the driver with what it started, and of any of Ray's workers, a few times a second.

    What draws neighbours in their stead is no part of the driver.
    """
    while driver.poll() is None:
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(driver.pid)
            mine = [own, *(one for one in own.children(recursive=True) if "spawn_main" not in " ".join(one.cmdline()))]
            measured.peaks["driver"] = max(measured.peaks["driver"], sum(_private(one) for one in mine))
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                if any("ray::" in part for part in process.info["cmdline"] or []):
                    measured.peaks["worker"] = max(measured.peaks["worker"], _private(process))
        time.sleep(0.3)


def _private(process: psutil.Process) -> int:
    """Bytes of memory that are the process's own: pages of mapped files can be taken back at any time."""
    found = process.memory_info()
    return int(found.rss - found.shared)


def untrained_run(recipe: str, store: str, settings: Sequence[str]) -> None:
    """The driver of an audit whose models and neighbours are given; all other stages are real."""
    from flows.deja_vu import audit as body
    from flows.recipes import load_recipe, validate
    from memlib.audits import AUDITS
    from memlib.audits.deja_vu.stages import Search
    from memlib.specs import Resources
    from memlib.store import Store
    from memlib.training.fit import Train
    from tasks.cluster import stop_ray
    from tasks.runtime import Context
    from tasks.stage import StageRunner

    class Given(StageRunner):
        """Makes what takes long by drawing it, in a process of its own, before the stage looks for it."""

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
        context = Context(opened, Resources(**resources), quiet=True)
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

    from memlib.audits.deja_vu.stages import DISTANCES, IDS, NEIGHBORS

    for number, stage in enumerate(pickle.loads(pickled)):
        if stage.public.parts[0].store.artifacts.has(stage.identity.ref):
            continue
        rng, ids = np.random.default_rng(number), stage.queries.content.ids
        public = stage.public.ids["label"].to_numpy()
        by_class = np.split(np.argsort(public, kind="stable"), np.cumsum(np.bincount(public))[:-1])
        rows = rng.integers(0, len(public), size=(ids.num_rows, stage.k))
        for label in range(CLASSES):  # a few of their own class, so that some are named
            mine = ids["label"].to_numpy() == label
            rows[mine, :2] = rng.choice(by_class[label], size=(int(mine.sum()), 2))
        with stage.queries.store.artifacts.write(stage.identity.ref, **stage.record({})) as attempt:
            np.save(attempt.path(NEIGHBORS), rows)
            np.save(attempt.path(DISTANCES), np.sort(rng.random(rows.shape, dtype=np.float32), axis=1))
            pq.write_table(ids, attempt.path(IDS), compression="zstd")


def exponent(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of seconds against counts, both as logarithms."""
    return float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])


def measure(sizes: Sequence[int], largest: int, folder: Path) -> None:
    """Print times, memory and exponents of audits of these sizes, and of one that is as large as ImageNet."""
    found: dict[int, Measured] = {}
    with cluster() as address:
        for count, untrained in [*((size, False) for size in sizes), *([(largest, True)] if largest else [])]:
            found[count] = audit(folder, count, address, untrained=untrained)
            print(f"{count:,} images: {found[count].seconds:.0f} s; {_memory(found[count])}", flush=True)
            for stage, seconds in found[count].stages.items():
                share = f", cores busy for {found[count].busy[stage]:.0%}" if stage in found[count].busy else ""
                print(f"    {stage}: {seconds:.1f} s{share}", flush=True)
    _print_exponents(found, sizes)


def _memory(measured: Measured) -> str:
    return ", ".join(f"{who} at most {peak / 2**30:.2f} GiB" for who, peak in measured.peaks.items())


def _print_exponents(found: Mapping[int, Measured], trained: Sequence[int]) -> None:
    """Of stages that the untrained run has in just the same way, from that one, too: its blocks fill the cores better."""
    if len(trained) < 2:
        return
    for stage in found[trained[0]].stages:
        counts = list(found) if stage in ALIKE else list(trained)
        slope = exponent(counts, [found[count].stages.get(stage, math.nan) for count in counts])
        said = f" ({slope / 2:.2f} for each pair of a query and a public image)" if stage == "search" else ""
        print(f"{stage}: seconds grow with images to the power of {slope:.2f}{said}")


def kill(count: int, folder: Path) -> None:
    """Kill the driver with -9 in several stages, run the audit again, and print what was lost."""
    with cluster() as address:
        for stage in PARTS:
            shutil.rmtree(folder / f"store-{count}", ignore_errors=True)
            audit(folder, count, address, untrained=False, kill_in=stage)
            before = _committed(folder / f"store-{count}")
            measured = audit(folder, count, address, untrained=False)
            after = _committed(folder / f"store-{count}")
            again = [name for name, attempt in before.items() if after.get(name) != attempt]
            parts, done = (sum(name.startswith(f"{stage}/") for name in names) for names in (after, before))
            print(
                f"killed in {stage}, {done} of its {parts} parts done: {len(before)} artifacts were there, "
                f"{len(again)} of them were made again; the rest took {measured.seconds:.0f} s",
                flush=True,
            )


def _committed(store: Path) -> dict[str, str]:
    """The attempt at each artifact, by stage and key."""
    found = {}
    for path in store.glob("artifacts/**/manifest.json"):
        found[str(path.parent.relative_to(store / "artifacts"))] = json.loads(path.read_text())["attempt"]
    return found


def imagenet(sizes: Sequence[int], largest: int, folder: str | None) -> None:
    """Measure in a folder that stays, where one is named: what is there is not done again."""
    with contextlib.ExitStack() as stack:
        here = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        here.mkdir(parents=True, exist_ok=True)
        measure(sizes, largest, here)
        if sizes:
            kill(sizes[0], here)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--untrained-run", action="store_true", required=True)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    untrained_run(chosen.recipe, chosen.store, chosen.set)
