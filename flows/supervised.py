"""Supervision of a run in a child process, so that the loss of that process is reported in one line.

When their servers die, Ray and Prefect kill the process that they run in, or print kilobytes first. The parent process
survives, prints what happened and what to do, marks the run as failed, and ends the remaining processes. It loads no
large libraries.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

TRY_AGAIN = 75  # EX_TEMPFAIL: running the same command again resumes the work
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCONT)
ENDING_SECONDS = 10.0
END = "ended "
_told: int | None = None  # in the child: descriptor of the pipe to the parent


def supervised(work: Callable[[], int]) -> int:
    """Run a function in a child process and return its exit status.

    Supervision needs Linux; on other systems, the function runs in this process.

    Args:
        work: returns an exit status; it may also end its process.
    """
    if not sys.platform.startswith("linux") or _prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        return work()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    watched = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN}  # ignored under nohup
    watched |= {signal.SIGTSTP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)  # until sigwait takes them, so that none is lost
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        os.close(reading)
        return _in_child(work, parent, writing)
    os.close(writing)
    return _watch(child, reading, watched)


def tell(store: str, run: str) -> None:
    """Tell the parent, from the child, which run is under way, so that the parent can record how the run ends."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, json.dumps([store, run]).encode() + b"\n")


def _in_child(work: Callable[[], int], parent: int, writing: int) -> int:
    global _told
    _told = writing
    os.set_inheritable(writing, False)
    os.setpgid(0, 0)  # signals from the terminal reach only the parent, which forwards them once
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # killing the command also kills the child
    if os.getppid() != parent:
        os._exit(TRY_AGAIN)
    return work()


def _watch(child: int, reading: int, watched: set[signal.Signals]) -> int:
    status = None
    while status is None:
        number = signal.sigwait(watched)
        if number == signal.SIGCHLD:
            status = _reaped(child)
        else:
            os.kill(child, signal.SIGSTOP if number == signal.SIGTSTP else number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
    _end_leftovers()
    messages = _read(reading)
    last = messages.splitlines()[-1].decode() if messages else ""
    if last.startswith(END):
        return int(last.removeprefix(END))
    cause = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    problem = f"the computing process was lost ({cause}): Ray's or its own server died, or memory ran out"
    _mark(messages, problem)
    with contextlib.suppress(OSError):
        print(f"memlib: {problem}; run the same command again", file=sys.stderr)
    return TRY_AGAIN


def ended(status: int) -> int:
    """Tell the parent, from the child, that the work has ended with this status; later crashes are then not reported."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, f"{END}{status}\n".encode())
    return status


def _reaped(child: int) -> int | None:
    """Return the child's status if it has ended, else None; also reap orphans that this process has adopted."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    return status


def _read(reading: int) -> bytes:
    os.set_blocking(reading, False)
    content = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reading, 65_536):
            content += part
    os.close(reading)
    return content


def _mark(said: bytes, problem: str) -> None:
    """Mark the runs under way as failed in the store."""
    from memlib.errors import RunError, UserError
    from memlib.records import StatusRecord, Unreadable, parse
    from memlib.store import Store

    for line in dict.fromkeys(line for line in said.splitlines() if line.startswith(b"[")):
        with contextlib.suppress(OSError, RunError, UserError, Unreadable, ValueError):
            uri, run = json.loads(line)
            store, path = Store(uri).waiting(ENDING_SECONDS), f"status/{run}.json"
            before = parse(StatusRecord, store.published(path) or b"")
            if before.state == "running":
                status = before.model_copy(update={"state": "failed", "problem": problem, "updated": time.time()})
                store.publish(path, json.dumps(status.model_dump(), indent=1).encode(), secret=True)


def _end_leftovers() -> None:
    """End all descendants; this process has adopted those that the child started."""
    end, number = time.monotonic() + ENDING_SECONDS, signal.SIGTERM
    while (remaining := _descendants()) and time.monotonic() < end:
        for process in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        number = signal.SIGKILL  # for processes that are still alive at the next check
        next_check = time.monotonic() + 1.0
        while time.monotonic() < next_check and _descendants():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.05)


def _descendants() -> list[int]:
    """Return the descendants of this process, deepest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))

    def below(process: int) -> list[int]:
        return [inner for child in parents.get(process, []) for inner in [*below(child), child]]

    return below(os.getpid())


def _prctl(option: int, value: int) -> int:
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))
    except (OSError, AttributeError):
        return -1
