"""Documents in windows of their own: every token once, padding at the end, copies and authors in one group."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlib.data.text.rows import DocumentRows, build_rows
from memlib.data.text.streams import Documents
from memlib.errors import DataError, UserError
from memlib.specs import GroupSpec, TextSpec

TEXTS = [f"From: writer{number % 4}@home\nnote {number} says " + "abc" * number for number in range(24)]


def rows(texts: list[str], folder: Path, *, group: GroupSpec | None = None, shortest: int = 2, **spec: Any) -> DocumentRows:
    text = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 16, **spec})
    return build_rows(Documents(lambda: iter(texts)), text, folder / "windows.npy", shortest=shortest, group=group)


def windows_of(found: DocumentRows, folder: Path, place: int) -> Any:
    first, count = found.sizes.first[place], found.sizes.windows[place]
    return np.load(folder / "windows.npy")[first : first + count]


def test_windows_of_a_document_spell_it_with_end_mark_and_padding(tmp_path: Path) -> None:
    found = rows(TEXTS, tmp_path)
    for place, text in enumerate(TEXTS):
        flat = windows_of(found, tmp_path, place).ravel().tolist()
        kept = [symbol for symbol in flat if symbol >= 0]
        assert "".join(found.vocabulary[symbol] for symbol in kept) == text + "\n"
        assert flat == kept + [-1] * (len(flat) - len(kept))
        assert found.sizes.tokens[place] == len(text) + 1
        assert found.sizes.compressed[place] == len(zlib.compress(text.encode()))


def test_texts_in_words_spell_rare_words_as_unknown(tmp_path: Path) -> None:
    found = rows(TEXTS, tmp_path, unit="word", vocabulary=4)
    kept = [symbol for symbol in windows_of(found, tmp_path, 0).ravel().tolist() if symbol >= 0]
    assert [found.vocabulary[symbol] for symbol in kept] == ["From:", "<unk>", "\n", "note", "<unk>", "says", "\n"]


def test_window_ids_sort_in_row_order_and_carry_the_group_of_their_document(tmp_path: Path) -> None:
    found = rows(TEXTS, tmp_path)
    ids = found.windows["example_id"].to_pylist()
    assert ids == sorted(ids)
    assert found.windows["row"].to_pylist() == list(range(len(ids)))
    documents = dict(zip(found.documents["example_id"].to_pylist(), found.documents["group"].to_pylist(), strict=True))
    groups = found.windows["group"].to_pylist()
    assert groups == [documents[name.partition(" window")[0]] for name in ids]


def test_only_copies_of_a_document_share_a_group(tmp_path: Path) -> None:
    found = rows([*TEXTS, TEXTS[3]], tmp_path)
    groups = found.documents["group"].to_pylist()
    assert groups[3] == groups[-1]
    assert len(set(groups)) == len(TEXTS)


def test_a_pattern_joins_the_documents_that_name_the_same_author(tmp_path: Path) -> None:
    found = rows(TEXTS, tmp_path, group=GroupSpec(pattern=r"^From: (\w+)@"))
    groups = found.documents["group"].to_pylist()
    assert all((groups[one] == groups[other]) == (one % 4 == other % 4) for one in range(24) for other in range(24))


def test_a_pattern_that_matches_no_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="occurs in the text of no document"):
        rows(TEXTS, tmp_path, group=GroupSpec(pattern=r"^Sender: (\w+)@"))


def test_a_file_joins_the_documents_that_it_lists_together(tmp_path: Path) -> None:
    listed = tmp_path / "groups.csv"
    listed.write_text("example_id,group\ndocument 00000002,anna\ndocument 00000009,anna\n")
    groups = rows(TEXTS, tmp_path, group=GroupSpec(path=str(listed))).documents["group"].to_pylist()
    assert groups[2] == groups[9]
    assert len(set(groups)) == 23


def test_short_documents_are_left_out_but_keep_their_number(tmp_path: Path) -> None:
    found = rows(["ab", *TEXTS], tmp_path, shortest=10)
    assert found.sizes.number.tolist() == list(range(1, 25))
    assert found.documents["example_id"][0].as_py() == "document 00000001"
    assert len(found.features.values) == 24


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lower shortest"):
        rows(TEXTS, tmp_path, shortest=60)
