"""Canonical JSON, content keys, derived seeds, and file digests.

Equal content gets an equal name in every process and on every machine. Values without a unique representation (sets,
callables, NaN) are rejected.
"""

import errno
import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

KEY_LENGTH = 32  # hex digits, 128 bits
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")


def canonical_json(value: Any) -> str:
    """Serialize plain data to one line of JSON that is the same in every process.

    Args:
        value: None, bool, int, finite float, str, list, tuple, a mapping with str keys, or a pydantic model.

    Raises:
        TypeError: for anything else (sets have no order, callables no content).
        ValueError: for NaN and infinities.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="python"))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical JSON form: only finite numbers can be part of a key")
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("only mappings with str keys have a canonical JSON form")
        return {name: _plain(item) for name, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical JSON form: {value!r}")


def as_json(value: Any) -> Any:
    """Return plain data as it is after writing it as canonical JSON and reading it again; pydantic models become mappings."""
    return json.loads(canonical_json(value))


def content_key(stage: str, *, version: int, spec: Any, inputs: Mapping[str, Any]) -> str:
    """Return the key of a stage's artifact: a digest of the stage, its version, its spec and its inputs.

    Args:
        stage: the stage's name.
        version: the declared version of its code, raised when results change.
        spec: the configuration of this stage alone.
        inputs: the keys of the artifacts that the stage reads, by role.
    """
    name = canonical_json({"stage": stage, "version": version, "spec": spec, "inputs": inputs})
    return hashlib.sha256(name.encode()).hexdigest()[:KEY_LENGTH]


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive a 63-bit seed from (seed, names), independent of the seeds derived for other names."""
    digest = hashlib.sha256(canonical_json([seed, *names]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hex.

    Raises:
        OSError: when it cannot be read, or is a pipe or a device, which might never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and the values of nested mappings; lists are treated as values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
