"""Numbers of the papers' claims, read from the runs that they rest on: python benchmarks/claims.py --data DATA --store STORE.

A file of evidence/claims names runs, by recipe and settings, and numbers, by metric and parameters of a run's summary, by
curve, series and x, or by table, column and statistic over the rows that a query of pandas finds; `ours` of a claim names numbers
in braces. The runs are made, or reused if the store has them, and their
numbers are written into the file with the day and the run. DATA is the folder of data that settings name so.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
import yaml

import memlib
from benchmarks.evidence import EVIDENCE, Record, as_yaml
from benchmarks.validity.harness import clopper_pearson
from memlib.audits import AUDITS
from memlib.findings import Findings
from memlib.store import Store


def filled_in(value: Any, data: str) -> Any:
    """Return the changes of a run to its recipe with the folder of data filled in."""
    if isinstance(value, Mapping):
        return {key: filled_in(part, data) for key, part in value.items()}
    return value.replace("DATA", data) if isinstance(value, str) else value


def read(number: Mapping[str, Any], findings: Findings) -> Record:
    """Return a number with the value and the interval that a run's summary states."""
    found = findings.get(number["metric"], **number.get("params", {}))
    if found is None:
        raise SystemExit(f"the run has no {number['metric']} {number.get('params', '')}")
    interval = [] if found.interval is None else [found.interval.low, found.interval.high]
    return dict(number) | {"value": round(found.value, 6), "interval": [round(end, 6) for end in interval]}


def read_curve(number: Mapping[str, Any], curves: pa.Table) -> Record:
    """Return a number with the value of a run's curve at its x."""
    asked = {name: number[name] for name in ("curve", "series", "x")} | {"params": json.dumps(number.get("params", {}))}
    (row,) = [row for row in curves.to_pylist() if {name: row[name] for name in asked} == asked]
    return dict(number) | {"value": round(row["y"], 6), "interval": []}


def read_table(number: Mapping[str, Any], rows: pa.Table) -> Record:
    """Return a number with a statistic of a column of some rows, and its 95 % interval.

    Statistics are the mean (interval by the normal law); the largest value (no interval); the share of values of `least` or
    more (Clopper-Pearson); and the rank correlation (Fisher) with the same column of the rows that the query `other` finds,
    matched by the column `by`.
    """
    frame, column = rows.to_pandas(), number["column"]
    chosen = frame.query(number["where"])
    values, count = chosen[column].to_numpy(), len(chosen)
    interval: tuple[float, ...] = ()
    match number["statistic"]:
        case "largest":
            value = values.max()
        case "mean":
            value, half = values.mean(), 1.96 * values.std(ddof=1) / np.sqrt(count)
            interval = value - half, value + half
        case "share":
            hits = int((values >= number["least"]).sum())
            value, interval = hits / count, clopper_pearson(hits, count)
        case "rank correlation":
            both = chosen.merge(frame.query(number["other"]), on=number["by"])
            value = scipy.stats.spearmanr(both[f"{column}_x"], both[f"{column}_y"]).statistic
            ends = np.arctanh(value) + np.array([-1.96, 1.96]) * np.sqrt(1.06 / (len(both) - 3))
            interval = tuple(np.tanh(ends))
        case other:
            raise SystemExit(f"{other} is no statistic")
    return dict(number) | {
        "value": round(float(value), 6),
        "interval": [round(float(end), 6) for end in interval],
        "of": count,
    }


def read_found(number: Mapping[str, Any], secrets: Mapping[str, Sequence[Mapping[str, Any]]]) -> Record:
    """Return a number about the likeliest candidates of each model whose canary is the likeliest of all.

    Numbers are the share of the next candidates that differ from the canary by two edits or fewer (Clopper-Pearson), and
    the gap in bits to the next candidate of the model whose canary was inserted so many `times`.

    Args:
        secrets: inserted canaries and found candidates, as `memlib show --reveal` prints them.
    """
    rows = [row for row in secrets["found by shortest path"] if not row["known"]]
    starts = [place for place, row in enumerate(rows) if row["place"] == 1]
    models = [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
    named = {model[0]["text"]: model for model in models}
    first = {row["insertions"]: named[end] for row in secrets["inserted"] if (end := row["text"].split()[-1]) in named}
    if number["found"] == "gap":
        likeliest, second, *_ = first[number["times"]]
        return dict(number) | {"value": round(float(second["bits"]) - float(likeliest["bits"]), 6), "interval": []}
    edits = [edit_distance(row["text"], model[0]["text"]) for model in first.values() for row in model[1:]]
    hits = sum(count <= 2 for count in edits)
    ends = [round(end, 6) for end in clopper_pearson(hits, len(edits))]
    return dict(number) | {"value": round(hits / len(edits), 6), "interval": ends, "of": len(edits)}


def edit_distance(one: str, other: str) -> int:
    """Return the number of insertions, deletions and substitutions that make one text the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for place, symbol in enumerate(one, 1):
        before, row = row, [place]
        for at, another in enumerate(other, 1):
            row.append(min(before[at] + 1, row[-1] + 1, before[at - 1] + (symbol != another)))
    return row[-1]


def update(paper: Record, names: list[str], *, data: str, store: str) -> None:
    """Make or reuse the runs of a paper's claims, and write their numbers into the record."""
    for name, run in paper.get("runs", {}).items():
        if names and name not in names:
            continue
        made = memlib.run(run["recipe"], store=store, changes=filled_in(run["changes"], data))
        findings = Findings.read(made.summary)
        run |= {"id": made.id, "read": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
        for key, number in paper["numbers"].items():
            if number["run"] == name:
                if "found" in number:
                    secrets = AUDITS[made.audit].revealed(Store(store), made.record.recipe, made.record.artifacts)  # type: ignore[misc]
                    paper["numbers"][key] = read_found(number, secrets)
                elif "table" in number:
                    paper["numbers"][key] = read_table(number, made.tables[number["table"]])
                elif "curve" in number:
                    paper["numbers"][key] = read_curve(number, made.tables["curves"])
                else:
                    paper["numbers"][key] = read(number, findings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="folder of the papers' data sets")
    parser.add_argument("--store", default="store", help="store of the runs, which may be there")
    parser.add_argument("--run", action="append", default=[], help="name of a run; by default all")
    options = parser.parse_args()
    for path in sorted(Path(EVIDENCE / "claims").glob("*.yaml")):
        paper = yaml.safe_load(path.read_text())
        update(paper, options.run, data=options.data, store=options.store)
        path.write_text(as_yaml(paper))


if __name__ == "__main__":
    main()
