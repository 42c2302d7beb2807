"""Processes of tests, forked from a server that has loaded the libraries once for a whole test run.

A process that begins with an interpreter of its own spends seconds on imports alone. A fork of the test's own process would
begin at once, but cannot train: the threads of autograd do not survive it.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([
    "hypothesis", "pytest", "scipy.stats", "torch", "torch.distributed", "torchvision.models", "memlib.models.encoder",
    "memlib.objectives", "memlib.training.fit", "memlib.training.loop",
])  # fmt: skip


def together(work: Callable[..., None], *arguments: object, workers: int = 2, seconds: float = 300) -> None:
    """Call a function of a test module in several processes at once, with its rank first; wait until all have ended well."""
    started = [SERVER.Process(target=_on_one_thread, args=(work, rank, *arguments)) for rank in range(workers)]
    for process in started:
        process.start()
    for process in started:
        process.join(seconds)
    assert [process.exitcode for process in started] == [0] * workers


def _on_one_thread(work: Callable[..., None], *arguments: object) -> None:
    torch.set_num_threads(1)
    work(*arguments)


def run_code(code: str, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run code as `python -c CODE ARGUMENTS` would, though with the server's libraries loaded; return its output."""
    with tempfile.TemporaryDirectory() as folder:
        process = SERVER.Process(target=_run, args=(code, arguments, folder))
        process.start()
        process.join(seconds)
        output, errors = (Path(folder, name).read_text() for name in ("output", "errors"))
    assert process.exitcode is not None, f"did not end within {seconds} s\n{errors}"
    return subprocess.CompletedProcess(["-c", *arguments], process.exitcode, output, errors)


def _run(code: str, arguments: tuple[str, ...], folder: str) -> None:
    for name, descriptor in (("output", 1), ("errors", 2)):
        file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
    sys.argv = ["-c", *arguments]
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
