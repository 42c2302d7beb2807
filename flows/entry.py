"""The `memlib` command: what may be lost with Ray or Prefect runs in a child process, all else at once."""

import sys

from flows.supervised import ended, supervised

LONG = ("run", "resume")


def command() -> int:
    """Runs the command line and returns its exit status."""
    return supervised(_work) if len(sys.argv) > 1 and sys.argv[1] in LONG else _work()


def _work() -> int:
    from flows.cli import main  # here, as a process with threads had better not fork

    return ended(main())


if __name__ == "__main__":
    sys.exit(command())
