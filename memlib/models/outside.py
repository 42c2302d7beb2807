"""Sequence models that were trained elsewhere, asked for the next symbol like one's own.

A model is a folder of Hugging Face's transformers, or any object with a `vocabulary` and `next_log_probs`:

    class MyModel:
        vocabulary = ["\\n", "a", "b", ...]          # the text of every symbol

        def next_log_probs(self, prefixes, state):
            ...                                       # prefixes: (num_prefixes, length) int64 symbols, all of one length
            return log_probs, state                   # (num_prefixes, num_symbols) natural logarithms

`state` is a list with what the model returned for each prefix without its last symbol, or None where that is not known; a
model that keeps no state returns None. A format that begins with a hole asks for what begins a text: prefixes of length 0.
"""

import importlib
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from sys import getsizeof
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memlib.errors import UserError
from memlib.models.external import made
from memlib.models.sequence import CACHE_BYTES
from memlib.specs import HuggingFaceSpec, ProtocolSpec

SUMS_TO_ONE = 1e-2  # as bfloat16 gives
SAME = 1e-3  # of scores that differ by rounding alone, in float32


class Answering:
    """A model with `next_log_probs`, as a `Predictor`; states of prefixes are kept for their children.

    States beyond `cache_bytes` are forgotten, the oldest first, and the model is told None.

    Args:
        model: the user's.
        name: what errors call it.
    """

    cache_bytes = CACHE_BYTES

    def __init__(self, model: Any, *, name: str) -> None:
        for wanted in ("vocabulary", "next_log_probs"):
            if not hasattr(model, wanted):
                raise UserError(f"{name} returned a {type(model).__name__} without {wanted}; see README, a model of your own")
        try:
            self.vocabulary = [str(symbol) for symbol in model.vocabulary]
        except TypeError:
            raise UserError(
                f"the vocabulary of {name} is a {type(model.vocabulary).__name__}; it needs a list of texts"
            ) from None
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise UserError(f"the vocabulary of {name} has symbols that stand twice")
        self.num_symbols = len(self.vocabulary)
        self._model, self._name = model, name
        self._states: OrderedDict[tuple[int, ...], tuple[Any, int]] = OrderedDict()  # and its bytes
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
        known = [self._states.get(key[:-1], (None, 0))[0] for key in keys] if prefixes.shape[1] else [None]
        asked = prefixes.numpy().copy()  # the user's to change
        try:
            found, states = self._model.next_log_probs(asked, None if all(s is None for s in known) else known)
        except (Exception, SystemExit) as error:  # the user's code may raise anything, and say a secret
            raise UserError(f"next_log_probs of {self._name} failed: {_without_message(error)}") from None
        try:
            log_probs = torch.as_tensor(found).detach().to("cpu", torch.float64)
            states = None if states is None else list(states)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"next_log_probs of {self._name} returned a {type(found).__name__} and a {type(states).__name__}; it needs "
                "an array of numbers, and a list of states or None"
            ) from None
        if log_probs.shape != (len(keys), self.num_symbols):
            raise UserError(
                f"next_log_probs of {self._name} returned {tuple(log_probs.shape)} for {len(keys)} prefixes and "
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
        size = bytes_of(state)
        self._state_bytes += size - self._states.pop(key, (None, 0))[1]
        self._states[key] = state, size
        while self._state_bytes > self.cache_bytes and len(self._states) > 1:
            self._state_bytes -= self._states.popitem(last=False)[1][1]


def bytes_of(value: Any) -> int:
    """Return about how much memory a value takes: its arrays, and what its containers and attributes hold, each once."""
    total, left, seen = 0, [value], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor | np.ndarray):
            total += int(one.nbytes)
            continue
        total += getsizeof(one, 0)
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        elif not callable(one) and not isinstance(one, ModuleType):  # these are code, or the model itself
            left += getattr(one, "__dict__", {}).values()
    return total


class HuggingFace:
    """A causal language model of transformers with its tokenizer, as `Predictor` and `Tokenizer`.

    The state of a prefix is its keys and values (rows, layers, 2, heads, length, dim) where the model keeps all of them in
    one shape; of other models (sliding windows, recurrences) it is the prefix itself, which is then computed anew.

    Args:
        folder: config.json, *.safetensors, tokenizer.

    Raises:
        UserError: when it cannot be loaded.
    """

    cache_bytes = CACHE_BYTES

    def __init__(self, folder: str) -> None:
        transformers = _transformers()
        if not (Path(folder) / "config.json").is_file():
            raise UserError(f"there is no Hugging Face model in {folder} (no config.json)")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            self._model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
            self._model.eval()
            self.num_symbols = int(self._model.config.vocab_size)
            self.pieces = self._pieces()
        except Exception as error:  # transformers raises whatever its parts do
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"cannot load the Hugging Face model in {folder} ({said[0][:300]})") from error
        if loading["missing_keys"]:
            first = sorted(loading["missing_keys"])[0]
            raise UserError(
                f"the Hugging Face model in {folder} lacks weights ({first}); it is no whole causal language model"
            )
        self.window: int | None = getattr(self._model.config, "max_position_embeddings", None)
        start = self._tokenizer.bos_token_id
        self._start = start if start is not None else self._tokenizer.eos_token_id
        if self._start is None:
            raise UserError(f"the tokenizer in {folder} has no token for the beginning or end of a text")
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in signature(self._model.forward).parameters else {}
        self._caches: bool | None = None  # whether it keeps keys and values as we know them; not known yet

    def to(self, device: torch.device, dtype: torch.dtype) -> "HuggingFace":
        """Itself, there and in that precision."""
        self._model.to(device, dtype)
        return self

    def _pieces(self) -> list[str | None]:
        """The text of each token after another one, which is not how some tokenizers show a first one."""
        tokenizer, count = self._tokenizer, len(self._tokenizer)
        anchor = next((row[-1] for row in self.encode(["a", "1", "."]) if row), None)
        if anchor is None:
            raise ValueError("its tokenizer makes nothing of a letter, a digit and a dot; are its files there?")
        show = {"clean_up_tokenization_spaces": False, "skip_special_tokens": False}
        base = tokenizer.decode([anchor], **show)
        special = set(tokenizer.all_special_ids)
        shown = tokenizer.batch_decode([[anchor, token] for token in range(count)], **show)
        return [
            text[len(base) :]
            if token not in special and token < self.num_symbols and text.startswith(base) and "\ufffd" not in text
            else None
            for token, text in enumerate(shown)
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        return [list(row) for row in self._tokenizer(list(texts), add_special_tokens=False).input_ids]

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Predictor.begin`; before the context stands the token that begins a text."""
        return self.begin_each(torch.tensor([list(context)], dtype=torch.int64).reshape(1, len(context)))

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """See `Predictor.begin_each`."""
        start = torch.full((len(contexts), 1), self._start)
        seen = torch.cat([start, contexts], dim=1).to(self._model.device)
        if self._caches is None:
            self._caches = self._keeps_all(seen[:1])
        return self._ask(seen, None) if self._caches else (self._ask_anew(seen), seen)

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `Predictor.advance`."""
        if self._caches:
            return self._ask(tokens[:, None], state[rows])
        seen = torch.cat([state[rows], tokens[:, None]], dim=1)
        return self._ask_anew(seen), seen

    def _ask_anew(self, seen: Tensor) -> Tensor:
        self._check_length(seen.shape[1])
        scores: Tensor = self._model(input_ids=seen, **self._last_only).logits[:, -1]
        return scores

    def _ask(self, seen: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores (rows, num_symbols) after tokens (rows, new) that follow a state, and the state after them."""
        self._check_length(seen.shape[1] + (0 if state is None else state.shape[4]))
        transformers, known = _transformers(), None
        if state is not None:
            known = transformers.DynamicCache([(layer[:, 0], layer[:, 1]) for layer in state.unbind(1)])
        found = self._model(input_ids=seen, past_key_values=known, use_cache=True, **self._last_only)
        layers = found.past_key_values.layers
        if any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            raise TypeError("the model does not keep all keys and values")
        return found.logits[:, -1], torch.stack([torch.stack([one.keys, one.values], dim=1) for one in layers], dim=1)

    def _keeps_all(self, seen: Tensor) -> bool:
        """Whether going on from its keys and values gives what computing anew gives, tried on a context of one row."""
        tried = torch.cat([seen, seen.new_zeros(1, 1)], dim=1)
        if self.window is not None and tried.shape[1] > self.window:
            return False  # nothing follows
        anew = self._ask_anew(tried)
        try:
            _, state = self._ask(seen, None)
            found, _ = self._ask(tried[:, -1:], state)
        except Exception:  # its cache is of another kind, and transformers raises whatever its parts do
            return False
        return state.shape[4] == seen.shape[1] and bool(((found - anew).abs() <= SAME * (1 + anew.abs())).all())

    def _check_length(self, length: int) -> None:
        if self.window is not None and length > self.window:
            raise UserError(f"a canary of {length} tokens is longer than the model's {self.window}")

    @torch.inference_mode()
    def bits(self, tokens: Sequence[int]) -> float:
        """Total -log2 probability of a text's tokens, at most the model's window of them at a time."""
        total, room = 0.0, (self.window or len(tokens) + 1) - 1
        for start in range(0, len(tokens), room):
            part = torch.tensor([[self._start, *tokens[start : start + room]]], device=self._model.device)
            scores = torch.log_softmax(self._model(input_ids=part[:, :-1]).logits[0], dim=1)
            total -= float(scores.gather(1, part[0, 1:, None]).sum()) / np.log(2)
        return total


def load_outside(spec: HuggingFaceSpec | ProtocolSpec) -> HuggingFace | Answering:
    """The model, ready to be asked.

    Raises:
        UserError: when it cannot be loaded; says why.
    """
    if isinstance(spec, HuggingFaceSpec):
        return HuggingFace(spec.path)
    return Answering(made(spec), name=spec.model)


def _without_message(error: BaseException) -> str:
    """What kind of exception, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else type(error).__name__
    )


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UserError("a Hugging Face model needs transformers: pip install 'memlib[huggingface]'") from error
