"""Ids are found wherever memlib stores them, as a whole in columns of ids and between other words in free text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.running.traces import Marks, UnknownFormat, artifact_names, examples_of, rules_in
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

    def found(person: str, *patterns: str, prefixed: bool = False, **listed: str) -> set[str]:
        return examples_of([table], person, patterns, listed, prefixed=prefixed)

    assert found("ann") == set()
    assert found("ann", prefixed=True) == {"ann/1", "ann/2"}
    assert found("bob", "^([a-z]+)_") == {"bob_3", "bob_4"}
    assert found("bob_4") == {"bob_3", "bob_4"}  # her group
    assert found("eve", x="eve", bob_4="bob") == {"x"}
    assert found("ann/1") == {"ann/1"}  # without a group
