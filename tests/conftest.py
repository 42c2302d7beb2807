"""Fixtures of all tests: a separate cache folder, one thread, and the real data where it is available."""

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import absl.logging
import hypothesis
import pytest
import torch
from filelock import FileLock

hypothesis.settings.register_profile("loaded", parent=hypothesis.settings(), deadline=None)  # other work may share the cores
hypothesis.settings.load_profile("loaded")
# else it closes the stream that it finds at its import, which is pytest's, when Prefect configures logging
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
SHARED_PREFECT = "prefect.json"


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every stage, too
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def prefect_api(of_all_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a Prefect server that all workers of a test run share; it ends with the run."""
    from harness import start_prefect_server

    state = of_all_workers / SHARED_PREFECT
    with FileLock(state.with_suffix(".lock")):
        if not state.exists():
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
            environment |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
            url, server = start_prefect_server(environment, tmp_path_factory.mktemp("prefect"))
            state.write_text(json.dumps({"url": url, "server": server.pid}))
        return str(json.loads(state.read_text())["url"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the Prefect server that the workers shared, also if the worker that started it crashed."""
    from harness import end_session

    state = session.config._tmp_path_factory.getbasetemp() / SHARED_PREFECT  # type: ignore[attr-defined]
    if "PYTEST_XDIST_WORKER" not in os.environ and state.exists():
        end_session(json.loads(state.read_text())["server"])


@pytest.fixture
def own_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Python's random state to the test's own thread; a Prefect client that an earlier test left draws for its pings."""
    own, others = threading.get_ident(), random.Random()

    def dispatched(name: str) -> Any:
        mine, theirs = getattr(random, name), getattr(others, name)
        return lambda *args, **settings: (mine if threading.get_ident() == own else theirs)(*args, **settings)

    for name in random.__all__:
        if isinstance(getattr(getattr(random, name), "__self__", None), random.Random):
            monkeypatch.setattr(random, name, dispatched(name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of published values where the seeds are shifted (benchmarks/rounding)."""
    if int(os.environ.get("MEMLIB_TEST_SEED") or 0):
        for item in items:
            if item.get_closest_marker("pinned"):
                item.add_marker(pytest.mark.skip(reason="values of the published seeds"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    default = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("MEMLIB_DATA", default))
    if not folder.is_dir():
        pytest.skip("no real data: set MEMLIB_DATA to a folder with MNIST/, tiny-imagenet-50.tar.xz, ...")
    return folder
