"""Processes that are all found again, whatever they started and whoever was killed. Linux: reads /proc."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

MARK = "MEMLIB_DRILL"
T = TypeVar("T")


class Unexpected(RuntimeError):
    """The drill saw something else than it should."""


def start(command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, its output in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Asks a process to end, and ends it when it does not."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


def call(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> str:
    """Runs a command that must succeed and returns what it prints."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        raise Unexpected(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    output: str = done.stdout
    return output


def wait_for(condition: Callable[[], T | None], what: str, *, seconds: float = 300) -> T:
    """What the condition returns as soon as it is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.3)
    raise Unexpected(f"waited {seconds:.0f} seconds in vain for {what}")


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def descendants(pid: int) -> list[int]:
    """A process's children, their children and so on."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it ended while we looked
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def kill(pids: Sequence[int]) -> None:
    """kill -9, as when memory or the machine is gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def marked(mark: str) -> Iterator[int]:
    """The processes whose environment carries the drill's mark, orphans too."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0") and int(folder.name) != os.getpid():
            yield int(folder.name)


def kill_marked(mark: str) -> None:
    """Ends all of them, and what they start meanwhile."""
    for _ in range(20):
        found = list(marked(mark))
        if not found:
            return
        kill(found)
        time.sleep(0.2)
