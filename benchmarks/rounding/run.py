"""Run the tests that train or compute floats as other processors round them, with other threads and seeds: `make test-rounding`.

PyTorch and oneDNN are told to use older instructions. Prints a table, and exits with 1 if a test fails.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = [
    f"tests/memlib/{name}" for name in ("audits", "data", "models", "objectives", "observe", "report", "stats", "training")
]
AUDITS = [f"tests/end_to_end/test_{name}.py" for name in ("deja_vu", "exposure", "forgetting", "in_python", "unique_feature")]
DOCUMENTS = ["-p", "commands", "README.md", "docs/quick-start.md", "docs/tutorials", "docs/how-to"]
SETTINGS = [  # instructions of PyTorch and of oneDNN, threads, shift of all seeds, tests
    ("default", "SSE41", 1, 1, [*UNITS, *AUDITS]),
    ("avx2", "AVX2", 4, 2, [*UNITS, *AUDITS]),
    ("default", "SSE41", 4, 3, UNITS),
    ("avx2", "AVX2", 1, 4, UNITS),
    ("default", "SSE41", 2, 0, DOCUMENTS),
]
ALONE = (DOCUMENTS,)  # documents share one store, so they are not run side by side


def processor() -> str:
    """Return the name of this machine's processor."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def run(setting: int) -> tuple[str, list[str]]:
    """Run the tests of a setting; return a row of the table, and the tests that failed."""
    kernels, instructions, threads, seed, tests = SETTINGS[setting]
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": kernels, "ONEDNN_MAX_CPU_ISA": instructions, "OMP_NUM_THREADS": str(threads),
        "MEMLIB_TEST_SEED": str(seed), "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks/rounding"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip
    options = [] if tests in ALONE else ["--numprocesses", "2", "--dist", "loadfile"]
    started = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--no-header",
        "-o",
        "addopts=",
        "--strict-markers",
        "--import-mode=importlib",
    ]
    done = subprocess.run(
        [*command, "-m", "not slow and not docs", *options, *tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counts = re.findall(r"(\d+) (passed|failed|error|errors|skipped)", done.stdout.splitlines()[-1] if done.stdout else "")
    if done.returncode and not failed:
        failed = [(done.stdout + done.stderr)[-2000:]]
    what = "documents" if tests is DOCUMENTS else "unit tests" + (" and audits" if tests is not UNITS else "")
    found = ", ".join(f"{number} {word}" for number, word in counts)
    minutes = (time.monotonic() - started) / 60
    return f"| {kernels} | {instructions} | {threads} | {seed} | {what} | {found} | {minutes:.0f} |", failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", type=int, nargs="*", choices=range(len(SETTINGS)), default=list(range(len(SETTINGS))))
    every = []
    print(f"{processor()}, {time.strftime('%Y-%m-%d')}\n")
    print("| PyTorch's kernels | oneDNN | threads | shift of seeds | tests | result | min |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for setting in parser.parse_args().setting:
        row, failed = run(setting)
        print(row, flush=True)
        every += failed
    print("\n".join(["", *every]) if every else "")
    return bool(every)


if __name__ == "__main__":
    sys.exit(main())
