"""Prices of audits before their first run, beside what the runs then took: CPU time, memory, bytes.

Each audit is planned in a store that holds the machine's rates alone, and carried out in one process, `--times` times, each in
a store of its own; times are medians. Then it is planned with other seeds in a store that holds its run. Rows are appended to a
file, and those that it has are not measured again.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEED = "training.seed=77"
AUDITS: Mapping[str, tuple[str, ...]] = {
    "deja-vu": ("deja-vu", "--recipe", "smoke"),
    "captions": ("captions", "--recipe", "captions_smoke"),
    "exposure": ("exposure", "--recipe", "exposure_smoke"),
    "forgetting": ("forgetting", "--recipe", "forgetting_smoke"),
    "membership": ("membership", "--recipe", "membership_smoke"),
    "self-influence": ("self-influence", "--recipe", "self_influence_smoke"),
    "unique-feature": ("unique-feature", "--recipe", "unique_feature_smoke"),
    "sweep_smoke": ("sweep", "--recipe", "sweep_smoke"),
    "sweep of shadow models": ("sweep", "--recipe", "{folder}/sweep.yaml"),
    "reconstructions": ("deja-vu", "--recipe", "scenes_reconstruction"),
    "80,000 images": ("deja-vu", "--recipe", "{folder}/large.json"),
    "Tiny-ImageNet": (
        "deja-vu",
        "--recipe",
        "deja_vu_tiny_imagenet",
        "--set",
        "data.source.path={data}/tiny-imagenet-50/train",
    ),
}
SWEEP = """
audit: sweep
title: "Membership by epochs and width"
recipe: membership_smoke
grid: {training.epochs: [30, 120], model.widths: [[32], [256]]}
"""
COUNTED = ("cpu_seconds", "bytes_out", "peak_memory_bytes")


def main() -> None:
    """Measure the audits that a file lacks, and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="file of rows (JSON lines)")
    parser.add_argument("--only", nargs="*", default=list(AUDITS), choices=list(AUDITS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--replan", action="store_true", help="plan the rows of the file again, with rates of this moment")
    parser.add_argument("--data", default=os.environ.get("MEMLIB_DATA", ""), help="folder with tiny-imagenet-50")
    given = parser.parse_args()
    known = _rows(given.results)
    with tempfile.TemporaryDirectory(prefix="memlib-prices-") as name:
        folder = Path(name)
        rates = folder / "rates"
        _memlib("doctor", "--measure", "--store", str(rates))
        (folder / "sweep.yaml").write_text(SWEEP)
        for audit in given.only:
            if (audit in known) != given.replan:
                continue
            if audit == "80,000 images":
                _make_large(folder)
            command = [word.format(folder=folder, data=given.data) for word in AUDITS[audit]]
            if given.replan:
                known[audit]["planned"] = _planned(_plan(command, rates))
            else:
                known[audit] = {"audit": audit, **_measured(command, rates, folder, given.times)}
            given.results.write_text("".join(json.dumps(row) + "\n" for row in known.values()))
    for line in table(_rows(given.results).values()):
        print(line)


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["audit"]: row for row in rows}


def _make_large(folder: Path) -> None:
    from benchmarks.imagenet import make_images, recipe_of

    make_images(folder / "images", 80_000)
    (folder / "large.json").write_text(json.dumps(recipe_of(folder / "images", 80_000)))


def _measured(command: Sequence[str], rates: Path, folder: Path, times: int) -> dict[str, Any]:
    """Return what a plan says, what the runs took, and what a plan with other seeds then says, by stage."""
    runs = []
    for number in range(times):
        store = folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(rates, store)
        if not number:
            plan = _plan(command, store)
        _memlib("run", *command, "--store", str(store), "--in-process", "--quiet")
        runs.append(_taken(store))
    seed = ("--set", f"set.{SEED}" if command[0] == "sweep" else SEED)
    again = _plan([*command, *seed], store)
    taken = {stage: [statistics.median(run[stage][n] for run in runs) for n in range(len(COUNTED))] for stage in runs[0]}
    return {
        "planned": _planned(plan),
        "taken": taken,
        "again": _planned(again),
        "times": times,
        "machine": plan["price"]["machine"],
    }


def _plan(command: Sequence[str], store: Path) -> Any:
    return json.loads(_memlib("plan", *command, "--json", "--quick", "--store", str(store)))


def _planned(plan: Mapping[str, Any]) -> dict[str, list[float]]:
    return {
        one["stage"]: [one["cpu_seconds"], one["written"], one["memory"] + one["mapped"]] for one in plan["price"]["stages"]
    }


def _taken(store: Path) -> dict[str, list[float]]:
    """Return CPU seconds, bytes written and peak bytes of each stage."""
    found: dict[str, list[float]] = {}
    for path in store.glob("artifacts/**/manifest.json"):
        manifest = json.loads(path.read_text())
        values, row = (
            [manifest["metrics"][name] for name in COUNTED],
            found.setdefault(manifest["stage"], [0.0] * len(COUNTED)),
        )
        found[manifest["stage"]] = [row[0] + values[0], row[1] + values[1], max(row[2], values[2])]
    return found


def table(rows: Iterator[dict[str, Any]] | Any) -> Iterator[str]:
    """Yield a table of the rows: CPU seconds, bytes and memory, each planned, taken, and the ratio."""
    yield "| audit | CPU s planned, taken, ratio | MiB planned, taken, ratio | GiB planned, taken, ratio | other seeds: CPU s planned, taken, ratio |"
    yield "|---|---|---|---|---|"
    for row in rows:
        planned, taken, again = (list(row[name].values()) for name in ("planned", "taken", "again"))
        cells = [row["audit"]]
        for place, unit, total in ((0, 1.0, sum), (1, 2**20, sum), (2, 2**30, max)):
            one, other = (total(values[place] for values in part) / unit for part in (planned, taken))
            cells.append(f"{one:.4g}, {other:.4g}, {one / other:.2f}")
        same = sum(values[0] for stage, values in row["taken"].items() if stage in row["again"])
        cells.append(f"{sum(v[0] for v in again):.4g}, {same:.4g}, {sum(v[0] for v in again) / max(same, 1e-9):.2f}")
        yield "| " + " | ".join(cells) + " |"


def _memlib(*words: str) -> str:
    """Run a command of memlib and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    ended = subprocess.run(
        [sys.executable, "-m", "flows.cli.entry", *words], capture_output=True, text=True, env=environment, check=False
    )
    if ended.returncode:
        raise SystemExit(f"memlib {' '.join(words)}: {ended.stderr or ended.stdout}")
    return ended.stdout


if __name__ == "__main__":
    main()
