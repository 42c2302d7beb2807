"""Ray actor that collects the workers' progress and assigns models to them.

It is a separate module, so that the actor's process loads nothing heavy.
"""

from typing import Any

LONGEST_SECONDS = 30 * 86_400  # timeout of workers that wait for one another


class Board:
    """Queue of models that wait for training, and the progress and problems of all models.

    Args:
        names: names of the models, in training order.
        max_failures: number of times that a model's workers may be lost without any progress of the model in between.
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
        """Record a start of the workers; after a restart due to lost workers, interrupted models come first.

        Args:
            start: id of the start, the same for all workers and different for each start.
        """
        if start == self._start:
            return
        self._start = start
        lost = list(self._under_way.values())
        self._under_way.clear()
        self._waiting = lost + self._waiting
        for number in lost:
            self.lose(number)

    def lose(self, number: int) -> None:
        """Count a loss of a model's workers."""
        self._failures[number] = self._failures.get(number, 0) + 1

    def take(self, group: int) -> int | None:
        """Return the number of the model that a group is to train next, or None if none is left."""
        self._under_way.pop(group, None)
        if not self._waiting:
            return None
        number = self._under_way[group] = self._waiting.pop(0)
        return number

    def may_start(self, number: int, step: int) -> bool:
        """Return whether a model may be started or resumed; if not, record why.

        Progress since the last start resets its failure count.
        """
        if step > self._steps.get(number, -1):
            self._steps[number], self._failures[number] = step, 0
        if self._failures[number] <= self._max_failures:
            return True
        lost = self._failures[number]
        problem = f"its workers were lost {lost} times at step {step} (resources.max_failures); run the same command again"
        self.object_to(self._names[number], problem)
        return False

    def post(self, name: str, news: dict[str, Any]) -> None:
        """Record the latest progress of a model."""
        self._news[name] = news

    def object_to(self, name: str, problem: str, ref: Any = None) -> None:
        """Record why a model cannot be trained, and the damaged artifact that caused it, if any."""
        self._problems[name] = (problem, ref)

    def news(self) -> dict[str, dict[str, Any]]:
        """Return the latest progress of every model."""
        return self._news

    def problems(self) -> dict[str, tuple[str, Any]]:
        """Return problems by model, each with the damaged artifact that caused it, or None."""
        return self._problems
