"""A whole audit with its store on S3, including Ray's files."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from harness import Memlib, end_session, published, wait_for


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    server = subprocess.Popen(
        [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, process=server)
    fsspec.filesystem("s3").clear_instance_cache()
    fsspec.filesystem("s3").mkdir("audits")
    yield "s3://audits/here", settings
    fsspec.filesystem("s3").clear_instance_cache()
    end_session(server.pid)


@pytest.mark.slow
def test_a_store_on_s3_gives_the_same_results(
    memlib: Memlib, finished: tuple[Path, dict[str, Any]], bucket: tuple[str, dict[str, str]]
) -> None:
    uri, settings = bucket
    process = memlib.start(uri, "resources.resume_seconds=5", **settings)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    store, first = finished
    s3 = fsspec.filesystem("s3")
    manifest = json.loads(s3.cat_file(f"{uri}/runs/{first['run']}/manifest.json"))
    theirs = published(store, first)
    for name, path in manifest["results"].items():
        with s3.open(path) as file:
            assert pq.ParquetFile(file).read().replace_schema_metadata().equals(theirs[name]), name
    assert "secret" not in json.dumps(manifest["recipe"]) + errors
    assert not [name for name in s3.find(uri) if "/ray/" in name or "/resume/" in name]
