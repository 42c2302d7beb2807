"""A store that somebody else has written to can at worst give wrong numbers: nothing in it is executed or unpickled."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from memlib.data.images.stored import read_images
from memlib.errors import CorruptArtifact, UserError
from memlib.models.external.classifiers import load_external
from memlib.observe.extraction import Frontier
from memlib.runs.index import refs_of
from memlib.runs.records import RunRecord
from memlib.specs import ExternalClassifierSpec
from memlib.store import Ref, Store
from memlib.store.records import FileRecord, Unreadable, parse
from memlib.training.checkpoint import load_resume_state, load_weights


class Planted:
    """Does harm when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.mark, "harm"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that is there when something was unpickled."""
    pickle.loads(pickle.dumps(Planted(tmp_path / "proof")))
    assert (tmp_path / "proof").exists()  # the plant works
    return tmp_path / "mark"


def test_a_planted_state_to_resume_from_is_refused(mark: Path, tmp_path: Path) -> None:
    for write in (lambda path: torch.save(Planted(mark), path), lambda path: path.write_bytes(pickle.dumps(Planted(mark)))):
        write(tmp_path / "state.pt")
        with pytest.raises(CorruptArtifact, match="resume state cannot be read"):
            load_resume_state(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["epoch-00001.safetensors", "weights.pt"])
def test_planted_weights_are_refused(mark: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"weight": Planted(mark)}, tmp_path / name)
    with pytest.raises(UserError):
        load_weights(nn.Linear(1, 1), tmp_path / name)
    monkeypatch.setenv("MEMLIB_CODE", "torch.nn")
    spec = ExternalClassifierSpec(model="torch.nn:Identity", weights=str(tmp_path / name), inputs="unit")
    with pytest.raises(UserError):
        load_external(spec, str(tmp_path / name))
    assert not mark.exists()


def test_planted_arrays_are_refused(mark: Path, tmp_path: Path) -> None:
    array = np.array([Planted(mark)], dtype=object)
    np.save(tmp_path / "images.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        read_images(tmp_path / "images.npy")
    np.savez(tmp_path / "frontier.npz", **dict.fromkeys(("costs", "nodes", "leaves", "found"), array))
    with pytest.raises((ValueError, KeyError)):
        Frontier.load(tmp_path / "frontier.npz")
    assert not mark.exists()


@pytest.mark.parametrize("ref", ["../../etc/passwd/0", "score/../../x", "/etc/0", "score/a b"])
def test_a_run_cannot_name_artifacts_outside_of_the_store(ref: str) -> None:
    finding = {"metric": "m", "params": "{}"}
    run = {"run": "r", "audit": "a", "title": "t", "finished": 1, "findings": [finding], "artifacts": {"scores": ref}}
    with pytest.raises(Unreadable, match="names no artifact"):
        parse(RunRecord, json.dumps(run).encode())
    with pytest.raises(CorruptArtifact, match="does not name an artifact"):
        refs_of({"refs": [ref]})  # of an index that somebody has changed


def test_a_record_of_the_wrong_form_is_named_without_a_regular_expression() -> None:
    with pytest.raises(Unreadable) as said:
        parse(FileRecord, json.dumps({"size": 1, "sha256": "a b"}).encode())
    assert str(said.value) == "sha256: not a text of the form that memlib writes"


def test_a_manifest_cannot_have_files_read_from_elsewhere(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    ref = Ref("score", "0" * 32)
    (tmp_path / "outside").write_text("private")
    with store.artifacts.write(ref) as attempt:
        attempt.path("a").write_text("a")
    file = tmp_path / "store/artifacts/score" / ref.key / "manifest.json"
    manifest = json.loads(file.read_text())
    for change in ({"attempt": "../../../.."}, {"files": {"../../../../outside": manifest["files"]["a"]}}, {"files": ["a"]}):
        file.write_text(json.dumps(manifest | change))
        with pytest.raises(CorruptArtifact):
            store.artifacts.local_path(ref, "a")
        assert not store.artifacts.has(ref)
