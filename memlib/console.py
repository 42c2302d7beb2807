"""The only way to standard output: control characters are replaced, as ids and titles come from others.

So are characters that the terminal's encoding lacks, as with LANG=C: a finished run must not end in an error of its name.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from memlib.sanitize import plain


class PlainConsole(Console):
    """A console that shows no control characters but its own, in tables and in lines."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(plain(text), self.encoding), style, control)


console = PlainConsole(highlight=False, markup=False)


def printable(text: str, encoding: str) -> str:
    """Return a text with question marks for characters that an encoding lacks.

    Example:
        >>> printable("déjà vu", "ascii"), printable("déjà vu", "utf-8")
        ('d?j? vu', 'déjà vu')
    """
    return text if text.isascii() else text.encode(encoding, "replace").decode(encoding)


def show_text(text: str, *, end: str = "\n") -> None:
    """Print lines to stdout as they are, however wide the terminal is."""
    print(printable(plain(text), getattr(sys.stdout, "encoding", None) or "utf-8"), end=end)


def show_json(value: Any) -> None:
    """Print a value to stdout as JSON."""
    print(json.dumps(value, indent=1))
