"""One small déjà vu audit on Prefect and Ray, its models trained by tasks and by Ray Train, beside the CPU in one process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.device.checks import SAME_CHANGES, Check, Clock, Found, difference
from memlib.pipeline.stage import Artifact
from memlib.store import Ref, Store
from memlib.training.fit import Train

EPOCHS = 4
# plain gradient descent at a small rate: at larger ones, a ReLU that rounding flips in a flat background grows to whole steps
RECIPE = f"""
audit: deja_vu
title: a GPU beside the CPU
data: {{source: {{kind: scenes, num_examples: 240, size: 16, digit_size: 8, background: palette}}, image_size: 16}}
split: {{train_per_class: 6}}
model: {{backbone: small_resnet, width: 8, projector: [32, 32], input_size: 16}}
training:
  objective: {{kind: supervised}}
  epochs: {EPOCHS}
  batch_size: 10
  checkpoint_epochs: [0]
  optimizer: {{name: sgd, learning_rate: 0.0001, momentum: 0, weight_decay: 0, warmup_epochs: 0, schedule: constant}}
decode: {{k: [5], replicates: 200, permutations: 200}}
"""
COMPARED = ("accuracy_target", "accuracy_reference")
SAME_ACCURACIES = 0.1  # of images whose nearest neighbours are nearly as far away as others
ENDING_SECONDS = 6.0  # for a run that is stopped
IN_PROCESS, TASKS, RAY_TRAIN = "the CPU in one process", "tasks", "Ray Train"


@dataclass(frozen=True)
class Audit:
    """The results of an audit.

    Attributes:
        devices: the devices on which its models were trained.
        changes: the changes of each model's weights in training, by the model's key.
        values: the values of metrics.
    """

    devices: frozenset[str]
    changes: Mapping[str, np.ndarray]
    values: Mapping[str, float]


@dataclass
class Placements:
    """The audits of this section, each with its own store.

    Attributes:
        folder: folder of the recipe and the stores.
        device: the device of the audits on Ray.
        clock: the section's time.
        done: the audits that have ended.
    """

    folder: Path
    device: str
    clock: Clock
    done: dict[str, Audit] = field(default_factory=dict)

    def in_process(self) -> Found:
        """Run the audit on the CPU in one process."""
        self.done[IN_PROCESS] = audit = self._audit(IN_PROCESS, "--in-process", "--set", "resources.gpu=false")
        return Found(audit.devices == {"cpu"} and len(audit.changes) == 2, _said(audit), dict(audit.values))

    def on_ray(self, name: str, trainer: str) -> Found:
        """Run the audit on Ray with a trainer; compare its weights and accuracies with those of the CPU."""
        gpu = str(self.device == "cuda").lower()
        settings = ("--set", f"resources.trainer={trainer}", "--set", f"resources.gpu={gpu}")
        self.done[name] = audit = self._audit(name, *settings)
        return self.compared(name, IN_PROCESS, _said(audit), audit.devices == {self.device})

    def compared(self, name: str, other: str, said: str = "", placed: bool = True) -> Found:
        """Compare the weights and the accuracies of two audits."""
        if missing := {name, other} - self.done.keys():
            return Found(False, f"no audit to compare with: {', '.join(sorted(missing))} failed")
        mine, theirs = self.done[name], self.done[other]
        assert mine.changes.keys() == theirs.changes.keys(), "equal recipes have equal keys"
        apart = max(difference(theirs.changes[key], mine.changes[key]) for key in mine.changes)
        off = max(abs(mine.values[metric] - theirs.values[metric]) for metric in COMPARED)
        most = 0.0 if self.device == "cpu" else SAME_CHANGES
        same = apart <= most and off <= SAME_ACCURACIES * (self.device != "cpu")
        text = f"beside {other}: weights differ by {apart:.1e} of their change (at most {most:g}), accuracies by {off:.3f}"
        found = {"weights": apart, "accuracies": off, **mine.values}
        return Found(placed and same, "; ".join(filter(None, (said, text))), found)

    def _audit(self, name: str, *settings: str) -> Audit:
        store = self.folder / name.replace(" ", "-")
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(RECIPE)
        command = [sys.executable, "-m", "flows.cli.entry", "run", str(recipe), "--store", str(store), "--quiet", "--json"]
        record = json.loads(_output([*command, *settings], self.clock.left))
        values = {row["metric"]: row["value"] for row in record["findings"] if row["metric"] in COMPARED}
        return Audit(*_trained(Store(str(store))), values)


def _said(audit: Audit) -> str:
    accuracies = ", ".join(f"{metric} {value:.3f}" for metric, value in audit.values.items())
    return f"{len(audit.changes)} models on {', '.join(sorted(audit.devices))}; {accuracies}"


def _output(command: list[str], seconds: float) -> str:
    """Return what a command prints; end it, and what it started, when its time is over.

    Raises:
        RuntimeError: if the command fails or takes longer.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("MEMLIB_ENGINE", "PREFECT_API_URL")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        output, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=ENDING_SECONDS)
        process.kill()
        raise RuntimeError(f"the audit did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise RuntimeError(f"the audit ended with status {process.returncode}: {said.strip()[-500:]}")
    return output


def _trained(store: Store) -> tuple[frozenset[str], dict[str, np.ndarray]]:
    """Return the devices of a store's models, and the change of each model's weights."""
    devices, changes = set(), {}
    for key in store.names("artifacts/train"):
        artifact = Artifact(store, Ref("train", key), Train)
        devices.add(str(artifact.facts["device"]))
        first, last = (weights_of(artifact.content.load(epoch=epoch)[0]) for epoch in (0, EPOCHS))
        changes[key] = last - first
    return frozenset(devices), changes


def weights_of(model: torch.nn.Module) -> np.ndarray:
    """Return all parameters of a model, (num_parameters,) float32."""
    numbers: Any = torch.cat([weight.detach().cpu().reshape(-1) for weight in model.parameters()]).numpy()
    return numbers


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the checks of the placements."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        placements = Placements(Path(folder), device.type, clock)
        yield Check(f"audit, {IN_PROCESS}", placements.in_process)
        yield Check(f"audit, {TASKS}", lambda: placements.on_ray(TASKS, "tasks"))
        yield Check(f"audit, {RAY_TRAIN}", lambda: placements.on_ray(RAY_TRAIN, "train"))
        yield Check(f"{TASKS} and {RAY_TRAIN}", lambda: placements.compared(TASKS, RAY_TRAIN))
