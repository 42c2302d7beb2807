"""Pairs for translation: rows, canaries on both sides, and candidates scored after their own source."""

import itertools
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from memlib.audits.exposure.recipe import Recipe
from memlib.data.splits import TRAIN, VALIDATION, select
from memlib.data.text.corpus import Corpus
from memlib.data.text.formats import Format, Space
from memlib.data.text.pairs import PADDING, Paired, build_pairs, embedded_pairs, pair_candidates, pig_latin
from memlib.errors import UserError
from memlib.models.sequence import EncoderDecoder, build_language_model
from memlib.objectives.language import window_losses
from memlib.observe.extraction import ShortestPath
from memlib.observe.likelihoods import UNITS_PER_BIT, candidate_costs, leaf_costs, ranks, sequence_costs
from memlib.specs import LanguageSpec, SecretsSpec, TextSpec

TEXT = embedded_pairs("\n".join(f"the string number {n} has a name" for n in range(60)))
SPEC = TextSpec.model_validate({"source": {"kind": "topic_pairs"}, "window": 48})
BOTH = SecretsSpec(format="odecay {d3}!", source="code {d3}", insertions=(2, 5), never=3, together=True)
TARGET_ONLY = BOTH.model_copy(update={"source": "the code"})


def corpus(canaries: SecretsSpec = BOTH, text: str = TEXT, spec: TextSpec = SPEC) -> Corpus:
    with TemporaryDirectory() as folder:
        return build_pairs(text, spec, canaries, Path(folder) / "windows.npy", secret=b"s" * 32)


def sides(built: Corpus, row: int) -> tuple[str, str]:
    said = ["".join(built.vocabulary[s] for s in part if s != PADDING) for part in np.split(built.windows[row], 2)]
    return said[0].lstrip("\n"), said[1]


def test_a_fraction_of_a_corpus_keeps_whole_pairs() -> None:
    for fraction in np.linspace(0.3, 1, 15):
        built = corpus(
            BOTH.model_copy(update={"insertions": (1,)}), spec=SPEC.model_copy(update={"fraction": float(fraction)})
        )
        plain = [row for row, name in enumerate(built.splits["example_id"].to_pylist()) if "canary" not in name]
        assert len(plain) == int(60 * fraction)
        assert sides(built, plain[-1])[1].endswith("aay amenay\n")


def test_pig_latin_translates_a_sentence() -> None:
    assert pig_latin("the string 12 is ours, sh") == "ethay ingstray 12 isay oursay, shay"


def test_rows_hold_pairs_and_canaries_hold_the_same_secret_on_both_sides() -> None:
    built = corpus()
    assert sides(built, 0) == ("the string number 0 has a name", "ethay ingstray umbernay 0 ashay aay amenay\n")
    table = built.canaries.to_pylist()
    assert [row["insertions"] for row in table] == [2, 5, 0, 0, 0]
    for canary in (0, 1):
        rows = select(built.splits, f"canary {canary}")["row"].to_pylist()
        assert len(rows) == table[canary]["insertions"]
        digits = table[canary]["text"].removeprefix("odecay ").removesuffix("!")
        assert {sides(built, row) for row in rows} == {(f"code {digits}", f"odecay {digits}!\n")}
    assert len(select(built.splits, TRAIN)) + len(select(built.splits, VALIDATION)) == 60 - 7


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    spec = LanguageSpec(architecture="encoder_decoder", width=8, layers=2, embedding=6)
    net = build_language_model(spec, len(corpus().vocabulary), 2 * SPEC.window, seed=0).double().eval()
    assert isinstance(net, EncoderDecoder)
    with torch.no_grad():
        net.get_parameter("scores.weight").mul_(6)
    return net


def slow_cost(net: EncoderDecoder, row: np.ndarray, first: int, last: int) -> int:
    """Of the target's symbols first to last, through the training forward pass."""
    with torch.no_grad():
        scores = net(torch.from_numpy(row[None]))[0]
    target, total = row[SPEC.window :], 0
    for place in range(first, last):
        probabilities = torch.softmax(scores[place], dim=0)
        total += round(-math.log2(float(probabilities[target[place]])) * UNITS_PER_BIT)
    return total


@pytest.mark.parametrize("canaries", [BOTH, TARGET_ONLY])
@pytest.mark.parametrize("known", [True, False])
def test_costs_of_pairs_equal_the_teacher_forced_training_pass(
    model: EncoderDecoder, canaries: SecretsSpec, known: bool
) -> None:
    canaries = canaries.model_copy(update={"known_suffix": known, "known_prefix": True})
    number = {symbol: place for place, symbol in enumerate(corpus().vocabulary)}
    space, context = pair_candidates(Format(canaries.format, {}), canaries, SPEC, number)
    assert isinstance(space, Paired) == (canaries.source == BOTH.source)
    every = np.concatenate(list(space.blocks(300)))
    costs = candidate_costs(model, space, every, context=context, batch=64)
    for place, digits in enumerate(itertools.product("0123456789", repeat=3)):
        if place % 37:
            continue
        before, after = canaries.source.replace("{d3}", "".join(digits)), f"odecay {''.join(digits)}!"
        text = corpus(text=f"{before}\t{after}\n" * 20, canaries=canaries)
        row = np.array([number[text.vocabulary[s]] if s >= 0 else s for s in text.windows[0]], dtype=np.int64)
        assert costs[place] == slow_cost(model, row, 7, 11 if known else 10)
    assert np.sort(np.concatenate(list(leaf_costs(model, space, context=context)))).tolist() == sorted(costs.tolist())


def test_candidates_of_a_secret_in_the_target_only_support_pruning_and_search(model: EncoderDecoder) -> None:
    number = {symbol: place for place, symbol in enumerate(corpus().vocabulary)}
    space, context = pair_candidates(Format(BOTH.format, {}), TARGET_ONLY, SPEC, number)
    assert type(space) is Space
    costs = np.sort(sequence_costs(model, space.tokens(np.concatenate(list(space.blocks(999)))), context=context))
    found = ranks(leaf_costs(model, space, context=context, limit=int(costs[20])), costs[[20]])
    assert found.tolist() == [int((costs <= costs[20]).sum())]
    assert [cost for cost, _ in ShortestPath(model, space, context=context).run(top=3).leaves] == costs[:3].tolist()


def test_window_losses_ignore_padding(model: EncoderDecoder) -> None:
    rows = torch.from_numpy(corpus().windows[:4])
    losses, counts = window_losses(model, rows)
    assert counts.tolist() == (rows[:, SPEC.window :] >= 0).sum(dim=1).tolist()
    with torch.no_grad():
        scores = torch.log_softmax(model(rows), dim=2)
    by_hand = -sum(
        float(scores[row, place, symbol])
        for row in range(4)
        for place, symbol in enumerate(rows[row, SPEC.window :].tolist())
        if symbol >= 0
    )
    assert float(losses.sum()) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(
    ("canaries", "text", "said"),
    [
        (BOTH, "no tab here", "no tab between"),
        (BOTH, f"{'x' * 60}\ty", "no pair of texts shorter than 48"),
        (BOTH.model_copy(update={"source": "code {d2}"}), TEXT, "the same holes"),
        (BOTH.model_copy(update={"source": "x" * 48}), TEXT, "do not fit"),
        (BOTH.model_copy(update={"insertions": (50,)}), TEXT, "at least twice"),
    ],
)
def test_pairs_that_do_not_fit_a_corpus_are_refused(canaries: SecretsSpec, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        corpus(canaries, text)


TRAINING = {"objective": {"kind": "language"}, "epochs": 1, "augment": None}
PAIRS = {
    "data": {"source": {"kind": "topic_pairs"}}, "canaries": {"format": "ymay {d3}", "source": "my {d3}"},
    "model": {"architecture": "encoder_decoder"}, "training": TRAINING, "extraction": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"canaries": {"format": "ymay {d3}"}}, "give canaries.source"),
        ({"model": {"architecture": "lstm"}}, "encoder_decoder"),
        ({"extraction": {}}, "there is nothing to search for"),
        ({"data": {"source": {"kind": "topics"}}}, "need pairs: set data.source.kind"),
        ({"training": None}, "one of training and trained .*, not neither"),
        ({"trained": {"kind": "huggingface", "path": "x"}, "training": None}, "for models that memlib trains"),
    ],
)
def test_recipes_of_pairs_with_contradictory_settings_are_refused(changes: dict[str, object], said: str) -> None:
    Recipe.model_validate(PAIRS)
    with pytest.raises(ValidationError, match=said):
        Recipe.model_validate(PAIRS | changes)
