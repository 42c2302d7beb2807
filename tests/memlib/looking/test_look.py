"""Looking at models and data: first answers that are right, recipes that run, and objects of Python."""

import stat
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import nn

import memlib
from memlib.errors import UserError
from memlib.findings import DESCRIPTIVE, INCONCLUSIVE, SHOWN
from memlib.recipes.request import AuditRequest

COUNT = 240
RNG = np.random.default_rng(5)
POINTS = RNG.normal(size=(COUNT, 3))
LABELS = np.where(POINTS[:, 0] + RNG.normal(size=COUNT) > 0, "yes", "no")
INSIDE = RNG.permutation(COUNT) < COUNT // 2
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forest(inside: Any = INSIDE) -> RandomForestClassifier:
    return RandomForestClassifier(20, random_state=0).fit(POINTS[inside], LABELS[inside])


def pairs() -> list[tuple[Any, Any]]:
    return [(POINTS[side], LABELS[side]) for side in (INSIDE, ~INSIDE)]


def test_a_model_with_memory_is_shown_from_arrays() -> None:
    found = memlib.look(*pairs(), forest(), drawn="fixed")
    assert found.run is not None
    assert found.run.verdict.word == SHOWN
    assert str(found).splitlines()[-1].endswith("memlib run membership.yaml")
    request = AuditRequest.read(str(found.recipe))
    assert request.recipe.shadows.count == 16  # type: ignore[attr-defined]
    assert len(request.recipe.score.attacks) == 7  # type: ignore[attr-defined]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in Path().glob("*.csv"))


def test_a_model_of_other_data_is_neither_shown_nor_bounded() -> None:
    rng = np.random.default_rng(6)
    points = rng.normal(size=(COUNT, 3))
    labels = np.where(points[:, 0] + rng.normal(size=COUNT) > 0, "yes", "no")
    innocent = RandomForestClassifier(20, random_state=0).fit(points, labels)
    found = memlib.look(*pairs(), innocent, drawn="fixed")
    assert found.run is not None
    assert found.run.verdict.word == INCONCLUSIVE
    assert "attacks that were possible were not run" in found.run.verdict.explanation


def test_without_a_declared_draw_nothing_is_tested_and_the_advice_says_how() -> None:
    found = memlib.look(*pairs(), forest())
    assert found.run is not None
    assert found.run.verdict.word == DESCRIPTIVE
    assert "add --drawn fixed" in found.advice[0]


def test_two_files_and_a_saved_estimator_need_no_recipe_and_keep_the_first_one() -> None:
    for name, side in (("test.csv", ~INSIDE), ("a.csv", INSIDE)):
        pd.DataFrame(POINTS[side], columns=list("abc")).assign(label=LABELS[side]).to_csv(name, index=False)
    joblib.dump(forest(), "m.joblib")
    found = memlib.look("test.csv", "a.csv", "m.joblib", drawn="fixed")  # the name says that test.csv is the other side
    assert found.run is not None
    assert found.run.verdict.word == SHOWN
    assert found.recipe == Path("membership.yaml")
    assert memlib.look("test.csv", "a.csv", "m.joblib", drawn="fixed").recipe == Path("membership_2.yaml")


def test_look_leaves_out_numbers_of_rows() -> None:
    for start, name, side in ((0, "train.csv", INSIDE), (COUNT // 2, "test.csv", ~INSIDE)):
        table = pd.DataFrame(POINTS[side], columns=list("abc")).assign(label=LABELS[side])
        table.insert(0, "id", range(start, start + len(table)))
        table.to_csv(name, index=False)
    joblib.dump(forest(), "m.joblib")
    found = memlib.look("train.csv", "test.csv", "m.joblib", drawn="fixed")
    assert found.run is not None
    assert found.run.verdict.word == SHOWN
    assert "numbers of rows in column id" in found.understood[0]


@pytest.mark.parametrize("is_one", [True, False])
def test_rows_of_a_person_in_tables_are_one_unit(is_one: bool) -> None:
    """An innocent model knows some persons better than others, and each has many rows."""
    rng = np.random.default_rng(9)
    person = np.repeat(np.arange(20), 12)
    member = np.isin(person, rng.permutation(20)[:10])
    right = 1 / (1 + np.exp(-2 * rng.normal(size=20)[person] - 0.2 * rng.normal(size=COUNT)))
    table = pd.DataFrame(POINTS, columns=list("abc")).assign(
        label=LABELS, patient=person, p_no=np.where(LABELS == "no", right, 1 - right)
    )
    table = table.assign(p_yes=1 - table["p_no"], member=member).sample(frac=1, random_state=0)
    if is_one:
        table.to_csv("t.csv", index=False)
    else:
        table[table["member"]].drop(columns="member").to_csv("members.csv", index=False)
        table[~table["member"]].drop(columns="member").to_csv("others.csv", index=False)
    found = memlib.look(*(["t.csv"] if is_one else ["others.csv", "members.csv"]), drawn="fixed")
    assert found.run is not None
    assert found.run.summary["n"].to_pylist()[0] == 20
    assert found.run.verdict.word == INCONCLUSIVE


def test_numbered_classes_are_in_the_order_of_their_numbers() -> None:
    rng = np.random.default_rng(10)
    labels = rng.choice([2, 9, 10, 11], COUNT)
    shares = np.full((COUNT, 4), 0.1)
    shares[np.arange(COUNT), np.searchsorted([2, 9, 10, 11], labels)] = np.where(INSIDE, 0.7, rng.choice([0.1, 0.7], COUNT))
    shares /= shares.sum(axis=1, keepdims=True)
    table = pd.DataFrame(shares, columns=["p0", "p1", "p2", "p3"]).assign(label=labels, member=INSIDE)
    table.to_csv("outputs.csv", index=False)
    found = memlib.look("outputs.csv", drawn="fixed")
    assert "p0 is class 2, p1 is class 9, p2 is class 10, p3 is class 11" in found.understood
    assert found.run is not None
    assert found.run.verdict.word == SHOWN


def test_a_pipeline_that_takes_named_columns_is_known_by_its_probabilities() -> None:
    frame = pd.DataFrame({"a": POINTS[:, 0], "b": POINTS[:, 1], "sex": RNG.choice(["f", "m"], COUNT), "label": LABELS})
    encoder = ColumnTransformer([("sex", OneHotEncoder(), ["sex"])], remainder="passthrough")
    model = make_pipeline(encoder, RandomForestClassifier(20, random_state=0))
    model.fit(frame[INSIDE].drop(columns="label"), LABELS[INSIDE])
    joblib.dump(model, "m.joblib")
    frame[INSIDE].to_csv("members.csv", index=False)
    frame[~INSIDE].to_csv("others.csv", index=False)
    found = memlib.look("members.csv", "others.csv", "m.joblib", drawn="fixed")
    assert found.run is not None
    assert found.run.verdict.word == SHOWN
    assert "known by its probabilities" in found.understood[-1]
    assert memlib.look(frame[INSIDE], frame[~INSIDE], model, drawn="fixed").run.verdict.word == SHOWN  # type: ignore[union-attr]


def test_a_module_is_asked_about_arrays_of_pictures() -> None:
    pictures = torch.tensor(RNG.normal(size=(80, 1, 4, 4)), dtype=torch.float32)
    labels = torch.arange(80) % 2
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(pictures[:40]), labels[:40]).backward()
        optimizer.step()
    sides = [(pictures[:40].numpy(), labels[:40].numpy()), (pictures[40:].numpy(), labels[40:].numpy())]
    found = memlib.look(*sides, net, drawn="fixed")
    assert found.run is not None
    assert found.run.verdict.word == SHOWN
    assert found.question == "Who was in the training set of the model, by its probabilities alone?"


@pytest.mark.parametrize(("effect", "word"), [(1.5, SHOWN), (0.0, INCONCLUSIVE)])
def test_scores_in_a_table_or_in_two_are_answered_alike(effect: float, word: str) -> None:
    rng = np.random.default_rng(7)
    member = rng.permutation(COUNT) < COUNT // 2
    table = pd.DataFrame({"nll": rng.normal(size=COUNT) - effect * member, "in_train": np.where(member, "train", "test")})
    table.to_csv("scores.csv", index=False)
    one = memlib.look("scores.csv", drawn="fixed")
    for name, side in (("in.csv", member), ("out.csv", ~member)):
        table[side].drop(columns="in_train").assign(member="yes").to_csv(name, index=False)
    assert one.run is not None
    assert one.run.verdict.word == word
    assert "nll counts as smaller for members" in one.understood[1]
    table.drop(columns="in_train").assign(**{"score b": rng.normal(size=COUNT), "member": member}).to_csv(
        "b.csv", index=False
    )
    both = memlib.look("b.csv", drawn="fixed", score="score b")
    assert both.run is not None
    assert both.run.verdict.word == INCONCLUSIVE
    assert "not tested: nll; --score names another one" in both.understood


def test_rows_of_persons_are_their_persons() -> None:
    rng = np.random.default_rng(8)
    person = rng.integers(0, 50, COUNT)
    member = (rng.permutation(50) < 25)[person]
    pd.DataFrame({
        "record_id": rng.permutation(COUNT), "patient": [f"p{number}" for number in person], "loss": rng.normal(size=50)[person],
        "member": member,
    }).to_csv("scores.csv", index=False)  # fmt: skip
    found = memlib.look("scores.csv", drawn="fixed")
    assert found.run is not None
    assert found.run.summary["n"].to_pylist()[0] == len(set(person))
    assert found.run.verdict.word == INCONCLUSIVE


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ((), "bring something to look at"),
        ((pairs()[0], pairs()[1], pairs()[0]), "3 sets of examples and 0 models"),
        ((np.zeros(3),), "a ndarray is no data frame and no pair"),
        ((pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]}),), "which column of the data frame is the class"),
        (("none.csv",), "there is no file or folder none.csv"),
        (("",), "is no thing to look at"),
        (("/",), "is no thing to look at"),
        (((np.zeros((40, 8, 8)), np.arange(40) % 2), (np.zeros((40, 8, 8)), np.arange(40) % 2), forest()), "cannot be asked"),
    ],
)
def test_things_that_cannot_be_looked_at_are_refused(things: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        memlib.look(*things)
    assert not list(Path().glob("*.yaml"))
