"""Ids are found wherever memlib stores them, as a whole in columns of ids and between other words in free text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.running.traces import Marks, UnknownFormat, artifact_names, examples_of, near, rules_in
from memlib.sanitize import folded
from memlib.store import Ref, Store

REF = Ref("decode", "a" * 32)
MARKS = Marks({"cat/17.png", "17"})


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("cat/17.png", True), ("<td>cat/17.png</td>", True), ("cat/17.pngs", False), ("tomcat/17.png", False), ("17", False),
        ("page 17 of 20", False),
    ],
)  # fmt: skip
def test_free_text_is_searched_for_whole_ids_that_are_not_found_by_chance(text: str, is_found: bool) -> None:
    assert MARKS.in_text(text) == is_found


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ({"a": [1, {"b": "17"}]}, True), ({"a": 17}, False), ({"17": 1}, False), ({"cat/17.png": 1}, True),
        ({"params": '{"example": "17"}'}, True), ({"params": '{"example": 17}'}, False), (["117"], False),
    ],
)  # fmt: skip
def test_values_of_json_are_compared_as_a_whole(value: Any, is_found: bool) -> None:
    assert MARKS.in_value(value) == is_found
    assert MARKS.in_json(json.dumps(value)) == is_found
    without = MARKS.without(value, "-")
    assert (without != value) == is_found
    assert not MARKS.in_value(without)


@pytest.mark.parametrize(
    ("columns", "is_found"),
    [
        ({"example_id": ["16", "17"]}, True), ({"class_name": ["17"]}, False), ({"example_id": ["170"]}, False),
        ({"reason": ["duplicate of cat/17.png"]}, True), ({"ids": [["a"], ["cat/17.png"]]}, True),
        ({"params": ['{"example": "17"}']}, True), ({"row": [17]}, False),
    ],
)  # fmt: skip
def test_tables_are_searched_by_column(columns: dict[str, Any], is_found: bool, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert MARKS.in_table(lambda: pq.ParquetFile(tmp_path / "t.parquet")) == is_found


def test_a_person_is_also_found_within_ids_of_examples(tmp_path: Path) -> None:
    pq.write_table(pa.table({"example_id": ["wards/anna/1"]}), tmp_path / "t.parquet")
    for marks, is_found in ((Marks({"anna"}), False), (Marks((), "anna"), True), (Marks((), "ward"), False)):
        assert marks.in_table(lambda: pq.ParquetFile(tmp_path / "t.parquet")) == is_found


def artifact(store: Store, spec: Any = None, **files: Any) -> Store:
    with store.artifacts.write(REF, spec=spec) as attempt:
        for name, content in files.items():
            path = attempt.path(name.replace("__", "."))
            if name.endswith("npy"):
                np.save(path, content)
            elif name.endswith("npz"):
                np.savez(path, content)
            else:
                path.write_text(content)
    return store


@pytest.mark.parametrize(
    ("files", "is_found"),
    [
        ({"a__npy": np.array(["cat/16.png", "cat/17.png"])}, True),
        ({"a__npz": np.array(["cat/17.png"])}, True),
        ({"a__npy": np.zeros(3)}, False),
        ({"report__html": "<p>cat/17.png</p>"}, True),
        ({"weights__bin": "cat/17.png"}, False),
        ({"vocabulary__json": json.dumps(["cat/17.png", "x"]), "windows__npy": np.array([[1, 1], [1, 1]])}, False),
    ],
)
def test_files_are_searched_by_their_format(files: dict[str, Any], is_found: bool, store: Store) -> None:
    assert artifact(store, **files, spec={"unit": "token"}) is store
    assert artifact_names(store, REF, MARKS) == is_found


@pytest.mark.parametrize("unit", ["character", "token", "word"])
def test_texts_are_searched_as_models_see_them(unit: str, tmp_path: Path) -> None:
    symbols = {"character": list("\nabcdent "), "token": ["\n", "abc", "den", "t "], "word": ["\n", "dent", "abc"]}[unit]
    text = {"character": list("dent abcden abcdent"), "token": ["t ", "abc", "den", "t "], "word": ["abc", "dent"]}[unit]
    for number, name in enumerate(("abcdent", "abcden", "bcden", "abc dent")):
        windows = np.array([[symbols.index(symbol)] for symbol in text], dtype=np.int32)
        windows = np.concatenate([windows, [[-1]]])  # padding
        store = artifact(
            Store(str(tmp_path / str(number))), spec={"text": {"unit": unit}}, vocabulary__json=json.dumps(symbols),
            windows__npy=windows,
        )  # fmt: skip
        spelt = {"character": "dent abcden abcdent", "token": "t abcdent ", "word": "abc dent"}[unit].replace(" ", "  ")
        expected = f" {name} ".replace(" ", "  ") in f"  {spelt}  "
        assert artifact_names(store, REF, Marks({name})) == expected, name


def test_a_foreign_format_and_pickled_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"a\.xyz"):
        artifact_names(artifact(Store(str(tmp_path / "one")), a__xyz="x"), REF, MARKS)
    with pytest.raises(ValueError, match="pickle"):
        artifact_names(artifact(Store(str(tmp_path / "two")), a__npy=np.array([{}], dtype=object)), REF, MARKS)


def test_rules_of_groups_are_found_at_any_depth() -> None:
    recipe = {
        "split": {"group": {"pattern": "^(p)", "path": None}},
        "data": {"source": {"person_column": "who", "parts": [{}]}},
    }
    assert set(rules_in([recipe, {"group": "a word"}])) == {("pattern", "^(p)"), ("person_column", "who")}


def test_a_person_is_found_by_each_rule_and_by_the_group_of_an_example() -> None:
    table = pa.table({"example_id": ["ann/1", "ann/2", "bob_3", "bob_4", "x"], "group": [None, None, "bob_3", "bob_3", None]})

    def found(person: str, *patterns: str, **listed: str) -> set[str]:
        return examples_of([table], person, patterns, listed)

    assert found("an") == set()
    assert found("ann") == found(" Ann") == {"ann/1", "ann/2"}  # her folder
    assert found("bob", "^([a-z]+)_") == {"bob_3", "bob_4"}
    assert found("bob_4") == {"bob_3", "bob_4"}  # her group
    assert found("eve", x="eve", bob_4="bob") == {"x"}
    assert found("ann/1") == {"ann/1"}  # without a group


@pytest.mark.parametrize("written", ["Zoë Quill", "Zoe\u0308 Quill", "ZOË QUILL", " zoë quill ", "zoe\u0308 QUILL"])
def test_ids_are_the_same_in_any_case_and_encoding(written: str) -> None:
    """A person of whom an id is stored in another form than the one that was asked for is found all the same."""
    marks = Marks({"Zoë Quill"}, "Zoë Quill")
    assert folded(written) == "zoë quill"
    assert marks.in_value({"ids": [written]})
    assert marks.in_text(f"from {written} about nothing")
    assert marks.without([written, f"of {written.strip()}."], "-") == ["-", "of -."]
    table = pa.table({"example_id": [f"{written}/1", "other"], "group": [written, None]})
    assert examples_of([table], "Zoë Quill", (), {}) == {f"{written}/1"}
    for name in ("example_id", "text"):
        held = pa.BufferOutputStream()
        pq.write_table(pa.table({name: [written]}), held)
        assert marks.in_table(lambda held=held: pq.ParquetFile(held.getvalue()))
    assert not marks.in_text("from Zoe Quill")  # another name


def test_ids_that_are_nearly_the_same_are_named_and_not_taken_for_the_same() -> None:
    ids = ["p-17", "P17", "p017", "p_17", "p18", "p171", "anna meyer", "anna  meyer", "anna mayer", "anna", "x"]
    assert near("p17", ids) == ["p-17", "p017", "p_17"]  # another digit is another person
    assert near("anna meyer", ids) == ["anna  meyer", "anna mayer"]
    assert near("p18", ids) == []
    assert near("Zoë Quill", ["zoe-quill", "zoe\u0308 quill", "zoë quilt"]) == ["zoe-quill", "zoë quilt"]
