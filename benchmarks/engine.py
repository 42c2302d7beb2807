"""The cost of Prefect and Ray beside the own work of an audit: the same recipes by `memlib run` and in one process, and a floor.

python benchmarks/engine.py [--times 3] [--recipes NAME ...] [--memlib PYTHON_PATH ...]

CPU seconds are those of all processes of a session, looked up ten times a second, medians; each run has its own store and
PREFECT_HOME, the ways take turns. The fixed cost is a run on Prefect and Ray less the same in one process. The floor is the
least that the two libraries cost: Ray that starts two workers which import torch, and Prefect with its server and twelve empty tasks.
Each --memlib is another checkout, measured beside this one, without --in-process where it has none. Set nothing that switches bytecode
off, and let nothing else run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
LOOK_SECONDS = 0.1
TICKS = os.sysconf("SC_CLK_TCK")
ONE_PROCESS = """
import sys, warnings
warnings.simplefilter("ignore")
import memlib
memlib.run(sys.argv[1], store=sys.argv[2], quiet=True)
"""
RAY = """
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=2**27)
@ray.remote
def load(seconds):
    import time
    import torch
    time.sleep(seconds)
ray.get([load.remote(1) for _ in range(2)])
"""
PREFECT = """
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
@task(cache_policy=NO_CACHE)
def nothing():
    pass
@flow
def twelve():
    for _ in range(12):
        nothing()
twelve()
"""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a process tree, its wall time in seconds, and the largest number of Ray workers seen."""

    cpu: float
    wall: float
    workers: int = 0


def recipes() -> dict[str, str]:
    """Return the recipes by name: those of the tests of whole audits."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/docs"), str(ROOT / "tests/end_to_end")]
    from harness import RECIPE
    from test_exposure import RECIPE as exposure
    from test_forgetting import RECIPE as forgetting
    from test_membership import NETS
    from test_unique_feature import MOONS

    return {"deja vu": RECIPE, "exposure": exposure, "forgetting": forgetting, "membership": NETS, "unique feature": MOONS}


def measured(command: Sequence[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end, and to the end of every process that it leaves."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd="/"
    )  # fmt: skip
    spent: dict[int, float] = {}
    workers: set[int] = set()
    while process.poll() is None:
        _look(process.pid, spent, workers)
        time.sleep(LOOK_SECONDS)
    wall = time.monotonic() - started
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {process.stderr.read()[-2000:]}")
    return Cost(sum(spent.values()), wall, len(workers))


def _look(session: int, spent: dict[int, float], workers: set[int]) -> None:
    """Note the CPU seconds of each process of a session so far, and which of them are Ray's Python workers."""
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            if os.getsid(number) == session:
                user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                spent[number] = (int(user) + int(system)) / TICKS
                title = (folder / "cmdline").read_bytes()
                if b"ray::" in title and b"Agent" not in title:  # which run once a node, and compute nothing
                    workers.add(number)
        except OSError:
            continue


def environment_in(folder: Path, checkout: str) -> dict[str, str]:
    """Return an environment with homes of its own; the cache is that of all runs, as on a user's machine."""
    unset = ("PYTHONDONTWRITEBYTECODE", "PREFECT_API_URL")
    own = {"PREFECT_HOME": str(folder / "prefect"), "XDG_CONFIG_HOME": str(folder / "config"), "PYTHONPATH": checkout}
    return {name: value for name, value in os.environ.items() if name not in unset} | own


def main() -> None:
    """Print a row per recipe and checkout, and the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--recipes", nargs="*", default=[])
    parser.add_argument("--memlib", nargs="*", default=[])
    options = parser.parse_args()
    texts = {name: text for name, text in recipes().items() if not options.recipes or name in options.recipes}
    checkouts = {Path(path).name: path for path in options.memlib} | {"this": str(ROOT)}
    found: dict[tuple[str, str, str], list[Cost]] = {}
    print(f"{options.times} turns, load {os.getloadavg()[0]:.1f}", flush=True)
    for turn in range(options.times):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for audit, text in texts.items():
                recipe = folder / f"{audit.replace(' ', '_')}.yaml"
                recipe.write_text(text)
                for checkout, path in checkouts.items():
                    environment = environment_in(folder, path)
                    for way in ("run", "again", "process"):
                        store = str(folder / f"{recipe.stem}-{checkout}-{way.replace('again', 'run')}")
                        command = ["-m", "flows.cli.entry", "run", str(recipe), "--store", store, "--quiet"]
                        words = ["-c", ONE_PROCESS, str(recipe), store] if way == "process" else command
                        cost = measured([sys.executable, *words], environment)
                        found.setdefault((audit, checkout, way), []).append(cost)
            for floor, program in (("Ray with torch in two workers", RAY), ("Prefect with twelve empty tasks", PREFECT)):
                (folder / floor / f"{turn}").mkdir(parents=True)
                environment = environment_in(folder / floor / f"{turn}", str(ROOT))
                found.setdefault((floor, "", ""), []).append(measured([sys.executable, "-c", program], environment))
    lines(texts, list(checkouts), found)


def lines(texts: dict[str, str], checkouts: Sequence[str], found: dict[tuple[str, str, str], list[Cost]]) -> None:
    """Print medians."""
    floors = {key[0]: median(cost.cpu for cost in costs) for key, costs in found.items() if not key[1]}
    print(
        "| recipe | checkout | on Prefect and Ray: CPU s, s, workers | in one process: CPU s, s | fixed: CPU s, s | again: CPU s |"
    )
    print("|---|---|---|---|---|---|")
    for audit in texts:
        for checkout in checkouts:
            run, again, one = (found[audit, checkout, way] for way in ("run", "again", "process"))
            cpu, wall = (median(getattr(cost, side) for cost in run) for side in ("cpu", "wall"))
            alone, waited = (median(getattr(cost, side) for cost in one) for side in ("cpu", "wall"))
            print(
                f"| {audit} | {checkout} | {cpu:.1f}, {wall:.1f}, {max(cost.workers for cost in run)} | {alone:.1f}, {waited:.1f} | "
                f"{cpu - alone:.1f}, {wall - waited:.1f} | {median(cost.cpu for cost in again):.2f} |"
            )
    print(
        f"floor: {', '.join(f'{name} {cpu:.1f}' for name, cpu in floors.items())}; together {sum(floors.values()):.1f} CPU s"
    )


if __name__ == "__main__":
    main()
