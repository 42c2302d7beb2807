"""Fixtures of all tests: a separate cache folder, one thread, and the real data where it is available."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("loaded", parent=hypothesis.settings(), deadline=None)  # other work may share the cores
hypothesis.settings.load_profile("loaded")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


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
