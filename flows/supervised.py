"""A run in a child process, so that losing it is a line and not a crash.

Ray and Prefect end the process that they live in when their own servers die, or print kilobytes first. The parent that
stays sees that, says what happened and what to do, marks the run, and ends what was left over. It loads nothing heavy.
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

TRY_AGAIN = 75  # EX_TEMPFAIL: the same command, run again, goes on
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCONT)
ENDING_SECONDS = 10.0
END = "ended "
_told: int | None = None  # in the child: where it says which run it is


def supervised(work: Callable[[], int]) -> int:
    """Carries out some work in a child process and returns its exit status.

    Where the system cannot watch over children (it needs Linux), the work is done in this process.

    Args:
        work: returns an exit status; it may also end the process it is in.
    """
    if not sys.platform.startswith("linux") or _prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        return work()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    watched = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN}  # as under nohup
    watched |= {signal.SIGTSTP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)  # until they are waited for: none is lost
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        os.close(reading)
        return _in_child(work, parent, writing)
    os.close(writing)
    return _watch(child, reading, watched)


def tell(store: str, run: str) -> None:
    """Says, in the child, which run is under way, so that its end can be noted whatever ends it."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, json.dumps([store, run]).encode() + b"\n")


def _in_child(work: Callable[[], int], parent: int, writing: int) -> int:
    global _told
    _told = writing
    os.set_inheritable(writing, False)
    os.setpgid(0, 0)  # what the terminal sends reaches the parent alone, which passes it on once
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who kills the command kills the work
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
    said = _read(reading)
    last = said.splitlines()[-1].decode() if said else ""
    if last.startswith(END):
        return int(last.removeprefix(END))
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    problem = f"the computing process was lost ({how}): Ray's or its own server died, or memory ran out"
    _mark(said, problem)
    with contextlib.suppress(OSError):
        print(f"memlib: {problem}; run the same command again", file=sys.stderr)
    return TRY_AGAIN


def ended(status: int) -> int:
    """Says, in the child, that it ends by itself and has said all there is to say; whatever crashes after that is no news."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, f"{END}{status}\n".encode())
    return status


def _reaped(child: int) -> int | None:
    """The child's status once it has ended; orphans, whose parent we became, are taken leave of."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    return status


def _read(reading: int) -> bytes:
    os.set_blocking(reading, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reading, 65_536):
            found += part
    os.close(reading)
    return found


def _mark(said: bytes, problem: str) -> None:
    """Writes into the store how the runs under way have ended."""
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
    """Ends all descendants: what the child started is ours now."""
    end, number = time.monotonic() + ENDING_SECONDS, signal.SIGTERM
    while (left := _descendants()) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        number = signal.SIGKILL  # whoever has not ended by the next look
        look = time.monotonic() + 1.0
        while time.monotonic() < look and _descendants():
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.05)


def _descendants() -> list[int]:
    """Processes that descend from this one, those furthest down first."""
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
