"""Stages named in settings must exist, a sweep uses its recipe's resources, and no proxy is used for this machine."""

import urllib.request
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import check_stages
from memlib.errors import UserError
from memlib.recipes.files import load_recipe


def test_check_stages_accepts_stages_of_the_audit_or_of_any_cell() -> None:
    check_stages(AUDITS["exposure"], ["corpus", "train"])
    check_stages(AUDITS["sweep"], ["corpus", "train_nets", "embed"])
    for audit in ("deja-vu", "sweep"):
        with pytest.raises(UserError, match="has no stage 'scor_nets'; it has decode_block, decode, "):
            check_stages(AUDITS[audit], ["scor_nets"])


def test_resources_for_an_unknown_stage_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--set", "resources.stages.trian.timeout=5"]
    assert main(["plan", "deja-vu", "--recipe", "smoke", "--store", str(tmp_path), *wrong]) == 2
    assert "has no stage 'trian'" in capsys.readouterr().err


def test_a_sweep_inherits_the_resources_of_its_base_recipe(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: smoke\nresources: {ray_address: auto, max_failures: 1}")
    (tmp_path / "sweep.yaml").write_text("audit: sweep\nrecipe: base.yaml\ncells: [{name: a}]\nresources: {max_failures: 2}")
    _, machines = load_recipe(str(tmp_path / "sweep.yaml"))
    assert machines == {"ray_address": "auto", "max_failures": 2}
    (tmp_path / "odd.yaml").write_text("audit: sweep\nrecipe: smoke\ncells: 3")
    assert main(["plan", "sweep", "--recipe", str(tmp_path / "odd.yaml"), "--store", str(tmp_path)]) == 2


def test_commands_bypass_the_http_proxy_for_the_local_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    monkeypatch.setenv("no_proxy", "")
    assert not urllib.request.proxy_bypass("127.0.0.1")
    assert main(["runs", "--store", str(tmp_path / "none")]) == 2
    assert all(urllib.request.proxy_bypass(host) for host in ("127.0.0.1", "localhost", "inside.example"))
    assert not urllib.request.proxy_bypass("outside.example")
