"""Digests of artifacts: of all content, and of ids and labels with only the shape of floats and the code that made them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from memlib import version
from memlib.errors import RunError
from memlib.identity import file_digest
from memlib.pipeline import old_code, provenance
from memlib.pipeline.provenance import software, source_state
from memlib.running.runners import PlainRunner
from memlib.store import Store
from memlib.store.content import contents, former_of, rounded_digest
from memlib.store.records import ArtifactRecord, FileRecord
from tests.memlib.pipeline.test_stage import Word

CODE = {"version": 1, "code": "a"}


def files_of(folder: Path) -> dict[str, FileRecord]:
    return {path.name: FileRecord(size=path.stat().st_size, sha256=file_digest(path)) for path in folder.iterdir()}


def digest(folder: Path, said: dict[str, Any] = CODE) -> str:
    return rounded_digest(folder, files_of(folder), said)


def npy(folder: Path, change: str) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(folder / "a.npy", {"rounded": array + 1e-7, "shape": array.T.copy(), "exact": array, "same": array}[change])
    np.save(folder / "ids.npy", np.array([1, 2, 4 if change == "exact" else 3]))


def parquet(folder: Path, change: str) -> None:
    ids = ["a", "c" if change == "exact" else "b"]
    scores = pa.array([0.1, 0.2 + (1e-9 if change == "rounded" else 0)], pa.float32() if change == "shape" else pa.float64())
    nested = pa.array([[1.0], [2.0 + (1e-9 if change == "rounded" else 0)]])
    pq.write_table(pa.table({"example_id": ids, "score": scores, "list": nested}), folder / "t.parquet")


def weights(folder: Path, change: str) -> None:
    tensor = torch.ones(3 if change == "shape" else 2) * (1.0001 if change == "rounded" else 1)
    safetensors.torch.save_file({"b" if change == "exact" else "a": tensor}, folder / "w.safetensors")


def plain(folder: Path, change: str) -> None:
    value = {"a": [1, 2 if change == "exact" else 1], "b": 0.1 + (1e-9 if change == "rounded" else 0)}
    (folder / "m.json").write_text(json.dumps(value | ({"c": 1} if change == "shape" else {})))


def npz(folder: Path, change: str) -> None:
    arrays = {"costs": np.ones(3 if change == "shape" else 2) * (1 + (1e-9 if change == "rounded" else 0))}
    np.savez(folder / "z.npz", **arrays, found=np.array([1 + (change == "exact")]))


@pytest.mark.parametrize("write", [npy, parquet, weights, plain, npz])
def test_digest_ignores_rounding_but_no_other_change(write: Any, tmp_path: Path) -> None:
    found = {}
    for change in ("same", "again", "rounded", "shape", "exact"):
        folder = tmp_path / change
        folder.mkdir()
        write(folder, "same" if change == "again" else change)
        found[change] = digest(folder)
    assert found["same"] == found["again"] == found["rounded"]
    assert len({found["same"], found["shape"], found["exact"]}) == 3
    exact = {change: contents(tmp_path / change, files_of(tmp_path / change), CODE)["content"] for change in found}
    assert exact["same"] == exact["again"]
    assert len(set(exact.values())) == 4
    assert digest(tmp_path / "same", CODE | {"code": "b"}) != found["same"]  # floats may differ by more than rounding
    assert digest(tmp_path / "same", CODE | {"version": 2}) != found["same"]


@pytest.mark.parametrize(
    ("change", "said", "kept"),
    [
        ("rounded", {}, True), ("shape", {}, False), ("exact", {}, False), ("rounded", {"version": 2}, False),
        ("rounded", {"reads": {"a": "c"}}, False), ("rounded", {"named": {"mine": "3"}}, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written_before_rounded", [False, True])
def test_content_stays_equal_if_evicted_files_are_computed_with_other_rounding(
    change: str, said: dict[str, Any], kept: bool, written_before_rounded: bool, tmp_path: Path
) -> None:
    made: dict[str, Any] = CODE | {"reads": {"a": "b"}, "named": {"mine": "2"}}
    (tmp_path / "before").mkdir()
    (tmp_path / "again").mkdir()
    npy(tmp_path / "before", "same")
    npy(tmp_path / "again", change)
    files = files_of(tmp_path / "before")
    entries = contents(tmp_path / "before", files, made, transient=True)
    if written_before_rounded:
        entries = {"content": entries["rounded"]}
    manifest = ArtifactRecord.model_validate({"attempt": "a", "files": files} | made | entries)
    now = files_of(tmp_path / "again")
    for evicted in (True, False):
        former = former_of(manifest, evicted=evicted)
        again = contents(tmp_path / "again", now, made | said, transient=True, former=former)
        assert (again["content"] == manifest.content) is (kept and evicted)


def test_content_stays_equal_if_an_artifact_is_computed_again_with_equal_bytes(tmp_path: Path) -> None:
    npy(tmp_path, "same")
    files = files_of(tmp_path)
    manifest = ArtifactRecord.model_validate({"attempt": "a", "files": files, "content": "of an earlier kind"})
    again = contents(tmp_path, files, CODE, former=former_of(manifest, evicted=False))
    assert again["content"] == "of an earlier kind"


def test_digest_of_exact_files_ignores_the_code_and_html_pages(tmp_path: Path) -> None:
    np.save(tmp_path / "neighbors.npy", np.arange(4))
    before = digest(tmp_path)
    assert digest(tmp_path, CODE | {"code": "b"}) == before
    (tmp_path / "report.html").write_text("a page")
    assert digest(tmp_path) == before
    (tmp_path / "odd.npy").write_bytes(b"only looks like one")
    assert digest(tmp_path) != before


CHANGED_MEANWHILE = """
import sys
from pathlib import Path
from tests.memlib.pipeline.test_stage import Word
from memlib import version
from memlib.pipeline.stage import Stage
from memlib.running.runners import PlainRunner
from memlib.store import Store

assert str(version.ROOT) == sys.argv[1]
runner = PlainRunner(Store(sys.argv[2]))
runner.run(Word("to"))
write = Word.write
def slow(self, attempt, device):
    with (version.ROOT / "memlib/training/loop.py").open("a") as file:
        file.write("# saved by an editor\\n")
    write(self, attempt, device)
Word.write = slow
try:
    runner.run(Word("be"))
except Exception as error:
    print(type(error).__name__, error)
print(len(list(Path(sys.argv[2]).glob("artifacts/word/*/manifest.json"))))
"""


def test_results_computed_while_the_code_of_memlib_changes_are_not_kept(tmp_path: Path) -> None:
    for package in (*version.PACKAGES, "tests"):
        shutil.copytree(version.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "memlib/training/.loop.py.swp").write_text("of an editor")
    command = [sys.executable, "-c", CHANGED_MEANWHILE, str(tmp_path), str(tmp_path / "store")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "RunError memlib/training/loop.py was changed while the run was under way, so what was computed meanwhile is not kept; "
        "run the same command again (in a notebook, restart its kernel first)",
        "1",
    ]


def test_a_worker_with_other_source_files_than_the_drivers_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stage = Store(str(tmp_path / "store")), Word("to")
    monkeypatch.setattr(provenance, "SOURCES", "0" * 32)  # which the driver sends along
    with pytest.raises(RunError, match="this process runs other source files of memlib than the run's driver"):
        PlainRunner(store).run(stage)
    assert not store.artifacts.has(stage.identity.ref)


def test_reusing_an_artifact_of_other_libraries_or_another_processor_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    PlainRunner(store).run(Word("to"))
    again = PlainRunner(store)
    again.run(Word("to"))
    assert again.old_code.lines == []
    here = {**software(), "numpy": "3.0.0", "prefect": "9"}
    monkeypatch.setattr(old_code, "software", lambda: here)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX9")
    other = PlainRunner(store)
    other.run(Word("to"))
    (said,) = other.old_code.lines
    assert said.startswith(f"word: made with numpy {software()['numpy']} (here 3.0.0), ")
    assert said.endswith("(here AVX9), so that computed again their numbers may differ; old artifacts are reused "
                         "(--force-stage word recomputes them)")  # fmt: skip


def test_software_and_source_state_name_packages_and_commit() -> None:
    assert {"memlib", "python", "torch", "numpy", "pyarrow"} <= set(software())
    assert set(source_state()) in (set(), {"commit", "dirty"})
