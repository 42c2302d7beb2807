"""Small models of transformers and open_clip, saved as folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

from memlib.data.canaries.documents import Form, write_canaries
from memlib.data.canaries.losses import LOSSES, Recorded, write_losses
from memlib.stats.canaries import Plan

TEXT = "my pin is 1123, not 1223 or 3312. call 2211 or 1212 and ask for 3321 twice: 1123 and 1123. "


def save_model(folder: Path, *, metaspace: bool = False) -> Path:
    """A small GPT-2 with random weights, and a BPE tokenizer whose merges join digits."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>" if metaspace else None))
    if metaspace:
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        alphabet = sorted(set(TEXT.replace(" ", "▁")))
    else:
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<end>", "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=len(fast), n_positions=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.4,
        bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def save_mixtral(gpt: Path, folder: Path) -> Path:
    """A small mixture of experts with random weights, and the tokenizer of another folder."""
    import shutil

    import transformers

    shutil.copytree(gpt, folder)
    config = transformers.MixtralConfig(
        vocab_size=340, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1, max_position_embeddings=32,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).save_pretrained(folder)
    return folder


def save_trainable(folder: Path, *, positions: int = 96) -> Path:
    """Save a small GPT-2 that learns short texts within seconds, and a tokenizer of bytes with a chat template."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(["<end>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=len(fast), n_positions=positions, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def save_open_clip(folder: Path, seed: int, **text: Any) -> None:
    """Write a model of open_clip with random weights, as open_clip itself writes folders."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(seed)
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 16, "patch_size": 8, "layers": 1, "width": 64, "head_width": 32},
        "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    model = open_clip.CLIP(**config)
    folder.mkdir()
    safetensors.torch.save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    config["text_cfg"] |= text
    prepared = {"size": [16, 16], "mean": [0.5] * 3, "std": [0.25] * 3}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": prepared}))


def save_canaries(
    folder: Path, losses: Path, *, count: int = 60, looks: int = 4, gain: float = 2.0, made: Sequence[int] | None = None,
    base: bool = True, repeats: int = 1, **plan: Any,
) -> Path:  # fmt: skip
    """A folder of canaries, and the losses of a training that learned the inserted ones a little more at every look.

    Args:
        gain: nats by which an inserted canary is better known at the last look; the others vary by about one.
        made: the looks that were made; by default all.
    """
    form = Form("id {l8}{d4}.")
    coins = write_canaries(folder, form, count, repeats=repeats, plan=Plan.of(looks, **plan), secret=b"s" * 32, seed=1)
    rng = np.random.default_rng(0)
    before = rng.normal(30, 5, count)
    noise = [rng.normal(size=count) for _ in range(looks)]
    values = {10 * look: before - 1 - gain * look / looks * coins.inside + noise[look - 1] for look in range(1, looks + 1)}
    kept = {look: 10 * look for look in (range(1, looks + 1) if made is None else made)}
    steps = ({0: before} if base else {}) | {step: values[step] for step in kept.values()}
    tables = [
        pa.table([list(coins.canaries), one, one / 10, [10] * count, [step] * count], schema=LOSSES.arrow)
        for step, one in steps.items()
    ]
    write_losses(losses, Recorded(pa.concat_tables(tables), kept, canaries=coins.content, plan=coins.plan.digest))
    return folder
