"""Rows of tables as points: each coordinate was computed by hand."""

import inspect
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memlib
from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.data.examples import Source
from memlib.data.tables import reading
from memlib.errors import UserError
from memlib.specs import TableSource

ROWS = """person,visit,age,sex,zip,pain,outcome
7,1,20, f,007,1,ill
7,2,30,f,007,2,well
9,1,?,m,010,1,well
9,2,40,,010,3,
9,3,40,m,010,3,ill
"""
POINTS = [  # age, age missing; f, m, missing; 007, 010; pain
    [-1.5, 0, 1, 0, 0, 1, 0, -0.9],
    [0, 0, 1, 0, 0, 1, 0, 0.3],
    [0, 1, 0, 1, 0, 0, 1, -0.9],
    [1.5, 0, 0, 1, 0, 0, 1, 1.5],
]


def write(path: Path, content: str = ROWS, **options: Any) -> Source:
    path.write_bytes(content.encode() if path.suffix == ".csv" else lzma.compress(content.encode()))
    return open_source(TableSource(kind="table", path=str(path), **({"label_column": "outcome"} | options)))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.xz", "a.parquet"])
def test_columns_become_standardized_numbers_and_categories(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"id_column": "visit", "person_column": "person"}
    if name == "a.parquet":
        columns = {
            "person": [7, 7, 9, 9, 9], "visit": [1, 2, 1, 2, 3], "age": [20, 30, None, 40, 40.0],
            "sex": pa.array(["f", "f", "m", None, "m"]).dictionary_encode(), "zip": ["007", "007", "010", "010", "010"],
            "pain": [1, 2, 1, 3, 3], "outcome": ["ill", "well", "well", None, "ill"],
        }  # fmt: skip
        pq.write_table(pa.table(columns), tmp_path / name)
        source = open_source(TableSource(kind="table", path=str(tmp_path / name), label_column="outcome", **options))
    else:
        source = write(tmp_path / name, **options)
    examples = [source[row] for row in range(len(source))]
    assert [example.example_id for example in examples] == ["7/1", "7/2", "9/1", "9/3"]
    assert [source.class_names[example.label] for example in examples] == ["ill", "well", "well", "ill"]
    age = np.array([20, 30, 40], dtype=float)
    pain = np.array([1, 2, 1, 3], dtype=float)
    expected = np.array(POINTS)[:, [0, 1, 2, 3, 5, 6, 7]]  # the row without a sex has no label either
    expected[[0, 1, 3], 0] = (age - age.mean()) / age.std()
    expected[:, 6] = (pain - pain.mean()) / pain.std()
    assert np.allclose([example.image for example in examples], expected, atol=1e-6)
    assert source.point_dim == 7  # type: ignore[attr-defined]
    (line,) = preview(source)
    assert "numeric columns: age, 1 missing; pain; categorical columns: sex (2); zip (2)" in line
    assert "rows without a label are left out: 1" in line
    assert "2 persons; set group: {pattern: '^(.+)/'}" in line


def test_table_columns_may_be_numeric_categories_and_files_may_lack_a_header(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "# made by hand\n1;5;10\n2;6;2\n1;7;10\n", names=("code", "size", "label"), delimiter=";",
                   skip_rows=1, label_column="label", categorical=("code",))  # fmt: skip
    assert source.class_names == ["2", "10"]  # sorted as numbers
    assert [source[row].label for row in range(3)] == [1, 0, 1]
    assert np.allclose([source[row].image[:2] for row in range(3)], [[1, 0], [0, 1], [1, 0]])
    other = write(tmp_path / "b.csv", columns=("pain",))
    assert other.point_dim == 1  # type: ignore[attr-defined]
    assert "columns that are not used: person, visit, age, sex, zip" in preview(other)[0]
    unnamed = write(tmp_path / "c.csv", ",age,label\n0,5,a\n1,6,b\n", columns=("age",), label_column="label")
    assert "columns that are not used: (without a name)" in preview(unnamed)[0]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ROWS, {"label_column": "result"}, "has no column 'result'; it has person, visit"),
        (ROWS.replace("7,2", "7,2,2"), {}, "cannot read the table .*CSV parse error"),
        (ROWS.replace("visit", "age"), {}, "has 2 columns 'age'"),
        ("outcome\n1\n", {}, "has no column besides outcome"),
        ("a,outcome\n1,\n", {}, "has no row with a value in outcome"),
        ("a,outcome\n" + "".join(f"name {i},1\n" for i in range(300)), {}, "column a has 300 different texts"),
        ("a,outcome\ninf,1\n2,0\n", {}, "column a holds a value that is not finite"),
        (
            "a,outcome\n9007199254740993,1\n2,0\n",
            {},
            r"column a holds whole numbers beyond 2\*\*53, as ids are; leave it out",
        ),
        ("a,outcome\n1,.5\n2,1\n", {}, "outcome holds double; labels are names or whole numbers"),
        (ROWS.replace("7,1", ",1"), {"person_column": "person"}, "person has no id in row 1"),
        ("\0\0", {}, "has no column 'outcome'|cannot read the table"),
    ],
)
def test_unusable_tables_are_refused_with_their_fault(
    tmp_path: Path, content: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        _ = write(tmp_path / "a.csv", content, **options)[0]


ADULT = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
HEALTH = ("docvis", "hospvis", "year", "age", "female", "married", "kids", "hhninc", "educ", "self", "edlevel")


def found_in(folder: Path, name: str) -> str:
    if not (folder / name).is_file():
        pytest.skip(f"needs {name} (MEMLIB_DATA)")
    return str(folder / name)


def test_adult_is_read_without_the_weight_that_identifies_rows(real_data: Path) -> None:
    used = tuple(name for name in ADULT if name not in ("fnlwgt", "income"))
    path = found_in(real_data, "adult/adult.data.xz")
    source = open_source(TableSource(kind="table", path=path, label_column="income", names=ADULT, columns=used))
    assert len(source) == 32_561
    assert source.class_names == ["<=50K", ">50K"]
    assert np.bincount(source.labels).tolist() == [24_720, 7_841]  # type: ignore[attr-defined]
    assert source.point_dim == 5 + (8 + 16 + 7 + 14 + 6 + 5 + 2 + 41) + 3  # type: ignore[attr-defined]
    assert source[0].image.shape == (107,)
    line = preview(source)[0]
    assert "workclass (8), 1,836 missing" in line
    assert "columns that are not used: fnlwgt" in line


def test_the_health_survey_is_read_by_person(real_data: Path) -> None:
    path = found_in(real_data, "rwm5yr.csv.xz")
    spec = TableSource(
        kind="table", path=path, label_column="outwork", person_column="id", columns=HEALTH, categorical=("edlevel",)
    )
    source = open_source(spec)
    assert np.bincount(source.labels).tolist() == [12_865, 6_744]  # type: ignore[attr-defined]
    assert source.point_dim == 10 + 4  # type: ignore[attr-defined]
    ids = [source[row].example_id for row in range(len(source))]
    assert len(set(ids)) == 19_609
    assert len({name.partition("/")[0] for name in ids}) == 6_127
    assert "6,127 persons" in preview(source)[0]


def test_self_influence_of_a_table_is_highest_for_a_wrong_label(tmp_path: Path) -> None:
    """A row with a wrong label has a strong influence on itself."""
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{'ab'[int(x > 0)]},{int(x > 0)}" for x in rng.choice([-1, 1], size=120) + rng.normal(0, 0.1, 120)]
    lines[7] = "-1,a,1"
    (tmp_path / "a.csv").write_text("x,kind,label\n" + "\n".join(lines))
    recipe = {
        "audit": "self_influence",
        "data": {"source": {"kind": "table", "path": str(tmp_path / "a.csv"), "label_column": "label"}},
        "split": {"validation_per_class": 0},
        "model": {"architecture": "mlp", "widths": [8]},
        "training": {
            "objective": {"kind": "supervised"},
            "epochs": 20,
            "batch_size": 20,
            "augment": None,
            "optimizer": {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0},
        },
        "influence": {"checkpoints": 5},
    }
    run = memlib.run(recipe, store=str(tmp_path / "store"), quiet=True)
    units = run.units.to_pylist()
    strongest = max(units, key=lambda unit: unit["self_influence"])
    assert strongest["example_id"] == "0000007"


def test_a_hidden_column_is_replaced_by_each_of_its_values(tmp_path: Path) -> None:
    source: Any = write(tmp_path / "a.csv", ROWS.replace("9,3,40,m", "9,3,40,?"), id_column="visit", person_column="person")
    points = np.array([source[row].image for row in range(4)])
    column = source.one_hot("sex")
    assert (column.categories, column.has_missing) == (("f", "m"), True)
    assert column.codes(points).tolist() == [0, 0, 1, -1]
    changed = column.replaced(points, 1)
    assert column.codes(changed).tolist() == [1, 1, 1, 1]
    assert (changed[:, column.places].sum(axis=1) == 1).all()
    others = np.delete(np.arange(points.shape[1]), np.arange(points.shape[1])[column.places])
    assert (changed[:, others] == points[:, others]).all()


@pytest.mark.parametrize(
    ("name", "fault"), [("pain", "holds numbers"), ("outcome", "no column 'outcome'"), ("x", "no column")]
)
def test_columns_without_categories_cannot_be_hidden(tmp_path: Path, name: str, fault: str) -> None:
    source: Any = write(tmp_path / "a.csv")
    with pytest.raises(UserError, match=fault):
        source.one_hot(name)


def test_values_of_columns_are_known_by_example_id(tmp_path: Path) -> None:
    source: Any = write(tmp_path / "a.csv", id_column="visit", person_column="person", columns=["age"])
    assert source.attributes["zip"] == {"7/1": "007", "7/2": "007", "9/1": "010", "9/3": "010"}
    assert "9/1" not in source.attributes["age"]
    assert "height" not in source.attributes


def columns_of(source: Source) -> str:
    return preview(source)[0]


NUMBERED = "n,age,outcome\n{}".format("\n".join(f"{row},{30 + row % 3},{row % 2}" for row in range(1, 7)))


@pytest.mark.parametrize(
    ("content", "left_out"),
    [
        (",age,outcome\n0,5,a\n1,6,b\n2,7,a\n", "(without a name)"),  # as pandas writes its index
        ('"","age","outcome"\n"1",5,"a"\n"2",6,"b"\n"3",7,"a"\n', "(without a name)"),  # as R's write.csv does
        (NUMBERED, "n"),
    ],
)
def test_columns_that_number_the_rows_are_left_out_and_said(tmp_path: Path, content: str, left_out: str) -> None:
    source = write(tmp_path / "a.csv", content)
    assert source.point_dim == 1  # type: ignore[attr-defined]
    assert f"columns that number the rows, which are left out: {left_out}" in columns_of(source)
    assert source.content_digest().endswith(":index")
    if left_out == "n":
        assert write(tmp_path / "b.csv", content, columns=("n", "age")).point_dim == 2  # type: ignore[attr-defined]
    shuffled = write(tmp_path / "c.csv", "n,age,outcome\n3,5,a\n1,6,b\n2,7,a\n")
    assert shuffled.point_dim == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["None", "NA", "null", "nan", "?"])
def test_a_class_may_have_the_name_of_a_missing_value(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "a.csv", f"age,outcome\n5,{name}\n6,ill\n7,{name}\n8,\n9,ill\n")
    assert set(source.class_names) == {name, "ill"}
    assert len(source) == 4
    assert "rows without a label are left out: 1" in columns_of(source)
    assert source.content_digest().endswith(":labels")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1E50", "2E10", "3E07"), "categorical"),  # codes, which are also numbers
        (("0x1A", "0x1B", "0x1C"), "categorical"),
        (("00123", "00124", "00125"), "categorical"),
        (("1e+05", "2.5e-3", "1E-7"), "numeric"),  # as programs write numbers
        (("-1", "+2", ".5"), "numeric"),
        (("12", "NA", "x"), "categorical"),
    ],
)
def test_the_type_of_a_column_is_decided_on_all_of_its_values(tmp_path: Path, values: tuple[str, ...], kind: str) -> None:
    content = "code,size,outcome\n" + "".join(f"{value},{n * n},{n % 2}\n" for n, value in enumerate(values))
    line = columns_of(write(tmp_path / "a.csv", content))
    assert re.search(rf"{kind} columns: [^;]*code|{kind} columns: size; code", line)
    other = {"categorical": "category", "numeric": "number"}
    if kind == "numeric" or "x" not in values[0] + values[-1]:
        flipped = {"categorical": "number", "numeric": "category"}[kind]
        assert columns_of(write(tmp_path / "b.csv", content, types={"code": flipped})) != line
    assert columns_of(write(tmp_path / "c.csv", content, types={"code": other[kind]})).startswith(line[:40])


def test_decimal_commas_and_dates_are_refused_with_a_remedy(tmp_path: Path) -> None:
    comma = "size;outcome\n1,5;a\n2,25;b\n3;a\n"
    with pytest.raises(UserError, match="column size holds numbers with commas, such as '1,5'; set data.source.decimal: ','"):
        write(tmp_path / "a.csv", comma, delimiter=";")
    source = write(tmp_path / "a.csv", comma, delimiter=";", decimal=",", standardize=False)
    assert [source[row].image.tolist() for row in range(3)] == [[1.5], [2.25], [3.0]]
    thousands = write(tmp_path / "a.csv", "size;outcome\n1.234,5;a\n2;b\n", delimiter=";", decimal=",", standardize=False)
    assert thousands[0].image.tolist() == [1234.5]
    with pytest.raises(UserError, match="has one column, 'size;outcome'; if ';' separates its values, set data.source.delim"):
        write(tmp_path / "a.csv", comma)
    for date in ("2024-05-01", "1.5.2024", "05/01/2024 12:30"):
        content = f"when,age,outcome\n{date},5,a\n{date},6,b\n"
        with pytest.raises(UserError, match=f"column when holds dates, such as '{date}'"):
            write(tmp_path / "a.csv", content)
        assert "when (1)" in columns_of(write(tmp_path / "a.csv", content, types={"when": "category"}))
        assert write(tmp_path / "a.csv", content, columns=("age",)).point_dim == 1  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="column age holds 'x', which is no number"):
        write(tmp_path / "a.csv", "age,outcome\n5,a\nx,b\n", types={"age": "number"})
    with pytest.raises(UserError, match="has no column 'agee', which data.source.types names"):
        write(tmp_path / "a.csv", "age,outcome\n5,a\n6,b\n", types={"agee": "number"})


def test_json_lines_and_text_in_parquet_are_read_like_csv(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"age": 5, "outcome": "a"}\n{"age": 6.5, "outcome": "b"}\n')
    found = open_source(TableSource(kind="table", path=str(tmp_path / "a.jsonl"), label_column="outcome", standardize=False))
    assert [found[row].image.tolist() for row in range(2)] == [[5.0], [6.5]]
    pq.write_table(pa.table({"age": ["5", "NA", "6.5"], "outcome": ["a", "b", "a"]}), tmp_path / "a.parquet")
    spec = {"kind": "table", "path": str(tmp_path / "a.parquet"), "label_column": "outcome"}
    assert "numeric columns: age, 1 missing" in columns_of(open_source(TableSource(**spec, types={"age": "number"})))


def test_a_header_is_read_without_a_thread_that_reads_ahead(tmp_path: Path) -> None:
    """A reader of pyarrow that is not read to its end leaves a thread that may end the program with status 134."""
    path = tmp_path / "a.csv"
    path.write_text("age,outcome\n" + "5,a\n6,b\n" * 20_000)
    (tmp_path / "read.py").write_text(
        "import sys\nfrom memlib.data.datasets import open_source\nfrom memlib.specs import TableSource\n"
        "open_source(TableSource(kind='table', path=sys.argv[1], label_column='outcome'))\n"
    )
    codes = [subprocess.run([sys.executable, str(tmp_path / "read.py"), str(path)], check=False).returncode for _ in range(3)]
    assert codes == [0, 0, 0]
    assert "open_csv" not in inspect.getsource(reading)


def test_several_files_with_the_same_columns_are_one_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,age,code,y\nx1,5,1,a\nx2,6,2,b\n")
    (tmp_path / "b.csv").write_text("code,id,age,y\n3,x1,7,a\nz,x9,8.5,b\n")
    parts = {"in": str(tmp_path / "a.csv"), "out": str(tmp_path / "b.csv")}
    spec: dict[str, Any] = {
        "kind": "table",
        "files": parts,
        "label_column": "y",
        "columns": ["age", "code"],
        "standardize": False,
    }
    found = open_source(TableSource(**spec))
    assert [found[row].example_id for row in range(4)] == ["in/0000000", "in/0000001", "out/0000000", "out/0000001"]
    assert [found[row].image[0] for row in range(4)] == [5, 6, 7, 8.5]
    assert "categorical columns: code (4)" in columns_of(found)  # decided on all values of all files
    named = open_source(TableSource(**spec, id_column="id"))
    assert [named[row].example_id for row in range(4)] == ["in/x1", "in/x2", "out/x1", "out/x9"]
    other = open_source(TableSource(**spec | {"files": {"in": parts["out"], "out": parts["in"]}}))
    assert other.content_digest() != found.content_digest()
    (tmp_path / "b.csv").write_text("age,y\n7,a\n")
    with pytest.raises(UserError, match="only some of these files have the column 'code'"):
        open_source(TableSource(**spec))
    for changes in ({"files": {}}, {"path": "a.csv"}, {"person_column": "id"}):
        with pytest.raises(ValueError, match=r"a table needs either a path, or files|person_column needs one file"):
            TableSource(**spec | changes)


def test_row_numbers_of_every_part_are_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(",age,y\n0,5,a\n1,6,b\n2,9,a\n")
    parts = {name: str(tmp_path / f"{name}.csv") for name in ("a", "b")}
    found = open_source(TableSource(kind="table", files=parts, label_column="y"))
    assert found.point_dim == 1  # type: ignore[attr-defined]
