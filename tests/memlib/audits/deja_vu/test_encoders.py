"""External encoders are audited like encoders trained here, in whichever form they are supplied."""

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
import torchvision
from PIL import Image
from torch import nn

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.embedding import Embed
from memlib.errors import UserError
from memlib.models.encoder import Encoder
from memlib.models.external.encoders import load_external_encoder
from memlib.models.external.factory import encoder_digest
from memlib.models.external.network import ExternalNetwork
from memlib.models.vision import MEAN, STD
from memlib.observe.embeddings import cut, embed
from memlib.observe.encoders import ExternalEncoder, given_layers
from memlib.pipeline.stage import Artifact
from memlib.recipes.files import load_recipe, validate
from memlib.running.finished import plan
from memlib.running.runners import PlainRunner
from memlib.runs.index import list_runs, read_run
from memlib.runs.records import RunRecord
from memlib.specs import Resources
from memlib.specs.encoders import (
    FactoryEncoder,
    SuppliedEmbeddings,
    TimmEncoder,
    TorchvisionEncoder,
    TransformersEncoder,
)
from memlib.store import Ref, Store
from memlib.training.augment import normalize
from memlib.training.fit import Train, TrainedModel

pytestmark = pytest.mark.usefixtures("never_power")

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.epochs=2",
    "training.batch_size=20", "model.projector=[16, 16]", "decode.k=[10, 5]", "decode.layers=[classifier, backbone]",
    "decode.crops=[maximal, corner]",
]  # fmt: skip


def audited(folder: Path, *settings: str) -> tuple[PlainRunner, RunRecord, pa.Table]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = PlainRunner(Store(str(folder)))
    run = body_of(AUDITS["deja-vu"])(runner, spec)
    assert run is not None
    return runner, run, pq.ParquetFile(run.results["units"]).read()


Trained = tuple[PlainRunner, RunRecord, pa.Table]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return audited(tmp_path_factory.mktemp("trained") / "store")


def models(trained: Trained) -> dict[str, tuple[Encoder, int]]:
    runner, run, _ = trained
    found = {}
    for name in "AB":
        artifact: Artifact[TrainedModel] = Artifact(runner.store, Ref.parse(run.artifacts[f"model {name}0"]), Train)
        encoder, spec = artifact.content.load(epoch=2)
        assert isinstance(encoder, Encoder)
        found[name] = (encoder.eval(), spec.input_size)
    return found


def exported(folder: Path, *settings: str) -> list[dict[str, str]]:
    command = ["export", "--recipe", "smoke", "--output", str(folder), "--store", str(folder.parent / "export-store")]
    for setting in [*SETTINGS, *settings]:
        command += ["--set", setting]
    assert main(command) == 0
    with (folder / "images.csv").open() as file:
        return list(csv.DictReader(file))


@torch.inference_mode()
def embedded_by_their_owner(images: list[dict[str, str]], folder: Path, encoder: Encoder, side: int) -> pa.Table:
    """Embed images as an owner does who has nothing of memlib but its PNG files."""
    layers: dict[str, list[Any]] = {}
    for row in images[::-1]:  # in whatever order
        pixels = np.asarray(Image.open(folder / row["file"]).convert("RGB"))
        view = cut(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255, None, side=side)
        for name, values in encoder.layers(normalize(view)):
            layers.setdefault(name, []).append(values[0].numpy())
    return pa.table({"id": [row["id"] for row in images[::-1]], **layers})


def assert_same_votes(units: pa.Table, expected: pa.Table, *, share: float = 1.0) -> None:
    keys = [(name, "ascending") for name in ("layer", "crop", "k", "direction", "example_id")]
    mine, theirs = (table.sort_by(keys) for table in (units, expected))
    for name in ("example_id", "label", "layer", "crop", "direction"):
        assert mine[name].equals(theirs[name]), name
    for name in ("target_prediction", "reference_prediction"):
        assert (mine[name].to_numpy() == theirs[name].to_numpy()).mean() >= share, name


@pytest.mark.ray
def test_supplied_embeddings_give_the_same_audit_as_their_encoders(trained: Trained, tmp_path: Path) -> None:
    images = exported(tmp_path / "shown")
    assert os.stat(tmp_path / "shown" / "images.csv").st_mode & 0o077 == 0
    for name, (encoder, side) in models(trained).items():
        pq.write_table(embedded_by_their_owner(images, tmp_path / "shown", encoder, side), tmp_path / f"{name}.parquet")
    pair = {side.lower(): {"kind": "embeddings", "path": str(tmp_path / f"{side}.parquet")} for side in "AB"}
    settings = (f"encoders={json.dumps([pair])}", "training=null")
    with pytest.raises(UserError, match=r"lacks .* images that the audit embeds.* embed all images that memlib export wrote"):
        audited(tmp_path / "other", *settings, "data.image_size=24")  # the embeddings are of other pictures
    runner, run, units = audited(tmp_path / "store", *settings)
    assert_same_votes(units, trained[2], share=0.995)  # batches of one round otherwise
    assert set(units["epoch"].to_pylist()) == {0}
    page = Path(run.report).read_text()
    assert "According to their owner" in page
    assert "training time" not in page
    assert not [name for name in run.artifacts if name.startswith("model")]
    assert read_run(runner.store, list_runs(runner.store).entries[0]["run"]).run == run.run
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    planned = plan(AUDITS["deja-vu"], spec, runner.store.uri, Resources())
    assert not [str(ref) for ref, part in planned.parts.items() if not part.hit]
    metrics = {row.metric for row in run.findings}
    assert {"share_excess", "knn_accuracy", "probe_gap_backbone"} <= metrics
    sets = (tmp_path / "shown" / "sets.csv").read_text().splitlines()
    assert sets[0] == "example_id,set"
    assert {line.rpartition(",")[2] for line in sets[1:]} <= {"A", "B", "C", "X"}


def of_memlib(weights: str, spec: Mapping[str, Any], num_classes: int) -> nn.Module:
    from memlib.models.encoder import build_encoder
    from memlib.specs import ModelSpec

    class Layered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = build_encoder(ModelSpec(**spec), num_classes=num_classes, seed=0)
            self.encoder.load_state_dict(safetensors.torch.load_file(weights))

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return dict(self.encoder.layers(images))

    return Layered()


def test_encoders_of_a_factory_give_the_same_audit_as_those_trained_by_memlib(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {}
    for name, (encoder, side) in models(trained).items():
        path = tmp_path / f"{name}.safetensors"
        safetensors.torch.save_file(encoder.state_dict(), path)
        options = {"weights": str(path), "spec": {"projector": [16, 16], "input_size": side}, "num_classes": 10}
        factory = {"kind": "import", "model": f"{__name__}:of_memlib", "options": options, "version": name}
        pair[name.lower()] = factory | {"inputs": "imagenet", "side": side}
    monkeypatch.setenv("MEMLIB_CODE", __name__)
    _, run, units = audited(tmp_path / "store", f"encoders={json.dumps([pair])}", "training=null")
    assert_same_votes(units, trained[2])
    assert run.findings[0].value == trained[1].findings[0].value


def test_torchvision_and_timm_checkpoints_yield_backbone_and_classifier_layers(tmp_path: Path) -> None:
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=7).eval()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "whole.safetensors")
    torch.save({k: v for k, v in model.state_dict().items() if not k.startswith("fc.")}, tmp_path / "backbone.pt")
    spec = TorchvisionEncoder(
        kind="torchvision", architecture="resnet18", weights=str(tmp_path / "whole.safetensors"), side=32
    )
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in (MEAN, STD))
    with torch.inference_mode():
        found = dict(load_external_encoder(spec).all_layers(pixels))
        scores = model((pixels - mean) / std)
        alone = dict(
            load_external_encoder(spec.model_copy(update={"weights": str(tmp_path / "backbone.pt")})).all_layers(pixels)
        )
        assert torch.allclose(found["classifier"], scores, atol=1e-5)
        assert torch.allclose(model.fc(found["backbone"]), scores, atol=1e-5)
    assert list(alone) == ["backbone"]
    assert torch.allclose(alone["backbone"], found["backbone"], atol=1e-5)
    timm = pytest.importorskip("timm")
    body = timm.create_model("resnet10t", num_classes=5).eval()
    safetensors.torch.save_file(body.state_dict(), tmp_path / "timm.safetensors")
    own = load_external_encoder(
        TimmEncoder(kind="timm", architecture="resnet10t", weights=str(tmp_path / "timm.safetensors"))
    )
    assert own.side == timm.data.resolve_model_data_config(body)["input_size"][-1]
    with torch.inference_mode():
        layers = dict(own.all_layers(pixels))
        assert torch.allclose(layers["classifier"], body((pixels - mean) / std), atol=1e-5)
        assert torch.allclose(
            layers["backbone"], body.forward_head(body.forward_features((pixels - mean) / std), pre_logits=True), atol=1e-5
        )


def test_a_transformers_folder_has_its_own_preprocessing_and_no_random_pooler(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    torch.manual_seed(0)
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "vit")
    prepared = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "do_normalize": True}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared))
    own = load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    pixels = torch.rand(2, 3, 16, 16)
    assert own.side == 16
    with torch.inference_mode():
        hidden = model((pixels - 0.5) / 0.25).last_hidden_state
        layers = dict(own.all_layers(pixels))
    assert list(layers) == ["cls", "mean"]
    assert torch.allclose(layers["cls"], hidden[:, 0], atol=1e-5)
    assert torch.allclose(layers["mean"], hidden.mean(dim=1), atol=1e-5)
    before = encoder_digest(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    for more, scale in (
        ({"rescale_factor": 1 / 127.5}, 2.0),
        ({"do_rescale": False}, 255.0),
        ({"rescale_factor": 1 / 255}, 1.0),
    ):
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared | more))
        own = load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
        with torch.inference_mode():
            expected = model((pixels * scale - 0.5) / 0.25).last_hidden_state[:, 0]
            assert torch.allclose(dict(own.all_layers(pixels))["cls"], expected, atol=1e-4)
        digest = encoder_digest(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
        assert digest.endswith(":scaled") == (scale != 1)
        assert digest != before  # its file is another one
    efficient = {"image_processor_type": "EfficientNetImageProcessor", "rescale_factor": 1 / 127.5}
    for more, mean, std in (
        (efficient, 0.5, 0.25**2),
        (efficient | {"rescale_offset": True}, 1.5, 0.25**2),
        (efficient | {"rescale_offset": True, "include_top": False}, 1.5, 0.25),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True}, 1.5, 0.25),
    ):
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared | more))
        own = load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
        with torch.inference_mode():
            expected = model((pixels * 2 - mean) / std).last_hidden_state[:, 0]
            assert torch.allclose(dict(own.all_layers(pixels))["cls"], expected, atol=1e-4)
        assert encoder_digest(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit"))).endswith(":shifted")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared | {"rescale_factor": -1}))
    with pytest.raises(UserError, match="states rescale_factor -1"):
        load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    for more, said in (
        ({"image_mean": None}, "states image_mean None"),
        ({"image_std": [0.5, 0.5]}, r"states image_std \[0.5, 0.5\]"),
        ({"image_std": [0.5, 0.5, 0.0]}, "must be above 0"),
        ({"image_mean": ["a"] * 3}, "a number or three are needed"),
        ({"size": {"height": 16, "width": 32}}, "images are squares"),
        ({"do_flip_channel_order": True}, "takes blue before red"),
        ({"include_top": True, "do_normalize": False}, r"divides by image_std \(include_top\) without do_normalize"),
    ):
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared | more))
        with pytest.raises(UserError, match=said):
            load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    for content, said in (('{"size": 16, "size": 32}', "vit names a key twice"), ("[]", "vit is no JSON object")):
        (tmp_path / "vit" / "preprocessor_config.json").write_text(content)
        with pytest.raises(UserError, match=f"preprocessor_config.json in .*{said}"):
            load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    (tmp_path / "vit" / "preprocessor_config.json").write_text('{"size": 16, "size": 32}')
    with pytest.raises(UserError, match="names a key twice"):
        encoder_digest(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))
    (tmp_path / "vit" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"cannot load the Hugging Face encoder"):
        load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path / "vit")))


@pytest.mark.parametrize("kind", ["masks anew", "dropout"])
def test_an_encoder_that_answers_at_random_is_refused(kind: str, tmp_path: Path) -> None:
    """ViTMAE draws a new mask in each pass, even in evaluation; a factory may leave functional dropout on."""
    if kind == "dropout":
        own = ExternalNetwork(
            Dropping(), name="mine", side=8, mean=(0.0,) * 3, std=(1.0,) * 3, read=lambda outputs: {"output": outputs}
        )
    else:
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTMAEConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=4,
            decoder_hidden_size=8, decoder_num_hidden_layers=1, decoder_num_attention_heads=1, decoder_intermediate_size=8,
        )  # fmt: skip
        transformers.ViTMAEModel(config).save_pretrained(tmp_path)
        (tmp_path / "preprocessor_config.json").write_text(
            json.dumps({"size": {"height": 16, "width": 16}, "do_normalize": False})
        )
        own = load_external_encoder(TransformersEncoder(kind="transformers", path=str(tmp_path)))
    images = np.random.default_rng(0).integers(0, 256, size=(6, 16, 16, 3), dtype=np.uint8)
    with pytest.raises(
        UserError, match="embeds the same images differently each time .*: it draws random numbers in evaluation"
    ):
        embed(own, images, np.arange(6), input_size=own.side, folder=tmp_path, layers=["last"])


class Dropping(torch.nn.Module):
    """A network that drops values in each mode."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(images.flatten(1), p=0.5, training=True)


def given(folder: Path, **columns: Any) -> SuppliedEmbeddings:
    pq.write_table(pa.table(columns), folder / "e.parquet")
    return SuppliedEmbeddings(kind="embeddings", path=str(folder / "e.parquet"))


def test_supplied_embeddings_are_joined_by_id_and_the_last_column_is_the_deepest_layer(tmp_path: Path) -> None:
    spec = given(tmp_path, id=["b", "a", "x"], early=[[1.0], [2.0], [3.0]], note=["", "", ""], late=[[1, 2], [3, 4], [5, 6]])
    found = given_layers(spec, ["a", "b"], ["last", "early"])
    assert found["last"].tolist() == [[3, 4], [1, 2]]
    assert found["early"].tolist() == [[2], [1]]
    assert given_layers(spec, ["a"], ["late"], dtype="float16")["late"].dtype == np.float16


@pytest.mark.parametrize(
    ("columns", "layers", "message"),
    [
        ({"name": ["a"], "v": [[1.0]]}, ["last"], "has no column 'id'; it has name, v"),
        (
            {"id": ["a", "b"], "v": [1.0, 2.0]},
            ["last"],
            r"no column of embeddings .lists of numbers.; its columns are id, v; store",
        ),
        ({"id": ["a", "b"], "v": [[1.0], [2.0]]}, ["w"], "has no layer 'w'; it has v"),
        ({"id": ["a", "a"], "v": [[1.0], [2.0]]}, ["v"], "1 repeated ids"),
        ({"id": ["a"], "v": [[1.0]]}, ["v"], "lacks 1 of 2 images that the audit embeds, such as b; embed all"),
        ({"id": ["a", "b"], "v": [[1.0], [2.0, 3.0]]}, ["v"], "vectors of 2 lengths"),
        ({"id": ["a", "b"], "v": [[1.0], [float("nan")]]}, ["v"], "not finite"),
        ({"id": ["a", "b"], "v": [[1.0], [None]]}, ["v"], "has vectors with missing numbers"),
        ({"id": ["a", "b"], "v": [[1.0], None]}, ["v"], "vectors of 2 lengths"),
        ({"id": ["a", "b"], "v": [[1.0], [1.0]]}, ["v"], "the same vector for 2 of 2 images"),
        ({"id": ["a", "b"], "v": [[1.0], [1e9]]}, ["v"], "too large for float16"),
    ],
)
def test_supplied_embeddings_of_wrong_shape_type_or_range_are_refused(
    columns: dict[str, Any], layers: list[str], message: str, tmp_path: Path
) -> None:
    dtype = "float16" if "too large" in message else "float32"
    with pytest.raises(UserError, match=message):
        given_layers(given(tmp_path, **columns), ["a", "b"], layers, dtype=dtype)


def test_supplied_embeddings_that_are_mostly_equal_are_refused(tmp_path: Path) -> None:
    """An owner who returns zeros for all images but one would otherwise be cleared."""
    names = [f"{number}" for number in range(200)]
    zeros = [[0.0, 0.0]] * 199 + [[1.0, 2.0]]
    with pytest.raises(UserError, match="the same vector for 199 of 200 images"):
        given_layers(given(tmp_path, id=names, v=zeros), names, ["v"])
    halves = [[0.0, float(number % 2)] for number in range(200)]  # e.g. a feature that is seldom active
    assert len(given_layers(given(tmp_path, id=names, v=halves), names, ["v"])["v"]) == 200


def test_supplied_embeddings_that_are_missing_or_not_parquet_are_refused(tmp_path: Path) -> None:
    (tmp_path / "e.parquet").write_text("no table")
    spec = SuppliedEmbeddings(kind="embeddings", path=str(tmp_path / "e.parquet"))
    with pytest.raises(UserError, match="cannot read embeddings"):
        given_layers(spec, ["a"], ["last"])
    with pytest.raises(UserError, match="there is no file"):
        _ = ExternalEncoder(spec.model_copy(update={"path": str(tmp_path / "none")})).digest


class Shaped(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, images: torch.Tensor) -> Any:
        if self.what == "raises":
            raise IndexError("no such channel")
        return images if self.what == "maps" else {"a": "text"} if self.what == "text" else {}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", r"cannot take images of 8 x 8 pixels \(IndexError: no such channel\)"),
        ("maps", r"returns a tensor of \(2, 3, 8, 8\) as output for 2 images; embeddings must be \(batch, dim\)"),
        ("text", "returns a str as a"),
        ("nothing", "returns no embeddings"),
    ],
)
def test_factories_whose_models_give_no_embeddings_are_refused(
    what: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLIB_CODE", __name__)
    spec = FactoryEncoder(kind="import", model=f"{__name__}:Shaped", options={"what": what}, version="1", side=8)
    with pytest.raises(UserError, match=message):
        load_external_encoder(spec).all_layers(torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training=null"], "either training or encoders"),
        (["encoders=[{a: {kind: embeddings, path: a}, b: {kind: embeddings, path: b}}]"], "either training or encoders"),
        (["decode.layers=['../x']"], "layer names consist of letters"),
        (
            ["training=null", "pairs=2", "encoders=[{a: {kind: embeddings, path: a}, b: {kind: embeddings, path: b}}]"],
            "pairs and decode.epochs apply to models that memlib trains",
        ),
        (
            ["training=null", "encoders=[{a: {kind: import, model: 'm:f'}, b: {kind: embeddings, path: b}}]"],
            "a factory that loads them itself needs version",
        ),
    ],
)
def test_recipes_that_name_no_models_or_two_kinds_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", settings)[0])


def test_a_layer_that_an_encoder_lacks_is_named(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (encoder, side) = models(trained)["A"]
    safetensors.torch.save_file(encoder.state_dict(), tmp_path / "w.safetensors")
    options = {"weights": str(tmp_path / "w.safetensors"), "spec": {"projector": [16, 16]}, "num_classes": 10}
    factory = {"kind": "import", "model": f"{__name__}:of_memlib", "options": options, "version": "1", "side": side}
    monkeypatch.setenv("MEMLIB_CODE", __name__)
    pair = json.dumps([{"a": factory, "b": factory}])
    with pytest.raises(UserError, match=r"decode.layers names 'deepest'; this encoder has backbone, projector_1"):
        audited(tmp_path / "store", f"encoders={pair}", "training=null", "decode.layers=[deepest]")


def test_embed_with_an_external_encoder_has_no_preferred_node(tmp_path: Path) -> None:
    spec = SuppliedEmbeddings(kind="embeddings", path=str(tmp_path / "e.parquet"))
    assert Embed.near.fget(type("E", (), {"model": ExternalEncoder(spec)})()) is None  # type: ignore[attr-defined]
