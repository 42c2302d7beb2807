"""Fixtures: a store in a folder, and one on another machine."""

from pathlib import Path

import fsspec
import pytest

from memlib.store import Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, once in a folder and once in a remote file system."""
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    return Store("memory://bucket/store", cache=str(tmp_path / "cache"))
