"""Against the real thing, from PyPI in an environment of its own: an MLflow server, and the validator of Croissant."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import INFLUENCE

import memlib
from memlib.runs.run import Run
from memlib.sharing.croissant import describe
from memlib.sharing.mlflow import share

from .conftest import publish

pytestmark = pytest.mark.slow
SECONDS = 300


def installed(folder: Path, package: str) -> Path:
    """Return the programs of a new environment with a package; skip where PyPI cannot be reached."""
    venv.create(folder, with_pip=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", package]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be installed: {done.stderr.splitlines()[-1] if done.stderr else done.returncode}")
    return folder / "bin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of an MLflow server with a database and artifacts of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    programs = installed(folder / "venv", "mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    command = [str(programs / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # which starts seven processes more
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    uri, end = f"http://127.0.0.1:{port}", time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=5)
            break
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.5)
    yield uri
    process.terminate()
    process.wait(60)


def asked(uri: str, endpoint: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/{endpoint}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_mlflow_accepts_a_run_and_its_update(server: str, run: Run) -> None:
    first = share(run, server, experiment="audits", extra=("page", "tables"))
    assert first.is_new
    assert not share(publish(run.store, value=0.625, finished=1_700_000_100.0), server, experiment="audits").is_new
    (found,) = asked(server, "runs/search", experiment_ids=["1"])["runs"]
    metrics = {one["key"]: one["value"] for one in found["data"]["metrics"]}
    assert metrics["headline/value"] == 0.625
    assert metrics["auc lira/p_adjusted"] == 0.001
    tags = {one["key"]: one["value"] for one in found["data"]["tags"]}
    assert (tags["memlib.verdict"], found["info"]["status"]) == ("shown", "FINISHED")
    folder = found["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    with urllib.request.urlopen(
        f"{server}/api/2.0/mlflow-artifacts/artifacts/{folder}/memlib/report.html", timeout=30
    ) as page:
        assert page.read() == b"<p>page</p>"


def test_the_validator_of_croissant_finds_no_errors(tmp_path: Path) -> None:
    validator = installed(tmp_path / "venv", "mlcroissant") / "mlcroissant"
    (tmp_path / "rows.csv").write_text("\n".join(["age,town,ill", *(f"{n},{n % 3},{n % 2}" for n in range(60))]))
    table = {"kind": "table", "path": str(tmp_path / "rows.csv"), "label_column": "ill", "columns": ["age", "town"]}
    for number, source in enumerate((table, {"kind": "digits"}, {"kind": "two_moons", "num_examples": 60})):
        changes: dict[str, Any] = {"data": {"source": source}}
        run = memlib.run(INFLUENCE | changes, store=str(tmp_path / "store"), quiet=True)
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(describe(run)))
        command = [str(validator), "validate", "--jsonld", str(file)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr.lower(), done.stderr
        assert "not standard" not in done.stderr, done.stderr
