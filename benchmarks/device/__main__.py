"""Check a machine's GPU, once, in at most eight minutes: the results of the CPU, kills, memory limits, and speed.

    make gpu-check (python -m benchmarks.device)

Each section runs in a process of its own, which is ended when the section's time is over; a section that fails does not stop
the next one. Prints a row per check, and appends the same with the machine, the versions and the date to a file of JSON lines.
With --device cpu, checks that need a GPU are skipped, and the others compare the CPU with itself, on smaller data. Exits with 1
if a check failed or was left out for lack of time, and with 2 if there is no GPU.
"""

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device.checks import Clock, Found, Report, carry_out

ROOT = Path(__file__).parents[2]
RESULTS = "gpu-check.jsonl"
FAILED = 3  # status of a section's process of which a check failed; other errors of Python have status 1
LAST_SECONDS = 10.0  # of a section, in which it begins no further check and ends its audit
NEVER_RUN = (
    "placement on a GPU, by tasks and by Ray Train",
    "parts of stages that share a GPU (resources.stages.*.gpus below 1)",
    "NCCL (workers that train one model together on GPUs), which no check reaches",
    "the size of stacks of small nets on a GPU, and its halving",
    "resuming a training on a GPU",
    "search by FAISS on GPUs, in float32 and float16, and by PyTorch on a GPU",
    "training and embedding on a GPU in float32, bfloat16 and float16",
)
"""Paths of memlib that have never run on a GPU."""


@dataclass(frozen=True)
class Section:
    """A module of checks.

    Attributes:
        name: the module.
        seconds: time after which its process is ended.
        about: its checks in words.
    """

    name: str
    seconds: float
    about: str


SECTIONS = (
    Section("environment", 20, "PyTorch, CUDA, the build of FAISS, the GPU and its memory"),
    Section("placement", 190, "a small audit on Prefect and Ray, its models trained by tasks and by Ray Train"),
    Section("stacks", 60, "the chosen size of stacks of small nets beside others; a stack that memory does not hold"),
    Section("resuming", 60, "a training that is killed within an epoch"),
    Section("search", 50, "nearest neighbours by FAISS and PyTorch"),
    Section("objectives", 100, "embedding, and training by every objective"),
)


def carry_out_here(section: Section, report: Report) -> int:
    """Carry out a section in this process; return the process's status."""
    import torch

    from memlib.pipeline.arithmetic import be_exact

    be_exact()  # as in memlib's workers: no TF32
    clock = Clock(section.seconds - LAST_SECONDS)
    module = importlib.import_module(f"benchmarks.device.{section.name}")
    return 0 if carry_out(section.name, module.checks(torch.device(report.device), clock), clock, report) else FAILED


def carry_out_apart(section: Section, report: Report, command: Sequence[str]) -> bool:
    """Carry out a section in a process of its own; return whether it passed."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    status = None
    try:
        status = process.wait(timeout=section.seconds)
    except subprocess.TimeoutExpired:
        found = Found(False, f"ended after its {section.seconds:g} s")
    finally:  # what the section has started ends with it, also after an interrupt
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if status in (0, FAILED):
        return status == 0
    if status is not None:
        found = Found(False, f"its process ended with status {status}")
    report.add(section.name, "", found, seconds=time.monotonic() - started)
    return False


def described() -> str:
    """Return the sections with their times, and the paths that have never run, for the help."""
    sections = [f"  {section.name:12} {section.seconds:4g} s  {section.about}" for section in SECTIONS]
    return "\n".join(["sections:", *sections, "", "never run on a GPU so far:", *(f"  {path}" for path in NEVER_RUN)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device", description=__doc__, epilog=described(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    names = [section.name for section in SECTIONS]
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", nargs="+", choices=names, metavar="SECTION", help="only these sections")
    parser.add_argument("--results", type=Path, default=Path(RESULTS), help=f"file to append to (default: {RESULTS})")
    parser.add_argument("--here", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    report = Report(options.results.resolve(), options.device)
    if options.here:
        return carry_out_here(next(section for section in SECTIONS if section.name == options.here), report)
    if options.device == "cuda" and not _has_gpu():
        print("no GPU is visible to PyTorch; --device cpu runs the checks that need none", file=sys.stderr)
        return 2
    started = time.monotonic()
    print("| section | check | result | found | seconds |\n|---|---|---|---|---|", flush=True)
    command = [sys.executable, "-m", "benchmarks.device", "--device", options.device, "--results", str(report.results)]
    chosen = [section for section in SECTIONS if section.name in (options.only or names)]
    passed = [carry_out_apart(section, report, [*command, "--here", section.name]) for section in chosen]
    failed = [section.name for section, is_passed in zip(chosen, passed, strict=True) if not is_passed]
    ending = f"failed: {', '.join(failed)}" if failed else "every section passed"
    print(f"\n{ending}; {time.monotonic() - started:.0f} s; results are in {options.results}")
    return 1 if failed else 0


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
