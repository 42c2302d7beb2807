"""External image-text models: folders of transformers and open_clip, and embeddings that equal those of a trained model."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from small_models import save_open_clip

import memlib
from flows.cli.owner import export
from memlib.audits.captions.recipe import Recipe
from memlib.data.images.caption_stages import Captions
from memlib.data.splits import PUBLIC, REFERENCE, TARGET
from memlib.data.stages import Decode
from memlib.errors import UserError
from memlib.models.external.encoders import load_external_encoder
from memlib.models.external.factory import encoder_digest
from memlib.models.external.pairs import ExternalPairEncoder
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, changed_content
from memlib.specs.captions import CaptionSpec
from memlib.specs.encoders import OpenClipEncoder, TransformersEncoder
from memlib.store import Store

DATA: dict[str, Any] = {"source": {"kind": "captioned_scenes", "num_examples": 120, "size": 16}, "image_size": 16}
EXTERNAL: dict[str, Any] = {
    "audit": "captions", "title": "external", "data": DATA, "split": {"sets": "sets.csv", "drawn_at_random": True},
    "score": {"replicates": 100, "permutations": 199, "k": [5]},
}  # fmt: skip
TRAINED: dict[str, Any] = {
    "audit": "captions", "title": "trained", "data": DATA,
    "split": {"train_per_class": 25, "public_per_class": 60},
    "model": {
        "image": {"backbone": "small_vit", "patch_size": 8, "width": 4, "input_size": 16, "projector": [8]}, "text": {"width": 8},
    },
    "training": {"epochs": 6, "batch_size": 25}, "score": EXTERNAL["score"],
}  # fmt: skip


def write_sets(folder: Path) -> None:
    """Write 30 pairs each for A and B, and 60 public ones."""
    rows = [f"pair-{number:07d},{'ABXX'[number % 4]}" for number in range(120)]
    (folder / "sets.csv").write_text("\n".join(["example_id,set", *rows, ""]))


def save_clip(folder: Path, seed: int) -> None:
    """Write a CLIP with random weights, and a tokenizer of the words of the embedded captions."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    torch.manual_seed(seed)
    words = [
        "<unk>",
        "<end>",
        "a",
        "with",
        "in",
        "the",
        "upper",
        "lower",
        "left",
        "right",
        *["zero", "one", "two", "three", "four", "five"],
    ]
    config = transformers.CLIPConfig(
        text_config={"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                     "num_attention_heads": 2, "max_position_embeddings": 12, "eos_token_id": 1, "bos_token_id": 0},
        vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )  # fmt: skip
    transformers.CLIPModel(config).save_pretrained(folder)
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.post_processor = tokenizers.processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", pad_token="<end>", eos_token="<end>"
    )
    wrapped.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        '{"do_resize": true, "size": {"height": 16, "width": 16}, "do_rescale": true, "rescale_factor": 0.00392156862745098,'
        ' "do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}'
    )


def test_two_folders_of_transformers_are_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    for seed, name in enumerate("ab"):
        save_clip(tmp_path / name, seed)
    models = {name: {"kind": "transformers", "path": name} for name in "ab"}
    run = memlib.run({**EXTERNAL, "encoders": [models]}, store="store", quiet=True)
    assert run.verdict.word == "inconclusive"
    assert run.findings[0].n == 60
    assert "external, transformers" in Path(run.report).read_text(encoding="utf-8")
    alone = memlib.run({**EXTERNAL, "encoders": [{"a": models["a"]}]}, store="store", quiet=True)
    assert alone.units["b_recovered"].null_count == 60
    assert alone.verdict.word == "descriptive"
    assert (
        "with one model alone, nothing examines whether the sets were drawn at random as declared" in alone.verdict.sentence
    )
    assert "As declared, pairs were assigned to the sets at random" in run.verdict.explanation
    unseen = memlib.run(
        changed_content({**EXTERNAL, "encoders": [models]}, {"split.drawn_at_random": False}), store="store", quiet=True
    )
    assert unseen.verdict.word == "descriptive"


def test_a_caption_has_the_same_vector_alone_and_beside_longer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SigLIP takes its vector at the last token, so that padding to the longest caption would change all others."""
    transformers = pytest.importorskip("transformers")
    save_clip(tmp_path, 0)  # its tokenizer and preprocessing
    part = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SiglipConfig(
        text_config={**part, "vocab_size": 20, "max_position_embeddings": 12, "projection_size": 16},
        vision_config={**part, "image_size": 16, "patch_size": 8},
    )
    torch.manual_seed(0)
    model = transformers.SiglipModel(config).eval()
    model.save_pretrained(tmp_path)
    captions, spec = (
        ["a zero", "a zero with a one in the upper left"],
        TransformersEncoder(kind="transformers", path=str(tmp_path)),
    )
    with torch.inference_mode():
        found = ExternalPairEncoder(spec, torch.device("cpu")).texts(captions, torch.zeros(0))
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        tokens = tokenizer(captions, padding="max_length", max_length=12, return_tensors="pt")
        expected = model.get_text_features(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    expected = expected if isinstance(expected, torch.Tensor) else expected.pooler_output
    assert torch.allclose(found, torch.nn.functional.normalize(expected, dim=1), atol=1e-5)
    assert encoder_digest(spec).endswith(":padded")  # versions before padded to the longest caption
    monkeypatch.setattr("memlib.models.external.pairs.reads_padding", lambda _: False)
    with torch.inference_mode(), pytest.raises(UserError, match="embeds a caption differently beside longer ones"):
        ExternalPairEncoder(spec, torch.device("cpu")).texts(captions, torch.zeros(0))


def test_captions_of_images_of_one_name_in_two_folders_are_refused(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / "images" / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8), (ord(folder), 0, 0)).save(tmp_path / "images" / folder / "1.png")
    content = {
        "captions": {
            "images": [{"id": 1, "file_name": "1.png"}],
            "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}],
        },
        "instances": {"categories": [{"id": 1, "name": "cat"}], "annotations": [{"image_id": 1, "category_id": 1}]},
    }
    for name, part in content.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    data = DataSpec.model_validate({"source": {"kind": "image_folder", "path": str(tmp_path / "images")}, "image_size": 8})
    spec = CaptionSpec.model_validate({"origin": {name: str(tmp_path / f"{name}.json") for name in content}})
    run = PlainRunner(Store(str(tmp_path / "store")))
    with pytest.raises(UserError, match="2 images are named 1.png, in different folders"):
        run.run(Captions(data, spec, run.run(Decode(data))))


def test_two_folders_of_open_clip_are_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    for seed, name in enumerate("ab"):
        save_open_clip(tmp_path / name, seed)
    handlers = list(logging.getLogger().handlers)
    models = {name: {"kind": "open_clip", "path": name} for name in "ab"}
    run = memlib.run({**EXTERNAL, "encoders": [models]}, store="store", quiet=True)
    assert run.verdict.word == "inconclusive"
    assert run.findings[0].n == 60
    assert "external, open_clip" in Path(run.report).read_text(encoding="utf-8")
    assert logging.getLogger().handlers == handlers


def test_embeddings_of_open_clip_equal_its_own(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    save_open_clip(tmp_path / "a", 0)
    spec = OpenClipEncoder(kind="open_clip", path=str(tmp_path / "a"))
    encoder = ExternalPairEncoder(spec, torch.device("cpu"))
    theirs, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'a'}")
    pixels = torch.rand(4, 3, 16, 16)
    captions = ["a zero with a one", "an unknown word", "", "two " * 30]
    with torch.inference_mode():
        normalized = torch.stack([prepare.transforms[-1](image) for image in pixels])
        torch.testing.assert_close(encoder.images(pixels), theirs.encode_image(normalized, normalize=True))
        tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'a'}")(captions)
        torch.testing.assert_close(encoder.texts(captions, torch.zeros(4, 1)), theirs.encode_text(tokens, normalize=True))
        layers = load_external_encoder(spec).all_layers(pixels)
        assert [name for name, _ in layers] == ["output"]
        torch.testing.assert_close(layers[0][1], theirs.encode_image(normalized))


def change_config(folder: Path, changes: dict[str, Any]) -> None:
    """Change entries of open_clip_config.json, named by dotted paths; None removes one."""
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        *parents, last = name.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_cfg.text_cfg.hf_model_name": "roberta-base"}, "has the text half roberta-base, which memlib does not load"),
        ({"model_cfg.text_cfg.hf_tokenizer_name": "x"}, "has the tokenizer x, which memlib does not load"),
        ({"model_cfg.vision_cfg.timm_model_name": "hf-hub:a/b"}, "has the image half hf-hub:a/b"),
        ({"model_cfg.text_cfg.tokenizer_kwargs": {"reduction_mask": "syntax"}}, "has the tokenizer options"),
        ({"model_cfg.text_cfg.tokenizer_kwargs": {"clean": "eval"}}, "must be one of lower, whitespace, canonicalize"),
        ({"model_cfg.text_cfg.layers": 1_000_000}, "declares layers 1,000,000, but its weights are"),
        ({"model_cfg.text_cfg.width": 32}, r"declares .* of shape .*, but open_clip_model\.safetensors has"),
        ({"model_cfg.text_cfg.context_length": 90_000}, "declares .* take both from the same model"),
        ({"model_cfg.vision_cfg.mlp_ratio": 1.5e5}, "declares .* of shape"),
        ({"model_cfg.vision_cfg.image_size": 24}, "declares visual.positional_embedding"),
        ({"model_cfg.text_cfg": None}, "has no object text_cfg; save the model again"),
        ({"model_cfg": []}, "has no object model_cfg"),
        ({"preprocess_cfg.mean": ["a", "b", "c"]}, "states mean .* it needs three numbers"),
        ({"preprocess_cfg.std": [0.5, 0.5, 0]}, "the numbers must be above 0"),
        ({"model_cfg.vision_cfg.image_size": [8, 32]}, "takes images of 32 x 8, which are not square"),
    ],
)
def test_folders_of_open_clip_that_cannot_be_loaded_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_open_clip(tmp_path / "a", 0)
    change_config(tmp_path / "a", changes)
    with pytest.raises(UserError, match=message):
        load_external_encoder(OpenClipEncoder(kind="open_clip", path=str(tmp_path / "a")))


def test_pickles_of_open_clip_are_not_opened(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    save_open_clip(tmp_path / "a", 0)
    spec, weights = (
        OpenClipEncoder(kind="open_clip", path=str(tmp_path / "a")),
        tmp_path / "a" / "open_clip_model.safetensors",
    )
    other = weights.rename(tmp_path / "a" / "w.safetensors")
    for name in ("open_clip_pytorch_model.bin", "open_clip_pytorch_model.pth"):  # open_clip itself would prefer these
        (tmp_path / "a" / name).write_bytes(b"no model")
    load_external_encoder(spec)
    other.rename(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"has its weights only in open_clip_pytorch_model\.bin, a pickle"):
        encoder_digest(spec)
    (tmp_path / "a" / "open_clip_pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"needs one file of weights, \*\.safetensors; it has none"):
        load_external_encoder(spec)
    for name in "ab":
        (tmp_path / "a" / f"{name}.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"it has a\.safetensors, b\.safetensors"):
        load_external_encoder(spec)
    (tmp_path / "a" / "open_clip_config.json").unlink()
    with pytest.raises(UserError, match=r"there is no open_clip model in .* \(no open_clip_config\.json\)"):
        load_external_encoder(spec)


def test_a_folder_without_texts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    save_clip(tmp_path / "a", 0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    (tmp_path / "vit").mkdir()
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_bytes((tmp_path / "a" / "preprocessor_config.json").read_bytes())
    with pytest.raises(UserError, match=r"holds a ViTModel, which is no image-text model"):
        memlib.run({**EXTERNAL, "encoders": [{"a": {"kind": "transformers", "path": "vit"}}]}, store="store", quiet=True)


def test_supplied_embeddings_give_the_units_of_the_models_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train two models, export what their owner would see, embed it, and audit the embeddings alone."""
    from memlib.audits.captions.retrieval import encoder_of
    from memlib.pipeline.stage import Artifact
    from memlib.store import Ref
    from memlib.training.fit import Train

    monkeypatch.chdir(tmp_path)
    trained = memlib.run(TRAINED, store="store", quiet=True)
    splits = pq.read_table(next(Path("store/artifacts/split_pairs").rglob("splits.parquet")))
    names = {TARGET: "A", REFERENCE: "B", PUBLIC: "X"}
    rows = [f"{row['example_id']},{names[row['role']]}" for row in splits.to_pylist() if row["role"] in names]
    (tmp_path / "sets.csv").write_text("\n".join(["example_id,set", *rows, ""]))
    files = {name: {"kind": "embeddings", "path": f"{name}.parquet"} for name in "ab"}
    recipe = {**EXTERNAL, "encoders": [files]}
    (tmp_path / "external.yaml").write_text(str(recipe).replace("True", "true"))
    export(recipe="external.yaml", output=Path("out"), store="store")
    assert "60 images and, in texts.csv, 50 texts" in capsys.readouterr().out
    with open("out/images.csv", newline="") as file:
        images = [row["id"] for row in csv.DictReader(file)]
    with open("out/texts.csv", newline="") as file:
        texts = {row["id"]: row["text"] for row in csv.DictReader(file)}
    captions = next(Path("store/artifacts/captions").rglob("words.npy"))
    words, stored = np.load(captions), np.load(next(Path("store/artifacts/decode").rglob("images.npy")))
    for name in "ab":
        model = Artifact(trained.store, Ref.parse(trained.record.artifacts[f"model {name.upper()}0"]), Train)
        from memlib.observe.image_text import embed_images, embed_texts

        encoder, device = encoder_of(model, 6, torch.device("cpu")), torch.device("cpu")
        places = [np.array([int(one.rpartition("-")[2]) for one in ids]) for ids in (images, texts)]
        vectors = [
            *embed_images(encoder, stored, places[0], device=device) * 3,  # owners need not scale them
            *embed_texts(encoder, list(texts.values()), words[places[1]], device=device),
        ]
        pq.write_table(pa.table({"id": [*images, *texts], "vector": [one.tolist() for one in vectors]}), f"{name}.parquet")
    external = memlib.run("external.yaml", store="store", quiet=True)
    columns = ["example_id", "direction", "a_recovered", "b_recovered", "a_wrong", "b_wrong", "a_named"]
    assert external.units.select(columns).sort_by("example_id").equals(trained.units.select(columns).sort_by("example_id"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"epochs": 1}}, "give either training, or encoders"),
        ({"split": {"train_per_class": 5}}, "split.sets and encoders go together"),
        ({"pairs": 2}, "are for models that memlib trains"),
        ({"encoders": []}, "give either training, or encoders"),
    ],
)
def test_recipes_of_external_models_that_cannot_be_run_are_refused(changes: dict[str, Any], message: str) -> None:
    models = {"encoders": [{"a": {"kind": "transformers", "path": "a"}}]}
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate({**EXTERNAL, **models, **changes})
