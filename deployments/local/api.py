"""A client for the requests that Prefect's UI sends to its server."""

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from deployments.local.processes import Unexpected, wait_for

TERMINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
BUSY = 10  # times that a request is repeated while the server's database is locked (503), as Prefect's own client does


@dataclass(frozen=True)
class Api:
    """The password-protected API of a Prefect server."""

    url: str
    password: str

    def ask(self, path: str, content: Any = None, method: str | None = None) -> Any:
        """Return the response to a GET, or to a POST (or another method) if there is content.

        A server that is busy (503) has done nothing, and is asked again.

        Raises:
            Unexpected: if the server refuses, with its response.
        """
        code = base64.b64encode(self.password.encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {code}"}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        for again in reversed(range(BUSY + 1)):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503 or not again:
                    raise Unexpected(f"{path} was refused ({error.code}): {error.read().decode()[:1000]}") from error
            time.sleep(1)

    def healthy(self) -> bool:
        """Return whether the server answers and is healthy."""
        try:
            return bool(self.ask("/health"))
        except (OSError, Unexpected):
            return False

    def deployment(self, name: str) -> dict[str, Any]:
        """Return a deployment of the flow `audit`."""
        deployment: dict[str, Any] = self.ask(f"/deployments/name/audit/{name}")
        return deployment

    def flow_run(self, run: str) -> dict[str, Any]:
        """Return a flow run, as shown in the UI."""
        flow_run: dict[str, Any] = self.ask(f"/flow_runs/{run}")
        return flow_run

    def runs_of(self, deployment: str) -> list[dict[str, Any]]:
        """Return all runs of a deployment, newest first."""
        query = {"deployments": {"id": {"any_": [deployment]}}, "sort": "START_TIME_DESC"}
        runs: list[dict[str, Any]] = self.ask("/flow_runs/filter", query)
        return runs

    def ended(self, run: str, *, seconds: float = 300) -> dict[str, Any]:
        """Wait until a run is in a terminal state, and return it."""

        def done() -> dict[str, Any] | None:
            found = self.flow_run(run)
            return found if found["state_type"] in TERMINAL else None

        return wait_for(done, f"run {run} to end", seconds=seconds)

    def completed(self, run: str, *, seconds: float = 300) -> dict[str, Any]:
        """Wait until a run has ended, and return it; raise an error if it did not complete."""
        found = self.ended(run, seconds=seconds)
        if found["state_type"] != "COMPLETED":
            raise Unexpected(f"run {found['name']} ended as {found['state_name']}: {found['state']['message']}")
        return found

    def stages(self, run: str, *, since: str = "") -> dict[str, set[str]]:
        """Return the states in which the stages of a run ended, by their names.

        Args:
            run: id of the deployment's run; the stages are those of the audit within it.
            since: an ISO time; earlier tasks are left out, as those of a killed attempt stay Running for ever.
        """

        def settled() -> dict[str, set[str]] | None:
            tasks = [task for task in self._tasks(run) if (task["start_time"] or "9") >= since]
            states: dict[str, set[str]] = {}
            for task in tasks:
                states.setdefault(step_of(task["name"]), set()).add(task["state_name"])
            return states if tasks and all(task["state_type"] in TERMINAL for task in tasks) else None

        wait_for(settled, f"the stages of run {run}", seconds=60)
        time.sleep(3)  # the server processes task states one by one, as events
        return wait_for(settled, f"the stages of run {run}", seconds=60)

    def _tasks(self, run: str) -> list[dict[str, Any]]:
        within = self.ask("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
        ids = [flow["id"] for flow in within]
        tasks: list[dict[str, Any]] = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": ids}}}) if ids else []
        return tasks

    def retry(self, run: str) -> None:
        """Retry a run, as the UI's Retry button does."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        answer = self.ask(f"/flow_runs/{run}/set_state", {"state": state, "force": True})
        if answer["status"] != "ACCEPT":
            raise Unexpected(f"the retry of run {run} was answered with {answer['status']}: {answer['details']}")


def step_of(name: str) -> str:
    """Return the step of an audit in a task run's name, such as `train models: model A0; model B0 (2 parts)`."""
    return name.partition(": ")[0].partition(" (")[0]
