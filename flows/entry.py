"""The `memlib` command: what may be lost with Ray or Prefect runs in a child process, all else at once."""

import gc
import os
import sys
import traceback

from flows.supervised import ended, supervised

LONG = ("run", "resume")
DEFECT = 70  # EX_SOFTWARE: memlib's own fault


def command() -> int:
    """Runs the command line and returns its exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in LONG:
        return supervised(_work)
    gc.set_threshold(200_000)  # a short command has no cycles worth looking for: 10,000 runs are listed in a fifth less time
    return _work()


def _work() -> int:
    from flows.cli import main  # here, as a process with threads had better not fork

    try:
        status = main()
    except SystemExit as error:  # of --help, or of arguments that are none
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:
        traceback.print_exc()
        print("memlib: this is a defect of memlib's; please report it with the lines above", file=sys.stderr)
        status = DEFECT
    ended(status)
    display = sys.modules.get("tasks.display")
    if display is not None and display.gone():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of Prefect's still try to reach its server
    return status


if __name__ == "__main__":
    sys.exit(command())
