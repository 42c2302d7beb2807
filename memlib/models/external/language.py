"""External sequence models with the interface of memlib's language models.

A model is a folder in the format of Hugging Face's transformers, or any object with a `vocabulary` and `next_log_probs`:

    class MyModel:
        vocabulary = ["\\n", "a", "b", ...]          # the text of every symbol

        def next_log_probs(self, prefixes, state):
            ...                                       # prefixes: (num_prefixes, length) int64 symbols, all of one length
            return log_probs, state                   # (num_prefixes, num_symbols) natural logarithms

`state` is a list with the state that the model returned for each prefix without its last symbol; an entry, or the whole
list, is None if it is unknown. A stateless model returns None. For a format that begins with a hole, the model gets prefixes
of length 0: the start of a text.
"""

import traceback
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from sys import getsizeof
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memlib.errors import UserError
from memlib.models.causal import Causal, FolderTokenizer, load_model
from memlib.models.external.factory import made
from memlib.models.sequence import CACHE_BYTES
from memlib.specs import HuggingFaceSpec, ProtocolSpec

SUMS_TO_ONE = 1e-2  # tolerance that bfloat16 needs
ENTRY_BYTES, SYMBOL_BYTES = 250, 40  # approximate overhead of a cached state, and of each symbol of its prefix


class Answering:
    """A user's model with `next_log_probs`, wrapped as a `Predictor`; states of prefixes are cached for their children.

    States beyond `cache_bytes` are evicted, oldest first; the model then gets None in their place.

    Args:
        model: the user's model.
        name: the model's name in error messages.
    """

    cache_bytes = CACHE_BYTES

    def __init__(self, model: Any, *, name: str) -> None:
        for wanted in ("vocabulary", "next_log_probs"):
            if not hasattr(model, wanted):
                raise UserError(f"{name} returned a {type(model).__name__} without {wanted}; see docs/how-to/own-model.md")
        try:
            self.vocabulary = [str(symbol) for symbol in model.vocabulary]
        except TypeError:
            raise UserError(
                f"the vocabulary of {name} is a {type(model.vocabulary).__name__}; it needs a list of strings"
            ) from None
        if repeated := next((symbol for symbol, count in Counter(self.vocabulary).items() if count > 1), None):
            raise UserError(f"the vocabulary of {name} lists {repeated!r} more than once; list each symbol once")
        self.num_symbols = len(self.vocabulary)
        self._model, self._name = model, name
        self._states: OrderedDict[tuple[int, ...], tuple[Any, int]] = OrderedDict()  # states with their sizes in bytes
        self._state_bytes = 0

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Predictor.begin`; the state is the prefix itself."""
        return self.begin_each(torch.tensor([list(context)], dtype=torch.int64).reshape(1, len(context)))

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """See `Predictor.begin_each`."""
        return self._ask(contexts), contexts

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `Predictor.advance`."""
        prefixes = torch.cat([state[rows], tokens[:, None]], dim=1)
        return self._ask(prefixes), prefixes

    def _ask(self, prefixes: Tensor) -> Tensor:
        keys = [tuple(row) for row in prefixes.tolist()]
        cached = [self._states.get(key[:-1], (None, 0))[0] for key in keys] if prefixes.shape[1] else [None]
        queries = prefixes.numpy().copy()  # a copy, which the model may modify
        try:
            answers, states = self._model.next_log_probs(queries, None if all(s is None for s in cached) else cached)
        except (Exception, SystemExit) as error:  # the user's code may raise anything, with a secret in its message
            raise UserError(f"next_log_probs of {self._name} failed: {_without_message(error)}") from None
        try:
            log_probs = torch.as_tensor(answers).detach().to("cpu", torch.float64)
            states = None if states is None else list(states)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"next_log_probs of {self._name} returned a {type(answers).__name__} and a {type(states).__name__}; it needs "
                "an array of numbers, and a list of states or None"
            ) from None
        if log_probs.shape != (len(keys), self.num_symbols):
            raise UserError(
                f"next_log_probs of {self._name} returned shape {tuple(log_probs.shape)} for {len(keys)} prefixes and "
                f"{self.num_symbols} symbols"
            )
        total = torch.logsumexp(log_probs, dim=1)
        if not torch.isnan(total).any() and bool((total.abs() > SUMS_TO_ONE).any()):
            raise UserError(
                f"next_log_probs of {self._name} returned probabilities that sum to {float(total[0].exp()):.4g}, not 1; it "
                "needs natural logarithms of probabilities"
            )
        if states is not None:
            if len(states) != len(keys):
                raise UserError(f"next_log_probs of {self._name} returned {len(states)} states for {len(keys)} prefixes")
            for key, state in zip(keys, states, strict=True):
                self._keep(key, state)
        return log_probs

    def _keep(self, key: tuple[int, ...], state: Any) -> None:
        size = bytes_of(state) + ENTRY_BYTES + SYMBOL_BYTES * len(key)
        self._state_bytes += size - self._states.pop(key, (None, 0))[1]
        self._states[key] = state, size
        while self._state_bytes > self.cache_bytes and len(self._states) > 1:
            self._state_bytes -= self._states.popitem(last=False)[1][1]


def bytes_of(value: Any) -> int:
    """Estimate the memory of a value in bytes: its arrays and the contents of its containers and attributes, each once."""
    total, stack, seen = 0, [value], set[int]()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor | np.ndarray):
            total += int(item.nbytes)
            stack += item.ravel().tolist() if isinstance(item, np.ndarray) and item.dtype.hasobject else []
            continue
        total += getsizeof(item, 0) + (item.nbytes if isinstance(getattr(item, "nbytes", None), int) else 0)
        if isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list | tuple | set | frozenset | deque):
            stack += item
        elif not callable(item) and not isinstance(item, ModuleType):  # callables and modules are code, or the model itself
            stack += getattr(item, "__dict__", {}).values()
            slots = [name for kind in type(item).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
            stack += [getattr(item, name) for name in slots if hasattr(item, name)]
    return total


def _names(slots: str | Iterable[str]) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


class HuggingFace(Causal):
    """A causal language model of transformers with its tokenizer, usable as `Predictor` and as `Tokenizer`.

    Args:
        folder: folder with config.json, *.safetensors and the tokenizer.
        adapter: folder of a LoRA adapter, which is merged with the model.

    Raises:
        UserError: when the model, the adapter or the tokenizer cannot be loaded.
    """

    def __init__(self, folder: str, adapter: str | None = None) -> None:
        model, tokenizer = load_model(folder, adapter), FolderTokenizer(folder)
        super().__init__(model, start=tokenizer.start)
        self.tokenizer, self.pieces = tokenizer, tokenizer.pieces
        self.eval()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        return self.tokenizer.encode(texts)

    @torch.inference_mode()
    def bits(self, tokens: Sequence[int]) -> float:
        """Return the sum of -log2 p over a text's tokens, scored in separate pieces that fit the model's window."""
        total, room = 0.0, (self.window or len(tokens) + 1) - 1
        for start in range(0, len(tokens), room):
            part = torch.tensor([tokens[start : start + room]], device=self.device)
            scores = torch.log_softmax(self(part)[0], dim=1)
            total -= float(scores.gather(1, part[0, :, None]).sum()) / np.log(2)
        return total


def load_outside(spec: HuggingFaceSpec | ProtocolSpec) -> HuggingFace | Answering:
    """Load an external sequence model.

    Raises:
        UserError: when the model cannot be loaded; the message says why.
    """
    if isinstance(spec, HuggingFaceSpec):
        return HuggingFace(spec.path, spec.adapter)
    return Answering(made(spec), name=spec.model)


def _without_message(error: BaseException) -> str:
    """Return the type of an exception and where it was raised, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else type(error).__name__
    )
