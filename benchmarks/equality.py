"""Four runs of each smoke, whose files must be equal byte for byte, but for pages and the times in manifests.

A dossier names the digests of the manifests that it joins; its recipe is here for its members.

in process: `memlib run --in-process`, undisturbed. on Ray: the same command on Prefect and Ray. busy: in process, beside two busy
processes. killed: in process, killed with -9 at .3, .6 and .9 of the time of the first run and started again each time, with a
state to resume from after every second of a training. Stores of finished runs are kept in --folder and not computed again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.waiting import beside
from memlib.recipes.files import shipped_recipes

WAYS = ("in process", "on Ray", "busy", "killed")
DOSSIER = "dossier"
KILLS = (0.3, 0.6, 0.9)  # of the time of the undisturbed run


def carry_out(recipe: str, store: Path, way: str, seconds: float) -> None:
    """Run a recipe in one of the ways.

    Args:
        seconds: time of the undisturbed run.
    """
    command = [sys.executable, "-m", "flows.cli.entry", "run", recipe, "--quiet", "--store", str(store)]
    command += [] if way == "on Ray" else ["--in-process"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with beside(2) if way == "busy" else nullcontext():
        for share in KILLS if way == "killed" else ():
            killed = subprocess.Popen([*command, "--set", "resources.resume_seconds=1"], **silent)
            try:
                killed.wait(share * seconds)
            except subprocess.TimeoutExpired:
                killed.kill()
                killed.wait()
        subprocess.run(command, check=True, capture_output=True)


def content_of(store: Path) -> dict[str, Any]:
    """Return what must be equal: digests of the files of artifacts and of tables, and findings and verdicts of runs."""
    found: dict[str, Any] = {}
    runs = [json.loads(path.read_text()) for path in store.glob("runs/*/manifest.json")]
    own = {ref for run in runs if run["audit"] == DOSSIER for ref in (run["scores"], run["artifacts"]["report"])}
    for path in store.glob("artifacts/**/manifest.json"):
        if str(path.parent.relative_to(store / "artifacts")) in own:
            continue
        for name, file in json.loads(path.read_text())["files"].items():
            found[f"{path.parent.relative_to(store)}/{name}"] = file["sha256"], file["size"]
    for run in runs:
        if run["audit"] == DOSSIER:
            continue
        found |= {name: (digest, (store / name).stat().st_size) for name, digest in run["published"].items()}
        found |= {f"{run['run']} {name}": (run[name], 0) for name in ("findings", "verdict", "scores")}
    return {name: value for name, value in found.items() if not name.endswith("report.html")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the stores; by default a folder that is deleted")
    parser.add_argument("--recipe", action="append", help="by default all smokes, and a dossier of a table")
    options = parser.parse_args()
    smokes = sorted(name for name in shipped_recipes() if name == "smoke" or name.endswith("_smoke"))
    print(
        "| recipe | s undisturbed | artifacts | files | MB | differ on Ray | differ beside two busy processes | killed three times |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        for recipe in options.recipe or [*smokes, "all_table"]:
            contents: list[dict[str, Any]] = []
            for way in WAYS:
                store, done = folder / recipe / way, folder / recipe / f"{way}.done"
                if not done.exists():
                    began = time.monotonic()
                    carry_out(recipe, store, way, float(done.with_name("in process.done").read_text() if contents else 0))
                    done.write_text(f"{time.monotonic() - began:.1f}")
                contents.append(content_of(store))
            first, *others = contents
            differ = [sum(first.get(name) != other.get(name) for name in first.keys() | other.keys()) for other in others]
            bad += sum(differ)
            artifacts = len(list((folder / recipe / WAYS[0]).glob("artifacts/**/manifest.json")))
            size = sum(size for _, size in first.values()) / 1e6
            seconds = (folder / recipe / "in process.done").read_text()
            cells = [recipe, seconds, artifacts, len(first), f"{size:.1f}", *differ]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
