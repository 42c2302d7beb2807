"""flows.run: the command's audit, called from a program; the run is the same that memlib.run computes."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness import Memlib

from memlib import open as open_run

RECIPE = Path(__file__).parents[2] / "deployments/starters/self_influence.yaml"
PROGRAM = """
import sys

import flows
import memlib

changes = {"training.epochs": 12, "data.source.num_examples": 100, "split.validation_per_class": 10}
if __name__ == "__main__":
    run = flows.run(sys.argv[1], store=sys.argv[2], changes=changes, resources={"workers_per_model": 1}, quiet=True)
    again = memlib.run(sys.argv[1], store=sys.argv[2], changes=changes)
    assert again.record.computed == [], again.record.computed
    print(run.id, again.id, run.record.resources["workers_per_model"])
"""


@pytest.mark.long
def test_a_program_runs_an_audit_on_prefect_and_ray(served: Memlib, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", str(RECIPE), "store"]
    ended = subprocess.run(command, cwd=tmp_path, env=served.environment, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second, workers = ended.stdout.split()
    assert first == second
    assert workers == "1"
    run = open_run(first, store=str(tmp_path / "store"))
    assert run.verdict.word == "descriptive"
    assert "Traceback" not in ended.stderr
