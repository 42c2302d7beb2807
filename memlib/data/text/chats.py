"""Chat messages as text, rendered by the chat template of a Hugging Face tokenizer.

A template is a program that comes with a model. It runs in transformers' sandbox, in a child process that is ended when it
takes too long. Templates that print the date are given a fixed one, so that a text is the same on every day.
"""

import contextlib
import functools
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any

from memlib.errors import DataError
from memlib.version import SOURCES, check_sources

TOGETHER = 100  # chats that are rendered per request
SECONDS = 60.0  # time limit of a request, after the child has started
STARTING_SECONDS = 300.0
MOST_ANSWERED = 2**26  # bytes of all texts of a request
TODAY = (2026, 1, 1)  # the date that templates are given
NEEDED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")
"""Environment of the child process, which sees no credentials."""
Chat = list[Mapping[str, Any]]


def is_chat(value: object) -> bool:
    """Return True if a value is a list of messages, each with a role."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "role" in one for one in value)


def render(chats: Iterable[tuple[str, Chat]], folder: str) -> Iterator[str]:
    """Yield the text of each chat. The tokenizer's beginning and end marks around it are left out; documents get their own.

    Args:
        chats: the chats, each after its place in the source, for messages.
        folder: folder of the tokenizer or model whose template is used.

    Raises:
        DataError: when there is no template, or it refuses a chat, fails or takes too long.
    """
    if importlib.util.find_spec("transformers") is None:
        raise DataError("chat templates need transformers: pip install -e '.[huggingface]' in memlib's folder")
    remaining = iter(chats)
    while some := list(islice(remaining, TOGETHER)):
        yield from _renderer(str(Path(folder).expanduser().resolve())).render(some)


@functools.cache
def _renderer(folder: str) -> "_Renderer":
    return _Renderer(folder)


class _Renderer:
    """A child process that renders chats by the template of one folder; it ends with this process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def render(self, chats: list[tuple[str, Chat]]) -> list[str]:
        """Return the texts of chats."""
        with self._lock:
            answer = self._ask([chat for _, chat in chats])
        texts: list[str] = answer.get("texts", [])
        if problem := answer.get("problem"):
            where = f"{chats[len(texts)][0]}: " if len(texts) < len(chats) and answer["begun"] else ""
            raise DataError(f"{where}the chat template in {self._folder} {problem}")
        return texts

    def _ask(self, chats: list[Chat]) -> dict[str, Any]:
        seconds = SECONDS
        if self._child is None or self._child.poll() is not None:
            self._child, seconds = _start(self._folder), STARTING_SECONDS
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(chats).encode() + b"\n")
            self._child.stdin.flush()
            parts, size, end = [b""], 0, time.monotonic() + seconds
            while not parts[-1].endswith(b"\n"):
                remaining = max(0.0, end - time.monotonic())
                if not select.select([self._child.stdout], [], [], remaining)[0]:
                    self._end()
                    return {"problem": f"has taken more than {seconds:.0f} s for {len(chats)} chats", "begun": False}
                parts.append(os.read(self._child.stdout.fileno(), 2**20))
                size += len(parts[-1])
                if size > MOST_ANSWERED:
                    self._end()
                    return {"problem": f"writes more than {MOST_ANSWERED:,} bytes for {len(chats)} chats", "begun": False}
                if not parts[-1]:
                    break
            answer: dict[str, Any] = json.loads(b"".join(parts))
        except (OSError, ValueError):
            self._end()
            return {"problem": "ended its process; it may need too much memory", "begun": False}
        return answer

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def _start(folder: str) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {name: os.environ[name] for name in NEEDED if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {serve.__module__} import serve; serve()", folder, SOURCES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        start_new_session=True,
    )


def serve() -> None:
    """Render lines of chats from standard input until it ends; the folder is the first argument. For the child process."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print
        for line in sys.stdin.buffer:
            signal.alarm(int(STARTING_SECONDS))  # ends this process, even if nobody is left to do so
            answer = _rendered(json.loads(line), *sys.argv[1:])
            sys.__stdout__.buffer.write(json.dumps(answer).encode() + b"\n")  # type: ignore[union-attr]
            sys.__stdout__.flush()  # type: ignore[union-attr]
            signal.alarm(0)


def _rendered(chats: list[Chat], folder: str, sources: str) -> dict[str, Any]:
    try:
        check_sources(sources)
        tokenizer = _tokenizer(folder)
    except Exception as error:
        return {"problem": f"cannot be read ({_first_line(error)})", "begun": False}
    if not tokenizer.chat_template:
        return {"problem": "is missing: its tokenizer has none", "begun": False}
    texts: list[str] = []
    for chat in chats:
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False)
        except Exception as error:
            return {"texts": texts, "problem": f"refuses these messages ({_first_line(error)})", "begun": True}
        if tokenizer.bos_token:
            text = text.removeprefix(tokenizer.bos_token)
        if tokenizer.eos_token:
            text = text.rstrip("\n").removesuffix(tokenizer.eos_token)
        texts.append(text)
    return {"texts": texts}


class _Calendar(datetime):
    """A datetime whose current date, as templates see it, is TODAY."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Calendar":
        return cls(*TODAY)


@functools.cache
def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = _Calendar
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
