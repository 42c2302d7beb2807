"""Every part of the validity study runs: its first unit, and its report of it, so that a rename breaks a test and no table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validity.__main__ import parts
from benchmarks.validity.harness import carry_out, heading

LONG = ("smoke",)  # a whole audit, which the README's first command runs
SLOW = {  # whose first unit takes more than ten seconds
    "exposure-documents", "exposure-intervals", "unique-feature-coverage", "own-model", "declared-sets", "words",
    "reconstruction-null", "reconstruction-plant", "forgetting-innocent", "forgetting-guilty", "forgetting-forgotten",
    "forgetting-bought", "persons-trained-views", "deja-vu-alone-plant", "exposure-file", "exposure-recurring",
    "exposure-epsilon", "unique-feature-null",
}  # fmt: skip
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
    "sweep-trends": {"sweeps.SWEEPS": 20}, "forgetting-forests": {"forests.FORESTS": 1},
}  # fmt: skip


def cases() -> Iterator[object]:
    for name in parts():
        if name not in LONG:
            yield pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name


def test_slow_parts_are_a_subset_of_all_parts() -> None:
    assert set(parts()) >= SLOW


@pytest.mark.long
@pytest.mark.parametrize("name", cases())
def test_every_validity_part_computes_and_reports_its_first_unit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_data: Path
) -> None:
    monkeypatch.setattr("benchmarks.validity.harness.RESULTS", tmp_path)
    monkeypatch.setenv("MEMLIB_DATA", str(real_data))
    for place, reduced in REDUCED.get(name, {}).items():
        monkeypatch.setattr(f"benchmarks.validity.{place}", reduced)
    part = parts()[name]
    first = next(iter(part.units()))
    (row,) = carry_out(type(part)(part.name, part.question, lambda: [first], part.compute, part.report), minutes=5)
    assert row["unit"] == first
    lines = [*heading(part, [row]), *part.report([row])]
    assert lines[0] == f"## {name}"
    assert any(line.startswith("|") for line in lines)
