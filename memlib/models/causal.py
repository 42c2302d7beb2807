"""Causal language models of Hugging Face's transformers and their tokenizers, loaded without running code from the folder."""

import importlib
import re
import warnings
from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.models.adapters import merge_adapter
from memlib.models.hugging import MODEL, first_line, loading, transformers_for, within
from memlib.models.sequence import MOST_ROWS, LanguageModel
from memlib.specs import LoraSpec

SAME = {torch.float64: 1e-6}  # relative tolerance for scores that differ by rounding alone
SAME_COARSE = 1e-3  # the same in float32 and below
MOST_SCORES = 2**26  # maximum number of scores in memory: 256 MiB in float32, and as much again for their logarithms
SECONDS, CHARACTERS_A_SECOND = 60.0, 10_000  # time limit of a tokenizer: a hundredth of the usual speed
TRIED_TOKENS = 8  # of the two texts, different in their last token, by which a causal model is known
LEAK, LEAK_COARSE = (
    1e-4,
    5e-2,
)  # largest effect of the last token on earlier scores, relative to that on its own; of 16-bit weights
ADAPTER = "lora_"  # part of the names of adapters' weights
RESIZE = "enlarge the model with model.resize_token_embeddings(len(tokenizer)) and save it again"


class FolderTokenizer:
    """A tokenizer of transformers, loaded from a folder, with the interface `Tokenizer`.

    Args:
        folder: folder with config.json and the tokenizer's files.

    Raises:
        UserError: when the tokenizer cannot be loaded.
    """

    def __init__(self, folder: str) -> None:
        transformers, self._folder = transformers_for(folder, MODEL), folder
        with loading(folder, MODEL):
            options = {"local_files_only": True, "trust_remote_code": False}
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            self.num_symbols = int(transformers.AutoConfig.from_pretrained(folder, **options).vocab_size)
            self._check_sizes()
            self.pieces = self._pieces()
        start, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        if start is None and end is None:
            raise UserError(f"the tokenizer in {folder} has no token for the beginning or end of a text; set its eos_token")
        self.start = int(end if start is None else start)
        """The token that precedes a text."""
        self.end = int(start if end is None else end)
        """The token that ends a text; the same as `start` where the tokenizer has only one."""

    def _check_sizes(self) -> None:
        """Raise UserError if the model's embedding has too few rows for all tokens, or for the start or end token."""
        count = len(self._tokenizer)
        if count > self.num_symbols:
            raise UserError(f"the tokenizer has {count} tokens, but its model has only {self.num_symbols}; {RESIZE}")
        self._check_ids(
            [token for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id) if token is not None],
            "marks the start or end of a text with token",
        )

    def _check_ids(self, ids: Iterable[int], what: str) -> None:
        largest = max(ids, default=0)
        if largest >= self.num_symbols:
            raise UserError(
                f"the tokenizer {what} number {largest}, but its model has only {self.num_symbols} tokens; {RESIZE}"
            )

    def _pieces(self) -> list[str | None]:
        """Return each token's text after another token (at the start of a text it may differ); None if it has no text."""
        tokenizer, count = self._tokenizer, len(self._tokenizer)
        anchor = next((row[-1] for row in self.encode(["a", "1", "."]) if row), None)
        if anchor is None:
            raise ValueError("its tokenizer returns no tokens for a letter, a digit or a dot; are its files complete?")
        options = {"clean_up_tokenization_spaces": False, "skip_special_tokens": False}
        base = tokenizer.decode([anchor], **options)
        special = set(tokenizer.all_special_ids)
        shown = tokenizer.batch_decode([[anchor, token] for token in range(count)], **options)
        return [
            text[len(base) :]
            if token not in special and token < self.num_symbols and text.startswith(base) and "\ufffd" not in text
            else None
            for token, text in enumerate(shown)
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer.encode`."""
        if not texts:
            return []  # tokenizers refuse an empty list
        seconds = SECONDS + sum(map(len, texts)) / CHARACTERS_A_SECOND
        with loading(self._folder, "tokenizer"):
            encoded = within(
                seconds,
                f"the tokenizer in {self._folder}",
                lambda: self._tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids,
            )
        rows = [list(row) for row in encoded]
        self._check_ids((max(row) for row in rows if row), "encodes text with token")
        return rows

    def ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Return where each token of each text ends, in characters.

        Raises:
            UserError: when the tokenizer does not tell.
        """
        if not getattr(self._tokenizer, "is_fast", False):
            raise UserError(f"the tokenizer in {self._folder} returns no places of its tokens; use a fast tokenizer")
        with loading(self._folder, "tokenizer"):
            found = self._tokenizer(list(texts), add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        return [[int(stop) for _, stop in row] for row in found["offset_mapping"]]


class Causal(LanguageModel):
    """A causal language model of transformers with the interface of memlib's own language models.

    If a model caches all keys and values in one shape, they are the state of a prefix (rows, layers, 2, heads, length, dim).
    For other models (sliding windows, recurrences), the state is the prefix itself, which is recomputed at each step.

    Args:
        model: a model of transformers.
        start: the token that precedes a text.
    """

    def __init__(self, model: nn.Module, *, start: int) -> None:
        super().__init__()
        self.model, self.start = model, start
        config: Any = model.config
        self.num_symbols = int(config.vocab_size)
        self.window = _window(model)
        takes = signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._rows = 1  # of the batch that `following` is working on
        self._caches: bool | None = None  # whether its keys and values can be reused; None: not tested yet

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def has_adapters(self) -> bool:
        """True if low-rank adapters were inserted (`with_adapters`)."""
        return any(ADAPTER in name for name, _ in self.named_parameters())

    def check_precision(self) -> None:
        """Evaluate two short texts in the precision of the weights.

        Raises:
            UserError: when the model does not support that precision.
        """
        seen = torch.full((2, 2), self.start, device=self.device)
        try:
            with torch.inference_mode():
                self._ask_anew(seen)
        except Exception as error:  # transformers passes on errors of any type
            precision = str(next(self.parameters()).dtype).removeprefix("torch.")
            reason = f"the model cannot be evaluated in {precision} ({first_line(error)})"
            raise UserError(reason + ("; set score.precision: float32" if precision == "float64" else "")) from error

    def look_up_each_row(self) -> None:
        """Make every embedding look up its rows once per sequence, as per-example gradients require.

        By default, models look up positions only once per batch, as all its sequences share them.
        """
        for module in self.model.modules():
            if type(module) is nn.Embedding:
                module.register_forward_pre_hook(self._once_per_row)

    def _once_per_row(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        numbers, *others = inputs
        shared = numbers.dim() == 1 or (numbers.dim() == 2 and len(numbers) == 1)
        return (numbers.expand(self._rows, numbers.shape[-1]) if shared else numbers, *others)

    def kept_state(self) -> dict[str, Tensor]:
        """Return the weights to save: only the adapters if there are any, otherwise all weights, with tied weights once."""
        whole, learnt = self.state_dict(), dict(self.named_parameters())
        if self.has_adapters:
            return {name: value for name, value in whole.items() if ADAPTER in name}
        tied = {name for name, _ in self.named_parameters(remove_duplicate=False)} - learnt.keys()
        return {name: value for name, value in whole.items() if name not in tied}

    def most_rows(self, length: int) -> int:
        """See `LanguageModel.most_rows`."""
        return max(1, min(MOST_ROWS, MOST_SCORES // (self.num_symbols * length)))

    def following(self, seen: Tensor) -> Tensor:
        """See `LanguageModel.following`."""
        self._check_length(seen.shape[1])
        self._rows = len(seen)
        return cast(Tensor, self.model(input_ids=seen, use_cache=False).logits)

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin`; the start token precedes the context."""
        return self.begin_each(torch.tensor([list(context)], dtype=torch.int64).reshape(1, len(context)))

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin_each`."""
        start = torch.full((len(contexts), 1), self.start)
        seen = torch.cat([start, contexts.cpu()], dim=1).to(self.device)
        if self._caches is None:
            self._caches = self._keeps_all(seen[:1])
        return self._ask(seen, None) if self._caches else (self._ask_anew(seen), seen)

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.advance`."""
        if self._caches:
            return self._ask(tokens[:, None], state[rows])
        seen = torch.cat([state[rows], tokens[:, None]], dim=1)
        return self._ask_anew(seen), seen

    def _ask_anew(self, seen: Tensor) -> Tensor:
        self._check_length(seen.shape[1])
        scores: Tensor = self.model(input_ids=seen, **self._last_only).logits[:, -1]
        return scores

    def _ask(self, seen: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return scores (rows, num_symbols) after tokens (rows, new) that follow a state, and the resulting state."""
        self._check_length(seen.shape[1] + (0 if state is None else state.shape[4]))
        transformers, cache = importlib.import_module("transformers"), None
        if state is not None:
            cache = transformers.DynamicCache([(layer[:, 0], layer[:, 1]) for layer in state.unbind(1)])
        outputs = self.model(input_ids=seen, past_key_values=cache, use_cache=True, **self._last_only)
        layers = outputs.past_key_values.layers
        if any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            raise TypeError("the model does not keep all keys and values")
        return outputs.logits[:, -1], torch.stack([torch.stack([one.keys, one.values], dim=1) for one in layers], dim=1)

    def _keeps_all(self, seen: Tensor) -> bool:
        """Return True if cached keys and values give the same scores as recomputing, tested on a single context."""
        if self.window is not None and seen.shape[1] >= self.window:
            seen = seen[:, : self.window - 1]  # leave room for one more token
        tokens = torch.cat([seen, seen.new_zeros(1, 1)], dim=1)
        expected = self._ask_anew(tokens)
        try:
            _, state = self._ask(seen, None)
            scores, _ = self._ask(tokens[:, -1:], state)
        except Exception:  # its cache is of another kind; transformers passes on errors of any type
            return False
        same = SAME.get(scores.dtype, SAME_COARSE)
        return state.shape[4] == seen.shape[1] and bool(((scores - expected).abs() <= same * (1 + expected.abs())).all())

    def _check_length(self, length: int) -> None:
        if self.window is not None and length > self.window:
            raise UserError(f"a sequence of {length} tokens is longer than the model's window of {self.window}")


def _window(model: nn.Module) -> int | None:
    """Return the length of the longest sequence that a model takes; None if its config states no maximum."""
    config: Any = model.config
    longest: int | None = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        if longest and name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return (
                longest if module.padding_idx is None else longest - module.padding_idx - 1
            )  # RoBERTa's positions start after it
    return longest


def load_model(folder: str, adapter: str | None = None) -> nn.Module:
    """Return a causal language model of transformers in evaluation mode, on the CPU.

    Args:
        folder: folder with config.json and *.safetensors.
        adapter: folder of a LoRA adapter of peft, which is merged with the model in float32 at least.

    Raises:
        UserError: when the model cannot be loaded, or weights are missing.
    """
    transformers = transformers_for(folder, MODEL)
    with loading(folder, MODEL):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    _check_shapes(found["mismatched_keys"], model, folder)
    if found["missing_keys"]:
        first = sorted(found["missing_keys"])[0]
        raise UserError(
            f"the Hugging Face model in {folder} lacks weights ({first}); it is not a complete causal language model"
        )
    if left := sorted(name for name in found["unexpected_keys"] if not _is_ignored(model, name)):
        raise UserError(
            f"the Hugging Face model in {folder} has weights that a causal language model does not use ({left[0]}); it is "
            "another kind of model, such as a classifier"
        )
    if adapter is not None:
        model = model if next(model.parameters()).dtype == torch.float64 else model.float()
        merge_adapter(model, adapter)
    _check_causal(model.eval(), folder)
    return cast(nn.Module, model)


def _check_shapes(mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]], model: Any, folder: str) -> None:
    """Raise UserError if weights have other shapes than the config states, in particular for a stale vocab_size.

    Args:
        mismatched: names of weights, with their shapes in the files and by the config.
        model: the model as the config states it.
        folder: the model's folder, for messages.
    """
    for name, held, stated in sorted((name, tuple(held), tuple(stated)) for name, held, stated in mismatched):
        size = getattr(model.config, "vocab_size", None)
        if held[1:] == stated[1:] and stated[:1] == (size,):
            raise UserError(
                f"config.json in {folder} says vocab_size {size}, but the weights ({name}) have {held[0]} rows, one per "
                f"token; if the weights are right, set vocab_size to {held[0]} in config.json"
            )
        raise UserError(
            f"the weights {name} in {folder} have the shape {held}, but config.json says {stated}; take both files from the "
            "same model"
        )


def _is_ignored(model: Any, name: str) -> bool:
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _check_causal(model: nn.Module, folder: str) -> None:
    """Raise UserError if the config names another architecture, or later tokens change the scores of earlier ones."""
    config: Any = model.config
    named, built = getattr(config, "architectures", None), type(model).__name__
    stated = [str(name) for name in named] if isinstance(named, list | tuple) else []
    if stated and built not in stated:
        raise UserError(
            f"config.json in {folder} says {stated[0]}, which is no causal language model: it would be read as {built}; save "
            "the model with a class that ends with ForCausalLM or LMHeadModel"
        )
    length = min(TRIED_TOKENS, _window(model) or TRIED_TOKENS)
    exact = next(model.parameters()).dtype not in (torch.float16, torch.bfloat16)
    first = torch.arange(length)[None] % int(config.vocab_size)
    other = first.clone()
    other[0, -1] = (other[0, -1] + 1) % int(config.vocab_size)
    with torch.inference_mode(), loading(folder, MODEL):
        scores, changed = (model(input_ids=tokens, use_cache=False).logits[0].float() for tokens in (first, other))
    change = (scores - changed).abs().amax(dim=1)
    if length > 1 and bool(change[:-1].max() > (LEAK if exact else LEAK_COARSE) * change[-1]):
        raise UserError(
            f"the Hugging Face model in {folder} is not causal: its scores of a token depend on later tokens, so they are no "
            "likelihoods of a text"
        )


def with_adapters(model: nn.Module, lora: LoraSpec, *, seed: int) -> nn.Module:
    """Insert low-rank adapters into a model, in place, and freeze all other weights.

    Args:
        lora: rank, scale and target layers.
        seed: seed of the adapters' initial weights.

    Raises:
        UserError: when no layer has the name of a target, or peft knows no default targets for the architecture.
    """
    try:
        peft = importlib.import_module("peft")
    except ImportError as error:
        raise UserError("adapters (model.lora) need peft: pip install -e '.[huggingface]' in memlib's folder") from error
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, task_type="CAUSAL_LM",
        target_modules=None if lora.targets is None else list(lora.targets),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that it transposes GPT-2's weights, which is right
                return cast(nn.Module, peft.inject_adapter_in_model(config, model))
        except ValueError as error:
            reason = str(error).splitlines()[0][:200]
            raise UserError(f"model.lora.targets names no layers that support adapters ({reason})") from error
