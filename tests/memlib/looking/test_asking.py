"""Questions to things: valid recipes, the right sides, and words for missing things."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from memlib.errors import UserError
from memlib.looking.asking import Asked, Said, asked
from memlib.looking.things import looked_at
from memlib.recipes.request import AuditRequest

ROWS = 40
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": RNG.normal(size=ROWS), "b": RNG.normal(size=ROWS), "label": ["x", "y"] * (ROWS // 2)})
SHARES = RNG.random(ROWS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders of many kinds."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("members.csv", index=False)
    TABLE.to_csv("others.csv", index=False)
    TABLE.assign(member=["yes", "no", "no", "yes"] * (ROWS // 4)).to_csv("both.csv", index=False)
    TABLE.assign(p0=SHARES, p1=1 - SHARES).to_csv("in.csv", index=False)
    TABLE.assign(p0=SHARES, p1=1 - SHARES).to_csv("out.csv", index=False)
    pd.DataFrame({"p0": SHARES, "p1": 1 - SHARES, "label": TABLE["label"], "member": [1, 0] * (ROWS // 2)}).to_csv(
        "outputs.csv", index=False
    )
    Path("m.joblib").write_text("")
    for name in ("base", "tuned"):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    for name in ("members.jsonl", "others.jsonl"):
        lines = [
            json.dumps({"text": f"{name}: a sentence that is long enough to be no category, number {n}"}) for n in range(9)
        ]
        Path(name).write_text("\n".join(lines))
    for part in ("photos/train", "photos/val", "flat", "flat_test"):
        for label in ("cat", "dog"):
            Path(part, label).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8)).save(Path(part, label, f"{part.replace('/', '')}{label}{number}.png"))
    Path("w.pt").write_text("")


def looked(*paths: str, **said: Any) -> Asked:
    return asked([looked_at(path) for path in paths], Said(**said), "look.files")


def valid(recipe: dict[str, Any] | None) -> Any:
    assert recipe is not None
    if "extends" in recipe:
        Path("r.yaml").write_text(yaml.safe_dump(recipe))
        return AuditRequest.read("r.yaml").recipe
    return AuditRequest.read(recipe).recipe


@pytest.mark.parametrize(
    "things",
    [
        ("members.csv", "others.csv", "m.joblib"), ("both.csv", "m.joblib"), ("in.csv", "out.csv"), ("outputs.csv",),
        ("tuned", "base", "members.jsonl", "others.jsonl"), ("tuned", "members.jsonl", "others.jsonl"),
    ],
)  # fmt: skip
def test_recipes_are_valid_and_bound_nothing(things: tuple[str, ...]) -> None:
    found = looked(*things, drawn="fixed")
    quick = valid(found.quick)
    assert quick.left_out or things[0] == "tuned"
    assert quick.target.drawn == "fixed"
    if found.full is not None:
        assert valid(found.full).left_out == ()
        assert found.full["shadows"] | {"count": 8} == found.quick["shadows"]  # type: ignore[index]


def test_a_table_with_a_number_for_each_class_is_outputs() -> None:
    ids = [f"r{row}" for row in RNG.permutation(ROWS)]
    TABLE.assign(id=ids, member=["yes", "no"] * (ROWS // 2)).to_csv("records.csv", index=False)
    pd.DataFrame({"id": ids[::-1], "x": SHARES, "y": 1 - SHARES}).to_csv("answers.csv", index=False)
    found = looked("records.csv", "answers.csv", drawn="fixed")
    assert found.quick is not None
    assert found.quick["target"]["outputs"] == {"path": "answers.csv", "id_column": "id"}
    valid(found.full)


def test_probabilities_in_two_tables_become_outputs_that_no_model_sees() -> None:
    found = looked("in.csv", "out.csv")
    assert found.full is not None
    assert found.full["data"]["source"]["columns"] == ["a", "b"]
    lines = found.files["outputs.csv"].decode().splitlines()
    assert lines[0] == "example_id,x,y"
    assert lines[1].startswith("members/0000000,")
    assert lines[-1].startswith(f"nonmembers/{ROWS - 1:07d},")


def test_the_file_that_says_train_holds_the_members() -> None:
    for name in ("rows.csv", "train.csv"):
        TABLE.to_csv(name, index=False)
    found = looked("rows.csv", "train.csv", "m.joblib")
    assert found.full is not None
    assert found.full["data"]["source"]["files"] == {"members": "train.csv", "nonmembers": "rows.csv"}
    assert found.remarks[0] == "train.csv holds the members, rows.csv the non-members"


def test_ids_that_are_made_up_say_nothing_of_the_order() -> None:
    lines = looked("outputs.csv").files["examples.csv"].decode().splitlines()
    ids = [line.partition(",")[0] for line in lines[1:]]
    assert len(set(ids)) == ROWS
    places = np.argsort(np.argsort(ids))
    assert abs(np.corrcoef(places, np.arange(ROWS))[0, 1]) < 0.4


def test_documents_are_listed_in_the_order_of_the_written_file() -> None:
    found = looked("tuned", "base", "others.jsonl", "members.jsonl")  # in any order
    texts = [json.loads(line)["text"] for line in found.files["documents.jsonl"].decode().splitlines()]
    members = found.files["members.csv"].decode().splitlines()[1:]
    assert [text.startswith("members") for text in texts] == [line.endswith("yes") for line in members]
    assert found.quick["score"]["headline"] == "ratio"  # type: ignore[index]
    assert looked("tuned", "members.jsonl", "others.jsonl").quick["score"]["headline"] == "min_k"  # type: ignore[index]


def test_parts_and_folders_of_images_are_sides() -> None:
    parts, folders = looked("photos", "w.pt"), looked("flat_test", "flat", "w.pt")
    assert parts.quick is not None
    assert folders.quick is not None
    assert parts.quick["target"]["members"] == "train/"
    assert folders.quick["target"]["members"] == "members/"
    assert folders.quick["data"]["source"]["parts"]["members"]["source"]["path"] == "flat"
    assert parts.full is not None
    assert parts.full["shadows"]["share"] == 0.5


@pytest.mark.parametrize(
    ("things", "said"),
    [
        (("m.joblib",), "Of a model alone nothing can be asked"),
        (("both.csv",), "No model: bring it"),
        (("members.csv", "m.joblib"), "No list of the members"),
        (("flat",), "bring the images that it was not trained on"),
        (("photos",), "bring the model"),
        (("members.jsonl",), "texts like these that it was not trained on"),
        (("tuned",), "Of a model alone nothing can be asked"),
    ],
)
def test_missing_things_are_named_beside_other_questions(things: tuple[str, ...], said: str) -> None:
    found = looked(*things)
    assert said in found.question
    assert found.quick is None
    if found.full is not None:
        valid(found.full)


@pytest.mark.parametrize(
    ("things", "label", "said"),
    [
        (("members.csv", "members.csv", "m.joblib"), "", "members.csv is named twice"),
        (("members.csv", "others.csv", "both.csv"), "", "3 tables; bring one with a column member"),
        (("members.csv", "in.csv"), "", "differ in the column 'p0'"),
        (("members.csv", "others.csv", "w.pt"), "", "name the function that builds the network"),
        (("members.csv", "others.csv", "m.joblib"), "colour", "which column of members.csv is the class"),
        (("outputs.csv",), "member", "probabilities of 2 classes"),
    ],
)
def test_things_that_do_not_fit_together_are_refused(things: tuple[str, ...], label: str, said: str) -> None:
    if said.startswith("probabilities"):
        pd.read_csv("outputs.csv").assign(kind=["u", "v", "w", "x"] * 10).to_csv("outputs.csv", index=False)
        label = "kind"
    with pytest.raises(UserError, match=said):
        looked(*things, label=label)
