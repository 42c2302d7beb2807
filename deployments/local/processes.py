"""Processes that can all be found and ended, including descendants and orphans. Linux only, as it reads /proc."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

MARK = "MEMLIB_DRILL"
CALL_SECONDS = 600
T = TypeVar("T")


class Unexpected(RuntimeError):
    """An observation of the drill that differs from what is expected."""


def start(command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a new session, with its output in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


def call(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> str:
    """Run a command that must succeed, and return its output."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CALL_SECONDS, **options)
    except subprocess.TimeoutExpired:
        raise Unexpected(f"{' '.join(command)} did not end within {CALL_SECONDS} seconds") from None
    if done.returncode != 0:
        raise Unexpected(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    output: str = done.stdout
    return output


def wait_for(condition: Callable[[], T | None], what: str, *, seconds: float = 300) -> T:
    """Wait until the condition returns a true value, and return that value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.3)
    raise Unexpected(f"waited {seconds:.0f} seconds in vain for {what}")


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it has ended in the meantime
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def kill(pids: Sequence[int]) -> None:
    """Send SIGKILL to the processes, as if memory had run out or the machine were lost."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def marked(mark: str) -> Iterator[int]:
    """Yield the processes whose environment contains the drill's mark, including orphans."""
    yield from with_variable(MARK, mark)


def with_variable(name: str, value: str) -> Iterator[int]:
    """Yield the other processes that were started with this value of an environment variable."""
    wanted = f"{name}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0") and int(folder.name) != os.getpid():
            yield int(folder.name)


def kill_marked(mark: str) -> None:
    """Kill all marked processes, and those that they start in the meantime."""
    for _ in range(20):
        processes = list(marked(mark))
        if not processes:
            return
        kill(processes)
        time.sleep(0.2)
