"""The only way to standard output: control characters are replaced, as ids and titles come from others."""

import json
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
            yield Segment(text if control else plain(text), style, control)


console = PlainConsole(highlight=False, markup=False)


def show_text(text: str, *, end: str = "\n") -> None:
    """Print lines to stdout as they are, however wide the terminal is."""
    print(plain(text), end=end)


def show_json(value: Any) -> None:
    """Print a value to stdout as JSON."""
    print(json.dumps(value, indent=1))
