"""Language models behind HTTP services: requests in three shapes, limits, and what an answer says of each token.

OpenAI's client carries requests to its shapes and retries; SGLang's own shape is a plain POST. Nothing that is raised holds
the key or a text that was sent.
"""

import asyncio
import importlib
import json
import math
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from memlib.errors import ResourcesError, RunError, UserError
from memlib.specs import ServedSpec

Api = Literal["completions", "generate", "chat"]
APIS: tuple[Api, ...] = ("completions", "generate", "chat")
TRIES = 6  # of a request that fails for a reason that may pass
LONGEST_WAIT = 60.0  # seconds between two tries, unless the service says how long
MOST_WAIT = 600.0  # seconds that a service may ask to wait
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
CODE = re.compile(r"[A-Za-z][A-Za-z_]{2,40}")  # names of errors; a service's own words may quote texts and keys
SERVICES = "MEMLIB_SERVICES"  # hosts to which recipes may send texts on this machine
MARKER = -9000.0  # nats; services mark tokens below their ranks by -9999
ABOVE = 1e-6  # nats above 0 that are rounding
MOST_BEFORE = 2  # tokens without a probability at the start of a text: its beginning, and the first token
PLACEHOLDER = "none"  # OpenAI's client wants a key even of services without one


class Refused(RunError):
    """A request that a service refuses; `status` is that of HTTP, 0 for an answer in no known shape."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Scored:
    """The tokens of a given text, as a service counts and scores them."""

    pieces: tuple[str, ...]  #: text of each token.
    log_p: NDArray[np.float64]  #: (num_tokens,) log probability of each token; NaN where none is given, as of the first one.
    #: (num_tokens,) whether the token has the largest probability; False where none is given.
    right: NDArray[np.bool_]
    top: tuple[Mapping[str, float], ...]  #: log probabilities of the likeliest tokens at each place, by text.
    sent: int  #: number of tokens of the prompt by the service's own count; 0 if it does not say.

    def within(self, text: str, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which tokens overlap a part of the text, in characters: (num_tokens,); nothing precedes the first of all.

        Raises:
            RunError: when the tokens do not join to the text, or one of them has no usable log probability.
        """
        joined = "".join(self.pieces)
        if not joined.endswith(text):
            raise RunError("the service's tokens do not join to the text that was sent, so none can be told apart")
        ends = np.cumsum([len(piece) for piece in self.pieces]) - (len(joined) - len(text))
        starts = np.concatenate([[-math.inf], ends[:-1]])
        inside: NDArray[np.bool_] = np.maximum(starts, start) < np.minimum(ends, stop)
        known = np.isfinite(self.log_p)
        inside[: min(MOST_BEFORE, int(known.argmax()) if known.any() else MOST_BEFORE)] = False
        self.check(inside)
        return inside

    def loss(self, text: str, start: int, stop: int) -> tuple[float, int]:
        """Return minus the log probability of a part of the text, in nats, and its number of tokens.

        Raises:
            RunError: as `within`, and when no token of it follows another.
        """
        inside = self.within(text, start, stop)
        if not inside.any():
            raise RunError(
                "no token of a text's scored part follows another token, so none can be predicted; use a longer one"
            )
        return -float(self.log_p[inside].sum()), int(inside.sum())

    def check(self, tokens: NDArray[np.bool_]) -> None:
        """Raise RunError unless all of some tokens have a log probability that is one."""
        values = self.log_p[tokens]
        bad = ~np.isfinite(values) | (values < MARKER) | (values > ABOVE)
        if bad.any():
            raise RunError(
                f"the service gives no usable log probability of {int(bad.sum())} of {len(values)} tokens of a text; "
                "nothing is scored without them"
            )


@dataclass(frozen=True)
class Generated:
    """A text that a service generated."""

    text: str
    log_p: tuple[float, ...] | None  #: log probability of each generated token; None if none are given.


@dataclass
class Budget:
    """Limits of requests and tokens, per minute and in all, shared by all requests to a service in this process."""

    spec: ServedSpec
    requests: int = 0
    tokens: int = 0
    _free_at: float = field(default=0.0, repr=False)

    async def take(self, tokens: int) -> None:
        """Wait until a request of some tokens is within the limits per minute.

        Raises:
            ResourcesError: when it would exceed the limits in all.
        """
        for name, used, more in (("requests", self.requests, 1), ("tokens", self.tokens, tokens)):
            most = getattr(self.spec, name)
            if most is not None and used + more > most:
                raise ResourcesError(
                    f"{used:,} {name} were sent to {self.spec.host}, and {name} allows {most:,}; what was answered is kept: "
                    "raise the limit to go on"
                )
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        pauses = [60 / self.spec.requests_per_minute] if self.spec.requests_per_minute else []
        pauses += [60 * tokens / self.spec.tokens_per_minute] if self.spec.tokens_per_minute else []
        now = time.monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + max(pauses, default=0.0)
        await asyncio.sleep(begin - now)


_BUDGETS: dict[str, Budget] = {}


def budget_of(spec: ServedSpec) -> Budget:
    """Return the budget of a model behind a service, one for each in this process."""
    budget = _BUDGETS.setdefault(f"{spec.url} {spec.model} {spec.key}", Budget(spec))
    budget.spec = spec  # whose limits are in force
    return budget


def renew_budget(spec: ServedSpec) -> None:
    """Reset the counts of requests and tokens, for another run."""
    _BUDGETS[f"{spec.url} {spec.model} {spec.key}"] = Budget(spec)


class Service:
    """A client of a service, for one event loop.

    Args:
        spec: the service.
        api: shape of requests.

    Raises:
        UserError: when the key's variable is not set, or OpenAI's client is not installed.
    """

    def __init__(self, spec: ServedSpec, api: Api) -> None:
        self.spec, self.api, self._key = spec, api, key_of(spec)
        try:
            openai = importlib.import_module("openai")
        except ImportError as error:
            raise UserError("models behind a service need openai: pip install -e '.[served]' in memlib's folder") from error
        carrier = openai.DefaultAsyncHttpxClient(follow_redirects=False)  # texts and key go to no other host
        self._client = openai.AsyncOpenAI(
            base_url=spec.url, api_key=self._key or PLACEHOLDER, max_retries=0, timeout=spec.timeout, http_client=carrier
        )  # fmt: skip
        self.names: set[str] = set()  # of the model and the system's fingerprint, in all answers
        self.asked = 0
        self._with_p = True

    async def __aenter__(self) -> "Service":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def score(self, prompt: str | Sequence[int], *, temperature: float = 1.0) -> Scored:
        """Return the log probability of each token of a text, or of a sequence of token ids.

        Raises:
            Refused: when the service does not score given texts.
        """
        content: dict[str, Any]
        if self.api == "completions":
            content = {"prompt": _plain(prompt), "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": temperature}
            answer = await self._post("completions", content, prompt)
            with self._known_shape():
                return self._of_completions(answer)
        if self.api == "generate":
            kind = "text" if isinstance(prompt, str) else "input_ids"
            content = {
                kind: _plain(prompt), "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
                "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1, "return_text_in_logprobs": True,
            }  # fmt: skip
            answer = await self._post("generate", content, prompt)
            with self._known_shape():
                return self._of_generate(answer)
        raise Refused(f"{self.spec.host} answers chats, which have no log probabilities of given texts")

    async def generate(self, prompt: str, *, tokens: int, temperature: float, seed: int | None = None) -> Generated:
        """Return a continuation of a text, or the answer to it.

        Args:
            tokens: largest number of tokens to generate.
            seed: passed on where the shape has a place for it; services may ignore it.
        """
        if self.api == "generate":
            how: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature}
            native = await self._post("generate", {"text": prompt, "sampling_params": how}, prompt, more=tokens)
            with self._known_shape():
                return Generated(_text(_at(native, "text")), None)
        seeded = {} if seed is None else {"seed": seed}
        if self.api == "completions":
            content = {"prompt": prompt, "max_tokens": tokens, "temperature": temperature, **seeded}
            answer: dict[str, Any] | None = None
            if self._with_p:
                try:
                    answer = await self._post("completions", {**content, "logprobs": 1}, prompt, more=tokens)
                except Refused as error:
                    if error.status not in (400, 422):
                        raise
                    self._with_p = False  # probabilities are refused, not texts
            answer = answer or await self._post("completions", content, prompt, more=tokens)
            with self._known_shape():
                choice = _at(answer, "choices", 0)
                return Generated(_text(_at(choice, "text")), _generated_log_p(choice.get("logprobs")))
        turns = [{"role": "user", "content": prompt}]
        content = {"messages": turns, "max_tokens": tokens, "temperature": temperature, **seeded}
        answer = await self._post("chat/completions", content, prompt, more=tokens)
        with self._known_shape():
            choice = _at(answer, "choices", 0)
            return Generated(_text(_at(choice, "message", "content")), _generated_log_p(choice.get("logprobs")))

    @contextmanager
    def _known_shape(self) -> Iterator[None]:
        """Turn errors of reading an answer into a refusal."""
        try:
            yield
        except (AttributeError, TypeError, ValueError, IndexError, KeyError, OverflowError):
            raise Refused(f"{self.spec.host} answers in no known shape; set api to that of the service") from None

    async def models(self) -> list[str]:
        """Return the names of the models that the service lists; none if it does not."""
        try:
            answer = json.loads(await self._client.get("/models", cast_to=str))
            return [str(one["id"]) for one in answer["data"]]
        except Exception:  # whatever the client or an unlike answer raises: a name can be given
            return []

    async def _post(
        self, path: str, content: Mapping[str, Any], prompt: str | Sequence[int], *, more: int = 1
    ) -> dict[str, Any]:
        """Send a request, again if it fails for a reason that may pass, and return the answer."""
        body = {"model": self.spec.model, **content}
        place = self.spec.url.rstrip("/").removesuffix("/v1") + "/generate" if path == "generate" else f"/{path}"
        said = ""
        for attempt in range(TRIES):
            await budget_of(self.spec).take(_count(prompt) + more)
            self.asked += 1
            try:
                return self._read(await self._client.post(place, body=body, cast_to=str))
            except Exception as error:  # the client's own types, loaded late
                status, wait = getattr(error, "status_code", None), None
                if isinstance(error, Refused | UserError | RunError):
                    raise
                if status is not None and status not in PASSING:
                    raise self._refusal(path, status, _code(error)) from None
                if status is None and not _is_lost(error):
                    raise Refused(
                        f"{self.spec.host} cannot be asked ({type(error).__name__}); is the address right?"
                    ) from None
                said = type(error).__name__ if status is None else f"status {status}"
                wait = _retry_after(error)
            if wait is not None and wait > MOST_WAIT:
                raise RunError(
                    f"{self.spec.host} asks to wait ({said}), longer than {MOST_WAIT:.0f} s; what was answered is kept"
                )
            pause = min(LONGEST_WAIT, 0.5 * 2**attempt) if wait is None else wait
            await asyncio.sleep(pause * random.uniform(1.0, 1.25))
        raise RunError(
            f"{self.spec.host} does not answer ({said}) after {TRIES} tries: is the address right? What was answered is "
            "kept: run the same command again"
        )

    def _read(self, answer: str) -> dict[str, Any]:
        """Return the content of an answer, and note by whom it says it is.

        Raises:
            Refused: for an answer that is no JSON object, or an error under status 200.
        """
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            what = "a page" if answer.lstrip()[:1] == "<" else "a text"
            raise Refused(f"{self.spec.host} answers with {what}, not JSON; is url the address of its API?") from None
        if isinstance(found, list) and len(found) == 1:
            found = found[0]  # SGLang's answer to a list of prompts
        if not isinstance(found, dict):
            raise Refused(f"{self.spec.host} answers with a {type(found).__name__} where an object is expected")
        if found.get("error"):
            raise Refused(f"{self.spec.host} answers with an error under status 200{_named(found['error'])}")
        name, system = found.get("model"), found.get("system_fingerprint")
        if name or system:
            self.names.add(" ".join(str(one)[:80] for one in (name, system) if one))
        return found

    def _refusal(self, path: str, status: int, said: str) -> RunError:
        if status in (401, 403):
            known = f"the key in {self.spec.key}" if self.spec.key else "requests without a key; name its variable (key)"
            return Refused(f"{self.spec.host} refuses {known} (status {status})", status)
        if 300 <= status < 400:
            return Refused(f"{self.spec.host} sends requests on to another address; give that address as url", status)
        long = "; a text may be too long, or log probabilities are not given" if status in (400, 413, 422) else ""
        return Refused(f"{self.spec.host} refuses /{path} with status {status}{said}{long}", status)

    def _of_completions(self, answer: Mapping[str, Any]) -> Scored:
        """Return the scores in an answer of OpenAI's shape, without the token that was generated."""
        found = _at(answer, "choices", 0).get("logprobs")
        if isinstance(found, dict) and "content" in found and "tokens" not in found:
            raise Refused(GENERATED_ALONE)
        if not isinstance(found, dict) or not found.get("tokens"):
            raise Refused(f"{self.spec.host} returns no log probabilities of given texts")
        sent = (answer.get("usage") or {}).get("prompt_tokens") or 0
        made = (answer.get("usage") or {}).get("completion_tokens")
        pieces, values = [str(piece) for piece in found["tokens"]], found.get("token_logprobs") or []
        last = len(pieces) - (1 if made is None else int(made))
        if last < 1:
            raise Refused(GENERATED_ALONE)
        tops = found.get("top_logprobs") or [None] * len(pieces)
        return _scored(pieces[:last], values[:last], [one or {} for one in tops[:last]], int(sent))

    def _of_generate(self, answer: Mapping[str, Any]) -> Scored:
        """Return the scores in an answer of SGLang's shape."""
        found = _at(answer, "meta_info")
        rows, tops = found.get("input_token_logprobs"), found.get("input_top_logprobs")
        if not rows:
            raise Refused(f"{self.spec.host} returns no log probabilities of given texts")
        pieces, values = [str(row[2]) for row in rows], [row[0] for row in rows]
        likeliest = [{str(one[2]): one[0] for one in place or ()} for place in tops or [()] * len(rows)]
        return _scored(pieces, values, likeliest, int(found.get("prompt_tokens") or 0))


GENERATED_ALONE = (
    "the service returns log probabilities of generated tokens, not of the prompt (llama.cpp does so, whatever echo says)"
)


def key_of(spec: ServedSpec) -> str | None:
    """Return the key of a service; None without one.

    Raises:
        UserError: when its variable is not set.
    """
    if spec.key is None:
        return None
    found = os.environ.get(spec.key, "").strip()
    if not found:
        raise UserError(f"the environment variable {spec.key} (key of {spec.host}) is not set")
    return found


def first_model(spec: ServedSpec) -> str:
    """Return the name of the first model that a service lists.

    Raises:
        UserError: when it lists none.
    """

    async def names() -> list[str]:
        async with Service(spec, "completions") as service:
            return await service.models()

    found = asyncio.run(names())
    if not found:
        raise UserError(f"{spec.host} lists no model: give its name")
    return found[0]


def services_in(content: Any) -> Iterator[str]:
    """Yield the hosts of services in the content of a recipe, as plain JSON."""
    if isinstance(content, Mapping):
        if content.get("kind") == "served":
            yield urlsplit(str(content.get("url"))).netloc
        for value in content.values():
            yield from services_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from services_in(value)


def allow_services(hosts: Iterable[str]) -> None:
    """Allow services in this process and its children, in addition to MEMLIB_SERVICES."""
    os.environ[SERVICES] = ",".join(dict.fromkeys([*_allowed(), *hosts]))


def _allowed() -> list[str]:
    return [host for name in os.environ.get(SERVICES, "").split(",") if (host := name.strip())]


def check_consent(spec: ServedSpec) -> None:
    """Raise UserError unless recipe and machine allow that texts are sent: a recipe may come from a store or a server."""
    if not spec.sends:
        raise UserError(f"texts would be sent to {spec.host}: set sends to true in the recipe (--sends) if they may be")
    if spec.host not in _allowed():
        raise UserError(
            f"the recipe sends texts to {spec.host}, which this machine does not allow; if you trust that service, set "
            f"{SERVICES}={spec.host}"
        )


def _scored(pieces: Sequence[str], values: Sequence[Any], tops: Sequence[Mapping[str, Any]], sent: int) -> Scored:
    if len(values) != len(pieces) or len(tops) != len(pieces):
        raise Refused("the service returns log probabilities of another number of tokens than it names")
    log_p = np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    likeliest = tuple({str(piece): float(value) for piece, value in place.items() if value is not None} for place in tops)
    best = np.array([max(place.values(), default=math.inf) for place in likeliest])
    right = np.isfinite(log_p) & (log_p >= best - 1e-6)
    return Scored(tuple(pieces), log_p, right, likeliest, sent)


def _generated_log_p(found: Any) -> tuple[float, ...] | None:
    """Return log probabilities of generated tokens, in either of OpenAI's shapes; None if there are none."""
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("content"), list):
        values = [one.get("logprob") for one in found["content"] if isinstance(one, dict)]
    else:
        values = list(found.get("token_logprobs") or [])
    usable = [float(value) for value in values if isinstance(value, int | float)]
    return tuple(usable) if usable and len(usable) == len(values) else None


def _at(found: Any, *path: str | int) -> Any:
    """Return a value within an answer.

    Raises:
        Refused: when there is none.
    """
    for step in path:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            raise Refused(f"the service's answer has no {'.'.join(map(str, path))}; set api to the service's shape") from None
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise Refused(f"the service answers with a {type(found).__name__} where a text is expected")
    return found


def _code(error: Exception) -> str:
    """Return the name that a service gives an error; never its words, which may quote what was sent."""
    return _named(getattr(error, "body", None))


def _named(body: Any) -> str:
    names = [body.get(name) for name in ("code", "type")] if isinstance(body, dict) else []
    found = next((name for name in names if isinstance(name, str) and CODE.fullmatch(name)), "")
    return f" ({found})" if found else ""


def _plain(prompt: str | Sequence[int]) -> str | list[int]:
    return prompt if isinstance(prompt, str) else [int(token) for token in prompt]


def _count(prompt: str | Sequence[int]) -> int:
    """Return the number of tokens of a prompt; of a text, an estimate."""
    return max(1, len(prompt.encode()) // 4) if isinstance(prompt, str) else len(prompt)


def _is_lost(error: Exception) -> bool:
    return type(error).__name__ in ("APIConnectionError", "APITimeoutError")


def _retry_after(error: Exception) -> float | None:
    """Return the seconds that a service asks to wait; None if it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None
