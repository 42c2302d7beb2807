"""Runs in process, on Ray, beside other work, and killed and resumed, give the same bytes."""

from pathlib import Path

import pytest

from benchmarks import equality


@pytest.mark.slow
def test_four_runs_of_a_smoke_are_equal_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["equality", "--folder", str(tmp_path), "--recipe", "self_influence_smoke"])
    assert equality.main() == 0
    found = equality.content_of(tmp_path / "self_influence_smoke" / "killed")
    assert sum(name.endswith(".safetensors") for name in found) == 60
