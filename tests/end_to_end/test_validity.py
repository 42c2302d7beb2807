"""Audits find planted memory, and show none where there is none. Minutes each: make test-slow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, newest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def headline(manifest: dict[str, Any]) -> dict[tuple[str, float | None], dict[str, Any]]:
    found = {}
    for row in reversed(manifest["findings"]):  # the headline's rows come first, so they stay
        params = json.loads(row["params"])
        if params.get("direction") == "both":
            found[row["metric"], params.get("p")] = row
    return found


@pytest.mark.parametrize("recipe", ["smoke", "scenes_vicreg"])
def test_on_scenes_the_target_shows_memory_and_the_reference_is_at_chance(
    memlib: Memlib, tmp_path: Path, recipe: str
) -> None:
    done = memlib.call_on_ray("run", "deja-vu", "--recipe", recipe, "--store", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = headline(newest(tmp_path))
    reference = found["accuracy_reference", 1.0]
    assert reference["ci_low"] <= json.loads(reference["params"])["chance"] <= reference["ci_high"]
    assert found["share_excess", None]["verdict"] == "shown"
    assert found["share_excess", None]["p_value"] < 1e-4
    assert found["deja_vu_score", 0.2]["verdict"] == "shown"


@pytest.mark.parametrize("benchmark", ["null_coverage", "calibration"])
def test_benchmarks_of_null_coverage_and_calibration_pass(benchmark: str) -> None:
    done = subprocess.run([sys.executable, ROOT / f"benchmarks/{benchmark}.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
