"""Stages that ask a service: what was answered is never asked again, consent, and what a run says before it sends anything."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_service import serving

from memlib.errors import ResourcesError, RunError, UserError
from memlib.models.external.served import renew_budget
from memlib.observe.served import CheckService, announce, ask, parts_of
from memlib.observe.service_checks import ServiceCheck, check_service
from memlib.running.runners import PlainRunner
from memlib.specs import ServedSpec
from memlib.store import Attempt, Ref, Store


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow every service, as if the recipe were given here."""
    monkeypatch.setattr("memlib.models.external.served._allowed", lambda: AnyHost())


class AnyHost(list[str]):
    def __contains__(self, host: object) -> bool:
        return True


TEXTS = {str(number): f"In the evening they listened to radio {number}" for number in range(12)}


class Killed(BaseException):
    """Stands for a signal."""


def attempt(folder: Path) -> Attempt:
    folder.mkdir(exist_ok=True)
    return Attempt(folder, Ref("ask", "0" * 64))


async def score(service: Any, text: str) -> dict[str, Any]:
    found = await service.score(text)
    return {"log_p": found.log_p[1:]}


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("fault", [Killed, RunError])
def test_a_run_that_is_interrupted_asks_nothing_twice(tmp_path: Path, together: int, fault: type[BaseException]) -> None:
    store = Store(str(tmp_path / "store"))
    with serving() as (served, part):
        spec = ServedSpec.model_validate({**part, "together": together})
        check = check_service(spec)
        served.asked.clear()
        for last in (3, 7):

            async def some(service: Any, text: str, most: int = last) -> dict[str, Any]:
                if sum(served.asked[one] for one in TEXTS.values()) >= most:
                    raise fault
                return await score(service, text)

            with pytest.raises(fault):
                ask(spec, check, TEXTS, some, attempt(tmp_path / "a"), store.resume)
        found = ask(spec, check, TEXTS, score, attempt(tmp_path / "a"), store.resume)
        whole = ask(
            spec, check, TEXTS, score, attempt(tmp_path / "b"), SimpleNamespace(load=lambda *_: False, save=lambda *_: None)
        )
    counts = [served.asked[text] for text in TEXTS.values()]
    assert list(found) == list(TEXTS)
    for name, values in found.items():
        np.testing.assert_array_equal(values["log_p"], whole[name]["log_p"])
    assert sum(counts) <= 2 * len(TEXTS) + 2 * (together - 1)  # once here, once for the comparison; what was under way
    assert together > 1 or set(counts) == {2}


def test_limits_end_a_run_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with serving() as (served, part):
        check = check_service(ServedSpec.model_validate(part))
        served.asked.clear()
        renew_budget(ServedSpec.model_validate(part))
        with pytest.raises(ResourcesError, match="requests allows 5; what was answered is kept"):
            ask(
                ServedSpec.model_validate({**part, "requests": 5, "together": 1}),
                check,
                TEXTS,
                score,
                attempt(tmp_path / "a"),
                store.resume,
            )
        ask(ServedSpec.model_validate(part), check, TEXTS, score, attempt(tmp_path / "a"), store.resume)
        assert {served.asked[text] for text in TEXTS.values()} == {1}


def test_requests_that_fail_for_a_reason_that_passes_are_tried_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with serving() as (served, part):
        spec = ServedSpec.model_validate(part)
        check = check_service(spec)
        served.trap = "refuses_at_times"
        found = ask(spec, check, TEXTS, score, attempt(tmp_path / "a"), store.resume)
    assert len(found) == len(TEXTS)


def test_nothing_is_asked_without_consent(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with serving() as (served, part):
        spec = ServedSpec.model_validate({**part, "sends": False})
        with pytest.raises(UserError, match="set sends to true"):
            PlainRunner(store).run(CheckService(spec, "a"))
        with pytest.raises(UserError, match="set sends to true"):
            ask(spec, ServiceCheck("scores", "completions"), TEXTS, score, attempt(tmp_path / "a"), store.resume)
        assert served.requests == 0


def test_a_service_that_fails_its_test_leaves_no_artifact_and_is_tested_again(tmp_path: Path) -> None:
    runner = PlainRunner(Store(str(tmp_path / "store")))
    with serving(trap="zeros") as (served, part):
        stage = CheckService(ServedSpec.model_validate(part), "a")
        with pytest.raises(RunError, match="cannot be used: all log probabilities are 0"):
            runner.run(stage)
        served.trap = ""
        before = runner.run(stage)
        assert before.content.level == "scores"
        assert CheckService.described(before) == ["The service scores given texts (completions)."]
        assert runner.run(CheckService(stage.service, "a", before)).content.changed == ""


def test_texts_host_requests_and_price_are_announced() -> None:
    said: list[str] = []
    spec = ServedSpec.model_validate(
        {"kind": "served", "url": "https://host/v1", "model": "m", "price_per_million_tokens": 2.5, "requests": 100}
    )
    announce(SimpleNamespace(warn=said.append), spec, "500 canaries", requests=2000, tokens=100_000)  # type: ignore[arg-type]
    assert said == [
        "sent to host (m), unless the store has the answers: 500 canaries; at most about 2,060 requests and 100,000 tokens, "
        "0.25 at the price per token",
        "the service's requests allow 100, and the audit needs about 2,000: it would stop there",
    ]


def test_parts_cover_all_texts() -> None:
    assert list(parts_of(450, 200)) == [(0, 200), (200, 400), (400, 450)]
    assert asyncio.run(asyncio.sleep(0, "no loop is left open")) is not None
