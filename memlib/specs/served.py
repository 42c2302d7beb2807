"""Spec of a language model behind an HTTP service."""

import re
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from memlib.specs.base import MOST_DRAWS, MOST_NUMBER, Spec

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
UNKEYED = frozenset(
    {"key", "sends", "insecure", "sentences", "requests_per_minute", "tokens_per_minute", "requests", "tokens", "timeout",
     "together", "price_per_million_tokens"}
)  # fmt: skip
"""Fields that affect no answer."""


class ServedSpec(Spec):
    """A language model behind an HTTP service, such as vLLM, SGLang, llama.cpp or a gateway. What can be asked of it is found
    by asking: log probabilities of given texts (scores), or generated text alone (text)."""

    kind: Literal["served"]
    url: str
    """The service's address, as in https://host/v1; https, or http on this machine."""
    model: str = Field(min_length=1)
    """Name of the model as the service knows it; a LoRA adapter that vLLM serves has a name of its own."""
    api: Literal["auto", "completions", "generate", "chat"] = "auto"
    """Shape of requests: completions and chat as OpenAI's, generate as SGLang's own; auto: the first of these that scores
    given texts, else the first that generates."""
    level: Literal["auto", "text"] = "auto"
    """text: use generated text alone, even if the service gives probabilities."""
    key: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable with the service's key; null: none is sent."""
    sends: bool = False
    """Consent: the texts that a run names in its first line are sent to the service."""
    insecure: bool = False
    """Allow http to another machine, where anyone on the way reads texts and key."""
    together: int = Field(default=4, ge=1, le=256)
    """Number of requests under way at a time."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=MOST_DRAWS)
    """Largest number of requests per minute; null: no limit of one's own."""
    tokens_per_minute: int | None = Field(default=None, ge=1, le=MOST_DRAWS)
    """Largest number of tokens, sent and generated, per minute."""
    requests: int | None = Field(default=None, ge=1, le=MOST_DRAWS)
    """Largest number of requests of a run; one that is resumed counts anew."""
    tokens: int | None = Field(default=None, ge=1, le=MOST_DRAWS)
    """Largest number of tokens of a run, likewise."""
    timeout: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds after which a request is given up and tried again."""
    sentences: str | None = None
    """A text file with a dozen sentences of the model's language, one a line, for the test of the service before the audit;
    null: English ones."""
    price_per_million_tokens: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """Price, from which memlib plan estimates the cost; in any currency."""
    version: str | None = None
    """Part of the content key, such as a date: answers are kept, and what the service answers now is asked for under another
    version."""

    added_later: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _is_safe(self) -> "ServedSpec":
        try:
            parts = urlsplit(self.url)
            is_one = parts.scheme in ("http", "https") and bool(HOST.fullmatch(parts.hostname or "")) and parts.port != 0
        except ValueError:  # of a port or brackets
            is_one = False
        if not is_one:
            raise ValueError(f"url is {self.url!r}; give an address such as https://host/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "url has more than a place; leave out user, password and query, and name the key's variable (key)"
            )
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not self.insecure:
            raise ValueError(f"texts and key would go to {parts.hostname} in the clear; use https, or set insecure to true")
        return self

    @property
    def host(self) -> str:
        """The host that receives the texts."""
        return urlsplit(self.url).netloc

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that determine the answers, as plain JSON."""
        return self.model_dump(mode="json", exclude=set(UNKEYED))
