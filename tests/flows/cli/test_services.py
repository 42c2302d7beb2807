"""Commands that ask a service: doctor, canaries score and audit."""

import json
from pathlib import Path

import pytest
from small_service import serving

from flows.cli.app import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def test_doctor_prints_what_a_service_gives_and_whether_its_numbers_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as (served, part):
        assert main(["doctor", "--model", part["url"]]) == 0
        printed = capsys.readouterr().out
        assert "service: small at 127.0.0.1" in printed
        assert "gives: scores given texts (completions)" in printed
        assert "test: passed" in printed
        served.trap = "zeros"
        assert main(["doctor", "--model", part["url"], "--name", "m", "--json"]) == 2
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["test"]["found"] == "failed"
        assert rows["test"]["problem"].startswith("all log probabilities are 0")
        served.trap = "html"
        assert main(["doctor", "--model", part["url"], "--name", "m"]) == 2
        assert "answers with a page, not JSON" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "http://example.com/v1"], "in the clear"),
        (["--model", "https://me:pw@example.com/v1"], "leave out user, password and query"),
        (["--key", "K"], "give its address as --model"),
        (["--model", "https://host/v1", "--name", "m", "--key", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--model", "https://host/v1", "--name", "m", "--key", "not a name"], "--model https://host/v1"),
    ],
)
def test_doctor_refuses_services_that_it_cannot_ask(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_canaries_name_a_file_of_losses_or_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["canaries", "make", "c", "--count", "20", "--seed", "1"]) == 0
    with serving(level="text") as (served, part):
        service = ["--url", part["url"], "--model", "m"]
        for words, said in (
            (["audit", "c"], "name the file of losses, or the service to ask"),
            (["audit", "c", "--url", part["url"]], "give the model's name there as --model"),
            (["audit", "c", *service], "set sends to true"),
            (["score", "c", *service, "--sends", "--output", "l.parquet"], "losses need log probabilities of given texts"),
            (["score", "c", *service, "--adapter", "a", "--output", "l.parquet"], "adapters under names of their own"),
        ):
            capsys.readouterr()
            assert main(["canaries", *words]) != 0
            assert said in capsys.readouterr().err
        assert not Path("l.parquet").exists()
        assert main(["canaries", "audit", "c", *service, "--sends"]) == 0
        printed = capsys.readouterr().out
        assert "sent to 127.0.0.1" in printed
        assert "for generated text alone" in printed
        assert served.requests > 0
