"""Audits on a schedule, on one machine: a Prefect server if none is configured, a process that serves the deployments, and a
watch that starts both again when they die, runs crashed runs again, and prints a line for each run that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memlib.errors import UserError
from memlib.sanitize import plain
from memlib.store.permissions import PRIVATE, make_folder, write_file

HOST = "127.0.0.1"
LOOK_SECONDS, START_SECONDS, END_SECONDS = 5.0, 180.0, 20.0
ATTEMPTS = 3  # of a run, in all
AGAIN = "again-of:"  # tag of a run that repeats a crashed one
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Served:
    """Deployments that are served on this machine.

    Args:
        deployments: name, cron and parameters of each.
        folder: folder for the server's password and logs, private to its owner.
        port: port of the server that is started if PREFECT_API_URL names none.
        say: called with lines for the user.
    """

    def __init__(self, deployments: Sequence[dict[str, Any]], folder: Path, *, port: int, say: Callable[[str], None]) -> None:
        self._deployments, self._folder, self._port, self._say = deployments, folder, port, say
        self._environment = dict(os.environ)
        self._own = not os.environ.get("PREFECT_API_URL")  # whether the server is started here
        self._server: subprocess.Popen[bytes] | None = None
        self._serving: subprocess.Popen[bytes] | None = None
        self._told: set[str] = set()  # runs that ended before, or of which a line was printed
        make_folder(folder, PRIVATE.folder)

    def run(self) -> None:
        """Serve until interrupted; what dies is started again.

        Raises:
            UserError: when no server answers, or the port is taken.
        """
        if self._own:
            self._prepare_server()
        try:
            self._start()
            self._told = {run["id"] for run in self._runs() if run["state_type"] in ENDED}
            self._lost()
            while True:
                time.sleep(LOOK_SECONDS)
                if self._died():
                    self._start()
                    self._lost()
                with contextlib.suppress(OSError):
                    self._look()
        finally:
            self._end()

    def _prepare_server(self) -> None:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, self._port))
            except OSError as error:
                raise UserError(f"port {self._port} is taken ({error.strerror}); name another with --port") from error
        password = self._folder / "password"
        if not password.exists():
            write_file(password, f"admin:{secrets.token_urlsafe(24)}".encode(), PRIVATE.file)
        secret, address = password.read_text(encoding="utf-8").strip(), f"http://{HOST}:{self._port}"
        self._environment |= {
            "PREFECT_API_URL": f"{address}/api",
            "PREFECT_API_AUTH_STRING": secret,
            "PREFECT_SERVER_API_AUTH_STRING": secret,
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self._folder}/prefect.db",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        self._say(f"Prefect's pages: {address}, user admin, password in {password}")

    def _start(self) -> None:
        """Start the server and the process that serves, as far as they do not live."""
        if self._own and (self._server is None or self._server.poll() is not None):
            command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(self._port)]
            self._server = self._started(command, "server.log")
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > end or (self._server is not None and self._server.poll() is not None):
                named = f"PREFECT_API_URL is {self._environment['PREFECT_API_URL']}"
                where = f"see {self._folder / 'server.log'}" if self._own else named
                raise UserError(f"no Prefect server answers; {where}")
            time.sleep(0.5)
        if self._serving is None or self._serving.poll() is not None:
            command = [sys.executable, "-m", "flows.serving", json.dumps(list(self._deployments))]
            self._serving = self._started(command, "serving.log")

    def _started(self, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        path = self._folder / log
        path.touch(PRIVATE.file)
        with path.open("ab") as file:
            return subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    def _died(self) -> bool:
        """Return whether the server or the process that serves has died, and say so."""
        processes = {"the Prefect server": self._server, "the process that serves": self._serving}
        dead = {name: one for name, one in processes.items() if one is not None and one.poll() is not None}
        for process in dead.values():  # what it ran goes on, and would run beside its successor
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if dead:
            self._say(f"{_now()} {' and '.join(dead)} died and {'is' if len(dead) == 1 else 'are'} started again")
        return bool(dead)

    def _lost(self) -> None:
        """Mark runs whose process is gone as crashed: those that are under way although nothing serves yet."""
        for run in self._runs():
            if run["state_type"] in ("RUNNING", "PENDING", "CANCELLING"):
                state = {"type": "CRASHED", "name": "Crashed", "message": "the process that ran it is gone"}
                self._ask(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})

    def _look(self) -> None:
        """Print a line for each run that ended, and start crashed ones again."""
        for run in sorted(self._runs(), key=lambda one: str(one.get("end_time"))):
            if run["state_type"] in ENDED and run["id"] not in self._told:
                self._told.add(run["id"])
                message = (run["state"] or {}).get("message") or ""
                self._say(plain(f"{_now()} {run['parameters'].get('recipe')}: {run['state_name']}. {message}".rstrip()))
                if run["state_type"] == "CRASHED":
                    self._again(run)

    def _again(self, run: dict[str, Any]) -> None:
        """Start a crashed run again, which resumes from the store, unless that was done often enough."""
        attempts = 1 + sum(tag.startswith(AGAIN) for tag in run["tags"])
        if attempts >= ATTEMPTS:
            self._say(f"{_now()} it crashed {attempts} times and is not started again before its next time")
            return
        tags = [*run["tags"], f"{AGAIN}{run['id'][:8]}"]
        content = {"parameters": run["parameters"], "tags": tags, "state": {"type": "SCHEDULED", "name": "Scheduled"}}
        self._ask(f"/deployments/{run['deployment_id']}/create_flow_run", content)

    def _runs(self) -> list[dict[str, Any]]:
        """Return the newest runs of the deployments."""
        names = [one["name"] for one in self._deployments]
        wanted = {"deployments": {"name": {"any_": names}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 100}
        found: list[dict[str, Any]] = self._ask("/flow_runs/filter", wanted)
        return found

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            self._ask("/flow_runs/filter", {"limit": 1})
            return True
        return False

    def _ask(self, path: str, content: dict[str, Any]) -> Any:
        address = self._environment["PREFECT_API_URL"].rstrip("/")
        headers = {"content-type": "application/json"}
        if secret := self._environment.get("PREFECT_API_AUTH_STRING"):
            headers["authorization"] = f"Basic {b64encode(secret.encode()).decode()}"
        request = urllib.request.Request(f"{address}{path}", json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def _end(self) -> None:
        """End both processes, what they run first; kill what does not end."""
        for process in (self._serving, self._server):
            if process is None or process.poll() is not None:
                continue
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def serve(deployments: Sequence[dict[str, Any]]) -> None:
    """Serve deployments in this process: one run at a time; a run that is due while another is under way waits."""
    from prefect import serve as serve_all

    from flows.deployed import audit, ending_on_sigterm

    made = [
        audit.to_deployment(
            name=one["name"], cron=one["cron"], parameters=one["parameters"], tags=["memlib"], description=one["title"]
        )
        for one in deployments
    ]
    with ending_on_sigterm():
        serve_all(*made, limit=1, pause_on_shutdown=False, print_starting_message=False)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
