"""Fixtures of the tests of audits."""

from collections.abc import Iterator

import pytest

from memlib.audits import sides
from memlib.audits.deja_vu import findings, stability
from memlib.audits.deja_vu.beyond import findings as beyond
from memlib.audits.exposure import documents


@pytest.fixture
def without_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the simulation of power, most of the time of a small audit, where level and coverage alone are counted."""
    leave_out_power(monkeypatch)


@pytest.fixture(scope="module")
def never_power() -> Iterator[None]:
    """Leave it out in all tests of a module, and in the audits that its fixtures run."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_power(patch)
        yield


def leave_out_power(patch: pytest.MonkeyPatch) -> None:
    for module in (findings, beyond):
        patch.setattr(module, "detectable_answers", lambda *_, **__: None)
    for module in (stability, documents, sides):
        patch.setattr(module, "detectable_shift", lambda *_, **__: None)
