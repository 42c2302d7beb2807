"""Failures between machines, where root can make them of namespaces."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.cluster.drill import STEPS
from deployments.cluster.machines import THROTTLE, missing
from deployments.local.services import postgres_binaries

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.skipif(postgres_binaries() is None, reason="no PostgreSQL: neither pg_config nor initdb is here")
def test_every_step_of_the_drill_between_machines_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deployments.cluster.drill", "--images", "8000"]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=3900, check=False)
    if "unshare failed: Operation not permitted" in done.stderr:
        pytest.skip("root may not make namespaces here")
    assert done.returncode == 0, done.stdout + done.stderr
    slowed = THROTTLE.exists()  # without it, the step of the slow disk is not here
    assert done.stdout.count(" | ok | ") == len(STEPS) - (not slowed), done.stdout
