"""The store and the sources on S3, over HTTP."""

import io
import json
import pickle
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from memlib.data.datasets import open_source
from memlib.errors import CorruptArtifact, StoreRefused
from memlib.runs.index import list_runs
from memlib.specs import ImageFolderSource, ParquetSource
from memlib.store import Ref, Store

REF = Ref("decode", "0" * 32)


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((20, 20, 3), value, dtype=np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_artifacts_on_s3_are_committed_once_and_damage_is_found(bucket: str, tmp_path: Path) -> None:
    store = Store(f"{bucket}/some/prefix", cache=str(tmp_path / "cache"))
    store.check_writable()
    assert store.artifacts.lookup(REF.stage, REF.key) is None
    with store.artifacts.write(REF) as slow:
        slow.path("sub/data.bin").write_bytes(b"slow")
        with store.artifacts.write(REF) as fast:
            fast.path("sub/data.bin").write_bytes(b"fast")
    other = pickle.loads(pickle.dumps(store))
    assert other.artifacts.lookup(REF.stage, REF.key) == REF
    assert other.artifacts.local_path(REF, "sub/data.bin").read_bytes() == b"fast"
    files = [name for name in store.file_system.find(bucket) if name.endswith("data.bin")]
    assert len(files) == 1
    store.file_system.pipe_file(files[0], b"FAST")
    fresh = Store(f"{bucket}/some/prefix", cache=str(tmp_path / "other"))
    assert fresh.artifacts.lookup(REF.stage, REF.key) == REF  # a look fetches nothing: who opens a file checks it
    with pytest.raises(CorruptArtifact, match="damaged"):
        fresh.artifacts.local_path(REF, "sub/data.bin")
    assert fresh.artifacts.problems(REF)
    fresh.artifacts.discard(REF)
    assert fresh.artifacts.lookup(REF.stage, REF.key) is None


def test_resume_states_and_runs_round_trip_on_s3(bucket: str, tmp_path: Path) -> None:
    store = Store(bucket, cache=str(tmp_path / "cache"))
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    copy.mkdir()
    for step in (1, 2, 3):
        (state / "state.pt").write_bytes(b"%d" % step)
        store.resume.save("key", step, state)
    assert store.resume.load("key", copy)
    assert (copy / "state.pt").read_bytes() == b"3"
    store.resume.drop("key")
    assert not store.resume.load("key", copy)
    finding = {"metric": "m", "params": "{}", "value": 1.0, "p_value": None}
    manifest = {"run": "r", "audit": "exposure", "title": "t", "findings": [finding], "finished": 1}
    uri = store.publish("runs/r/manifest.json", json.dumps(manifest).encode())
    assert uri == f"{bucket}/runs/r/manifest.json"
    assert [run["run"] for run in list_runs(store).entries] == ["r"]
    assert store.mode == "private"
    assert abs(store.clock() - time.time()) < 60


@pytest.mark.parametrize(("prefix", "count"), [("", 8), ("/some/prefix", 1005)])  # a page has a thousand
@pytest.mark.long
def test_a_listing_on_s3_spans_pages_and_skips_folder_markers(bucket: str, prefix: str, count: int) -> None:
    store = Store(bucket + prefix)
    s3, names = fsspec.filesystem("s3"), [f"runs/r{number:04d}/manifest.json" for number in range(count)]
    names += ["runs", "runs-of-others/r/manifest.json", "runs/é ü+%/a b.json"]
    s3.pipe({f"{bucket}{prefix}/{name}": name.encode() for name in names})
    s3.touch(f"{bucket}{prefix}/runs/marker/")  # as consoles make folders
    found = store.listing("runs")
    assert set(found) == {name for name in names if "others" not in name}
    assert found["runs/r0007/manifest.json"][0] == len("runs/r0007/manifest.json")
    assert all(abs(when - time.time()) < 300 for _, when in found.values())
    assert store.listing("runs/r0007").keys() == store.listing("runs/r0007/manifest.json").keys() == {names[7]}
    assert store.listing("nothing") == {}


def test_image_folders_and_parquet_on_s3_are_read_and_digested(bucket: str, tmp_path: Path) -> None:
    s3 = fsspec.filesystem("s3")
    s3.pipe({f"{bucket}/photos/cat/1.png": png(1), f"{bucket}/photos/dog/2.png": png(2)})
    source = open_source(ImageFolderSource(kind="image_folder", path=f"{bucket}/photos"))
    assert source[1].image[0, 0, 0] == 2
    before = source.content_digest()
    s3.pipe_file(f"{bucket}/photos/dog/2.png", png(3))
    s3.invalidate_cache()
    assert open_source(ImageFolderSource(kind="image_folder", path=f"{bucket}/photos")).content_digest() != before
    rows = [{"image": {"bytes": png(i), "path": f"{i}.png"}, "label": i} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    s3.put_file(str(tmp_path / "a.parquet"), f"{bucket}/hf/a.parquet")
    table = open_source(ParquetSource(kind="parquet", path=f"{bucket}/hf"))
    assert table[2].label == 2
    assert table.content_digest().endswith(":2")  # nobody has looked at them


def test_a_missing_bucket_is_refused_by_name(bucket: str) -> None:
    for call in (Store.check_writable, Store.check_known, list_runs):  # a bucket that is not there is no empty store
        with pytest.raises(StoreRefused, match="no bucket .*s3://nowhere"):
            call(Store("s3://nowhere/audits"))
