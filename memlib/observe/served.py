"""Stages that ask a service: its test before and after, and parts of texts, each of which commits by itself.

They run in the process that drives the run, where the key and the limits are. Answers are recorded as they come, so that a
killed run asks nothing again that was answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from memlib.errors import RunError
from memlib.identity import canonical_json, derive_seed, file_digest
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, AnyArtifact, Artifact, Runner, Stage
from memlib.sanitize import count_of
from memlib.specs import ServedSpec
from memlib.store import Attempt
from memlib.store.permissions import scratch

if TYPE_CHECKING:
    import torch

    from memlib.models.external.served import Service
    from memlib.observe.service_checks import ServiceCheck

CHECK_FILE, ANSWERS_FILE = "check.json", "answers.npz"
PART = 200  # texts that are asked for together, and commit together
CHECKS = 60  # requests of both tests together, about
CHARACTERS = 4  # a token, about
REQUESTS = "requests"  # name of their number among recorded answers

Answer = Mapping[str, NDArray[Any]]
"""What is kept of the answers to one text, by name."""
Asked = TypeVar("Asked")


@dataclass(frozen=True)
class CheckService(Stage["ServiceCheck"]):
    """Test a service: check.json. After an audit, also compare it with what it was before."""

    declared: ClassVar[Declared] = Declared("check_service", 1)
    title: ClassVar[str] = "test the service"

    service: ServedSpec = field(metadata=UNKEYED)
    about: str  #: digest of what the audit asks: each tests the service itself.
    before: Artifact[ServiceCheck] | None = None  #: the test before the audit; None if this is it.
    answers: tuple[AnyArtifact, ...] = ()  #: what was asked since.

    @property
    def label(self) -> str:
        """The moment of the test."""
        return "before" if self.before is None else "after"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The service, and what the audit asks."""
        return {"service": self.service.identity, "about": self.about}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The test before and the answers, and digests of what the recipe names."""
        digest = hashlib.sha256(canonical_json(self.service.identity).encode()).hexdigest()
        return {**super().inputs, **files_of(self.service), "service": canonical_json([digest])}  # as of a model at hand

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the result.

        Raises:
            RunError: before an audit, for a service whose answers cannot be used.
        """
        from memlib.models.external.served import check_consent
        from memlib.observe.service_checks import check_again, check_service

        check_consent(self.service)
        found = check_service(self.service) if self.before is None else check_again(self.service, self.before.content)
        if self.before is None and found.problems:
            raise RunError(f"the service {self.service.host} cannot be used: {found.problems[0]}")
        attempt.path(CHECK_FILE).write_text(json.dumps(found.as_json()), encoding="utf-8")

    @classmethod
    def open(cls, artifact: Artifact[ServiceCheck]) -> ServiceCheck:
        """Return the result."""
        from memlib.observe.service_checks import ServiceCheck

        return ServiceCheck.of(json.loads(artifact.path(CHECK_FILE).read_text(encoding="utf-8")))

    @classmethod
    def described(cls, artifact: Artifact[ServiceCheck]) -> list[str]:
        """State what can be asked of the service, and remarks."""
        found = artifact.content
        return [found.said, *found.remarks, *([found.changed] if found.changed else [])]


def order_of(count: int) -> NDArray[np.int64]:
    """Return the order in which texts are asked for, (count,): a random one, so that no side of a comparison comes first."""
    return np.random.default_rng(derive_seed(0, "order of texts", count)).permutation(count)


def require_scores(check: ServiceCheck, what: str, *, instead: str = "") -> None:
    """Raise RunError, before any text is sent, for a service that does not score given texts.

    Args:
        what: what needs scores, as the beginning of a sentence.
        instead: a sentence on what can be asked instead.
    """
    if check.level != "scores":
        why = "; ".join(check.remarks) or check.said.rstrip(".")
        raise RunError(f"{what} log probabilities of given texts: {why}{f'. {instead}' if instead else ''}")


def files_of(service: ServedSpec) -> dict[str, str]:
    """Return digests of the files that a service's spec names."""
    return {} if service.sentences is None else {"sentences": file_digest(Path(service.sentences).expanduser())}


def announce(runner: Runner, service: ServedSpec, what: str, *, requests: int, tokens: int) -> None:
    """State which texts go where, and how many requests and tokens that takes, before anything is sent.

    Args:
        what: the texts, as in "500 canaries".
        requests, tokens: numbers of them, about; tokens are those that are sent and generated.
    """
    from memlib.models.external.served import renew_budget

    renew_budget(service)
    cost = service.price_per_million_tokens
    price = "" if cost is None else f", {cost * tokens / 1e6:,.2f} at the price per token"
    runner.warn(
        f"sent to {service.host} ({service.model}), unless the store has the answers: {what}; at most about "
        f"{count_of(requests + CHECKS, 'request')} and {tokens:,} tokens{price}"
    )
    for name, needed in (("requests", requests), ("tokens", tokens)):
        most = getattr(service, name)
        if most is not None and needed > most:
            runner.warn(f"the service's {name} allow {most:,}, and the audit needs about {needed:,}: it would stop there")


def parts_of(count: int, size: int = PART) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place, exclusive, of each part of `count` texts."""
    for start in range(0, count, size):
        yield start, min(count, start + size)


def ask(
    service: ServedSpec,
    check: ServiceCheck,
    prompts: Mapping[str, Asked],
    work: Callable[[Service, Asked], Awaitable[Answer]],
    attempt: Attempt,
    states: Any,
) -> dict[str, Answer]:
    """Ask a service for each of some texts, but for those that were answered before an interruption.

    Args:
        check: the test of the service before.
        prompts: the texts by name.
        work: asks for one text, and returns what is kept of the answers.
        states: resume states of the store.

    Raises:
        RunError: when the service refuses, or answers no more; what was answered is kept.
    """
    from memlib.models.external.served import check_consent
    from memlib.observe.service_checks import replace_api

    check_consent(service)
    attempt.resumes = True
    with scratch("answers") as folder:
        found, asked = _read(folder / ANSWERS_FILE) if states.load(attempt.ref.key, folder) else ({}, 0)
        kept = _Kept(found, asked, folder, lambda count: states.save(attempt.ref.key, count, folder))
        missing = {name: prompt for name, prompt in prompts.items() if name not in found}
        asyncio.run(_ask_all(replace_api(service, check), missing, work, kept, attempt, len(prompts)))
    return {name: kept.answers[name] for name in prompts}


class _Kept:
    """Answers, which are recorded as they come."""

    def __init__(self, answers: dict[str, Answer], asked: int, folder: Path, save: Callable[[int], None]) -> None:
        self.answers, self.asked, self._folder, self._save = answers, asked, folder, save
        self._lock, self._saved = asyncio.Lock(), len(answers)

    async def add(self, name: str, answer: Answer, asked: int) -> None:
        """Add an answer, and return once it is recorded, with the number of requests so far."""
        self.answers[name] = answer
        async with self._lock:
            if self._saved < len(self.answers):
                self._saved = len(self.answers)
                flat = {f"{one}/{part}": values for one, kept in self.answers.items() for part, values in kept.items()}
                flat[REQUESTS] = np.array(self.asked + asked)
                np.savez(self._folder / ANSWERS_FILE, allow_pickle=False, **flat)
                self._save(self._saved)


def _read(path: Path) -> tuple[dict[str, Answer], int]:
    """Return the answers that were recorded, and the number of requests for them."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for place in arrays.files:
            name, _, part = place.rpartition("/")
            if place != REQUESTS:
                found.setdefault(name, {})[part] = arrays[place]
        return dict(found), int(arrays[REQUESTS])


async def _ask_all(
    spec: ServedSpec,
    prompts: Mapping[str, Asked],
    work: Callable[[Service, Asked], Awaitable[Answer]],
    kept: _Kept,
    attempt: Attempt,
    total: int,
) -> None:
    from memlib.models.external.served import Service

    assert spec.api != "auto", "the test of a service finds its shape"
    waiting = iter(prompts.items())

    async def worker(service: Service) -> None:
        for name, prompt in waiting:
            await kept.add(name, await work(service, prompt), service.asked)
            attempt.progress(len(kept.answers), total)

    async with Service(spec, spec.api) as service:
        tasks = [asyncio.create_task(worker(service)) for _ in range(min(spec.together, max(1, len(prompts))))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        attempt.facts |= {"requests": kept.asked + service.asked, "names": sorted(service.names)}
