"""Ids in tables that users supply: text and whole numbers, each id in one spelling; everything else is refused in a line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.data.datasets import open_source
from memlib.data.examples import find_files
from memlib.data.id_files import said_of_examples
from memlib.data.opening import located
from memlib.data.tables.columns import check_ids, check_once, hint_at_ids, ids_of
from memlib.errors import UserError
from memlib.observe.encoders import given_layers
from memlib.observe.supplied_outputs import read_outputs
from memlib.specs import NpzSource, OutputsSpec, ParquetSource
from memlib.specs.encoders import SuppliedEmbeddings
from memlib.store import Store

VECTORS = [[float(i), 1.0, 2.0] for i in range(4)]
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 4, [None, pa.array([0, 1, 2, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\xe9bc")]
)
ODD_IDS = {
    "struct": pa.array([{"a": i} for i in range(4)]),
    "list": pa.array([["a"], ["b"], ["c"], ["d"]]),
    "binary": pa.array([b"a", b"b", b"c", b"d"]),
    "double": pa.array([1.0, 2.0, 3.0, 4.0]),
    "bool": pa.array([True, False, True, False]),
    "UTF": NOT_UTF8,
}


def test_columns_of_ids_hold_text_or_whole_numbers() -> None:
    for column, expected in (
        (pa.array(["a", None]), ["a", None]),
        (pa.array([7, 8], pa.uint8()), ["7", "8"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array(["x"], pa.large_string()), ["x"]),
    ):
        assert ids_of(pa.chunked_array([column]), "here") == expected
    with pytest.raises(UserError, match="here has no id in row 2"):
        check_ids(["a", None], "here")
    with pytest.raises(UserError, match="here has 2 columns 'a'"):
        check_once(["a", "a"], ["a"], "here")


@pytest.mark.parametrize("kind", ODD_IDS)
def test_tables_with_other_ids_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    ids = ODD_IDS[kind]
    vectors, images = pa.array(VECTORS), pa.array([b"x"] * 4)
    names = ["example_id", "v", "image", "label", "group"]
    pq.write_table(pa.table([ids, vectors, images, pa.array([0, 1, 0, 1]), pa.array(list("aabb"))], names=names), path)
    members = pa.table({"example_id": list("abcd"), "label": [0, 1, 0, 1], "class_name": list("abab")})
    for read in (
        lambda: given_layers(SuppliedEmbeddings(kind="embeddings", path=str(path), id_column="example_id"), ["a"], ["v"]),
        lambda: read_outputs(OutputsSpec(path=str(path), id_column="example_id", scores_column="v"), members, 3),
        lambda: open_source(ParquetSource(kind="parquet", path=str(path), id_column="example_id")),
        lambda: said_of_examples(str(path), "group", setting="split.group"),
    ):
        with pytest.raises(UserError, match=kind) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table([pa.array(list("abcd")), pa.array(VECTORS), pa.array(VECTORS)], names=["id", "v", "v"]), path)
    with pytest.raises(UserError, match="2 columns 'v'"):
        given_layers(SuppliedEmbeddings(kind="embeddings", path=str(path), id_column="id"), ["a"], ["v"])
    with pytest.raises(UserError, match="2 columns 'v'"):
        read_outputs(
            OutputsSpec(path=str(path), id_column="id", scores_column="v"),
            pa.table({"example_id": ["a"], "label": [0], "class_name": ["a"]}),
            3,
        )
    (tmp_path / "t.csv").write_text("example_id,group,group\na,1,2\n")
    with pytest.raises(UserError, match="2 columns 'group'"):
        said_of_examples(str(tmp_path / "t.csv"), "group", setting="split.group")


def test_a_label_beyond_the_stated_names_is_refused(tmp_path: Path) -> None:
    features = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
    table = pa.table({"image": [{"bytes": b"x", "path": "x"}], "label": [2]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has the label 2, but its metadata name 2 classes"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path / "t.parquet")))


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_a_plan_names_a_label_beyond_the_stated_names(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"t.{kind}"
    source: dict[str, Any] = {"kind": kind, "path": str(path)}
    if kind == "parquet":
        features = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
        table = pa.table({"image": [{"bytes": b"x", "path": "x"}] * 3, "label": [0, 1, 2]})
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), path)
    else:
        np.savez(path, train_images=np.zeros((3, 8, 8), np.uint8), train_labels=np.array([0, 1, 2]))
        source["class_names"] = ["a", "b"]
    recipe = {
        "audit": "self_influence", "title": "t", "data": {"source": source, "image_size": 8}, "split": {"train_per_class": 1},
        "model": {"architecture": "mlp", "widths": [8]},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1, "batch_size": 2, "augment": None},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    store = tmp_path / "store"
    assert main(["plan", "self-influence", "--recipe", str(tmp_path / "recipe.yaml"), "--store", str(store)]) == 2
    said = capsys.readouterr().err
    assert "has the label 2, but its metadata name 2 classes" in said or "3 classes, but class_names lists 2" in said
    assert said.count("\n") == 1
    assert not store.exists()


def test_negative_labels_in_parquet_and_npz_are_refused(tmp_path: Path) -> None:
    """As an index, -1 would be the last class."""
    table = pa.table({"image": [{"bytes": b"x", "path": "x"}] * 3, "label": [0, 1, -1]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"1 example with the label -1; classes are numbered from 0.*drop: \[-1\]"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path / "t.parquet")))
    np.savez(tmp_path / "a.npz", train_images=np.zeros((3, 8, 8), np.uint8), train_labels=np.array([0, 1, -1]))
    with pytest.raises(UserError, match=r"1 example with the label -1; classes are numbered from 0.*drop: \[-1\]"):
        open_source(NpzSource(kind="npz", path=str(tmp_path / "a.npz")))


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    folder = bytes(tmp_path) + b"/caf\xe9"
    try:
        Path(folder.decode("utf-8", "surrogateescape")).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    Path((folder + b"/1.png").decode("utf-8", "surrogateescape")).write_bytes(b"x")
    with pytest.raises(UserError, match=r"caf\\udce9/1.png' is not UTF-8"):
        find_files(*located(str(tmp_path)))
    with pytest.raises(UserError, match="is not UTF-8; rename the folder"):
        Store(folder.decode("utf-8", "surrogateescape"))


def test_files_of_another_format_are_named_and_hidden_copies_ignored(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [{"bytes": b"x", "path": "x"}], "label": [0]}), tmp_path / "a.parquet")
    (tmp_path / "._a.parquet").write_bytes(b"copied by a file manager")
    assert len(open_source(ParquetSource(kind="parquet", path=str(tmp_path)))) == 1
    (tmp_path / "b.parquet").write_text("example_id,group\na,1\n")
    with pytest.raises(UserError, match=r"b.parquet is not a readable Parquet file .it is not a Parquet file"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path / "b.parquet")))
    with pytest.raises(UserError, match=r"cannot read split.group .*b.parquet .it is not a Parquet file"):
        said_of_examples(str(tmp_path / "b.parquet"), "group", setting="split.group")


def test_ids_that_differ_in_spelling_or_type_have_a_hint() -> None:
    with pytest.raises(UserError, match="a: ids holds binary; ids must be text or whole numbers; decode the bytes to text"):
        ids_of(pa.chunked_array([[b"1"]]), "a: ids")
    assert hint_at_ids(["1.png", None], ["1"]) == ". Its ids, such as 1.png, have a suffix that those of the examples lack"
    assert "differ from a/1.png in their folder or suffix" in hint_at_ids(["1"], ["a/1.png"])
    assert hint_at_ids(["x"], ["1"]) == ""
