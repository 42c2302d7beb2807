"""What is said of given secrets before anything is trained."""

from typing import Any, cast

import pytest

from tasks.exposure import _say_what_is_missing
from tasks.runtime import Context


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("given", "unseen", "said"),
    [
        (0, 0, None),
        (5, 0, "gives no test"),
        (5, 198, "no single one of 5 can be found; that takes 199"),
        (5, 199, None),
    ],
)
def test_too_few_unseen_secrets_are_said_before_anything_is_trained(given: int, unseen: int, said: str | None) -> None:
    context: Any = Said()
    _say_what_is_missing(cast(Context, context), given, unseen, 0.05 / 2)
    assert len(context.lines) == (said is not None)
    assert said is None or said in context.lines[0]
