"""Fixtures: the command, one undisturbed audit for all tests, and audits to disturb."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from filelock import FileLock
from harness import RECIPE, Memlib, end_session, resume_step, saved_models, wait_for

from deployments.local.swift import Missing, SwiftServer, install
from memlib.pipeline.stage import AnyStage
from memlib.running.runners import PlainRunner
from memlib.store import Ref

MODELS = 2  # of the tiny audit, which train side by side


@pytest.fixture(scope="session")
def memlib(tmp_path_factory: pytest.TempPathFactory) -> Memlib:
    folder = tmp_path_factory.mktemp("end_to_end")
    (folder / "tiny.yaml").write_text(RECIPE)
    environment = dict(os.environ) | {
        "PREFECT_HOME": str(folder / "prefect"), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200",
        "XDG_CONFIG_HOME": str(folder / "config"),
    }  # fmt: skip
    environment.pop("PREFECT_API_URL", None)
    secret = folder / "config" / "memlib" / "secret"  # else canaries, and with them verdicts, are others in every session
    secret.parent.mkdir(parents=True)
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    return Memlib(folder / "tiny.yaml", environment)


@pytest.fixture(autouse=True, scope="session")
def _travelling() -> Iterator[None]:
    """Send each stage that is computed in this process through pickle first, as those that Ray's workers get."""
    compute = PlainRunner._compute

    def travelled(runner: PlainRunner, stage: AnyStage, ref: Ref, threads: int) -> None:
        there = cloudpickle.loads(cloudpickle.dumps(stage))
        assert there.identity.ref == ref
        compute(runner, there, ref, threads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainRunner, "_compute", travelled)
        yield


@pytest.fixture(scope="session")
def served(memlib: Memlib, prefect_api: str) -> Memlib:
    """The command with one Prefect server for all runs, which saves each of them the start of its own."""
    return replace(memlib, environment=memlib.environment | {"PREFECT_API_URL": prefect_api})


@pytest.fixture(scope="session")
def finished(memlib: Memlib, of_all_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The store and manifest of an audit that nothing disturbed; the first worker runs it."""
    shared, store = of_all_workers, tmp_path_factory.mktemp("finished") / "store"
    with FileLock(shared / "audit.lock"):
        if not (shared / "audit.json").exists():
            (shared / "audit.json").write_text(json.dumps(memlib.audit(shared / "audit")))
    told = (shared / "audit.json").read_text().replace(str(shared / "audit"), str(store))  # paths of the copy
    return Path(shutil.copytree(shared / "audit", store)), json.loads(told)


@pytest.fixture
def started(memlib: Memlib, tmp_path: Path) -> Iterator[Callable[..., tuple[Path, subprocess.Popen[str]]]]:
    """Starts an audit and returns once the training of all its models is under way and has been saved."""
    running = []

    def start(step: int = 30) -> tuple[Path, subprocess.Popen[str]]:
        store = tmp_path / "store"
        process = memlib.start(store, "resources.resume_seconds=0")
        running.append(process)
        wait_for(lambda: resume_step(store) >= step and saved_models(store) >= MODELS, process=process)
        return store, process

    yield start
    for process in running:
        end_session(process.pid)


@pytest.fixture(scope="session")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    """A real S3 server; it is installed once for a checkout."""
    try:
        server = SwiftServer(tmp_path_factory.mktemp("swift"), install())
        server.prepare()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.stop()
