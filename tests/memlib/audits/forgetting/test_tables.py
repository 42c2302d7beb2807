"""Forgetting of rows of a table: no step expects images."""

from pathlib import Path
from typing import Any

import pytest

import memlib

RECIPE: dict[str, Any] = {
    "audit": "forgetting", "title": "rows", "data": {"source": {"kind": "breast_cancer"}},
    "sets": {"query": {"per_class": 15}, "known": {"per_class": 15}, "withheld": {"per_class": 30}, "calibration": {"per_class": 20}},
    "model": {"architecture": "mlp", "widths": [8]},
    "training": {"objective": {"kind": "supervised"}, "epochs": 1, "batch_size": 20, "augment": None},
    "seeds": 2, "targets": {"half": {"mix": {"calibration": 1, "known": 1, "query": 0.5}}},
    "verdict": {"models": 3}, "score": {"permutations": 999, "replicates": 100}, "report": {"gallery": 3},
}  # fmt: skip


def test_rows_of_a_table_are_audited_and_listed_without_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = memlib.run(RECIPE, store="store", quiet=True)
    assert run.verdict.word == "inconclusive"
    page = Path(run.report).read_text(encoding="utf-8")
    section = page[page.index("<summary>Examples with the strongest signal") :]
    listed = [name for name in set(run.tables["examples"]["example_id"].to_pylist()) if f">{name}</td>" in section]
    assert len(listed) == 3
    assert "<img" not in section[: section.index("<summary>Overlap with D_Q")]
