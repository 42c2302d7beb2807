"""Whole audits on Prefect and Ray: what one process computes, whatever is killed on the way."""

import contextlib
import json
import os
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from harness import RECIPE, Memlib, end_session, newest, published, resume_step, saved_models, unlike, wait_for
from test_exposure import RECIPE as EXPOSURE
from test_forgetting import RECIPE as FORGETTING
from test_membership import NETS as MEMBERSHIP
from test_unique_feature import MOONS

from benchmarks.faults import SELF_INFLUENCE

pytestmark = pytest.mark.ray

CELLS = {
    "deja vu": RECIPE.replace("epochs: 50", "epochs: 4").replace("[25]", "[2]"),
    "exposure": EXPOSURE.replace("epochs: 12", "epochs: 2"),
    "forgetting": FORGETTING,
    "membership": MEMBERSHIP,
    "unique feature": MOONS,
}


def test_the_cells_of_a_sweep_on_ray_are_the_audits_of_one_process(served: Memlib, tmp_path: Path) -> None:
    """One Ray and one Prefect for the stages of five audits."""
    (tmp_path / "sweep.yaml").write_text(
        "audit: sweep\ntitle: five audits\ncells:\n"
        + "".join(f"- name: {name}\n  recipe:\n{textwrap.indent(recipe, '    ')}\n" for name, recipe in CELLS.items())
    )
    sweep = replace(served, recipe=tmp_path / "sweep.yaml", audit_name="sweep")
    there = sweep.audit_on_ray(tmp_path / "there", OMP_NUM_THREADS="1")
    assert set(there["cells"]) == set(CELLS)
    assert not there["problems"]
    runs = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "there").glob("runs/*/manifest.json")}
    for name, recipe in CELLS.items():
        (tmp_path / "alone.yaml").write_text(recipe)
        audit = str(yaml.safe_load(recipe)["audit"]).replace("_", "-")
        alone = replace(served, recipe=tmp_path / "alone.yaml", audit_name=audit).audit(
            tmp_path / "here", OMP_NUM_THREADS="1"
        )
        assert there["cells"][name] == alone["run"], name
        mine, theirs = published(tmp_path / "there", runs[alone["run"]]), published(tmp_path / "here", alone)
        assert mine.keys() == theirs.keys()
        assert {table: unlike(mine[table], theirs[table]) for table in theirs if unlike(mine[table], theirs[table])} == {}, (
            name
        )


@dataclass(frozen=True)
class Placement:
    """Models that are trained in one way, and the processes in which they are.

    Attributes:
        recipe: recipe of the audit.
        settings: settings of its machines.
        worker: part of the command of the processes that train.
        models: number of models that train at the same time.
    """

    recipe: str
    settings: tuple[str, ...]
    worker: str
    models: int


SHORT = RECIPE.replace("epochs: 50", "epochs: 30").replace("[25]", "[8]")
PLACEMENTS = {
    "alone": Placement(SELF_INFLUENCE, (), "ray::train_there", 1),
    "side by side": Placement(SHORT, (), "ray::train_there", 2),
    "in a group": Placement(
        SHORT.replace("epochs: 30", "epochs: 8"), ("resources.workers_per_model=2",), "RayTrainWorker", 1
    ),
}
Start = Callable[[Placement, Path], tuple[Memlib, subprocess.Popen[str]]]


def weights_of(store: Path) -> dict[str, bytes]:
    """Return the bytes of the weights of all models, by artifact and file."""
    files = store.glob("artifacts/train/*/*/*.safetensors")
    return {f"{file.parents[1].name}/{file.name}": file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def undisturbed(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The weights of a placement that nothing disturbs; models that a worker trains alone are trained in this process."""
    made: dict[str, dict[str, bytes]] = {}

    def weights(name: str) -> dict[str, bytes]:
        if name not in made:
            placement, folder = PLACEMENTS[name], tmp_path_factory.mktemp("undisturbed")
            mine = of(memlib, placement, folder)
            run = mine.audit_on_ray if placement.settings else mine.audit
            run(folder / "store", *placement.settings, OMP_NUM_THREADS="1")
            made[name] = weights_of(folder / "store")
        return made[name]

    return weights


def of(memlib: Memlib, placement: Placement, folder: Path) -> Memlib:
    (folder / "recipe.yaml").write_text(placement.recipe)
    audit = str(yaml.safe_load(placement.recipe)["audit"]).replace("_", "-")
    return replace(memlib, recipe=folder / "recipe.yaml", audit_name=audit)


@pytest.fixture
def start(memlib: Memlib, tmp_path: Path) -> Iterator[Start]:
    """Start an audit, and return once its models have saved a state from which they resume."""
    running = []

    def begin(placement: Placement, store: Path) -> tuple[Memlib, subprocess.Popen[str]]:
        mine = of(memlib, placement, tmp_path)
        process = mine.start(store, "resources.resume_seconds=0", *placement.settings, OMP_NUM_THREADS="1")
        running.append(process)
        wait_for(lambda: resume_step(store) >= 12 and saved_models(store) >= placement.models, process=process)
        return mine, process

    yield begin
    for process in running:
        end_session(process.pid)


def kill(process: subprocess.Popen[str], name: str) -> None:
    """Kill one of the processes of a run's session with a name in its command, or the run itself if there is no name."""

    def found() -> list[psutil.Process]:
        victims = []
        for other in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                if os.getsid(other.pid) == process.pid and name in " ".join(other.info["cmdline"] or ()):
                    victims.append(other)
        return victims

    if name:
        wait_for(found, process=process)[0].send_signal(signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["worker", "raylet", "driver"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_training_is_resumed_to_equal_bytes_whatever_was_killed(
    start: Start, undisturbed: Callable[[str], dict[str, bytes]], tmp_path: Path, name: str, victim: str
) -> None:
    placement, store = PLACEMENTS[name], tmp_path / "store"
    mine, process = start(placement, store)
    kill(process, {"worker": placement.worker, "raylet": "/raylet ", "driver": ""}[victim])
    _, said = process.communicate(timeout=1200)
    assert "Traceback" not in said
    assert len(said) < 2000, said  # of a lost node, Ray itself would print pages
    if victim == "worker":
        assert "its worker was lost; another one resumes at step" in said or placement.settings
        assert process.returncode == 0, said  # replaced without help
    else:
        assert process.returncode == (75 if victim == "raylet" else -signal.SIGKILL), said
        end_session(process.pid)
        assert not (store / "runs").exists()
        (note,) = json.loads(mine.call("runs", "--json", "--store", str(store)).stdout)
        assert note["finished"] is None
        again = mine.call_on_ray("resume", note["run"][:6], "--store", str(store), OMP_NUM_THREADS="1")  # without the recipe
        assert again.returncode == 0, again.stderr
        assert "not ended" not in mine.call("runs", "--store", str(store)).stdout
        assert {ref.split("/")[0] for ref in newest(store)["reused"]} >= {"decode"}
    assert weights_of(store) == undisturbed(name)
    facts: list[dict[str, Any]] = [
        json.loads(path.read_text())["facts"] for path in store.glob("artifacts/train/*/manifest.json")
    ]
    assert (
        any(fact["resumed_from_step"] for fact in facts) or victim == "raylet"
    )  # whose workers may finish what they compute
    assert {fact["world_size"] for fact in facts} == {2 if placement.settings else 1}
    assert not list(store.glob("resume/*"))
