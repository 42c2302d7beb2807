"""Services of every kind, and each trap: what a service can be asked is found by asking it, and a bad instrument is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_service import serving

from benchmarks.served import TRAPS, Served
from memlib.errors import RunError, UserError
from memlib.models.external.served import Scored
from memlib.observe.service_checks import (
    SENTENCES,
    ServiceCheck,
    check_again,
    check_service,
    sentences_of,
    unlike_text,
)
from memlib.specs import ServedSpec

WITHOUT_ECHO = (
    "the service returns log probabilities of generated tokens, not of the prompt (llama.cpp does so, whatever echo says)"
)
REFUSED = {
    "order_dependent": "the same text scores up to 0.8 nats a token differently, by the order of requests",
    "bos_twice": "the text begins twice",
    "cut": "28 of 63 characters are scored: texts are cut",
    "zeros": "all log probabilities are 0",
    "marked": "log probabilities of -9999 mark tokens below a rank",
}
WITHOUT_ANSWER = {
    "html": "answers with a page, not JSON; is url the address of its API?",
    "error_inside": "answers with an error under status 200 (overloaded_error)",
    "wrong_key": "refuses requests without a key; name its variable (key)",
    "redirects": "sends requests on to another address",
    "quotes": "refuses /completions with status 400",
}
SURVIVED = ("refuses_at_times", "fails_at_times", "unlike_temperature", "same_answer")
BY_TEXT = {"echo_ignored": "probabilities", "newer_shape": "probabilities", "capped": "text"}


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Served, dict[str, Any]]]:
    with serving() as started:
        yield started


def asked(service: tuple[Served, dict[str, Any]], *, trap: str = "", level: str = "scores", **changes: Any) -> ServiceCheck:
    served, part = service
    served.trap, served.level, served.requests = trap, level, 0
    served.shapes = ("completions", "chat") if trap else ("completions", "generate", "chat")
    served.asked.clear()
    return check_service(ServedSpec.model_validate({**part, **changes}))


def test_every_trap_has_a_test() -> None:
    assert TRAPS.keys() == {*REFUSED, *WITHOUT_ANSWER, *SURVIVED, *BY_TEXT, "changes"}


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_a_service_that_scores_given_texts_passes(service: tuple[Served, dict[str, Any]], api: str) -> None:
    found = asked(service, api=api)
    assert (found.level, found.api, found.problems, found.noise) == ("scores", api, (), 0.0)
    assert len(found.sums) == len(SENTENCES)
    assert found.asked == service[0].requests
    assert ServiceCheck.of(found.as_json()) == found


@pytest.mark.parametrize("level", ["probabilities", "text"])
def test_the_level_is_found_by_asking(service: tuple[Served, dict[str, Any]], level: str) -> None:
    assert asked(service, level=level).level == level
    assert asked(service, level=level, api="chat").level == "text"
    assert asked((service[0], {**service[1], "level": "text"})).level == "probabilities"  # texts alone are used


@pytest.mark.parametrize(("trap", "said"), REFUSED.items())
def test_a_bad_instrument_has_a_problem_that_names_it(service: tuple[Served, dict[str, Any]], trap: str, said: str) -> None:
    assert asked(service, trap=trap).problems[0].startswith(said)


@pytest.mark.parametrize(("trap", "said"), WITHOUT_ANSWER.items())
def test_a_service_without_usable_answers_is_refused_with_one_line(
    service: tuple[Served, dict[str, Any]], trap: str, said: str
) -> None:
    with pytest.raises(RunError) as refusal:
        asked(service, trap=trap)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert SENTENCES[0][:12] not in str(refusal.value)  # texts that were sent are not quoted


@pytest.mark.parametrize("trap", SURVIVED)
def test_other_traps_are_survived(service: tuple[Served, dict[str, Any]], trap: str) -> None:
    found = asked(service, trap=trap)
    assert (found.level, found.problems) == ("scores", ())
    assert bool(found.remarks) == (trap == "unlike_temperature")


@pytest.mark.parametrize(("trap", "level"), BY_TEXT.items())
def test_the_texts_of_a_service_that_does_not_score_prompts_are_used_with_a_remark(
    service: tuple[Served, dict[str, Any]], trap: str, level: str
) -> None:
    found = asked(service, trap=trap)
    assert (found.level, found.problems) == (level, ())
    assert found.remarks[0] == WITHOUT_ECHO if trap != "capped" else "log probabilities are not given" in found.remarks[0]


def test_the_same_answer_to_every_prompt_is_a_problem_where_texts_are_used(service: tuple[Served, dict[str, Any]]) -> None:
    assert asked(service, trap="same_answer", level="text").problems == (
        "the service gives the same answer to different prompts",
    )


def test_a_model_that_changes_during_the_test_or_after_it_is_noticed(service: tuple[Served, dict[str, Any]]) -> None:
    served, part = service
    before = asked(service)
    spec = ServedSpec.model_validate(part)
    assert check_again(spec, before).changed == ""
    served.trap, served.requests = "changes", 100
    changed = check_again(spec, before).changed
    assert changed == "the model's name was small fp-1 before, and is small fp-2 after"
    unnamed = replace(before, names=())
    assert "nats a token differently after the audit" in check_again(spec, unnamed).changed
    served.trap, served.level = "", "text"
    assert check_again(spec, before).changed.startswith("the service scores given texts before, and generates")
    served.requests, served.trap, served.level = 70, "changes", "scores"
    assert check_service(spec).problems


def test_noise_is_measured_and_smaller_differences_pass(service: tuple[Served, dict[str, Any]]) -> None:
    service[0].noise = 0.1
    try:
        found = asked(service)
    finally:
        service[0].noise = 0.0
    assert 0.02 < found.noise < 0.25
    assert found.noise_of_texts < found.noise
    assert found.problems == ()
    assert "equal requests differ by up to" in found.remarks[0]


def test_sentences_of_a_language_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("".join(f"das Haus am See {number}\n" for number in range(20)))
    spec = ServedSpec.model_validate({"kind": "served", "url": "https://host/v1", "model": "m", "sentences": str(path)})
    assert len(sentences_of(spec)) == len(SENTENCES)
    path.write_text("zu kurz\n")
    with pytest.raises(UserError, match="has 0 sentences"):
        sentences_of(spec)


def scored(*pieces: str, sent: int = 0) -> Scored:
    return Scored(pieces, np.full(len(pieces), -1.0), np.zeros(len(pieces), bool), ({},) * len(pieces), sent)


def test_tokens_that_differ_from_the_text_are_told_apart() -> None:
    assert unlike_text(scored("a ", "cat"), "a cat") == unlike_text(scored("<s>", "a ", "cat"), "a cat") == ""
    assert unlike_text(scored("a ", "cat", sent=5), "a cat") == "2 tokens are scored of 5 that it counts"
    assert "begins twice" in unlike_text(scored("<s>", "<s>", "a ", "cat"), "a cat")
    assert "cut" in unlike_text(scored("<s>", "a "), "a cat")
    assert "template" in unlike_text(scored("User: ", "a cat", "\nAssistant:"), "a cat")
    assert unlike_text(scored("sure", "!"), "a cat") == WITHOUT_ECHO
    assert unlike_text(scored("\ufffd", "\ufffd", "n"), "ñn") == ""  # parts of a character


def test_tokens_within_a_part_of_the_text_are_found_after_any_beginning() -> None:
    assert scored("<s>", "ab", "cd", "ef").within("abcdef", 3, 5).tolist() == [False, False, True, True]
    assert scored("ab", "cd", "ef").within("abcdef", 0, 2).tolist() == [True, False, False]
    assert scored("<s>", "ab", "cd").loss("abcd", 2, 4) == (1.0, 1)
    first = Scored(("ab", "cd"), np.array([np.nan, -2.0]), np.zeros(2, bool), ({},) * 2, 0)
    assert first.loss("abcd", 0, 4) == (2.0, 1)
    with pytest.raises(RunError, match="none can be predicted"):
        first.loss("abcd", 0, 2)
    with pytest.raises(RunError, match="do not join"):
        scored("ab", "x").within("abcdef", 0, 2)
