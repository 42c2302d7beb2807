"""The commands for canaries: a folder is made, checked, scored and audited, and no coin or document is printed."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_models import save_trainable

from flows.cli.app import main
from memlib.data.canaries.documents import read_coins, read_documents
from memlib.data.canaries.losses import LOSSES, read_losses, write_losses

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


def made(tmp_path: Path, *more: str) -> str:
    assert main(["canaries", "make", str(tmp_path / "c"), "--count", str(COUNT), *more]) == 0
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
    write_losses(path, tables)
    return str(path)


def test_canaries_make_prints_counts_but_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, "--json")
    said = capsys.readouterr()
    inserted = int(read_coins(Path(folder)).inside.sum())
    assert json.loads(said.out) == {
        "folder": folder, "canaries": COUNT, "inserted": inserted, "repeats": 1, "guesses": [6, 18, 48]
    }  # fmt: skip
    assert not any(one.text[7:15] in said.out + said.err for one in read_documents(Path(folder)))


def test_audit_finds_a_plant_and_refutes_its_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 20)
    capsys.readouterr()
    assert main(["canaries", "audit", folder, file, "--epsilon", "1", "--redraws", "999"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "memory shown at level 0.05 (p = 0.001, coins redrawn)" in said
    assert "AUC 1.000" in said
    assert "of 48 guesses right)" in said
    assert "claim epsilon 1: refuted at level 0.05" in said
    assert "canary-0" not in said


def test_canaries_audit_prints_json_without_a_base_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 0, base=False)
    capsys.readouterr()
    assert main(["canaries", "audit", folder, file, "--json", "--redraws", "99"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["score"], found["claim"], found["outcome_of_claim"]) == (8, "-loss", None, None)
    assert found["num_inserted"] == read_coins(Path(folder)).inside.sum()
    assert found["bound"]["tried"] == [6, 18, 48]


@pytest.mark.parametrize(
    ("make", "audit", "said"),
    [
        ([], ["--epsilon", "1", "--adjacency", "replace"], "epsilon 1 under replace adjacency: not compared"),
        (
            ["--repeats", "2"],
            ["--epsilon", "1", "--delta", "1e-5"],
            "epsilon 1 per record: not compared, as 2 copies change delta",
        ),
        (["--repeats", "2"], ["--epsilon", "0.1"], "epsilon 0.1: refuted at level 0.05"),
        ([], ["--epsilon", "9"], "epsilon 9: cannot be tested, as a perfect attack would have p = 1"),
        ([], ["--epsilon", "0.5"], "epsilon 0.5: not refuted at level 0.05 (p = "),
    ],
)
def test_canaries_audit_compares_only_comparable_claims(
    make: list[str], audit: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path, *make)
    file = losses(folder, tmp_path / "l.parquet", 0 if "0.5" in audit else 20)
    assert main(["canaries", "audit", folder, file, "--redraws", "99", *audit]) == 0
    assert f"claim {said}" in " ".join(capsys.readouterr().out.split())


def test_score_records_equal_losses_of_equal_models(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = made(tmp_path, "--format", "{d9} {d9}"), str(tmp_path / "l.parquet")
    assert main(["canaries", "score", folder, "--model", model, "--base", model, "--output", file]) == 0
    table = read_losses(Path(file))
    assert table["step"].to_pylist() == [0] * COUNT + [1] * COUNT
    assert table["loss_sum"].to_pylist()[:COUNT] == table["loss_sum"].to_pylist()[COUNT:]
    assert main(["canaries", "audit", folder, file, "--redraws", "99"]) == 0
    assert "memory not shown" in " ".join(capsys.readouterr().out.split())


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
        (["audit", "c", "none.parquet"], "cannot read the losses of none.parquet"),
        (["audit", "none", "none.parquet"], "cannot read the coins of none/coins.parquet"),
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


def test_invalid_claims_and_settings_of_canaries_audit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path)
    file = losses(folder, tmp_path / "l.parquet", 0)
    for option, value, said in (
        ("--epsilon", "-1", "the claimed epsilon is -1"),
        ("--delta", "2", "delta is 2"),
        ("--alpha", "1", "level is 1"),
        ("--redraws", "0", "0 redraws are too few"),
    ):
        assert main(["canaries", "audit", folder, file, option, value]) == 2
        assert said in capsys.readouterr().err
