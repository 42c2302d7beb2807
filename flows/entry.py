"""The `memlib` command: what may be lost with Ray or Prefect runs in a child process, all else at once."""

import contextlib
import gc
import os
import sys
import time
import traceback

from flows.supervised import ended, supervised

LONG = ("run", "resume")
DEFECT = 70  # EX_SOFTWARE: memlib's own fault
STOPPED = 130


def command() -> int:
    """Runs the command line and returns its exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in LONG:
        return supervised(_work)
    gc.set_threshold(200_000)  # a short command has no cycles worth looking for: 10,000 runs are listed in a fifth less time
    return _work()


def _work() -> int:
    try:
        from flows.cli import main  # here, as a process with threads had better not fork

        status = main()
    except SystemExit as error:  # of --help, or of arguments that are none
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:  # before main could take it
        _say("memlib: stopped; run the same command to go on, or memlib resume")
        status = STOPPED
    except Exception as error:
        _say(f"memlib: this is a defect of memlib's ({type(error).__name__}); please report it with {_logged(error)}")
        status = DEFECT
    ended(status)
    display = sys.modules.get("tasks.display")
    if display is not None and display.gone():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of Prefect's still try to reach its server
    return status


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # whoever would read it may be gone
        print(line, file=sys.stderr, flush=True)


def _logged(error: Exception) -> str:
    """Where the traceback of a defect is: in a private file, as it may say what a recipe or a store holds."""
    from memlib.private import PRIVATE, make_folder, user_folder, write_file

    text = "".join(traceback.format_exception(error))
    try:
        folder = user_folder("cache") / "defects"
        make_folder(folder, PRIVATE.folder)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        write_file(path, text.encode(errors="replace"), PRIVATE.file)
    except (OSError, ValueError):
        _say(text)
        return "the lines above"
    return f"the log {path}"


if __name__ == "__main__":
    sys.exit(command())
