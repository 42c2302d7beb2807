"""External models: tokenizers that merge digits, ranks against brute force, and messages about wrong models."""

import itertools
import json
import math
import os
import shutil
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_models import TEXT, save_mixtral, save_model

from memlib.data.text.formats import Format
from memlib.data.text.spelling import Spelled, spell
from memlib.errors import RunError, UserError
from memlib.models import causal
from memlib.models.causal import FolderTokenizer, load_model
from memlib.models.external.factory import external_language_digest
from memlib.models.external.language import Answering, HuggingFace, bytes_of, load_outside
from memlib.observe.extraction import ShortestPath, beam_search
from memlib.observe.likelihoods import UNITS_PER_BIT, leaf_costs, ranks, sequence_costs
from memlib.specs import HuggingFaceSpec, ProtocolSpec

FORM = Format("my pin is {x4}.", {"x": ("1", "2", "3")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def model(folder: Path) -> HuggingFace:
    return HuggingFace(str(folder)).to(torch.device("cpu"), torch.float64)


def slow_cost(model: HuggingFace, tokens: Sequence[int], context: Sequence[int]) -> int:
    """Through transformers' own forward pass, a token at a time."""
    seen, total = [0, *context], 0
    for token in tokens:
        with torch.no_grad():
            probabilities = torch.softmax(model.model(input_ids=torch.tensor([seen])).logits[0, -1], dim=0)
        total += round(-math.log2(float(probabilities[token])) * UNITS_PER_BIT)
        seen.append(token)
    return total


@pytest.mark.parametrize("known_suffix", [True, False])
def test_ranks_and_extraction_with_multi_digit_tokens_equal_brute_force(model: HuggingFace, known_suffix: bool) -> None:
    space = spell(FORM, model, known_prefix=True, known_suffix=known_suffix)
    texts = ["".join(found) for found in itertools.product("123", repeat=4)]
    whole = model.encode([f"my pin is {text}{'.' if known_suffix else ''}" for text in texts])
    assert len({len(row) for row in whole}) > 1  # digits are joined unevenly
    truth = [slow_cost(model, row[len(space.context) :], space.context) for row in whole]
    every = np.concatenate(list(space.blocks(10)))
    assert sequence_costs(model, space.tokens(every), context=space.context, batch=7).tolist() == truth
    order = sorted(truth)
    assert sorted(np.concatenate(list(leaf_costs(model, space, context=space.context))).tolist()) == order
    for canary in (order[0], order[11], order[-1]):
        pruned = ranks(leaf_costs(model, space, context=space.context, limit=canary, batch=9), np.array([canary]))
        assert pruned.tolist() == [sum(cost <= canary for cost in order)]
    for batch in (1, 16):
        best = ShortestPath(model, space, context=space.context, batch=batch).run(top=4)
        assert [cost for cost, _ in best.leaves] == order[:4]
        assert best.exact
    wide = beam_search(model, space, context=space.context, width=5000)
    assert wide[0][0] == order[0]
    parts = [np.concatenate(list(leaf_costs(model, part, context=space.context))) for part in space.shards(3)]
    assert sorted(np.concatenate(parts).tolist()) == order


def test_cached_keys_and_values_give_the_same_scores_as_no_cache(model: HuggingFace) -> None:
    tokens = torch.randint(model.num_symbols, (6, 20), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits, state = model.begin_each(tokens[:, :4])
        assert state.shape == (6, 1, 2, 2, 5, 8)  # rows, layers, keys and values, heads, length, dim
        for place in range(4, 20):
            logits, state = model.advance(state, torch.arange(6), tokens[:, place])
        anew = model._ask_anew(torch.cat([torch.zeros(6, 1, dtype=torch.int64), tokens], dim=1))
    torch.testing.assert_close(logits, anew, rtol=1e-10, atol=1e-10)
    with pytest.raises(UserError, match="longer than the model's window of 32"), torch.inference_mode():
        for _ in range(12):
            logits, state = model.advance(state, torch.arange(6), tokens[:, 0])


def test_a_first_context_that_fills_the_window_does_not_end_caching(folder: Path) -> None:
    fresh = HuggingFace(str(folder))
    with torch.inference_mode():
        fresh.begin(list(range(1, 32)))
        _, state = fresh.begin([1, 2])
    assert state.dim() == 6


def test_a_model_without_a_full_cache_is_evaluated_without_cache(folder: Path, tmp_path: Path) -> None:
    """Mistral's attention sees a window of a few tokens, and its cache keeps only these."""
    import transformers

    shutil.copytree(folder, tmp_path / "sliding")
    config = transformers.MistralConfig(
        vocab_size=340, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4, max_position_embeddings=32,
    )  # fmt: skip
    transformers.MistralForCausalLM(config).save_pretrained(tmp_path / "sliding")
    sliding = HuggingFace(str(tmp_path / "sliding")).to(torch.device("cpu"), torch.float64)
    with torch.inference_mode():
        logits, state = sliding.begin([3, 5, 7, 9, 2, 4])
        assert state.tolist() == [[0, 3, 5, 7, 9, 2, 4]]
        logits, state = sliding.advance(state, torch.tensor([0, 0]), torch.tensor([1, 6]))
        torch.testing.assert_close(logits[1:], sliding._ask_anew(torch.tensor([[0, 3, 5, 7, 9, 2, 4, 6]])))


def test_spell_includes_the_leading_space_of_the_tokenizer(tmp_path: Path) -> None:
    model = HuggingFace(str(save_model(tmp_path, metaspace=True))).to(torch.device("cpu"), torch.float64)
    space = spell(FORM, model, known_prefix=False, known_suffix=True)
    assert space.lead == " "
    assert space.context == ()
    row = np.array([[0, 1, 0, 2, 0, 0]], dtype=np.int32)[:, : space.end]
    text = "".join(slot[c] for slot, c in zip(space.slots, row[0], strict=True))
    assert text.startswith(" 1") or text.startswith(" 2")
    assert "".join(model.pieces[t] or "" for t in space.tokens(row)[0] if t >= 0) == text


class Joins:
    """A tokenizer of characters, and of some that it joins."""

    def __init__(self, *joined: str, lower: bool = False) -> None:
        self.pieces = [*joined, *(chr(code) for code in range(32, 127))]
        self.lower = lower

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = []
        for text in texts:
            row, place = [], 0
            text = text.lower() if self.lower else text
            while place < len(text):
                token = next(n for n, piece in enumerate(self.pieces) if text.startswith(piece, place))
                row.append(token)
                place += len(self.pieces[token])
            found.append(row)
        return found


def test_a_space_that_the_tokenizer_joins_to_the_hole_is_scored_with_it() -> None:
    tokenizer = Joins(" 1", " 2", " 3")
    space = spell(FORM, tokenizer, known_prefix=True, known_suffix=True)
    assert space.text_before == "my pin is"
    assert space.slots[0] == (" ",)
    assert space.size == 81
    assert space.tokens(np.zeros((1, 6), dtype=np.int32)).tolist() == tokenizer.encode([" 1111."])


@pytest.mark.parametrize(
    ("tokenizer", "form", "said"),
    [
        (Joins("n1", "n2", "n3"), Format("pin{x4}", FORM.alphabets), "joins 'n' and the hole"),
        (Joins(lower=True), Format("Pin {x4}", FORM.alphabets), "decode to a different text"),
        (Joins(), Format("pin {n2}", {"n": ("ann", "bob")}), "symbols must be single characters"),
    ],
)
def test_spell_refuses_formats_that_the_tokenizer_cannot_spell(tokenizer: Joins, form: Format, said: str) -> None:
    with pytest.raises(UserError, match=said):
        spell(form, tokenizer, known_prefix=True, known_suffix=True)


def test_a_token_joining_prefix_and_candidate_is_refused_when_met() -> None:
    """Among 16^6 candidates, a single token joins the prefix and one candidate, so that a sample does not reveal it."""
    form = Format("pin is x{h6}", {})
    tokenizer = Joins("x0a1b2c")
    space = spell(form, tokenizer, known_prefix=True, known_suffix=False)
    choices = np.array([[0, 10, 1, 11, 2, 12]], dtype=np.int32)
    with pytest.raises(UserError, match="for some candidates but not for others"):
        space.tokens(choices)


class Counting:
    """Answers by a bigram table, and says what it was asked."""

    def __init__(self, *, states: bool = True, scale: float = 1.0) -> None:
        self.vocabulary = list("\n0123456789ab ")
        table = np.random.default_rng(0).normal(size=(14, 14)) * 2
        self.table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
        self.states, self.scale, self.known = states, scale, 0

    def next_log_probs(self, prefixes: NDArray[np.int64], state: list[Any] | None) -> tuple[NDArray[np.float64], Any]:
        if state is not None:
            self.known += sum(one is not None for one in state)
            assert all(one == tuple(p[:-1]) for one, p in zip(state, prefixes.tolist(), strict=True) if one is not None)
        last = prefixes[:, -1] if prefixes.shape[1] else np.zeros(len(prefixes), dtype=np.int64)
        return self.table[last] * self.scale, [tuple(p) for p in prefixes.tolist()] if self.states else None


@pytest.mark.parametrize("states", [True, False])
def test_costs_and_best_candidates_of_a_protocol_model_equal_brute_force(states: bool) -> None:
    mine = Counting(states=states)
    model = Answering(mine, name="counting")
    model.cache_bytes = 25_000  # some 50 states
    space = Format("a{d3}b", {}).space({s: n for n, s in enumerate(mine.vocabulary)}, "character")
    bits = [-mine.table[a, b] / np.log(2) for a, b in itertools.product(range(14), repeat=2)]
    unit = np.round(np.array(bits) * UNITS_PER_BIT).astype(np.int64).reshape(14, 14)
    every = space.tokens(np.concatenate(list(space.blocks(100))))
    truth = unit[0, every[:, 0]] + sum(unit[every[:, i], every[:, i + 1]] for i in range(4))
    assert sequence_costs(model, every).tolist() == truth.tolist()
    best = ShortestPath(model, space, batch=5).run(top=3)
    assert [cost for cost, _ in best.leaves] == np.sort(truth)[:3].tolist()
    assert (mine.known > 0) == states


def test_bytes_of_counts_all_memory_held_by_a_state() -> None:
    class Held:
        def __init__(self) -> None:
            self.keys, self.itself = torch.zeros(1000, dtype=torch.float64), self

    assert 8000 <= bytes_of(Held()) < 10_000
    assert bytes_of([np.zeros(1000), {"a": torch.zeros(1000)}]) >= 12_000
    assert bytes_of(None) < 100

    @dataclass(slots=True)
    class Slotted:
        keys: torch.Tensor

    class Foreign:
        nbytes = 9000

    assert bytes_of(Slotted(torch.zeros(1000, dtype=torch.float64))) >= 8000
    assert bytes_of(deque([np.zeros(1000)])) >= 8000
    assert bytes_of(np.array([np.zeros(1000), None], dtype=object)) >= 8000
    assert bytes_of(Foreign()) >= 9000


def test_the_cache_counts_the_overhead_of_small_states() -> None:
    """A number is small; the objects that hold it and the prefix that is its key are larger."""
    model = Answering(Counting(), name="counting")
    model.cache_bytes = 100_000
    for number in range(5000):
        model._keep((number, 1, 2), number)
    assert 100 <= len(model._states) <= 100_000 / 250


def test_faulty_external_models_are_refused_with_their_fault(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="sum to"):
        Answering(Counting(scale=0.5), name="m").begin(())
    nan = Counting()
    nan.table[:] = np.nan
    space = Format("a{d3}b", {}).space({s: n for n, s in enumerate(nan.vocabulary)}, "character")
    with pytest.raises(RunError, match="NaN"):
        sequence_costs(Answering(nan, name="m"), space.tokens(np.zeros((1, 5), dtype=np.int32)))
    with pytest.raises(UserError, match="without vocabulary"):
        Answering(object(), name="m")
    with pytest.raises(UserError, match="no config.json"):
        load_outside(HuggingFaceSpec(kind="huggingface", path=str(tmp_path)))
    with pytest.raises(UserError, match="no config.json"):
        external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot load"):
        load_outside(HuggingFaceSpec(kind="huggingface", path=str(tmp_path)))
    (tmp_path / "failing.py").write_text(
        "class M:\n    vocabulary = ['a', 'b']\n    def next_log_probs(self, prefixes, state):\n        raise OSError('gone')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", "failing")
    spec = ProtocolSpec(kind="import", model="failing:M")
    with pytest.raises(UserError, match="OSError at failing.py:4"):
        load_outside(spec).begin(())
    assert external_language_digest(spec) != external_language_digest(spec.model_copy(update={"version": "2"}))
    model = HuggingFace(str(folder))
    with pytest.raises(UserError, match="longer than the model's window of 32"):
        model.begin(range(40))


@pytest.mark.parametrize("found", [None, [[1.0], [2.0, 3.0]], "text"])
@pytest.mark.parametrize("states", [None, 5])
def test_non_numeric_answers_of_an_external_model_are_refused(found: object, states: object) -> None:
    mine = Counting()
    mine.next_log_probs = lambda prefixes, state: (found, states)
    with pytest.raises(UserError, match="needs an array of numbers"):
        Answering(mine, name="m").begin(())


def test_an_external_model_may_return_any_tensor_and_change_its_prefix() -> None:
    mine = Counting()

    def answer(prefixes: NDArray[np.int64], state: object) -> tuple[torch.Tensor, None]:
        prefixes[:] = 0
        return torch.log_softmax(torch.zeros(len(prefixes), 14, requires_grad=True), dim=1).bfloat16(), None

    mine.next_log_probs = answer
    scores, state = Answering(mine, name="m").begin((1, 2))
    assert scores.dtype == torch.float64
    assert state.tolist() == [[1, 2]]


def test_messages_of_exceptions_in_user_code_are_not_repeated() -> None:
    mine = Counting()

    def answer(prefixes: NDArray[np.int64], state: object) -> None:
        raise KeyError("my pin is 4071")

    mine.next_log_probs = answer
    with pytest.raises(UserError, match=r"KeyError at test_language.py:\d+$") as caught:
        Answering(mine, name="m").begin(())
    assert caught.value.__cause__ is None


def test_incomplete_model_folders_are_refused_and_have_another_digest(tmp_path: Path) -> None:
    import safetensors.torch

    folder = save_model(tmp_path / "gpt")
    digest = external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(folder)))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "mlp" not in name}
    safetensors.torch.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks weights"):
        HuggingFace(str(folder))
    assert external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(folder))) != digest
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(folder))) == digest
    (folder / "parts").mkdir()
    (folder / "parts" / "more.spm").write_text("x")
    assert external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(folder))) != digest
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="cannot load the Hugging Face model"):
        HuggingFace(str(folder))


def test_tokens_beyond_the_embedding_are_refused(tmp_path: Path) -> None:
    import transformers

    folder = save_model(tmp_path)
    count = len(transformers.AutoTokenizer.from_pretrained(folder))
    config = transformers.AutoConfig.from_pretrained(folder)

    def save(rows: int) -> None:
        config.vocab_size = rows
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)

    save(count + 60)
    assert HuggingFace(str(folder)).num_symbols == count + 60  # rows without a token do no harm
    save(count - 1)
    with pytest.raises(
        UserError, match=rf"has {count} tokens, but its model has only {count - 1}.*\.resize_token_embeddings"
    ):
        HuggingFace(str(folder))


@pytest.mark.parametrize(
    ("settings", "said"), [({}, "encodes text with token"), ({"bos_token": "z"}, "the start or end of a text with token")]
)
def test_tokens_beyond_the_embedding_are_refused_when_used(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    import json

    folder = save_model(tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["z"] = 999
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    known = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(known | settings))
    with pytest.raises(UserError, match=rf"{said} number 999, .*resize_token_embeddings"):
        FolderTokenizer(str(folder)).encode(["a z"])


def changed(folder: Path, name: str, **values: object) -> None:
    import json

    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | values))


@pytest.mark.parametrize("values", [{"n_layer": 10**6}, {"n_embd": 10**12}, {"vocab_size": 10**13}])
def test_a_config_that_declares_more_than_the_weights_hold_is_refused_at_once(
    folder: Path, tmp_path: Path, values: dict[str, int]
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    changed(copied, "config.json", **values)
    with pytest.raises(UserError, match=rf"declares {next(iter(values))} 1[0,]+, but its weights are \d+ tensors"):
        HuggingFace(str(copied))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_table_of_positions_beyond_the_weights_is_refused_before_it_is_allocated(
    folder: Path, tmp_path: Path, bidirectional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    copied = bert(tmp_path, rows=60) if bidirectional else Path(shutil.copytree(folder, tmp_path / "copied"))
    changed(copied, "config.json", **{"max_position_embeddings" if bidirectional else "n_positions": 3 * 10**8})
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(UserError, match=r"declares the tensor \S+ of shape \(300000000, 16\), .* but its weights are"):
        load_model(str(copied))


def test_a_config_that_names_a_key_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    content = (copied / "config.json").read_text()
    (copied / "config.json").write_text(content.replace("{", '{"n_positions": 16, ', 1))
    with pytest.raises(UserError, match="config.json in .*copied names a key twice"):
        load_model(str(copied))


def test_many_positions_are_allowed_without_a_table_of_positions(tmp_path: Path) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=3 * 10**8,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).config.max_position_embeddings == 3 * 10**8


def bert(folder: Path, *, rows: int) -> Path:
    import transformers

    config = transformers.BertConfig(
        vocab_size=rows, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("says", [True, False])
def test_a_model_that_sees_later_tokens_is_refused(tmp_path: Path, says: bool) -> None:
    path = bert(tmp_path, rows=60)
    if not says:
        changed(path, "config.json", architectures=None)
    said = (
        "says BertForMaskedLM, which is no causal language model"
        if says
        else "is not causal: its scores of a token depend on"
    )
    with pytest.raises(UserError, match=said):
        load_model(str(path))


def test_a_classifier_is_refused_though_its_body_is_causal(folder: Path, tmp_path: Path) -> None:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has weights that a causal language model does not use \(score.weight\)"):
        load_model(str(tmp_path))
    load_model(str(folder))
    load_model(str(save_mixtral(folder, tmp_path / "mixtral")))


def test_a_tokenizer_that_panics_or_never_ends_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    exploding = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    changed(copied, "tokenizer.json", pre_tokenizer=exploding)
    with pytest.raises(UserError, match=r"cannot load the tokenizer in .*copied \("):  # a panic in Rust is no Exception
        FolderTokenizer(str(copied)).encode(["a" * 5000 + "!"])
    tokenizer = FolderTokenizer(str(folder))
    waiting = threading.Event()
    monkeypatch.setattr(causal, "SECONDS", 0.2)
    monkeypatch.setattr(tokenizer, "_tokenizer", lambda *_, **__: waiting.wait(30))
    with pytest.raises(UserError, match="the tokenizer in .* has taken more than 0 s for a text"):
        tokenizer.encode(["a"])
    waiting.set()


def test_a_precision_that_the_model_cannot_compute_in_is_named(folder: Path, tmp_path: Path) -> None:
    """Mixtral's experts use grouped multiplication, which PyTorch lacks in double precision."""
    model = HuggingFace(str(save_mixtral(folder, tmp_path / "mixtral")))
    model.to(torch.float32).check_precision()
    with pytest.raises(UserError, match=r"cannot be evaluated in float64 \(.*\); set score.precision: float32"):
        model.to(torch.float64).check_precision()
    HuggingFace(str(folder)).to(torch.float64).check_precision()


def test_following_uses_the_models_own_positions_in_training_and_evaluation(folder: Path, tmp_path: Path) -> None:
    """RoBERTa's positions begin after the index of its padding token."""
    import transformers

    shutil.copytree(folder, tmp_path / "roberta")
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.RobertaConfig(
        vocab_size=340, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=34, is_decoder=True, pad_token_id=1, initializer_range=0.4, **none,
    )  # fmt: skip
    transformers.RobertaForCausalLM(config).save_pretrained(tmp_path / "roberta")
    model = HuggingFace(str(tmp_path / "roberta"))
    assert not model.training
    assert model.window == 32
    with torch.no_grad():
        model.following(torch.full((1, 32), 5))  # no position is beyond the embedding
    tokens = torch.tensor([[5, 7, 9], [3, 2, 8]])
    with torch.no_grad():
        expected = model.model(input_ids=tokens).logits
        torch.testing.assert_close(model.following(tokens), expected)
        torch.testing.assert_close(model.train().following(tokens), expected)
        model.look_up_each_row()
        torch.testing.assert_close(model.following(tokens), expected)


@pytest.mark.parametrize(("dtype", "keeps"), [(torch.float32, True), (torch.float64, False)])
def test_keys_and_values_are_reused_only_if_they_are_as_exact_as_the_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, keeps: bool
) -> None:
    model = HuggingFace(str(folder)).to(dtype)
    ask = model._ask
    monkeypatch.setattr(model, "_ask", lambda *given: (ask(*given)[0] + 1e-5, ask(*given)[1]))
    with torch.inference_mode():
        assert model._keeps_all(torch.tensor([[0, 3, 5]])) == keeps


def test_bits_of_a_long_text_equal_the_cost_of_its_windows(model: HuggingFace) -> None:
    tokens = model.encode([TEXT])[0][:60]  # longer than a window of 32
    first, second = tokens[:31], tokens[31:]
    expected = (slow_cost(model, first, ()) + slow_cost(model, second, ())) / UNITS_PER_BIT
    assert model.bits(tokens) == pytest.approx(expected, abs=1e-3)


def test_fixing_a_place_of_spelled_candidates_keeps_those_with_the_fixed_choice(model: HuggingFace) -> None:
    space = spell(FORM, model, known_prefix=True, known_suffix=True)
    hole = next(place for place, slot in enumerate(space.slots) if len(slot) > 1)
    part = space.fixed(hole, 2)
    assert isinstance(part, Spelled)
    assert part.size == space.size // 3
    costs = np.concatenate(list(leaf_costs(model, part, context=space.context, limit=1 << 40)))
    assert len(costs) == 27


@pytest.mark.parametrize(
    "named", ["../elsewhere.safetensors", ".hidden.safetensors", "sub/w.safetensors", "w.bin", "none.safetensors", 5]
)
def test_weights_that_an_index_names_elsewhere_are_refused(tmp_path: Path, named: Any) -> None:
    """Their content would be in no digest, and their size unchecked."""
    folder = save_model(tmp_path / "gpt")
    (folder / "sub").mkdir()
    for other in ("../elsewhere.safetensors", ".hidden.safetensors", "sub/w.safetensors", "w.bin"):
        shutil.copy(folder / "model.safetensors", folder / other)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"w": named}}))
    with pytest.raises(UserError, match="names '.*', which is no file "):
        external_language_digest(HuggingFaceSpec(kind="huggingface", path=str(folder)))
    for content in ("{}", "[]", '{"weight_map": 5}', "[" * 100_000, "no JSON"):
        (folder / "model.safetensors.index.json").write_text(content)
        with pytest.raises(UserError, match="is no index of weights"):
            load_model(str(folder))


def test_a_pipe_in_place_of_weights_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "gpt")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(UserError, match="model.safetensors in .* is not a regular file"):
        load_model(str(folder))
