"""memlib serve: nights in which nothing, a process, or the disk is lost; and ten runs of a served flow under load."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import file_system

from deployments.cluster.machines import fill
from deployments.local.api import Api
from deployments.local.processes import descendants, end, free_port, kill, start, wait_for
from deployments.local.services import environment_for, prefect_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc"),
]
ROOT = Path(__file__).parents[2]
NIGHT: dict[str, Any] = {
    "audit": "self_influence",
    "title": "Nightly",
    "data": {"source": {"kind": "two_moons", "num_examples": 2000}},
    "split": {"train_per_class": 700},
    "model": {"architecture": "mlp", "widths": [64]},
    "training": {"objective": {"kind": "supervised"}, "epochs": 40, "batch_size": 5, "augment": None},
    "influence": {"checkpoints": 2},
}
STARTED = 240  # seconds for a server and a run, on a busy machine


def write(path: Path, seed: int) -> None:
    """Write the recipe of a night: other data each night."""
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(NIGHT | {"title": f"Night {seed}", "training": NIGHT["training"] | {"seed": seed}}))
    new.rename(path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which can be filled."""
    with file_system(tmp_path / "small", "64m") as folder:
        yield folder


def test_no_night_is_lost_and_each_has_a_line(tmp_path: Path, small: Path) -> None:
    recipe, log = tmp_path / "night.yaml", tmp_path / "log"
    write(recipe, 1)
    environment = environment_for(tmp_path, "serving") | {
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "flows.cli.entry", "serve", str(recipe), "--cron", "* * * * *"]
    command += ["--store", str(small / "store"), "--port", str(free_port())]
    serving = start(command, environment, log, cwd=tmp_path)

    def line(pattern: str) -> str:
        def found() -> str | None:
            match = re.search(pattern, log.read_text())
            return None if match is None else match[0]

        return str(wait_for(found, pattern, seconds=STARTED))

    try:
        assert "memlib show" in line(r"night\.yaml: Completed\. Night 1: .*")
        # the second night: the process that serves is killed in the middle
        write(recipe, 2)
        known = {path.name for path in small.glob("store/requests/*.json")} | {
            path.name for path in small.glob("store/runs/*")
        }
        wait_for(lambda: _new_request(small / "store", known), "the second night's run", seconds=STARTED)
        (runner,) = [pid for pid in descendants(serving.pid) if "flows.serving" in _command(pid)][:1]
        kill([runner])
        assert line(r"the process that serves died and is started again")
        assert line(r"night\.yaml: Crashed\. the process that ran it is gone")
        assert "memlib show" in line(r"night\.yaml: Completed\. Night 2: .*")
        # the third: the disk is full, and then has room again
        write(recipe, 3)
        filler = fill(small)
        assert re.search("space|OSError", line(r"night\.yaml: Failed\. .*"))
        filler.unlink()
        assert "memlib show" in line(r"night\.yaml: Completed\. Night 3: .*")
        assert serving.poll() is None
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.wait(timeout=90)
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(tmp_path) in _command(int(pid))]
    assert not left, f"processes are left: {[_command(int(pid)) for pid in left]}"
    assert len(list((small / "store" / "runs").iterdir())) == 3


def _new_request(store: Path, known: set[str]) -> bool | None:
    return any(path.name not in known for path in store.glob("requests/*.json")) or None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_ten_runs_of_a_served_flow_under_load_complete(tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(NIGHT))
    script = tmp_path / "script.py"
    script.write_text(
        "from flows.self_influence import self_influence\n"
        "if __name__ == '__main__':\n"
        "    self_influence.serve(name='loaded', tags=['memlib'], limit=2)\n"
    )
    environment = environment_for(tmp_path, "loaded") | {"PYTHONPATH": str(ROOT), "MEMLIB_STORE": str(tmp_path / "store")}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    with prefect_server(tmp_path, environment, f"sqlite+aiosqlite:///{tmp_path}/prefect.db") as (api, clients):
        first, second = (_served(script, clients, tmp_path, name) for name in ("first", "second"))
        try:
            end(first())  # a runner that is sent SIGTERM ends, and takes no run any more
            serving = second()
            runs = _create(api, tmp_path)
            assert all(api.completed(run, seconds=900)["state"]["message"].startswith("Nightly:") for run in runs)
            end(serving)
            assert (tmp_path / "store" / "runs").exists(), "MEMLIB_STORE names the store"
        finally:
            for process in busy:
                process.kill()


def _served(script: Path, environment: dict[str, str], folder: Path, name: str) -> Callable[[], subprocess.Popen[bytes]]:
    def begin() -> subprocess.Popen[bytes]:
        log = folder / f"{name}.log"
        process = start([sys.executable, str(script)], environment, log, cwd=folder)
        wait_for(lambda: "being served" in log.read_text() or None, "the served flow", seconds=STARTED)
        return process

    return begin


def _create(api: Api, folder: Path) -> list[str]:
    deployment = api.ask("/deployments/name/self-influence/loaded")["id"]
    created = []
    for _ in range(10):
        parameters = {"recipe": f"{folder}/night.yaml"}
        created.append(api.ask(f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])
        time.sleep(0.5)
    return created
