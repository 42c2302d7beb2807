"""Every part of the validity study runs: its first unit, and its report of it, so that a rename breaks a test and no table."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validity.__main__ import parts
from benchmarks.validity.harness import carry_out, made

LONG = ("smoke",)  # a whole audit, which the README's first command runs
QUICK = {"gate", "membership-epsilon", "persons-views"}  # whose first unit takes less than a second
ROWS = Path(__file__).with_name("rows.json")  # the row of the first unit of each part, written by this file as a program
TINY = {  # scenes and trainings of reconstructions, which draw nothing that could be told from noise
    "data.source.num_examples": 400, "split.train_per_class": 3, "split.public_per_class": 12, "training.epochs": 2,
    "training.batch_size": 20, "reconstruct.images": 30, "reconstruct.samples": 2, "reconstruct.steps": 2,
    "reconstruct.baseline": None, "reconstruct.judge": {"model": {"width": 8, "projector": []}, "epochs": 1},
    "reconstruct.generator": {
        "model": {"channels": [8, 8], "input_size": 16},
        "training": {"epochs": 1, "batch_size": 32, "objective": {"kind": "denoising", "ema": 0.0}},
    },
}  # fmt: skip
FEW_PAIRS = {
    "data.source.num_examples": 480, "split.train_per_class": 50, "split.public_per_class": 300, "split.extra_per_class": 50,
    "training.batch_size": 25, "training.epochs": 2,
}  # fmt: skip
REDUCED: dict[str, dict[str, Any]] = {  # repetitions and sizes within a unit, which take most of its time
    "exposure-recurring": {"exposure.SINGLE_REDRAWS": 20, "exposure.SINGLE_NETS": 1}, "own-model": {"unique_feature.OWN_NETS": 1},
    "exposure-file": {"exposure.REDRAWS": 3, "exposure.NETS": 1}, "exposure-variants": {"exposure.VARIANT_REDRAWS": 3, "exposure.VARIANTS": 2},
    "deja-vu-bounds": {"deja_vu.SIMULATED": 20}, "deja-vu-power": {"persons.POWER_DRAWS": 20},
    "captions-null": {"captions.SMALL": FEW_PAIRS, "captions.REDRAWS": 3}, "captions-plant": {"captions.SMALL": FEW_PAIRS},
    "reconstruction-null": {"reconstruction.SMALL": TINY, "reconstruction.REDRAWS": 3},
    "reconstruction-plant": {"reconstruction.PLANTED": TINY},
    "membership-level": {"membership.LEVEL_WORLDS": 2}, "membership-plant": {"membership.PLANT_WORLDS": 1},
    "membership-epsilon": {"membership.PRIVATE_WORLDS": 2}, "membership-leaks": {"membership.LEAK_WORLDS": 1},
    "membership-bounded": {"membership.BOUNDED_WORLDS": 1},
    "deja-vu-null": {"deja_vu.REDRAWS": 3}, "deja-vu-alone-null": {"deja_vu_alone.REDRAWS": 2},
    "deja-vu-alone-plant": {"deja_vu_alone.GUILTY": 2}, "deja-vu-looks": {"persons.LOOK_DRAWS": 20},
    "persons-alone": {"persons.REDRAWS": 20}, "persons-intervals": {"persons.REDRAWS": 20}, "gate": {"gate.REPEATS": 20},
    "declared-coins": {"declared.WORLDS": 2}, "declared-data-sets": {"declared.WORLDS": 2}, "declared-sets": {"persons.SET_DRAWS": 20},
    "declared-documents": {
        "declared.FIRST": 60, "declared.PRETRAINED": 1, "declared.TUNED": 1, "declared.LONG": 1, "declared.DRAWS": 1,
        "declared.OF_EACH": 60, "declared.ON_A_SIDE": 20,
    },
    "sweep-trends": {"sweeps.SWEEPS": 20}, "stated-power": {"power.WORLDS": 4}, "deja-vu-designs": {"deja_vu.DESIGNED": 400}, "persons-views": {"persons.VIEW_DRAWS": 400}, "forgetting-forests": {"forests.FORESTS": 1}, "forgetting-innocent": {"forgetting.REDRAWS": 10},
    "look": {"look.BATCH": 2}, "canaries-looks": {"canaries.BATCH": 4},
    "documents-attacks": {"fine_tunes.MOST_DOCUMENTS": 480, "fine_tunes.PRETRAINED": 1}, "served-canaries": {"served.CANARIES": 24},
    "served-scores": {"served.DOCUMENTS": 60},
}  # fmt: skip


def cases() -> Iterator[object]:
    for name in parts():
        if name not in LONG:
            yield name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


def first_row(name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Compute the first unit of a part, reduced, and return its row."""
    patch.setattr("benchmarks.validity.harness.RESULTS", folder)
    for place, reduced in REDUCED.get(name, {}).items():
        patch.setattr(f"benchmarks.validity.{place}", reduced)
    part = parts()[name]
    first = next(iter(part.units()))
    (row,) = carry_out(type(part)(part.name, part.question, lambda: [first], part.compute, part.report), minutes=5)
    assert row["unit"] == first
    return row


def assert_reported(name: str, row: dict[str, Any]) -> None:
    part = parts()[name]
    lines = [made([row]), *part.report([row])]
    assert "1 units" in lines[0]
    assert any(line.startswith("|") for line in lines)


def form(value: Any) -> Any:
    """Return the names and kinds of a row, without its numbers; lists and optional values may have any."""
    return {key: form(inner) for key, inner in value.items()} if isinstance(value, dict) else isinstance(value, str)


def test_every_part_is_imported_and_reports_a_stored_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = json.loads(ROWS.read_text())
    assert set(rows) == set(parts()) - set(LONG), (
        "python tests/benchmarks/test_validity_parts.py PART stores the row of a new one"
    )
    assert set(rows) >= QUICK
    for name, row in rows.items():
        assert next(iter(parts()[name].units())) == row["unit"]
        assert_reported(name, row)


@pytest.mark.long
@pytest.mark.parametrize("name", cases())
def test_every_validity_part_computes_and_reports_its_first_unit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_data: Path
) -> None:
    monkeypatch.setenv("MEMLIB_DATA", str(real_data))
    row = first_row(name, tmp_path, monkeypatch)
    assert_reported(name, row)
    assert form(row) == form(json.loads(ROWS.read_text())[name])


def write(names: list[str]) -> None:
    """Store the rows of the first units of new parts, or of those whose rows have changed."""
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            rows[name] = first_row(name, Path(folder), patch)
        lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
        ROWS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    import sys

    write(sys.argv[1:] or [name for name in parts() if name not in LONG])
