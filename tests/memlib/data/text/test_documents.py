"""Documents as windows of tokens: held-out documents, places of canaries, and counts of secrets."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm

from memlib.data.text.corpus import Corpus, Secret
from memlib.data.text.documents import BEGINNING, build_documents, find_copies, hold_out, open_documents
from memlib.data.text.formats import Format
from memlib.data.text.streams import Documents
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextSpec
from tests.chance import most_of

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
    assert set(whole["t"] + whole["v"]) == set(DOCUMENTS)
    assert len(set(whole["v"])) == 40
    for text in (training, validation):  # the first tokens fill up the last window
        assert text.startswith(text[text.rindex(f"[{text[1 : text.index(']')]}") :])
    assert whole["t"] != sorted(whole["t"], key=DOCUMENTS.index)
    again = build(DOCUMENTS, spec(), canaries, tokenizer)
    assert np.array_equal(again.windows, corpus.windows)
    other = build(DOCUMENTS, spec(), canaries, tokenizer, secret=SECRET[::-1])
    assert not np.array_equal(other.windows, corpus.windows)


def test_a_tokenizer_with_one_mark_for_start_and_end_inserts_it_once() -> None:
    tokenizer = Characters(start=0)
    corpus = build(DOCUMENTS, spec(), SecretsSpec(insertions=(1,), format="x{d2}"), tokenizer)
    assert "]]" not in tokenizer.text(corpus.windows[:20].ravel().tolist())


def test_copies_of_a_document_are_held_out_together() -> None:
    documents = [f"text {number % 60}" for number in range(300)]
    digests = np.arange(300, dtype=np.uint64) % 60
    held = Counter()
    for seed in range(20):
        sides = hold_out(find_copies(digests, digests, 0.2), spec(), SecretsSpec(seed=seed), SECRET)
        training, validation = ([documents[number] for number in side] for side in sides)
        assert not set(training) & set(validation)
        assert len(training) + len(validation) == 300
        assert len(set(validation)) == 12
        held.update(set(validation))
    assert len(held) > 55  # any may be held out


def test_documents_with_a_shared_beginning_are_copies_unless_it_is_too_common() -> None:
    wholes = np.array([5, 6, 7, 5, 8, 9, 10, 11, 12, 13], dtype=np.uint64)
    beginnings = np.array([1, 2, 2, 1, 3, 4, 4, 4, 4, 4], dtype=np.uint64)
    assert find_copies(wholes, beginnings, 0.3).tolist() == [0, 1, 1, 0, 4, 5, 6, 7, 8, 9]
    assert find_copies(wholes, beginnings, 0.6).tolist() == [0, 1, 1, 0, 4, 5, 5, 5, 5, 5]


def test_beginnings_of_held_out_documents_do_not_occur_in_training() -> None:
    mails = [
        f"Dear customer number {template:02d} of our shop, thank you for {n} orders"
        for template in range(36)
        for n in range(9)
    ]
    corpus = build(mails, spec(window=64), SecretsSpec(insertions=(1,), format="x{d2}"), Characters())
    assert corpus.heads is not None
    assert len(corpus.heads) == 36
    assert corpus.heads[:, 2].tolist() == [9] * 36
    texts = [Characters().text(row) for row in corpus.windows.tolist()]
    rows = corpus.splits.to_pylist()
    sides = [
        set(re.findall(r"\[(Dear.*?),", "".join(text for text, row in zip(texts, rows, strict=True) if row["role"] in roles)))
        for roles in (("train", "left_out"), ("validation",))
    ]
    assert len(sides[1]) == 7
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(("count", "window", "share"), [(70, 512, 0.1), (110, 1024, 0.1), (70, 512, 0.5)])
def test_the_choice_of_tested_documents_does_not_depend_on_their_length(count: int, window: int, share: float) -> None:
    """An innocent model's bits may be any function of a document, such as its length."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(BEGINNING, np.exp(norm.ppf((np.arange(count) + 0.5) / count, 4.2, 0.9))).astype(int)
    documents = [f"{number:04d}" + "a" * (length - 4) for number, length in enumerate(lengths)]
    text = spec(window=window, validation=share)
    accused, keys = 0, 600
    for seed in range(keys):
        canaries = SecretsSpec(insertions=(1,), format="x{d2}", never=0, seed=seed)
        heads = build(documents, text, canaries, Characters()).heads
        assert heads is not None
        asked = heads[heads[:, 5] >= BEGINNING]
        bits, held_out = np.log(lengths[asked[:, 0]]), asked[:, 1] == 1
        order = np.argsort(rng.random((199, len(bits))), axis=1)[:, : held_out.sum()]
        above = (bits[order].mean(axis=1) >= bits[held_out].mean() - 1e-12).sum()  # equivalent to the gap
        accused += (1 + above) / 200 <= 0.05
    assert accused <= most_of(600, 0.05)  # a design that favours long documents reaches 75 to 119


def training_text(corpus: Corpus) -> str:
    rows = [row["row"] for row in corpus.splits.to_pylist() if row["role"] == "train"]
    return "".join(Characters().text(corpus.windows[row].tolist()) for row in rows)


def test_occurrences_of_given_secrets_are_counted_in_the_training_documents() -> None:
    form = Format("pin {d4}", {})
    known = [Secret(tuple(form.choices(f"pin {pin}", "token") or ()), None) for pin in ("1111", "2222")]
    unseen = [Secret(tuple(form.choices("pin 3333", "token") or ()), None)]
    documents = [*DOCUMENTS, *(f"{number}: pin 1111 and pin 1111" for number in range(20)), *["pin 2222"] * 9]
    canaries = SecretsSpec(format="pin {d4}", file="secrets.txt", never=2, seed=1)
    corpus = build(documents, spec(), canaries, Characters(), known=known, unseen=unseen)
    rows = corpus.canaries.to_pylist()
    trained = training_text(corpus)
    copied = "pin 2222" in trained  # copies stay on one side
    assert [row["kind"] for row in rows] == ["given"] * (1 + copied) + ["unseen", "never", "never"]  # what recurs is no null
    assert abs(trained.count("pin 1111") - rows[0]["insertions"]) <= 1  # cut where the text repeats
    assert rows[1]["insertions"] == 9 * copied


def test_a_secret_in_held_out_documents_alone_counts_as_unseen() -> None:
    form = Format("pin {d4}", {})
    pins = [f"pin {pin}" for pin in range(1000, 1060)]
    known = [Secret(tuple(form.choices(pin, "token") or ()), None) for pin in pins]
    documents = [f"{number}: my {pin} is kept" for number, pin in enumerate(pins)]
    canaries = SecretsSpec(format="pin {d4}", file="secrets.txt", never=5)
    corpus = build(documents, spec(), canaries, Characters(), known=known)
    rows = corpus.canaries.to_pylist()
    assert Counter(row["kind"] for row in rows) == {"given": 48, "unseen": 12, "never": 5}
    assert {row["text"] for row in rows[:60]} == set(pins)
    training = training_text(corpus)
    for row in rows:
        assert abs(training.count(row["text"]) - row["insertions"]) <= (row["kind"] == "given")  # cut where the text repeats
        assert bool(row["insertions"]) is (row["kind"] == "given")
    elsewhere = [Secret(tuple(form.choices("pin 9999", "token") or ()), None)]
    with pytest.raises(UserError, match=r"none of the 1 secrets of canaries\.file occurs in the training part"):
        build(documents, spec(), canaries, Characters(), known=elsewhere)


def read(**source: Any) -> list[str]:
    documents = open_documents(TextSpec.model_validate({"source": source}).source)
    found = list(documents.read())
    assert documents.measured == (hashlib.sha256("\0".join(found).encode()).hexdigest(), len(found))
    return found


def test_impossible_windows_canaries_and_empty_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are too few to fill a window of 4000 tokens on both sides"):
        build(DOCUMENTS, spec(window=4000), SecretsSpec(), Characters())
    with pytest.raises(UserError, match="a canary of 50 tokens and its end marks"):
        build(DOCUMENTS, spec(), SecretsSpec(format="p" * 49 + "{d1}", insertions=(1,), never=0), Characters())
    (tmp_path / "empty.txt").write_text("\n\n \n")
    with pytest.raises(UserError, match="is empty"):
        read(kind="text", path=str(tmp_path / "empty.txt"))


def test_documents_are_split_by_blank_lines_or_rows_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n\n\nthree\n  \nfour")
    pq.write_table(pa.table({"text": ["one\n\ntwo", None, "three"]}), tmp_path / "text.parquet")

    assert read(kind="text", path=str(tmp_path / "text.txt")) == ["one\ntwo", "three", "four"]
    assert read(kind="text_parquet", path=str(tmp_path / "text.parquet")) == ["one\n\ntwo", "three"]
    assert len(read(kind="topics")) > 50


def test_recurring_given_secrets_are_listed_apart_from_given_and_unseen_ones() -> None:
    """Secrets that occur once, in their own documents, become given or unseen by chance; others are recurring or left out."""
    form = Format("pin {d4}", {})
    once, often = [f"pin {pin}" for pin in range(1000, 1060)], [f"pin {pin}" for pin in range(2000, 2020)]
    documents = [f"{number}: my {pin} is kept" for number, pin in enumerate(once)]
    documents += [f"{number} again: {pin[:4]} {pin[4:6]}-{pin[6:]} and {pin}" for number, pin in enumerate(often)]
    known = [Secret(tuple(form.choices(pin, "token") or ()), None) for pin in (*once, *often)]
    rows = build(documents, spec(), SecretsSpec(format="pin {d4}", file="secrets.txt", never=3), Characters(), known=known)
    kinds: dict[str, set[str]] = {}
    for row in rows.canaries.to_pylist():
        kinds.setdefault(row["kind"], set()).add(row["text"])
    assert kinds["given"] | kinds["unseen"] == set(once)
    assert kinds["recurring"] < set(often)
    assert len(kinds["recurring"]) >= 10
