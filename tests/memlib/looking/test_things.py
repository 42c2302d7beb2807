"""Things are known by their content: tables by their columns, folders by their files, code by its name."""

import json
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.dummy import DummyClassifier

from memlib.errors import UserError
from memlib.looking.things import Columns, columns_of, is_of_others, looked_at, towards_others

RNG = np.random.default_rng(0)
ROWS = 30
CLASSES = np.where(RNG.random(ROWS) < 0.5, "cat", "dog")
SHARES = RNG.random(ROWS)
MEMBER = np.where(RNG.random(ROWS) < 0.5, "yes", "no")
NUMBERS = RNG.normal(size=(ROWS, 3))
IDS = [f"r{row}" for row in RNG.permutation(ROWS)]
TEXTS = [f"a text of many words that is number {row} of them all" for row in range(ROWS)]
TABLES = {
    "scores": ({"id": IDS, "loss": NUMBERS[:, 0], "member": MEMBER}, "30 rows with scores (loss), member in column member"),
    "scores without a name": ({"x": NUMBERS[:, 0], "member": MEMBER}, "30 rows with scores (x)"),
    "outputs": ({"label": CLASSES, "p0": SHARES, "p1": 1 - SHARES}, "with a model's probabilities of 2 classes"),
    "outputs by class": ({"label": CLASSES, "cat": SHARES, "dog": 1 - SHARES, "member": MEMBER}, "probabilities of 2"),
    "table": ({"radius error": NUMBERS[:, 0], "b": NUMBERS[:, 1], "outcome": CLASSES}, "2 columns, class outcome (2 values)"),
    "table with members": (
        {"a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "c": NUMBERS[:, 2], "kind": CLASSES, "member": MEMBER}, "class kind (2 values)",
    ),
    "members": ({"example_id": IDS, "member": MEMBER}, "30 rows, member in column member, id in column example_id"),
    "texts": ({"text": TEXTS}, "30 texts in column text"),
}  # fmt: skip
KINDS = {"scores without a name": "scores", "outputs by class": "outputs", "table with members": "table"}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_tables_are_known_by_their_columns(name: str, ending: str, tmp_path: Path) -> None:
    columns, said = TABLES[name]
    table, path = pd.DataFrame(columns), str(tmp_path / f"a.{ending}")
    if ending == "csv":
        table.to_csv(path, index=False)
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    else:
        table.to_json(path, orient="records", lines=True)
    found = looked_at(path)
    assert found.kind == KINDS.get(name, name)
    assert said in found.said


def test_tables_with_semicolons_and_decimal_commas_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.DataFrame({"a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "c": NUMBERS[:, 2], "label": CLASSES}).to_csv(
        path, index=False, sep=";", decimal=",", encoding="utf-8-sig"
    )
    columns = columns_of(str(path))
    assert (columns.delimiter, columns.decimal, columns.label) == (";", ",", "label")
    assert columns.features == ("a", "b", "c")


def test_roles_of_columns_follow_from_names_and_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    persons = [f"p{row // 3}" for row in range(ROWS)]
    pd.DataFrame(
        {"Patient": persons, "record_id": RNG.permutation(ROWS), "a": NUMBERS[:, 0], "y": CLASSES, "split": "train"}
    ).to_csv(path, index=False)
    columns = columns_of(str(path))
    assert (columns.person, columns.label, columns.member) == ("Patient", "y", None)  # one value of split tells nothing
    assert columns == Columns(columns.names, ROWS, columns.id, "Patient", None, "y", (), (), None, ("cat", "dog"))


def test_names_tell_on_which_side_numbers_and_files_are() -> None:
    assert [towards_others(name) for name in ("loss", "neg_log_likelihood", "anomaly", "neg_loss", "confidence", "lira")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert [is_of_others(name) for name in ("a/test.csv", "holdout/", "val2017", "test/data.csv", "train.csv", "a/train/x")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_files_and_folders_are_known_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("mask.npy", MEMBER == "yes")
    np.save("vectors.npy", NUMBERS)
    joblib.dump(DummyClassifier().fit(NUMBERS, CLASSES), "m.joblib")
    Path("booster.json").write_text(json.dumps({"learner": {}, "version": [2, 1, 0]}))
    pq.write_table(pa.table({"id": IDS, "layer": NUMBERS.tolist()}), "a.parquet")
    for name, architecture in (("gpt", "GPT2LMHeadModel"), ("vit", "ViTForImageClassification"), ("bert", "BertModel")):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps({"architectures": [architecture]}))
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("a text")
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            Path("photos", part, label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(Path("photos", part, label, f"{part}{label}.png"))
    kinds = {
        "mask.npy": "members", "vectors.npy": "embeddings", "m.joblib": "estimator", "booster.json": "estimator",
        "a.parquet": "embeddings", "gpt": "language", "vit": "classifier", "bert": "encoder", "notes": "texts",
        "photos": "images", "nets:build": "factory",
    }  # fmt: skip
    assert {path: looked_at(path).kind for path in kinds} == kinds
    photos = looked_at("photos")
    assert str(photos) == "photos: 4 images of 2 classes in train (2) and val (2)"
    assert (photos.parts, photos.counts) == (("train", "val"), {"train": 2, "val": 2})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, "there is no file or folder none.csv"),
        ("empty.csv", "a,b\n", "empty.csv has no rows"),
        ("nets.py", "import torch\ndef _x(): ...\ndef with_size(n): ...\ndef build(n=3): ...\n", "as in nets:build"),
        ("movie.mp4", "x", "of no kind that memlib knows"),
        ("bad.parquet", "x" * 99, "cannot read bad.parquet (it is not a Parquet file)"),
    ],
)
def test_unknown_things_are_refused_with_advice(
    name: str, content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(UserError) as found:
        looked_at(name)
    assert said in str(found.value)
    assert "\n" not in str(found.value)
