"""Fixtures of the tests of audits."""

import pytest

from memlib.audits import sides
from memlib.audits.deja_vu import beyond, stability, summary
from memlib.audits.exposure import documents


@pytest.fixture
def without_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the simulation of power, most of the time of a small audit, where level and coverage alone are counted."""
    for module in (summary, beyond):
        monkeypatch.setattr(module, "detectable_answers", lambda *_, **__: None)
    for module in (stability, documents, sides):
        monkeypatch.setattr(module, "detectable_shift", lambda *_, **__: None)
