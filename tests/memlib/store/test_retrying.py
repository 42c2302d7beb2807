"""Outages are waited out and distinguished from misses; refused credentials are reported at once."""

import errno
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, FlexibleChecksumError, NoCredentialsError

from memlib.errors import StoreRefused, StoreUnreachable
from memlib.store import retrying
from memlib.store.retrying import PatientFileSystem


def answered(code: str, status: int) -> OSError:
    """As s3fs raises what a server said."""
    error = OSError(errno.EINVAL, code)
    error.__cause__ = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")
    return error


def of_a_body() -> OSError:
    """As an error of a body that was damaged on its way reaches the caller, under another."""
    error = OSError(errno.EIO, "a body that differs from its checksum")
    error.__cause__ = FlexibleChecksumError(error_msg="Expected checksum AAAA== did not match calculated checksum BBBB==")
    return error


class Flaky:
    """A file system that fails so often before it answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.calls = list(failures), 0

    def cat_file(self, path: str) -> bytes:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return path.encode()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that goes by only in pauses."""
    slept: list[float] = []
    monkeypatch.setattr(retrying.time, "sleep", slept.append)
    monkeypatch.setattr(retrying.time, "monotonic", lambda: sum(slept))
    return slept


PASSING = [
    EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), TimeoutError("slow"), ConnectionResetError(errno.ECONNRESET, "x"),
    answered("InternalError", 500), answered("SlowDown", 503), answered("ConditionalRequestConflict", 409), answered("", 429),
    FlexibleChecksumError(error_msg="Expected checksum AAAA== did not match calculated checksum BBBB=="), of_a_body(),
]  # fmt: skip


@pytest.mark.parametrize("failure", PASSING, ids=repr)
def test_passing_failures_are_retried_with_growing_pauses(failure: Exception, pauses: list[float]) -> None:
    flaky = Flaky(failure, failure, failure)
    assert PatientFileSystem(flaky, "s3://b", 60).cat_file("a") == b"a"
    assert flaky.calls == 4
    assert pauses == [0.5, 1.0, 2.0]


def test_a_lasting_outage_raises_store_unreachable_within_the_patience(pauses: list[float]) -> None:
    flaky = Flaky(*[TimeoutError("slow")] * 100)
    with pytest.raises(StoreUnreachable, match="s3://b could not be reached for 60 s .*slow.*run the same command"):
        PatientFileSystem(flaky, "s3://b", 60).cat_file("a")
    assert 30 < sum(pauses) <= 60


@pytest.mark.parametrize(
    "failure",
    [
        FileNotFoundError("a"),
        FileExistsError("a"),
        OSError(errno.ENOSPC, "full"),
        answered("NotImplemented", 501),
        KeyError("a"),
    ],
    ids=repr,
)
def test_definite_answers_and_programming_errors_are_raised_without_retrying(failure: Exception, pauses: list[float]) -> None:
    with pytest.raises(type(failure)):
        PatientFileSystem(Flaky(failure), "s3://b", 60).cat_file("a")
    assert not pauses


def missing_bucket() -> FileNotFoundError:
    error = FileNotFoundError("The specified bucket does not exist")
    error.__cause__ = answered("NoSuchBucket", 404).__cause__
    return error


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (answered("SignatureDoesNotMatch", 403), "rejects the credentials"),
        (answered("403", 403), "rejects the credentials"),
        (NoCredentialsError(), "AWS_PROFILE"),
        (missing_bucket(), "no bucket"),
    ],
)
def test_refusals_raise_store_refused_without_retrying(failure: Exception, said: str, pauses: list[float]) -> None:
    with pytest.raises(StoreRefused, match=said):
        PatientFileSystem(Flaky(failure), "s3://b", 60).cat_file("a")
    assert not pauses


def test_attributes_that_are_not_callable_are_passed_through() -> None:
    class Named:
        protocol: Any = ("s3", "s3a")

    assert PatientFileSystem(Named(), "s3://b", 60).protocol == ("s3", "s3a")
