"""The unique-feature and self-influence audits through the command line, on data so small that nets take milliseconds."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from harness import Memlib, end_session, newest, published, says_one_thing, wait_for
from PIL import Image
from torch import nn

MOONS = """
audit: unique_feature
title: tiny moons
data: {source: {kind: two_moons, num_examples: 80}}
canary: {feature: {kind: scalar, value: 4}, label: 1, mode: append, repeats: 10}
model: {architecture: mlp, widths: [16, 16]}
training:
  objective: {kind: supervised}
  epochs: 40
  batch_size: null
  augment: null
  optimizer: {learning_rate: 0.01, weight_decay: 0, warmup_epochs: 0, schedule: constant}
nets: {seeds: 20, controls: 24, chunk: 4}
score: {per_epoch: true, replicates: 200, permutations: 999}
"""
IMAGES = """
audit: unique_feature
title: tiny images
data: {source: {kind: scenes, num_examples: 240, size: 16, digit_size: 8}, image_size: 16, channels: 3}
split: {train_per_class: 8, validation_per_class: 2, held_out_per_class: 3}
canary: {feature: {kind: glyph, text: A, top: 1, left: 1, cover: true}, choice: extreme_self_influence, count: 2}
model: {architecture: cnn_1, batch_norm: true, dropout: 0.2}
training:
  objective: {kind: supervised}
  epochs: 3
  patience: 2
  batch_size: 20
  augment: {crop_scale: [1, 1], crop_ratio: [1, 1], blur: [0, 0], solarize: [0, 0], shift: 1}
  optimizer: {learning_rate: 0.001, weight_decay: 0.01, warmup_epochs: 0, schedule: constant}
nets: {seeds: 2, controls: 4, chunk: 3}
probe: {kind: held_out}
score: {replicates: 200, permutations: 999, removed_pixels: [5, 20], random_draws: 2, null_features: 2, max_examples: 6}
influence: {checkpoints: 2, pull: true}
report: {gradcam: true}
variants:
  small: {}
  large: {model: {architecture: resnet18, batch_norm: false, dropout: 0}, nets: {seeds: 1, controls: 1}, canary: {choice: random}, influence: {pull: false}}
"""


def wrote(folder: Path, text: str, memlib: Memlib, name: str = "unique-feature") -> Memlib:
    (folder / "recipe.yaml").write_text(text)
    return replace(memlib, recipe=folder / "recipe.yaml", audit_name=name)


@pytest.fixture(scope="module")
def moons(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> tuple[Memlib, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("moons")
    tiny = wrote(folder, MOONS, memlib)
    return tiny, folder / "store", tiny.audit(folder / "store")


def test_a_planted_feature_is_found_and_everything_is_published(moons: tuple[Memlib, Path, dict[str, Any]]) -> None:
    mine, store, manifest = moons
    says_one_thing(mine, store, manifest)
    head = manifest["findings"][0]
    assert head["metric"] == "m_white"
    assert (head["verdict"], head["conclusion"]) == ("shown", "shown")
    tables = published(store, manifest)
    units = tables["units"]
    assert set(units["metric"].to_pylist()) == {"m_white", "m_grey", "m_black", "m_w", "m_kl", "flips"}
    assert set(units["variant"].to_pylist()) == {""}
    control = np.array(units["control"].to_pylist())
    assert len(set(units["net"].to_numpy()[control])) == 24
    metrics = set(tables["summary"]["metric"].to_pylist())
    assert {"proportion_memorized", "proportion_control", "proportion_excess", "m_white", "m_black", "correlation"} <= metrics
    curves = tables["curves"].to_pylist()
    assert {row["x"] for row in curves if row["curve"] == "proportion_by_epoch"} == set(range(1, 41))
    page = Path(manifest["report"]).read_text()
    for heading in (
        "Each model and its control",
        "Through training",
        "Decision boundaries",
        "With less knowledge of the training data",
    ):
        assert heading in page
    assert "The models remember the feature." in page
    assert oct(Path(manifest["report"]).stat().st_mode)[-3:] == "600"


@pytest.mark.slow
def test_scores_do_not_depend_on_the_chunk_size(moons: tuple[Memlib, Path, dict[str, Any]]) -> None:
    tiny, store, manifest = moons
    other = tiny.audit(store, "nets.chunk=30", "score.per_epoch=false")
    columns = ["net", "control", "metric", "output", "label"]
    first, second = (published(store, m)["units"].sort_by([(c, "ascending") for c in columns]) for m in (manifest, other))
    np.testing.assert_allclose(first["value"].to_numpy(), second["value"].to_numpy(), rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_a_killed_run_keeps_its_finished_chunks(memlib: Memlib, tmp_path: Path) -> None:
    tiny = wrote(tmp_path, MOONS, memlib)
    process = tiny.start(tmp_path / "store", "training.epochs=300", "score.per_epoch=false")
    try:
        finished = wait_for(lambda: list(tmp_path.glob("store/artifacts/train_nets/*/manifest.json")), process=process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        end_session(process.pid)
    before = {path: path.read_bytes() for path in tmp_path.glob("store/artifacts/train_nets/*/manifest.json")}
    assert len(before) >= len(finished)
    manifest = tiny.audit(tmp_path / "store", "training.epochs=300", "score.per_epoch=false")
    assert sum("train_nets" in ref for ref in manifest["reused"]) == len(before)
    assert all(path.read_bytes() == data for path, data in before.items())


@pytest.mark.slow
def test_an_audit_of_images_reports_variants_feature_parts_and_attention(memlib: Memlib, tmp_path: Path) -> None:
    tiny = wrote(tmp_path, IMAGES, memlib)
    manifest = tiny.audit(tmp_path / "store")
    tables = published(tmp_path / "store", manifest)
    units = tables["units"].to_pylist()
    assert {row["variant"] for row in units} == {"small", "large"}
    assert {row["feature"] for row in units if row["feature"].startswith("canary")} == {
        "canary", "canary without 5 px", "canary without 20 px",
    }  # fmt: skip
    assert len({row["feature"] for row in units}) == 5
    assert {row["draw"] for row in units if row["metric"] == "m_kl"} == {0, 1}
    assert all(row["calibrated_p"] is None for row in units)  # too few controls to speak of a single net
    assert len({row["example_id"] for row in units if not row["control"]}) >= 2
    assert all(1 <= row["epoch"] <= 3 for row in units)
    page = Path(manifest["report"]).read_text()
    for heading in (
        "What the model looks at",
        "Parts of the feature",
        "The feature in its examples",
        "Variation between canaries",
    ):
        assert heading in page
    assert page.count("data:image/png") >= 6


class Tiny(nn.Sequential):
    """A model of the user's own."""


def make_model(classes: int = 2) -> nn.Module:
    return Tiny(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, classes))


@pytest.fixture
def own(memlib: Memlib, tmp_path: Path) -> Memlib:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(tmp_path / "images" / name / f"{i}.png")
    torch.manual_seed(0)
    safetensors.torch.save_file(make_model().state_dict(), tmp_path / "model.safetensors")
    torch.save(make_model().state_dict(), tmp_path / "other.pt")
    (tmp_path / "factory.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef make_model(classes=2):\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, classes))\n\n\n"
        "def nan_model():\n    net = make_model()\n    net[3].register_forward_hook(lambda m, i, o: o * float('nan'))\n    return net\n"
    )
    text = f"""
extends: own_model
data: {{source: {{kind: image_folder, path: {tmp_path}/images}}, image_size: 28, channels: 1}}
canary: {{feature: {{kind: glyph, text: JOHN, top: 2, left: 2, scale: 1, cover: true}}}}
trained: {{model: "factory:make_model", weights: {tmp_path}/model.safetensors, inputs: unit}}
score: {{null_features: 25}}
"""
    changed = replace(memlib, environment=memlib.environment | {"PYTHONPATH": str(tmp_path)})
    return wrote(tmp_path, text, changed)


def test_an_external_model_is_scored_without_training(own: Memlib, tmp_path: Path) -> None:
    manifest = own.audit(tmp_path / "store")
    head = manifest["findings"][0]
    assert head["metric"] == "m_black"
    assert head["n"] == 25
    assert 1 / 26 <= head["p_value"] <= 1
    assert {json.loads(row["params"])["setting"] for row in manifest["findings"]} == {"grey", "black"}
    assert {json.loads(row["params"])["null"] for row in manifest["findings"]} == {"names"}
    assert head["conclusion"] in ("inconclusive", "shown")
    assert not list(tmp_path.glob("store/artifacts/train*"))
    assert "The feature among others of its kind" in Path(manifest["report"]).read_text()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("trained.weights=/nowhere.pt", "/nowhere.pt does not exist"),
        ("trained.model=factory:nothing", "has no function 'nothing'"),
        ("trained.options={classes: 5}", "do not fit the model"),
        ("trained.options={nope: 5}", "failed with {'nope': 5}"),
        ("data.channels=3", "cannot take examples of shape (3, 28, 28)"),
        ("trained.outputs=probabilities", "outputs are not probabilities; set it to logits"),
        ("trained.model=factory:nan_model", "not finite"),
        ("canary.feature.left=10", "does not fit into an image of 28 x 28"),
        ("score.null_features=18", "the rank test needs 19"),
        ("canary.label=7", "no example has that class"),
    ],
)
def test_settings_that_do_not_fit_an_external_model_end_with_a_short_error(
    own: Memlib, tmp_path: Path, setting: str, said: str
) -> None:
    assert said in own.refusal(tmp_path / "store", setting)
    assert not list(tmp_path.glob("store/runs/*"))


@pytest.mark.slow
def test_self_influence_of_external_checkpoints_is_descriptive_and_has_a_page(own: Memlib, tmp_path: Path) -> None:
    text = f"""
audit: self_influence
data: {{source: {{kind: image_folder, path: {tmp_path}/images}}, image_size: 28, channels: 1}}
trained: {{model: "factory:make_model"}}
checkpoints:
  - {{weights: {tmp_path}/model.safetensors, learning_rate: 0.1}}
  - {{weights: {tmp_path}/other.pt, learning_rate: 0.01}}
report: {{gallery: 3}}
"""
    mine = wrote(tmp_path, text, own, "self-influence")
    manifest = mine.audit(tmp_path / "store")
    says_one_thing(mine, tmp_path / "store", manifest)
    units = published(tmp_path / "store", manifest)["units"]
    assert units.num_rows == 12
    assert all(value > 0 for value in units["self_influence"].to_pylist())
    assert manifest["findings"][0]["conclusion"] == "descriptive"
    assert "Highest self-influence" in Path(manifest["report"]).read_text()
    assert newest(tmp_path / "store")["audit"] == "self_influence"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("canary.label=5", "no training example has that class"),
        ("training.batch_size=500", "exceeds the 90 training examples"),
        ("training.patience=3", "needs validation examples"),
        ("training.optimizer.learning_rate=1e12", "not finite in epoch"),
        ("model={kind: classifier, architecture: resnet18}", "needs images, not points"),
        ("nets.seedz=3", "did you mean seeds?"),
        ("probe={kind: held_out}", "there are 0 probe examples"),
    ],
)
def test_impossible_settings_end_with_a_short_error(
    moons: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path, setting: str, said: str
) -> None:
    tiny, _, _ = moons
    assert said in tiny.refusal(tmp_path / "store", setting, "nets.seeds=1", "nets.controls=1", "score.per_epoch=false")


@pytest.mark.slow
def test_one_seed_is_inconclusive_and_the_page_says_why(moons: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path) -> None:
    tiny, _, _ = moons
    manifest = tiny.audit(tmp_path / "store", "nets.seeds=1", "nets.controls=1", "training.epochs=2")
    assert not any(row["metric"].startswith("proportion") for row in manifest["findings"])
    assert manifest["findings"][0]["conclusion"] == "inconclusive"
    assert "Models from a single seed cannot tell memory from chance." in Path(manifest["report"]).read_text()
