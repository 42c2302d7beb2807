"""Machine settings: how OpenMP's threads wait in the processes that memlib starts, and nowhere else."""

import json
import os
import subprocess
import sys

import pytest

from memlib.settings import PASSIVE, waiting
from tasks.cluster import worker_environment

OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN:
        monkeypatch.delenv(name, raising=False)


def seen_by(code: str, **environment: str) -> dict[str, str]:
    """Run code in a process of its own; return the two variables as it prints them."""
    command = f"{code}; import json, os; print(json.dumps([os.environ.get(name, '') for name in {OWN}]))"
    done = subprocess.run(
        [sys.executable, "-c", command], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return dict(zip(OWN, json.loads(done.stdout), strict=True))


COMMAND = (
    "import sys; sys.argv = ['memlib', 'audits']; from flows.cli import app, entry; app.main = lambda: 0; entry.command()"
)


def test_openmp_threads_of_command_and_workers_wait_passively() -> None:
    assert waiting() == PASSIVE
    assert PASSIVE["OMP_WAIT_POLICY"] == "passive"
    assert worker_environment(None).items() >= PASSIVE.items()
    assert seen_by(COMMAND) == PASSIVE


@pytest.mark.parametrize("code", ["import memlib; memlib.run, memlib.plan", "import flows; flows.run"])
def test_importing_memlib_or_flows_leaves_the_environment_of_the_user_unchanged(code: str) -> None:
    assert seen_by(code) == dict.fromkeys(OWN, "")


def test_a_wait_policy_set_by_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_by(COMMAND, OMP_WAIT_POLICY="active") == {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": ""}
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert waiting() == {"OMP_WAIT_POLICY": "active"}
    assert "GOMP_SPINCOUNT" not in worker_environment(None)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    assert waiting() == PASSIVE
