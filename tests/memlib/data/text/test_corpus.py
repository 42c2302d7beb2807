"""Windows of text and the canaries in them; the secret file."""

import bz2
import gzip
import hashlib
import os
import stat
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.canaries.secret_key import keyed_digest, keyed_seed, read_secret
from memlib.data.splits import LEFT_OUT, TRAIN, VALIDATION, column, select
from memlib.data.text.corpus import Corpus, Secret, build_corpus, read_secrets, role_of
from memlib.data.text.formats import Format
from memlib.data.text.sources import open_text
from memlib.data.text.streams import Text
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextFileSource, TextParquetSource, TextSource, TextSpec, TopicsSource

TEXT = "\n".join(f"line {i} of a long story about nothing at all" for i in range(400))
SECRET = bytes(range(32))


def build(text: str, spec: TextSpec, canaries: SecretsSpec, **given: Any) -> Corpus:
    with TemporaryDirectory() as folder:
        return build_corpus(Text.of(text), spec, canaries, Path(folder) / "windows.npy", secret=SECRET, **given)


def corpus(secret: bytes = SECRET, text: str = TEXT, unit: str = "character", **canaries: object) -> Corpus:
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 40, "validation": 0.2, "unit": unit})
    given = {"format": "code {d4} end", "insertions": [1, 3], "never": 5, **canaries}
    with TemporaryDirectory() as folder:
        windows = Path(folder) / "windows.npy"
        return build_corpus(Text.of(text), spec, SecretsSpec.model_validate(given), windows, secret=secret)


def lines(found: Corpus, role: str) -> list[str]:
    rows = column(select(found.splits, role), "row")
    return ["".join(found.vocabulary[symbol] for symbol in found.windows[row]) for row in rows]


@pytest.mark.parametrize("together", [False, True])
def test_a_canary_stands_whole_in_its_windows_and_nowhere_else(together: bool) -> None:
    found = corpus(together=together)
    for row in found.canaries.to_pylist():
        windows = lines(found, role_of(row["canary"]))
        assert len(windows) == row["insertions"]
        assert all(f"\n{row['text']}\n" in window for window in windows)
        others = [w for role in (TRAIN, VALIDATION, LEFT_OUT) for w in lines(found, role)]
        assert not any(row["text"] in window for window in others)
    carriers = 4 if together else 3
    assert len(lines(found, LEFT_OUT)) == carriers
    assert len(lines(found, TRAIN)) + carriers + len(lines(found, VALIDATION)) == len(TEXT) // 40


@pytest.mark.parametrize("unit", ["character", "word"])
def test_holes_are_filled_with_the_most_frequent_words_of_the_text(unit: str) -> None:
    found = corpus(unit=unit, format="the words {w3}", words=5, together=True)
    assert found.words == ("a", "about", "all", "at", "line")  # all as frequent: the first in alphabetical order
    for row in found.canaries.to_pylist():
        words = row["text"].split()
        assert words[:2] == ["the", "words"]
        assert len(words) == 5
        assert set(words[2:]) <= set(found.words)
    if unit == "character":
        row = found.canaries.to_pylist()[0]
        assert all(f"\n{row['text']}\n" in window for window in lines(found, role_of(0)))
        assert row["text"].endswith(" ")
    assert len(corpus(unit=unit, format="the words {w3}").words) > 400  # and the numbers of the lines
    assert corpus(unit=unit, format="the words {d3}" if unit == "character" else "the words {d3} end").words == ()


def test_a_canary_replaces_a_window_in_its_place() -> None:
    found = corpus(together=True)
    ids = found.splits["example_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    for row in found.canaries.to_pylist()[:2]:
        for name in select(found.splits, role_of(row["canary"]))["example_id"].to_pylist():
            window, _, _ = name.partition(" canary ")
            assert found.splits["role"][ids.index(window)].as_py() == LEFT_OUT
            assert sorted(ids).index(name) == sorted(ids).index(window) + 1


def test_the_last_windows_are_for_validation() -> None:
    found = corpus()
    rows = column(select(found.splits, VALIDATION), "row")
    total = len(TEXT) // 40
    assert rows.tolist() == list(range(total - round(0.2 * total), total))


def test_canaries_are_a_function_of_the_secret() -> None:
    mine, again, other = corpus(), corpus(), corpus(secret=bytes(32))
    assert mine.canaries.equals(again.canaries)
    assert np.array_equal(mine.windows, again.windows)
    assert not mine.canaries.equals(other.canaries)
    assert keyed_digest(SECRET, "a") != keyed_digest(bytes(32), "a")
    assert keyed_seed(SECRET, "a") != keyed_seed(SECRET, "b")


def test_canaries_in_word_units_stand_whole_in_their_windows() -> None:
    found = corpus(unit="word", format="my word is {colour2}", alphabets={"colour": ("red", "green", "blue")}, never=2)
    row = found.canaries.to_pylist()[1]
    symbols = [[found.vocabulary[s] for s in found.windows[r]] for r in column(select(found.splits, role_of(1)), "row")]
    assert len(symbols) == 3
    for window in symbols:
        assert row["text"] in " ".join(window)
    assert found.vocabulary[0] == "\n"


def test_rare_words_are_unknown() -> None:
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 40, "unit": "word", "vocabulary": 5})
    canaries = SecretsSpec(format="my word is {c1}", alphabets={"c": ("red", "green")}, insertions=(1,), never=0)
    found = build(TEXT, spec, canaries)
    assert "<unk>" in found.vocabulary
    assert (found.windows == found.vocabulary.index("<unk>")).mean() > 0.1
    assert {"red", "green", "my"} <= set(found.vocabulary)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "a long beginning of a canary then {d9}"}, "do not fit into a window of 40"),
        ({"insertions": [500]}, "500 insertions need"),
        ({"format": "code {d1}", "never": 20}, "10 candidates, fewer than the 22"),
    ],
)
def test_canaries_that_do_not_fit_the_corpus_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        corpus(**changes)  # type: ignore[arg-type]


def read(source: TextSource) -> str:
    text = open_text(source)
    found = "".join(text.read())
    assert text.measured == (hashlib.sha256(found.encode()).hexdigest(), len(found))
    return found


def test_text_sources_read_plain_compressed_and_parquet_files_or_refuse_them(tmp_path: Path) -> None:
    assert len(read(TopicsSource())) > 300_000
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress("é ü".encode()))
    assert read(TextFileSource(kind="text", path=str(tmp_path / "a.txt.bz2"))) == "é ü"
    pq.write_table(pa.table({"body": ["one", None, "two"]}), tmp_path / "a.parquet")
    source = TextParquetSource(kind="text_parquet", path=str(tmp_path / "a.parquet"), text_column="body")
    assert read(source) == "one\ntwo"
    with pytest.raises(UserError, match="cannot read column 'text'"):
        read(source.model_copy(update={"text_column": "text"}))
    with pytest.raises(UserError, match="no file matches"):
        read(source.model_copy(update={"path": f"{tmp_path}/none*.parquet"}))
    assert read(source.model_copy(update={"path": f"{tmp_path}/*.parquet"})) == "one\ntwo"
    for name in ("broken.gz", "broken.xz"):
        (tmp_path / name).write_bytes(gzip.compress(b"some text")[:12])
        with pytest.raises(UserError, match="cannot read the text"):
            read(TextFileSource(kind="text", path=str(tmp_path / name)))
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="is empty"):
        read(TextFileSource(kind="text", path=str(tmp_path / "empty.txt")))
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        read(TextFileSource(kind="text", path=str(tmp_path / "latin.txt")))
    with pytest.raises(UserError, match="cannot read the text"):
        read(TextFileSource(kind="text", path=str(tmp_path / "nowhere.txt")))


def test_the_secret_file_is_created_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMLIB_SECRET_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = read_secret()
    assert read_secret() == first
    assert stat.S_IMODE((tmp_path / "memlib" / "secret").stat().st_mode) == 0o600
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "short").chmod(0o604)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "short"))
    with pytest.raises(UserError, match="everybody can read the secret file"):
        read_secret()
    (tmp_path / "short").chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        if (tmp_path / "short").stat().st_uid != 0:
            with pytest.raises(UserError, match="belongs to another user"):
                read_secret()
    with pytest.raises(UserError, match="holds 3 bytes"):
        read_secret()
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="cannot read the secret file"):
        read_secret()


def test_given_secrets_are_counted_in_the_training_windows_and_excluded_from_nulls(tmp_path: Path) -> None:
    text = "\n".join(f"line {i}: the code of door {i % 3} is 47{i % 3:02d}, keep it" for i in range(300))
    (tmp_path / "secrets.txt").write_text("is 4700\nis 4702\nis 9999\t12\n")
    form = Format("is {d4}", {})
    known = read_secrets(str(tmp_path / "secrets.txt"), form, "character")
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 60})
    canaries = SecretsSpec(format="is {d4}", file=str(tmp_path / "secrets.txt"), never=50)
    found = build(text, spec, canaries, known=known)
    rows = found.canaries.to_pylist()
    windows = lines(found, TRAIN)
    training = "".join(windows)  # a secret that straddles windows counts
    assert [row["text"] for row in rows[:3]] == ["is 4700", "is 4702", "is 9999"]
    assert [row["insertions"] for row in rows[:3]] == [training.count("is 4700"), training.count("is 4702"), 12]
    assert rows[0]["insertions"] > sum(w.count("is 4700") for w in windows) > 20
    assert {row["insertions"] for row in rows[3:]} == {0}
    assert "is 4701" in training
    assert "is 4701" not in {row["text"] for row in rows}  # it is there, so it is no null
    assert [row["kind"] for row in rows] == ["given"] * 3 + ["never"] * 50
    assert len(rows) == 53
    assert len({row["text"] for row in rows}) == 53
    assert len(windows) + len(lines(found, VALIDATION)) == len(text) // 60


def test_secrets_that_the_text_lacks_become_neither_given_nor_null_canaries() -> None:
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 60})
    canaries = SecretsSpec(format="is {d1}", file="secrets.txt", never=9)
    text = "nothing is 1 or more here. " * 100
    found = build(text, spec, canaries, known=[Secret((0, 0, 0, 7), None), Secret((0, 0, 0, 1), None)])
    assert found.canaries["kind"].to_pylist() == ["given"] + ["never"] * 8  # nothing says that "is 7" is like "is 1"
    assert found.canaries["text"].to_pylist()[0] == "is 1"
    with pytest.raises(UserError, match=r"none of the 1 secrets of canaries\.file occurs"):
        build(text, spec, canaries, known=[Secret((0, 0, 0, 7), None)])
    elsewhere = build(text, spec, canaries, known=[Secret((0, 0, 0, 7), 3)], count_here=False)
    assert elsewhere.canaries["insertions"].to_pylist() == [3] + [0] * 9  # though the text holds "is 1"


def test_unseen_secrets_must_be_given_with_a_file_and_not_occur_in_the_text() -> None:
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 60})
    canaries = SecretsSpec(format="is {d1}", file="secrets.txt", unseen="others.txt", never=9)
    text, given = "nothing is 1 or more here, and 2 is 3. " * 100, [Secret((0, 0, 0, 1), None)]

    def built(*unseen: int) -> Corpus:
        others = [Secret((0, 0, 0, digit), None) for digit in unseen]
        return build(text, spec, canaries, known=given, unseen=others)

    rows = built(7, 9).canaries.to_pylist()
    assert [row["kind"] for row in rows] == ["given", "unseen", "unseen"] + ["never"] * 6  # neither 1, 3, 7 nor 9
    assert [row["insertions"] for row in rows[1:]] == [0] * 8
    with pytest.raises(UserError, match=r"secret 2 of 2 of canaries\.unseen occurs in the training text") as error:
        built(7, 3)
    assert "is 3" not in str(error.value)
    with pytest.raises(UserError, match=r"secret 1 of 1 of canaries\.unseen is also in canaries\.file") as error:
        built(1)
    assert "is 1" not in str(error.value)
    with pytest.raises(ValueError, match="set canaries.file as well"):
        SecretsSpec(unseen="others.txt")


def test_read_secrets_strips_a_leading_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "secrets.txt").write_bytes(b"\xef\xbb\xbfis 4700\r\nis 4702\r\n")  # as a spreadsheet saves it
    known = read_secrets(str(tmp_path / "secrets.txt"), Format("is {d4}", {}), "character")
    assert [secret.choices[-4:] for secret in known] == [(4, 7, 0, 0), (4, 7, 0, 2)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("is 1234\nis 123\n", "secret 2 of 2 does not match"),
        ("is 1234\nis 1234\n", "repeated secrets"),
        ("\n", "no secrets"),
        ("is 1234\t0\n", "not followed by a whole number of at least 1"),
        (f"is 1234\t{'9' * 5000}\n", "not followed by a whole number of at least 1"),
    ],
)
def test_errors_about_secrets_of_the_wrong_format_do_not_quote_them(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "secrets.txt").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        read_secrets(str(tmp_path / "secrets.txt"), Format("is {d4}", {}), "character")
    assert "123" not in str(error.value).replace(str(tmp_path), "")


def test_hold_out_of_random_blocks_compares_secrets_that_occur_once(tmp_path: Path) -> None:
    form = Format("pin {d4}", {})
    pins = [f"pin {pin}" for pin in range(1000, 1100)]
    text = "".join(f"{'some filling words ' * 9}here is {pin} for later. " for pin in pins) + "pin 1003 once more. " * 3
    spec = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 40, "validation": 0.2, "hold_out": "blocks"})
    known = [Secret(tuple(form.choices(pin, "character") or ()), None) for pin in pins]
    canaries = SecretsSpec(format="pin {d4}", file="secrets.txt", never=3)
    corpus = build_corpus(Text.of(text), spec, canaries, tmp_path / "windows.npy", secret=SECRET, known=known)
    rows = corpus.canaries.to_pylist()
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["recurring"] >= 1  # and those that lie across the ends of blocks
    assert 5 <= kinds["unseen"] <= 40
    assert kinds["given"] >= 30
    held = [row["row"] for row in corpus.splits.to_pylist() if row["role"] == "validation"]
    count = len(corpus.windows)
    assert len(held) == round(count * 0.2)
    spelt = ["".join(corpus.vocabulary[symbol] for symbol in window) for window in corpus.windows]
    whole = text[: count * 40]
    assert sorted(spelt) == sorted(whole[place : place + 40] for place in range(0, len(whole), 40))
    places = sorted(whole.index(spelt[row]) for row in held if whole.count(spelt[row]) == 1)
    assert places[0] < len(whole) / 3  # not the last windows alone
    unseen = {row["text"] for row in rows if row["kind"] == "unseen"}
    training = " ".join(spelt[: count - len(held)])
    assert not any(pin in training for pin in unseen)


def test_blocks_are_refused_where_documents_are_drawn() -> None:
    for content in ({"unit": "token"}, {"source": {"kind": "topic_pairs"}}):
        with pytest.raises(ValueError, match="hold_out: blocks applies to texts of characters or words"):
            TextSpec.model_validate({"source": {"kind": "topics"}, "hold_out": "blocks"} | content)
