"""The Slurm job on one machine: with stand-ins for srun and scontrol; and with Slurm itself, if it is installed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Memlib, end_session, newest, wait_for

from deployments.slurm.drill import STEPS
from deployments.slurm.services import missing, search_path

JOB = Path(__file__).parents[2] / "deployments" / "slurm" / "audit.sbatch"
STAND_INS = {
    # the options of a step away, the rest is run here
    "srun": 'while [[ ${1:-} == --* ]]; do shift; done\nexec "$@"',
    "scontrol": 'echo "$@" >>"$SAID"; if [[ $1 == show ]]; then printf "one\\ntwo\\n"; fi',
    "hostname": "echo 127.0.0.1",
}


@pytest.fixture
def cluster(memlib: Memlib, tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in STAND_INS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "memlib").write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -m flows.cli.entry "$@"\n')
    (folder / "memlib").chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return memlib.environment | {
        "PATH": path, "HOME": str(tmp_path), "SAID": str(tmp_path / "said"), "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "[one,two]", "SLURM_CPUS_PER_TASK": "1", "SLURM_GPUS_ON_NODE": "0",
    }  # fmt: skip


def start(memlib: Memlib, cluster: dict[str, str], store: Path) -> subprocess.Popen[str]:
    command = ["bash", str(JOB), "deja-vu", "--recipe", str(memlib.recipe), "--store", str(store)]
    return subprocess.Popen(
        command, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_a_slurm_job_near_its_time_limit_is_requeued_and_continues(
    memlib: Memlib, cluster: dict[str, str], tmp_path: Path
) -> None:
    store, said = tmp_path / "store", tmp_path / "said"
    job = start(memlib, cluster, store)
    try:
        wait_for(lambda: list(store.glob("artifacts/split/*/manifest.json")), process=job)
        job.send_signal(signal.SIGUSR1)  # what Slurm does five minutes before the end
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, output
        assert f"requeue {cluster['SLURM_JOB_ID']}" in said.read_text()
        assert not list(tmp_path.glob(".memlib-ray-*"))
    finally:
        end_session(job.pid)
    again = start(memlib, cluster, store)
    try:
        output, _ = again.communicate(timeout=600)
        assert again.returncode == 0, output
        manifest = newest(store)
        assert len(manifest["reused"]) >= 2, manifest
        assert not list(tmp_path.glob(".memlib-ray-*"))
    finally:
        end_session(again.pid)


@pytest.mark.slow
def test_a_cancelled_slurm_job_is_not_queued_again(memlib: Memlib, cluster: dict[str, str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    job = start(memlib, cluster, store)
    try:
        wait_for(lambda: list(store.glob("artifacts/split/*/manifest.json")), process=job)
        job.terminate()  # what scancel does, which Slurm sends to all processes of the job
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 143, output
        assert "requeue" not in (tmp_path / "said").read_text()
        assert not list(tmp_path.glob(".memlib-ray-*"))
    finally:
        end_session(job.pid)


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the drill reads /proc")
@pytest.mark.skipif(bool(missing(search_path())), reason=missing(search_path()))
def test_every_step_of_the_slurm_drill_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deployments.slurm.drill"]
    root = str(JOB.parents[2])
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=3900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" | ok | ") == len(STEPS), done.stdout
