"""Settings of a machine, from its environment."""

import os
from collections.abc import Sequence
from typing import TypeVar

from memlib.errors import UserError

Choice = TypeVar("Choice", bound=str)


def number(name: str, default: float) -> float:
    """Return a number of at least 0 from the environment.

    Raises:
        UserError: when it is none.
    """
    said = os.environ.get(name, "")
    try:
        found = float(said) if said else float(default)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UserError(f"{name} is {said!r}; it must be a number of at least 0")
    return found


def choice(name: str, choices: Sequence[Choice]) -> Choice | None:
    """Return one of some words from the environment, None where nothing is said.

    Raises:
        UserError: when it is another word.
    """
    said = os.environ.get(name, "")
    found = next((choice for choice in choices if choice == said), None)
    if said and found is None:
        raise UserError(f"{name} is {said!r}; it can be {', '.join(choices)}")
    return found
