"""A full disk ends a run with one line; the next run uses what was finished before."""

import json
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, file_system, newest, published

from tests.forks import run_code

Finished = tuple[Path, dict[str, Any]]


def committed(store: Path) -> set[str]:
    return {path.parent.parent.name for path in store.glob("artifacts/*/*/manifest.json")}


@pytest.mark.slow
def test_a_file_size_limit_ends_the_run_and_leaves_no_partial_artifact(
    memlib: Memlib, finished: Finished, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(finished[0], tmp_path / "store"))
    shutil.rmtree(store / "artifacts" / "decode")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # the images take more

    process = memlib.start(store, preexec_fn=limit)
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 2
    assert errors.startswith("memlib: OSError: ")
    assert "too large" in errors
    assert "Traceback" not in errors
    assert committed(store) == {ref.split("/")[0] for ref in finished[1]["computed"]} - {"decode"}
    assert not list(store.glob("artifacts/decode/*/*/*"))  # nothing half-written is left
    again = memlib.audit_on_ray(store)
    assert [ref.split("/")[0] for ref in again["computed"]] == ["decode"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for the images, but not for the models."""
    with file_system(tmp_path / "small", "900k") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_in_training_ends_the_run_which_continues_with_more_space(
    memlib: Memlib, finished: Finished, small: Path
) -> None:
    store = small / "store"
    process = memlib.start(store, "resources.resume_seconds=0")
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 2
    assert "No space left on device" in errors
    assert "free some space and run the same command again" in errors
    assert "Traceback" not in errors
    assert committed(store) == {"decode", "split"}
    subprocess.run(["mount", "-o", "remount,size=50m", small], check=True)
    manifest = memlib.audit_on_ray(store)
    assert {ref.split("/")[0] for ref in manifest["reused"]} >= {"decode", "split"}
    mine, theirs = published(store, newest(store)), published(*finished)
    assert all(mine[name].equals(theirs[name]) for name in theirs)
    assert json.loads((store / f"runs/{manifest['run']}/manifest.json").read_text())["run"] == finished[1]["run"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["100k", "200k", "400k"])
def test_a_full_disk_is_an_error_in_a_notebook_and_not_its_end(memlib: Memlib, small: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", small], check=True)
    code = f"""
import memlib
try:
    memlib.run({str(memlib.recipe)!r}, store={str(small / "store")!r}, quiet=True)
except OSError as error:
    print("caught:", error)
"""
    done = run_code(code)
    assert done.returncode == 0, done.stderr  # a write to mapped memory without room would be the end (SIGBUS)
    assert "caught: [Errno 28] " in done.stdout
    assert "No space left on device" in done.stdout
