"""A bucket of a local S3 server."""

import uuid
from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # loads boto and Flask, for these tests alone

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    name = f"audits-{uuid.uuid4().hex[:8]}"
    fsspec.filesystem("s3").mkdir(name)
    yield f"s3://{name}"
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()
