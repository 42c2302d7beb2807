"""Hooks learn how a run ended, from the command line or the environment alone; their failure changes nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import api
from flows.cli import hooks
from flows.cli.app import main
from flows.cli.hooks import Event, Hooks, fire
from memlib.errors import RunError, UserError
from memlib.recipes.request import AuditRequest
from memlib.runs import requests
from memlib.store import Store

ENDED = Event("membership", "Wards", "/store", "a" * 12, "shown", "Members are found.", "completed")
SMALL = ["unique-feature", "--recipe", "two_moons"]


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Return the events that a hook of `keeping` got."""

    def read(name: str) -> list[dict[str, Any]]:
        file = tmp_path / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return read


def keeping(folder: Path, name: str) -> str:
    """Return a command that appends its standard input to a file, as a line."""
    script = f"import sys; open({str(folder / name)!r}, 'a').write(sys.stdin.read() + chr(10)); print('kept')"
    return f'{sys.executable} -c "{script}"'


@pytest.mark.parametrize(
    ("status", "verdict", "called"),
    [
        ("completed", "shown", ["end", "finding"]),
        ("completed", "bounded", ["end"]),
        ("failed", "", ["end", "failure"]),
        ("stopped", "", ["end"]),
    ],
)
def test_hooks_are_called_as_the_run_ended(
    tmp_path: Path,
    kept: Callable[[str], list[dict[str, Any]]],
    capfd: pytest.CaptureFixture[str],
    status: str,
    verdict: str,
    called: list[str],
) -> None:
    names = ("end", "failure", "finding")
    event = Event("membership", "Wards", "/store", "a" * 12, verdict, "", status)
    fire(Hooks(*(keeping(tmp_path, name) for name in names)), event)
    assert [name for name in names if kept(name)] == called
    for name in called:
        (said,) = kept(name)
        assert said == {
            "event": name, "run": "a" * 12, "audit": "membership", "title": "Wards", "verdict": verdict, "sentence": "",
            "store": "/store", "status": status,
        }  # fmt: skip
    assert capfd.readouterr().out == ""  # which may be JSON of the run


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (f"{sys.executable} -c 'raise SystemExit(3)' token-abc", f"{Path(sys.executable).name} ended with status 3"),
        (f"{sys.executable} -c 'import time; time.sleep(60)' token-abc", "took more than 0.3 s"),
        ("/dev/null token-abc", "null cannot be started"),
        ("http://127.0.0.1:9/token-abc", "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_a_failing_hook_is_one_warning_without_its_arguments(
    hook: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "COMMAND_SECONDS", 0.3 if "sleep" in hook else 30.0)
    monkeypatch.setattr("memlib.sharing.web.time.sleep", lambda seconds: None)
    fire(Hooks(on_end=hook), ENDED)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: the hook --on-end failed: ")
    assert said in line
    assert "token-abc" not in line


def test_a_command_runs_without_a_shell(tmp_path: Path) -> None:
    fire(Hooks(on_end=f"{sys.executable} -c pass ; touch {tmp_path}/made $(touch {tmp_path}/made)"), ENDED)
    assert not (tmp_path / "made").exists()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    """Serve an address that keeps what is posted to it."""
    posted: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook?token=abc", posted
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_gets_the_event_by_post(webhook: tuple[str, list[Any]]) -> None:
    address, posted = webhook
    fire(Hooks(on_finding=address), ENDED)
    ((kind, event),) = posted
    assert kind == "application/json"
    assert (event["event"], event["sentence"]) == ("finding", "Members are found.")


@pytest.mark.parametrize(
    "hook", ["no-such-program-abc", "'unbalanced", " ", "https://ann:s3cret@x.example/", "http://", "ftp://x.example"]
)
def test_hooks_that_cannot_be_called_are_refused_before_the_run(
    hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *SMALL, "--store", str(tmp_path / "store"), "--on-failure", hook]) == 2
    said = capsys.readouterr().err
    assert "--on-failure" in said
    assert "s3cret" not in said
    assert not (tmp_path / "store").exists()


def carried_out(outcome: Any) -> Callable[..., Any]:
    """Return a stand-in for the run of a flow: it begins a run, then ends as given."""

    def carry_out(request: AuditRequest, store: Store, *_: Any, **__: Any) -> Any:
        for listener in requests.listeners:
            listener(store.uri, "b" * 12)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return carry_out


FOUND = SimpleNamespace(run="a" * 12, verdict=SimpleNamespace(word="shown", sentence="Found."), model_dump=dict)


@pytest.mark.parametrize(
    ("outcome", "status", "event"),
    [
        (FOUND, 0, {"status": "completed", "run": "a" * 12, "verdict": "shown", "sentence": "Found."}),
        (RunError("no"), 2, {"status": "failed", "run": "b" * 12, "verdict": ""}),
        (UserError("no"), 2, {"status": "failed", "run": "b" * 12}),
        (KeyboardInterrupt(), 130, {"status": "stopped", "run": "b" * 12}),
    ],
)
def test_the_status_of_a_run_is_the_same_with_and_without_hooks(
    tmp_path: Path,
    kept: Callable[[str], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    outcome: Any,
    status: int,
    event: dict[str, str],
) -> None:
    monkeypatch.setattr(api, "carry_out", carried_out(outcome))
    command = ["run", *SMALL, "--store", str(tmp_path / "store"), "--json"]
    assert main(command) == status
    assert main([*command, "--on-end", f"{sys.executable} -c 'raise SystemExit(1)'"]) == status
    monkeypatch.setenv("MEMLIB_ON_END", keeping(tmp_path, "end"))
    assert main(command) == status
    (said,) = kept("end")
    assert said | event == said
    assert (said["audit"], said["store"]) == ("unique-feature", str(tmp_path / "store"))
    assert said.keys() == {"event", "run", "audit", "title", "verdict", "sentence", "store", "status"}
    assert requests.listeners == []


@pytest.mark.parametrize("key", ["on_end", "hooks", "resources.on_end", "data.on_end"])
def test_a_recipe_that_names_a_hook_is_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text("extends: two_moons\n")
    assert (
        main(["run", str(tmp_path / "recipe.yaml"), "--set", f"{key}=touch {tmp_path}/made", "--store", str(tmp_path / "s")])
        == 2
    )
    assert key.rpartition(".")[2] in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_hook_in_the_request_of_a_store_is_not_called_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Callable[[str], list[dict[str, Any]]]
) -> None:
    monkeypatch.setattr(api, "carry_out", carried_out(FOUND))
    store = Store(str(tmp_path / "store"))
    recipe = AuditRequest.of_command("two_moons", None, []).recipe.model_dump(mode="json")
    planted = {name: keeping(tmp_path, "planted") for name in ("on_end", "on_failure", "on_finding")}
    request = {
        "run": "b" * 12, "audit": "unique-feature", "title": "t", "started": 1.0, "recipe": recipe, "hooks": planted, **planted
    }  # fmt: skip
    store.publish(f"requests/{'b' * 12}-0.json", json.dumps(request).encode(), secret=True)
    assert main(["resume", "bb", "--store", store.uri, "--json", "--on-finding", keeping(tmp_path, "given")]) == 0
    assert len(kept("given")) == 1
    assert kept("planted") == []
    request["resources"] = planted
    store.publish(f"requests/{'b' * 12}-0.json", json.dumps(request).encode(), secret=True)
    assert main(["resume", "bb", "--store", store.uri, "--json"]) == 2
    assert kept("planted") == []


def test_without_hooks_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(hooks, "handed_over", [lines.append])
    with hooks.reported(Hooks(), ENDED) as ending:
        ending.begin("/store", "b" * 12)
    assert not lines
    with hooks.reported(Hooks(on_end="true"), ENDED) as ending:
        ending.begin("/store", "b" * 12)
    assert json.loads(lines[-1].removeprefix(hooks.MARK))[1]["status"] == "completed"


SCRIPT = """
import os, sys, time
from flows.cli import hooks
from flows.cli.hooks import Event, Hooks, reported
from flows.cli.supervisor import ended, hand_over, supervised

def work():
    hooks.handed_over[:] = [hand_over]
    try:
        with reported(Hooks(on_end={command!r}), Event("membership", "t", "/store")) as ending:
            ending.begin("/store", "b" * 12)
            {body}
    except KeyboardInterrupt:
        return ended(130)
    return ended(0)

sys.exit(supervised(work))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs are supervised on Linux alone")
@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("pass", 0, "completed"),
        ("os.kill(os.getpid(), 9)", 75, "failed"),
        ("print('ready', flush=True); time.sleep(60)", 130, "stopped"),
    ],
)
def test_hooks_are_called_once_however_the_computing_process_ends(
    body: str, code: int, status: str, tmp_path: Path, kept: Callable[[str], list[dict[str, Any]]]
) -> None:
    script = SCRIPT.format(command=keeping(tmp_path, "end"), body=body)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    if status == "stopped":
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == code
    (said,) = kept("end")
    assert (said["status"], said["run"]) == (status, "b" * 12)
