"""Language models of characters or words: LSTM, GRU, dilated CNN, WaveNet, a small transformer (Carlini 2019, section 6).

A model predicts each symbol of a window from the preceding symbols. The start symbol precedes the first symbol of a window;
it also ends each line, so a window begins like a line. No state passes from window to window.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.specs import LanguageSpec

CACHE_BYTES = 2**30  # memory for the states of prefixes, by default
MOST_ROWS = 256  # windows scored together
START = 0  # the symbol before a window, and at the end of each line


def build_language_model(spec: LanguageSpec, num_symbols: int, window: int, *, seed: int) -> "LanguageModel":
    """Build a language model initialized from `seed` alone; the caller's random state is not changed.

    Args:
        window: symbols per row of the corpus, the longest sequence that a transformer takes.
        seed: seed of the initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        if spec.architecture in ("lstm", "gru"):
            return Recurrent(spec, num_symbols)
        if spec.architecture == "encoder_decoder":
            return EncoderDecoder(spec, num_symbols, window)
        if spec.architecture == "transformer":
            return Transformer(spec, num_symbols, window)
        return Convolutional(spec, num_symbols)


class LanguageModel(nn.Module, ABC):
    """A language model, which maps symbols to scores (logits) of the next symbol.

    To walk a tree of prefixes, call `begin` and `advance`: a state has one row per prefix, and the children of a prefix
    share its row.
    """

    num_symbols: int
    start = START
    cache_bytes = CACHE_BYTES

    def forward(self, tokens: Tensor) -> Tensor:
        """Return, for each place of a window, the scores of all symbols given the preceding ones.

        Args:
            tokens: (batch, length) integers; -1 is padding at the end.

        Returns:
            (batch, length, num_symbols).
        """
        start = torch.full_like(tokens[:, :1], self.start)
        return self.following(torch.cat([start, tokens[:, :-1]], dim=1).long().clamp(min=0))

    def kept_state(self) -> dict[str, Tensor]:
        """Return the weights to save, by name: all of them by default."""
        return self.state_dict()

    def most_rows(self, length: int) -> int:
        """Return the number of windows of a given length that can be scored together without using much memory."""
        return MOST_ROWS

    @abstractmethod
    def following(self, seen: Tensor) -> Tensor:
        """Return scores (batch, length, num_symbols) of the symbol after each of (batch, length) int64 symbols."""

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return scores (1, num_symbols) of the symbol after a context, and the state (1, ...) after the context."""
        device = next(self.parameters()).device
        state = torch.tensor([[START, *context]], device=device)
        return self.following(state)[:, -1], state

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores and states of `begin` for many contexts of equal length (num_contexts, length)."""
        results = [self.begin(context) for context in contexts.tolist()]
        return torch.cat([logits for logits, _ in results]), torch.cat([state for _, state in results])

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Extend prefixes by one symbol.

        Args:
            state: (num_parents, ...).
            rows: (num_children,) int64, the row of each child's parent in `state`.
            tokens: (num_children,) int64, the symbol that each child adds.

        Returns:
            scores (num_children, num_symbols) of the symbol after each child, and the state (num_children, ...).
        """
        seen = torch.cat([state[rows], tokens[:, None]], dim=1)
        return self.following(seen)[:, -1], seen


class Recurrent(LanguageModel):
    """An embedding, LSTM or GRU layers, and a linear map to scores, with dropout between and after the layers."""

    def __init__(self, spec: LanguageSpec, num_symbols: int) -> None:
        super().__init__()
        self.num_symbols, self.layers = num_symbols, spec.layers
        kind = nn.GRU if spec.architecture == "gru" else nn.LSTM
        self.embedding = nn.Embedding(num_symbols, spec.embedding)
        between = spec.dropout if spec.layers > 1 else 0.0
        self.cells = kind(spec.embedding, spec.width, spec.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(spec.dropout)
        self.scores = nn.Linear(spec.width, num_symbols)

    def following(self, seen: Tensor) -> Tensor:
        """See `LanguageModel.following`."""
        hidden, _ = self.cells(self.embedding(seen))
        return cast(Tensor, self.scores(self.dropout(hidden)))

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin`; the state is (rows, layers, 1 or 2, width)."""
        device, dtype = self.scores.weight.device, self.scores.weight.dtype
        parts = 2 if isinstance(self.cells, nn.LSTM) else 1
        state = torch.zeros(1, self.layers, parts, self.cells.hidden_size, device=device, dtype=dtype)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        for symbol in [START, *context]:
            logits, state = self.advance(state, first, first + symbol)
        return logits, state

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.advance`; values that depend only on a parent are computed once for all its children."""
        step = self._lstm if isinstance(self.cells, nn.LSTM) else self._gru
        inputs, states = None, []
        for layer in range(self.layers):
            w_input, w_hidden, b_input, b_hidden = (
                getattr(self.cells, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if inputs is None:  # computed once per distinct symbol
                symbols, places = torch.unique(tokens, return_inverse=True)
                from_input = F.linear(self.embedding.weight[symbols], w_input, b_input)[places]
            else:
                from_input = F.linear(inputs, w_input, b_input)
            from_hidden = F.linear(state[:, layer, 0], w_hidden, b_hidden)[rows]
            new = step(from_input, from_hidden, state[:, layer], rows)
            states.append(new)
            inputs = new[:, 0]
        assert inputs is not None
        return self.scores(inputs), torch.stack(states, dim=1)

    @staticmethod
    def _lstm(from_input: Tensor, from_hidden: Tensor, before: Tensor, rows: Tensor) -> Tensor:
        enter, forget, new, leave = (from_input + from_hidden).chunk(4, dim=1)
        cell = torch.sigmoid(forget) * before[:, 1][rows] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.stack([torch.sigmoid(leave) * torch.tanh(cell), cell], dim=1)

    @staticmethod
    def _gru(from_input: Tensor, from_hidden: Tensor, before: Tensor, rows: Tensor) -> Tensor:
        reset_i, update_i, new_i = from_input.chunk(3, dim=1)
        reset_h, update_h, new_h = from_hidden.chunk(3, dim=1)
        update = torch.sigmoid(update_i + update_h)
        new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_h) * new_h)
        return ((1 - update) * new + update * before[:, 0][rows])[:, None]


class EncoderDecoder(Recurrent):
    """An LSTM encoder of a pair's source, and an LSTM decoder of its target (Sutskever 2014; Carlini 2019, 6.4).

    The decoder starts from the last state of the encoder. A row consists of a source of `window` symbols, padded at the
    front, and a target. A context begins with a whole source.
    """

    def __init__(self, spec: LanguageSpec, num_symbols: int, row: int) -> None:
        super().__init__(spec, num_symbols)
        self.window = row // 2
        self.reader = nn.LSTM(spec.embedding, spec.width, spec.layers, batch_first=True, dropout=self.cells.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (batch, window, num_symbols) of the target's symbols given the source and the preceding symbols."""
        source, target = tokens[:, : self.window].long(), tokens[:, self.window :].long()
        start = torch.full_like(target[:, :1], START)
        seen = torch.cat([start, target[:, :-1].clamp(min=0)], dim=1)
        _, state = self.reader(self.embedding(source))
        hidden, _ = self.cells(self.embedding(seen), state)
        return cast(Tensor, self.scores(self.dropout(hidden)))

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin`."""
        return self.begin_each(torch.tensor([list(context)]))

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin_each`."""
        assert contexts.shape[1] >= self.window, "a context begins with a whole source"
        contexts = contexts.to(self.scores.weight.device)
        _, (hidden, cell) = self.reader(self.embedding(contexts[:, : self.window]))
        state = torch.stack([hidden, cell], dim=2).transpose(0, 1)  # (rows, layers, 2, width)
        every = torch.arange(len(contexts), device=contexts.device)
        start = torch.full_like(contexts[:, :1], START)
        for column in torch.cat([start, contexts[:, self.window :]], dim=1).T:
            logits, state = self.advance(state, every, column)
        return logits, state


class Convolutional(LanguageModel):
    """Dilated causal convolutions (cnn), or gated ones with residual and skip connections (wavenet, van den Oord 2016)."""

    def __init__(self, spec: LanguageSpec, num_symbols: int) -> None:
        super().__init__()
        self.num_symbols, self.kernel = num_symbols, spec.kernel
        self.gated = spec.architecture == "wavenet"
        self.embedding = nn.Embedding(num_symbols, spec.width)
        outputs = 2 * spec.width if self.gated else spec.width
        self.convolutions = nn.ModuleList(
            nn.Conv1d(spec.width, outputs, spec.kernel, dilation=2**layer) for layer in range(spec.layers)
        )
        self.skips = nn.ModuleList(nn.Conv1d(spec.width, spec.width, 1) for _ in range(spec.layers if self.gated else 0))
        self.dropout = nn.Dropout(spec.dropout)
        self.scores = nn.Linear(spec.width, num_symbols)

    def following(self, seen: Tensor) -> Tensor:
        """See `LanguageModel.following`."""
        zeros = torch.zeros(len(seen), sum(self._reach), self.embedding.embedding_dim, device=seen.device)
        return self._scores_after(seen, zeros.to(self.scores.weight.dtype))[0]

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin`; the state (rows, reach, width) holds the inputs of each layer's next convolution."""
        seen = torch.tensor([[START, *context]], device=self.scores.weight.device)
        zeros = self.scores.weight.new_zeros(1, sum(self._reach), self.embedding.embedding_dim)
        scores, state = self._scores_after(seen, zeros)
        return scores[:, -1], state

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.advance`; earlier symbols are not recomputed."""
        scores, state = self._scores_after(tokens[:, None], state[rows])
        return scores[:, -1], state

    @property
    def _reach(self) -> list[int]:
        """Number of inputs before the current one that each layer sees."""
        return [(self.kernel - 1) * 2**layer for layer in range(len(self.convolutions))]

    def _scores_after(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (batch, length, num_symbols) of the symbol after each of `seen`, and the state after all of them."""
        hidden = self.embedding(seen).transpose(1, 2)
        skipped, before = torch.zeros_like(hidden), torch.split(state.transpose(1, 2), self._reach, dim=2)
        after = []
        for layer, (convolution, earlier) in enumerate(zip(self.convolutions, before, strict=True)):
            padded = torch.cat([earlier, hidden], dim=2)
            after.append(padded[:, :, padded.shape[2] - earlier.shape[2] :])
            if self.gated:
                value, gate = convolution(padded).chunk(2, dim=1)
                new = self.dropout(torch.tanh(value) * torch.sigmoid(gate))
                skipped = skipped + self.skips[layer](new)
            else:
                new = self.dropout(F.relu(convolution(padded)))
            hidden = hidden + new
        last = F.relu(skipped) if self.gated else hidden
        return self.scores(last.transpose(1, 2)), torch.cat(after, dim=2).transpose(1, 2)


class Transformer(LanguageModel):
    """A decoder-only transformer with learnt positions and pre-normalization."""

    def __init__(self, spec: LanguageSpec, num_symbols: int, window: int) -> None:
        super().__init__()
        self.num_symbols, self.window = num_symbols, window
        self.embedding = nn.Embedding(num_symbols, spec.width)
        self.positions = nn.Parameter(0.02 * torch.randn(window, spec.width))
        layer = nn.TransformerEncoderLayer(
            spec.width, spec.heads, 4 * spec.width, spec.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, spec.layers, nn.LayerNorm(spec.width), enable_nested_tensor=False)
        self.scores = nn.Linear(spec.width, num_symbols)

    def following(self, seen: Tensor) -> Tensor:
        """See `LanguageModel.following`; sequences may be at most one window long."""
        length = seen.shape[1]
        if length > self.window:
            raise ValueError(f"a sequence of {length} symbols is longer than the model's window of {self.window}")
        hidden = self.embedding(seen) + self.positions[:length]
        ahead = torch.ones(length, length, dtype=torch.bool, device=seen.device).triu(1)
        return cast(Tensor, self.scores(self.blocks(hidden, mask=ahead)))

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.begin`; the state (rows, length, layers, 2, width) holds the keys and values so far."""
        weight = self.scores.weight
        state = weight.new_zeros(1, 0, len(self.blocks.layers), 2, weight.shape[1])
        return self._after(state, torch.tensor([[START, *context]], device=weight.device))

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.advance`; earlier symbols are not recomputed."""
        return self._after(state[rows], tokens[:, None])

    def _after(self, state: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Run the blocks without dropout on symbols (rows, new) after a state; return the next scores and the new state."""
        before, new = state.shape[1], seen.shape[1]
        if before + new > self.window:
            raise ValueError(f"a sequence of {before + new} symbols is longer than the model's window of {self.window}")
        hidden, states = self.embedding(seen) + self.positions[before : before + new], []
        visible = torch.ones(new, before + new, dtype=torch.bool, device=seen.device).tril(before)
        for number, layer in enumerate(self.blocks.layers):
            block = cast(nn.TransformerEncoderLayer, layer)
            attention, normed = block.self_attn, block.norm1(hidden)
            query, key, value = F.linear(normed, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=2)
            kept = torch.cat([state[:, :, number], torch.stack([key, value], dim=2)], dim=1)  # (rows, length, 2, width)
            states.append(kept)
            apart = (len(hidden), -1, attention.num_heads, attention.head_dim)
            q, k, v = (part.reshape(apart).transpose(1, 2) for part in (query, kept[:, :, 0], kept[:, :, 1]))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(2)
            hidden = hidden + attention.out_proj(mixed)
            hidden = hidden + block.linear2(F.gelu(block.linear1(block.norm2(hidden))))
        norm = cast(nn.LayerNorm, self.blocks.norm)
        return self.scores(norm(hidden[:, -1])), torch.stack(states, dim=2)
