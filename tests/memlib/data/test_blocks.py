"""A large source is decoded in blocks, which are read like the single array of a small source."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from memlib.data import stages
from memlib.data.data_summary import understood
from memlib.data.images.stored import BATCH, Blocks
from memlib.data.splits import SPLITS_FILE
from memlib.data.stages import Decode, DecodeBlock, Shard, Split, decode, members_of
from memlib.errors import CorruptArtifact, MissingArtifact, UserError
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec
from memlib.store import Ref, Store
from memlib.store.artifacts import Artifacts
from memlib.tables import INDEX, SPLITS

SIZE = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(53):
        path = tmp_path / "images" / f"class-{number % 3}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (10, 12 + number % 2, 3), dtype=np.uint8)).save(path)
    return tmp_path


def spec(folder: Path, **more: object) -> DataSpec:
    source = {"kind": "image_folder", "path": str(folder / "images")}
    return DataSpec.model_validate({"source": source, "image_size": SIZE, **more})


def decoded(folder: Path, name: str, data: DataSpec) -> tuple[PlainRunner, Artifact[Shard]]:
    runner = PlainRunner(Store(str(folder / name)))
    return runner, decode(runner, data)


@pytest.mark.parametrize("images", [1, 7, 50])
def test_images_decoded_in_blocks_equal_those_of_a_single_array(
    folder: Path, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = decoded(folder, "whole", spec(folder))
    assert whole.path("images.npy").exists()
    monkeypatch.setattr(stages, "BLOCK_BYTES", images * SIZE * SIZE * 3)
    runner, parted = decoded(folder, "parted", spec(folder))
    assert parted.ref == whole.ref  # how it was decoded is part of no key
    assert "images.npy" not in parted.files
    assert len(list((folder / "parted" / "artifacts" / "decode_block").iterdir())) == -(-53 // images)
    assert parted.content.index.equals(whole.content.index)
    assert parted.facts["understood"] == whole.facts["understood"]
    one, other = whole.content.images, parted.content.images
    assert (one.shape, one.ndim, one.dtype, len(one)) == (other.shape, other.ndim, other.dtype, len(other))
    rows = np.random.default_rng(1).integers(0, 53, size=200)
    for chosen in (rows, rows.reshape(20, 10), 5, -1, slice(3, 40, 4), slice(None), rows[:0], np.arange(53) % 2 == 0):
        assert np.array_equal(one[chosen], other[chosen])
    assert np.array_equal(np.asarray(other), one)
    with pytest.raises(IndexError):
        other[[53]]
    again = PlainRunner(runner.store)
    assert decode(again, spec(folder)).ref == whole.ref
    assert len(again._work.reused) == -(-53 // images) + 1  # a run names its blocks, so that they are kept
    assert not again._work.computed


@pytest.mark.parametrize("images", [10, 1000])  # in blocks, and as a whole
def test_encoded_images_are_read_like_raw_ones(folder: Path, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "images" / "class-1" / "004.png").write_bytes(b"no picture")
    _, raw = decoded(folder, "raw", spec(folder, unreadable="leave_out"))
    monkeypatch.setattr(stages, "BLOCK_BYTES", images * SIZE * SIZE * 3)
    one = raw.content.images
    rows = np.random.default_rng(1).integers(0, 53, size=200)
    for storage, most in (("png", 0), ("jpeg", 40)):  # of noise; photos lose less
        _, shard = decoded(folder, storage, spec(folder, unreadable="leave_out", storage=storage))
        assert shard.ref != raw.ref
        assert shard.content.index.equals(raw.content.index)
        other = shard.content.images
        assert (one.shape, one.ndim, one.dtype, len(one)) == (other.shape, other.ndim, other.dtype, len(other))
        for chosen in (rows, rows.reshape(20, 10), 5, -1, slice(3, 40, 4), slice(None), rows[:0], np.arange(53) % 2 == 0):
            assert other[chosen].shape == one[chosen].shape
            assert np.abs(other[chosen].astype(int) - one[chosen]).max(initial=0) <= most
        black = int(shard.content.index.filter(pc.is_valid(shard.content.index["unreadable"]))["row"][0].as_py())
        assert not other[black].any()
        with pytest.raises(IndexError):
            other[[53]]


@pytest.mark.parametrize("storage", ["raw", "png", "jpeg"])
@pytest.mark.parametrize("uri", ["local", "memory://audits/ranges"])
def test_a_single_picture_is_read_without_fetching_whole_blocks(
    folder: Path, uri: str, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 30 * SIZE * SIZE * 3)
    (folder / "images" / "class-1" / "004.png").write_bytes(b"no picture")
    place = str(folder / "store") if uri == "local" else f"{uri}-{storage}"
    runner = PlainRunner(Store(place, cache=str(folder / "cache")))
    shard = decode(runner, spec(folder, storage=storage, unreadable="leave_out"))
    whole = np.asarray(shard.content.images)
    monkeypatch.setattr(Artifacts, "local_path", only(Artifacts.local_path, "index.parquet", "blocks.json"))
    pictures = Artifact(runner.store, shard.ref, Decode).content.pictures
    for row in (0, 52, 17, 26, 27, 3):
        assert np.array_equal(pictures(row), whole[row])
    with pytest.raises(IndexError):
        pictures(53)


def only(read: Any, *names: str) -> Any:
    """A reader of whole files that reads no others."""

    def local_path(self: Artifacts, ref: Ref, name: str) -> Path:
        assert name in names
        return read(self, ref, name)

    return local_path


def test_a_damaged_picture_raises_corrupt_artifact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 30 * SIZE * SIZE * 3)
    _, shard = decoded(folder, "store", spec(folder))
    pictures = shard.content.pictures
    for file in (folder / "store").glob("artifacts/decode_block/*/*/images.npy"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(data)
    assert pictures(0).shape == (SIZE, SIZE, 3)
    with pytest.raises(CorruptArtifact, match="image 25 is damaged"):
        pictures(52)


def test_pictures_with_an_offset_beyond_the_file_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 30 * SIZE * SIZE * 3)
    _, shard = decoded(folder, "store", spec(folder, storage="png"))
    (file, _) = sorted((folder / "store").glob("artifacts/decode_block/*/*/images.arrow"))
    with pa.OSFile(str(file)) as source:
        offsets = pa.ipc.open_file(source).get_batch(0)["image"].buffers()[1].to_pybytes()
    data = bytearray(file.read_bytes())
    start = bytes(data).index(offsets[:16])
    data[start + 4 * 6 + 3] = 0x60  # the sixth picture would begin 1.6 GB after the file
    file.chmod(0o600)
    file.write_bytes(data)
    pictures = Artifact(shard.store, shard.ref, Decode).content.pictures
    damaged = []
    for row in range(53):
        try:
            pictures(row)
        except CorruptArtifact:
            damaged.append(row)
    assert len(damaged) == BATCH  # every picture that shares the offsets, in whichever of the two blocks


@pytest.mark.parametrize("storage", ["png", "jpeg"])
def test_any_damaged_byte_of_an_encoded_picture_changes_nothing_or_is_named(
    folder: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 30 * SIZE * SIZE * 3)
    _, shard = decoded(folder, "store", spec(folder, storage=storage))
    whole = np.asarray(shard.content.images)
    (file, _) = sorted((folder / "store").glob("artifacts/decode_block/*/*/images.arrow"))
    data, named = file.read_bytes(), 0
    file.chmod(0o600)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(data), size=60):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        pictures = Artifact(shard.store, shard.ref, Decode).content.pictures
        for row in range(53):
            try:
                found = pictures(row)
                assert storage == "jpeg" or np.array_equal(found, whole[row])
            except CorruptArtifact:
                named += 1
    assert named


@pytest.mark.parametrize("threads", ["1", "3"])
def test_grey_images_are_encoded_too(folder: Path, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    _, raw = decoded(folder, "raw", spec(folder, channels=1))
    _, png = decoded(folder, "png", spec(folder, channels=1, storage="png"))
    assert np.array_equal(png.content.images, raw.content.images)
    assert png.content.images.shape == (53, SIZE, SIZE, 1)
    assert not list((folder / "png").glob("artifacts/decode/*/*/images.npy"))


def test_points_are_never_encoded_as_pictures(tmp_path: Path) -> None:
    data = DataSpec.model_validate({"source": {"kind": "two_moons", "num_examples": 20}, "storage": "png"})
    assert decode(PlainRunner(Store(str(tmp_path))), data).content.images.shape == (20, 3)


def test_a_shard_stored_as_a_single_array_is_reused_without_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded(folder, "store", spec(folder))
    monkeypatch.setattr(stages, "BLOCK_BYTES", 10 * SIZE * SIZE * 3)
    runner, shard = decoded(folder, "store", spec(folder))
    assert shard.path("images.npy").exists()
    assert not (folder / "store" / "artifacts" / "decode_block").exists()
    assert runner._work.reused == [str(shard)]


def test_only_the_lost_block_of_a_shard_is_recomputed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 10 * SIZE * SIZE * 3)
    runner, shard = decoded(folder, "store", spec(folder))
    before = np.asarray(shard.content.images)
    lost = sorted((folder / "store" / "artifacts" / "decode_block").iterdir())[2]
    lost.joinpath("manifest.json").unlink()
    with pytest.raises(CorruptArtifact, match="decode_block"):
        np.asarray(Artifact(runner.store, shard.ref, Decode).content.images)
    again, shard = decoded(folder, "store", spec(folder))
    assert [name.split("/")[0] for name in again._work.computed] == ["decode_block"]
    assert np.array_equal(np.asarray(shard.content.images), before)


def test_unreadable_images_are_reported_once_for_all_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BLOCK_BYTES", 10 * SIZE * SIZE * 3)
    (folder / "images" / "class-1" / "004.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="1 unreadable images: "):
        decoded(folder, "store", spec(folder))
    runner, shard = decoded(folder, "other", spec(folder, unreadable="leave_out"))
    assert shard.facts["understood"]["unreadable"] == 1
    assert shard.content.index["unreadable"].null_count == 52
    assert json.loads(shard.path("blocks.json").read_text())[0]["images"] == 9  # of six blocks
    small = {"kind": "image_folder", "path": str(folder / "images"), "num_classes": None}
    assert DataSpec.model_validate({"source": small})
    assert runner.warnings


def test_a_decode_block_keeps_its_identity_when_pickled(folder: Path) -> None:
    block = DecodeBlock(spec(folder), "digest", 0, 5)
    assert pickle.loads(pickle.dumps(block)).identity == block.identity
    assert (block.units, block.spec["rows"]) == (5.0, [0, 5])


def test_empty_blocks_are_skipped_and_an_empty_index_has_no_images() -> None:
    blocks = Blocks([2, 0, 3], lambda number: np.full((3, 2), number))
    assert blocks[[0, 1, 2, 4]].tolist() == [[0, 0], [0, 0], [2, 2], [2, 2]]
    assert understood(INDEX.arrow.empty_table(), {})["images"] == 0


def test_near_copies_opens_a_limited_number_of_blocks() -> None:
    opened: list[int] = []

    def read(number: int) -> np.ndarray:
        opened.append(number)
        return np.full((10, SIZE, SIZE, 3), number // 2, dtype=np.uint8)  # two blocks each hold the same pictures

    images = Blocks([10] * 30, read)
    assert images.are_in_few(np.arange(300), 3).sum() == 30
    assert images.are_in_few(np.arange(300), 100).all()
    rows = np.arange(300)
    entries = [
        {"example_id": f"{row:03d}", "row": row, "role": "target" if row % 2 else "public", "label": 0, "class_name": "a"}
        for row in rows.tolist()
    ]
    copies = stages._near_copies(pa.Table.from_pylist(entries, schema=SPLITS.arrow), images)
    assert len(set(opened)) == stages.LOOKED_BLOCKS
    assert copies
    assert stages._near_copies(pa.Table.from_pylist(entries[:40], schema=SPLITS.arrow), np.asarray(images[:40]))


def test_members_read_from_one_store_are_not_reused_for_another(tmp_path: Path) -> None:
    here, ref = Store(str(tmp_path / "here")), Ref("split", "0" * 20)
    with here.artifacts.write(ref) as attempt:
        table = pa.table({"example_id": ["a"], "role": ["target"], "label": [0], "class_name": ["cat"]})
        pq.write_table(table, attempt.path(SPLITS_FILE))
    assert members_of(Artifact(here, ref, Split), "target").num_rows == 1
    with pytest.raises(MissingArtifact):
        members_of(Artifact(Store(str(tmp_path / "there")), ref, Split), "target")
