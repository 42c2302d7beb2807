"""Tests of a service before it is used as an instrument: what can be asked of it, and do its numbers mean what they should?

A dozen public sentences are scored, alone and joined, twice and in another order, in order and shuffled. What fails is named
in a line; the largest difference between equal requests is the noise of the service, with which scores are compared later.
"""

import asyncio
import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memlib.errors import RunError, UserError
from memlib.models.external.served import ABOVE, APIS, GENERATED_ALONE, MARKER, Api, Generated, Refused, Scored, Service
from memlib.specs import ServedSpec

Level = Literal["scores", "probabilities", "text"]
LEVELS: dict[Level, str] = {
    "scores": "scores given texts",
    "probabilities": "generates text with probabilities, and scores no given text",
    "text": "generates text alone",
}
HOW_TESTED = (
    "Before and after the audit, a dozen public sentences were asked for: twice, in another order, in parts and with their "
    "words shuffled. Only a service whose numbers mean what they should is used."
)
HOW_TESTED_BY_TEXT = (
    "Before and after the audit, the beginnings of public sentences were sent twice; a service that answers nothing, or "
    "alike to all of them, is not used."
)
SENTENCES = (
    "The train to the coast leaves every morning at half past seven.",
    "She put the letter on the kitchen table and went out for a walk.",
    "Water boils at a lower temperature in the mountains than at the sea.",
    "The committee will meet again next week to discuss the new budget.",
    "Most of the houses in the old town were built of brick and stone.",
    "He could not remember where he had left the keys to the car.",
    "The museum is closed on Mondays, but the garden is open all year.",
    "After the storm, the farmers repaired the fences around their fields.",
    "The company sold more machines this year than in any year before.",
    "Children under twelve can travel free of charge with their parents.",
    "The river was so low in summer that people walked across it.",
    "In the evening they listened to the radio and played a game of cards.",
)
FEWEST_SENTENCES = 8
REPEATED = 0.5  # nats a token by which equal requests may differ; more is no measurement
REMARKED = 0.05
UNLIKE = 0.25  # of the answers may be others after an audit, beyond those that differ at once
PART = 0.01  # nats a token by which a part may score otherwise as the start of a longer text, whatever the noise
WORSE = 10 / 12  # of the sentences score worse with their words shuffled
SLACK = 1e-3  # of sums of probabilities
ANSWER = 12  # tokens of an answer to a sentence


@dataclass(frozen=True)
class ServiceCheck:
    """The result of a test of a service: the level of access that it gives, and problems."""

    level: Level
    api: Api
    problems: tuple[str, ...] = ()  #: reasons not to use its scores; none if they can be used.
    remarks: tuple[str, ...] = ()
    noise: float = 0.0  #: largest difference of one token's log probability between equal requests, in nats.
    noise_of_texts: float = 0.0  #: the same of the mean log probability of a text; of answers, the share that differ.
    names: tuple[str, ...] = ()  #: the model's names in the answers.
    sums: tuple[float, ...] = ()  #: mean log probability of each sentence.
    answers: tuple[str, ...] = ()  #: digests of answers at temperature 0, where texts are generated.
    asked: int = 0  #: number of requests.
    when: str = ""  #: date of the test, in UTC.
    changed: str = ""  #: how the model differs from what it was before the audit; "" if it does not.

    def as_json(self) -> dict[str, Any]:
        """Return all values as plain JSON."""
        return asdict(self)

    @classmethod
    def of(cls, content: dict[str, Any]) -> "ServiceCheck":
        """Return the check in the content of `as_json`."""
        whole: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
        return cls(**whole)

    @property
    def said(self) -> str:
        """The level, in a sentence."""
        return f"The service {LEVELS[self.level]} ({self.api})."


def sentences_of(spec: ServedSpec) -> tuple[str, ...]:
    """Return the sentences of a test.

    Raises:
        UserError: when the file of a recipe cannot be read, or has too few.
    """
    if spec.sentences is None:
        return SENTENCES
    try:
        lines = Path(spec.sentences).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read sentences: {spec.sentences} ({type(error).__name__})") from error
    found = tuple(dict.fromkeys(line.strip() for line in lines if len(line.split()) >= 4))
    if len(found) < FEWEST_SENTENCES:
        raise UserError(
            f"{spec.sentences} has {len(found)} sentences of four words or more; give at least {FEWEST_SENTENCES}"
        )
    return found[: len(SENTENCES)]


def check_service(spec: ServedSpec) -> ServiceCheck:
    """Find out what a service can be asked, and test it.

    Raises:
        RunError: when it does not answer.
        UserError: when the key or the sentences are missing.
    """
    return replace(asyncio.run(_check(spec, sentences_of(spec))), when=f"{datetime.now(UTC):%Y-%m-%d}")


def check_again(spec: ServedSpec, before: ServiceCheck) -> ServiceCheck:
    """Test a service after an audit, and compare it with what it was before."""
    after = check_service(replace_api(spec, before))
    return replace(after, changed=_changed(before, after))


def replace_api(spec: ServedSpec, check: ServiceCheck) -> ServedSpec:
    """Return a service with the shape of requests that was found."""
    level = "text" if check.level == "text" else spec.level
    return spec.model_copy(update={"api": check.api, "level": level})


def _changed(before: ServiceCheck, after: ServiceCheck) -> str:
    if before.names and after.names and set(before.names) != set(after.names):
        return f"the model's name was {', '.join(before.names)} before, and is {', '.join(after.names)} after"
    if before.level != after.level:
        return f"the service {LEVELS[before.level]} before, and {LEVELS[after.level]} after"
    if after.problems:
        return f"after the audit, {after.problems[0]}"
    if before.level != "scores":
        pairs = list(zip(before.answers, after.answers, strict=True))
        unlike = float(np.mean([one != other for one, other in pairs])) if pairs else 0.0
        usual = max(before.noise_of_texts, after.noise_of_texts)
        if unlike <= usual + UNLIKE:
            return ""
        return (
            f"{unlike:.0%} of answers at temperature 0 are others after the audit; of those asked twice at once, {usual:.0%}"
        )
    apart = float(np.abs(np.array(before.sums) - np.array(after.sums)).max())
    most = max(PART, 5 * max(before.noise_of_texts, after.noise_of_texts))
    if apart > most:
        return f"the same sentence scores {apart:.2g} nats a token differently after the audit; equal requests differ by less"
    return ""


async def _check(spec: ServedSpec, sentences: Sequence[str]) -> ServiceCheck:
    shapes: Sequence[Api] = APIS if spec.api == "auto" else (spec.api,)
    reasons: list[str] = []
    spent = 0
    if spec.level == "auto":
        for api in shapes:
            async with Service(spec, api) as service:
                try:
                    first = await service.score(sentences[0])
                except Refused as error:
                    reasons.append(str(error))
                    spent += service.asked
                    continue
                unlike = unlike_text(first, sentences[0])
                if unlike == GENERATED_ALONE:
                    reasons.append(unlike)
                    spent += service.asked
                    continue
                found = await _check_scores(service, sentences)
                return replace(found, asked=found.asked + spent)
    for api in shapes:
        async with Service(spec, api) as service:
            try:
                found = await _check_answers(service, sentences)
            except Refused as error:
                reasons.append(str(error))
                spent += service.asked
                continue
            why = GENERATED_ALONE if GENERATED_ALONE in reasons else "; ".join(reasons[:1])
            return replace(found, remarks=((why, *found.remarks) if why else found.remarks), asked=found.asked + spent)
    raise RunError(reasons[0] if reasons else f"{spec.host} cannot be asked")


async def score_text(service: Service, text: str, what: str) -> Scored:
    """Return the scored tokens of a text.

    Args:
        what: such texts, in the plural.

    Raises:
        RunError: when the tokens are not those of the text.
    """
    scored = await service.score(text)
    if said := unlike_text(scored, text):
        raise RunError(f"the service cannot be used for these {what}: {said}")
    return scored


def unlike_text(scored: Scored, text: str) -> str:
    """Return how the tokens of a service differ from the text that was sent; "" if they do not.

    A token before the text, for its beginning, is no difference.
    """
    pieces = scored.pieces
    joined = "".join(pieces)
    if "\ufffd" in joined or "bytes:" in joined:  # parts of characters, whose text is not told
        return "" if scored.sent in (0, len(pieces)) else f"{len(pieces)} tokens are scored of {scored.sent} that it counts"
    if joined == text or "".join(pieces[1:]) == text:
        return "" if scored.sent in (0, len(pieces)) else f"{len(pieces)} tokens are scored of {scored.sent} that it counts"
    if len(pieces) > 2 and pieces[0] == pieces[1] and "".join(pieces[2:]) == text:
        return "the text begins twice (its beginning is added by template and tokenizer)"
    rest = "".join(pieces[1:])
    if joined and (joined in text or (rest and rest in text)):
        return f"{len(joined)} of {len(text)} characters are scored: texts are cut (truncate_prompt_tokens)"
    if text.strip() and text.strip() in joined:
        return "the text is wrapped by a template"
    return GENERATED_ALONE


async def _check_scores(service: Service, sentences: Sequence[str]) -> ServiceCheck:
    """Test the log probabilities of given texts."""
    remarks: list[str] = []
    long = " ".join(sentences)
    once = [await service.score(one) for one in sentences]
    whole = await service.score(long)
    order = random.Random(0).sample(range(len(sentences)), len(sentences))
    again = dict(zip(order, await _together(service, [sentences[place] for place in order]), strict=True))
    shuffled = [await service.score(_shuffled(one)) for one in sentences]
    warm = await service.score(sentences[0], temperature=0.5)
    noise, of_texts = _noise(once, [again[place] for place in range(len(sentences))])
    asked = [*zip(once, sentences, strict=True), (whole, long)]
    problem = (
        next((said for one, text in asked if (said := unlike_text(one, text))), "")
        or next((said for one in [*once, whole] if (said := _unusable(one))), "")
        or _not_repeated(noise)
        or await _parts(service, sentences, once, noise)
        or _knows_order(once, shuffled)
        or (f"the model's name changes between answers: {', '.join(sorted(service.names))}" if len(service.names) > 1 else "")
    )  # fmt: skip
    if noise > REMARKED:
        remarks.append(f"equal requests differ by up to {noise:.2g} nats a token")
    if _noise([once[0]], [warm])[0] > max(REMARKED, 5 * noise):
        remarks.append("the probabilities depend on the temperature, which is 1 in this audit")
    return ServiceCheck(
        "scores", service.api, (problem,) if problem else (), tuple(remarks), noise, of_texts, tuple(sorted(service.names)),
        tuple(mean_log_p(one) for one in once), (), service.asked,
    )  # fmt: skip


async def _together(service: Service, texts: Sequence[str]) -> list[Scored]:
    """Score texts as an audit does, with as many requests under way."""
    free = asyncio.Semaphore(service.spec.together)

    async def one(text: str) -> Scored:
        async with free:
            return await service.score(text)

    return list(await asyncio.gather(*map(one, texts)))


def mean_log_p(scored: Scored) -> float:
    """Return the mean log probability of the tokens that have one."""
    known = scored.log_p[np.isfinite(scored.log_p)]
    return float(known.mean()) if len(known) else math.nan


def _noise(first: Sequence[Scored], second: Sequence[Scored]) -> tuple[float, float]:
    """Return the largest difference of a token, and of a text's mean, between equal requests; infinite for other tokens."""
    token = text = 0.0
    for one, other in zip(first, second, strict=True):
        if one.pieces != other.pieces:
            return math.inf, math.inf
        apart = np.abs(one.log_p - other.log_p)
        token = max(token, float(np.nanmax(apart, initial=0.0)))
        text = max(text, abs(mean_log_p(one) - mean_log_p(other)))
    return token, text


def _unusable(scored: Scored) -> str:
    """Return why the log probabilities of a text are none; "" if they are."""
    values = scored.log_p[2:] if len(scored.log_p) > 2 else scored.log_p[1:]  # a beginning, and the first token
    known: NDArray[np.float64] = scored.log_p[np.isfinite(scored.log_p)]
    if len(values) and not np.isfinite(values).all():
        return f"{int((~np.isfinite(values)).sum())} of {len(values)} tokens of a text have no log probability"
    if not len(known) or bool((np.abs(known) < 1e-9).all()):
        return "all log probabilities are 0 (the service accepts the parameter and does not compute them)"
    if bool((known < MARKER).any()):
        return f"log probabilities of {known.min():.0f} mark tokens below a rank; they are no probabilities"
    if bool((known > ABOVE).any()):
        return f"a log probability is {known.max():.2g}, above 0"
    if len(known) > 2 and float(np.ptp(known)) < 1e-9:
        return "all tokens of a text have the same log probability"
    for place, top in enumerate(scored.top):
        if sum(math.exp(value) for value in top.values()) > 1 + SLACK:
            return f"probabilities of the likeliest tokens at place {place} of a text add up to more than 1"
    return ""


def _not_repeated(noise: float) -> str:
    if noise <= REPEATED:
        return ""
    much = "into other tokens" if math.isinf(noise) else f"up to {noise:.2g} nats a token differently"
    return f"the same text scores {much}, by the order of requests: turn the service's prefix cache off"


async def _parts(service: Service, sentences: Sequence[str], once: Sequence[Scored], noise: float) -> str:
    """Return how the first part of a text scores otherwise as the start of a longer one; "" if it does not."""
    most = max(PART, 5 * noise)
    for place in range(0, len(sentences) - 1, 3):
        alone, joined = once[place], await service.score(f"{sentences[place]} {sentences[place + 1]}")
        same = 0
        while same < min(len(alone.pieces), len(joined.pieces)) and alone.pieces[same] == joined.pieces[same]:
            same += 1
        kept = slice(0, max(0, same - 1))  # the last token may continue
        apart = float(np.nanmax(np.abs(alone.log_p[kept] - joined.log_p[kept]), initial=0.0))
        if not same or apart > most:
            return f"a text's first part scores {apart:.2g} nats a token differently as the start of a longer text"
    return ""


def _knows_order(once: Sequence[Scored], shuffled: Sequence[Scored]) -> str:
    sums = [(np.nansum(one.log_p), np.nansum(other.log_p)) for one, other in zip(once, shuffled, strict=True)]
    worse = sum(bool(first > second) for first, second in sums)
    if worse >= math.floor(WORSE * len(once)):
        return ""
    return (
        f"only {worse} of {len(once)} sentences score worse with their words shuffled: the probabilities are not those of "
        "the texts, or the model does not know their language (give sentences of its own)"
    )


def _shuffled(sentence: str) -> str:
    words = sentence.split()
    return " ".join(random.Random(1).sample(words, len(words)))


async def _check_answers(service: Service, sentences: Sequence[str]) -> ServiceCheck:
    """Test generated texts."""
    starts = [" ".join(one.split()[: max(3, len(one.split()) // 2)]) for one in sentences[:FEWEST_SENTENCES]]
    first: list[Generated] = [await service.generate(one, tokens=ANSWER, temperature=0.0) for one in starts]
    second = [await service.generate(one, tokens=ANSWER, temperature=0.0) for one in starts]
    differ = float(np.mean([one.text != other.text for one, other in zip(first, second, strict=True)]))
    problem = ""
    if not any(one.text.strip() for one in first):
        problem = "the service answers with empty texts"
    elif len({one.text for one in first}) == 1:
        problem = "the service gives the same answer to different prompts"
    elif len(service.names) > 1:
        problem = f"the model's name changes between answers: {', '.join(sorted(service.names))}"
    has_p = all(one.log_p is not None and any(value < 0 for value in one.log_p) and min(one.log_p) > MARKER for one in first)
    remarks = (f"{differ:.0%} of answers differ when asked again at temperature 0",) if differ else ()
    return ServiceCheck(
        "probabilities" if has_p else "text", service.api, (problem,) if problem else (), remarks, 0.0, differ,
        tuple(sorted(service.names)), (), tuple(hashlib.sha256(one.text.encode()).hexdigest()[:16] for one in first),
        service.asked,
    )  # fmt: skip
