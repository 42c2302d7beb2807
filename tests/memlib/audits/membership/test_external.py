"""Targets that were trained elsewhere: lists of members, outputs, weights and fitted estimators, and what is refused."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

import memlib
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.stages import comparable, more_likely_right, refuse_too_few
from memlib.data.splits import TRAIN, column
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.errors import UserError
from memlib.findings import DESCRIPTIVE, SHOWN, Findings
from memlib.pipeline import user_code
from memlib.running.runners import PlainRunner
from memlib.runs.run import Run
from memlib.specs import DataSpec, HoldOutSpec
from memlib.store import Ref, Store
from tests.memlib.audits.membership.worlds import world

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


@pytest.fixture(scope="module")
def shadows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the shadow models of all tests are fitted once."""
    return tmp_path_factory.mktemp("shared") / "store"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coins: NDArray[np.bool_], shadows: Path) -> Path:
    """Records, the list of members, and the outputs of a forest that was trained on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMLIB_STORE", str(shadows))
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
        return memlib.run({**RECIPE, **changes}, quiet=True)


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


def test_a_declared_draw_contradicted_by_the_order_of_ids_is_not_tested(folder: Path) -> None:
    half = len(IDS) // 2
    write_csv(folder / "members.csv", {"example_id": IDS, "member": ["yes"] * half + ["no"] * (len(IDS) - half)})
    with pytest.warns(UserWarning, match="members differ from non-members even without the model"):
        run = memlib.run({**RECIPE, **with_target(drawn="fixed")}, quiet=True)
    assert run.verdict.word == DESCRIPTIVE
    policy = folder / "policy.yaml"
    for rules in ("verdicts: [bounded, inconclusive]", "ceilings: [auc=0.99]", "verdicts: [inconclusive], detectable: 0.99"):
        policy.write_text(f"title: t\naudits: [{{audit: membership, {rules}}}]\n")
        assert memlib.gate(policy, runs=[run]).outcome == "undecided"  # what was withdrawn passes nothing
    assert memlib.check(run, fail_on="shown").outcome == "undecided"


def test_counts_of_a_stratified_split_contradict_declared_coins(folder: Path) -> None:
    """An exact half of each class: the declaration falls by the counts, and the page says by what."""
    inside = np.zeros(len(LABELS), dtype=bool)
    for label in (0, 1):
        here = np.flatnonzero(label == LABELS)
        inside[np.random.default_rng(label).permutation(here)[: len(here) // 2]] = True
    write_csv(folder / "members.csv", {"example_id": IDS, "member": inside.astype(int)})
    with pytest.warns(UserWarning, match="numbers of members by class are not those of independent coins"):
        run = memlib.run({**RECIPE, **with_target(drawn="coins")}, quiet=True)
    assert run.verdict.word == DESCRIPTIVE
    assert "say drawn: fixed" in Path(run.report).read_text()
    assert Findings.read(run.summary).get("epsilon_lower_bound") is None


def test_examples_that_are_not_listed_are_left_out(folder: Path, coins: NDArray[np.bool_]) -> None:
    listed = list(zip(IDS, coins.tolist(), strict=True))[:300]
    write_csv(folder / "members.csv", {"example_id": [i for i, _ in listed], "member": [int(coin) for _, coin in listed]})
    run = audited()
    assert run.tables["units"].num_rows == run.tables["examples"].num_rows == 300


def test_a_parquet_list_of_members_with_booleans_is_read(folder: Path, coins: NDArray[np.bool_]) -> None:
    pq.write_table(pa.table({"example_id": IDS, "member": coins}), folder / "members.parquet")
    run = audited(**with_target(members="members.parquet"))
    units = run.tables["units"]
    assert dict(zip(units["unit"].to_pylist(), units["member"].to_pylist(), strict=True)) == dict(
        zip(IDS, coins.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("ids", "flags", "message"),
    [
        (IDS, ["maybe"] * len(IDS), "'maybe' for example '0000000' in column member; write yes or no"),
        (["a", "b"], ["yes", "no"], "names none of the 569 examples; use ids such as '0000000'"),
        (IDS[:200], ["yes"] * 195 + ["no"] * 5, "lists 5 non-members among the 569 examples"),
    ],
)
def test_an_unusable_list_of_members_is_refused_in_one_line(
    folder: Path, ids: list[str], flags: list[str], message: str
) -> None:
    write_csv(folder / "members.csv", {"example_id": ids, "member": flags})
    with pytest.raises(UserError, match=message) as raised:
        audited()
    assert "\n" not in str(raised.value)


def test_a_person_with_members_and_nonmembers_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="lists only one of '0000000' and"):
        audited(split={"group": {"pattern": r"^(\d{6})"}})


def test_outputs_without_some_examples_are_refused_before_any_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLIB_STORE", "store")
    lines = (folder / "outputs.csv").read_text().splitlines()
    (folder / "outputs.csv").write_text("\n".join(lines[:-2]) + "\n")
    with pytest.raises(UserError, match="no outputs for 2 of the 569 audited examples"):
        audited()
    assert not list((folder / "store").glob("artifacts/fit_estimators/*/manifest.json"))


def test_a_missing_list_of_members_is_named(folder: Path) -> None:
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


def test_a_model_whose_helpers_changed_is_named_and_computed_again_with_all_that_reads_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, coins: NDArray[np.bool_]
) -> None:
    np.save(folder / "coins.npy", coins)
    (folder / "their_model.py").write_text("from their_helper import fitted\n\n\ndef build():\n    return fitted()\n")
    helper = (
        "import numpy as np\nfrom sklearn.datasets import load_breast_cancer\nfrom sklearn.ensemble import RandomForestClassifier\n"
        "\n\ndef fitted():\n    points, labels = load_breast_cancer(return_X_y=True)\n"
        "    points = (points - points.mean(axis=0)) / points.std(axis=0)\n    coins = np.load('coins.npy')\n"
        "    return RandomForestClassifier(30, random_state=0).fit(points[coins], labels[coins])\n"
    )
    ids = [f"tumor-{row:04d}" for row in range(len(IDS))]
    write_csv(folder / "members.csv", {"example_id": ids, "member": ["yes" if coin else "no" for coin in coins]})
    monkeypatch.syspath_prepend(folder)
    target = {"trained": {"model": "their_model:build", "version": "1"}, "members": "members.csv", "drawn": "coins"}

    def run_with(code: str) -> tuple[Run, list[str]]:
        (folder / "their_helper.py").write_text(code)
        user_code.identity_of.cache_clear()
        monkeypatch.delitem(sys.modules, "their_helper", raising=False)
        monkeypatch.delitem(sys.modules, "their_model", raising=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = memlib.run({**RECIPE, "data": {"source": {"kind": "breast_cancer"}}, "target": target}, quiet=True)
        return run, [str(one.message) for one in caught if "code has changed" in str(one.message)]

    remembers, said = run_with(helper)
    assert remembers.verdict.word == SHOWN
    assert not said
    depth = helper.replace("random_state=0", "random_state=0, max_depth=1")
    reused, said = run_with(depth)
    assert not reused.record.computed
    assert said == [
        "observe_members, query_target: their code has changed since their artifacts were made, but their versions have not; "
        "old artifacts are reused (--force-stage observe_members --force-stage query_target recomputes them)"
    ]
    stages = ("observe_members", "query_target")
    for name in reused.record.pins:
        if name.split("/")[0] in stages:
            reused.store.artifacts.discard(Ref.parse(name))  # as --force-stage does
    changed, said = run_with(depth)
    assert not said
    assert {name.split("/")[0] for name in changed.record.computed} == {*stages, "score_membership", "report"}
    assert changed.findings[0].value < remembers.findings[0].value
    assert memlib.verify(changed).outcome == "unchanged"


def test_a_model_of_the_numbers_of_a_table_is_given_these(
    folder: Path, monkeypatch: pytest.MonkeyPatch, coins: NDArray[np.bool_]
) -> None:
    np.save(folder / "coins.npy", coins)
    (folder / "raw_forest.py").write_text(
        "import csv\nimport numpy as np\nfrom sklearn.ensemble import RandomForestClassifier\n\n\ndef build():\n"
        "    rows = list(csv.DictReader(open('records.csv')))\n"
        "    points = np.array([[float(row[f'f{n}']) for n in range(30)] for row in rows])\n"
        "    names, coins = np.array([row['outcome'] for row in rows]), np.load('coins.npy')\n"
        "    return RandomForestClassifier(30, random_state=0).fit(points[coins], names[coins])\n"
    )
    monkeypatch.syspath_prepend(folder)
    target = {"trained": {"model": "raw_forest:build", "version": "1"}, "members": "members.csv", "drawn": "coins"}
    with pytest.raises(
        UserError, match="data.source.standardize says which numbers your model takes: false for those of the"
    ):
        audited(target=target)
    accuracy, area = {}, {}
    for standardize in (True, False):
        run = audited(data={"source": {**RECIPE["data"]["source"], "standardize": standardize}}, target=target)
        accuracy[standardize] = next(row["value"] for row in run.summary.to_pylist() if row["metric"] == "utility")
        area[standardize] = run.findings[0].value
    assert run.verdict.word == SHOWN
    assert accuracy[False] > 0.9 > accuracy[True]  # of numbers that it was not fitted on, it knows little
    assert area[False] > area[True]


def test_log_odds_of_target_and_shadows_respect_the_rounding_of_outputs(folder: Path) -> None:
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


def test_log_odds_of_the_target_are_clipped_to_the_range_of_its_shadows() -> None:
    shadows = Answers(np.array([[[-1.0, 2.0]]], np.float32), np.ones((1, 2), bool), np.ones((1, 0), bool))
    target = Answers(np.array([[[-30.0, 30.0]]], np.float32), np.ones((1, 2), bool), np.ones((1, 0), bool))
    assert comparable(target, shadows, None)[0].odds.ravel().tolist() == [-1, 2]


NETS: dict[str, Any] = {
    "audit": "membership",
    "data": {"source": {"kind": "digits"}, "image_size": 8, "channels": 1},
    "split": {"train_per_class": 20},
    "model": {"architecture": "mlp", "widths": [32]},
    "training": {
        "objective": {"kind": "supervised"}, "epochs": 60, "batch_size": 25, "augment": None,
        "optimizer": {"learning_rate": 0.005, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    },
    "target": {
        "trained": {"model": "their_net:build", "weights": "model.safetensors"}, "members": "members.csv", "drawn": "coins"
    },
    "shadows": {"count": 16},
    "queries": {"shift": 1},
    "score": {"redraws": 999, "memorized": 0},
    "report": {"gallery": 0},
}  # fmt: skip


def train_their_net(images: NDArray[np.uint8], labels: NDArray[np.int64], seed: int) -> None:
    """Train a network on images (num_images, height, width, 1) until it knows them, and write the factory and its weights."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    inputs, targets = torch.tensor(images).permute(0, 3, 1, 2) / 255, torch.tensor(labels)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(net(inputs), targets))
        optimizer.step()
    safetensors.torch.save_file(net.state_dict(), "model.safetensors")
    Path("their_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
    )


def pool_of_digits(store: str) -> tuple[list[str], NDArray[np.uint8], NDArray[np.int64]]:
    """Return ids, images and labels of the pool, in order of example id."""
    runner = PlainRunner(Store(store))
    shard = decode(runner, DataSpec.model_validate(NETS["data"]))
    data = TrainingData(shard, runner.run(HoldOut(HoldOutSpec.model_validate(NETS["split"]), shard)))
    members = data.members(TRAIN)
    return members["example_id"].to_pylist(), data.images[column(members, "row")], column(members, "label")


def test_members_of_a_network_are_found_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shadows: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMLIB_STORE", str(shadows))
    monkeypatch.syspath_prepend(tmp_path)
    ids, images, labels = pool_of_digits(str(shadows))
    coins = np.random.default_rng(3).random(len(ids)) < 0.5
    train_their_net(images[coins], labels[coins], seed=3)
    write_csv(tmp_path / "members.csv", {"example_id": ids, "member": ["in" if coin else "out" for coin in coins]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run = memlib.run(NETS, quiet=True)
    assert run.verdict.word == SHOWN
    units = run.tables["units"]
    found = dict(zip(units["unit"].to_pylist(), units["member"].to_pylist(), strict=True))
    assert found == dict(zip(ids, coins.tolist(), strict=True))
    accuracy = {
        row["params"]: row["value"]
        for row in run.summary.to_pylist()
        if row["metric"] == "likeness" and "accuracy" in row["params"]
    }
    assert any("members" in name and value == 1 for name, value in accuracy.items())


def test_a_share_of_members_unlike_that_of_the_shadows_gives_a_warning(folder: Path, coins: NDArray[np.bool_]) -> None:
    members = np.flatnonzero(coins)
    kept = {*members.tolist(), *np.flatnonzero(~coins)[:70].tolist()}
    flags = {name: "yes" if coins[row] else "no" for row, name in enumerate(IDS) if row in kept}
    write_csv(folder / "members.csv", {"example_id": list(flags), "member": list(flags.values())})
    share = len(members) / len(flags)
    with pytest.warns(
        UserWarning, match=rf"trained on {share:.0%} of the listed examples, .* 50%; set shadows.share to {share:.2f}"
    ):
        memlib.run({**RECIPE, **with_target(drawn="fixed")}, quiet=True)


def test_supplied_losses_count_as_correct_where_the_class_has_more_than_half_the_probability(folder: Path) -> None:
    odds = np.array([[[-1.0, 0.5, 3.0]]], np.float32)
    answers = Answers(odds, np.ones((1, 3), bool), np.ones((1, 0), bool))
    assert more_likely_right(answers).correct.tolist() == [[False, True, True]]
    own = [float(line.split(",")[1 + label]) for line, label in zip(outputs_of(folder), LABELS, strict=True)]
    write_csv(folder / "outputs.csv", {"example_id": IDS, "scores": [-float(np.log(max(p, 1e-4))) for p in own]})
    with pytest.warns(UserWarning, match="losses do not tell the target's answers"):
        run = memlib.run({**RECIPE, **with_target(outputs={"path": "outputs.csv", "kind": "losses"})}, quiet=True)
    assert run.verdict.word == SHOWN


def outputs_of(folder: Path) -> list[str]:
    """Return the rows of the supplied outputs, without their heading."""
    return (folder / "outputs.csv").read_text().splitlines()[1:]


def test_unlisted_examples_need_no_outputs(folder: Path, coins: NDArray[np.bool_]) -> None:
    write_csv(folder / "members.csv", {"example_id": IDS[:400], "member": [int(coin) for coin in coins[:400]]})
    (folder / "outputs.csv").write_text("\n".join((folder / "outputs.csv").read_text().splitlines()[:401]) + "\n")
    assert audited().tables["units"].num_rows == 400


def test_too_few_members_or_nonmembers_are_refused() -> None:
    units = world(40).units
    alone = replace(units, member=np.arange(len(units)) < 1)
    with pytest.raises(UserError, match="of 40 examples, at least one model has fewer than two members or non-members"):
        refuse_too_few(alone)
    refuse_too_few(world(100).units)
