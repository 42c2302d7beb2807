"""One model alone against two models: supervised models on photographs, in pairs whose sets are drawn independently.

python benchmarks/one_model.py --data tiny-imagenet-50/train [--splits 20] [--store memlib-store]

Each split is audited with a pair of models, and with A's model alone and either kind of background classifier as its
reference; then once more with untrained models. The difference between the two share excesses, image by image, has an
interval over images (bootstrap) and over trainings: the variation between trainings is estimated from pairs on the first
split, all on the same images. Pairs are also audited by SSLMem. Finished audits stay in the store and are used again.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import scipy
from ruamel.yaml import YAML

from memlib.audits.deja_vu.comparison import gains_of
from memlib.audits.deja_vu.gains import Gains
from memlib.findings import Findings
from memlib.runs.index import list_runs, read_run
from memlib.runs.records import RunRecord
from memlib.stats.inference import paired_t
from memlib.stats.totals import resampled_differences
from memlib.store import Store

TITLE = "One model alone against two"
TWO = "two models"
REFERENCES = {TWO: None, "network": {"kind": "network"}, "visual words": {"kind": "visual_words"}}
SETTINGS = {
    "training.epochs": 120, "training.checkpoint_epochs": [], "decode.epochs": [], "decode.crops": ["maximal"],
    "decode.layers": ["last"], "decode.k": [30],
}  # fmt: skip
REPLICATES = 2000


def main() -> None:
    """Run the audits that are missing from the store; print what each shows, and how far one model is from two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="Tiny-ImageNet's training folder")
    parser.add_argument("--splits", type=int, default=20, help="number of splits, and of pairs of models on the first split")
    parser.add_argument("--store", default="memlib-store")
    options = parser.parse_args()
    runs = _swept(options.data, options.splits, options.store)
    print(f"{options.splits} splits, one pair of models each; {options.splits} pairs on the first split.\n")
    headings = ("models", "reference", "share of excess, mean (range)", "shown", "SSLMem, mean (range)", "shown",
                "minus two models, mean (95 %)", "p", "sd between trainings", "intervals that hold 0")  # fmt: skip
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for trained in (True, False):
        for name in REFERENCES:
            audits = [runs[_cell(name, split, trained)] for split in range(options.splits)]
            cells = ["trained" if trained else "untrained", name, *_shown(audits, "share_excess"), *_shown(audits, "sslmem")]
            if name == TWO or not trained:
                cells += [""] * 4
            else:
                pairs = [runs[_cell(TWO, split, trained)] for split in range(options.splits)]
                many = _apart(runs[_cell(name, None, trained)], runs[_cell(TWO, None, trained)])
                differences = [_apart(one, two) for one, two in zip(audits, pairs, strict=True)]
                cells += _compared(differences, float(np.std([many.design.difference(pair) for pair in many.gains], ddof=1)))
            print(f"| {' | '.join(cells)} |")


def _shown(runs: Sequence[RunRecord], metric: str) -> list[str]:
    """Return the mean and range of a metric over runs, and in how many of them it is shown."""
    rows = [row for run in runs for row in Findings.of_run(run).all(metric)[:1]]
    if not rows:
        return ["", ""]
    values = np.array([row.value for row in rows])
    counted = f"{sum(row.verdict == 'shown' for row in rows)} of {len(rows)}"
    return [f"{values.mean():.3f} ({values.min():.3f} to {values.max():.3f})", counted]


def _compared(apart: Sequence[Gains], between: float) -> list[str]:
    """Return the cells that compare one model with two, over splits.

    These are the mean difference and its interval, its p-value, the standard deviation between trainings, and how many
    intervals of single splits contain 0.
    """
    values = np.array([_excess(gains) for gains in apart])
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)
    low, high = values.mean() - half, values.mean() + half
    p = 2 * min(float(paired_t(side)[1]) for side in (values, -values))
    held = 0
    for number, gains in enumerate(apart):
        column = gains.gains.mean(axis=0)[:, None]
        replicates = resampled_differences(column, gains.design, REPLICATES, seed=number)[:, 0]
        reach = np.hypot(scipy.stats.norm.ppf(0.975) * replicates.std(ddof=1), scipy.stats.t.ppf(0.975, 18) * between)
        held += abs(_excess(gains)) <= reach
    return [f"{values.mean():.3f} ({low:.3f} to {high:.3f})", f"{p:.2g}", f"{between:.3f}", f"{held} of {len(values)}"]


def _excess(gains: Gains) -> float:
    return gains.design.difference(gains.gains.mean(axis=0))


def _apart(one: RunRecord, other: RunRecord) -> Gains:
    first, second = (gains_of(Findings.of_run(run).head, pq.ParquetFile(run.results["units"]).read()) for run in (one, other))
    assert first.images.equals(second.images), "the audits are of different images"
    return Gains(first.images, first.design, first.gains - second.gains)


def _cell(name: str, split: int | None, trained: bool) -> str:
    which = "many pairs" if split is None else f"split {split}"
    return f"{name}, {which}" if trained else f"{name}, {which}, untrained"


def _swept(data: str, splits: int, store: str) -> dict[str, RunRecord]:
    """Run all audits as one sweep, reusing those in the store; return their records by cell."""
    cells = []
    for trained, split in [*((trained, split) for trained in (True, False) for split in range(splits)), (True, None)]:
        for name, reference in REFERENCES.items():
            more: dict[str, object] = {"pairs": splits} if split is None else {"split.seed": split}
            if name != TWO:
                more["reference"] = reference
            elif split is not None:
                more["decode.stability"] = {"views": 10}
            if not trained:
                more["training.epochs"] = 0
            cells.append({"name": _cell(name, split, trained), "set": more})
    recipe = {
        "audit": "sweep", "title": TITLE, "recipe": "deja_vu_tiny_imagenet_supervised", "concurrent_cells": 1, "cells": cells,
        "set": {"data.source.path": str(Path(data).absolute()), **SETTINGS},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one_model.yaml"
        YAML().dump(recipe, file)
        command = ["run", "sweep", "--recipe", str(file), "--store", store, "--quiet"]
        subprocess.run([sys.executable, "-m", "flows.cli.entry", *command], check=True)
    opened = Store(store)
    sweep = next(entry["run"] for entry in list_runs(opened).entries if entry["title"] == TITLE)
    return {cell: read_run(opened, run) for cell, run in read_run(opened, sweep).cells.items() if run is not None}


if __name__ == "__main__":
    main()
