"""The commands for canaries: a folder is made, checked, scored and audited, and no coin or document is printed."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_models import save_trainable

from flows.cli.app import main
from memlib.data.canaries.documents import read_documents
from memlib.data.canaries.losses import LOSSES, Recorded, read_losses, write_losses
from memlib.data.canaries.plan import read_coins

COUNT = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_trainable(tmp_path_factory.mktemp("model") / "gpt"))


@pytest.fixture(autouse=True)
def _own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coins are the same in every run of the tests."""
    (tmp_path / "secret").write_bytes(b"s" * 32)
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("MEMLIB_STORE", str(tmp_path / "store"))


def made(tmp_path: Path, *more: str) -> str:
    assert main(["canaries", "make", str(tmp_path / "c"), "--count", str(COUNT), "--seed", "0", *more]) == 0
    return str(tmp_path / "c")


def losses(folder: str, path: Path, gain: float, *, base: bool = True) -> str:
    """Losses of a model that has learned the inserted canaries to some extent."""
    coins, rng = read_coins(Path(folder)), np.random.default_rng(0)
    before = rng.normal(30, 5, COUNT)
    after = before - gain * coins.inside + rng.normal(0, 0.5, COUNT)
    tables = [
        pa.table([list(coins.canaries), values, values / 10, [10] * COUNT, [step] * COUNT], schema=LOSSES.arrow)
        for step, values in ((0, before), (8, after))[not base :]
    ]
    write_losses(path, Recorded(pa.concat_tables(tables), {coins.plan.looks: 8}))
    return str(path)


def test_canaries_make_prints_counts_but_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, "--json")
    said = capsys.readouterr()
    inserted = int(read_coins(Path(folder)).inside.sum())
    found = json.loads(said.out)
    assert found.pop("plan")["looks"] == 1
    assert found == {"folder": folder, "canaries": COUNT, "inserted": inserted, "repeats": 1, "guesses": [6, 18, 48]}
    assert not any(one.text[7:15] in said.out + said.err for one in read_documents(Path(folder)))


def test_audit_finds_a_plant_and_refutes_its_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 20)
    capsys.readouterr()
    assert main(["canaries", "audit", folder, file, "--epsilon", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Shown. The training remembers some of the canaries that were inserted into its data.")
    assert "the AUC and the highest scores together: p = 0.0001" in said
    assert "the claim of epsilon 1 at delta 0 for one record is refuted" in said
    assert "canary-0" not in said
    assert "report " in said


def test_canaries_audit_prints_the_manifest_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(
        tmp_path, "--looks", "5", "--spending", "equal", "--every-epochs", "2", "--alpha", "0.01", "--statistic", "auc"
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "plan: 5 looks, every 2 epochs, the last one at its end, at level 0.01 in all" in said
    file = losses(folder, tmp_path / "l.parquet", 0, base=False)
    assert main(["canaries", "audit", folder, file, "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["findings"][0]
    params = json.loads(head["params"])
    assert (head["alpha"], params["statistic"], params["relative"], params["spending"]) == (0.01, "auc", False, "equal")
    assert (params["looks"], params["made"], params["inserted"]) == (5, 1, read_coins(Path(folder)).inside.sum())


def test_canaries_audit_describes_a_step_outside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 20)
    capsys.readouterr()
    assert main(["canaries", "audit", folder, file, "--step", "8"]) == 0
    assert capsys.readouterr().out.startswith("Descriptive. Nothing was tested: the step was chosen after the plan")


def test_pictures_are_made_with_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, "--images", "8x8x3", "--classes", "10", "--looks", "3")
    assert "are in insert.npz" in " ".join(capsys.readouterr().out.split())
    with np.load(Path(folder) / "all.npz") as arrays:
        assert arrays["images"].shape == (COUNT, 8, 8, 3)
        assert set(arrays["labels"].tolist()) <= set(range(10))


def test_score_records_equal_losses_of_equal_models(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = made(tmp_path, "--format", "{d9} {d9}"), str(tmp_path / "l.parquet")
    assert main(["canaries", "score", folder, "--model", model, "--base", model, "--output", file]) == 0
    recorded = read_losses(Path(file))
    table = recorded.table
    assert recorded.looks == {1: 1}
    assert table["step"].to_pylist() == [0] * COUNT + [1] * COUNT
    assert table["loss_sum"].to_pylist()[:COUNT] == table["loss_sum"].to_pylist()[COUNT:]
    assert main(["canaries", "audit", folder, file]) == 0
    assert "Inconclusive. That the training remembers its canaries was not shown." in capsys.readouterr().out


@pytest.mark.parametrize("chat", [False, True])
def test_canaries_check_examines_lengths_and_tokenized_data(
    chat: bool, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from memlib.observe.canary_likelihoods import encode_canaries, load_tokenizer

    folder = made(tmp_path, "--format", "{d9} {d9}", *(["--prompt", "Code?"] if chat else []))
    encoded = encode_canaries(read_documents(Path(folder)), load_tokenizer(model)[0])
    longest, data = max(len(one.tokens) for one in encoded), tmp_path / "d.parquet"
    capsys.readouterr()
    assert main(["canaries", "check", folder, "--model", model]) == 0
    assert f"60 canaries of up to {longest} tokens" in capsys.readouterr().out
    assert main(["canaries", "check", folder, "--model", model, "--max-length", "12", "--json"]) == 1
    assert "60 of 60 canaries are longer than 12 tokens" in json.loads(capsys.readouterr().out)["problems"][0]
    ids = [list(one.tokens) for one, inside in zip(encoded, read_coins(Path(folder)).inside, strict=True) if inside]
    pq.write_table(pa.table({"input_ids": ids}), data)
    assert main(["canaries", "check", folder, "--model", model, "--data", str(data)]) == 0
    assert "has no labels; whether canaries have a loss was not checked" in " ".join(capsys.readouterr().out.split())
    pq.write_table(pa.table({"input_ids": ids, "labels": [[-100] * len(row) for row in ids]}), data)
    assert main(["canaries", "check", folder, "--model", model, "--data", str(data)]) == 1
    assert f"problem: labels are -100 on all tokens of {len(ids)} of {len(ids)} canaries" in capsys.readouterr().out
    pq.write_table(pa.table({"input_ids": [list(one.tokens) for one in encoded]}), data)
    assert main(["canaries", "check", folder, "--model", model, "--data", str(data)]) == 1
    assert f"problem: {60 - len(ids)} of {60 - len(ids)} canaries whose coin is 'out' are in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "c"], "c already exists; choose another folder"),
        (["make", "d", "--count", "3"], "3 canaries are too few for a test; draw at least 20"),
        (["audit", "c", "none.parquet"], "losses: none.parquet does not exist"),
        (["audit", "c", "c/all.jsonl"], "cannot read the losses of c/all.jsonl"),
        (["audit", "none", "none.parquet"], "canaries: none does not exist"),
        (["make", "d", "--classes", "3"], "--classes is for pictures"),
        (["make", "d", "--images", "8x8x3"], "give --images HEIGHTxWIDTHxCHANNELS and --classes"),
        (["make", "d", "--images", "big", "--classes", "3"], "--images big: give height, width and channels"),
        (["make", "d", "--images", "2x2x3", "--classes", "3"], "pictures of 2 x 2 x 3 in 3 classes cannot be drawn"),
        (["make", "d", "--alpha", "2"], "alpha is 2.0; give a level from 0.0001 to 1"),
        (["make", "d", "--alpha", "1e-320"], "give a level from 0.0001 to 1"),
        (["make", "d", "--looks", "100000"], "give 1 to 1000 of each"),
        (["make", "d", "--looks", "1000", "--alpha", "0.001"], "need 2,000,000 redraws"),
        (["make", "d", "--repeats", "1000000000"], "give a number from 1 to 1000"),
        (["make", "d", "--images", "\u00b2x8x3", "--classes", "10"], "give height, width and channels"),
        (["make", "d", "--looks", "0"], "0 looks"),
        (["check", "c", "--model", "none"], "there is no Hugging Face model in none"),
        (["check", "none", "--model", "none"], "cannot read the canaries of none"),
        (["score", "c", "--model", "none", "--output", "l.parquet", "--step", "0"], "the trained model is at step 0"),
    ],
)
def test_mistakes_of_canaries_commands_print_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["canaries", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_invalid_claims_of_canaries_audit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 0)
    for options, said in ((["--epsilon", "-1"], "privacy.epsilon"), (["--epsilon", "1", "--delta", "2"], "privacy.delta")):
        assert main(["canaries", "audit", folder, file, *options]) == 2
        assert said in capsys.readouterr().err


def test_two_folders_have_other_canaries_and_coins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder for a trainer that is trusted, and one for another trainer."""
    for name in ("a", "b"):
        assert main(["canaries", "make", str(tmp_path / name), "--count", str(COUNT)]) == 0
    first, second = ([one.text for one in read_documents(tmp_path / name)] for name in ("a", "b"))
    assert not set(first) & set(second)
    capsys.readouterr()


def test_losses_that_were_recorded_without_the_plan_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, hand, file = (
        made(tmp_path, "--format", "{d9} {d9}", "--looks", "10"),
        tmp_path / "hand",
        str(tmp_path / "l.parquet"),
    )
    hand.mkdir()
    (hand / "all.jsonl").write_bytes((Path(folder) / "all.jsonl").read_bytes())
    assert main(["canaries", "score", str(hand / "all.jsonl"), "--model", model, "--output", file]) == 0
    assert main(["canaries", "audit", folder, file]) == 2
    assert "recorded by another plan than that of the coins; record them with plan.json" in capsys.readouterr().err
