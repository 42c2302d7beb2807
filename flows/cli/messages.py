"""Lines on stderr."""

import contextlib
import sys

from memlib.sanitize import brief


def say(text: str) -> None:
    """Print a line to stderr, without control characters; errors are ignored, as the terminal may have been closed."""
    with contextlib.suppress(OSError):
        print(brief(text), file=sys.stderr, flush=True)
