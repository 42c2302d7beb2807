"""A run on a Prefect server: reused stages end in the state Cached; tables and report are artifacts."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, prefect_server

from deployments.local.api import step_of


@pytest.fixture
def api(standalone: Memlib, tmp_path: Path) -> Iterator[str]:
    with prefect_server(standalone.environment, tmp_path) as url:
        yield url


def ask(url: str, **query: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(query).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


@pytest.mark.slow
def test_a_run_reports_to_the_server(memlib: Memlib, finished: tuple[Path, dict[str, Any]], api: str) -> None:
    store, first = finished
    manifest = memlib.audit(store, PREFECT_API_URL=api)
    assert manifest["run"] == first["run"]
    flows = ask(f"{api}/flow_runs/filter")
    assert [flow["state_name"] for flow in flows] == ["Completed"]
    states: dict[str, str] = {}
    for _ in range(30):  # the server takes task states in as events, a little later
        runs = ask(f"{api}/task_runs/filter")
        states = {step_of(run["name"]): run["state_name"] for run in runs}
        if len(states) == 9 and set(states.values()) == {"Cached", "Completed"}:
            break
        time.sleep(1)
    assert {name for name, state in states.items() if state == "Cached"} == {
        "decode images", "split examples", "train models", "embed images", "search neighbours", "probe whole images",
        "score déjà vu", "report déjà vu",
    }  # fmt: skip
    assert "train models: model A0; model B0 (2 parts)" in {run["name"] for run in runs}
    artifacts = {artifact["key"]: artifact for artifact in ask(f"{api}/artifacts/filter")}
    assert {artifact["key"].rpartition("-")[2]: artifact["type"] for artifact in artifacts.values()} == {
        "summary": "table", "report": "markdown", "figure": "markdown"
    }  # fmt: skip
    table = json.loads(artifacts[f"deja-vu-{first['run']}-summary"]["data"])
    assert table[0]["metric"] == "share_excess"
