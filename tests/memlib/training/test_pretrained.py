"""Fine-tuning of external language models: whole, by adapters, privately, in parts, and after a kill."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from small_models import save_mixtral, save_model

from memlib.data.images.shards import WINDOWS
from memlib.data.splits import TRAIN
from memlib.data.stages import Decode, Split
from memlib.data.text.corpus import Rows
from memlib.errors import UserError
from memlib.models.causal import Causal
from memlib.objectives import build_objective
from memlib.pipeline.stage import Artifact
from memlib.specs import LanguageObjectiveSpec, LoraSpec, PretrainedSpec, TrainingSpec
from memlib.store import Ref, Store
from memlib.tables import SPLITS, write_table
from memlib.training.fit import Train, check_jobs
from memlib.training.loop import Training, TrainingSet, Worker, epoch_order
from memlib.training.pretrained import Pretrained, TakeOver
from memlib.training.privacy import make_private, use_private_layers

WINDOW = 8
HOW: dict[str, Any] = {
    "objective": {"kind": "language"}, "epochs": 3, "batch_size": 4, "augment": None,
    "optimizer": {"name": "sgd", "momentum": 0, "learning_rate": 0.1, "weight_decay": 0, "warmup_epochs": 0,
                  "schedule": "constant"},  # Adam makes large steps of gradients that are rounding alone (keys' biases)
}  # fmt: skip
LORA = LoraSpec(rank=2, alpha=4)


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = save_model(tmp_path_factory.mktemp("gpt"))
    config = json.loads((found / "config.json").read_text())
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # the loops beside it draw no dropout
    (found / "config.json").write_text(json.dumps(config | none))
    return found


@pytest.fixture
def base(folder: Path, tmp_path: Path) -> Artifact[Pretrained]:
    return taken_over(folder, Store(str(tmp_path / "store")))


def taken_over(folder: Path, store: Store) -> Artifact[Pretrained]:
    stage = TakeOver(PretrainedSpec(kind="huggingface", path=str(folder)))
    with store.artifacts.write(stage.identity.ref) as attempt:
        stage.write(attempt, torch.device("cpu"))
    return Artifact(store, stage.identity.ref, TakeOver)


def windows() -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(0).integers(1, 300, (13, WINDOW)).astype(np.int32)


def make_job(base: Artifact[Pretrained], lora: LoraSpec | None = None, **changes: Any) -> Train:
    store, corpus = base.store, Ref("corpus", "c")
    if store.artifacts.lookup(corpus.stage, corpus.key) is None:
        with store.artifacts.write(corpus) as attempt:
            np.save(attempt.path(WINDOWS), windows())
            table = Rows("window", 13, 1, []).table
            write_table(table, SPLITS, attempt.path("splits.parquet"))
    return Train(
        name="tuned", model=PretrainedSpec(kind="huggingface", path="anywhere", lora=lora),
        training=TrainingSpec.model_validate(HOW | changes), num_classes=340, shard=Artifact(store, corpus, Decode),
        splits=Artifact(store, corpus, Split), roles=(TRAIN,), base=base,
    )  # fmt: skip


def train(job: Train, *, killed_after: int | None = None) -> Artifact[Any]:
    def progress(news: dict[str, Any]) -> None:
        if news["epoch"] == killed_after:
            raise Killed

    return Artifact(
        job.store, job.into_store(job.record({}), threads=1, worker=Worker(), resume_seconds=0, progress=progress), Train
    )


def test_fine_tuned_weights_equal_a_plain_loop_of_transformers(base: Artifact[Pretrained], folder: Path) -> None:
    import transformers

    job = make_job(base)
    found, _ = train(job).content.load(epoch=3)
    plain = transformers.GPT2LMHeadModel.from_pretrained(folder)
    untouched = plain.state_dict()["transformer.wte.weight"].clone()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for epoch in range(3):
        order = epoch_order(12, seed=0, epoch=epoch)
        for first in range(0, 12, 4):
            rows = torch.from_numpy(windows()[order[first : first + 4]]).long()
            seen = torch.cat([torch.zeros(4, 1, dtype=torch.int64), rows[:, :-1]], dim=1)
            loss = torch.nn.functional.cross_entropy(plain(input_ids=seen).logits.flatten(0, 1), rows.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found.state_dict()[f"model.{name}"], value, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(untouched, plain.state_dict()["transformer.wte.weight"])


def test_only_weights_of_adapters_are_trained(base: Artifact[Pretrained], folder: Path) -> None:
    trained = train(make_job(base, LORA))
    kept = safetensors.torch.load_file(trained.path("epoch-00003.safetensors"))
    assert kept
    assert all("lora_" in name for name in kept)
    model, spec = trained.content.load(epoch=3)
    assert isinstance(model, Causal)
    assert spec.lora == LORA
    before = safetensors.torch.load_file(folder / "model.safetensors")
    after = {name.replace("base_layer.", "").removeprefix("model."): value for name, value in model.state_dict().items()}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert any(value.abs().max() > 0 for name, value in kept.items() if "lora_B" in name)
    rows = torch.from_numpy(windows()).long()
    start = base.content.model(LORA, seed=5)
    torch.testing.assert_close(start(rows), base.content.model(None, seed=0)(rows))  # adapters begin as nothing
    assert not torch.allclose(model(rows), start(rows))


def test_tied_weights_are_kept_once_and_stay_tied(base: Artifact[Pretrained]) -> None:
    trained = train(make_job(base))
    kept = safetensors.torch.load_file(trained.path("epoch-00003.safetensors"))
    assert "model.transformer.wte.weight" in kept
    assert "model.lm_head.weight" not in kept
    model, _ = trained.content.load(epoch=3)
    torch.testing.assert_close(model.model.lm_head.weight, kept["model.transformer.wte.weight"])


@pytest.mark.parametrize("lora", [None, LORA])
def test_training_on_a_batch_in_parts_equals_the_whole_batch(base: Artifact[Pretrained], lora: LoraSpec | None) -> None:
    whole, parts = (
        Training(
            base.content.model(lora, seed=0), build_objective(LanguageObjectiveSpec(kind="language")),
            TrainingSet(windows(), np.arange(12), np.zeros(12, dtype=np.int64)),
            TrainingSpec.model_validate(HOW | {"accumulate": accumulate}), input_size=WINDOW,
        )
        for accumulate in (1, 3)
    )  # fmt: skip
    for training in (whole, parts):
        training.run(stop_after=2)
    assert whole.epoch_sums["loss"] == pytest.approx(parts.epoch_sums["loss"], rel=1e-5)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_killed_and_resumed_fine_tuning_equals_an_uninterrupted_one(
    base: Artifact[Pretrained], lora: LoraSpec | None
) -> None:
    job = make_job(base, lora, precision="bfloat16")
    with pytest.raises(Killed):
        train(job, killed_after=2)
    found = train(job)
    assert found.facts["resumed_from_step"] == 6
    resumed = found.content.load(epoch=3)[0].state_dict()
    job.store.artifacts.discard(found.ref)
    whole = train(job).content.load(epoch=3)[0].state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


@pytest.mark.parametrize("lora", [None, LORA])
def test_private_gradients_are_the_clipped_sum_of_a_loop(base: Artifact[Pretrained], lora: LoraSpec | None) -> None:
    """Tied weights and positions, which all rows share, must be counted for each example."""
    rows, objective = torch.from_numpy(windows()[:5]).long(), build_objective(LanguageObjectiveSpec(kind="language"))
    model = base.content.model(lora, seed=0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(generator=torch.Generator().manual_seed(1))
    learnt = [value for value in model.parameters() if value.requires_grad]
    wanted = [torch.zeros_like(value) for value in learnt]
    model.train()
    for row in rows:
        model.zero_grad()
        objective(model, [row[None]], torch.zeros(1))["loss"].backward()
        norm = math.sqrt(sum(float(value.grad.square().sum()) for value in learnt))
        for total, value in zip(wanted, learnt, strict=True):
            total += value.grad * min(1.0, 0.5 / norm)
    model.zero_grad()
    use_private_layers(model)
    forward, optimizer = make_private(model, torch.optim.SGD(learnt, lr=1.0), clip=0.5, noise=0.0, batch_size=5)
    before = [value.detach().clone() for value in learnt]
    forward.train()
    objective(forward, [rows], torch.zeros(5))["loss"].backward()
    optimizer.step()
    for old, value, total in zip(before, learnt, wanted, strict=True):
        torch.testing.assert_close(old - value, total / 5, rtol=1e-4, atol=1e-6)


def test_keys_follow_the_files_and_not_the_folder(folder: Path, tmp_path: Path) -> None:
    def key(path: Path, lora: LoraSpec | None = None) -> str:
        return TakeOver(PretrainedSpec(kind="huggingface", path=str(path), lora=lora)).identity.ref.key

    shutil.copytree(folder, tmp_path / "elsewhere")
    assert key(tmp_path / "elsewhere", LORA) == key(folder)
    (tmp_path / "elsewhere" / "README.md").write_text("words")
    assert key(tmp_path / "elsewhere") == key(folder)
    (tmp_path / "elsewhere" / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert key(tmp_path / "elsewhere") != key(folder)


def test_check_jobs_refuses_unknown_lora_targets_and_too_long_windows(base: Artifact[Pretrained]) -> None:
    with pytest.raises(UserError, match="tuned: model.lora.targets names no layers"):
        check_jobs([make_job(base, LoraSpec(targets=("nothing",)))], Worker())
    long = make_job(base)
    corpus = Ref("corpus", "long")
    with base.store.artifacts.write(corpus) as attempt:
        np.save(attempt.path(WINDOWS), np.zeros((13, 40), dtype=np.int32))
        write_table(Rows("window", 13, 1, []).table, SPLITS, attempt.path("splits.parquet"))
    long = replace(long, shard=Artifact(base.store, corpus, Decode), splits=Artifact(base.store, corpus, Split))
    with pytest.raises(UserError, match="data.window 40 is longer than the model's maximum of 32 tokens"):
        check_jobs([long], Worker())


def test_check_precision_refuses_a_precision_that_the_model_lacks(
    base: Artifact[Pretrained], folder: Path, tmp_path: Path
) -> None:
    for precision in ("float32", "float64"):
        base.content.check_precision(precision)
    mixtral = taken_over(save_mixtral(folder, tmp_path / "mixtral"), base.store)
    mixtral.content.check_precision("float32")
    with pytest.raises(UserError, match="cannot be evaluated in float64; set score.precision: float32"):
        mixtral.content.check_precision("float64")


def private_job(base: Artifact[Pretrained], lora: LoraSpec | None = None) -> Train:
    """A job that takes 16 windows at a time, twice as many as `make_job` has."""
    job, corpus = make_job(base, lora, batch_size=16, privacy={"noise": 1.0, "delta": 1e-3}), Ref("corpus", "26")
    if base.store.artifacts.lookup(corpus.stage, corpus.key) is None:
        with base.store.artifacts.write(corpus) as attempt:
            np.save(attempt.path(WINDOWS), np.concatenate([windows(), windows()]))
            write_table(Rows("window", 26, 1, []).table, SPLITS, attempt.path("splits.parquet"))
    return replace(job, shard=Artifact(base.store, corpus, Decode), splits=Artifact(base.store, corpus, Split))


@pytest.mark.parametrize("kind", ["opt", "falcon", "gemma"])
def test_unsupported_architectures_train_privately_only_with_adapters(kind: str, folder: Path, tmp_path: Path) -> None:
    import transformers

    shutil.copytree(folder, tmp_path / kind)
    sizes = {"vocab_size": 340, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"opt": {"ffn_dim": 16, "word_embed_proj_dim": 16}, "gemma": {"head_dim": 8, "num_key_value_heads": 2}}
    config = transformers.AutoConfig.for_model(kind, **sizes, **more.get(kind, {}), max_position_embeddings=32)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / kind)
    base = taken_over(tmp_path / kind, Store(str(tmp_path / "store")))
    with pytest.raises(
        UserError,
        match=r"cannot train all weights of this architecture with training.privacy .*; model.lora trains adapters privately$",
    ) as caught:
        check_jobs([private_job(base)], Worker())
    assert "lstm" not in str(caught.value)
    check_jobs([private_job(base, LORA)], Worker())


def test_check_jobs_accepts_private_fine_tuning_of_a_supported_model(base: Artifact[Pretrained]) -> None:
    check_jobs([private_job(base), private_job(base, LORA)], Worker())


def test_an_incomplete_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "half")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights.pop("transformer.h.0.ln_1.weight")
    safetensors.torch.save_file(weights, tmp_path / "half" / "model.safetensors", metadata={"format": "pt"})
    store = Store(str(tmp_path / "store"))
    stage = TakeOver(PretrainedSpec(kind="huggingface", path=str(tmp_path / "half")))
    with (
        pytest.raises(UserError, match="lacks weights"),
        store.artifacts.write(stage.identity.ref) as attempt,
    ):
        stage.write(attempt, torch.device("cpu"))
    assert store.artifacts.lookup(stage.identity.ref.stage, stage.identity.ref.key) is None
