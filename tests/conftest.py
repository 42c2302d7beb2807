"""Fixtures of all tests: a separate cache folder, one thread, and the real data where it is available."""

import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
import torch
from filelock import FileLock

hypothesis.settings.register_profile("loaded", parent=hypothesis.settings(), deadline=None)  # other work may share the cores
hypothesis.settings.load_profile("loaded")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def prefect_api(of_all_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prefect server that all workers of a test run share; the last one that uses it ends it."""
    from harness import end_session, start_prefect_server

    state, lock = of_all_workers / "prefect.json", FileLock(of_all_workers / "prefect.lock")
    with lock:
        if not state.exists():
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
            url, server = start_prefect_server(environment, tmp_path_factory.mktemp("prefect"))
            state.write_text(json.dumps({"url": url, "server": server.pid, "users": []}))
        found = json.loads(state.read_text())
        state.write_text(json.dumps(found | {"users": [*found["users"], os.getpid()]}))
    yield str(found["url"])
    with lock:
        found = json.loads(state.read_text())
        users = [user for user in found["users"] if user != os.getpid() and psutil.pid_exists(user)]
        state.write_text(json.dumps(found | {"users": users}))
        if not users:
            end_session(found["server"])
            state.unlink()


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
    """Skip tests of published values where the seeds are shifted (tests/rounding)."""
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
