"""Everything that memlib reads, each with good files to damage and a function that reads them as a run would."""

import contextlib
import gzip
import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from PIL import Image
from small_models import save_model, save_open_clip

from flows.cli.app import main
from memlib.data.canaries.features import build_feature
from memlib.data.datasets import open_source
from memlib.data.groups import groups_digest, groups_of
from memlib.data.id_files import said_of_examples
from memlib.data.images.shards import write_shard
from memlib.data.text.corpus import build_corpus, read_secrets
from memlib.data.text.formats import Format
from memlib.data.text.sources import open_text
from memlib.errors import CorruptArtifact, UserError
from memlib.models.causal import FolderTokenizer, load_model
from memlib.models.external.classifiers import load_external
from memlib.models.external.pairs import ExternalPairEncoder
from memlib.observe.encoders import given_layers
from memlib.observe.supplied_outputs import read_outputs
from memlib.runs.garbage import committed
from memlib.runs.index import run_names
from memlib.runs.requests import FOLDER, unfinished
from memlib.specs import (
    AnnotatedFolderSource,
    CsvSource,
    DataSpec,
    ExternalClassifierSpec,
    GroupSpec,
    ImageFolderSource,
    JsonLinesSource,
    MailSource,
    NpzSource,
    OutputsSpec,
    ParquetSource,
    PictureFeature,
    SecretsSpec,
    SourceSpec,
    TableSource,
    TextFileSource,
    TextParquetSource,
    TextSource,
    TextSpec,
)
from memlib.specs.encoders import OpenClipEncoder, SuppliedEmbeddings
from memlib.store import Ref, Store

SECRET = "the pin is {d4}"


@dataclass(frozen=True)
class Reader:
    """A kind of file, and the code that reads it.

    Attributes:
        name: what is read, as the report shows it.
        kind: the format, see `mutants.KINDS`.
        files: good files.
        read: takes the place of a good file, and its damaged version; raises whatever memlib raises.
        share: how often it is read, relative to the others.
    """

    name: str
    kind: str
    files: Sequence[bytes]
    read: Callable[[int, bytes], object]
    share: float = 1.0


def readers(folder: Path, store: Path, recipes: Sequence[Path]) -> list[Reader]:
    """Return all readers.

    Args:
        folder: where the readers may write.
        store: holds two finished runs of one audit and the note of an unfinished one; files in it are replaced and restored.
        recipes: some valid recipes.
    """
    return [
        *of_data(folder / "data"),
        *of_models(folder / "models"),
        *of_image_text(folder / "image_text"),
        *of_recipes(folder / "recipes", recipes),
        *of_store(store),
    ]


def png(value: int = 0, side: int = 8, mode: str = "RGB", form: str = "PNG") -> bytes:
    """Return an encoded picture with random content."""
    pixels = np.random.default_rng(value).integers(0, 255, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form)
    return out.getvalue()


def dicom(pixels: Any, *, window: bool = False) -> bytes:
    """Return an X-ray with 12 bits per pixel."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["fuzz"])
    file = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    (file.Rows, file.Columns), file.SamplesPerPixel, file.PixelRepresentation = pixels.shape, 1, 0
    file.PhotometricInterpretation = "MONOCHROME1" if window else "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit = 16, 12, 11
    if window:
        file.WindowCenter, file.WindowWidth, file.RescaleSlope, file.RescaleIntercept = 2000, 3000, 1, 0
    file.PixelData = pixels.tobytes()
    out = io.BytesIO()
    file.save_as(out, enforce_file_format=True)
    return out.getvalue()


def parquet(**columns: Any) -> bytes:
    """Return a file with these columns."""
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def of_data(folder: Path) -> Iterator[Reader]:
    stored = DataSpec(source=ImageFolderSource(kind="image_folder", path="."), image_size=8)

    def whole(source: SourceSpec) -> None:
        """Read a source as the stage `decode` does."""
        opened = open_source(source)
        opened.content_digest()
        with _fresh(folder / "stored") as out:
            write_shard(opened, stored, out, threads=1)

    def of(path: Path, source: SourceSpec) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            path.write_bytes(content)
            whole(source)

        return read

    photos = folder / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        (photos / name / "1.png").write_bytes(png())
    forms = [("RGB", "PNG"), ("P", "PNG"), ("I;16", "PNG"), ("LA", "PNG"), ("RGB", "JPEG"), ("CMYK", "JPEG"), ("1", "BMP"),
             ("P", "GIF"), ("RGB", "TIFF"), ("RGBA", "WEBP"), ("RGB", "PPM")]  # fmt: skip
    pictures = [png(i, 8, mode.replace("I;16", "L"), form) for i, (mode, form) in enumerate(forms)]
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 60
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    for form, options in (("PNG", {}), ("TIFF", {}), ("JPEG", {"exif": exif})):
        out = io.BytesIO()
        Image.fromarray(deep.astype(np.uint8) if form == "JPEG" else deep).save(out, form, **options)
        pictures.append(out.getvalue())
    yield Reader("image of a data set", "image", pictures, of(photos / "cat/1.png", _folder(photos)), 2)
    yield Reader("image, DICOM", "bits", [dicom(deep), dicom(deep, window=True)], of(photos / "cat/1.png", _folder(photos)))

    tiny = folder / "tiny"
    shutil.copytree(photos, tiny)
    for name in ("cat", "dog"):
        (tiny / name / f"{name}_boxes.txt").write_text("1.png\t1\t1\t6\t6\n")
    boxes = of(tiny / "cat/cat_boxes.txt", _folder(tiny, boxes="tiny_imagenet"))
    yield Reader("boxes, TSV", "text", [b"1.png\t1\t1\t6\t6\n2.png\t0\t0\t3\t3\n"], boxes)

    voc = folder / "voc"
    shutil.copytree(photos, voc)
    (voc / "dog/1.png").rename(voc / "dog/2.png")
    box = "<object><name>cat</name><bndbox>{}</bndbox></object>".format(
        "".join(f"<{tag}>{value}</{tag}>" for tag, value in (("xmin", 1), ("ymin", 2), ("xmax", 6), ("ymax", 7)))
    )
    annotation = f"<annotation><size><width>8</width></size>{box * 2}</annotation>".encode()
    yield Reader("boxes, VOC XML", "xml", [annotation], of(voc / "cat/1.xml", _folder(voc, boxes="voc")))

    size = '"width": 8, "height": 8'
    listed = f'{{"id": 1, "file_name": "cat/1.png", {size}}}, {{"id": 2, "file_name": "dog/2.png", {size}}}'
    items = (
        '{"image_id": 1, "category_id": 3, "bbox": [1, 1, 4.5, 4]}, {"image_id": 2, "category_id": 7, "bbox": [0, 0, 3, 3]}'
    )
    kinds = '{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}'
    coco = f'{{"images": [{listed}], "annotations": [{items}], "categories": [{kinds}]}}'.encode()
    points = '{"label": "cat", "points": [[1, 1], [6, 6]], "shape_type": "rectangle"}'
    labelme = f'{{"shapes": [{points}], "imageWidth": 8, "imageHeight": 8}}'.encode()
    forms = (("coco", "all.json", coco), ("labelme", "cat/1.json", labelme), ("yolo", "cat/1.txt", b"0 .5 .5 .25 .25\n" * 2))
    for form, name, content in forms:
        shutil.copytree(voc, folder / form, ignore=shutil.ignore_patterns("*.xml"))
        annotated = AnnotatedFolderSource(kind="annotated_folder", path=str(folder / form), boxes=form)
        kind = "text" if form == "yolo" else "json"
        yield Reader(f"boxes, {form}", kind, [content], of(folder / form / name, annotated), 0.5)

    cells = b"age,job,outcome\n" + b"31,nurse,well\n54,,ill\n29,clerk,well\n61,?,ill\n"
    points_ = TableSource(kind="table", path=str(folder / "cells.csv"), label_column="outcome")
    yield Reader("a table, CSV", "csv", [cells], of(folder / "cells.csv", points_), 0.5)
    columns = parquet(age=[31, None, 2.5], job=["a", "b", None], outcome=[1, 0, 1])
    points_ = points_.model_copy(update={"path": str(folder / "cells.parquet")})
    yield Reader("a table, Parquet", "parquet", [columns], of(folder / "cells.parquet", points_), 0.5)

    table = b"image,label,view\n" + b"".join(b"%s/1.png,%s,front\n" % (n, n) for n in (b"cat", b"dog")) * 1
    source = CsvSource(
        kind="csv", path=str(folder / "labels.csv"), root=str(photos), image_column="image", label_column="label",
        classes={"cat": ("cat",), "dog": ("dog", "")}, where={"view": "front"},
    )  # fmt: skip
    pristine = png()

    def labels(_: int, content: bytes) -> None:
        (photos / "cat/1.png").write_bytes(pristine)
        (folder / "labels.csv").write_bytes(content)
        whole(source)

    yield Reader("labels, CSV", "csv", [table, table.replace(b",front", b',"front"')], labels)

    faces = [{"bytes": png(i), "path": f"{i}.png"} for i in range(4)]
    rows = parquet(image=faces, label=[0, 1, 0, 1], name=list("abcd"), boxes=[[[1.0, 1.0, 3.0, 3.0]]] * 4)
    plain = parquet(image=[face["bytes"] for face in faces], label=list("xyxy"), name=list("abcd"), boxes=[[]] * 4)
    source_ = ParquetSource(kind="parquet", path=str(folder / "rows.parquet"), id_column="name", boxes_column="boxes")
    yield Reader("images, Parquet", "parquet", [rows, plain], of(folder / "rows.parquet", source_), 2)

    arrays = io.BytesIO()
    np.savez(arrays, train_images=np.zeros((4, 8, 8), np.uint8), train_labels=np.array([0, 1, 0, 1]))
    colour = io.BytesIO()
    np.savez_compressed(colour, train_images=np.ones((2, 8, 8, 3), np.uint8), train_labels=np.array([[0], [1]]))
    npz = of(folder / "a.npz", NpzSource(kind="npz", path=str(folder / "a.npz")))
    yield Reader("images, npz", "npz", [arrays.getvalue(), colour.getvalue()], npz, 2)

    entries = [{"example_id": f"{name}/1.png", "unreadable": None, "row": i} for i, name in enumerate(("cat", "dog"))]

    def groups(suffix: str) -> Callable[[int, bytes], object]:
        path = folder / f"groups.{suffix}"
        spec = GroupSpec(path=str(path))

        def read(_: int, content: bytes) -> None:
            path.write_bytes(content)
            groups_digest(spec)
            groups_of(entries, None, spec)

        return read

    people = b"example_id,group\ncat/1.png,ann\ndog/1.png,ben\n"
    yield Reader("groups, CSV", "csv", [people], groups("csv"), 0.5)
    named = parquet(example_id=["cat/1.png", "dog/1.png"], group=["ann", "ben"])
    yield Reader("groups, Parquet", "parquet", [named], groups("parquet"), 0.5)

    members = pa.table({"example_id": list("abcd"), "label": [0, 1, 0, 1], "class_name": ["x", "y", "x", "y"]})
    given = OutputsSpec(path=str(folder / "outputs.parquet"), label_column="label")

    def outputs(_: int, content: bytes) -> None:
        (folder / "outputs.parquet").write_bytes(content)
        read_outputs(given, members, 2)

    scores = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]]
    answers = parquet(example_id=list("abcd"), scores=scores, label=[0, 1, 0, 1])
    yield Reader("a model's outputs, Parquet", "parquet", [answers], outputs)

    shown = SuppliedEmbeddings(kind="embeddings", path=str(folder / "embeddings.parquet"), id_column="id")

    def embeddings(_: int, content: bytes) -> None:
        (folder / "embeddings.parquet").write_bytes(content)
        given_layers(shown, ["whole/0000000", "whole/0000002"], ["v"])

    names = [f"whole/{row:07d}" for row in range(4)]
    lists = parquet(id=names, v=scores)
    fixed = parquet(id=pa.array(names).dictionary_encode(), v=pa.array(scores, pa.list_(pa.float32(), 2)), w=scores)
    yield Reader("an encoder's embeddings, Parquet", "parquet", [lists, fixed], embeddings)

    numbered = parquet(example_id=[1, 2, 3, 4], set=["A", "B", "A", None])
    sets = folder / "sets.parquet"

    def of_examples(_: int, content: bytes) -> None:
        sets.write_bytes(content)
        said_of_examples(str(sets), "set", setting="split.sets.path")

    yield Reader("ids, Parquet", "parquet", [numbered, parquet(example_id=names, set=list("AABB"))], of_examples, 0.5)

    feature = PictureFeature(kind="picture", path=str(folder / "f.png"), mask=str(folder / "m.png"))

    def picture(place: int, content: bytes) -> None:
        (folder / "f.png").write_bytes(content if place == 0 else pictures[3])
        (folder / "m.png").write_bytes(content if place == 1 else png(2, 8, "L"))
        build_feature(feature, (16, 16, 3))

    yield Reader("a feature's picture and mask", "image", [pictures[3], png(2, 8, "L")], picture)

    text = ("it was the best of times, it was the worst of times\n" * 60).encode()
    secrets = SecretsSpec.model_validate({"format": SECRET, "insertions": [1, 2], "never": 5})
    spec = TextSpec(source=TextFileSource(kind="text", path="x"), window=20)

    def corpus(name: str) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            (folder / name).write_bytes(content)
            stream = open_text(TextFileSource(kind="text", path=str(folder / name)))
            build_corpus(stream, spec, secrets, folder / "windows.npy", secret=b"s" * 32)

        return read

    yield Reader("a text", "text", [text], corpus("text.txt"), 0.5)
    yield Reader("a text, gz", "gz", [gzip.compress(text)], corpus("text.gz"), 0.5)

    def documents(_: int, content: bytes) -> None:
        (folder / "texts.parquet").write_bytes(content)
        stream = open_text(TextParquetSource(kind="text_parquet", path=str(folder / "texts.parquet")))
        build_corpus(stream, spec, secrets, folder / "windows.npy", secret=b"s" * 32)

    lines = parquet(text=text.decode().splitlines(), other=list(range(60)))
    yield Reader("a text, Parquet", "parquet", [lines], documents, 0.5)

    def records(source: TextSource) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            Path(str(getattr(source, "path", ""))).write_bytes(content)
            build_corpus(open_text(source), spec, secrets, folder / "windows.npy", secret=b"s" * 32)

        return read

    told = b"".join(b'{"a": {"text": "%s"}}\n' % line for line in text.splitlines())
    of_lines = JsonLinesSource(kind="jsonl", path=str(folder / "texts.jsonl"), field="a.text")
    yield Reader("a text, JSON lines", "text", [told], records(of_lines), 0.5)
    mail = b"From a@b Mon Jan  2 10:00:00 2023\nFrom: =?utf-8?q?J=C3=B6rg?= <a@b>\nSubject: hi\nContent-Type: %s\n\n%s\n\n"
    parts = b"--x\nContent-Type: text/html\n\n<p>a &amp; b\n--x\nContent-Disposition: attachment\n\nAA==\n--x--\n"
    box_ = [
        mail % (b"text/plain; charset=latin-1", text[:3000]),
        mail % (b'multipart/mixed; boundary="x"', parts + text[:200]),
    ]
    yield Reader(
        "a text, mail", "text", [b"".join(box_)], records(MailSource(kind="mail", path=str(folder / "box.mbox"))), 0.5
    )

    def known(_: int, content: bytes) -> None:
        (folder / "secrets.txt").write_bytes(content)
        read_secrets(str(folder / "secrets.txt"), Format(SECRET, {}), "character")

    yield Reader("secrets", "text", [b"the pin is 1234\t3\nthe pin is 9999\n"], known, 0.5)


def _folder(path: Path, **options: Any) -> ImageFolderSource:
    return ImageFolderSource(kind="image_folder", path=str(path), **options)


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder


def small_net() -> torch.nn.Module:
    """Build a network; a factory as users write one."""
    return torch.nn.Linear(3, 2)


def save_adapter(folder: Path) -> Path:
    """Save a LoRA adapter of the small model, as peft does: factors of two layers, and a layer that is saved as a whole."""
    folder.mkdir(parents=True)
    head, block = "base_model.model.", "transformer.h.0."
    weights = {f"{head}{block}ln_1.weight": torch.full((16,), 1.5)}
    for layer, outputs in (("attn.c_attn", 48), ("attn.c_proj", 16)):
        weights[f"{head}{block}{layer}.lora_A.weight"] = torch.full((2, 16), 0.1)
        weights[f"{head}{block}{layer}.lora_B.weight"] = torch.full((outputs, 2), 0.1)
    safetensors.torch.save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 6, "bias": "none", "use_rslora": True,
        "rank_pattern": {"attn.c_proj": 2, "^transformer.h.0.attn.c_attn": 2}, "alpha_pattern": {"c_proj": 3.0},
        "modules_to_save": ["ln_1"], "target_modules": ["c_attn", "c_proj"], "init_lora_weights": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def of_models(folder: Path) -> Iterator[Reader]:
    folder.mkdir(parents=True)
    state = small_net().state_dict()
    pickled = io.BytesIO()
    torch.save(state, pickled)
    spec = ExternalClassifierSpec(model=f"{__name__}:small_net", version="1")

    def weights(name: str) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            (folder / name).write_bytes(content)
            load_external(spec, str(folder / name))

        return read

    yield Reader("weights, safetensors", "safetensors", [safetensors.torch.save(state)], weights("w.safetensors"), 0.5)
    yield Reader("weights, .pt", "pt", [pickled.getvalue()], weights("w.pt"), 0.5)
    whole = save_model(folder / "hugging")
    changed = folder / "changed"

    def model(name: str) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            shutil.rmtree(changed, ignore_errors=True)
            shutil.copytree(whole, changed)
            (changed / name).write_bytes(content)
            FolderTokenizer(str(changed)).encode(["my pin is 1123", "\u00e9\U0001f600 " * 20])
            load_model(str(changed))

        return read

    for name, kind, share in (("config.json", "json", 0.5), ("tokenizer.json", "json", 0.5), ("tokenizer_config.json", "json", 0.3),
                              ("generation_config.json", "json", 0.2), ("model.safetensors", "safetensors", 0.3)):  # fmt: skip
        yield Reader(f"a Hugging Face folder, {name}", kind, [(whole / name).read_bytes()], model(name), share)
    lora, damaged = save_adapter(folder / "lora"), folder / "damaged"

    def adapter(name: str) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(lora, damaged)
            (damaged / name).write_bytes(content)
            load_model(str(whole), str(damaged))

        return read

    for name, kind in (("adapter_config.json", "json"), ("adapter_model.safetensors", "safetensors")):
        yield Reader(f"a LoRA adapter, {name}", kind, [(lora / name).read_bytes()], adapter(name), 0.3)


def of_image_text(folder: Path) -> Iterator[Reader]:
    """Yield readers of a model of open_clip."""
    folder.mkdir(parents=True)
    whole, damaged = folder / "whole", folder / "damaged"
    save_open_clip(whole, 0)

    def model(name: str) -> Callable[[int, bytes], object]:
        def read(_: int, content: bytes) -> None:
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(whole, damaged)
            (damaged / name).write_bytes(content)
            found = ExternalPairEncoder(OpenClipEncoder(kind="open_clip", path=str(damaged)), torch.device("cpu"))
            with torch.inference_mode():
                found.images(torch.zeros(2, 3, found.side, found.side))
                found.texts(["a dog", "\u00e9\U0001f600 " * 20], torch.zeros(2, 1))

        return read

    for name, kind in (("open_clip_config.json", "json"), ("open_clip_model.safetensors", "safetensors")):
        yield Reader(f"a folder of open_clip, {name}", kind, [(whole / name).read_bytes()], model(name), 0.2)


def of_recipes(folder: Path, recipes: Sequence[Path]) -> Iterator[Reader]:
    folder.mkdir(parents=True)
    contents = [path.read_bytes() for path in recipes]
    audits = [
        next(line.split(b":")[1].strip() for line in text.splitlines() if line.startswith(b"audit:")) for text in contents
    ]

    def read(place: int, content: bytes) -> None:
        (folder / "r.yaml").write_bytes(content)
        audit = audits[place].decode().replace("_", "-")
        command("plan", audit, "--recipe", str(folder / "r.yaml"), "--store", str(folder / "none"))

    yield Reader("recipes, YAML", "yaml", contents, read, 3)


def of_store(root: Path) -> Iterator[Reader]:
    store = Store(str(root))
    first, second = sorted(run_names(store))[:2]
    (note,) = (note.run for note in unfinished(store))
    commands: dict[str, tuple[tuple[str, ...], ...]] = {
        "any": (
            ("runs",),
            ("show", first),
            ("status", first),
            ("diff", first, second),
            ("gc", "--days", "0"),
            ("verify", first),
        ),
        "run": (("runs",), ("show", first), ("diff", second, first), ("verify", first), ("gc", "--keep", first), ("verify",)),
        "note": (("runs",), ("status", note), ("gc",)),
    }
    before = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def reading(paths: Sequence[Path], which: str, *, checked: bool) -> Callable[[int, bytes], object]:
        """Return a function that replaces a file by a mutant, runs a command that reads it, and restores the file."""

        def read(place: int, content: bytes) -> None:
            path = paths[place]
            chosen = commands[which][zlib.crc32(content) % len(commands[which])]
            path.write_bytes(content)
            try:
                command(*chosen, "--store", str(root))
                if checked and chosen[0] == "verify" and first in str(path) and not same(content, before[path]):
                    raise AssertionError(f"verify accepts a changed {path.name}")
            finally:
                _put_back(root, path, before)

        return read

    groups: dict[str, tuple[str, str, str, bool, float]] = {
        "memlib-store.json": ("the store's marker", "json", "any", False, 0.5),
        "runs/index.json": ("the index of runs", "json", "any", False, 1),
        "index/*.json": ("the index of runs", "json", "any", False, 1),
        "runs/*/manifest.json": ("manifests of runs", "json", "run", False, 4),
        "runs/*/*.html": ("pages of runs", "text", "run", True, 0.5),
        f"{FOLDER}/*.json": ("notes of runs under way", "json", "note", False, 2),
        "status/*.json": ("states of runs", "json", "note", False, 2),
        "results/**/*.parquet": ("published tables", "parquet", "run", True, 1),
    }
    for pattern, (name, kind, which, checked, share) in groups.items():
        if paths := [path for path in sorted(root.glob(pattern)) if path.is_file()]:
            yield Reader(name, kind, [before[path] for path in paths], reading(paths, which, checked=checked), share)
    manifests = sorted(root.glob("artifacts/**/manifest.json"))
    yield Reader(
        "manifests of artifacts", "json", [before[p] for p in manifests], reading(manifests, "any", checked=False), 4
    )
    kinds = {".parquet": "parquet", ".npy": "npy", ".npz": "npz", ".json": "json", ".safetensors": "safetensors"}
    files = [(ref, name) for ref in committed(store) for name in store.artifacts.manifest(ref).files]
    for suffix, kind in kinds.items():
        of_kind = [(ref, name) for ref, name in files if name.endswith(suffix)]
        if of_kind:
            yield Reader(f"artifacts, {kind}", kind, *_artifacts(root, of_kind, before), 0.5)


def _artifacts(
    root: Path, files: Sequence[tuple[Ref, str]], before: dict[Path, bytes]
) -> tuple[list[bytes], Callable[[int, bytes], object]]:
    """Return files of artifacts and a reader of them: every change must be noticed before anything reads the file."""
    store = Store(str(root))
    paths = [Path(store.artifacts.local_path(ref, name)) for ref, name in files]

    def read(place: int, content: bytes) -> None:
        paths[place].write_bytes(content)
        try:
            Store(str(root)).artifacts.local_path(*files[place])
        except CorruptArtifact:
            raise
        else:
            assert content == before[paths[place]], "a changed artifact is accepted as intact"
        finally:
            _put_back(root, paths[place], before)

    return [before[path] for path in paths], read


def same(content: bytes, other: bytes) -> bool:
    """Return whether two files say the same: equal bytes or, in Parquet, equal tables."""
    if content == other or not other.startswith(b"PAR1"):
        return content == other
    try:
        return bool(pq.read_table(io.BytesIO(content)).equals(pq.read_table(io.BytesIO(other))))
    except (pa.ArrowException, OSError, ValueError):
        return False


def _put_back(root: Path, path: Path, before: dict[Path, bytes]) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(before[path])
    index = root / "index/runs.json"
    if index in before:
        index.write_bytes(before[index])


def command(*arguments: str) -> None:
    """Run the command line in this process; check that a refusal is explained in a few lines.

    Raises:
        UserError: with the lines, if it ends with another status than 0.
    """
    out, errors = io.StringIO(), io.StringIO()
    environment = dict(os.environ)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = main(arguments)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    message = errors.getvalue()
    check_words(message)
    if any(ord(character) < 32 and character not in "\n\t" for character in out.getvalue()):
        raise AssertionError("control characters reach the terminal")
    if status != 0:
        if not message.startswith("memlib: "):
            raise AssertionError(f"status {status} without a one-line message")
        raise UserError(message)


def check_words(said: str) -> None:
    """Refuse messages that are too long to read, and characters that a terminal would obey."""
    if len(said) > 4000 or said.count("\n") > 12:
        raise AssertionError(f"{len(said)} characters in {said.count(chr(10))} lines: {said[:200]}")
    if any(ord(character) < 32 and character not in "\n\t" for character in said):
        raise AssertionError(f"control characters in {said[:200]!r}")
