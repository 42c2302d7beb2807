"""A pretrained model that is fine-tuned on text with canaries, from its folder to the page."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_models import save_mixtral, save_model

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.exposure.models import CorpusData, ExternalModel
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.reveal import revealed
from memlib.audits.exposure.stages import MakeCorpus
from memlib.data.canaries.secret_key import VARIABLE
from memlib.data.text.spelling import TRIED, Spelled
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.runs.records import RunRecord
from memlib.specs import HuggingFaceSpec
from memlib.store import Ref, Store

WORDS = [
    "the",
    "pin",
    "of",
    "the",
    "door",
    "is",
    "kept",
    "by",
    "the",
    "man",
    "who",
    "has",
    "the",
    "key",
    "of",
    "the",
    "house",
    "and",
    "says",
    "nothing",
    "of",
    "it",
]


def recipe(folder: Path, **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "data": {"source": {"kind": "text", "path": str(folder / "text.txt")}, "unit": "token", "window": 24, "validation": 0.3},
        "canaries": {
            "format": "my pin is {x4}.", "alphabets": {"x": ["1", "2", "3"]}, "insertions": [30], "each": 2, "never": 5,
            "together": True,
        },
        "model": {"kind": "huggingface", "path": str(folder / "gpt")},
        "training": {
            "objective": {"kind": "language"}, "epochs": 25, "batch_size": 16, "augment": None, "accumulate": 2,
            "optimizer": {"learning_rate": 0.02, "warmup_epochs": 1, "weight_decay": 0}, "checkpoint_epochs": [1],
        },
        "variants": {"whole": {}, "adapters": {"model.lora": {"rank": 8}, "training.epochs": 3}},
        "score": {"references": 200, "shards": 1},
        "extraction": {"known": [0], "top": 2, "beam": None},
        "discoverable": {"documents": 15, "prefix": 6, "suffix": 4, "samples": 3, "top_k": None},
    }  # fmt: skip
    return Recipe.model_validate(content | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fine_tuning")
    save_model(folder / "gpt")
    rng = np.random.default_rng(0)
    documents = [f"{number} {' '.join(rng.choice(WORDS, 10))}" for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents * 8))  # copies stay on one side
    (folder / "secret").write_bytes(bytes(range(32)))
    (folder / "secret").chmod(0o600)
    return folder


@pytest.fixture(autouse=True)
def secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder / "secret"))


def run(folder: Path, given: Recipe) -> RunRecord:
    found = body_of(AUDITS["exposure"])(PlainRunner(Store(str(folder / "store"))), given)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def audited(folder: Path) -> RunRecord:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "secret"))
        return run(folder, recipe(folder))


@pytest.mark.ray
def test_secrets_inserted_thirty_times_are_revealed_after_full_fine_tuning(audited: RunRecord, folder: Path) -> None:
    units = pq.read_table(audited.results["units"]).to_pylist()
    last = {
        (unit["variant"], unit["canary"]): unit
        for unit in units
        if unit["epoch"] == (25 if unit["variant"] == "whole" else 3)
    }
    assert {variant for variant, _ in last} == {"whole", "adapters"}
    assert all(last["whole", canary]["rank"] <= 3 for canary in (0, 1))
    assert all(unit["method"] == "enumerated" and unit["fit_p"] is None for unit in last.values())
    never = [unit["exposure"] for (variant, _), unit in last.items() if variant == "whole" and not unit["insertions"]]
    assert sorted(never)[2] < 4
    found = revealed(Store(str(folder / "store")), json.loads(json.dumps(audited.recipe)), audited.artifacts)
    inserted = {row["text"] for row in found["inserted"]}
    assert len(inserted) == 2
    assert all(text.startswith("my pin is ") for text in inserted)


@pytest.mark.ray
def test_documents_are_tested_for_every_variant_and_shown_on_the_page(audited: RunRecord) -> None:
    documents = pq.read_table(audited.results["documents"]).to_pylist()
    assert {row["variant"] for row in documents} == {"whole", "adapters"}
    assert len(documents) == 60
    assert sum(row["held_out"] for row in documents) == 30
    tests = Findings.of_run(audited).all("document_bits")
    assert [row.params["variant"] for row in tests] == ["whole", "adapters"]
    for row in tests:
        assert row.p_value is not None
        assert 0 < row.p_value <= 1
        assert row.low is not None
        assert row.high is not None
        assert row.low <= row.value <= row.high
    page = Path(audited.report).read_text()
    assert "Documents whose beginning is known" in page
    assert "nearly reproduced in 3 samples" in page
    assert "my pin is 1" not in page


@pytest.mark.ray
def test_a_moved_model_folder_keeps_its_keys(audited: RunRecord, folder: Path) -> None:
    shutil.copytree(folder / "gpt", folder / "moved")
    model = {"kind": "huggingface", "path": str(folder / "moved")}
    again = run(folder, recipe(folder, model=model))
    assert {
        name: key for name, key in again.artifacts.items() if name.startswith(("whole", "adapters", "corpus", "base"))
    } == {name: key for name, key in audited.artifacts.items() if name.startswith(("whole", "adapters", "corpus", "base"))}


def test_candidates_that_the_tokenizer_cannot_spell_are_refused_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2222, the only candidate that is tried, is not joined with the space before it, as 1123 is; all are asked about
    sample = Spelled.sample
    tried = {TRIED: np.full((1, 4), 1)}
    monkeypatch.setattr(
        Spelled, "sample", lambda self, count, rng: tried.pop(count, None) if tried else sample(self, count, rng)
    )
    canaries = {"format": "pin {x4}", "alphabets": {"x": ["1", "2", "3"]}, "insertions": [1], "never": 80}
    with pytest.raises(UserError, match="the tokenizer joins"):
        run(folder, recipe(folder, canaries=canaries))


def test_loading_an_external_model_refuses_a_precision_that_it_lacks(folder: Path, tmp_path: Path) -> None:
    path, said = save_mixtral(folder / "gpt", tmp_path / "mixtral"), recipe(folder)
    corpus = Artifact(Store(str(tmp_path / "store")), Ref("corpus", "none"), MakeCorpus)
    data = CorpusData(corpus, said.data, said.canaries, HuggingFaceSpec(kind="huggingface", path=str(path)))
    ExternalModel(data, "digest", "float32").load(torch.device("cpu"))
    with pytest.raises(UserError, match="set score.precision: float32"):
        ExternalModel(data, "digest", "float64").load(torch.device("cpu"))
