"""The audit of `make audit` with other seeds of data, split and training: is its verdict always the same?"""

import tempfile
import warnings
from collections.abc import Iterator, Sequence

import torch

import memlib
from benchmarks.validity.harness import Part, Row, rate, table
from memlib.findings import Findings

SEEDS = 20


def compute(unit: str) -> Row:
    torch.set_num_threads(1)
    seed = int(unit)
    changes = {"data.source.seed": seed, "split.seed": seed, "training.seed": seed}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = memlib.run("smoke", store=folder, changes=changes, quiet=True)
        finding = Findings.of_run(run.record).first("share_excess")
        return {
            "word": run.verdict.word,
            "excess": finding.value,
            "low": finding.low,
            "high": finding.high,
            "p": finding.p_adjusted,
        }


def report(rows: Sequence[Row]) -> Iterator[str]:
    yield f"Shown with {rate(sum(row['word'] == 'shown' for row in rows), len(rows))} seeds."
    yield ""
    cells = [
        (row["unit"], row["word"], *(f"{row[name]:.3f}" for name in ("excess", "low", "high")), f"{row['p']:.1e}")
        for row in rows
    ]
    yield from table(("seed", "verdict", "share_excess", "from", "to", "p adjusted"), cells)


PARTS = [
    Part("smoke", "Is the verdict of `make audit` shown with any seeds?", lambda: map(str, range(SEEDS)), compute, report),
]  # fmt: skip
