"""A Ray actor to which workers post, and which tells them what to do next; in a module of its own so that its process loads
nothing heavy."""

from typing import Any

LONGEST_SECONDS = 30 * 86_400  # that workers wait for one another


class Board:
    """Which models wait, how far each of the others is, and what went wrong.

    Args:
        names: of the models, in the order in which they are to be trained.
        max_failures: how often workers may be lost over one model that gets no further meanwhile.
    """

    def __init__(self, names: list[str], max_failures: int) -> None:
        self._names, self._max_failures = names, max_failures
        self._waiting = list(range(len(names)))
        self._under_way: dict[int, int] = {}  # by group
        self._start = ""
        self._failures: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._news: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, tuple[str, Any]] = {}

    def begin(self, start: str) -> None:
        """Note that workers have started, or started anew because some were lost: what was under way comes first.

        Args:
            start: the same for all workers, another one each time.
        """
        if start == self._start:
            return
        self._start = start
        lost = list(self._under_way.values())
        self._under_way.clear()
        self._waiting = lost + self._waiting
        for number in lost:
            self._failures[number] = self._failures.get(number, 0) + 1

    def take(self, group: int) -> int | None:
        """Return the number of the model that a group is to train next, None where none is left."""
        self._under_way.pop(group, None)
        if not self._waiting:
            return None
        number = self._under_way[group] = self._waiting.pop(0)
        return number

    def may_start(self, number: int, step: int) -> bool:
        """Return whether a model is to be tried once more; failures from before it got further are forgotten.

        Args:
            number: of the model.
            step: at which it goes on.
        """
        if step > self._steps.get(number, -1):
            self._steps[number], self._failures[number] = step, 0
        if self._failures[number] <= self._max_failures:
            return True
        lost = self._failures[number]
        said = f"its workers were lost {lost} times at step {step} (resources.max_failures); run the same command again"
        self.object_to(self._names[number], said)
        return False

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
