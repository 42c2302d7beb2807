"""A remote file system that retries during outages, then reports them, and never mistakes them for a missing file."""

import errno
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from memlib.errors import StoreRefused, StoreUnreachable

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds between two attempts
ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
PASSING = {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH,
    errno.ENETUNREACH, errno.EPIPE, errno.EREMOTEIO, errno.ETIMEDOUT,
}  # fmt: skip
PASSING_KINDS = {  # exceptions of botocore and aiohttp, by name, since other protocols do not need these libraries
    "ClientConnectionError", "ClientPayloadError", "ConnectionError", "EndpointConnectionError", "FlexibleChecksumError",
    "HTTPClientError",    "IncompleteRead", "ResponseParserError", "ServerTimeoutError",
}  # fmt: skip
REFUSING_KINDS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}
BUSY_CODES = {
    "ConditionalRequestConflict", "OperationAborted", "RequestLimitExceeded", "RequestTimeout", "SlowDown", "Throttling",
    "ThrottlingException",
}  # fmt: skip
REFUSED_CODES = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}


class PatientFileSystem:
    """A wrapper of an fsspec file system that retries calls after transient failures.

    A definite answer (no such file, file exists) is passed on at once, as is a refusal of the credentials. Transient failures
    (connections, time-outs, 5xx, throttling) are retried with increasing pauses.

    Args:
        file_system: any fsspec file system.
        uri: the store's address, for messages.
        seconds: how long to keep retrying.

    Raises (each call):
        StoreUnreachable: when the call still fails after that time.
        StoreRefused: when the server does not accept the credentials.
    """

    def __init__(self, file_system: Any, uri: str, seconds: float) -> None:
        self._file_system, self._uri, self._seconds = file_system, uri, seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return (PatientFileSystem, (self._file_system, self._uri, self._seconds))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's special methods are not forwarded
            raise AttributeError(name)
        attribute = getattr(self._file_system, name)
        return functools.partial(self._call, attribute) if callable(attribute) else attribute

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        end, pause = time.monotonic() + self._seconds, FIRST_PAUSE
        while True:
            try:
                return method(*args, **kwargs)
            except ANSWERS as error:
                if any(_code(cause) == "NoSuchBucket" for cause in _causes(error)):  # the bucket is missing, not the file
                    raise StoreRefused(
                        f"there is no bucket for the store {self._uri}; create the bucket, or choose another store"
                    ) from error
                raise
            except Exception as error:
                if is_refusal(error):
                    reason = f"{type(error).__name__}: {error}"
                    hint = "check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                    raise StoreRefused(f"the store {self._uri} rejects the credentials ({reason}); {hint}") from error
                if not is_temporary(error):
                    raise
                if time.monotonic() + pause > end:
                    reason = f"{type(error).__name__}: {error}"
                    raise StoreUnreachable(
                        f"the store {self._uri} could not be reached for {self._seconds:g} s ({reason}); run the same "
                        "command again when it is available"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def is_refusal(error: BaseException) -> bool:
    """Return whether the server denied access, or credentials are missing."""
    return any(type(cause).__name__ in REFUSING_KINDS or _code(cause) in REFUSED_CODES for cause in _causes(error))


def is_temporary(error: BaseException) -> bool:
    """Return whether a retry may help, for example after network failures, time-outs, 5xx and throttling."""
    for cause in _causes(error):
        if _code(cause) in BUSY_CODES or _status(cause) >= 500 or _status(cause) == 429:
            return _code(cause) != "NotImplemented"
        if isinstance(cause, TimeoutError) or (isinstance(cause, OSError) and cause.errno in PASSING):
            return True
        if PASSING_KINDS & {kind.__name__ for kind in type(cause).__mro__}:
            return True
    return False


def is_taken(error: BaseException) -> bool:
    """Return whether the file to be created exists already."""
    return isinstance(error, FileExistsError) or any(
        _status(cause) == 412 or _code(cause) == "PreconditionFailed" for cause in _causes(error)
    )  # s3fs expects servers to report which condition failed, which not all do


def is_unsupported(error: BaseException) -> bool:
    """Return whether the server does not support the request, such as creating a file only if it does not exist."""
    return any(_status(cause) == 501 or _code(cause) in ("NotImplemented", "501") for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _response(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _code(error: BaseException) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
