"""The command that looks at what somebody brings."""

import json
from pathlib import Path

import joblib
import pandas as pd
import pytest

from flows.cli.app import main
from tests.memlib.looking.test_look import INSIDE, LABELS, POINTS, forest

THINGS = ["members.csv", "others.csv", "m.joblib"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, side in zip(THINGS, (INSIDE, ~INSIDE), strict=False):
        pd.DataFrame(POINTS[side], columns=list("abc")).assign(label=LABELS[side]).to_csv(name, index=False)
    joblib.dump(forest(), "m.joblib")


def test_look_describes_things_before_its_verdict_and_ends_with_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", *THINGS, "--drawn", "fixed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "members.csv: 120 rows of 3 columns, class label (2 values)"
    assert lines[3] == "members.csv holds the members, others.csv the non-members"
    assert any(line.startswith("Shown. The model reveals who was in its training set") for line in lines)
    assert lines[-1].endswith("CPU minutes: memlib run membership.yaml")
    assert main(["plan", "membership.yaml", "--quick"]) == 0
    assert "opened: " not in capsys.readouterr().out
    assert main(["plan", "membership.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("opened: nothing that is known without the model")


def test_a_terminal_is_asked_how_members_were_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.cli.look.can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "2")
    assert main(["look", *THINGS]) == 0
    assert "drawn: fixed" in Path("membership.yaml").read_text()
    monkeypatch.setattr("builtins.input", lambda question: "9")
    assert main(["look", *THINGS]) == 2
    assert "'9' is not a number from 1 to 3" in capsys.readouterr().err


def test_init_without_words_asks_for_things_and_looks_at_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.cli.start.can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: " ".join(THINGS))
    assert main(["init"]) == 0
    assert "Descriptive." in capsys.readouterr().out
    assert Path("membership.yaml").exists()


def test_the_result_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", *THINGS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["word"] == "descriptive"
    assert found["recipe"] == "membership.yaml"


@pytest.mark.parametrize(
    ("words", "said"), [([], "name what you have"), (["none.csv"], "there is no file or folder none.csv")]
)
def test_mistakes_are_one_line_and_status_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
