"""Attributes beyond the class: read from sources and tables, and refused where nothing can be asked of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.attributes import MOST_VALUES, attribute_digests, read_attributes
from memlib.errors import DataError, UserError
from memlib.specs.attributes import AttributeFile

LABELS = {"a": 0, "b": 0, "c": 1, "d": 1}
INDEX = pa.table({"example_id": list(LABELS), "label": list(LABELS.values())})


def source(**attributes: dict[str, str]) -> Any:
    return SimpleNamespace(attributes=attributes)


def listed(folder: Path, content: str) -> AttributeFile:
    path = folder / "values.csv"
    path.write_text(content)
    return AttributeFile(path=str(path), id_column="name", value_column="kind")


def test_values_come_from_the_source_and_from_tables(tmp_path: Path) -> None:
    file = listed(tmp_path, "name,kind,other\na,7,x\nb,8,x\nd,7,x\nelsewhere,9,x\nc,,x\n")
    table = read_attributes(
        source(colour={"a": "red", "b": "blue", "c": "red", "d": "red"}), INDEX, {"kind": file, "colour": "source"}
    )
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert found == [
        ("a", "kind", "7"), ("b", "kind", "8"), ("d", "kind", "7"),  # c has none, and elsewhere is no example
        *(("abcd"[n], "colour", value) for n, value in enumerate(("red", "blue", "red", "red"))),
    ]  # fmt: skip


def test_a_table_in_parquet_gives_the_same_values_and_another_digest(tmp_path: Path) -> None:
    file = listed(tmp_path, "name,kind\na,7\nb,8\n")
    pq.write_table(pa.table({"name": ["a", "b"], "kind": [7, 8]}), tmp_path / "values.parquet")
    other = file.model_copy(update={"path": str(tmp_path / "values.parquet")})
    assert read_attributes(source(), INDEX, {"kind": file}).equals(read_attributes(source(), INDEX, {"kind": other}))
    before = attribute_digests({"kind": file, "colour": "source"})
    assert before.keys() == {"kind"}
    assert before != attribute_digests({"kind": other})
    listed(tmp_path, "name,kind\na,7\nb,9\n")
    assert before != attribute_digests({"kind": file})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,kind\na,1\nb,1\nc,1\nd,1\n", "the same value for all 4 examples"),
        ("name,kind\na,1\nb,1\nc,2\nd,2\n", "is determined by the class"),
        ("name,kind\na.png,1\nb.png,2\n", "have a suffix that those of the examples lack"),
        ("name,kind\nx,1\ny,2\n", "has no value for any of the 4 examples; ids look like 'a'"),
        ("name,sort\na,1\n", "no column 'kind'; it has name, sort"),
        ("name,kind\na,1\na,2\n", "gives example 'a' two values: 1 and 2"),
    ],
)
def test_unusable_tables_of_attributes_are_refused_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, DataError), match=message) as refused:
        read_attributes(source(), INDEX, {"kind": listed(tmp_path, content)})
    assert len(str(refused.value).splitlines()) == 1


def test_a_missing_table_is_named_with_its_setting() -> None:
    with pytest.raises(DataError, match=r"cannot read beyond\.attributes\.kind .*nowhere\.csv"):
        attribute_digests({"kind": AttributeFile(path="/nowhere.csv", value_column="kind")})


def test_attributes_that_a_source_does_not_state_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"beyond\.attributes\.species: the source of the images states colour, place; name a"
    ):
        read_attributes(source(place={}, colour={}), INDEX, {"species": "source"})
    with pytest.raises(UserError, match="states no attributes"):
        read_attributes(SimpleNamespace(), INDEX, {"species": "source"})  # type: ignore[arg-type]


def test_too_many_values_are_refused() -> None:
    many = {f"{n:03d}": str(n) for n in range(MOST_VALUES + 1)}
    index = pa.table({"example_id": list(many), "label": [0] * len(many)})
    with pytest.raises(UserError, match="has 101 values, more than 100; combine rare ones"):
        read_attributes(source(kind=many), index, {"kind": "source"})
