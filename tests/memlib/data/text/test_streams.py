"""Text that is read piece by piece gives the same results as text in memory."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlib.data.bounds import PIECE
from memlib.data.text.corpus import Corpus, Secret, build_corpus, count_symbols
from memlib.data.text.documents import BLANK_LINES, _parted, build_documents, open_documents
from memlib.data.text.sources import ParquetTexts, open_text
from memlib.data.text.streams import (
    Documents,
    Text,
    WindowFile,
    count_occurrences,
    read_file,
    smallest_type,
    symbols_of,
)
from memlib.errors import RunError, UserError
from memlib.specs import SecretsSpec, TextFileSource, TextParquetSource, TextSpec
from tests.memlib.data.text.test_corpus import SECRET, TEXT
from tests.memlib.data.text.test_documents import DOCUMENTS, Characters

DOORS = "\n".join(f"line {i}: the code of door {i % 3} is 47{i % 3:02d}, keep it" for i in range(300))
COLOURS = {"format": "my word is {c1}", "alphabets": {"c": ("red", "green")}, "insertions": (1,), "never": 0}
KNOWN = (Secret((0, 0, 0, 4, 7, 0, 0), None), Secret((0, 0, 0, 4, 7, 0, 2), None), Secret((0, 0, 0, 9, 9, 9, 9), 12))


def digests(corpus: Corpus) -> list[str]:
    """Of the windows as 32-bit integers, of splits, canaries and vocabulary, and of where documents begin."""
    parts = [
        np.ascontiguousarray(corpus.windows, dtype=np.int32).tobytes(),
        *(json.dumps(part).encode() for part in (corpus.splits.to_pylist(), corpus.canaries.to_pylist(), corpus.vocabulary)),
        *([] if corpus.heads is None else [corpus.heads.tobytes()]),
    ]
    return [hashlib.sha256(part).hexdigest()[:16] for part in parts]


def cut(text: str, size: int) -> Iterator[str]:
    return (text[place : place + size] for place in range(0, len(text), size))


@pytest.mark.pinned
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 7, 10**6])
@pytest.mark.parametrize(
    ("text", "spec", "canaries", "known", "expected"),
    [
        (
            TEXT, {"window": 40, "validation": 0.2}, {"format": "code {d4} end", "insertions": (1, 3), "never": 5}, (),
            ["6b89b591a835e749", "10855149a8eaa804", "594113e6339b0ae2", "a367b2973b1b61cd"],
        ),
        (
            TEXT, {"window": 40, "unit": "word", "vocabulary": 5, "fraction": 0.7}, COLOURS, (),
            ["510f180a2ad61c8b", "d3416c3fa43f50d3", "2b07b1260295cf6a", "5fec235ba9e1f0f2"],
        ),
        (
            DOORS, {"window": 60}, {"format": "is {d4}", "file": "secrets.txt", "never": 50}, KNOWN,
            ["b56fd02cde8dcb21", "05f6eddc3dffe402", "24d16a35b277b32f", "5e5c70a417965fd1"],
        ),
    ],
)  # fmt: skip
def test_a_corpus_built_from_pieces_keeps_the_pinned_digests(
    tmp_path: Path,
    text: str,
    spec: dict[str, Any],
    canaries: dict[str, Any],
    known: Sequence[Secret],
    expected: list[str],
    size: int,
) -> None:
    """The digests are those of the code that held the whole text and windows of 32 bits."""
    described = TextSpec.model_validate({"source": {"kind": "topics"}} | spec)
    pieces = Text(lambda: cut(text, size))
    given = {"secret": SECRET, "known": known}
    made = build_corpus(pieces, described, SecretsSpec.model_validate(canaries), tmp_path / "windows.npy", **given)  # type: ignore[arg-type]
    assert digests(made) == expected
    assert made.windows.dtype == np.uint8


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("documents", "fraction", "start", "expected"),
    [
        (DOCUMENTS, 1.0, 1, ["ce0c6d9710d794e7", "40b9b3c5d3b45800", "dcaa9b765c8a5f8a", "95c520e5f60c6e98", "445ec70f9cdb3583"]),
        (
            DOCUMENTS + DOCUMENTS[:30] + ["copy"] * 5, 0.9, 0,
            ["0002f8da57a80262", "8efc9bd75279b78d", "dcaa9b765c8a5f8a", "95c520e5f60c6e98", "e2411c4b76cb748f"],
        ),
    ],
)  # fmt: skip
def test_a_corpus_built_from_documents_keeps_the_pinned_digests(
    tmp_path: Path, documents: list[str], fraction: float, start: int, expected: list[str]
) -> None:
    """The digests are those of DOCUMENTS_VERSION 2."""
    described = {"source": {"kind": "topics"}, "unit": "token", "window": 40, "validation": 0.2, "fraction": fraction}
    canaries = SecretsSpec(format="pin {d4}", insertions=(2, 3), never=4, together=True)
    read = Documents(lambda: iter(documents))
    spec = TextSpec.model_validate(described)
    assert digests(build_documents(read, spec, canaries, Characters(start), tmp_path / "w.npy", secret=SECRET)) == expected


@given(st.text(alphabet="ab \n\t\r\u2003", max_size=60), st.integers(1, 9))
def test_symbols_are_the_same_wherever_pieces_end(text: str, size: int) -> None:
    words = [word for line in text.split("\n") for word in (*line.split(), "\n")]
    assert [symbol for some in symbols_of(cut(text, size), "word") for symbol in some] == words
    assert "".join("".join(some) for some in symbols_of(cut(text, size), "character")) == text
    assert count_symbols(symbols_of(cut(text, size), "character"), "character") == {c: text.count(c) for c in set(text)}


@given(st.text(alphabet="ab \n\t", max_size=60), st.integers(1, 9))
def test_documents_are_the_same_wherever_pieces_end(text: str, size: int) -> None:
    assert list(_parted(cut(text, size))) == BLANK_LINES.split(text)


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=3),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6),
    st.integers(1, 5),
    st.sampled_from([1, 2]),
)
def test_occurrences_of_secrets_equal_a_slow_count(
    texts: list[list[int]], wanted: list[list[int]], size: int, width: int
) -> None:
    kind = {1: np.uint8, 2: np.uint16}[width]

    def raw(symbols: Sequence[int]) -> bytes:
        return np.array(symbols, dtype=kind).tobytes()

    pieces = [[raw(text[place : place + size]) for place in range(0, len(text), size)] for text in texts]
    slow = [sum(text[p : p + len(one)] == one for text in texts for p in range(len(text))) for one in wanted]
    assert count_occurrences(pieces, [raw(one) for one in wanted], size=width) == slow


@given(st.lists(st.lists(st.integers(0, 299), max_size=40), max_size=6), st.integers(1, 9))
def test_windows_are_written_as_numpy_writes_them(parts: list[list[int]], window: int) -> None:
    import tempfile

    kind = smallest_type(300)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.npy"
        with WindowFile(path, window, kind) as file:
            for part in parts:
                file.add(np.array(part, dtype=np.int64))
            with WindowFile(Path(folder) / "filled.npy", window, kind) as filled:
                for part in parts:
                    filled.add(np.array(part, dtype=np.int64))
                whole = np.array([symbol for part in parts for symbol in part], dtype=kind)
                assert filled.fill_row(0) == -(-len(whole) // window)
                found = b"".join(filled.pieces(len(filled)))
                assert found == np.resize(whole, len(filled) * window).tobytes()
            rows = file.drop_rest()
            assert b"".join(file.pieces(rows, most=5)) == b"".join(file.row(row).tobytes() for row in range(rows))
        flat = np.array([symbol for part in parts for symbol in part], dtype=kind)
        expected = io.BytesIO()
        np.save(expected, flat[: rows * window].reshape(rows, window))
        assert path.read_bytes() == expected.getvalue()


class Counted(str):
    """A piece of text that counts the characters that concatenations with it copy."""

    copied = 0

    def __radd__(self, before: str) -> str:
        Counted.copied += len(before) + len(self)
        return before.__add__(self)


def test_each_piece_is_searched_once_however_long_a_document_or_word_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("a" * 50_000, "a line\n" * 7000, "a" + " " * 50_000, "\n" * 50_000):
        for read in (lambda pieces: list(_parted(pieces)), lambda pieces: list(symbols_of(pieces, "word"))):
            Counted.copied = 0
            read(Counted(text[place : place + 100]) for place in range(0, len(text), 100))
            assert Counted.copied <= 2 * len(text)


def test_a_document_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.data.text.documents.LONGEST", 1000)
    assert len(list(_parted(cut("a line\n\n" * 1000, 100), "mail.txt"))) == 1001
    with pytest.raises(UserError, match="a document in mail.txt has more than 1,000 characters without a blank line"):
        list(_parted(cut("a line\n" * 1000, 100), "mail.txt"))


def test_windows_use_the_smallest_integer_type() -> None:
    assert [smallest_type(count).str for count in (1, 256, 257, 65_536, 65_537)] == ["|u1", "|u1", "<u2", "<u2", "<u4"]


def test_pieces_normalize_line_ends_and_never_split_characters(tmp_path: Path) -> None:
    before = "a" * (PIECE - 1)
    for between, read in (("\r\n", "\n"), ("é", "é"), ("\r", "\n")):
        (tmp_path / "text.txt").write_bytes((before + between + "b").encode())
        assert "".join(read_file(str(tmp_path / "text.txt"))) == before + read + "b"
    (tmp_path / "text.txt").write_bytes(before.encode() + b"\xc3b")
    with pytest.raises(UserError, match=f"at byte {PIECE - 1}"):
        list(read_file(str(tmp_path / "text.txt")))
    (tmp_path / "text.txt").write_bytes(b"abc\xc3")
    with pytest.raises(UserError, match=r"unexpected end of data at byte 3"):
        list(read_file(str(tmp_path / "text.txt")))


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    source = TextFileSource(kind="text", path=str(tmp_path / "text.txt"))
    text, documents = open_text(source), open_documents(source)
    spec, canaries = TextSpec(source=source), SecretsSpec(insertions=(1,), never=1)
    assert text.measured.length == len(TEXT)
    assert documents.measured.length == 1
    (tmp_path / "text.txt").write_text(TEXT.replace("story", "stork"))
    with pytest.raises(RunError, match="changed while it was read; run the same command again"):
        build_corpus(text, spec, canaries, tmp_path / "windows.npy", secret=SECRET)
    several = Documents(lambda: iter(DOCUMENTS))
    assert several.measured.length == len(DOCUMENTS)
    others = Documents(lambda: iter(DOCUMENTS[::-1]))
    others.__dict__["measured"] = several.measured
    with pytest.raises(RunError, match="changed while it was read"):
        build_documents(others, spec, canaries, Characters(), tmp_path / "windows.npy", secret=SECRET)


def test_large_parquet_is_read_some_rows_at_a_time(tmp_path: Path) -> None:
    texts = [f"document {number}" if number % 10 else None for number in range(2500)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=700)
    source = TextSpec.model_validate({"source": {"kind": "text_parquet", "path": str(tmp_path / "a.parquet")}}).source
    assert list(open_documents(source).read()) == [text for text in texts if text]
    assert "".join(open_text(source).read()) == "\n".join(text for text in texts if text)
    assert not re.search("None", "".join(open_text(source).read()))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([[{"role": "user", "content": "hi"}]], "list<"),
        ([{"a": 1}], "struct<"),
        ([7], "int64"),
        ([b"text"], "binary"),
        ([["a"]], "list<"),
    ],
)
def test_a_column_that_holds_no_text_is_refused_by_its_type(tmp_path: Path, column: list[object], kind: str) -> None:
    """Otherwise, Python's repr of its values would be trained on."""
    pq.write_table(pa.table({"messages": column}), tmp_path / "t.parquet")
    source = TextParquetSource(kind="text_parquet", path=str(tmp_path / "t.parquet"), text_column="messages")
    with pytest.raises(UserError, match=f"holds {kind}.*, not text"):
        list(ParquetTexts(source))


def test_an_archive_of_several_texts_is_refused(tmp_path: Path) -> None:
    for count in (1, 2):
        with zipfile.ZipFile(tmp_path / f"{count}.zip", "w") as archive:
            for number in range(count):
                archive.writestr(f"{number}.txt", f"text {number}")
    assert "".join(read_file(str(tmp_path / "1.zip"))) == "text 0"
    with pytest.raises(UserError, match=r"2.zip holds 2 files instead of one; unpack"):
        list(read_file(str(tmp_path / "2.zip")))
