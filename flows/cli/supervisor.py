"""Supervision of a run in a child process, so that the loss of a process is reported in one line and leaves none behind.

When their servers die, Ray and Prefect kill the process that they run in, or print kilobytes first. The command that the
user sees (1) forks a guard (2), which forks the process that computes (3). The command prints what happened to that process
and what to do, marks the run, and ends the remaining processes; if the command itself is killed, the guard does so. Both
load no large libraries.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flows.cli.messages import say

TRY_AGAIN = 75  # EX_TEMPFAIL: running the same command again resumes the work
STOPPED = 130
STOPPED_LINE = "memlib: stopped; to continue, run the same command again, or memlib resume"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
ORPHANED = signal.SIGUSR1  # from the kernel to the guard: the command is gone
INSISTING = ((3.0, signal.SIGINT), (10.0, signal.SIGKILL))
"""Seconds after a signal that ends a run, and the signal that the guard sends then, if a library swallowed the first."""
ENDING_SECONDS = 10.0
LOOK_SECONDS = 0.05
LONGEST_WAIT = 3600.0
END = "ended "
_told: int | None = None  # in the computing process: descriptor of what the command and the guard read at the end


def supervised(work: Callable[[], int]) -> int:
    """Run a function in a guarded process and return its exit status.

    Supervision needs Linux; on other systems, the function runs in this process.

    Args:
        work: returns an exit status; it may also end its process.
    """
    if not sys.platform.startswith("linux") or _prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        return work()
    told = os.memfd_create("memlib")  # a pipe that is read at the end would fill with the lines of a large sweep, and block
    sys.stdout.flush()
    sys.stderr.flush()
    watched = {number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN}  # ignored under nohup
    watched |= {signal.SIGCONT, signal.SIGTSTP, signal.SIGCHLD, ORPHANED}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)  # until sigwait takes them, so that none is lost
    command = os.getpid()
    guard = os.fork()
    if guard != 0:
        return _command(guard, told, watched)
    os.setpgid(0, 0)  # signals from the terminal reach only the command, which passes them on once
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, ORPHANED)
    own = os.getpid()
    child = os.fork()
    if child != 0:
        os._exit(_guard(command, child, told, watched))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
    return _in_child(work, own, told)


def tell(store: str, run: str) -> None:
    """Tell the command, from the computing process, which run is under way, so that the command can record how it ends."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, json.dumps([store, run]).encode() + b"\n")


def hand_over(line: str) -> None:
    """Hand a line about hooks over to the command, which calls them when the computing process has ended."""
    if _told is not None:
        with contextlib.suppress(OSError):
            os.write(_told, line.encode() + b"\n")


def is_supervised() -> bool:
    """Return whether this is the computing process of a command."""
    return _told is not None


def _in_child(work: Callable[[], int], guard: int, told: int) -> int:
    global _told
    _told = told
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(TRY_AGAIN)
    return work()


def _command(guard: int, told: int, watched: set[signal.Signals]) -> int:
    """Pass signals on until the guard ends; then end remaining processes, report a loss, and return the exit status."""
    status, was_stopped = None, False
    while status is None:
        number = signal.sigwait(watched)
        if number == signal.SIGCHLD:
            status = _reaped(guard)
        elif number != ORPHANED:
            was_stopped |= number in ENDING
            os.kill(guard, number)
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
    _end_leftovers()
    messages = _read(told)
    last = messages.splitlines()[-1].decode() if messages else ""
    ended = int(last.removeprefix(END)) if last.startswith(END) else None
    if was_stopped and ended != 0:
        _conclude(messages, "stopped", "KeyboardInterrupt")
        if ended != STOPPED:  # Ray, which the same signal has ended, may take the computing process with it
            say(STOPPED_LINE)
        return STOPPED
    if ended is not None:
        _call_hooks(messages)
        return ended
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    cause = signal.Signals(code - 128).name if code > 128 else f"status {code}"
    problem = f"the computing process was lost ({cause}): a server of Ray or Prefect died, or memory ran out"
    say(f"memlib: {problem}; run the same command again")
    _conclude(messages, "failed", problem)
    return TRY_AGAIN


def _guard(command: int, child: int, told: int, watched: set[signal.Signals]) -> int:
    """Pass signals on until the child ends; return its status as a shell would. If the command is gone, end everything."""
    status, later = None, deque[tuple[float, signal.Signals]]()
    while status is None and os.getppid() == command:
        remaining = max(0.0, later[0][0] - time.monotonic()) if later else LONGEST_WAIT
        received = signal.sigtimedwait(watched, remaining)
        if received is None:
            if later:
                os.kill(child, later.popleft()[1])
            continue
        number = signal.Signals(received.si_signo)
        if number == signal.SIGCHLD:
            status = _reaped(child)
        elif number == signal.SIGTSTP:
            os.kill(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number != ORPHANED:
            os.kill(child, number)
            if number in ENDING and not later:
                later.extend((time.monotonic() + seconds, again) for seconds, again in INSISTING)
    if os.getppid() != command:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _end_leftovers()
        _conclude(_read(told), "failed", "the memlib command was killed")
    return TRY_AGAIN if status is None else 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def heedless(*_: object) -> None:
    """Ignore a signal. With SIG_IGN, Python prints a traceback if the signal has just arrived."""


def ended(status: int) -> int:
    """Tell the command, from the computing process, the status of its work; later crashes are then not reported."""
    if _told is not None:
        for number in ENDING:  # another interrupt would only disturb the end, and print where it did
            with contextlib.suppress(ValueError):
                signal.signal(number, heedless)
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


def _read(told: int) -> bytes:
    with open(told, "rb") as lines:
        lines.seek(0)
        return lines.read()


def _conclude(said: bytes, state: Literal["failed", "stopped"], problem: str) -> None:
    """Record how the runs under way have ended, which they could not do themselves, and call the hooks."""
    _mark(said, state, problem)
    _call_hooks(said, state)


def _call_hooks(said: bytes, state: str | None = None) -> None:
    """Call the hooks that the computing process handed over last, if any."""
    lines = [line for line in said.splitlines() if line.startswith(b"hooks ")]
    if lines:
        from flows.cli.hooks import fire_line

        hook = threading.Thread(target=fire_line, args=(lines[-1].decode(), state), daemon=True)
        hook.start()
        while hook.is_alive() and signal.sigtimedwait(ENDING, LOOK_SECONDS) is None:  # a signal ends a hook that hangs
            pass


def _mark(said: bytes, state: Literal["failed", "stopped"], problem: str) -> None:
    """Record in the store how the runs under way have ended."""
    from memlib.errors import RunError, UserError
    from memlib.runs.records import StatusRecord
    from memlib.store import Store
    from memlib.store.records import Unreadable, parse

    for line in dict.fromkeys(line for line in said.splitlines() if line.startswith(b"[")):
        with contextlib.suppress(OSError, RunError, UserError, Unreadable, ValueError):
            uri, run = json.loads(line)
            store, path = Store(uri).waiting(ENDING_SECONDS), f"status/{run}.json"
            before = parse(StatusRecord, store.published(path) or b"")
            if before.state == "running":
                status = before.model_copy(update={"state": state, "problem": problem, "updated": time.time()})
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
