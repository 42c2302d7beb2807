"""Images, texts and embeddings as people have them: layouts and names of all kinds, known rightly or refused in a line."""

import json
import unicodedata
import warnings
from dataclasses import replace
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
from small_models import save_trainable

import memlib
from memlib.errors import UserError
from memlib.looking.asking import Said, asked
from memlib.looking.models import _is_guessing, architecture_of, inputs_of
from memlib.looking.texts import read_texts
from memlib.looking.things import looked_at
from memlib.specs import ExternalClassifierSpec

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photos(
    path: str, *, names: str = "{part}{number}.png", parts: tuple[str, ...] = ("train", "val"), count: int = 12
) -> None:
    """Pictures of two classes, which differ in brightness."""
    rng = np.random.default_rng(0)
    for part in parts:
        for label, name in enumerate(("cat", "dog")):
            place = Path(path) / part / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (32, 32, 3)) + 100 * label
                Image.fromarray(pixels.astype(np.uint8)).save(place / names.format(part=part, number=number))


def texts(count: int, start: int = 0) -> list[str]:
    rng = np.random.default_rng(start)
    return [f"call {' '.join(str(one) for one in rng.integers(1000, 9999, 12))} and ask." for _ in range(count)]


def lines(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def question(*things: str, drawn: str = "fixed") -> Any:
    return asked([looked_at(one) for one in things], Said(drawn=drawn), "made")  # type: ignore[arg-type]


# -- images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("kind", ["pt", "safetensors", "wrapped"])
def test_torchvisions_architectures_are_known_by_their_weights(name: str, kind: str) -> None:
    state = torchvision.models.get_model(name, weights=None, num_classes=7).state_dict()
    path = "w.safetensors" if kind == "safetensors" else "w.pt"
    if kind == "safetensors":
        safetensors.torch.save_file({key: value.contiguous().clone() for key, value in state.items()}, path)
    else:
        wrapped = {"state_dict": {f"module.{key}": value for key, value in state.items()}}
        torch.save(wrapped if kind == "wrapped" else dict(state), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert architecture_of(path) == (name, 7)


def test_weights_of_other_networks_are_refused() -> None:
    torch.save({"trunk.weight": torch.zeros(3, 4)}, "w.pt")
    with pytest.raises(UserError, match=r"w.pt holds the weights of a network that is none of torchvision's \(trunk.weight"):
        architecture_of("w.pt")


def test_photos_and_weights_need_no_function_and_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture is damaged, and names number the pictures in each part: neither stands in the way."""
    monkeypatch.delenv("MEMLIB_CODE", raising=False)
    photos("photos")
    (Path("photos") / "val" / "cat" / "val3.png").write_bytes(b"")
    torch.manual_seed(0)
    torch.save(torchvision.models.get_model("squeezenet1_1", weights=None, num_classes=2).state_dict(), "w.pt")
    monkeypatch.setattr("memlib.looking.models.SIDES_TRIED", (32,))
    found = memlib.look("photos", "w.pt", drawn="fixed")
    assert any("the weights are of torchvision's squeezenet1_1 with 2 classes" in line for line in found.understood)
    assert found.run is not None
    assert found.run.verdict.word == "inconclusive"


def test_the_best_inputs_are_found_by_few_pictures() -> None:
    """A network that is right on dark and bright pictures of 32 px alone."""
    asked_sides: list[int] = []

    class Brightness(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            asked_sides.append(len(images) * images.shape[-1])
            bright = images.mean(dim=(1, 2, 3)) - 0.5
            return torch.stack([-bright, bright], dim=1) * (1 if images.shape[-1] == 32 else -1)

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 96)
    pictures = [Image.fromarray((rng.integers(0, 80, (40, 40, 3)) + 160 * label).astype(np.uint8)) for label in labels]
    found = inputs_of(Brightness(), ExternalClassifierSpec(model="a:b", version="1"), pictures, labels)
    assert (found.side, found.scale, found.right, found.count) == (32, "unit", 1.0, 96)
    assert not _is_guessing(found, classes=2)
    assert _is_guessing(replace(found, right=0.6), classes=2)  # the best of many sides and scales


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (("train/cat", "train/dog", "val/cat", "val/hen"), "train has no hen, val has no dog"),
        (("members/cat", "members/dog", "nonmembers/cat", "nonmembers/hen"), "members and nonmembers look like the sides"),
    ],
)
def test_sides_with_other_classes_are_refused_by_name(layout: tuple[str, ...], said: str) -> None:
    for place in layout:
        Path("photos", place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(Path("photos", place, "a.png"))
    with pytest.raises(UserError, match=said):
        looked_at("photos")


def test_class_folders_whose_names_are_composed_otherwise_are_the_same() -> None:
    for part, form in (("train", "NFC"), ("val", "NFD")):
        for name in ("café", "dog"):
            place = Path("photos", part, unicodedata.normalize(form, name))  # type: ignore[arg-type]
            place.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(place / "a.png")
    assert looked_at("photos").parts == ("train", "val")


def test_classes_that_a_side_lacks_are_named() -> None:
    photos("photos")
    for path in (Path("photos") / "val" / "dog").iterdir():
        path.unlink()
    (Path("photos") / "train" / "hen").mkdir()
    Image.new("RGB", (8, 8)).save(Path("photos") / "train" / "hen" / "a.png")
    said = "36 images of 3 classes in train (25) and val (12); val has no dog"
    assert looked_at("photos").said.startswith(said.replace("36", "37"))


def test_several_models_are_refused() -> None:
    photos("photos")
    for name in ("a.pt", "b.pt"):
        torch.save({"weight": torch.zeros(2, 2)}, name)
    with pytest.raises(UserError, match=r"a.pt and b.pt are two models; bring the one that is to be audited"):
        question("photos", "a.pt", "b.pt")


# -- texts --------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_trainable(tmp_path / "gpt", positions=128).name


def test_documents_of_a_person_are_one_unit(model: str) -> None:
    rows = [{"author": f"person {place // 4}", "text": text, "member": place % 8 < 4} for place, text in enumerate(texts(64))]
    lines("all.jsonl", rows)
    found = question(model, "all.jsonl")
    assert found.quick["split"] == {"group": {"path": "made/persons.csv"}}
    assert found.files["persons.csv"].decode().splitlines()[1] == "document 00000000,person 0"
    rows[0]["member"] = False
    lines("all.jsonl", rows)
    with pytest.raises(UserError, match=r"1 persons, such as 'person 0', have documents of members and of non-members"):
        question(model, "all.jsonl")


@pytest.mark.parametrize(
    "rows",
    [
        lambda text: {"id": "a", "text": text, "source": "web", "url": "http://a"},
        lambda text: {"title": "A title", "body": text},
        lambda text: {"text": text[:12], "lang": "en", "score": 3},
    ],
    ids=["more columns", "title and body", "short texts"],
)
def test_a_table_beside_a_language_model_is_of_texts(rows: Any, model: str) -> None:
    lines("train.jsonl", [rows(text) for text in texts(30)])
    lines("test.jsonl", [rows(text) for text in texts(30, 1)])
    found = question(model, "train.jsonl", "test.jsonl")
    assert found.question == "Which documents were in the training text of the model?"
    assert "30 members and 30 non-members, one a document" in found.remarks
    lines("numbers.jsonl", [{"a": 1.5, "b": 2.5, "c": place} for place in range(30)])
    with pytest.raises(UserError, match=r"which column is the text\? call it text; the columns are a, b, c"):
        question(model, "numbers.jsonl", "numbers.jsonl")


def test_chats_are_rendered_by_the_models_template(model: str) -> None:
    for path, start in (("train.jsonl", 0), ("test.jsonl", 1)):
        lines(path, [
            {"messages": [{"role": "user", "content": "Code?"}, {"role": "assistant", "content": text}]}
            for text in texts(24, start)
        ])  # fmt: skip
    thing = looked_at("train.jsonl")
    assert (thing.kind, thing.said) == ("texts", "24 chats in column messages")
    found = question(model, "train.jsonl", "test.jsonl")
    first = json.loads(found.files["documents.jsonl"].decode().splitlines()[0])["text"]
    assert first == f"user: Code?\nassistant: {texts(1)[0]}"


def test_files_of_text_are_cut_where_their_writers_did(model: str) -> None:
    Path("a.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts(30)).encode())
    Path("b.txt").write_text("\n\n".join(texts(30, 1)))
    one, other = (read_texts(looked_at(path)) for path in ("a.txt", "b.txt"))
    assert (len(one.texts), one.unit) == (30, "line")
    assert (len(other.texts), other.unit) == (30, "passage between blank lines")
    assert str(one.texts[0]).startswith("call")
    Path("c.txt").write_text("\n\n".join([*texts(10, 1), *texts(20, 3)]))
    found = question(model, "b.txt", "c.txt")
    assert "20 documents are on both sides, and are left out" in found.remarks
    assert "20 members and 20 non-members, one a passage between blank lines" in found.remarks
    with pytest.raises(UserError, match=r"a.txt is named twice"):
        question(model, "a.txt", "a.txt")
    with pytest.raises(UserError, match=r"3 files of texts; bring one with a column member"):
        question(model, "a.txt", "b.txt", "c.txt")


def test_folders_of_text_have_sides_and_no_hidden_files(model: str) -> None:
    for part in ("train", "test"):
        Path("docs", part, ".git").mkdir(parents=True)
        Path("docs", part, ".git", "config").write_text("hidden")
        for number, text in enumerate(texts(12, len(part))):
            Path("docs", part, f"{number}.txt").write_text(text)
    assert looked_at("docs").said == "24 files of text in test and train"
    found = question(model, "docs")
    assert "12 members and 12 non-members, one a file" in found.remarks
    Path("docs", "train", "x.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"docs/train/x.txt is no text in UTF-8"):
        question(model, "docs")
    Path("docs", "train", "x.txt").unlink()
    lines("docs/train/rows.jsonl", [{"text": "a"}])
    with pytest.raises(UserError, match=r"docs holds rows.jsonl, a table of texts: name the file itself"):
        question(model, "docs")


def test_models_that_cannot_be_asked_about_texts_are_named() -> None:
    Path("bert").mkdir()
    Path("bert", "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    Path("a.txt").write_text("\n\n".join(texts(3)))
    Path("b.txt").write_text("\n\n".join(texts(3, 1)))
    with pytest.raises(UserError, match=r"bert is a model of transformers \(BertForMaskedLM\): of models of texts, causal"):
        question("bert", "a.txt", "b.txt")
    Path("mail.mbox").write_text("From a\n\nb")
    with pytest.raises(UserError, match="mail.mbox is mail, at which look does not look"):
        looked_at("mail.mbox")


def test_an_adapter_is_audited_with_its_base_model(model: str) -> None:
    Path("lora").mkdir()
    Path("lora", "adapter_config.json").write_text("{}")
    for path, start in (("train.txt", 0), ("test.txt", 1)):
        Path(path).write_text("\n\n".join(texts(24, start)))
    found = question(model, "lora", "train.txt", "test.txt")
    assert found.quick["target"]["trained"] == {"kind": "huggingface", "path": model, "adapter": "lora"}
    assert found.quick["score"]["headline"] == "ratio"
    with pytest.raises(UserError, match="lora is an adapter: bring the folder of the one model"):
        question("lora", "train.txt", "test.txt")


def test_nothing_is_left_of_a_mistake(model: str) -> None:
    Path("train.txt").write_text("\n\n".join(texts(3)))
    Path("test.txt").write_text("\n\n".join(texts(3, 1)))
    before = {path.name for path in Path().iterdir()}
    with pytest.raises(UserError):
        memlib.look(model, "train.txt", "test.txt", drawn="fixed")
    assert {path.name for path in Path().iterdir()} - before <= {"memlib-store"}


# -- embeddings ---------------------------------------------------------------------------------------------


def test_embeddings_replace_the_training_of_the_exported_recipe() -> None:
    Path("exported").mkdir()
    for name in ("images.csv", "sets.csv"):
        Path("exported", name).write_text("id\n")
    Path("exported", "recipe.yaml").write_text("audit: deja_vu\ntraining: {epochs: 2}\nmodel: {width: 8}\ndata: {}\n")
    for name in ("a", "b"):
        pq.write_table(pa.table({"id": ["x"], "last": [[0.5, 1.5]]}), f"{name}.parquet")
    found = question("exported", "a.parquet", "b.parquet")
    assert found.quick.keys() == {"audit", "data", "encoders"}
