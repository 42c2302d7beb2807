"""Prefect on PostgreSQL, as in production: runs, a kill, a retry and a schedule, through the server's API."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.local.drill import STEPS
from deployments.local.services import postgres_binaries

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the drill reads /proc")
@pytest.mark.skipif(postgres_binaries() is None, reason="no PostgreSQL: neither pg_config nor initdb is here")
def test_every_step_of_the_deployment_drill_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deployments.local.drill"]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") == len(STEPS), done.stdout
