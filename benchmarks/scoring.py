"""Scoring of one setting of a déjà vu audit with many images: votes, findings with intervals and tests, curves.

    python benchmarks/scoring.py 100000 300000

Neighbours are drawn at random, some of them from the example's own class, so that some images are named; 1,000 classes,
k = 30. To compare two versions, run this file alternately with the Python of each.
"""

import resource
import sys
import time

import numpy as np

from memlib.audits.deja_vu.findings import curves, summarize
from memlib.audits.deja_vu.recipe import DIRECTIONS, Config, Direction
from memlib.audits.deja_vu.scores import Decoding, score

CLASSES, K = 1000, 30


def decoding(direction: Direction, count: int, rng: np.random.Generator) -> Decoding:
    """Return a decoding of the images of one side, with random classes of their neighbours."""
    labels = np.sort(rng.integers(0, CLASSES, size=count))

    def near(own: float) -> np.ndarray:
        favourite, share = rng.integers(0, CLASSES, size=(count, 1)), rng.random((count, 1))
        others = np.where(rng.random((count, K)) < share, favourite, rng.integers(0, CLASSES, size=(count, K)))
        return np.where(rng.random((count, K)) < own, labels[:, None], others)

    names = [f"{direction}/{number:08d}.jpg" for number in range(count)]
    return Decoding(direction, 0, "backbone", 10, "maximal", names, labels, near(0.15), near(0.14))


def main() -> None:
    config = Config(layers=("backbone",), k=(K,))
    for count in map(int, sys.argv[1:]):
        rng = np.random.default_rng(0)
        decodings = [decoding(direction, count // 2, rng) for direction in DIRECTIONS]
        started = time.monotonic()
        units = score(decodings, [f"class {label}" for label in range(CLASSES)], config)
        voted = time.monotonic()
        summary = summarize(units, config, num_classes=CLASSES)
        curves(units)
        ended, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        first = {name: summary[name][0].as_py() for name in ("value", "ci_low", "ci_high", "p_value", "upper_bound")}
        print(f"{count:,} images: votes {voted - started:.1f} s, findings and curves {ended - voted:.1f} s, {peak:.1f} GiB")
        print(f"    headline: {first}", flush=True)


if __name__ == "__main__":
    main()
