"""Losses of canary documents under a causal language model of transformers, computed without a trace in its training."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import nn
from torch.nn import functional as F

from memlib.data.canaries.documents import CanaryDocument
from memlib.data.canaries.losses import LOSSES
from memlib.errors import UserError
from memlib.models.hugging import MODEL, loading, transformers_for

BATCH = 8  # canaries at once, as each has a score of every token of the vocabulary at every place


@dataclass(frozen=True)
class EncodedCanary:
    """A canary as a model's tokens."""

    canary: str  #: its id.
    tokens: tuple[int, ...]  #: tokens of the document up to the end of its random part.
    first: int  #: the first token of its random part.

    @property
    def span(self) -> tuple[int, ...]:
        """Tokens of the random part."""
        return self.tokens[self.first :]


def encode_canaries(
    documents: Sequence[CanaryDocument], tokenizer: Any, *, rendered: Sequence[str] | None = None
) -> list[EncodedCanary]:
    """Return canaries as tokens.

    Args:
        tokenizer: a fast tokenizer of transformers, with a chat template if the canaries are chats.
        rendered: texts of chats that were rendered before; None: the tokenizer's chat template renders them.

    Raises:
        UserError: when the tokenizer cannot tell the places of its tokens, or a chat template changes the answers.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{type(tokenizer).__name__} returns no character offsets of tokens; use a fast tokenizer")
    texts = [_rendered(one, tokenizer) for one in documents] if rendered is None else rendered
    places = [_place(one, text) for one, text in zip(documents, texts, strict=True)]
    marked = rendered is None and documents[0].prompt is not None  # by the template, with the beginning of a text
    encoded = tokenizer(list(texts), return_offsets_mapping=True, add_special_tokens=not marked, truncation=False)
    rows = zip(documents, encoded["input_ids"], encoded["offset_mapping"], places, strict=True)
    return [_encoded(one.canary, ids, offsets, place) for one, ids, offsets, place in rows]


def measure_losses(model: nn.Module, canaries: Sequence[EncodedCanary], *, step: int, batch_size: int = BATCH) -> pa.Table:
    """Compute the losses of the canaries' random parts, with the model as it would be evaluated.

    The model's mode and all random states are restored.

    Args:
        model: a causal language model of transformers.
        step: optimizer steps that the model has taken.
        batch_size: number of canaries per forward pass.

    Returns:
        table LOSSES, in the order of the canaries.

    Raises:
        UserError: when a canary is longer than the model's window, or the model is not a causal language model.
    """
    check_lengths(model, canaries)
    order = sorted(range(len(canaries)), key=lambda row: len(canaries[row].tokens))
    sums = [0.0] * len(canaries)
    with evaluating(model):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            for row, value in zip(rows, _losses(model, [canaries[row] for row in rows]), strict=True):
                sums[row] = value
    tokens = [len(one.span) for one in canaries]
    columns = {
        "canary": [one.canary for one in canaries],
        "loss_sum": sums,
        "loss_mean": [value / count for value, count in zip(sums, tokens, strict=True)],
        "tokens": tokens,
        "step": [step] * len(canaries),
    }
    return pa.table(columns, schema=LOSSES.arrow)


def check_lengths(model: nn.Module, canaries: Sequence[EncodedCanary]) -> None:
    """Raise UserError if a model cannot process a canary as a whole, token by token."""
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{type(model).__name__} is an encoder-decoder; use a causal language model")
    longest, window = max(len(one.tokens) for one in canaries), getattr(config, "max_position_embeddings", None)
    if window is not None and longest > window:
        raise UserError(f"a canary has {longest} tokens, but the model takes at most {window}; use a shorter format")


def load_tokenizer(folder: str) -> tuple[Any, int | None]:
    """Return the tokenizer in a folder of transformers, and the length of the model's window; None if its config has none.

    Raises:
        UserError: when the folder cannot be read.
    """
    transformers = transformers_for(folder, MODEL)
    with loading(folder, MODEL):
        options = {"local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    return tokenizer, getattr(config, "max_position_embeddings", None)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation without gradients; restore each module's mode and the random states afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    cuda = [device for device in {p.device for p in model.parameters()} if device.type == "cuda"]
    try:
        with torch.random.fork_rng(devices=cuda), torch.no_grad():
            model.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _losses(model: nn.Module, canaries: Sequence[EncodedCanary]) -> list[float]:
    """Return minus the log-probability in nats of each canary's random part."""
    longest = max(len(one.tokens) for one in canaries)
    ids = torch.zeros(len(canaries), longest, dtype=torch.long)
    mask, scored = torch.zeros_like(ids), torch.zeros(len(canaries), longest - 1, dtype=torch.bool)
    for row, one in enumerate(canaries):
        ids[row, : len(one.tokens)] = torch.tensor(one.tokens)
        mask[row, : len(one.tokens)] = 1
        scored[row, one.first - 1 : len(one.tokens) - 1] = True
    device = next(model.parameters()).device
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits[:, :-1]
    places = scored.to(logits.device)
    losses = F.cross_entropy(logits[places].float(), ids[:, 1:].to(logits.device)[places], reduction="none").double().cpu()
    counts = [len(one.span) for one in canaries]
    return [float(part.sum()) for part in torch.split(losses, counts)]


def _rendered(document: CanaryDocument, tokenizer: Any) -> str:
    if document.prompt is None:
        return document.text
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("the canaries are chats, but the tokenizer has no chat template; make plain ones (without --prompt)")
    return str(tokenizer.apply_chat_template(document.messages, tokenize=False))


def _place(document: CanaryDocument, text: str) -> tuple[int, int]:
    """Return the start and end of the random part, in characters of the text that the model sees."""
    start = text.rfind(document.text)
    if start < 0:
        raise UserError("the chat template changes the text of an answer; use a format that the template leaves unchanged")
    return start + document.span[0], start + document.span[1]


def _encoded(canary: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], place: tuple[int, int]) -> EncodedCanary:
    within = [row for row, (start, stop) in enumerate(offsets) if max(start, place[0]) < min(stop, place[1])]
    first = max(1, within[0]) if within else 0  # nothing precedes the first token, so it has no probability
    if not within or within[-1] < first:
        raise UserError(
            "no token of a canary's random part follows another token, so none can be predicted; use a longer format"
        )
    return EncodedCanary(canary, tuple(ids[: within[-1] + 1]), first)
