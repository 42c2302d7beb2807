"""The Prefect flow of an audit, deployed by file and by module, and served, runs on a process worker of a local server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import INFLUENCE

from deployments.local.api import Api
from deployments.local.processes import end, start, wait_for
from deployments.local.services import POOL, PREFECT, environment_for, prefect_server, start_worker

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
Environment = dict[str, str]


def call(environment: Environment, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*PREFECT, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Api, Environment]]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(INFLUENCE | {"title": "Two moons"}))
    environment = environment_for(folder, "served") | {"PYTHONPATH": str(ROOT)}
    with prefect_server(folder, environment, f"sqlite+aiosqlite:///{folder}/prefect.db") as (api, clients):
        call(clients, folder, "work-pool", "create", POOL, "--type", "process")
        yield folder, api, clients


def run(server: tuple[Path, Api, Environment], name: str) -> dict[str, Any]:
    """Run a deployment as the UI does, and return its flow run once it has completed."""
    folder, api, _ = server
    deployment = api.ask(f"/deployments/name/self-influence/{name}")
    parameters = {"recipe": f"{folder}/recipe.yaml", "store": f"{folder}/store"}
    started = api.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})
    return api.completed(started["id"])


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are ended through /proc")
def test_the_flow_runs_deployed_by_file_by_module_and_served(server: tuple[Path, Api, Environment]) -> None:
    folder, _, environment = server
    for name, entrypoint in (
        ("file", f"{ROOT}/flows/self_influence.py:self_influence"),
        ("module", "flows.self_influence.self_influence"),
    ):
        call(environment, folder, "deploy", entrypoint, "--name", name, "--pool", POOL, "--tag", "memlib")
    worker = start_worker(folder, environment, "worker")
    try:
        for name in ("file", "module"):
            assert run(server, name)["name"].startswith("Two moons (")
    finally:
        end(worker)
    script = "from flows.self_influence import self_influence as audit; audit.serve(name='served', tags=['memlib'])"
    serving = start([sys.executable, "-c", script], environment, folder / "serving.log", cwd=folder)
    try:
        wait_for(lambda: "being served" in (folder / "serving.log").read_text(), "the served flow", seconds=300)
        assert "memlib" in run(server, "served")["tags"]
    finally:
        end(serving)
    assert len(os.listdir(folder / "store/runs")) == 1  # the three runs are one
