"""LoRA adapters are merged as by hand and as by peft; folders that hold no whole model say what to do."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from small_models import save_model

from memlib.errors import UserError
from memlib.models.causal import load_model
from memlib.models.external.encoders import load_external_encoder
from memlib.models.external.factory import encoder_digest, external_language_digest
from memlib.models.external.language import load_outside
from memlib.specs import HuggingFaceSpec, PretrainedSpec
from memlib.specs.encoders import TransformersEncoder
from memlib.store import Store
from memlib.training.pretrained import TakeOver
from tests.memlib.training.test_pretrained import make_job

HEAD = "base_model.model."
ATTENTION, OUTPUT = "transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.4, tie_word_embeddings=False,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def factors(module: str, outputs: int, inputs: int, rank: int) -> dict[str, torch.Tensor]:
    return {
        f"{HEAD}{module}.lora_A.weight": drawn(rank, inputs),
        f"{HEAD}{module}.lora_B.weight": drawn(outputs, rank),
    }


def save_adapter(path: Path, weights: dict[str, torch.Tensor], **settings: Any) -> Path:
    path.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": "/nowhere/base", "r": 2, "lora_alpha": 6, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config | settings))
    safetensors.torch.save_file(weights, path / "adapter_model.safetensors")
    return path


@pytest.mark.parametrize(
    ("settings", "ranks", "scales"),
    [
        ({}, (2, 2), (6 / 2, 6 / 2)),
        ({"use_rslora": True}, (2, 2), (6 / math.sqrt(2), 6 / math.sqrt(2))),
        ({"rank_pattern": {"attn.c_proj": 3}, "alpha_pattern": {f"^{ATTENTION}": 5}}, (2, 3), (5 / 2, 6 / 3)),
        ({"rank_pattern": {"c_attn": 3}, "alpha_pattern": {"^c_attn": 5, "attn": 7}}, (3, 2), (6 / 3, 6 / 2)),
    ],
)
def test_merged_weights_equal_a_plain_loop_over_the_factors(
    settings: dict[str, Any], ranks: tuple[int, int], scales: tuple[float, float], folder: Path, tmp_path: Path
) -> None:
    """GPT-2's weights have the shape (inputs, outputs); only the two adapted weights change."""
    sizes = {ATTENTION: 48, OUTPUT: 16}
    weights: dict[str, torch.Tensor] = {}
    for (module, outputs), rank in zip(sizes.items(), ranks, strict=True):
        weights |= factors(module, outputs, 16, rank)
    save_adapter(tmp_path / "lora", weights, **settings)
    before = load_model(str(folder)).state_dict()
    after = load_model(str(folder), str(tmp_path / "lora")).state_dict()
    for (module, outputs), rank, scale in zip(sizes.items(), ranks, scales, strict=True):
        a, b = (weights[f"{HEAD}{module}.lora_{side}.weight"].tolist() for side in "AB")
        expected = before[f"{module}.weight"].tolist()
        for i in range(16):
            for j in range(outputs):
                expected[i][j] += scale * sum(b[j][k] * a[k][i] for k in range(rank))
        torch.testing.assert_close(after[f"{module}.weight"], torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(after[name], value) for name, value in before.items() if name[:-7] not in sizes)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "convolutions": ("gpt", {"target_modules": ["c_attn", "c_fc"]}),
    "linear": ("llama", {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True}),
    "patterns": (
        "llama",
        {"target_modules": "all-linear", "rank_pattern": {"q_proj": 3, "^model.layers.0.self_attn.k_proj": 1}, "alpha_pattern": {"layers.1.mlp.up_proj": 9, "mlp.up_proj": 2}},
    ),
    "saved": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens", "norm"]}),
    "head": ("llama", {"target_modules": ["lm_head", "embed_tokens"]}),
    "tied embedding": ("gpt", {"target_modules": ["wte", "c_proj"]}),
    "tied head saved": ("gpt", {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}),
    "orthogonal": ("llama", {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal", "r": 2}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_scores_with_a_merged_adapter_equal_those_of_peft(name: str, folder: Path, llama: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    kind, settings = CASES[name]
    base = folder if kind == "gpt" else llama
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**({"r": 4, "lora_alpha": 5, "task_type": "CAUSAL_LM"} | settings)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in adapted.parameters():
            if value.requires_grad:
                value.add_(0.2 * torch.randn(value.shape, generator=generator))
    adapted.save_pretrained(tmp_path)
    tokens = torch.randint(0, 40, (3, 9), generator=generator)
    with torch.inference_mode():
        expected = adapted.eval().double()(input_ids=tokens).logits
        merged = load_model(str(base), str(tmp_path)).double()(input_ids=tokens).logits
        plain = load_model(str(base)).double()(input_ids=tokens).logits
    torch.testing.assert_close(merged, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain, expected, atol=1e-2)


def test_coarse_weights_are_merged_in_float32(folder: Path, tmp_path: Path) -> None:
    load_model(str(folder)).to(torch.bfloat16).save_pretrained(tmp_path / "coarse")
    adapter = save_adapter(tmp_path / "lora", factors(OUTPUT, 16, 16, 2))
    before = load_model(str(tmp_path / "coarse")).state_dict()[f"{OUTPUT}.weight"]
    after = load_model(str(tmp_path / "coarse"), str(adapter)).state_dict()[f"{OUTPUT}.weight"]
    assert (before.dtype, after.dtype) == (torch.bfloat16, torch.float32)
    assert not torch.equal(after, after.bfloat16().float())


MERGE = r"which memlib cannot merge; merge it with its base model by peft \(merge_and_unload"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, f"sets peft_type: IA3, {MERGE}"),
        ({"use_dora": True}, f"sets use_dora, {MERGE}"),
        ({"bias": "all"}, f"sets bias: all, {MERGE}"),
        ({"init_lora_weights": "pissa_niter_4"}, f"sets init_lora_weights: pissa_niter_4, {MERGE}"),
        ({"alora_invocation_tokens": [1]}, f"sets alora_invocation_tokens, {MERGE}"),
        ({"setting_of_next_year": 1}, f"sets setting_of_next_year, {MERGE}"),
        ({"r": 3}, "c_proj has rank 2 in .*lora, but adapter_config.json says 3"),
        ({"r": "many"}, r"cannot read adapter_config.json in .*lora: Input should be a valid integer.* \(r\); save"),
        ({"r": None}, r"cannot read adapter_config.json in .*lora: Input.* \(r\); save"),
        ({"alpha_pattern": {"(a+)+": 2}}, r"has the pattern '\(a\+\)\+', a regular expression"),
        ({"modules_to_save": ["lm_head"]}, r"lacks the weights of lm_head \(modules_to_save\)"),
    ],
)
def test_adapters_with_unsupported_settings_are_refused(
    settings: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(tmp_path / "lora", factors(OUTPUT, 16, 16, 2), **settings)
    refused(said, folder, adapter)


def refused(said: str, folder: Path, adapter: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load_model(str(folder), str(adapter))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({}, "has no weights"),
        (factors("model.layers.0.q_proj", 16, 16, 2), "has weights for model.layers.0.q_proj.weight, which the model lacks"),
        (factors(ATTENTION, 16, 16, 2), r"of shape \(16, 16\), not \(16, 48\); set path to the base model of the adapter"),
        (factors("transformer.h.0.ln_1", 16, 16, 2), "adapts transformer.h.0.ln_1, a LayerNorm, which memlib cannot merge"),
        ({f"{HEAD}{OUTPUT}.lora_A.weight": drawn(2, 16)}, "has only one of two factors for transformer.h.0.attn.c_proj"),
        ({f"{HEAD}{OUTPUT}.lora_magnitude_vector": drawn(16)}, "lora_magnitude_vector, which the model lacks"),
        ({f"{HEAD}transformer.wte.weight": drawn(9, 16)}, r"transformer.wte.weight of shape \(9, 16\), not \(302, 16\)"),
        (
            {f"{HEAD}{OUTPUT}.lora_A.weight": drawn(2, 16), f"{HEAD}{OUTPUT}.lora_B.weight": drawn(16, 3)},
            r"cannot load the LoRA adapter in .*lora \(mat1 and mat2",
        ),
    ],
)
def test_adapter_weights_that_do_not_fit_the_model_are_refused(
    weights: dict[str, torch.Tensor], said: str, folder: Path, tmp_path: Path
) -> None:
    refused(said, folder, save_adapter(tmp_path / "lora", weights))


def test_damaged_or_missing_adapters_are_refused(folder: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "lora", factors(OUTPUT, 16, 16, 2))
    whole = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(whole[:50])
    refused("cannot load the LoRA adapter in", folder, adapter)
    (adapter / "adapter_model.safetensors").write_bytes(whole)
    (adapter / "adapter_config.json").write_text("{")
    refused("cannot read adapter_config.json in .*lora: Invalid JSON", folder, adapter)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "r": 3}')
    refused("adapter_config.json in .*lora names a key twice", folder, adapter)
    (adapter / "adapter_config.json").write_text('{"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 4}')
    refused("sets peft_type: PREFIX_TUNING, which memlib cannot merge", folder, adapter)
    refused(r"no LoRA adapter in .*gpt\d*, .*: adapter_config.json is missing", folder, folder)


def spec(path: Path, adapter: Path | None = None) -> HuggingFaceSpec:
    return HuggingFaceSpec(kind="huggingface", path=str(path), adapter=None if adapter is None else str(adapter))


def test_keys_cover_the_content_of_base_and_adapter_and_not_their_paths(folder: Path, tmp_path: Path) -> None:
    first, copy = (save_adapter(tmp_path / name, factors(OUTPUT, 16, 16, 2)) for name in ("one", "two"))
    other = save_adapter(tmp_path / "other", factors(OUTPUT, 16, 16, 2), lora_alpha=7)
    (copy / "README.md").write_text("words")

    def keys(adapter: Path | None) -> tuple[str, str]:
        tuned = PretrainedSpec.model_validate(spec(folder, adapter).model_dump())
        return external_language_digest(spec(folder, adapter)), TakeOver(tuned).identity.ref.key

    assert keys(first) == keys(copy)
    for number in range(2):
        assert len({keys(adapter)[number] for adapter in (None, first, other)}) == 3
    assert "adapter" not in spec(folder).model_dump()


def test_an_adapter_is_merged_wherever_its_base_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Load from the store alone, as an external model and as the start of a training."""
    adapter = save_adapter(tmp_path / "lora", factors(OUTPUT, 16, 16, 2))
    expected = load_model(str(folder), str(adapter)).state_dict()
    found = load_outside(spec(folder, adapter))
    assert all(torch.equal(value, expected[name.removeprefix("model.")]) for name, value in found.state_dict().items())
    store = Store(str(tmp_path / "store"))
    tuned = PretrainedSpec.model_validate(spec(folder, adapter).model_dump())
    stage = TakeOver(tuned)
    with store.artifacts.write(stage.identity.ref) as attempt:
        stage.write(attempt, torch.device("cpu"))
    from memlib.pipeline.stage import Artifact

    artifact = Artifact(store, stage.identity.ref, TakeOver)
    (adapter / "adapter_config.json").unlink()
    kept = artifact.content.model(None, seed=0).state_dict()
    assert all(torch.equal(value, expected[name.removeprefix("model.")]) for name, value in kept.items())
    from dataclasses import replace

    described = replace(make_job(artifact), model=tuned).describe(torch.zeros(3, 8).numpy())
    assert described["model"] == make_job(artifact).describe(torch.zeros(3, 8).numpy())["model"]


def test_a_folder_of_a_lora_adapter_is_refused_as_a_model_with_a_hint(folder: Path, tmp_path: Path) -> None:
    """The base named in the adapter's file is only quoted; neither its path nor a hub is read."""
    adapter = save_adapter(tmp_path / "lora", factors(OUTPUT, 16, 16, 2), base_model_name_or_path=str(folder))
    said = rf"set path to the folder of its base model \({folder}\), and adapter to {adapter}$"
    with pytest.raises(UserError, match=said):
        load_outside(spec(adapter))
    with pytest.raises(UserError, match=said):
        external_language_digest(spec(adapter))
    encoder = TransformersEncoder(kind="transformers", path=str(adapter))
    for read in (encoder_digest, load_external_encoder):
        with pytest.raises(UserError, match="merge it with its base model by peft"):
            read(encoder)
    (adapter / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="holds a model and a LoRA adapter; move adapter_config.json and"):
        load_model(str(adapter))


def run_command_of(message: str) -> None:
    command = shlex.split(message.partition("convert it: ")[2])
    assert command[:2] == ["python", "-c"]
    assert len(command) == 3
    exec(compile(command[2], "-c", "exec"), {"__name__": "__main__"})


def test_the_error_for_pickled_weights_says_how_to_convert_them(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / 'it\'s a "model"'
    model.mkdir()
    (model / "config.json").write_text((folder / "config.json").read_text())
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    torch.save(weights, model / "pytorch_model.bin")
    for read in (external_language_digest, load_outside):
        with pytest.raises(UserError, match="has its weights only in pytorch_model.bin, a pickle") as caught:
            read(spec(model))
    run_command_of(str(caught.value))
    converted = load_model(str(model)).state_dict()
    assert all(torch.equal(converted[name], value) for name, value in weights.items())
    with pytest.raises(UserError, match=re.escape("from transformers import AutoModel as M")):
        (tmp_path / "encoder").mkdir()
        (tmp_path / "encoder" / "config.json").write_text("{}")
        torch.save({}, tmp_path / "encoder" / "pytorch_model-00001-of-00002.bin")
        encoder_digest(TransformersEncoder(kind="transformers", path=str(tmp_path / "encoder")))


def test_a_pickled_adapter_says_how_to_convert_it(folder: Path, tmp_path: Path) -> None:
    weights = factors(OUTPUT, 16, 16, 2)
    adapter = save_adapter(tmp_path / "lora", weights)
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(weights, adapter / "adapter_model.bin")
    with pytest.raises(UserError, match="has its weights only in adapter_model.bin, a pickle") as caught:
        load_model(str(folder), str(adapter))
    run_command_of(str(caught.value))
    load_model(str(folder), str(adapter))


@pytest.mark.parametrize("size", [290, 310])
def test_the_error_for_a_stale_vocab_size_names_both_sizes(size: int, folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    said = rf"says vocab_size {size}, but the weights \(transformer.wte.weight\) have 302 rows.* set vocab_size to 302 in config.json$"
    with pytest.raises(UserError, match=said):
        load_outside(spec(tmp_path))
    stage = TakeOver(PretrainedSpec.model_validate(spec(tmp_path).model_dump()))
    store = Store(str(tmp_path / "store"))
    with pytest.raises(UserError, match=said), store.artifacts.write(stage.identity.ref) as attempt:
        stage.write(attempt, torch.device("cpu"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_positions": 30}))
    with pytest.raises(
        UserError, match=r"transformer.wpe.weight in .* have the shape \(32, 16\), but config.json says \(30, 16\)"
    ):
        load_outside(spec(tmp_path))


def test_variants_must_fine_tune_the_same_model_and_adapter() -> None:
    from memlib.audits.exposure.recipe import Recipe

    training = {"objective": {"kind": "language"}, "epochs": 1, "augment": None}
    recipe = {
        "data": {"source": {"kind": "topics"}, "unit": "token"}, "training": training,
        "model": {"kind": "huggingface", "path": "gpt", "adapter": "one"}, "variants": {"other": {"model.adapter": "two"}},
    }  # fmt: skip
    with pytest.raises(ValueError, match="'other' fine-tunes another model; all variants need the same model.path and"):
        Recipe.model_validate(recipe)
    Recipe.model_validate(recipe | {"variants": {"ranked": {"model.lora": {"rank": 2}}}})
