"""Findings about supplied secrets before anything is trained."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from memlib.audits.exposure.stages import MakeCorpus
from memlib.data.stages import Shard
from memlib.running import PlainRunner
from memlib.specs import SecretsSpec, TextSpec
from memlib.stage import Artifact
from memlib.store import Store


@pytest.mark.parametrize(
    ("given", "unseen", "said"),
    [
        (0, 0, ""),
        (5, 0, "allows no test"),
        (5, 198, "none of the 5 given ones can be found by itself; that takes 199"),
        (5, 199, ""),
    ],
)
def test_too_few_unseen_secrets_are_said_before_anything_is_trained(
    tmp_path: Path, given: int, unseen: int, said: str
) -> None:
    for name, numbers in (("given", range(given)), ("unseen", range(500, 500 + unseen))):
        (tmp_path / name).write_text("".join(f"pin {number:03d}\n" for number in numbers))
    files = {"file": str(tmp_path / "given") if given else None, "unseen": str(tmp_path / "unseen") if unseen else None}
    text = TextSpec.model_validate({"source": {"kind": "topics"}})
    stage = MakeCorpus(text, SecretsSpec.model_validate({"format": "pin {d3}", **files}))
    missing = stage.missing(level=0.05 / 2)
    assert said in missing
    assert bool(missing) is bool(said)


def test_a_text_is_stored_as_windows_and_one_of_before_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("0" * 64)
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    text = TextSpec.model_validate({"source": {"kind": "topics"}})
    made = PlainRunner(Store(str(tmp_path / "new"))).run(MakeCorpus(text, SecretsSpec.model_validate({"format": "pin {d3}"})))
    assert "windows.npy" in made.files
    assert "images.npy" not in made.files
    older = Store(str(tmp_path / "old"))
    with older.artifacts.write(made.ref) as attempt:
        for name in made.files:
            shutil.copy(made.path(name), attempt.path("images.npy" if name == "windows.npy" else name))
    before = Artifact(older, made.ref, MakeCorpus)
    for found in (made, before):
        assert np.array_equal(found.content.windows, np.load(made.path("windows.npy")))
        assert np.array_equal(Shard(found).images, found.content.windows)
