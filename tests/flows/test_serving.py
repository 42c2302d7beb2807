"""Served flows: scripts without a guard are refused, crashed runs are started again, and each run has a line."""

import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from flows import serving
from flows.cli.serve import serve
from flows.deployed import check_guarded, ending_on_sigterm
from flows.serving import Served
from memlib.errors import UserError


def test_a_script_without_a_guard_is_refused_in_one_line(tmp_path: Path) -> None:
    script = types.SimpleNamespace(__file__=str(tmp_path / "serve_it.py"))
    Path(script.__file__).write_text("from flows.deja_vu import deja_vu\ndeja_vu.serve()\n")
    with pytest.raises(UserError, match=r'^serve_it\.py: put the call of serve below `if __name__ == "__main__":`'):
        check_guarded(script)
    Path(script.__file__).write_text("from flows.deja_vu import deja_vu\nif __name__ == '__main__':\n    deja_vu.serve()\n")
    check_guarded(script)
    check_guarded(types.SimpleNamespace())  # python -c


def test_the_serve_of_each_audits_flow_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.self_influence import self_influence

    script = tmp_path / "it.py"
    script.write_text("")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    with pytest.raises(UserError, match=r"^it\.py: "):
        self_influence.serve(name="never")


def test_a_runner_ends_on_sigterm_as_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.runner import Runner

    before, raised = Runner.handle_sigterm, []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with ending_on_sigterm():
        Runner.handle_sigterm(None, signal.SIGTERM, None)  # type: ignore[arg-type]
    assert raised == [signal.SIGINT]
    assert Runner.handle_sigterm is before


class Watched(Served):
    """A watch of runs that a test makes up."""

    runs: list[dict[str, Any]]
    asked: list[tuple[str, dict[str, Any]]]

    def _runs(self) -> list[dict[str, Any]]:
        return self.runs

    def _ask(self, path: str, content: dict[str, Any]) -> Any:
        self.asked.append((path, content))


def run_of(number: int, state: str, message: str = "", tags: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "id": f"{number:08d}-0000", "state_type": state.upper(), "state_name": state, "state": {"message": message},
        "tags": ["memlib", *tags], "deployment_id": "d", "parameters": {"recipe": "photos.yaml"}, "end_time": str(number),
    }  # fmt: skip


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Watched, list[str]]:
    lines: list[str] = []
    found = Watched([{"name": "photos"}], tmp_path / "serve", port=1, say=lines.append)
    found.runs, found.asked = [], []
    return found, lines


def test_each_run_has_one_line_and_a_crashed_one_is_started_again(watched: tuple[Watched, list[str]]) -> None:
    watch, lines = watched
    watch.runs = [run_of(1, "Completed", "Photos: shown."), run_of(2, "Running"), run_of(3, "Crashed", "gone")]
    watch._look()
    watch._look()
    assert [line.split("UTC ")[1] for line in lines] == [
        "photos.yaml: Completed. Photos: shown.",
        "photos.yaml: Crashed. gone",
    ]
    ((path, content),) = watch.asked
    assert path == "/deployments/d/create_flow_run"
    assert content["tags"] == ["memlib", "again-of:00000003"]
    assert content["parameters"] == {"recipe": "photos.yaml"}


def test_a_run_that_crashes_always_is_started_three_times_in_all(watched: tuple[Watched, list[str]]) -> None:
    watch, lines = watched
    watch.runs = [run_of(5, "Crashed", tags=("again-of:3", "again-of:4"))]
    watch._look()
    assert not watch.asked
    assert "crashed 3 times" in lines[-1]


def test_runs_whose_process_is_gone_are_marked(watched: tuple[Watched, list[str]]) -> None:
    watch, _ = watched
    watch.runs = [run_of(1, "Running"), run_of(2, "Completed"), run_of(3, "Scheduled")]
    watch._lost()
    ((path, content),) = watch.asked
    assert (path, content["state"]["type"]) == ("/flow_runs/00000001-0000/set_state", "CRASHED")


def test_the_folder_of_the_servers_password_is_private(watched: tuple[Watched, list[str]], tmp_path: Path) -> None:
    watch, lines = watched
    watch._port = 0
    watch._prepare_server()
    password = tmp_path / "serve" / "password"
    assert password.stat().st_mode & 0o77 == 0
    assert password.parent.stat().st_mode & 0o77 == 0
    assert password.read_text().partition(":")[2] not in " ".join(lines)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((["smoke"], "at two"), r"--cron 'at two' is no schedule"),
        ((["smok"], "0 2 * * *"), r"no recipe 'smok'; did you mean smoke\?"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    arguments: tuple[list[str], str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.Served, "run", lambda self: pytest.fail("it was started"))
    recipes, cron = arguments
    with pytest.raises(UserError, match=problem):
        serve(recipes, cron=cron, store=str(tmp_path / "store"))
