"""Start-up time of commands that have nothing to compute, for one installation or several in turn.

python benchmarks/starting.py [--times N] [MEMLIB ...]

Without a path, --help of this installation takes turns with Python that only imports the libraries of its command line, in CPU
seconds. Each MEMLIB is the path of a `memlib` command. Each first runs the recipe `smoke` to fill its own store; then plan, a run of
the finished audit, a gate and --help are timed, the installations taking turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

LIBRARIES = "import cyclopts, cyclopts.help, rich.markdown"


def beside_libraries(times: int) -> None:
    """Print the CPU seconds of --help, those of the libraries of the command line alone, and the median ratio."""
    commands = {"help": ["-m", "flows.cli.entry", "--help"], "libraries": ["-c", LIBRARIES]}
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times):
        for name, words in commands.items():
            before = os.times()
            _seconds([sys.executable, *words])
            after = os.times()
            found[name].append(after.children_user + after.children_system - before.children_user - before.children_system)
    ratio = median(a / b for a, b in zip(*found.values(), strict=True))
    whole, libraries = (median(seconds) for seconds in found.values())
    print(f"--help: {whole:.2f} CPU s; Python and the libraries of the command line {libraries:.2f}; ratio {ratio:.2f}")


def main() -> None:
    """Print the seconds of each command, and the time of each installation relative to the last one's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("memlib", nargs="*")
    options = parser.parse_args()
    if not options.memlib:
        return beside_libraries(options.times)
    with tempfile.TemporaryDirectory() as folder:
        stores = [str(Path(folder) / f"store-{number}") for number in range(len(options.memlib))]
        for memlib, store in zip(options.memlib, stores, strict=True):
            _seconds([memlib, "run", "deja-vu", "--recipe", "smoke", "--quiet", "--store", store])
        policy = Path(folder) / "policy.yaml"
        policy.write_text("audits: [{audit: deja_vu, verdicts: [shown]}]\n")
        durations: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.times):
            for memlib, store in zip(options.memlib, stores, strict=True):
                audit = ["deja-vu", "--recipe", "smoke", "--store", store]
                commands = {
                    "plan": ["plan", *audit], "run": ["run", *audit], "--help": ["--help"],
                    "gate": ["gate", "--policy", str(policy), "--store", store],
                }  # fmt: skip
                for name, command in commands.items():
                    durations.setdefault((name, memlib), []).append(_seconds([memlib, *command]))
    print("| command | installation | median s | range s | times the last |")
    print("|---|---|---|---|---|")
    for (name, memlib), seconds in sorted(durations.items(), key=lambda item: item[0][0]):
        ratio = median(a / b for a, b in zip(seconds, durations[name, options.memlib[-1]], strict=True))
        place = options.memlib.index(memlib) + 1
        print(f"| {name} | {place} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {ratio:.2f} |")


def _seconds(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
