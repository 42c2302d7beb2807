"""Machine settings from environment variables."""

import os
from collections.abc import Sequence
from typing import TypeVar

from memlib.errors import UserError

Choice = TypeVar("Choice", bound=str)
PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"}  # a few microseconds, then sleep


def number(name: str, default: float) -> float:
    """Return an environment variable as a finite number of at least 0, or the default where it is unset or empty.

    Raises:
        UserError: when it is anything else.
    """
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{name} is {text!r}; set it to a number that is 0 or greater")
    return value


def choice(name: str, choices: Sequence[Choice]) -> Choice | None:
    """Return an environment variable as one of the choices; None where it is unset or empty.

    Raises:
        UserError: when it is not one of the choices.
    """
    text = os.environ.get(name, "")
    value = next((choice for choice in choices if choice == text), None)
    if text and value is None:
        raise UserError(f"{name} is {text!r}; it must be one of {', '.join(choices)}")
    return value


def waiting() -> dict[str, str]:
    """Return variables that decide how OpenMP's threads wait for one another; they must be set before PyTorch is loaded.

    By default the threads sleep. Threads that spin take the cores of other work, and are slowed down by it in turn. Where
    OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, as in OMP_WAIT_POLICY=active, that setting is returned instead.
    """
    return {name: os.environ[name] for name in PASSIVE if os.environ.get(name)} or dict(PASSIVE)
