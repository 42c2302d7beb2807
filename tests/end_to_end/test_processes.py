"""Whoever ends a run, and whenever: one line and a status, no process left, and a record; no port that is open to others."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import Memlib, end_session, wait_for

from flows.cli.supervisor import INSISTING, STOPPED, STOPPED_LINE

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs are guarded on Linux alone"),
]

TRIES, MORE_TRIES = 5, 20
LAST_START = 14.0  # seconds in which a tiny audit loads its libraries, starts Ray and trains


def of_job(mark: str) -> Iterator[psutil.Process]:
    """Yield the living processes that were started with a mark in their environment, whatever their session."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and process.environ().get("JOB_MARK") == mark:
                yield process


def wait_until_gone(mark: str) -> None:
    end = time.monotonic() + 60
    while (left := list(of_job(mark))) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


@pytest.mark.parametrize(
    "number", [number if number < TRIES else pytest.param(number, marks=pytest.mark.slow) for number in range(MORE_TRIES)]
)
def test_a_signal_to_all_processes_of_a_job_stops_the_run_with_one_line(memlib: Memlib, tmp_path: Path, number: int) -> None:
    """Slurm, systemd and timeout(1) signal each process, so that Ray and Prefect's server end at the same time."""
    mark, store = f"{tmp_path}", tmp_path / "store"
    process = memlib.start(store, JOB_MARK=mark)
    time.sleep(1 + (LAST_START - 1) * ((number * 7) % MORE_TRIES) / MORE_TRIES)
    for member in of_job(mark):
        with contextlib.suppress(psutil.Error):
            member.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=INSISTING[-1][0] + 60)
    assert process.returncode == STOPPED, said
    assert STOPPED_LINE in said.splitlines()
    assert [line for line in said.splitlines() if line.startswith("memlib:") and line != STOPPED_LINE] == []
    assert "Traceback" not in said
    wait_until_gone(mark)
    assert all(json.loads(path.read_text())["state"] == "stopped" for path in store.glob("status/*.json"))


def test_workers_have_the_priority_of_a_command_which_is_killed_and_leaves_no_process(memlib: Memlib, tmp_path: Path) -> None:
    """Workers of a lower priority, which Ray prefers, would hardly get on beside another program."""
    mark, store = f"{tmp_path}", tmp_path / "store"
    process = memlib.start(store, JOB_MARK=mark)

    def priorities() -> set[int]:
        found = set()
        for member in of_job(mark):
            with contextlib.suppress(psutil.Error):
                if "ray::" in " ".join(member.cmdline()):
                    found.add(member.nice())
        return found

    assert wait_for(priorities, process=process) == {os.getpriority(os.PRIO_PROCESS, 0)}
    wait_for(lambda: list(store.glob("status/*.json")), process=process)  # Ray starts before the run begins
    process.kill()
    process.wait(timeout=300)
    wait_until_gone(mark)
    (status,) = (json.loads(path.read_text()) for path in store.glob("status/*.json"))
    assert (status["state"], status["problem"]) == ("failed", "the memlib command was killed")


@pytest.mark.slow
def test_workers_that_share_a_model_open_no_port_of_their_own(memlib: Memlib, tmp_path: Path) -> None:
    """Ray's port requires a token; a port of torch's TCPStore would be open to everybody."""
    settings = ("workers_per_model=2", "threads_per_worker=1", "resume_seconds=0")
    process = memlib.start(tmp_path / "store", *(f"resources.{setting}" for setting in settings))
    try:
        most = 0
        while process.poll() is None and most < 2:
            most = max(most, _meeting(process))
            time.sleep(0.05)
        assert most == 2
        found = [_open_ports(worker) for worker in _workers(process) for _ in range(3)]
        assert found
        assert max(found) <= 1
    finally:
        end_session(process.pid)


def _meeting(process: subprocess.Popen[str]) -> int:
    """The number of workers that are connected to each other over loopback by gloo."""
    found = 0
    for worker in _workers(process):
        with contextlib.suppress(psutil.Error):
            ends = [c for c in worker.net_connections("inet") if c.status == psutil.CONN_ESTABLISHED and c.raddr]
            theirs = {
                c.laddr.port for other in _workers(process) if other.pid != worker.pid for c in other.net_connections("inet")
            }
            found += any(c.raddr.ip == "127.0.0.1" and c.raddr.port in theirs for c in ends)
    return found


def _workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for other in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(other.pid) == process.pid and "RayTrainWorker" in " ".join(other.info["cmdline"] or ()):
                found.append(other)
    return found


def _open_ports(worker: psutil.Process) -> int:
    """The number of ports on which a process listens beyond loopback."""
    try:
        listening = [c for c in worker.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return 0
    return len({c.laddr.port for c in listening if c.laddr.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")})
