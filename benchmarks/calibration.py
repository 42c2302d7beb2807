"""Does the calibrated criterion hold its level, and find what is there? Two audits of two moons, through the command.

2,000 nets without a canary, each tested against 99 others drawn at random: about 100 rejections at .05 (76 to 126 with
probability .99). Then 100 nets in whose training set the canary stands 20 times, tested against their 100 controls.

    python benchmarks/calibration.py [STORE]
"""

import json
import sys
import tempfile

import numpy as np
import pyarrow.parquet as pq

from flows.cli import main
from memlib.store import Store

PAIRS = (
    ("m_white", "probability"),
    ("m_white", "logit"),
    ("m_grey", "probability"),
    ("m_black", "probability"),
    ("m_black", "logit"),
)
OTHERS, ALPHA = 99, 0.05


def audit(store: str, *settings: str) -> dict:
    options = [part for setting in settings for part in ("--set", setting)]
    status = main(
        [
            "run",
            "unique-feature",
            "--recipe",
            "two_moons",
            "--store",
            store,
            "--quiet",
            "--set",
            "score.per_epoch=false",
            *options,
        ]
    )
    assert status == 0
    return max(Store(store).runs(), key=lambda run: run["finished"])


def null(store: str) -> None:
    run = audit(store, "nets.seeds=1", "nets.controls=2000", "title=2000 nets without a canary")
    units = pq.read_table(run["results"]["units"], partitioning=None).to_pandas()
    units = units[units["control"] & units["own_label"] & (units["draw"] == 0)]
    rng = np.random.default_rng(0)
    print(f"2,000 nets without a canary, each against {OTHERS} others; rejections at {ALPHA} (76 to 126 expected):")
    for metric, output in PAIRS:
        values = units[(units["metric"] == metric) & (units["output"] == output)]["value"].to_numpy()
        rejected = 0
        for i, value in enumerate(values):
            others = rng.choice(len(values) - 1, OTHERS, replace=False)
            others += others >= i
            rejected += (1 + (values[others] >= value).sum()) / (1 + OTHERS) <= ALPHA
        published = units[(units["metric"] == metric) & (units["output"] == output)]["published_p"] < ALPHA
        print(f"  {metric:8} {output:12} calibrated {rejected:5}   as published {int(published.sum()):5}   of {len(values)}")


def plant(store: str) -> None:
    run = audit(store, "canary.repeats=20", "nets.seeds=100", "nets.controls=100", "title=A canary 20 times")
    print("100 nets with the canary 20 times; found by the calibrated criterion:")
    for row in run["findings"]:
        params = json.loads(row["params"])
        if (
            row["metric"] == "proportion_memorized"
            and params["criterion"] == "calibrated"
            and (params["metric"], params["output"]) in PAIRS
        ):
            print(f"  {params['metric']:8} {params['output']:12} {round(row['value'] * row['n']):4} of {row['n']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        where = sys.argv[1] if len(sys.argv) > 1 else folder
        null(where)
        plant(where)
