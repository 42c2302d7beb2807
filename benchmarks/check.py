"""Check that memlib is still as fast beside plain versions and peers as docs/evidence/performance.md says, with margins.

    make bench-check

Runs shortened benchmarks, each of which alternates with its plain side in one process, and compares the ratios that they
print with bounds. Exits with 1 if a ratio is beyond its bound, or is not printed. Takes minutes; only ratios are compared,
so that other work on the machine matters little, and the peers are those of the test environment.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
NUMBER = r"([\d,]+\.?\d*)"


@dataclass(frozen=True)
class Bound:
    """A printed number and what it must be.

    Attributes:
        line: regular expression whose group is the number; all matches must be within the bound.
        least, most: the bound.
        lines: number of lines that must match.
    """

    line: str
    least: float = 0.0
    most: float = float("inf")
    lines: int = 1


CHECKS: dict[str, tuple[Bound, ...]] = {
    "plain_statistics.py --repeats 1 --part maxima summary redraws votes pld probe": (
        Bound(rf"^ranks of the maxima of 4,000 .* ratio +{NUMBER}", least=40, lines=2),
        Bound(rf"^ranks, 10 labels: exponent {NUMBER}", most=1.5),
        Bound(rf"^intervals and exchanges of one score of 1,000 .* ratio +{NUMBER}", least=2.5),
        Bound(rf"^redraws of 4,000 .* ratio +{NUMBER}", least=2.5),
        Bound(rf"^votes .* C 100, sorted .* ratio +{NUMBER}", least=3, lines=2),
        Bound(rf"^epsilon by PLD .* ratio +{NUMBER}", least=1.5),
        Bound(rf"^linear probe, 5,000 rows of 512, .* ratio +{NUMBER}", least=1.3),
    ),
    "decode.py --public 20000 --queries 1000 --dim 128 --repeats 3": (
        Bound(rf"^search .* ratio +{NUMBER}", least=2),
        Bound(rf"^vote, confidence, curves .* ratio +{NUMBER}", least=20),
        Bound(rf"same neighbours {NUMBER}%", least=99.9),
    ),
    "exposure.py --walks 1 --digits 5 --seconds 5": (
        Bound(rf"^enumeration, .* ratio {NUMBER}x", least=60),
        Bound(rf"^10\^6 references, .* ratio {NUMBER}x", least=20),
    ),
    "self_influence.py": (
        Bound(rf"^MLP-1 .*, loop: .* {NUMBER} times ours", least=40),
        Bound(rf"^CNN-2 .*, (?:loop|captum, batches): .* {NUMBER} times ours", least=2, lines=2),
    ),
    "shadow_nets.py --repeats 1": (Bound(rf"^30-\S+ .* ratio {NUMBER}; plain loop", least=3, lines=2),),
    "waiting.py --kinds tiny --times 3": (
        Bound(rf"^\| tiny \| 2 busy processes \| today .* \| {NUMBER} \| [\d.]+ \|$", most=1.1),
    ),
    "starting.py --times 5": (Bound(rf"^--help: .* ratio {NUMBER}$", most=2.5),),
}
"""Shortened benchmarks, and what must hold of their output."""


def judged(output: str, bounds: Sequence[Bound]) -> Iterator[tuple[str, bool]]:
    """Yield a line on each number that a benchmark printed, or should have printed, and whether it is within its bound."""
    for bound in bounds:
        found = [float(number.replace(",", "")) for number in re.findall(bound.line, output, re.MULTILINE)]
        wanted = f"at least {bound.least:g}" if bound.least else f"at most {bound.most:g}"
        if len(found) != bound.lines:
            yield f"{len(found)} instead of {bound.lines} lines like {bound.line}", False
        for number in found:
            yield f"{number:g}, {wanted}: {bound.line.partition(' ')[0].lstrip('^')}", bound.least <= number <= bound.most


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [command.partition(".py")[0] for command in CHECKS]
    parser.add_argument("--only", nargs="+", choices=names, help="by default all")
    options = parser.parse_args(arguments)
    passed = True
    for command, bounds in CHECKS.items():
        name = command.partition(".py")[0]
        if options.only and name not in options.only:
            continue
        script, *words = command.split()
        done = subprocess.run([sys.executable, FOLDER / script, *words], capture_output=True, text=True, cwd=FOLDER.parent)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            print(f"FAILED {name}: status {done.returncode}: {last}", flush=True)
            passed = False
            continue
        for line, within in judged(done.stdout, bounds):
            print(f"{'  ok  ' if within else 'FAILED'} {name}: {line}", flush=True)
            passed &= within
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
