"""Checks, their findings, and the lines that they print and record."""

import datetime
import importlib.metadata
import json
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NO_GPU = "needs a GPU"
NAMED = ("memlib", "torch", "faiss-cpu", "faiss-gpu", "ray", "prefect", "numpy")
# between two sets of kernels of one CPU: 6e-3 for a step of ResNet-18 at 64 px, 3e-5 for the short trainings of a small one
SAME_CHANGES = 5e-2  # relative difference, on another device, of the changes of weights by short trainings at small rates
SAME_OUTPUTS = 1e-3  # relative difference, on another device, of outputs in float32


class Clock:
    """The time that a section has left.

    Args:
        seconds: time of the section, from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())


@dataclass(frozen=True)
class Found:
    """The result of a check.

    Attributes:
        passed: whether the check passed; None for a measurement without a bound.
        text: the result in words.
        numbers: the result for the file.
    """

    passed: bool | None
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check of a section.

    Attributes:
        name: its name in the table.
        work: the check.
        missing: what this machine lacks; a check that lacks something is skipped.
    """

    name: str
    work: Callable[[], Found]
    missing: str = ""


@dataclass(frozen=True)
class Report:
    """The table that is printed, and the file that keeps it.

    Attributes:
        results: file to which a line of JSON is appended per check.
        device: the device that is checked.
    """

    results: Path
    device: str

    def add(self, section: str, check: str, found: Found, *, seconds: float, skipped: bool = False) -> None:
        """Print a row and append it to the file."""
        word = "skipped" if skipped else {True: "passed", False: "FAILED", None: ""}[found.passed]
        print(f"| {section} | {check} | {word} | {found.text} | {seconds:.1f} |", flush=True)
        row = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "device": self.device,
            "section": section, "check": check, "passed": found.passed, "skipped": skipped, "found": found.text,
            **found.numbers, "seconds": round(seconds, 2), "machine": machine(self.device), "versions": versions(),
        }  # fmt: skip
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")


def machine(device: str) -> dict[str, Any]:
    """Return the system, the cores, and the GPU if there is one to check."""
    facts: dict[str, Any] = {"system": platform.platform(), "cores": os.cpu_count()}
    if device == "cuda":
        import torch

        facts |= {"gpu": torch.cuda.get_device_name(), "gpu_bytes": torch.cuda.get_device_properties(0).total_memory}
        facts |= {"cuda": torch.version.cuda}
    return facts


def versions() -> dict[str, str]:
    """Return the versions of the libraries that compute."""
    found = {name: _version(name) for name in NAMED}
    return {"python": platform.python_version()} | {name: version for name, version in found.items() if version}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def carry_out(section: str, checks: Iterable[Check], clock: Clock, report: Report) -> bool:
    """Carry out a section's checks until its time is spent; return whether none failed and none was left out for time."""
    passed = True
    for check in checks:
        started = time.monotonic()
        skipped = bool(check.missing)
        if skipped:
            found = Found(None, f"not run: {check.missing}")
        elif not clock.left:
            found = Found(False, f"not run: the section's {clock.seconds:g} s are spent")
        else:
            found = _found(check)
        passed &= found.passed is not False
        report.add(section, check.name, found, seconds=time.monotonic() - started, skipped=skipped)
    return passed


def _found(check: Check) -> Found:
    try:
        return check.work()
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        return Found(False, f"{type(error).__name__}: {lines[-1]}")


def difference(first: np.ndarray, second: np.ndarray) -> float:
    """Return the norm of the difference of two arrays, relative to the norm of the first."""
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


def seconds_of(work: Callable[[], object], device: Any) -> float:
    """Return the seconds of a call, including all that it put on the device."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def only_on_gpu(device: Any) -> str:
    """Return what a check that needs a GPU lacks on a device."""
    return "" if device.type == "cuda" else NO_GPU
