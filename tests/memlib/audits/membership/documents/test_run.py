"""Whole audits of documents: a model that learnt its documents, one that was never trained, fine-tunes, and an external one."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_models import save_model

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.findings import DESCRIPTIVE, INCONCLUSIVE, SHOWN, Findings
from memlib.running.runners import PlainRunner
from memlib.store import Store

DOCUMENTS = 80


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON lines of random letters, which only training on them can tell."""
    draw, path = random.Random(0), tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = ["".join(draw.choices("abcdefgh ", k=40)) for _ in range(DOCUMENTS)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def recipe_of(texts: Path, epochs: int, **changes: Any) -> DocumentsRecipe:
    training = {
        "objective": {"kind": "language"}, "epochs": epochs, "batch_size": 8, "augment": None,
        "optimizer": {"learning_rate": 0.02, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    }  # fmt: skip
    return DocumentsRecipe.model_validate(
        {
            "data": {"source": {"kind": "jsonl", "path": str(texts)}, "window": 48},
            "model": {"architecture": "gru", "width": 48, "layers": 1, "embedding": 16},
            "training": training, "shadows": {"count": 0},
            "score": {"attacks": ["loss", "min_k", "zlib"], "headline": "loss", "redraws": 999}, **changes,
        }
    )  # fmt: skip


def run(recipe: DocumentsRecipe, store: Path) -> Findings:
    manifest = body_of(AUDITS["membership"])(PlainRunner(Store(str(store))), recipe)
    assert manifest is not None
    return Findings.read(pq.read_table(manifest.results["summary"]))


def test_documents_of_a_trained_model_are_shown_and_those_of_an_untrained_one_are_not(texts: Path, tmp_path: Path) -> None:
    learnt, untrained = (run(recipe_of(texts, epochs), tmp_path) for epochs in (20, 0))
    assert learnt.verdict.word == SHOWN
    assert all(row.value > 0.8 for row in learnt.all("auc"))
    assert untrained.verdict.word == INCONCLUSIVE
    assert (tmp_path / "results").is_dir()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base") / "gpt")


def test_a_fine_tune_is_compared_with_its_pretrained_model(texts: Path, base: Path, tmp_path: Path) -> None:
    tuned = recipe_of(
        texts, 30, data={"source": {"kind": "jsonl", "path": str(texts)}, "unit": "token", "window": 24},
        model={"kind": "huggingface", "path": str(base)}, score={"redraws": 999, "attacks": ["ratio", "loss"]},
    )  # fmt: skip
    found = run(tuned, tmp_path)
    assert found.verdict.word == SHOWN
    assert found.first("auc", attack="loss").value > 0.75
    (units,) = tmp_path.glob("results/table=units/**/*.parquet")
    pretrained = [row["loss"] - row["ratio"] for row in pq.read_table(units).to_pylist()]
    assert np.std(pretrained) > 0.01  # each document has its own mean log probability under the pretrained model
    assert max(pretrained) < 0


def fine_tuned(base: Path, texts: Path, members: np.ndarray, folder: Path) -> Path:
    """Fine-tune as an owner would, without memlib."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    lines = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(25):
        for place in np.flatnonzero(members).tolist():
            tokens = torch.tensor([[0, *tokenizer(lines[place]).input_ids[:22], 0]])
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("drawn", ["coins", "unknown"])
def test_an_external_fine_tune_is_audited_with_its_owners_list_of_members(
    drawn: str, texts: Path, base: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    coins = np.random.default_rng(4).random(DOCUMENTS) < 0.5
    folder = tmp_path_factory.getbasetemp() / "tuned"
    folder = folder if folder.exists() else fine_tuned(base, texts, coins, folder)
    listed = tmp_path / "members.csv"
    rows = (f"document {place:08d},{'yes' if coin else 'no'}" for place, coin in enumerate(coins.tolist()))
    listed.write_text("\n".join(["example_id,member", *rows]) + "\n")
    target = {"trained": {"kind": "huggingface", "path": str(folder)}, "members": str(listed), "drawn": drawn}
    recipe = recipe_of(
        texts, 1, data={"source": {"kind": "jsonl", "path": str(texts)}, "unit": "token", "window": 24},
        model={"kind": "huggingface", "path": str(base)}, training=None, target=target,
        score={"redraws": 999},
    )  # fmt: skip
    found = run(recipe, tmp_path / "store")
    assert found.verdict.word == (SHOWN if drawn == "coins" else DESCRIPTIVE)
    assert found.first("auc", attack="ratio").value > 0.75
    assert found.get("blind_auc") is not None
    assert {row.params["measure"] for row in found.all("blind_auc_by_family")} >= {"sizes", "text"}


def test_words_of_documents_are_shown_on_request_alone_and_escaped(base: Path, tmp_path: Path) -> None:
    letters = random.Random(1)
    path = tmp_path / "d.jsonl"
    lines = [f"<script>{number}</script> & {''.join(letters.choices('abcdefgh', k=20))}" for number in range(40)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    settings: dict[str, Any] = {
        "data": {"source": {"kind": "jsonl", "path": str(path)}, "unit": "token", "window": 24},
        "model": {"kind": "huggingface", "path": str(base)}, "score": {"redraws": 999, "attacks": ["ratio", "ez", "wbc", "loss"]},
    }  # fmt: skip
    pages = []
    for report in ({}, {"documents": 3}):
        manifest = body_of(AUDITS["membership"])(
            PlainRunner(Store(str(tmp_path / "store"))), recipe_of(path, 3, report=report, **settings)
        )
        assert manifest is not None
        pages.append(Path(manifest.report).read_text())
    plain, shown = pages
    assert "Words that carry the evidence" not in plain
    assert "&lt;script" not in plain
    text = shown.partition("Words that carry the evidence")[2]
    assert text.count('<p class="shaded">') == 3
    assert "<script" not in shown
    assert "&lt;" in text
    assert " nats" in text
