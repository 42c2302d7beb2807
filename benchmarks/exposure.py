"""Ranks and exposures against what one would write first, side by side on this machine.

    python benchmarks/exposure.py [--digits 7] [--seconds 20]

A 2 x 200 LSTM of characters (Carlini 2019, section 3) that has seen one nine-digit canary in every eighth line. Enumeration
of a prefix tree against scoring candidates one by one from the start; the pruned rank of a likely candidate against
enumeration; counting 10^6 references for 40 canaries against a plain loop. Prints ratios.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from memlib.data.formats import Space
from memlib.models.sequence import LanguageModel, build_language_model
from memlib.observe.extraction import ShortestPath
from memlib.observe.likelihoods import Work, leaf_costs, ranks, sequence_costs
from memlib.specs import LanguageSpec

SYMBOLS, STEPS = 50, 150
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
    """Candidates a second, each scored from its first symbol through the training forward pass, 256 at a time."""
    rng = np.random.default_rng(0)
    done, started = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - started < seconds:
            tokens = space.tokens(space.sample(256, rng))
            window = torch.from_numpy(np.concatenate([np.tile(CONTEXT, (256, 1)), tokens], axis=1))
            torch.log_softmax(net(window), dim=2).gather(2, window[..., None]).sum(dim=1)
            done += 256
    return done / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
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
    print(f"costs of 1,000 candidates in batches of 4096 and of 7 equal: {same}")


if __name__ == "__main__":
    main()
