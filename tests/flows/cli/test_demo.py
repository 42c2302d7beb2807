"""The demo: a trained model gives its members away, the same model before its training does not, and a secret is read out."""

import re
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.store import Store


def test_the_demo_tells_a_trained_model_from_an_untrained_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--store", str(tmp_path / "store")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^trained: shown\. .* p = 0\.000", printed, re.MULTILINE)
    assert re.search(r"^not trained: bounded\. ", printed, re.MULTILINE)
    named = re.search(r"memlib open (\w+) --store", printed)
    assert named is not None
    assert (tmp_path / "store" / "runs" / named[1] / "report.html").exists()


def test_the_demo_prints_the_secret_that_a_search_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "secret", "--store", str(tmp_path / "store")]) == 0
    printed = capsys.readouterr().out
    assert "shown. The model gives away information about 1 of 1 inserted canary." in printed
    inserted = re.search(r"My access code is (\d{6})", printed)
    assert inserted is not None
    assert printed.count(inserted[1]) == 2  # and found
    files = [
        path for path in Path(Store(str(tmp_path / "store")).uri).rglob("*") if path.is_file() and "secret" not in path.parts
    ]
    assert not [path for path in files if path.suffix in (".json", ".html", ".svg") and inserted[1] in path.read_text()]


def test_the_name_of_an_unknown_demo_is_answered_by_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "nothing"]) == 2
    assert "members" in capsys.readouterr().err
