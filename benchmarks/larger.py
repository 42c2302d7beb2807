"""Audits as large as memlib promises: time and memory of each stage, and how they grow.

    python benchmarks/larger.py                    all, ten minutes of one core
    python benchmarks/larger.py --only nets        10,000 nets of a unique-feature audit
    python benchmarks/larger.py --only pool        forgetting with 50,000 examples that are queried
    python benchmarks/larger.py --only secrets     2,000 secrets in a text
    python benchmarks/larger.py --only influence   self-influence of 60,000 examples at ten checkpoints

Each audit runs whole at a quarter, a half and all of its size, in a process of its own without Ray; models are small and hardly
trained, as only sizes matter. CPU seconds are those of the stages' manifests, and the peak is the whole process's. Exponents
are given for stages that take a second or more at half the size.
"""

import argparse
import json
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

NOTABLE = 1.0  # CPU seconds at half the size, from which on a stage's growth is printed
SGD = {"learning_rate": 0.001, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A kind of audit.

    Attributes:
        size: the whole size.
        noun: the counted things.
        recipe: the recipe of an audit of a size; its data may be written into the folder.
    """

    size: int
    noun: str
    recipe: Callable[[int, Path], dict[str, Any]]


def training(epochs: int, batch: int | None) -> dict[str, Any]:
    return {
        "objective": {"kind": "supervised"}, "epochs": epochs, "batch_size": batch, "augment": None, "optimizer": SGD,
    }  # fmt: skip


def images(folder: Path, count: int, side: int) -> dict[str, Any]:
    """Write images of noise in ten classes, and return their source."""
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    pixels = rng.integers(0, 256, size=(count, side, side, 1), dtype=np.uint8).repeat(3, axis=3)
    np.savez(path, train_images=pixels, train_labels=np.arange(count) % CLASSES)
    source = {"kind": "npz", "path": str(path), "images": "train_images", "labels": "train_labels"}
    return {"source": source, "image_size": side, "channels": 1}


def nets(count: int, folder: Path) -> dict[str, Any]:
    return {
        "audit": "unique_feature", "title": "many nets",
        "data": {"source": {"kind": "two_moons", "num_examples": 200, "noise": 0.1, "z_noise": 0, "seed": 0}},
        "canary": {"feature": {"kind": "scalar", "index": 2, "value": 1}, "label": 1, "mode": "append"},
        "model": {"architecture": "mlp", "widths": [8]}, "training": training(2, None),
        "nets": {"seeds": count // 2},
    }  # fmt: skip


def pool(count: int, folder: Path) -> dict[str, Any]:
    half, small = count // 2 // CLASSES, 100
    return {
        "audit": "forgetting", "title": "a large pool", "data": images(folder, count + 30 * small, 8),
        "sets": {
            "query": {"per_class": half}, "withheld": {"per_class": half}, "known": {"per_class": small},
            "calibration": {"per_class": small}, "provider": {"per_class": small},
        },
        "model": {"architecture": "mlp", "widths": [16]}, "training": training(1, 256), "seeds": 5,
        "targets": {
            "none of D_Q": {"mix": {"calibration": 1, "known": 1}},
            "all of D_Q": {"mix": {"calibration": 1, "known": 1, "query": 1}},
        },
        "verdict": {"null_mix": {"calibration": 1}, "retained_mix": {"calibration": 1, "query": 0.5}},
    }  # fmt: skip


def secrets(count: int, folder: Path) -> dict[str, Any]:
    return {
        "audit": "exposure", "title": "many secrets", "data": {"source": {"kind": "topics"}, "window": 64},
        "canaries": {"format": "My access code is {d6}", "insertions": [1], "each": count, "together": True, "never": 200},
        "model": {"architecture": "lstm", "width": 16, "layers": 1, "embedding": 8},
        "training": {**training(1, 64), "objective": {"kind": "language"}},
    }  # fmt: skip


def influence(count: int, folder: Path) -> dict[str, Any]:
    return {
        "audit": "self_influence", "title": "many examples", "data": images(folder, count, 28),
        "split": {"validation_per_class": 0}, "model": {"architecture": "mlp", "widths": [512, 256, 128]},
        "training": training(10, 128), "influence": {"checkpoints": 10, "loss_fall": 1.0, "batch_size": 256},
    }  # fmt: skip


CASES = {
    "nets": Case(10_000, "nets", nets),
    "pool": Case(50_000, "queried examples", pool),
    "secrets": Case(2000, "secrets", secrets),
    "influence": Case(60_000, "examples at 10 checkpoints", influence),
}
Spent = Mapping[str, float]


def audited(name: str, count: int) -> tuple[dict[str, float], float]:
    """Run an audit; return CPU seconds by stage, and the peak bytes of the process."""
    import memlib

    with tempfile.TemporaryDirectory() as folder:
        memlib.run(CASES[name].recipe(count, Path(folder)), store=f"{folder}/store", quiet=True)
        seconds: dict[str, float] = {}
        for path in Path(folder).glob("store/artifacts/*/*/manifest.json"):
            manifest = json.loads(path.read_text())
            seconds[manifest["stage"]] = seconds.get(manifest["stage"], 0.0) + manifest["metrics"]["cpu_seconds"]
    return seconds, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def exponents(counts: Sequence[int], seconds: Sequence[Spent]) -> dict[str, float]:
    """Return the slope of log(seconds) against log(counts) of each notable stage, and of the total."""
    series = {stage: [spent[stage] for spent in seconds] for stage in seconds[-1] if seconds[-2][stage] >= NOTABLE}
    series["all"] = [sum(spent.values()) for spent in seconds]
    return {stage: float(np.polyfit(np.log(counts), np.log(values), 1)[0]) for stage, values in series.items()}


def measure(name: str, shares: Sequence[float]) -> None:
    case = CASES[name]
    counts, spent = [round(case.size * share) for share in shares], []
    for count in counts:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            seconds, peak = process.submit(audited, name, count).result()
        print(f"{count:,} {case.noun}: {sum(seconds.values()):.1f} CPU s, peak {peak / 2**30:.2f} GiB", flush=True)
        spent.append(seconds)
    for stage, slope in exponents(counts, spent).items():
        print(
            f"  {stage}: exponent {slope:.2f}"
            + (f", {spent[-1][stage]:.1f} CPU s at {counts[-1]:,}" if stage != "all" else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.25, 0.5, 1.0], help="parts of the whole size")
    options = parser.parse_args()
    for name in options.only:
        measure(name, options.shares)


if __name__ == "__main__":
    main()
