"""Columns that the scores name, read from generated tables."""

from pathlib import Path

import pytest

from memlib.audits.membership.target import MOST_VALUES, Columns, ReadColumns
from memlib.data.stages import decode
from memlib.errors import UserError
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec
from memlib.store import Store
from tests.memlib.audits.membership.tables import COLUMNS, rows_of, write_table


def read(folder: Path, subgroup: str | None = None, hidden: tuple[str, ...] = (), *, constant: str = "") -> Columns:
    rows = rows_of(60)
    for row in rows if constant else []:
        row[COLUMNS.index(constant)] = "same"
    data, runner = DataSpec.model_validate(write_table(folder / "a.csv", rows)), PlainRunner(Store(str(folder / "store")))
    return runner.run(ReadColumns(data, decode(runner, data), subgroup, hidden)).content


def test_values_of_a_subgroup_column_withheld_from_the_model_are_read(tmp_path: Path) -> None:
    values = read(tmp_path, "region").subgroup
    assert values["0000003"] == rows_of(60)[3][COLUMNS.index("region")]
    assert len(values) == 60


def test_hidden_columns_have_their_coordinates_and_categories(tmp_path: Path) -> None:
    hidden = read(tmp_path, None, ("sex", "colour")).hidden
    assert list(hidden) == ["sex", "colour"]
    assert (hidden["colour"].start, hidden["colour"].categories) == (2, ("blue", "green", "red"))
    assert (hidden["sex"].start, hidden["sex"].categories, hidden["sex"].has_missing) == (5, ("f", "m"), False)


@pytest.mark.parametrize(
    ("subgroup", "hidden", "constant", "message"),
    [
        ("height", (), "", "score.subgroup names 'height', but the columns of the table are a, b, colour"),
        ("a", (), "", f"has 60 values; name one with at most {MOST_VALUES}"),
        ("region", (), "region", "has only 1 value; name a column with at least two"),
        (None, ("a",), "", "column a holds numbers; if they stand for categories"),
        (None, ("sex",), "sex", "nothing to guess"),
    ],
)
def test_unusable_columns_are_refused(
    tmp_path: Path, subgroup: str | None, hidden: tuple[str, ...], constant: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, subgroup, hidden, constant=constant)
