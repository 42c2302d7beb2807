"""Targets that were trained elsewhere: lists of members, outputs, weights and fitted estimators, and what is refused."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

import memlib
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.stages import comparable
from memlib.errors import UserError
from memlib.findings import DESCRIPTIVE, SHOWN
from memlib.runs.run import Run

POINTS, LABELS = load_breast_cancer(return_X_y=True)
IDS = [f"{row:07d}" for row in range(len(LABELS))]
NAMES = ["malignant", "benign"]
RECIPE: dict[str, Any] = {
    "audit": "membership",
    "data": {"source": {"kind": "table", "path": "records.csv", "label_column": "outcome", "id_column": "id"}},
    "model": {"kind": "forest", "trees": 30},
    "target": {"outputs": {"path": "outputs.csv"}, "members": "members.csv", "drawn": "coins"},
    "shadows": {"count": 20},
    "score": {"redraws": 999},
}


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.fixture
def coins() -> NDArray[np.bool_]:
    return np.random.default_rng(0).random(len(LABELS)) < 0.5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coins: NDArray[np.bool_]) -> Path:
    """Records, the list of members, and the outputs of a forest that was trained on them."""
    monkeypatch.chdir(tmp_path)
    features = {f"f{column}": POINTS[:, column].tolist() for column in range(POINTS.shape[1])}
    write_csv(tmp_path / "records.csv", {"id": IDS, "outcome": [NAMES[label] for label in LABELS], **features})
    write_csv(tmp_path / "members.csv", {"example_id": IDS, "member": ["yes" if coin else "no" for coin in coins]})
    forest = RandomForestClassifier(30, random_state=0).fit(POINTS[coins], LABELS[coins])
    shares = forest.predict_proba(POINTS)
    write_csv(
        tmp_path / "outputs.csv", {"example_id": IDS, "malignant": shares[:, 0].tolist(), "benign": shares[:, 1].tolist()}
    )
    return tmp_path


def audited(**changes: Any) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return memlib.run({**RECIPE, **changes}, store="store", quiet=True)


def with_target(**changes: Any) -> dict[str, Any]:
    return {"target": {**RECIPE["target"], **changes}}


def test_members_of_a_forest_are_found_from_its_outputs(folder: Path) -> None:
    run = audited()
    assert run.verdict.word == SHOWN
    assert {row["metric"] for row in run.summary.to_pylist()} >= {"auc", "blind_auc", "likeness", "epsilon_lower_bound"}
    assert run.tables["models"].num_rows == 21


def test_a_fixed_hold_out_gives_no_epsilon(folder: Path) -> None:
    run = audited(**with_target(drawn="fixed"))
    assert run.verdict.word == SHOWN
    assert "epsilon_lower_bound" not in run.summary["metric"].to_pylist()


def test_members_that_were_not_drawn_at_random_are_described(folder: Path) -> None:
    run = audited(**with_target(drawn="unknown"))
    assert run.verdict.word == DESCRIPTIVE
    assert "Without the model" in run.verdict.explanation
    assert "test" not in {row["role"] for row in run.summary.to_pylist() if row["metric"] == "auc"}


def test_a_declared_draw_that_ids_contradict_is_not_tested(folder: Path) -> None:
    half = len(IDS) // 2
    write_csv(folder / "members.csv", {"example_id": IDS, "member": ["yes"] * half + ["no"] * (len(IDS) - half)})
    with pytest.warns(UserWarning, match="members can be told without the model"):
        run = memlib.run({**RECIPE, **with_target(drawn="fixed")}, store="store", quiet=True)
    assert run.verdict.word == DESCRIPTIVE


def test_examples_that_are_not_listed_are_left_out(folder: Path, coins: NDArray[np.bool_]) -> None:
    listed = list(zip(IDS, coins.tolist(), strict=True))[:300]
    write_csv(folder / "members.csv", {"example_id": [i for i, _ in listed], "member": [int(coin) for _, coin in listed]})
    run = audited()
    assert run.tables["units"].num_rows == run.tables["examples"].num_rows == 300


def test_a_parquet_list_with_flags_is_read(folder: Path, coins: NDArray[np.bool_]) -> None:
    pq.write_table(pa.table({"example_id": IDS, "member": coins}), folder / "members.parquet")
    run = audited(**with_target(members="members.parquet"))
    units = run.tables["units"]
    assert dict(zip(units["unit"].to_pylist(), units["member"].to_pylist(), strict=True)) == dict(
        zip(IDS, coins.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("ids", "flags", "message"),
    [
        (IDS, ["maybe"] * len(IDS), "'maybe' of example '0000000'; the column member holds yes or no"),
        (["a", "b"], ["yes", "no"], "names none of the 569 examples; ids look like '0000000'"),
        (IDS[:200], ["yes"] * 195 + ["no"] * 5, "lists 5 non-members among the 569 examples"),
    ],
)
def test_a_list_of_members_that_cannot_be_used_is_refused(
    folder: Path, ids: list[str], flags: list[str], message: str
) -> None:
    write_csv(folder / "members.csv", {"example_id": ids, "member": flags})
    with pytest.raises(UserError, match=message) as raised:
        audited()
    assert "\n" not in str(raised.value)


def test_a_divided_person_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="separates a group of split.group: of '0000000' and"):
        audited(split={"group": {"pattern": r"^(\d{6})"}})


def test_outputs_without_some_examples_are_refused_before_any_training(folder: Path) -> None:
    lines = (folder / "outputs.csv").read_text().splitlines()
    (folder / "outputs.csv").write_text("\n".join(lines[:-2]) + "\n")
    with pytest.raises(UserError, match="no outputs for 2 of the 569 audited examples"):
        audited()
    assert not list((folder / "store").glob("artifacts/fit_estimators/*/manifest.json"))


def test_a_missing_list_is_named(folder: Path) -> None:
    (folder / "members.csv").unlink()
    with pytest.raises(UserError, match=r"members: members\.csv does not exist|cannot read target\.members"):
        audited()


def test_a_fitted_estimator_of_a_factory_is_queried(
    folder: Path, monkeypatch: pytest.MonkeyPatch, coins: NDArray[np.bool_]
) -> None:
    np.save(folder / "coins.npy", coins)
    (folder / "their_forest.py").write_text(
        "import numpy as np\nfrom sklearn.datasets import load_breast_cancer\nfrom sklearn.ensemble import RandomForestClassifier\n"
        "\n\ndef build():\n    points, labels = load_breast_cancer(return_X_y=True)\n"
        "    points = (points - points.mean(axis=0)) / points.std(axis=0)\n    coins = np.load('coins.npy')\n"
        "    return RandomForestClassifier(30, random_state=0).fit(points[coins], labels[coins])\n"
    )
    monkeypatch.syspath_prepend(folder)
    target = {"trained": {"model": "their_forest:build", "version": "1"}, "members": "members.csv", "drawn": "coins"}
    write_csv(
        folder / "members.csv",
        {
            "example_id": [f"tumor-{row:04d}" for row in range(len(IDS))],
            "member": ["yes" if coin else "no" for coin in coins],
        },
    )
    run = audited(data={"source": {"kind": "breast_cancer"}}, target=target)
    assert run.verdict.word == SHOWN
    likeness = [row for row in run.summary.to_pylist() if row["metric"] == "likeness"]
    assert likeness


def test_rounded_outputs_are_read_as_they_are(folder: Path) -> None:
    lines = (folder / "outputs.csv").read_text().splitlines()
    rounded = [
        ",".join([parts[0], *(f"{float(value):.1f}" for value in parts[1:])]) for parts in (x.split(",") for x in lines[1:])
    ]
    (folder / "outputs.csv").write_text("\n".join([lines[0], *rounded]) + "\n")
    run = audited()
    assert run.verdict.word == SHOWN
    units = run.tables["units"]
    ends = np.log(0.95 / 0.05)  # p = .95 and above are all 1.0; shadow models are rounded alike
    assert units["log_odds"].to_numpy().max() == pytest.approx(ends, abs=1e-4)
    assert units["log_odds_in"].to_numpy().max() <= ends + 1e-4


def test_a_certain_target_is_compared_within_the_range_of_its_shadows() -> None:
    shadows = Answers(np.array([[[-1.0, 2.0]]], np.float32), np.ones((1, 2), bool), np.ones((1, 0), bool))
    target = Answers(np.array([[[-30.0, 30.0]]], np.float32), np.ones((1, 2), bool), np.ones((1, 0), bool))
    assert comparable(target, shadows, None)[0].odds.ravel().tolist() == [-1, 2]


def test_unlisted_examples_need_no_outputs(folder: Path, coins: NDArray[np.bool_]) -> None:
    write_csv(folder / "members.csv", {"example_id": IDS[:400], "member": [int(coin) for coin in coins[:400]]})
    (folder / "outputs.csv").write_text("\n".join((folder / "outputs.csv").read_text().splitlines()[:401]) + "\n")
    assert audited().tables["units"].num_rows == 400
