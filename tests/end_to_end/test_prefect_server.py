"""A run on a Prefect server: named by its id, with logs and a summary; reused stages end in the state Cached."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, prefect_server

from deployments.local.api import step_of


@pytest.fixture
def api(memlib: Memlib, tmp_path: Path) -> Iterator[str]:
    with prefect_server(memlib.environment, tmp_path) as url:
        yield url


def ask(url: str, **query: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(query).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


def logs(api: str) -> list[str]:
    return [log["message"] for log in ask(f"{api}/logs/filter")]


@pytest.mark.slow
def test_a_run_reports_to_the_server(memlib: Memlib, finished: tuple[Path, dict[str, Any]], api: str) -> None:
    store, first = finished
    manifest = memlib.audit_on_ray(store, PREFECT_API_URL=api)
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
        "decode examples", "split examples", "train models", "embed images", "search neighbours", "probe whole images",
        "score déjà vu", "report déjà vu",
    }  # fmt: skip
    assert "train models: model A0; model B0 (2 parts)" in {run["name"] for run in runs}
    assert [flow["name"] for flow in flows] == [f"tiny ({first['run']})"]
    (summary,) = ask(f"{api}/artifacts/filter")
    assert (summary["key"], summary["type"]) == (f"deja-vu-{first['run']}-summary", "markdown")
    assert summary["flow_run_id"] == flows[0]["id"]
    headline = next(line for line in summary["data"].splitlines() if "share\\_excess" in line)
    assert f"{first['findings'][0]['value']:.3f}" in headline
    assert first["verdict"]["sentence"] in summary["data"]
    assert "file://" not in summary["data"]
    lines = logs(api)
    assert {line for line in lines if line.endswith("found in the store")} >= {
        "decode examples: found in the store", "train models (model A0; model B0): found in the store",
    }  # fmt: skip
    more = memlib.audit_on_ray(store, "decode.k=[6]", PREFECT_API_URL=api)
    assert {flow["name"] for flow in ask(f"{api}/flow_runs/filter")} == {f"tiny ({run['run']})" for run in (first, more)}
    lines = logs(api)
    assert any(re.fullmatch(r"report déjà vu: done in .* s", line) for line in lines)
