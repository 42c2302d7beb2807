"""Entry point of the `memlib` command. Commands that use Ray or Prefect run in a supervised child process."""

import gc
import math
import os
import resource
import sys
import time
import traceback

from flows.cli.completing import ASK, answer
from flows.cli.messages import say
from flows.cli.supervisor import STOPPED, STOPPED_LINE, ended, hand_over, is_supervised, supervised, tell

LONG = ("run", "resume")
FAILED = 2
RARELY = 200_000  # objects between two garbage collections; with Python's 700, imports spend a third of their time on them
DEFECT = 70  # EX_SOFTWARE: a bug in memlib
LEAST_LIMIT = 4 * 2**30  # bytes of address space (ulimit -v) below which no run gets as far as Ray, and libraries may hang
SMALL_LIMIT = 8 * 2**30  # below which libraries may not load
NO_MEMORY = ("allocate memory", "enough memory", "out of memory", "map segment", "memory protection", "start new thread")


def command() -> int:
    """Run the command line and return its exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `memlib runs >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if sys.argv[1:2] == [ASK]:
        return answer(sys.argv[2:])  # in a tenth of the time that loading the commands takes
    if len(sys.argv) > 1 and sys.argv[1] in LONG:
        if _limit() < LEAST_LIMIT and not {"--help", "-h"} & {*sys.argv}:
            say(_not_enough(f"the limit is {_limit() / 2**30:.2f} GiB of address space; a run needs at least 4"))
            return FAILED
        return supervised(_work)
    return _work()


def _work() -> int:
    gc.set_threshold(RARELY)
    try:
        from memlib.settings import waiting  # after the fork: numpy starts threads, and forking is then unsafe

        os.environ |= waiting()  # before PyTorch is loaded, for this process and those that it starts
        from flows.cli.app import main

        if is_supervised():
            from flows.cli import hooks
            from memlib.runs import requests

            requests.listeners[:] = [tell]
            hooks.handed_over[:] = [hand_over]
        status = main()
    except SystemExit as error:  # from --help, or invalid arguments
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:  # before main handles it
        say(STOPPED_LINE)
        status = STOPPED
    except Exception as error:
        if _is_of_signal(error):
            say(STOPPED_LINE)
            status = STOPPED
        else:
            status = _explained(error)
    ended(status)
    display = sys.modules.get("tasks.display")
    if display is not None and display.gone():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # Prefect's threads still try to reach its server
    gc.freeze()  # otherwise Python looks for garbage among a million objects of libraries before it exits
    return status


def _is_of_signal(error: BaseException) -> bool:
    """Return whether an error was caused by a signal: a bare BaseException of Python or Prefect, which Ray wraps."""
    cause = error.__cause__ or error.__context__
    return cause is not None and (not isinstance(cause, Exception) or _is_of_signal(cause))


def _explained(error: Exception) -> int:
    """Report an error that no command expects as a lack of memory or a bug, and return the exit status."""
    while isinstance(error, ImportError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # of a command's module, which the library of the command line imports
    if _is_of_memory(error):
        cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        say(_not_enough(cause))
        return FAILED
    say(f"memlib: this is a bug in memlib ({type(error).__name__}); please report it with {_logged(error)}")
    return DEFECT


def _is_of_memory(error: Exception) -> bool:
    """Return whether an error is probably due to a lack of memory.

    Under a small limit, a library whose import failed in one thread is only partly loaded in the next.
    """
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return True
    half_loaded = isinstance(error, ImportError | AttributeError | SystemError | RuntimeError)
    return half_loaded and _limit() < SMALL_LIMIT


def _not_enough(cause: str) -> str:
    return f"memlib: there is not enough memory ({cause}); raise the limit (ulimit -v), or use a larger machine"


def _limit() -> float:
    """Return the limit of this process's address space in bytes (ulimit -v)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _logged(error: Exception) -> str:
    """Save the traceback of a bug to a private file, as it may quote a recipe or a store; return a phrase that names it."""
    from memlib.store.permissions import PRIVATE, make_folder, user_folder, write_file

    text = "".join(traceback.format_exception(error))
    try:
        folder = user_folder("cache") / "defects"
        make_folder(folder, PRIVATE.folder)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        write_file(path, text.encode(errors="replace"), PRIVATE.file)
    except (OSError, ValueError):
        say(text)
        return "the lines above"
    return f"the log {path}"


if __name__ == "__main__":
    sys.exit(command())
