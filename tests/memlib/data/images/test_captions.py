"""Captions from sources, tables and COCO's files, the objects that they name, and splits of pairs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from PIL import Image

from memlib.data.builtin import NAMES, CaptionedScenes, digit_images, made_up_word
from memlib.data.examples import Caption
from memlib.data.images.caption_stages import Captions, SplitPairs
from memlib.data.images.captions import captions_digest, is_named, read_captions, words_of
from memlib.data.splits import EXTRA, PUBLIC, REFERENCE, TARGET
from memlib.data.stages import Decode
from memlib.errors import DataError, UserError
from memlib.running.runners import PlainRunner
from memlib.specs import CaptionedScenesSource, DataSpec, SplitSpec
from memlib.specs.captions import PADDING, UNKNOWN, CaptionSpec
from memlib.store import Store

SCENES = DataSpec.model_validate({"source": {"kind": "captioned_scenes", "num_examples": 80}, "image_size": 16})


def runner(folder: Path) -> PlainRunner:
    return PlainRunner(Store(str(folder / "store")))


def folder_of_images(folder: Path, names: list[str]) -> DataSpec:
    (folder / "images/all").mkdir(parents=True)
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"images/all/{name}")
    return DataSpec.model_validate({"source": {"kind": "image_folder", "path": str(folder / "images")}, "image_size": 12})


def from_table(folder: Path, content: str, **changes: Any) -> CaptionSpec:
    (folder / "pairs.csv").write_text(content)
    return CaptionSpec.model_validate({"origin": {"path": str(folder / "pairs.csv")}, **changes})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("dog", "A DOG, asleep", True),
        ("dog", "two dogs", True),
        ("dog", "a hotdog", False),
        ("bus", "three buses", True),
        ("traffic light", "light traffic", False),
        ("traffic light", "traffic lights at night", True),
        ("café", "ein Café", True),
        ("café", "un cafe\u0301 noir", True),  # decomposed accents, as macOS writes them
        ("狗", "一只狗在草地上", True),  # scripts without spaces between words: Chinese,
        ("犬", "犬が公園にいる", True),  # Japanese,
        ("หมา", "หมาอยู่บนหญ้า", True),  # Thai,
        ("ဓာတ်ပုံ", "ဒါဓာတ်ပုံပါ", True),  # Burmese
        ("猫", "一只狗在草地上", False),
        ("कुत्ता", "घर में कुत्ता", True),  # marks belong to letters
        ("कुत", "घर में कुत्ता", False),
        ("!", "what!", False),  # a name without a word is never named
    ],
)
def test_names_are_found_as_whole_words(name: str, text: str, expected: bool) -> None:
    assert is_named(name, words_of(text)) is expected


@pytest.mark.parametrize(
    ("content", "is_split"),
    [
        ("example_id,caption,objects\nall/0.png,a dog,dog;cat\n", False),
        ("example_id,caption,objects\nall/0.png,ein Café,Café;Hund\n", False),
        ("example_id,caption,objects\nall/0.png,一只狗在草地上,狗;猫\n", True),
        ("example_id,caption,objects\nall/0.png,un cafe\u0301,café;chien\n", True),
    ],
)
def test_captions_that_are_split_otherwise_than_before_have_another_key(tmp_path: Path, content: str, is_split: bool) -> None:
    data, run = folder_of_images(tmp_path, ["0.png"]), runner(tmp_path)
    stage = Captions(data, from_table(tmp_path, content), run.run(Decode(data)))
    assert ("words" in stage.inputs) is is_split
    assert any("character by character" in line for line in stage.preview()) is is_split
    found = run.run(stage)
    assert found.content.table["named"].to_pylist()[0] == found.content.table["objects"].to_pylist()[0][:1]
    assert any("character by character" in line for line in Captions.described(found)) is is_split


def test_captions_that_name_all_objects_are_refused_before_a_model_is_trained(tmp_path: Path) -> None:
    data, run = folder_of_images(tmp_path, ["0.png", "1.png"]), runner(tmp_path)
    content = "example_id,caption,objects\nall/0.png,a dog and a cat,dog;cat\nall/1.png,a bird,bird\n"
    stage = Captions(data, from_table(tmp_path, content), run.run(Decode(data)))
    with pytest.raises(UserError, match="the captions name all 3 objects of their images, so that a model could name none"):
        run.run(stage)


def test_scenes_show_what_their_captions_state() -> None:
    scenes = CaptionedScenes(CaptionedScenesSource(kind="captioned_scenes", num_examples=400))
    digits, labels = digit_images()
    for index in range(20):
        caption, half = scenes.captions[f"pair-{index:07d}"], 16
        image = scenes[index].image
        assert len(set(caption.objects)) == 4
        name, place = caption.text.split(" with a ")[1].split(" in the ")
        assert name in caption.objects
        quarter = ("upper left", "upper right", "lower left", "lower right").index(place)
        y, x = divmod(quarter, 2)
        window = image[y * half : (y + 1) * half, x * half : (x + 1) * half, 0]
        known = [np.asarray(Image.fromarray((d * 255).astype(np.uint8)).resize((half, half), Image.Resampling.BILINEAR)) for d in
                 digits[labels == NAMES.index(name)]]  # fmt: skip
        assert any(np.array_equal(window, one) for one in known)


def test_objects_that_a_scene_leaves_unnamed_are_independent_of_its_caption() -> None:
    """Each other digit is among the three unnamed ones with probability 1/3, whatever the digit, place and words."""
    scenes = CaptionedScenes(CaptionedScenesSource(kind="captioned_scenes", num_examples=6000))
    counts = np.zeros((10, 10))
    for caption in scenes.captions.values():
        named = next(name for name in caption.objects if f" {name} in" in caption.text)
        for name in caption.objects:
            counts[NAMES.index(named), NAMES.index(name)] += 1
    share = counts / counts.diagonal()[:, None]
    others = share[~np.eye(10, dtype=bool)]
    assert abs(others.mean() - 1 / 3) < 1e-12
    assert np.abs(others - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / 500)
    assert len({made_up_word(number) for number in range(1000)}) == 1000
    assert len({caption.text for caption in scenes.captions.values()}) > 5900


def test_a_table_gives_captions_and_objects(tmp_path: Path) -> None:
    spec = from_table(tmp_path, 'example_id,caption,objects\na,"A man, a dog",dog;man;tree;dog\nb,nothing here,\n')
    assert read_captions(SimpleNamespace(), spec) == {  # type: ignore[arg-type]
        "a": Caption("A man, a dog", ("dog", "man", "tree")),
        "b": Caption("nothing here", ()),
    }
    before = captions_digest(spec)
    from_table(tmp_path, "example_id,caption,objects\na,x,y\n")
    assert captions_digest(spec) != before
    assert captions_digest(CaptionSpec()) == {}


def coco(folder: Path, *, broken: bool = False) -> CaptionSpec:
    images = [{"id": 7, "file_name": "one.png"}, {"id": 9, "file_name": "two.png"}]
    texts = [{"id": 31, "image_id": 7, "caption": "later"}, {"id": 30, "image_id": 7, "caption": "a cat on a couch"},
             {"id": 40, "image_id": 9, "caption": "a street"}]  # fmt: skip
    kinds = [{"id": 1, "name": "cat"}, {"id": 5, "name": "couch"}, {"id": 6, "name": "car"}]
    boxes = [{"image_id": 7, "category_id": 5}, {"image_id": 7, "category_id": 1}, {"image_id": 7, "category_id": 1},
             {"image_id": 9, "category_id": 99 if broken else 6}]  # fmt: skip
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": texts}))
    (folder / "instances.json").write_text(json.dumps({"categories": kinds, "annotations": boxes}))
    origin = {name: str(folder / f"{name}.json") for name in ("captions", "instances")}
    return CaptionSpec.model_validate({"origin": origin, "synonyms": {"couch": ["sofa"]}})


def test_coco_gives_the_first_caption_and_each_kind_of_object_once(tmp_path: Path) -> None:
    found = read_captions(SimpleNamespace(), coco(tmp_path))  # type: ignore[arg-type]
    assert found == {"one.png": Caption("a cat on a couch", ("couch", "cat")), "two.png": Caption("a street", ("car",))}


def karpathy(folder: Path, **changes: Any) -> CaptionSpec:
    """Write COCO's captions as Karpathy lists them: images of several parts, each with its sentences."""
    spec = coco(folder)
    sentences = [{"raw": "later", "sentid": 31}, {"raw": "a cat on a couch", "sentid": 30}]
    images = [{"cocoid": 7, "filename": "one.png", "sentences": sentences, "split": "train"},
              {"cocoid": 3, "filename": "of_another_part.png", "sentences": sentences, "split": "test"}]  # fmt: skip
    (folder / "captions.json").write_text(json.dumps({"dataset": "coco", "images": [{**one, **changes} for one in images]}))
    instances = json.loads((folder / "instances.json").read_text())
    (folder / "instances.json").write_text(json.dumps({**instances, "images": [{"id": 7, "file_name": "one.png"}]}))
    return spec


def test_karpathys_list_gives_the_captions_of_images_with_instances(tmp_path: Path) -> None:
    found = read_captions(SimpleNamespace(), karpathy(tmp_path))  # type: ignore[arg-type]
    assert found == {"one.png": Caption("a cat on a couch", ("couch", "cat"))}
    with pytest.raises(DataError, match="are not COCO's captions and instances"):
        read_captions(SimpleNamespace(), karpathy(tmp_path, sentences=3))  # type: ignore[arg-type]


def test_karpathys_list_of_other_images_is_refused(tmp_path: Path) -> None:
    spec = karpathy(tmp_path)
    content = json.loads((tmp_path / "captions.json").read_text())
    del content["images"][0]["cocoid"]
    (tmp_path / "captions.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="Karpathy's list of images without COCO's ids .* write a table with columns of exam"):
        read_captions(SimpleNamespace(), spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dataset_coco.json", '{"images": []}', "is a list in JSON; give COCO's or Karpathy's as {captions: ..., instances: ...}, or"),
        ("results.token", "1.jpg#0\tTwo men , outside .\n1.jpg#1\tTwo\n", "is a list of captions without objects, as Flickr's tokens;"),
        ("cc3m.tsv", "a very typical bus\thttp://x/y.jpg\n", "captions and addresses of images without objects, as CC3M's;"),
    ],
)  # fmt: skip
def test_other_lists_of_captions_are_refused_by_name(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    spec = CaptionSpec.model_validate({"origin": {"path": str(tmp_path / name)}})
    with pytest.raises(
        DataError, match=re.escape(message) + " write a table with columns of example ids, captions and objects"
    ):
        read_captions(SimpleNamespace(), spec)  # type: ignore[arg-type]


def test_tabs_separate_the_columns_of_a_tsv(tmp_path: Path) -> None:
    spec = CaptionSpec.model_validate({"origin": {"path": str(tmp_path / "pairs.tsv")}})
    for content in (
        "example_id\tcaption\tobjects\na\tA man, a dog\tdog;man\n",
        'example_id,caption,objects\na,"A man, a dog",dog;man\n',
    ):
        (tmp_path / "pairs.tsv").write_text(content)
        found = read_captions(SimpleNamespace(), spec)  # type: ignore[arg-type]
        assert found == {"a": Caption("A man, a dog", ("dog", "man"))}


@pytest.mark.parametrize("broken", ["category", "json"])
def test_files_that_are_not_cocos_are_refused(broken: str, tmp_path: Path) -> None:
    spec = coco(tmp_path, broken=broken == "category")
    if broken == "json":
        (tmp_path / "instances.json").write_text("[1]")
    with pytest.raises(DataError, match=r"are not COCO's captions and instances"):
        read_captions(SimpleNamespace(), spec)  # type: ignore[arg-type]


def test_a_source_without_captions_is_refused_with_what_to_write() -> None:
    with pytest.raises(UserError, match=r"states no captions; name a table: \{path: "):
        read_captions(SimpleNamespace(), CaptionSpec())  # type: ignore[arg-type]


def test_a_plan_refuses_a_source_without_captions(tmp_path: Path) -> None:
    data, run = folder_of_images(tmp_path, ["one.png"]), runner(tmp_path)
    with pytest.raises(UserError, match="states no captions"):
        Captions(data, CaptionSpec(), run.run(Decode(data))).preview()
    stage = Captions(SCENES, CaptionSpec(), run.run(Decode(SCENES)))
    assert stage.preview() == ["captions: 80 before they are joined with the images"]


def test_captions_are_joined_with_images_and_numbered(tmp_path: Path) -> None:
    data, spec = folder_of_images(tmp_path, ["one.png", "three.png", "two.png"]), coco(tmp_path)
    run = runner(tmp_path)
    spec = spec.model_copy(update={"length": 4, "vocabulary": 3})
    artifact = run.run(Captions(data, spec, run.run(Decode(data))))
    found = artifact.content
    assert found.table["example_id"].to_pylist() == ["all/one.png", "all/two.png"]
    assert found.table["named"].to_pylist() == [["couch", "cat"], []]
    assert found.object_names == ["car", "cat", "couch"]
    assert found.matrix(found.table["objects"]).toarray().tolist() == [[0, 1, 1], [1, 0, 0]]
    words = found.words[found.table["row"].to_numpy()]
    a, cat = 2, 3  # "a" is the most frequent word; then cat, on, street in alphabetical order, of which two are known
    assert words.tolist() == [[a, cat, 4, a], [a, UNKNOWN, PADDING, PADDING]]
    assert found.num_words == 5
    assert any("without a caption, which are left out: 1" in line for line in Captions.described(artifact))


def test_captions_of_other_images_are_refused(tmp_path: Path) -> None:
    data, spec = folder_of_images(tmp_path, ["one.png"]), from_table(tmp_path, "example_id,caption,objects\none.png,a,b\n")
    run = runner(tmp_path)
    with pytest.raises(UserError, match="has no caption for any of the 1 images"):
        run.run(Captions(data, spec, run.run(Decode(data))))


def test_pairs_with_equal_captions_stay_together_and_classes_do_not_count(tmp_path: Path) -> None:
    run = runner(tmp_path)
    shard = run.run(Decode(SCENES))
    ids = shard.content.index["example_id"].to_pylist()
    rows = "".join(f"{name},Words {number // 4}!,x\n" for number, name in enumerate(ids))
    captions = run.run(Captions(SCENES, from_table(tmp_path, f"example_id,caption,objects\n{rows}"), shard))
    spec = SplitSpec(train_per_class=16, public_per_class=20, extra_per_class=8)
    splits = run.run(SplitPairs(spec, shard, captions)).content
    roles = dict(zip(splits["example_id"].to_pylist(), splits["role"].to_pylist(), strict=True))
    for start in range(0, len(ids), 4):
        assert len({roles[name] for name in ids[start : start + 4]}) == 1
    counts = {one["values"]: one["counts"] for one in pc.value_counts(splits["role"]).to_pylist()}
    assert {name: counts[name] for name in (TARGET, REFERENCE, EXTRA, PUBLIC)} == {
        TARGET: 16,
        REFERENCE: 16,
        EXTRA: 8,
        PUBLIC: 20,
    }
    assert pc.unique(splits["class_name"]).to_pylist() == ["pair"]
    assert splits["crop_x0"].null_count == splits.num_rows


def test_pairs_with_like_captions_stay_together_if_asked(tmp_path: Path) -> None:
    run = runner(tmp_path)
    shard = run.run(Decode(SCENES))
    ids = shard.content.index["example_id"].to_pylist()
    ends = ("alpha", "beta", "gamma", "delta")
    rows = "".join(f"{name},picture {n // 4} shows a dog and {ends[n % 4]},x\n" for n, name in enumerate(ids))
    captions = run.run(Captions(SCENES, from_table(tmp_path, f"example_id,caption,objects\n{rows}"), shard))
    spec = SplitSpec(train_per_class=16, public_per_class=20, extra_per_class=8)

    def groups(alike: float | None) -> list[int]:  # sizes of groups: three of five runs of four words are common
        stage = SplitPairs(spec, shard, captions, alike)
        return pc.value_counts(run.run(stage).content["group"].drop_null()).field("counts").to_pylist()

    assert groups(0.6) == [4] * (len(ids) // 4)
    assert groups(0.61) == groups(None) == []


def test_digests_of_words_do_not_depend_on_where_the_table_lies(tmp_path: Path) -> None:
    content, keys = "example_id,caption,objects\npair-0000001,a,b\n", []
    run = runner(tmp_path)
    shard = run.run(Decode(SCENES))
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        keys.append(Captions(SCENES, from_table(tmp_path / name, content), shard).identity.ref.key)
    assert keys[0] == keys[1]
    assert isinstance(shard.content.index, pa.Table)
