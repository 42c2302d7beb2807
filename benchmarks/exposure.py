"""Ranks and exposures against straightforward implementations, side by side on this machine.

    python benchmarks/exposure.py [--digits 7] [--seconds 20]

The model is a 2 x 200 character LSTM (Carlini 2019, section 3) that has seen one nine-digit canary in every eighth line.
Enumeration of a prefix tree is compared with scoring candidates one by one from the start, the pruned rank of a likely
candidate with enumeration, and counting 10^6 references for 40 canaries with a plain loop. Then the walk over 10,000
candidates after a context of 24 tokens is compared with one forward pass per candidate, and with the walk's model calls
alone, for a Hugging Face GPT-2 with random weights, a transformer, dilated convolutions and a word model. Prints ratios.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.text.formats import Space
from memlib.models.external.language import HuggingFace
from memlib.models.sequence import START, LanguageModel, build_language_model
from memlib.observe.extraction import ShortestPath
from memlib.observe.likelihoods import UNITS_PER_BIT, Predictor, Work, leaf_costs, ranks, sequence_costs
from memlib.specs import LanguageSpec

SYMBOLS, STEPS, WORDS = 50, 150, 10_000
CANARY = (3, 9, 2, 7, 5, 10, 1, 4, 6)
CONTEXT = tuple(range(20, 40))  # the prefix: 20 characters


def model() -> LanguageModel:
    net = build_language_model(LanguageSpec(), SYMBOLS, 100, seed=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.004)
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        digits = rng.integers(1, 11, size=(32, 9))
        digits[:4] = CANARY
        lines = torch.from_numpy(np.concatenate([np.tile(CONTEXT, (32, 1)), digits], axis=1))
        optimizer.zero_grad()
        F.cross_entropy(net(lines).flatten(0, 1), lines.flatten()).backward()
        optimizer.step()
    return net.eval()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def naive(net: LanguageModel, space: Space, seconds: float) -> float:
    """Return candidates per second, each scored from its first symbol by the training forward pass, 256 at a time."""
    rng = np.random.default_rng(0)
    done, started = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - started < seconds:
            tokens = space.tokens(space.sample(256, rng))
            window = torch.from_numpy(np.concatenate([np.tile(CONTEXT, (256, 1)), tokens], axis=1))
            torch.log_softmax(net(window), dim=2).gather(2, window[..., None]).sum(dim=1)
            done += 256
    return done / (time.perf_counter() - started)


def gpt2(folder: Path) -> HuggingFace:
    """Return a GPT-2 with random weights, saved in `folder` with the tokenizer that it needs to be loaded."""
    import tokenizers
    import transformers

    words = {"<end>": 0} | {f"w{number}": number for number in range(1, WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<end>")
    fast.add_tokens(["a", "1", "."])
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(fast), n_positions=64, n_embd=256, n_layer=4, n_head=8, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return HuggingFace(str(folder)).to(torch.device("cpu"), torch.float64)


class Counted:
    """A model wrapper that times the model's calls."""

    def __init__(self, model: Predictor) -> None:
        self.num_symbols, self.cache_bytes, self._model, self.seconds = model.num_symbols, 2**30, model, 0.0

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._timed(lambda: self._model.begin(context))

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        return self._timed(lambda: self._model.begin_each(contexts))

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self._timed(lambda: self._model.advance(state, rows, tokens))

    def _timed(self, work: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        started = time.perf_counter()
        result = work()
        self.seconds += time.perf_counter() - started
        return result


def _logits(model: Any, context: Sequence[int], candidates: NDArray[np.int64]) -> Tensor:
    """Logits of whole candidates by the model's own forward pass, without anything kept: (candidates, tokens, symbols)."""
    rows = torch.from_numpy(np.concatenate([np.tile((START, *context), (len(candidates), 1)), candidates[:, :-1]], axis=1))
    with torch.inference_mode():
        forward = model.model(input_ids=rows).logits if isinstance(model, HuggingFace) else model.following(rows)
    return forward[:, len(context) :]


def _plain_costs(model: Any, context: Sequence[int], candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Costs of candidates by forward passes, each edge rounded to 2^-16 bit as walks round it."""
    logs = torch.log_softmax(_logits(model, context, candidates), dim=2).gather(2, torch.from_numpy(candidates)[..., None])
    return np.rint(logs[..., 0].numpy() * -(UNITS_PER_BIT / np.log(2))).astype(np.int64).sum(axis=1)


def walks(times: int) -> None:
    """Print what a walk takes beside one forward pass a candidate, and beside its model calls alone."""
    kinds = {"transformer": 50, "wavenet": 50, "words (LSTM, 10,000)": WORDS}
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, Any] = {"GPT-2 (Hugging Face)": gpt2(Path(folder))}
        for name, symbols in kinds.items():
            kind = "lstm" if name.startswith("words") else name
            spec = LanguageSpec.model_validate({"architecture": kind, "width": 256, "layers": 4, "heads": 8})
            models[name] = build_language_model(spec, symbols, 64, seed=0).double().eval()
    space, context = Space((tuple(range(1, 11)),) * 4), tuple(range(11, 35))
    every = space.tokens(np.concatenate(list(space.blocks(1000))))
    print(
        "| model | candidates | a forward pass each, ms | the walk, ms | ratio (range) | of its model calls (range) | costs that differ | ranks that differ |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, model in models.items():
        slow, fast, over = [], [], []
        for _ in range(times):  # in turns
            some = every[np.random.default_rng(0).permutation(len(every))[:256]]
            started = time.perf_counter()
            _logits(model, context, some)
            slow.append((time.perf_counter() - started) * 1e3 / len(some))
            counted, started = Counted(model), time.perf_counter()
            found = np.concatenate(list(leaf_costs(counted, space, context=context)))
            seconds = time.perf_counter() - started
            fast.append(seconds * 1e3 / len(every))
            over.append(seconds / counted.seconds)
        tenth = np.array_split(every, 100)[::10]
        plain = np.concatenate([_plain_costs(model, context, part) for part in tenth])
        walked = sequence_costs(model, np.concatenate(tenth), context=context)
        ranks = [np.argsort(np.argsort(costs, kind="stable")) for costs in (plain, walked)]
        assert np.array_equal(np.sort(found), np.sort(sequence_costs(model, every, context=context)))
        ratios = np.array(slow) / np.array(fast)
        print(f"| {name} | {len(every):,} | {np.median(slow):.2f} | {np.median(fast):.3f} | {np.median(ratios):.0f} "
              f"({ratios.min():.0f} to {ratios.max():.0f}) | {np.median(over):.2f} ({min(over):.2f} to {max(over):.2f}) "
              f"| {np.count_nonzero(plain != walked)} of {len(plain):,} | {np.count_nonzero(ranks[0] != ranks[1])} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--walks", type=int, default=3, help="repeats of the walks; 0 skips them")
    parser.add_argument("--digits", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = model()
    space = Space((tuple(range(1, 11)),) * options.digits)
    slow = naive(net, Space((tuple(range(1, 11)),) * 9), options.seconds)
    blocks = leaf_costs(net, space, context=CONTEXT)
    leaves, started = 0, time.perf_counter()
    for block in blocks:
        leaves += len(block)
        if time.perf_counter() - started > options.seconds:
            break
    fast = leaves / (time.perf_counter() - started)
    print(f"enumeration, one thread, float32: {fast:,.0f} candidates/s; naive {slow:,.0f}/s; ratio {fast / slow:.0f}x")

    net = net.double()
    nine = Space((tuple(range(1, 11)),) * 9)
    best = ShortestPath(net, nine, context=CONTEXT).run(max_evaluations=1_000_000)
    cost = int(sequence_costs(net, np.array([CANARY]), context=CONTEXT)[0])
    found = bool(best.leaves) and best.leaves[0][1] == CANARY
    work = Work()
    rank = ranks(leaf_costs(net, nine, context=CONTEXT, limit=cost, work=work), np.array([cost]))[0]
    whole = sum(10**place for place in range(9))
    print(
        f"canary at {cost / 65536:.1f} bits of 10^9 candidates: rank {rank} by {work.evaluations:,} evaluations, enumeration needs "
        f"{whole:,}: {whole / work.evaluations:,.0f}x fewer; the shortest path {'found it' if found else 'did not find it'} by {best.evaluations:,}"
    )

    rng = np.random.default_rng(0)
    references = rng.integers(0, 2**22, size=10**6)
    canaries = rng.integers(0, 2**22, size=40)
    ours = timed(lambda: ranks(iter([references]), canaries))
    counted = ranks(iter([references]), canaries)
    plain = timed(lambda: [sum(1 for r in references.tolist() if r <= c) for c in canaries.tolist()[:2]]) * 20
    assert counted[0] == (references <= canaries[0]).sum()
    print(f"10^6 references, 40 canaries: {ours * 1e3:.0f} ms; a plain loop {plain:.1f} s; ratio {plain / ours:.0f}x")
    tokens = nine.tokens(nine.sample(1000, rng))
    same = np.array_equal(sequence_costs(net, tokens, context=CONTEXT), sequence_costs(net, tokens, context=CONTEXT, batch=7))
    print(f"costs of 1,000 candidates in batches of 4096 and of 7 equal: {same}\n")
    if options.walks:
        walks(options.walks)


if __name__ == "__main__":
    main()
