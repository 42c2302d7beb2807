"""The commands that give findings to other tools say what they uploaded, and print what they describe."""

import json
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.store import Store
from tests.memlib.sharing.conftest import publish
from tests.memlib.sharing.fake_mlflow import Fake, serving


@pytest.fixture
def store(tmp_path: Path) -> str:
    opened = Store(str(tmp_path / "store"))
    opened.check_writable()
    publish(opened)
    publish(opened, "b" * 12, word="inconclusive")
    return opened.uri


def test_mlflow_lists_what_was_uploaded(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Fake()) as fake:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", fake.uri)
        assert main(["mlflow", "aa", "--store", store]) == 0
        first = capsys.readouterr().out
        assert main(["mlflow", "aa", "--store", store, "--experiment", "memlib", "--with", "page", "tables"]) == 0
        again = capsys.readouterr().out
        fake.artifact_root = "s3://bucket"
        assert main(["mlflow", "bb", "--store", store]) == 0
        kept = capsys.readouterr().out
    assert first.startswith(f"shared run {'a' * 12}: {fake.uri}/#/experiments/1/runs/")
    assert [line.removeprefix("uploaded: ") for line in first.splitlines()[2:]] == ["memlib/summary.csv", "memlib/card.md"]
    assert again.startswith(f"updated run {'a' * 12}: ")
    assert "uploaded: memlib/report.html\nuploaded: memlib/tables/summary/" in again
    assert "not uploaded: summary and card, as the server keeps artifacts at s3://bucket/1/" in kept


def test_mlflow_without_an_address_or_a_server_ends_with_one_line(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("memlib.sharing.web.time.sleep", lambda seconds: None)
    for arguments in ([], ["--uri", "http://127.0.0.1:9"], ["--uri", "127.0.0.1:5000"]):
        assert main(["mlflow", "aa", "--store", store, *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_card_prints_one_section_for_all_runs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", "aa", "bb", "--store", store]) == 0
    text = capsys.readouterr().out
    assert text.index("**Shown.**") < text.index("**Inconclusive.**")
    assert main(["card", "aa", "--store", store, "--json"]) == 0
    assert [one["run"] for one in json.loads(capsys.readouterr().out)["audits"]] == ["a" * 12]


def test_croissant_of_a_run_without_data_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["croissant", "aa", "--store", store]) == 2
    assert "records no data of its own" in capsys.readouterr().err
