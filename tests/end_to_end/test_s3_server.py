"""The store and whole audits on a real S3 server, which checks signatures and has its own view of S3 (moto shares boto's)."""

import hashlib
import json
import os
import pickle
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import Memlib, published, unlike
from test_prefect_server import ask
from test_unique_feature import MOONS, wrote

from benchmarks.faults import Watched
from deployments.local.swift import SwiftServer
from memlib.errors import CorruptArtifact, StoreRefused
from memlib.runs.index import list_runs
from memlib.store import Ref, Store

pytestmark = pytest.mark.slow
REF = Ref("decode", "0" * 32)


@pytest.fixture
def bucket(swift: SwiftServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in swift.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    name = f"audits-{uuid.uuid4().hex[:8]}"
    swift.make_bucket(name)
    yield f"s3://{name}"
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def store(bucket: str, tmp_path: Path) -> Store:
    return Store(f"{bucket}/some/prefix", cache=str(tmp_path / "cache"))


def test_artifacts_are_committed_once_and_damage_is_found(store: Store, tmp_path: Path) -> None:
    store.check_writable()
    assert store.artifacts.lookup(REF.stage, REF.key) is None
    with store.artifacts.write(REF) as slow:
        slow.path("sub/data.bin").write_bytes(b"slow")
        with store.artifacts.write(REF) as fast:
            fast.path("sub/data.bin").write_bytes(b"fast")
    other = pickle.loads(pickle.dumps(store))
    assert other.artifacts.lookup(REF.stage, REF.key) == REF
    assert other.artifacts.local_path(REF, "sub/data.bin").read_bytes() == b"fast"
    names = [name.rpartition("/")[2] for name in store.file_system.find(store.root)]
    assert sorted(names) == ["data.bin", "manifest.json", "memlib-store.json"]
    data = next(name for name in store.file_system.find(store.root) if name.endswith("data.bin"))
    store.file_system.pipe_file(data, b"FAST")
    fresh = Store(store.uri, cache=str(tmp_path / "other"))
    assert fresh.artifacts.lookup(REF.stage, REF.key) == REF  # a look fetches nothing: who opens a file checks it
    with pytest.raises(CorruptArtifact, match="damaged"):
        fresh.artifacts.local_path(REF, "sub/data.bin")
    assert fresh.artifacts.problems(REF)
    fresh.artifacts.discard(REF)
    assert fresh.artifacts.lookup(REF.stage, REF.key) is None


def test_resume_states_and_published_runs_round_trip(store: Store, tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    copy.mkdir()
    for step in (1, 2, 3):
        (state / "state.pt").write_bytes(b"%d" % step)
        store.resume.save("key", step, state)
    assert store.resume.load("key", copy)
    assert (copy / "state.pt").read_bytes() == b"3"
    assert len(store.names("resume/key")) == 2
    store.resume.drop("key")
    assert not store.resume.load("key", copy)
    finding = {"metric": "m", "params": "{}", "value": 1.0, "p_value": None}
    text = json.dumps({"run": "r", "audit": "exposure", "title": "t", "findings": [finding], "finished": 1})
    (tmp_path / "manifest.json").write_text(text)
    uri = store.publish("runs/r/manifest.json", tmp_path / "manifest.json")
    assert uri == f"{store.uri}/runs/r/manifest.json"
    assert store.published("runs/r/manifest.json") == text.encode()
    assert [run["run"] for run in list_runs(store).entries] == ["r"]


@pytest.mark.parametrize(("size", "parts"), [(60 * 2**20, ""), (101 * 2**20, "-3")], ids=["60 MiB", "101 MiB"])
def test_large_files_round_trip_unchanged(store: Store, size: int, parts: str) -> None:
    """s3fs sends files below 100 MiB whole and larger ones in parts of 50 MiB; S3 appends the number of parts to the ETag."""
    data = os.urandom(2**20) * (size // 2**20)
    with store.artifacts.write(REF) as attempt:
        attempt.path("large.bin").write_bytes(data)
    assert store.artifacts.lookup(REF.stage, REF.key) == REF
    assert store.artifacts.problems(REF) == []
    with open(store.artifacts.local_path(REF, "large.bin"), "rb") as file:
        assert hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(data).digest()
    (remote,) = (name for name in store.file_system.find(store.root) if name.endswith("large.bin"))
    assert store.file_system.info(remote)["ETag"].strip('"')[32:] == parts


def test_a_stream_of_60_mib_is_uploaded_in_parts(store: Store) -> None:
    data = os.urandom(2**20) * 60
    with store.file_system.open(store.backend.at("stream.bin"), "wb") as file:
        for start in range(0, len(data), 2**20):
            file.write(data[start : start + 2**20])
    assert store.file_system.info(store.backend.at("stream.bin"))["ETag"].strip('"')[32:] == "-2"
    assert (
        hashlib.sha256(store.file_system.cat_file(store.backend.at("stream.bin"))).digest() == hashlib.sha256(data).digest()
    )


def test_committed_artifacts_survive_a_restart_of_the_server(store: Store, swift: SwiftServer, tmp_path: Path) -> None:
    with store.artifacts.write(REF) as attempt:
        attempt.path("data.bin").write_bytes(b"data")
    endpoint = swift.endpoint
    swift.stop()
    swift.start()
    assert swift.endpoint == endpoint
    fresh = Store(store.uri, cache=str(tmp_path / "other"))
    assert fresh.artifacts.lookup(REF.stage, REF.key) == REF
    assert fresh.artifacts.local_path(REF, "data.bin").read_bytes() == b"data"


def test_a_wrong_secret_and_a_missing_bucket_are_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreRefused, match="no bucket .*s3://nowhere/audits"):
        Store("s3://nowhere/audits").check_writable()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(StoreRefused, match=r"rejects the credentials \(PermissionError: .*AWS_SECRET_ACCESS_KEY"):
        Store(f"{bucket}/audits").check_writable()


def s3_tables(manifest: dict[str, Any]) -> dict[str, pa.Table]:
    """The published tables of a run on S3, without the metadata of the file."""
    found = {}
    for name, path in manifest["results"].items():
        with fsspec.filesystem("s3").open(path) as file:
            found[name] = pq.ParquetFile(file).read().replace_schema_metadata()
    return found


def s3_manifest(uri: str, run: str) -> dict[str, Any]:
    return dict(json.loads(fsspec.filesystem("s3").cat_file(f"{uri}/runs/{run}/manifest.json")))


def both_runs(uri: str, store: Path, manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[pa.Table, pa.Table]]]:
    """The manifest on S3 of a run that is in a local store too, and each table: (from S3, from the local store)."""
    remote, theirs = s3_manifest(uri, manifest["run"]), published(store, manifest)
    mine = s3_tables(remote)
    assert set(mine) == set(theirs)
    return remote, {name: (mine[name], theirs[name]) for name in theirs}


def audit_on_s3(command: Memlib, uri: str, swift: SwiftServer, *settings: str) -> str:
    """Runs an audit that must succeed and returns what it said."""
    process = command.start(uri, *settings, **swift.environment)
    output, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    return output + errors


def test_deja_vu_gives_the_same_tables(
    memlib: Memlib, finished: tuple[Path, dict[str, Any]], bucket: str, swift: SwiftServer
) -> None:
    uri = f"{bucket}/here"
    said = audit_on_s3(memlib, uri, swift, "resources.resume_seconds=5")
    manifest, tables = both_runs(uri, *finished)
    for name, (mine, theirs) in tables.items():
        assert mine.equals(theirs), name
    s3 = fsspec.filesystem("s3")
    api = memlib.environment["PREFECT_API_URL"]
    flows = ask(f"{api}/flow_runs/filter", flow_runs={"name": {"like_": manifest["run"]}})
    of_run = {"any_": [flow["id"] for flow in flows]}
    told = [json.dumps(ask(f"{api}/{kind}/filter", flow_runs={"id": of_run})) for kind in ("task_runs", "artifacts")]
    told += [json.dumps(flows), json.dumps(ask(f"{api}/logs/filter", logs={"flow_run_id": of_run}))]
    assert all(len(text) > 2 for text in told)  # not an empty list
    everything = b"".join(s3.cat(s3.find(uri)).values()) + said.encode() + "".join(told).encode()
    assert manifest["run"].encode() in everything
    assert swift.environment["AWS_SECRET_ACCESS_KEY"].encode() not in everything
    assert swift.environment["AWS_ACCESS_KEY_ID"].encode() not in everything
    assert not [name for name in fsspec.filesystem("s3").find(uri) if "/ray/" in name or "/resume/" in name]


def test_unique_feature_gives_the_same_tables(memlib: Memlib, bucket: str, swift: SwiftServer, tmp_path: Path) -> None:
    tiny = wrote(tmp_path, MOONS, memlib)
    manifest = tiny.audit_on_ray(tmp_path / "store")
    uri = f"{bucket}/here"
    audit_on_s3(tiny, uri, swift)
    _, tables = both_runs(uri, tmp_path / "store", manifest)
    assert set(tables) >= {"summary", "units"}
    for name, (mine, theirs) in tables.items():
        assert not unlike(mine, theirs), name


def attempts(uri: str) -> dict[str, str]:
    """The attempt that each committed artifact names."""
    s3 = fsspec.filesystem("s3")
    s3.invalidate_cache()
    paths = [path for path in s3.find(f"{uri}/artifacts") if path.endswith("/manifest.json")]
    return {path: json.loads(content)["attempt"] for path, content in s3.cat(paths).items()} if paths else {}


@pytest.mark.parametrize("stage", ["train", "embed"])
def test_an_outage_of_20_seconds_is_waited_out(
    memlib: Memlib, finished: tuple[Path, dict[str, Any]], bucket: str, swift: SwiftServer, stage: str
) -> None:
    uri = f"{bucket}/here"
    watched = Watched(memlib.start(uri, "resources.resume_seconds=2", MEMLIB_LOG="json", **swift.environment))
    assert watched.wait_for(stage)
    time.sleep(8 if stage == "train" else 0)  # into the training itself
    before = attempts(uri)
    swift.stop()
    time.sleep(20)
    swift.start()
    assert watched.end() == 0, watched.said
    _, tables = both_runs(uri, *finished)
    assert all(mine.equals(theirs) for mine, theirs in tables.values())
    after = attempts(uri)
    assert all(after[path] == attempt for path, attempt in before.items())  # nothing was taken for missing


def test_an_unreachable_server_is_reported_and_finished_work_is_reused_afterwards(
    memlib: Memlib, finished: tuple[Path, dict[str, Any]], bucket: str, swift: SwiftServer
) -> None:
    uri, settings = f"{bucket}/here", {**swift.environment, "MEMLIB_STORE_PATIENCE": "15"}
    watched = Watched(memlib.start(uri, "resources.resume_seconds=5", MEMLIB_LOG="json", **settings))
    assert watched.wait_for("embed")
    swift.stop()
    started = time.monotonic()
    try:
        assert watched.end(timeout=180) == 75
    finally:
        swift.start()
    assert time.monotonic() - started < 150
    assert f"the store {uri} could not be reached for 15 s" in watched.said
    assert "run the same command again when it is available" in watched.said
    assert "Traceback" not in watched.said
    before = attempts(uri)
    assert any("/train/" in path for path in before)
    again = memlib.start(uri, "resources.resume_seconds=5", **settings)
    _, errors = again.communicate(timeout=1200)
    assert again.returncode == 0, errors
    _, tables = both_runs(uri, *finished)
    assert all(mine.equals(theirs) for mine, theirs in tables.values())
    after = attempts(uri)
    assert all(after[path] == attempt for path, attempt in before.items())


def test_two_drivers_of_one_audit_succeed_with_one_set_of_artifacts(
    memlib: Memlib, finished: tuple[Path, dict[str, Any]], bucket: str, swift: SwiftServer
) -> None:
    uri = f"{bucket}/here"
    drivers = [
        Watched(memlib.start(uri, "resources.resume_seconds=5", MEMLIB_LOG="json", **swift.environment)) for _ in range(2)
    ]
    for driver in drivers:
        assert driver.end() == 0, driver.said
    _, tables = both_runs(uri, *finished)
    assert all(mine.equals(theirs) for mine, theirs in tables.values())
    keys = {path.split("/artifacts/")[1].rpartition("/")[0] for path in attempts(uri)}
    assert keys == set(finished[1]["computed"])
    cleared = memlib.call("gc", "--store", uri, "--days", "0", "--delete", **swift.environment)
    assert cleared.returncode == 0, cleared.stderr
    verified = memlib.call("verify", "--store", uri, "--json", **swift.environment)
    assert json.loads(verified.stdout) == {"artifacts": len(keys), "runs": 1, "of_no_run": 0, "problems": []}


def test_wrong_credentials_and_missing_buckets_end_every_command_with_a_short_error(
    memlib: Memlib, bucket: str, swift: SwiftServer
) -> None:
    wrong = {**swift.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    for uri, settings, said in (
        (bucket, wrong, "rejects the credentials"),
        ("s3://nowhere-at-all/here", swift.environment, "there is no bucket"),
    ):
        for command in ("run", "runs", "plan"):
            options = ["deja-vu", "--recipe", str(memlib.recipe)] if command != "runs" else []
            done = memlib.call_on_ray(command, *options, "--store", uri, **settings)
            assert done.returncode == 2, command
            assert said in done.stderr, command
            assert "Traceback" not in done.stderr
            assert "wrong" not in done.stderr
