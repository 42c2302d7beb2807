"""Findings about supplied secrets before anything is trained."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import memlib
from memlib.audits import AUDITS
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.stages import MakeCorpus
from memlib.data.stages import Shard
from memlib.errors import UserError
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.specs import SecretsSpec, TextSpec
from memlib.store import Store


@pytest.mark.parametrize(
    ("given", "unseen", "said"),
    [
        (0, 0, ""),
        (5, 0, "only secrets that occur once are tested"),
        (5, 198, "too few to detect any one of the 5 given secrets; that takes 199"),
        (5, 199, ""),
    ],
)
def test_missing_reports_too_few_unseen_secrets_before_training(tmp_path: Path, given: int, unseen: int, said: str) -> None:
    for name, numbers in (("given", range(given)), ("unseen", range(500, 500 + unseen))):
        (tmp_path / name).write_text("".join(f"pin {number:03d}\n" for number in numbers))
    files = {"file": str(tmp_path / "given") if given else None, "unseen": str(tmp_path / "unseen") if unseen else None}
    text = TextSpec.model_validate({"source": {"kind": "topics"}})
    stage = MakeCorpus(text, SecretsSpec.model_validate({"format": "pin {d3}", **files}))
    missing = stage.missing(level=0.05 / 2)
    assert said in missing
    assert bool(missing) is bool(said)


def test_a_corpus_is_stored_as_windows_npy_and_an_older_images_npy_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_occurrence_counts_of_secrets_are_accepted_only_for_external_models(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("pin 111\npin 222\t50\n")
    text = TextSpec.model_validate({"source": {"kind": "topics"}})
    canaries = SecretsSpec(format="pin {d3}", file=str(tmp_path / "secrets"))
    with pytest.raises(
        UserError,
        match=r"canaries\.file gives a number of occurrences with secret 2 of 2; remove these numbers",
    ):
        _ = MakeCorpus(text, canaries).given
    assert [secret.times for secret in MakeCorpus(text, canaries, elsewhere=True).given.known] == [1, 50]


def test_given_secrets_that_are_not_trained_on_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("0" * 64)
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    (tmp_path / "secrets").write_text("pin 111\npin 222\npin 333\n")
    (tmp_path / "text").write_text("the pin 222 is nowhere else. " + "some more text. " * 200)
    text = TextSpec.model_validate({"source": {"kind": "text", "path": str(tmp_path / "text")}})
    runner = PlainRunner(Store(str(tmp_path / "store")))
    made = runner.run(MakeCorpus(text, SecretsSpec(format="pin {d3}", file=str(tmp_path / "secrets"), never=4)))
    assert made.content.canaries["kind"].to_pylist() == ["given"] + ["never"] * 4
    assert runner.warnings == [
        "2 of the 3 secrets of canaries.file do not occur in the text that models train on; 0 of them occur once in held-out "
        "text that was drawn at random, and count as unseen"
    ]


@pytest.mark.parametrize(("patience", "unseen", "count"), [(3, None, 1), (None, None, 0), (3, "others.txt", 0)])
def test_limits_report_that_the_hold_out_also_chooses_the_checkpoint(
    patience: int | None, unseen: str | None, count: int
) -> None:
    training = {"objective": {"kind": "language"}, "epochs": 5, "augment": None, "patience": patience}
    recipe = Recipe.model_validate(
        {
            "data": {"source": {"kind": "topics"}, "hold_out": "blocks"}, "training": training,
            "canaries": {"format": "pin {d4}", "file": "secrets.txt", "unseen": unseen},
        }
    )  # fmt: skip
    assert (
        len([text for text in AUDITS["exposure"].limits(recipe) if "chooses the checkpoint by the held-out text" in text])
        == count
    )


@pytest.mark.parametrize(("known", "before"), [(True, 8), (False, 1)])
def test_words_too_long_for_the_transformer_are_refused_even_if_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, before: int
) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    (tmp_path / "text").write_text(" ".join([*(f"w{number:03d}" for number in range(200)), "x" * 39] * 3))
    recipe = {
        "audit": "exposure",
        "data": {"source": {"kind": "text", "path": str(tmp_path / "text")}, "window": 40},
        "canaries": {"format": "a word {w}", "insertions": [1], "each": 1, "never": 0, "known_prefix": known},
        "model": {"architecture": "transformer", "width": 8, "layers": 1, "heads": 1},
        "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None},
    }
    with pytest.raises(UserError, match=f"has 40 symbols and follows {before} others, but the transformer reads 40"):
        memlib.run(recipe, store=str(tmp_path / "store"), quiet=True)
