"""A Ray actor to which workers post; in a module of its own so that its process loads nothing heavy."""

from typing import Any


class Board:
    """How far each model is, and what went wrong."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, tuple[str, Any]] = {}

    def post(self, name: str, news: dict[str, Any]) -> None:
        """Replaces what is known of a model's progress."""
        self._news[name] = news

    def object_to(self, name: str, problem: str, ref: Any = None) -> None:
        """Notes why a model cannot be trained, and the damaged artifact that is to blame."""
        self._problems[name] = (problem, ref)

    def news(self) -> dict[str, dict[str, Any]]:
        """The newest of every model."""
        return self._news

    def problems(self) -> dict[str, tuple[str, Any]]:
        """What went wrong, by model; and the damaged artifact that is to blame."""
        return self._problems
