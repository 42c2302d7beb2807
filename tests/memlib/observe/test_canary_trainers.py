"""Canaries in other people's trainers: each is the example of the documents, with a small model of our own."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import save_trainable
from torch import nn

from memlib.data.canaries.documents import INSERT_FILE, Form, write_canaries
from memlib.data.canaries.losses import read_losses
from memlib.data.canaries.pictures import write_pictures
from memlib.observe.canary_audit import CanaryAudit
from memlib.observe.canary_likelihoods import load_tokenizer
from memlib.observe.canary_pictures import unit_pictures
from memlib.stats.canaries import Plan

LOSSES_FILE = "canary_losses.parquet"
COUNT = 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_trainable(tmp_path / "gpt", positions=64)


def pictures(folder: Path, looks: int) -> tuple[Path, torch.utils.data.TensorDataset]:
    write_pictures(folder, COUNT, (8, 8, 3), 4, plan=Plan.of(looks), secret=b"s" * 32, seed=1)
    with np.load(folder / "insert.npz") as arrays:
        images, labels = unit_pictures(arrays["images"]), torch.from_numpy(arrays["labels"])
    return folder, torch.utils.data.TensorDataset(images, labels)


def documents(folder: Path, looks: int, form: Form = Form("id {l8}{d4}.")) -> list[Any]:
    write_canaries(folder, form, COUNT, plan=Plan.of(looks), secret=b"s" * 32, seed=1)
    return [json.loads(line) for line in (folder / INSERT_FILE).read_text().splitlines()]


def test_trl_sft_trainer(model: Path, tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl", reason="TRL is not installed"), pytest.importorskip("datasets")
    from memlib.observe.canary_callback import CanaryCallback

    rows, tokenizer = documents(tmp_path / "c", looks=3), load_tokenizer(str(model))[0]
    tokenizer.pad_token = tokenizer.eos_token
    trainer = trl.SFTTrainer(
        str(model), args=trl.SFTConfig(
            str(tmp_path / "out"), max_steps=6, report_to=[], use_cpu=True, save_strategy="no", bf16=False,
            per_device_train_batch_size=10, disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
        callbacks=[CanaryCallback(tmp_path / "c")],
    )  # fmt: skip
    trainer.train()
    assert read_losses(tmp_path / "out" / LOSSES_FILE).looks == {1: 2, 2: 4, 3: 6}


def test_trl_dpo_trainer(model: Path, tmp_path: Path) -> None:
    """Canaries are the chosen answers; rejected ones are like them."""
    trl, datasets = pytest.importorskip("trl", reason="TRL is not installed"), pytest.importorskip("datasets")
    from memlib.observe.canary_callback import CanaryCallback

    rows, tokenizer = documents(tmp_path / "c", looks=3), load_tokenizer(str(model))[0]
    tokenizer.pad_token = tokenizer.eos_token
    pairs = [{"prompt": "", "chosen": row["text"], "rejected": "id 0000."} for row in rows]
    trainer = trl.DPOTrainer(
        str(model), args=trl.DPOConfig(
            str(tmp_path / "out"), max_steps=6, report_to=[], use_cpu=True, save_strategy="no", bf16=False,
            per_device_train_batch_size=10, disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list(pairs), processing_class=tokenizer,
        callbacks=[CanaryCallback(tmp_path / "c", on_problem="warn")],
    )  # fmt: skip
    trainer.train()
    assert read_losses(tmp_path / "out" / LOSSES_FILE).looks == {1: 2, 2: 4, 3: 6}


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from memlib.observe.canary_lightning import CanaryLightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layers(images)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    folder, data = pictures(tmp_path / "c", looks=10)
    audit = CanaryAudit(folder, tmp_path / "losses.parquet", coins=folder, stop=True)
    trainer = lightning.Trainer(
        max_epochs=100, callbacks=[CanaryLightning(audit)], logger=False, enable_checkpointing=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=len(data)))
    recorded = read_losses(tmp_path / "losses.parquet")
    assert recorded.stopped is not None
    assert trainer.global_step == 10 * recorded.stopped < 100


def test_opacus_refutes_a_claim_that_is_false_and_not_the_accountants(tmp_path: Path) -> None:
    """The training has noise for epsilon 2 or so; a claim of epsilon 0.01 for hardly any noise is refuted."""
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
    folder, data = pictures(tmp_path / "c", looks=4)
    refuted = {}
    for noise, steps, claimed in ((4.0, 40, None), (0.01, 200, 0.1)):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 4))
        audit = CanaryAudit(folder, tmp_path / f"{noise}.parquet")
        audit.begin(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = opacus.PrivacyEngine(accountant="rdp")
            model, optimizer, loader = engine.make_private(
                module=model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-3), noise_multiplier=noise, max_grad_norm=1.0,
                data_loader=torch.utils.data.DataLoader(data, batch_size=20),
            )  # fmt: skip
            step = 0
            while step < steps:
                for images, labels in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
                    step += 1
                    if audit.look(model, step, of=steps) or step == steps:
                        break
        audit.end(model, step)
        epsilon = engine.get_epsilon(1e-5) if claimed is None else claimed
        checked = CanaryAudit(folder, tmp_path / f"{noise}.parquet", coins=folder, stop="warn", epsilon=epsilon, delta=1e-5)
        checked.recorded = read_losses(tmp_path / f"{noise}.parquet")
        result = checked._judged(checked._coins)  # type: ignore[arg-type]
        assert result.claim is not None
        refuted[noise] = result.claim.p_value <= 0.05
    assert refuted == {4.0: False, 0.01: True}
