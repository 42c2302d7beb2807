"""Commands of memlib and blocks of Python, carried out in the calling process as if each had a process of its own."""

import contextlib
import gc
import importlib
import io
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from flows.cli.app import main
from flows.cli.entry import RARELY
from flows.cli.supervisor import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\]*\"")  # what a shell passes on as it stands
OF_SHELL = re.compile(r"[|<>;&$`*?~()\\]")
SETS = re.compile(r"[A-Za-z_]\w*=")


def split(command: str) -> tuple[dict[str, str], list[str]] | None:
    """Split a command of memlib into the variables that it sets and its arguments; None for what needs a shell."""
    if OF_SHELL.search(QUOTED.sub("", command)):
        return None
    words, variables = shlex.split(command), {}
    while words and SETS.match(words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    return (variables, words[1:]) if words and Path(words[0]).name == "memlib" else None


def call(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Call the command line."""
    ended = _ended(["memlib", *arguments], lambda: main(arguments), folder, environment)
    if ended.returncode == STOPPED:
        raise KeyboardInterrupt  # meant for all commands, not for this one
    return ended


def execute(block: str, folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Execute a block of Python, in a namespace of its own."""
    code = compile(block, "<block>", "exec")
    return _ended(["-c"], lambda: exec(code, {"__name__": "__main__"}), folder, environment, str(folder))


def _ended(
    words: list[str], work: Callable[[], int | None], folder: Path, environment: Mapping[str, str], *path: str
) -> CompletedProcess[str]:
    """Return the status and output that a process which does this work would have.

    Args:
        words: the process's sys.argv.
        work: what it does; returns its status, None for 0.
        folder: the folder that it starts in.
        environment: all of its environment variables.
        path: folders on its sys.path before those of PYTHONPATH.
    """
    output, errors = io.StringIO(), io.StringIO()
    with alone(words, folder, environment, *path), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = work() or 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            errors.write(f"{ended.code}\n" if isinstance(ended.code, str) else "")
        except Exception:
            status = 1
            errors.write(traceback.format_exc())
    return CompletedProcess(words, status, output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def alone(words: list[str], folder: Path, environment: Mapping[str, str], *path: str) -> Iterator[None]:
    """Put back what a process may change of itself, and what main() does; forget the modules of the folder."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    hook, before, loaded = sys.unraisablehook, list(sys.path), set(sys.modules)
    mask, often = os.umask(0o077), gc.get_threshold()
    os.umask(mask)
    own = [*path, *(str(folder / part) for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part)]
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", words),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        sys.path[:0] = own
        importlib.invalidate_caches()  # of folders to which an earlier block wrote a module
        gc.set_threshold(RARELY)  # as the command does
        try:
            yield
        finally:
            sys.path[:] = before
            sys.unraisablehook = hook
            os.umask(mask)
            gc.set_threshold(*often)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name in set(sys.modules) - loaded:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                    del sys.modules[name]
