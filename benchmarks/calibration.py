"""Level and power of the calibrated criterion, measured by unique-feature audits of two moons through the command line.

Level: 2,000 nets without a canary are each tested against 99 others drawn at random; about 100 rejections are expected
at .05 (76 to 126 with probability .99). Power: 100 nets whose training set contains the canary 20 times are tested
against their 100 controls. The canary is the point of noisy moons with the highest self-influence, which the net can
only learn by its feature, or any point of cleanly separated moons, where the feature adds nothing to what is already
learnt.

    python benchmarks/calibration.py [STORE]

Exit status 1 if a count lies outside the expected range.
"""

import sys
import tempfile

import numpy as np
import pyarrow.parquet as pq

from flows.cli.app import main
from memlib.findings import Findings
from memlib.runs.index import list_runs, read_run
from memlib.runs.records import RunRecord
from memlib.store import Store

PAIRS = (
    ("m_white", "probability"),
    ("m_white", "logit"),
    ("m_grey", "probability"),
    ("m_black", "probability"),
    ("m_black", "logit"),
)
OTHERS, ALPHA = 99, 0.05
EXPECTED = (76, 126)
HEADLINE = ("m_white", "probability")
HARD = ("data.source.noise=0.3", "canary.choice=top_self_influence")


def audit(store: str, *settings: str) -> RunRecord:
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--set", "score.per_epoch=false"]
    status = main(["run", "unique-feature", "--recipe", "two_moons", "--store", store, "--quiet", *options])
    assert status == 0
    opened = Store(store)
    return read_run(opened, list_runs(opened).entries[0]["run"])


def null(store: str) -> bool:
    """Return True if every score rejects as often as it should."""
    run = audit(store, "nets.seeds=1", "nets.controls=2000", "title=2000 nets without a canary")
    units = pq.read_table(run.results["units"], partitioning=None).to_pandas()
    units = units[units["control"] & units["own_label"] & (units["draw"] == 0)]
    rng = np.random.default_rng(0)
    print(
        f"2,000 nets without a canary, each against {OTHERS} others; rejections at {ALPHA} ({EXPECTED[0]} to {EXPECTED[1]} expected):"
    )
    within = True
    for metric, output in PAIRS:
        values = units[(units["metric"] == metric) & (units["output"] == output)]["value"].to_numpy()
        rejected = 0
        for i, value in enumerate(values):
            others = rng.choice(len(values) - 1, OTHERS, replace=False)
            others += others >= i
            rejected += (1 + (values[others] >= value).sum()) / (1 + OTHERS) <= ALPHA
        within &= EXPECTED[0] <= rejected <= EXPECTED[1]
        published = units[(units["metric"] == metric) & (units["output"] == output)]["published_p"] < ALPHA
        print(f"  {metric:8} {output:12} calibrated {rejected:5}   as published {int(published.sum()):5}   of {len(values)}")
    return bool(within)


def plant(store: str, title: str, *settings: str) -> dict[tuple[str, str], int]:
    """Count the nets, of 100 whose training set contains the canary 20 times, in which each score finds it."""
    run = audit(store, "canary.repeats=20", "nets.seeds=100", "nets.controls=100", f"title={title}", *settings)
    print(f"{title}, 100 nets; found by the calibrated criterion:")
    hits = {}
    for row in Findings.of_run(run).all("proportion_memorized", criterion="calibrated"):
        score = row.params["metric"], row.params["output"]
        if score in PAIRS:
            hits[score] = round(row.value * row.n)
            print(f"  {score[0]:8} {score[1]:12} {hits[score]:4} of {row.n}")
    return hits


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        where = sys.argv[1] if len(sys.argv) > 1 else folder
        level = null(where)
        hard = plant(where, "A canary 20 times whose class needs the feature", *HARD)
        plant(where, "A canary 20 times whose class shows without the feature")
    sys.exit(0 if level and hard[HEADLINE] >= 92 else "a count lies outside the expected range")
