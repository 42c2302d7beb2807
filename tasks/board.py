"""A Ray actor to which workers post; in a module of its own so that its process loads nothing heavy."""

from typing import Any


class Board:
    """How far each model is, and what went wrong."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, str] = {}

    def post(self, name: str, news: dict[str, Any]) -> None:
        """Replaces what is known of a model's progress."""
        self._news[name] = news

    def object_to(self, name: str, problem: str) -> None:
        """Notes why a model cannot be trained."""
        self._problems[name] = problem

    def news(self) -> dict[str, dict[str, Any]]:
        """The newest of every model."""
        return self._news

    def problems(self) -> dict[str, str]:
        """What went wrong, by model."""
        return self._problems
