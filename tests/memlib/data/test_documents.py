"""Documents as windows of tokens: held-out documents, places of canaries, and counts of secrets."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.documents import build_documents, find_copies, hold_out, open_documents
from memlib.data.formats import Format
from memlib.data.streams import Documents
from memlib.data.text import Corpus, Secret
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextSpec

SECRET = bytes(range(32))
DOCUMENTS = [f"document {number} says {'a' * (number % 7)} and ends" for number in range(200)]


class Characters:
    """A token for each character; 0 ends a text, 1 begins one."""

    pieces = (None, None, *(chr(code) for code in range(32, 127)))

    def __init__(self, start: int = 1) -> None:
        self.start, self.end = start, 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(character) - 30 for character in text] for text in texts]

    def text(self, row: Sequence[int]) -> str:
        return "".join({0: "]", 1: "["}.get(token, chr(token + 30)) for token in row)


def spec(**changes: Any) -> TextSpec:
    return TextSpec.model_validate({"source": {"kind": "topics"}, "unit": "token", "window": 40, "validation": 0.2} | changes)


def build(documents: Sequence[str], spec: TextSpec, canaries: SecretsSpec, tokenizer: Characters, **given: Any) -> Corpus:
    with TemporaryDirectory() as folder:
        windows, secret = Path(folder) / "windows.npy", given.pop("secret", SECRET)
        return build_documents(Documents(lambda: iter(documents)), spec, canaries, tokenizer, windows, secret=secret, **given)


def test_windows_hold_whole_documents_in_random_order_and_canaries_as_documents() -> None:
    tokenizer = Characters()
    canaries = SecretsSpec(format="pin {d4}", insertions=(2, 3), never=4, together=True)
    corpus = build(DOCUMENTS, spec(), canaries, tokenizer)
    rows = corpus.splits.to_pylist()
    table = corpus.canaries.to_pylist()
    assert [row["insertions"] for row in table] == [2, 3, 0, 0, 0, 0]
    for canary in table[:2]:
        mine = [row for row in rows if row["role"] == f"canary {canary['canary']}"]
        assert len(mine) == canary["insertions"]
        assert all(f"[{canary['text']}]" in tokenizer.text(corpus.windows[row["row"]].tolist()) for row in mine)
    assert not any(canary["text"] in tokenizer.text(corpus.windows.ravel().tolist()) for canary in table[2:])
    kept = {role: [row["row"] for row in rows if row["role"] == role] for role in ("train", "validation", "left_out")}
    assert len(kept["left_out"]) == 5
    training = tokenizer.text(corpus.windows[sorted(kept["train"] + kept["left_out"])].ravel().tolist())
    validation = tokenizer.text(corpus.windows[kept["validation"]].ravel().tolist())
    whole = {side: [part[1:] for part in text.split("]")[:-1]] for side, text in (("t", training), ("v", validation))}
    assert not set(whole["t"]) & set(whole["v"])
    assert set(whole["t"] + whole["v"]) <= set(DOCUMENTS)
    assert len(whole["v"]) == pytest.approx(40, abs=1)
    assert whole["t"] != sorted(whole["t"], key=DOCUMENTS.index)
    again = build(DOCUMENTS, spec(), canaries, tokenizer)
    assert np.array_equal(again.windows, corpus.windows)
    other = build(DOCUMENTS, spec(), canaries, tokenizer, secret=SECRET[::-1])
    assert not np.array_equal(other.windows, corpus.windows)


def test_a_tokenizer_with_one_mark_puts_it_once() -> None:
    tokenizer = Characters(start=0)
    corpus = build(DOCUMENTS, spec(), SecretsSpec(insertions=(1,), format="x{d2}"), tokenizer)
    assert "]]" not in tokenizer.text(corpus.windows[:20].ravel().tolist())


def test_copies_of_a_document_stay_on_one_side() -> None:
    documents = [f"text {number % 60}" for number in range(300)]
    held = Counter()
    for seed in range(20):
        sides = hold_out(find_copies(Documents(lambda: iter(documents)), 1.0), spec(), SecretsSpec(seed=seed), SECRET)
        training, validation = ([documents[number] for number in side] for side in sides)
        assert not set(training) & set(validation)
        assert len(training) + len(validation) == 300
        assert len(set(validation)) == 12
        held.update(set(validation))
    assert len(held) > 55  # any may be held out


def test_secrets_that_stand_there_are_counted_in_what_trains() -> None:
    form = Format("pin {d4}", {})
    known = [Secret(tuple(form.choices(f"pin {pin}", "token") or ()), None) for pin in ("1111", "2222")]
    unseen = [Secret(tuple(form.choices("pin 3333", "token") or ()), None)]
    documents = [*DOCUMENTS, *(f"{number}: pin 1111 and pin 1111" for number in range(20)), *["pin 2222"] * 9]
    canaries = SecretsSpec(format="pin {d4}", file="secrets.txt", never=2, seed=1)
    corpus = build(documents, spec(), canaries, Characters(), known=known, unseen=unseen)
    rows = corpus.canaries.to_pylist()
    assert [row["kind"] for row in rows] == ["given", "given", "unseen", "never", "never"]
    assert rows[0]["insertions"] % 2 == 0
    assert 20 <= rows[0]["insertions"] <= 40
    assert rows[1]["insertions"] == 9


def read(**source: Any) -> list[str]:
    documents = open_documents(TextSpec.model_validate({"source": source}).source)
    found = list(documents.read())
    assert documents.measured == (hashlib.sha256("\0".join(found).encode()).hexdigest(), len(found))
    return found


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="do not fill a window of 4000 tokens on both sides"):
        build(DOCUMENTS, spec(window=4000), SecretsSpec(), Characters())
    with pytest.raises(UserError, match="a canary of 50 tokens and its end marks"):
        build(DOCUMENTS, spec(), SecretsSpec(format="p" * 49 + "{d1}", insertions=(1,), never=0), Characters())
    (tmp_path / "empty.txt").write_text("\n\n \n")
    with pytest.raises(UserError, match="is empty"):
        read(kind="text", path=str(tmp_path / "empty.txt"))


def test_documents_of_every_source(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n\n\nthree\n  \nfour")
    pq.write_table(pa.table({"text": ["one\n\ntwo", None, "three"]}), tmp_path / "text.parquet")

    assert read(kind="text", path=str(tmp_path / "text.txt")) == ["one\ntwo", "three", "four"]
    assert read(kind="text_parquet", path=str(tmp_path / "text.parquet")) == ["one\n\ntwo", "three"]
    assert len(read(kind="topics")) > 50
