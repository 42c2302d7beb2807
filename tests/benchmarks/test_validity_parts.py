"""Every part of the validity study runs: its first unit, and its report of it, so that a rename breaks a test and no table."""

from pathlib import Path

import pytest

from benchmarks.validity.__main__ import parts
from benchmarks.validity.harness import carry_out, heading

LONG = ("smoke",)  # a whole audit, which the README's first command runs
REDUCED = {  # repetitions within a unit, which take most of its time
    "exposure-recurring": ("exposure.SINGLE_REDRAWS", 20), "own-model": ("unique_feature.OWN_NETS", 1),
    "exposure-file": ("exposure.REDRAWS", 3), "exposure-variants": ("exposure.VARIANT_REDRAWS", 3),
    "deja-vu-bounds": ("deja_vu.SIMULATED", 20), "deja-vu-power": ("persons.POWER_DRAWS", 20),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in parts() if name not in LONG])
def test_every_validity_part_computes_and_reports_its_first_unit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_data: Path
) -> None:
    monkeypatch.setattr("benchmarks.validity.harness.RESULTS", tmp_path)
    monkeypatch.setenv("MEMLIB_DATA", str(real_data))
    if name in REDUCED:
        place, count = REDUCED[name]
        monkeypatch.setattr(f"benchmarks.validity.{place}", count)
    part = parts()[name]
    first = next(iter(part.units()))
    (row,) = carry_out(type(part)(part.name, part.question, lambda: [first], part.compute, part.report), minutes=5)
    assert row["unit"] == first
    lines = [*heading(part, [row]), *part.report([row])]
    assert lines[0] == f"## {name}"
    assert any(line.startswith("|") for line in lines)
