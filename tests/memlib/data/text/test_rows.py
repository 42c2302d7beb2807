"""Documents in windows of their own: every token once, padding at the end, copies and authors in one group."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlib.data.text.rows import OTHERS, SCORED, DocumentRows, build_rows
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


ANSWERS = [f"Q: what is {number}? A: it is {number * 'x'}y." for number in range(1, 31)]


class Letters:
    """A tokenizer of pairs of characters, with the numbers of their first one."""

    start, end, num_symbols = 1, 2, 200
    pieces = [chr(number) for number in range(200)]  # noqa: RUF012

    def encode(self, texts: Any) -> list[list[int]]:
        return [[ord(text[place]) for place in range(0, len(text), 2)] for text in texts]

    def ends(self, texts: Any) -> list[list[int]]:
        return [[min(place + 2, len(text)) for place in range(0, len(text), 2)] for text in texts]


def marked(texts: list[str], folder: Path, **changes: Any) -> tuple[DocumentRows, Any, Any]:
    text = TextSpec.model_validate({"source": {"kind": "topics"}, "window": 16, "unit": changes.pop("unit", "character")})
    found = build_rows(
        Documents(lambda: iter(texts)), text, folder / "windows.npy", marks=folder / "marks.npy", **{"shortest": 2, **changes}
    )
    return found, np.load(folder / "windows.npy"), np.load(folder / "marks.npy")


@pytest.mark.parametrize("tokenizer", [None, Letters()])
def test_only_the_part_of_a_document_that_a_pattern_names_is_scored(tokenizer: Any, tmp_path: Path) -> None:
    unit = "character" if tokenizer is None else "token"
    found, windows, marks = marked(ANSWERS, tmp_path, scored="A: (.*)", tokenizer=tokenizer, unit=unit)
    for place, text in enumerate(ANSWERS):
        first, count = found.sizes.first[place], found.sizes.windows[place]
        own, mark = windows[first : first + count].ravel(), marks[first : first + count].ravel()
        answer = text.partition("A: ")[2]
        start = text.index(answer)
        if tokenizer is None:
            assert "".join(found.vocabulary[symbol] for symbol in own[mark == SCORED]) == answer
        else:
            wanted = [ord(text[at]) for at in range(0, len(text), 2) if at + 2 > start]
            assert own[mark == SCORED].tolist() == wanted
        assert (mark == SCORED).sum() == found.sizes.tokens[place]
        assert ((mark == OTHERS) == (own < 0)).all()
        assert found.sizes.compressed[place] == len(zlib.compress(answer.encode()))
    with pytest.raises(DataError, match="at least 40 scored tokens"):
        marked(ANSWERS, tmp_path, scored="A: (.*)", shortest=40)


def test_packed_documents_lie_where_they_would_among_all(tmp_path: Path) -> None:
    found, windows, marks = marked(ANSWERS, tmp_path, packed=True, tokenizer=Letters(), unit="token")
    tokens = [[*row, Letters.end] for row in Letters().encode(ANSWERS)]
    stream = np.array([token for row in tokens for token in row])
    place = 0
    for number, row in enumerate(tokens):
        first, count = found.sizes.first[number], found.sizes.windows[number]
        own, mark = windows[first : first + count].ravel(), marks[first : first + count].ravel()
        block, end = place // 16 * 16, place + len(row)  # of the trainer's windows of 16 tokens
        assert own[own >= 0].tolist() == stream[block:end].tolist()
        assert own[mark == SCORED].tolist() == row
        assert (mark[: place - block] == OTHERS).all()
        place = end
    assert found.sizes.tokens.tolist() == list(map(len, tokens))
