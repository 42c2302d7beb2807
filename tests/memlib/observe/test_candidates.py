"""Ranks and extraction against brute force by an independent slow scorer, with ties, for several models."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.text.formats import Space, Worded
from memlib.errors import RunError
from memlib.models.sequence import LanguageModel, build_language_model
from memlib.observe.extraction import Frontier, ShortestPath, beam_search
from memlib.observe.likelihoods import UNITS_PER_BIT, OutOfWork, Work, candidate_costs, leaf_costs, ranks, sequence_costs
from memlib.specs import LanguageSpec

SYMBOLS = 12
CONTEXT = (11, 3)
KINDS = ("lstm", "gru", "cnn", "wavenet", "transformer")


def model(kind: str, *, seed: int = 0, sharp: float = 4.0) -> LanguageModel:
    spec = LanguageSpec.model_validate({"architecture": kind, "width": 8, "layers": 2, "embedding": 6, "heads": 2})
    net = build_language_model(spec, SYMBOLS, 12, seed=seed).double().eval()
    with torch.no_grad():
        net.get_parameter("scores.weight").mul_(sharp)  # so that some candidates are far likelier than others
    return net


class Orderless:
    """Independent symbols: candidates that are permutations of one another tie."""

    num_symbols, cache_bytes = SYMBOLS, 2**30

    def __init__(self) -> None:
        self.logits = torch.linspace(-3, 2, SYMBOLS, dtype=torch.float64)[None]

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.logits, torch.zeros(1, 1)

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(rows), -1), state[rows]


def slow_cost(net: LanguageModel, tokens: Sequence[int], context: Sequence[int] = CONTEXT) -> int:
    """A sequence at a time, symbol by symbol, through the training forward pass."""
    total = 0
    for end in range(len(tokens)):
        window = torch.tensor([[*context, *tokens[: end + 1]]])
        with torch.no_grad():
            scores = net(window)[0, -1]
        probability = math.exp(float(scores[tokens[end]])) / sum(math.exp(float(s)) for s in scores)
        total += round(-math.log2(probability) * UNITS_PER_BIT)
    return total


def brute(net: LanguageModel, space: Space) -> dict[tuple[int, ...], int]:
    return {tokens: slow_cost(net, tokens) for tokens in itertools.product(*space.slots)}


SPACE = Space(((5,), (1, 2, 3, 4), (1, 2, 3), (6,), (1, 2, 3, 4, 7), (8,), (0,)))  # prefix, hyphen, known suffix


@pytest.mark.parametrize("kind", KINDS)
def test_enumeration_pruning_and_extraction_equal_brute_force(kind: str) -> None:
    net = model(kind)
    truth = brute(net, SPACE)
    order = sorted(truth.values())
    found = np.concatenate(list(leaf_costs(net, SPACE, context=CONTEXT, batch=7)))
    assert sorted(found.tolist()) == order
    tokens = np.array(list(truth))
    assert sequence_costs(net, tokens, context=CONTEXT, batch=11).tolist() == list(truth.values())
    for canary in (order[0], order[7], order[-1]):
        expected = sum(cost <= canary for cost in order)
        pruned = ranks(leaf_costs(net, SPACE, context=CONTEXT, limit=canary), np.array([canary]))
        assert pruned.tolist() == [expected]
    for batch in (1, 3, 64):
        search = ShortestPath(net, SPACE, context=CONTEXT, batch=batch)
        best = search.run(top=5)
        assert [cost for cost, _ in best.leaves] == order[:5]
        assert best.exact
        assert best.ended == "found"
        assert truth[best.leaves[0][1]] == order[0]


SPELLED = ((1, 8), (1, 2, 8), (2, 8), (3, 1, 2, 8), (1, 2, 3, 8))  # 8 is the space after a word
WORDED = Worded((((5,),), SPELLED, SPELLED, ((1,), (2,), (4,))))


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_several_characters_are_ranked_and_extracted_as_by_brute_force(kind: str) -> None:
    net = model(kind)
    every = np.concatenate(list(WORDED.blocks(11)))
    rows = [tuple(symbol for symbol in row if symbol >= 0) for row in WORDED.tokens(every).tolist()]
    assert len(set(rows)) == WORDED.size == 75
    truth = {row: slow_cost(net, row) for row in rows}
    order = sorted(truth.values())
    assert candidate_costs(net, WORDED, every, context=CONTEXT, batch=7).tolist() == list(truth.values())
    assert sorted(np.concatenate(list(leaf_costs(net, WORDED, context=CONTEXT, batch=7))).tolist()) == order
    for canary in (order[0], order[7], order[-1]):
        pruned = leaf_costs(net, WORDED, context=CONTEXT, limit=canary)
        assert ranks(pruned, np.array([canary])).tolist() == [sum(cost <= canary for cost in order)]
    for batch in (1, 64):
        best = ShortestPath(net, WORDED, context=CONTEXT, batch=batch).run(top=5)
        assert [cost for cost, _ in best.leaves] == order[:5]
        assert best.exact
        assert truth[best.leaves[0][1]] == order[0]
    assert beam_search(net, WORDED, width=100, context=CONTEXT)[0][0] == order[0]
    assert sum(part.size for part in WORDED.shards(4)) == WORDED.size


@pytest.mark.parametrize("kind", KINDS)
def test_stepwise_scores_of_a_prefix_equal_the_training_forward_pass(kind: str) -> None:
    net = model(kind)
    window = torch.randint(0, SYMBOLS, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = net(window)
        _, state = net.begin(())
        rows = torch.zeros(3, dtype=torch.int64)
        for place in range(8):
            scores, state = net.advance(state, rows, window[:, place])
            rows = torch.arange(3)
            torch.testing.assert_close(scores, logits[:, place + 1])


def test_scores_do_not_depend_on_later_symbols() -> None:
    for kind in KINDS:
        net = model(kind)
        window = torch.randint(0, SYMBOLS, (1, 9), generator=torch.Generator().manual_seed(2))
        other = window.clone()
        other[0, 5] = (other[0, 5] + 1) % SYMBOLS
        with torch.no_grad():
            torch.testing.assert_close(net(window)[:, :6], net(other)[:, :6])
            assert not torch.allclose(net(window)[:, 6], net(other)[:, 6])


def test_ties_count_whatever_the_order_of_additions() -> None:
    """10^5 candidates of independent symbols: a candidate ties with all of its permutations."""
    space = Space((tuple(range(10)),) * 5)
    costs = np.concatenate(list(leaf_costs(Orderless(), space, batch=1000)))
    one = np.round((np.log2(np.exp(np.linspace(-3, 2, SYMBOLS)).sum()) - np.linspace(-3, 2, SYMBOLS) / np.log(2)) * 65536)
    expected = np.zeros(1)
    for _ in range(5):
        expected = (expected[:, None] + one[None, :10]).ravel()
    assert np.array_equal(np.sort(costs), np.sort(expected).astype(np.int64))
    canary = np.array([[9, 8, 7, 8, 9]])
    mine = sequence_costs(Orderless(), canary)
    expected_rank = int((expected <= mine[0]).sum())
    limited = leaf_costs(Orderless(), space, limit=int(mine[0]), batch=50)
    assert ranks(limited, mine).tolist() == [expected_rank]
    assert ranks(iter([costs]), np.concatenate([mine, mine])).tolist() == [expected_rank] * 2


def test_pruned_and_full_enumeration_agree_on_a_million_candidates() -> None:
    space = Space((tuple(range(10)),) * 6)
    net = model("lstm", seed=3, sharp=20)
    costs = np.sort(np.concatenate(list(leaf_costs(net, space, context=CONTEXT))))
    assert len(costs) == 10**6
    limits = costs[[0, 99, 20_000]]
    full, pruned = Work(), Work()
    assert np.array_equal(ranks(leaf_costs(net, space, context=CONTEXT, work=full), limits), [1, 100, 20_001])
    found = ranks(leaf_costs(net, space, context=CONTEXT, limit=int(limits[1]), work=pruned), limits[:2])
    assert np.array_equal(found, [1, 100])
    assert pruned.evaluations < full.evaluations / 20
    assert full.evaluations == 111_111  # the prefixes: 1 + 10 + ... + 10^5
    best = ShortestPath(net, space, context=CONTEXT).run(top=3)
    assert [cost for cost, _ in best.leaves] == costs[:3].tolist()


def test_costs_of_all_shards_equal_those_of_the_whole_space() -> None:
    net = model("gru")
    whole = np.sort(np.concatenate(list(leaf_costs(net, SPACE, context=CONTEXT))))
    parts = list(SPACE.shards(10))
    assert len(parts) == 12
    found = [block for part in parts for block in leaf_costs(net, part, context=CONTEXT)]
    assert np.array_equal(np.sort(np.concatenate(found)), whole)


def test_a_search_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    net = model("lstm", sharp=1)
    whole = ShortestPath(net, SPACE, context=CONTEXT, batch=2).run(top=3)
    search = ShortestPath(net, SPACE, context=CONTEXT, batch=2)
    stopped = search.run(top=3, max_evaluations=9)
    assert stopped.ended == "evaluations"
    assert not stopped.exact
    search.frontier.save(tmp_path / "frontier.npz")
    again = ShortestPath(net, SPACE, context=CONTEXT, batch=2, frontier=Frontier.load(tmp_path / "frontier.npz"))
    assert again.run(top=3).leaves == whole.leaves


@pytest.mark.parametrize("kind", KINDS)
def test_scores_from_a_saved_state_equal_scores_from_the_start(kind: str) -> None:
    net, rng = model(kind, seed=5), torch.Generator().manual_seed(0)
    tokens = torch.randint(SYMBOLS, (20, 6), generator=rng)
    with torch.inference_mode():
        logits, state = net.begin(CONTEXT)
        rows = torch.zeros(20, dtype=torch.int64)
        for place in range(6):
            seen = torch.cat([torch.tensor([[0, *CONTEXT]]).expand(20, -1), tokens[:, : place + 1]], dim=1)
            logits, state = net.advance(state, rows, tokens[:, place])
            torch.testing.assert_close(logits, net.following(seen)[:, -1], rtol=1e-12, atol=1e-12)
            rows = torch.randperm(20, generator=rng)  # children come in any order, of any parent
            tokens = tokens[rows]
        with pytest.raises(ValueError, match="window") if kind == "transformer" else contextlib.nullcontext():
            for _ in range(9):
                logits, state = net.advance(state, rows, tokens[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_little_memory_changes_no_cost_and_no_rank(kind: str) -> None:
    net, tokens = model(kind), SPACE.tokens(np.concatenate(list(SPACE.blocks(100))))
    costs = sequence_costs(net, tokens, context=CONTEXT)
    every = np.sort(np.concatenate(list(leaf_costs(net, SPACE, context=CONTEXT))))
    best = ShortestPath(net, SPACE, context=CONTEXT).run(top=3)
    net.cache_bytes = 1
    assert sequence_costs(net, tokens, context=CONTEXT).tolist() == costs.tolist()
    assert np.sort(np.concatenate(list(leaf_costs(net, SPACE, context=CONTEXT)))).tolist() == every.tolist()
    assert ShortestPath(net, SPACE, context=CONTEXT).run(top=3).leaves == best.leaves


def test_shortest_path_is_unchanged_with_few_states_and_inexact_with_few_nodes() -> None:
    """Dropped states are recomputed, which changes no cost; dropped nodes are reported as inexact."""
    net = model("transformer", sharp=1)
    whole = ShortestPath(net, SPACE, context=CONTEXT, batch=4).run(top=2)
    net.cache_bytes = 20_000  # a few states
    small = ShortestPath(net, SPACE, context=CONTEXT, batch=4).run(top=2)
    net.cache_bytes = 2**30
    assert small.leaves == whole.leaves
    assert small == whole
    tight = ShortestPath(net, SPACE, context=CONTEXT, batch=4, max_nodes=6).run(top=SPACE.size)
    assert tight.ended == "exhausted"
    assert not tight.exact
    everything = ShortestPath(net, SPACE, context=CONTEXT).run(top=SPACE.size + 1)
    assert everything.ended == "exhausted"
    assert len(everything.leaves) == SPACE.size


def test_a_full_width_beam_is_exact_and_greedy_search_is_never_better() -> None:
    net = model("lstm")
    truth = sorted(brute(net, SPACE).values())
    wide = beam_search(net, SPACE, width=SPACE.size, context=CONTEXT)
    assert [cost for cost, _ in wide] == truth
    work = Work()
    greedy = beam_search(net, SPACE, width=1, context=CONTEXT, work=work)
    assert greedy[0][0] >= truth[0]
    assert work.evaluations == len(SPACE.slots)


def test_searches_stop_at_the_work_limit_and_refuse_nan() -> None:
    with pytest.raises(OutOfWork):
        list(leaf_costs(model("gru"), SPACE, work=Work(limit=5)))
    broken = model("lstm")
    with torch.no_grad():
        broken.get_parameter("scores.bias").fill_(math.nan)
    with pytest.raises(RunError, match="NaN"):
        sequence_costs(broken, np.array([[1, 2]]))


def test_an_impossible_symbol_costs_far_more_than_any_other() -> None:
    class Never(Orderless):
        def __init__(self) -> None:
            super().__init__()
            self.logits = self.logits.clone()
            self.logits[0, 4] = -math.inf

    costs: NDArray[np.int64] = sequence_costs(Never(), np.array([[1, 4], [1, 1]]))
    assert costs[0] > 1000 * costs[1]


def blocks(*values: int) -> Iterator[NDArray[np.int64]]:
    for value in values:
        yield np.array([value], dtype=np.int64)


def test_ranks_count_the_costs_up_to_and_including_each_value() -> None:
    assert ranks(blocks(5, 3, 3, 9, 7), np.array([7, 3, 2, 9])).tolist() == [4, 2, 0, 5]
