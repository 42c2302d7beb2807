"""The client of services: key, consent, limits, retries, and nothing secret in what is said."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from small_service import serving

from memlib.errors import ResourcesError, RunError, UserError
from memlib.models.external.served import (
    SERVICES,
    Budget,
    Refused,
    Service,
    budget_of,
    check_consent,
    first_model,
    key_of,
)
from memlib.recipes.request import AuditRequest
from memlib.specs import ServedSpec

HOST: dict[str, Any] = {"kind": "served", "url": "https://host/v1", "model": "m"}


def spec(**changes: Any) -> ServedSpec:
    return ServedSpec.model_validate({**HOST, **changes})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host/v1", "in the clear"),
        ("https://me:pw@host/v1", "more than a place"),
        ("https://host/v1?key=1", "more than a place"),
        ("ftp://host", "give an address such as"),
        ("host/v1", "give an address such as"),
    ],
)
def test_invalid_and_unsafe_addresses_are_refused(url: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        spec(url=url)
    assert spec(url="http://localhost:8000/v1").host == "localhost:8000"
    assert spec(url="http://host/v1", insecure=True).host == "host"


def test_the_identity_leaves_out_limits_key_and_price() -> None:
    assert spec(key="K", sends=True, requests=5, together=9, price_per_million_tokens=2.0).identity == spec().identity
    assert spec(version="2").identity != spec().identity != spec(model="n").identity


def test_nothing_is_sent_without_consent_or_without_the_key_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVICES, "")
    with pytest.raises(UserError, match="set sends to true"):
        check_consent(spec())
    with pytest.raises(UserError, match="which this machine does not allow; .* set MEMLIB_SERVICES=host"):
        check_consent(spec(sends=True))
    AuditRequest.read({"audit": "canaries", "canaries": "c", "service": {**HOST, "sends": True}}).allow_code()
    check_consent(spec(sends=True))
    with pytest.raises(UserError, match="does not allow"):
        check_consent(spec(sends=True, url="https://elsewhere/v1"))
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UserError, match="the environment variable SOME_KEY .* is not set"):
        key_of(spec(key="SOME_KEY"))
    monkeypatch.setenv("SOME_KEY", " abc ")
    assert key_of(spec(key="SOME_KEY")) == "abc"
    with pytest.raises(ValidationError):
        spec(key="sk-123456")  # the key itself, not the name of its variable


def test_the_key_goes_to_the_service_and_into_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "very-secret")
    with serving() as (served, part):
        service = ServedSpec.model_validate({**part, "key": "SOME_KEY"})

        async def ask(prompt: str) -> Any:
            async with Service(service, "completions") as one:
                return await one.score(prompt)

        assert asyncio.run(ask("In the evening")).pieces[0] == "<end>"
        assert served.keys == {"Bearer very-secret"}
        for trap in ("quotes", "wrong_key"):
            served.trap = trap
            with pytest.raises(Refused) as refusal:
                asyncio.run(ask("the unmentionable sentence"))
            assert "very-secret" not in str(refusal.value)
            assert "unmentionable" not in str(refusal.value)
            assert refusal.value.__context__ is None or refusal.value.__suppress_context__


def test_an_unreachable_service_is_reported_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.models.external.served.LONGEST_WAIT", 0.001)

    async def ask() -> Any:
        async with Service(spec(url="http://127.0.0.1:9/v1"), "completions") as one:
            return await one.score("x")

    with pytest.raises(RunError, match=r"127.0.0.1:9 does not answer \(APIConnectionError\) after 6 tries"):
        asyncio.run(ask())


def test_limits_per_minute_space_requests_and_limits_in_all_end_them() -> None:
    async def take(budget: Budget, *tokens: int) -> float:
        began = time.monotonic()
        for one in tokens:
            await budget.take(one)
        return time.monotonic() - began

    assert asyncio.run(take(Budget(spec(requests_per_minute=1200)), 1, 1, 1)) >= 0.1  # 50 ms between two
    assert asyncio.run(take(Budget(spec(tokens_per_minute=60_000)), 100, 100, 1)) >= 0.2
    with pytest.raises(ResourcesError, match="requests allows 2"):
        asyncio.run(take(Budget(spec(requests=2)), 1, 1, 1))
    with pytest.raises(ResourcesError, match="tokens allows 100"):
        asyncio.run(take(Budget(spec(tokens=100)), 60, 60))
    assert budget_of(spec()) is budget_of(spec())


def test_generated_texts_come_in_every_shape_and_without_probabilities_where_these_are_refused() -> None:
    with serving() as (served, part):

        async def ask(api: Any) -> Any:
            async with Service(ServedSpec.model_validate(part), api) as one:
                return await one.generate("In the evening they lis", tokens=8, temperature=0.0, seed=1)

        texts = {api: asyncio.run(ask(api)) for api in ("completions", "generate", "chat")}
        assert {one.text for one in texts.values()} == {"tened to"}
        assert texts["completions"].log_p is not None
        served.trap = "capped"
        assert asyncio.run(ask("completions")).text == "tened to"
        served.trap = "error_inside"
        with pytest.raises(Refused, match="under status 200"):
            asyncio.run(ask("chat"))


def test_the_first_model_that_a_service_lists_is_found() -> None:
    with serving() as (served, part):
        assert first_model(ServedSpec.model_validate(part)) == "small"
        assert served.requests == 0
    with pytest.raises(UserError, match="lists no model"):
        first_model(spec(url="http://127.0.0.1:9/v1"))


GOOD = {"tokens": ["a", "b", "c"], "token_logprobs": [None, -1.0, -2.0], "top_logprobs": None}
ODD: list[Any] = [None, 5, "x", [], {}, [None], ["x"], [[1]], [{}], {"a": 1}, [float("inf")]]


def odd_answers() -> list[tuple[Any, str]]:
    """Return shapes of requests, and answers that have something odd at one place."""
    found: list[tuple[Any, Any]] = [("completions", odd) for odd in ODD]
    for odd in ODD:
        found += [
            ("completions", {"choices": odd}),
            ("chat", {"choices": odd}),
            ("generate", {"meta_info": odd, "text": odd}),
        ]
        found += [("completions", {"choices": [{"logprobs": {**GOOD, name: odd}}]}) for name in GOOD]
        found += [
            ("completions", {"choices": [{"logprobs": GOOD}], "usage": usage}) for usage in (odd, {"completion_tokens": odd})
        ]
        found += [("generate", {"meta_info": {name: odd}}) for name in ("input_token_logprobs", "prompt_tokens")]
        rows = [[None, 1, "a"], [-1.0, 2, "b"]]
        found += [("generate", {"meta_info": {"input_token_logprobs": rows, "input_top_logprobs": odd}})]
        found += [("chat", {"choices": [{"message": {"content": odd}}]}), ("chat", {"choices": [{"message": odd}]})]
    return [(api, json.dumps(answer)) for api, answer in found] + [("completions", "[" * 100_000), ("chat", "\ud800")]


def test_odd_answers_are_refused_with_one_line_or_read() -> None:
    said: list[str] = []

    async def ask(api: Any, answer: str) -> None:
        async def post(*_: object, **__: object) -> str:
            return answer

        async with Service(spec(), api) as service:
            service._client.post = post
            for work in (service.score("abc"), service.generate("abc", tokens=1, temperature=0.0)):
                try:
                    await work
                except Refused as error:
                    said.append(str(error))

    for api, answer in odd_answers():
        asyncio.run(ask(api, answer))
    assert len(said) > 100
    assert all("\n" not in line and len(line) < 200 for line in said)


@pytest.mark.parametrize(
    "url",
    ["https://host:abc/v1", "https://host:99999/v1", "https://ho st/v1", "https://-/v1", "https://ü..x", "https://[::1"],
)
def test_hosts_and_ports_that_cannot_exist_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="give an address such as"):
        spec(url=url)


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (429, {"retry-after": "9999"}, "asks to wait (status 429)"),
        (401, {}, "refuses requests without a key"),
        (400, {}, "with status 400"),
    ],
)
def test_a_services_own_words_are_never_quoted(status: int, headers: dict[str, str], said: str) -> None:
    class Failed(Exception):
        status_code, body = (
            status,
            {"message": "my pin is 281265017", "type": "bad 281265017 request", "code": "invalid_request"},
        )
        response = SimpleNamespace(headers=headers)

    async def ask() -> None:
        async def post(*_: object, **__: object) -> str:
            raise Failed

        async with Service(spec(), "completions") as service:
            service._client.post = post
            await service.score("my pin is 281265017")

    with pytest.raises(RunError) as failure:
        asyncio.run(ask())
    assert said in str(failure.value)
    assert "2812" not in str(failure.value)
    assert "(invalid_request)" in str(failure.value) or status != 400
