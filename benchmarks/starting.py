"""How long commands take that have nothing to compute, of one installation or of several in turn.

python benchmarks/starting.py [--times N] MEMLIB [MEMLIB ...]

Each MEMLIB is the path of a `memlib` command. The first run of the recipe `smoke` by each fills its store; then plan, a run
of what is finished, and --help are timed, the installations taking turns.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median


def main() -> None:
    """Print seconds of each command, and what each installation takes relative to the last one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("memlib", nargs="+")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stores = [str(Path(folder) / f"store-{number}") for number in range(len(given.memlib))]
        for memlib, store in zip(given.memlib, stores, strict=True):
            _seconds([memlib, "run", "deja-vu", "--recipe", "smoke", "--quiet", "--store", store])
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(given.times):
            for memlib, store in zip(given.memlib, stores, strict=True):
                audit = ["deja-vu", "--recipe", "smoke", "--store", store]
                for name, command in {"plan": ["plan", *audit], "run": ["run", *audit], "--help": ["--help"]}.items():
                    took.setdefault((name, memlib), []).append(_seconds([memlib, *command]))
    print("| command | installation | median s | range s | times the last |")
    print("|---|---|---|---|---|")
    for (name, memlib), seconds in sorted(took.items(), key=lambda item: item[0][0]):
        ratio = median(a / b for a, b in zip(seconds, took[name, given.memlib[-1]], strict=True))
        place = given.memlib.index(memlib) + 1
        print(f"| {name} | {place} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | {ratio:.2f} |")


def _seconds(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
