"""However the computing process ends, its caller gets one line and a status, and no process is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from memlib.store import Store

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are watched over on Linux alone")

SCRIPT = """
import os, signal, subprocess, sys, time
from flows.cli.supervisor import ended, supervised, tell

def work():
    tell({store!r}, "0123456789ab")
    {body}

sys.exit(supervised(work))
"""
SLEEPER = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"


def as_in_a_terminal() -> None:
    """Signals as they are by default, whatever these tests were started under: nohup ignores one."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def start(folder: Path, body: str) -> subprocess.Popen[str]:
    store = Store(str(folder / "store"))
    status = {"run": "0123456789ab", "state": "running", "updated": 1.0, "stages": {}}
    store.publish("status/0123456789ab.json", json.dumps(status).encode())
    script = SCRIPT.format(store=store.uri, body=body)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_in_a_terminal,
        start_new_session=True,
    )


def state(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "store/status/0123456789ab.json").read_text())
    return found


def of_session(leader: int) -> list[int]:
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def command_of(process: psutil.Process) -> str:
    """Its command line; "" where it has ended meanwhile, as processes of another test do at any moment."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.parametrize("status", [0, 2, 75])
def test_a_process_that_ends_by_itself_keeps_its_exit_status(tmp_path: Path, status: int) -> None:
    done = start(tmp_path, f"return ended({status})")
    _, errors = done.communicate(timeout=300)
    assert (done.returncode, errors) == (status, "")
    assert state(tmp_path)["state"] == "running"  # what it says of itself is its own business


def test_a_process_with_thousands_of_runs_under_way_ends(tmp_path: Path) -> None:
    """As a sweep does: lines read at the end alone filled a pipe, and the process waited for ever."""
    done = start(tmp_path, 'for number in range(3000): tell("file:/nowhere", f"{number:012}")\n    os._exit(1)')
    _, errors = done.communicate(timeout=300)
    assert done.returncode == 75
    assert "status 1" in errors


def test_signals_that_arrive_while_an_end_is_reported_print_nothing() -> None:
    script = """
import os, signal, subprocess, sys
from flows.cli import supervisor

supervisor._told = os.open(os.devnull, os.O_WRONLY)
signal.signal(signal.SIGTERM, supervisor.heedless)
storm = subprocess.Popen([sys.executable, "-c", f"import os\\nwhile True: os.kill({os.getpid()}, 15)"])
for _ in range(6_000):  # with SIG_IGN, one in 3,000 of these calls printed a traceback
    signal.signal(signal.SIGTERM, lambda *_: None)
    supervisor.ended(130)
storm.kill()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os._exit(1)", "status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.abort()", "SIGABRT"),
        ("raise SystemExit(0)", "status 0"),  # of a library that thinks that it may
    ],
)
def test_a_lost_process_is_reported_once_and_marks_the_run_as_failed(tmp_path: Path, body: str, how: str) -> None:
    done = start(tmp_path, body)
    _, errors = done.communicate(timeout=300)
    assert done.returncode == 75
    lines = [line for line in errors.splitlines() if line.startswith("memlib: ")]
    assert lines == [line for line in lines if how in line and "run the same command again" in line]
    assert len(lines) == 1
    assert state(tmp_path)["state"] == "failed"
    assert how in state(tmp_path)["problem"]


@pytest.mark.parametrize("command", ["run", "runs"])
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_defect_prints_one_line_and_writes_its_traceback_to_a_private_log(
    command: str, is_writable: bool, tmp_path: Path
) -> None:
    script = f"""
import sys, flows.cli.app
from flows.cli.entry import command

def main():
    raise KeyError("inner")

flows.cli.app.main, sys.argv = main, ["memlib", "{command}"]
sys.exit(command())
"""
    cache = tmp_path / "cache"
    cache.mkdir() if is_writable else cache.write_text("in the way")
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 70
    line = done.stderr.splitlines()[-1]
    said = "memlib: this is a bug in memlib (KeyError); please report it with "
    if is_writable:
        (log,) = cache.glob("memlib/defects/*.log")
        assert done.stderr == f"{said}the log {log}\n"
        assert "KeyError: 'inner'" in log.read_text()
        assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    else:
        assert line == f"{said}the lines above"
        assert "KeyError: 'inner'" in done.stderr


@pytest.mark.parametrize("kibibytes", [400_000, 4_000_000])
def test_a_run_with_too_little_address_space_is_refused_before_libraries_are_loaded(kibibytes: int, tmp_path: Path) -> None:
    """Under such limits, libraries abort, crash or hang, each time at another place."""
    command = (
        f"ulimit -v {kibibytes}; {sys.executable} -m flows.cli.entry run deja-vu --recipe smoke --store {tmp_path}/store"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("memlib: there is not enough memory (the limit is ")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("error", "gibibytes", "is_of_memory"),
    [
        ("MemoryError()", 100, True),
        ("ImportError('libtorch_cpu.so: failed to map segment from shared object')", 100, True),
        ("RuntimeError('can\\'t start new thread')", 100, True),
        ("AttributeError('module torch has no attribute nn')", 6, True),
        ("AttributeError('module torch has no attribute nn')", 100, False),
        ("KeyError('inner')", 6, False),
    ],
)
def test_a_library_that_finds_too_little_memory_is_not_reported_as_a_bug(
    error: str, gibibytes: int, is_of_memory: bool, tmp_path: Path
) -> None:
    script = f"""
import resource, sys, flows.cli.app
from flows.cli.entry import command

def main():
    raise {error}

flows.cli.app.main, sys.argv = main, ["memlib", "run"]
resource.setrlimit(resource.RLIMIT_AS, ({gibibytes} * 2**30,) * 2)
sys.exit(command())
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == (2 if is_of_memory else 70)
    assert ("there is not enough memory (" in done.stderr) == is_of_memory
    assert ("bug in memlib" in done.stderr) != is_of_memory


def test_prefect_that_is_not_allowed_to_start_a_server_is_reported_in_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "flows.cli.entry",
        "run",
        "deja-vu",
        "--recipe",
        "smoke",
        "--store",
        str(tmp_path / "store"),
    ]
    environment = os.environ | {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false", "PREFECT_HOME": str(tmp_path / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("memlib: PREFECT_API_URL is not set, and PREFECT_SERVER_ALLOW")


@pytest.mark.parametrize("command", ["run", "runs"])
def test_an_interrupt_while_loading_libraries_prints_only_how_to_continue(command: str) -> None:
    script = f"""
import sys
from flows.cli.entry import command

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "flows.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["memlib", "{command}"]
sys.exit(command())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 130
    assert done.stderr == "memlib: stopped; to continue, run the same command again, or memlib resume\n"


def assert_stopped(script: str) -> None:
    """Run a script in a terminal of its own; it must say how to continue, and nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, preexec_fn=as_in_a_terminal
    )
    assert (done.returncode, done.stderr) == (
        130,
        "memlib: stopped; to continue, run the same command again, or memlib resume\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_interrupt_that_a_library_turns_into_an_error_still_counts_as_stopped(number: int) -> None:
    """pydantic's serializer turns interrupts into errors, which looked like a bug of memlib and a failed run."""
    script = f"""
import os, sys
from flows.cli import app
from flows.cli.entry import command

def serialize(*arguments, **named):
    try:
        os.kill(os.getpid(), {int(number)})
    except KeyboardInterrupt as interrupt:
        raise ValueError("KeyboardInterrupt:") from None

app.app = serialize
sys.argv = ["memlib", "runs"]
sys.exit(command())
"""
    assert_stopped(script)


def test_an_interrupt_that_arrives_in_a_destructor_stops_the_command_without_traceback() -> None:
    script = """
import os, signal, sys, time
from flows.cli import app
from flows.cli.entry import command

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)

def wait(*arguments, **named):
    Dying()
    time.sleep(2)

app.app = wait
sys.argv = ["memlib", "runs"]
sys.exit(command())
"""
    assert_stopped(script)


def test_a_crash_after_the_reported_end_does_not_change_the_exit_status(tmp_path: Path) -> None:
    done = start(tmp_path, "ended(0); os.abort()")
    assert done.wait(timeout=300) == 0


def test_no_process_outlives_the_command(tmp_path: Path) -> None:
    for body in (f"{SLEEPER}; os._exit(1)", f"{SLEEPER}; return ended(0)"):
        before = {process.pid for process in psutil.process_iter()}
        done = start(tmp_path, body)
        done.communicate(timeout=300)
        assert [p for p in psutil.process_iter() if p.pid not in before and "time.sleep(600)" in command_of(p)] == []


def test_a_suspended_command_suspends_its_work(tmp_path: Path) -> None:
    done = start(tmp_path, "print('ready', flush=True); time.sleep(2); return ended(0)")
    assert done.stdout is not None
    assert done.stdout.readline() == "ready\n"
    tree = [psutil.Process(done.pid), *psutil.Process(done.pid).children(recursive=True)]
    assert len(tree) == 3  # command, guard, work
    for number, expected in ((signal.SIGTSTP, {psutil.STATUS_STOPPED}), (signal.SIGCONT, {psutil.STATUS_SLEEPING})):
        done.send_signal(number)
        end = time.monotonic() + 20
        while {process.status() for process in tree} != expected and time.monotonic() < end:
            time.sleep(0.02)
        assert {process.status() for process in tree} == expected
    assert done.wait(timeout=300) == 0


def test_work_that_swallows_an_interrupt_is_killed(tmp_path: Path) -> None:
    body = (
        "[signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]; "
        f"{SLEEPER}; print('ready', flush=True); time.sleep(600)"
    )
    done = start(tmp_path, body)
    assert done.stdout is not None
    assert done.stdout.readline() == "ready\n"
    done.send_signal(signal.SIGTERM)
    _, errors = done.communicate(timeout=300)
    assert (done.returncode, errors) == (130, "memlib: stopped; to continue, run the same command again, or memlib resume\n")
    assert state(tmp_path)["state"] == "stopped"
    assert of_session(done.pid) == []


def test_signals_and_the_death_of_the_command_end_its_work(tmp_path: Path) -> None:
    body = (
        "[signal.signal(number, lambda *_: os._exit(ended(130))) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]; "
        "print('ready', flush=True); time.sleep(600)"
    )
    for number, expected in ((signal.SIGHUP, 130), (signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        done = start(tmp_path, body)
        assert done.stdout is not None
        assert done.stdout.readline() == "ready\n"
        done.send_signal(number)
        assert done.wait(timeout=300) == expected
        end = time.monotonic() + 20
        while of_session(done.pid) and time.monotonic() < end:
            time.sleep(0.05)
        assert of_session(done.pid) == []
        assert state(tmp_path)["state"] == ("failed" if number == signal.SIGKILL else "stopped")


def test_nothing_that_starts_threads_is_loaded_before_the_fork() -> None:
    script = "import sys, flows.cli.entry; print(*{'numpy', 'pyarrow', 'torch', 'fsspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_signal_that_ray_wraps_in_an_error_still_counts_as_stopped() -> None:
    """Prefect raises a TerminationSignal, which Ray's waiting turned into "SystemError: ... an exception set"."""
    script = """
import sys
from flows.cli import app
from flows.cli.entry import command

class TerminationSignal(BaseException):
    pass

def wait(*arguments, **named):
    try:
        raise TerminationSignal
    except TerminationSignal as interrupt:
        raise SystemError("returned a result with an exception set") from interrupt

def main():
    try:
        wait()
    except SystemError:
        raise RuntimeError("a task failed")

app.main = main
sys.argv = ["memlib", "run"]
sys.exit(command())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (
        130,
        "memlib: stopped; to continue, run the same command again, or memlib resume\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_hook_that_hangs(tmp_path: Path, number: signal.Signals) -> None:
    hook = "from flows.cli.hooks import Event, Hooks, MARK; from dataclasses import asdict; import json"
    facts = 'MARK + json.dumps([asdict(Hooks(on_end="sleep 1000")), asdict(Event("a", "t", "s", status="completed"))])'
    done = start(tmp_path, f"from flows.cli.supervisor import hand_over; {hook}; hand_over({facts}); return ended(0)")
    while not any(command_of(one).endswith("sleep 1000") for one in psutil.Process(done.pid).children(recursive=True)):
        assert done.poll() is None
        time.sleep(0.1)
    began = time.monotonic()
    done.send_signal(number)
    assert done.wait(60) == 0
    assert time.monotonic() - began < 30  # a command of a hook may take 60 s
