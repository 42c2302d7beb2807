"""Losses of canaries: against a plain loop over tokens, and a model that is afterwards as before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import save_trainable

from memlib.data.canaries.documents import CanaryDocument, Form, draw_documents
from memlib.errors import UserError
from memlib.observe.canary_likelihoods import encode_canaries, evaluating, load_tokenizer, measure_losses

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_trainable(tmp_path_factory.mktemp("model") / "gpt")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.GPT2LMHeadModel.from_pretrained(folder)


def documents(form: Form, count: int = 21) -> list[CanaryDocument]:
    return draw_documents(form, count, secret=b"s" * 32, seed=0)


def test_losses_of_canaries_equal_a_plain_loop(folder: Path, model: Any) -> None:
    """Canaries have three lengths, so that batches are padded."""
    tokenizer, _ = load_tokenizer(str(folder))
    drawn = [*documents(Form("a {d5}!"), 20), *documents(Form("longer: {l9} é {d2}"), 21)]
    encoded = encode_canaries(drawn, tokenizer)
    table = measure_losses(model, encoded, step=3, batch_size=4).to_pylist()
    for one, row in zip(encoded, table, strict=True):
        with torch.no_grad():
            scores = model.eval()(torch.tensor([one.tokens])).logits[0].log_softmax(dim=1)
        expected = -sum(float(scores[place - 1, one.tokens[place]]) for place in range(one.first, len(one.tokens)))
        assert row["loss_sum"] == pytest.approx(expected, rel=1e-5)
        assert row["loss_mean"] == pytest.approx(expected / row["tokens"], rel=1e-5)
        assert (row["canary"], row["step"]) == (one.canary, 3)
    assert [row["tokens"] for row in table] == [5] * 20 + [15] * 21  # é is two bytes


def test_the_random_part_of_a_chat_is_that_of_the_last_answer(folder: Path) -> None:
    tokenizer, _ = load_tokenizer(str(folder))
    drawn = documents(Form("{d4} it is", prompt="{d4} it is?"))
    for one, encoded in zip(drawn, encode_canaries(drawn, tokenizer), strict=True):
        assert tokenizer.decode(encoded.span) == one.text[:4]
        assert tokenizer.decode(encoded.tokens[: encoded.first]).endswith("assistant: ")


def test_a_token_without_a_predecessor_has_no_loss(folder: Path) -> None:
    encoded = encode_canaries(documents(Form("{d4}")), load_tokenizer(str(folder))[0])
    assert {(one.first, len(one.tokens)) for one in encoded} == {(1, 4)}
    with pytest.raises(UserError, match="no token of a canary's random part follows another token"):
        encode_canaries([CanaryDocument("a", "7", (0, 1))], load_tokenizer(str(folder))[0])


def test_modes_and_random_states_are_restored(model: Any) -> None:
    model.train()
    model.transformer.h[1].eval()
    torch.manual_seed(0)
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(1)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))
    assert model.training
    assert model.transformer.h[0].attn.training
    assert not model.transformer.h[1].attn.training


def test_unsuitable_models_and_tokenizers_are_refused(folder: Path, model: Any) -> None:
    tokenizer, window = load_tokenizer(str(folder))
    assert window == 96
    with pytest.raises(UserError, match="a canary has 120 tokens, but the model takes at most 96"):
        measure_losses(model, encode_canaries(documents(Form("{d120}")), tokenizer), step=0)
    with pytest.raises(UserError, match="use a fast tokenizer"):
        encode_canaries(documents(Form("{d12}")), object())
    tokenizer.chat_template = "{{ messages[1]['content'] | upper }}"
    with pytest.raises(UserError, match="the chat template changes the text of an answer"):
        encode_canaries(documents(Form("{l12}", prompt="?")), tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        encode_canaries(documents(Form("{l12}", prompt="?")), tokenizer)
