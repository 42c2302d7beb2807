"""Digests of an artifact's content: of all of it, and of all but the values of floats."""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memlib.identity import canonical_json
from memlib.store.records import ArtifactRecord, FileRecord, FormerRecord

SHOWN = (".html", ".png", ".svg", ".pdf")  # files for human readers, which no stage reads
DIGEST_LENGTH = 32


def contents(
    folder: Path,
    files: Mapping[str, FileRecord],
    provenance: Mapping[str, Any],
    *,
    transient: bool = False,
    former: FormerRecord | None = None,
) -> dict[str, str]:
    """Return the entries of an artifact's manifest that tell its content from that of another attempt.

    `content` is a digest of all files, without pictures and pages, which no stage reads. An artifact with transient files
    has `rounded` as well, see `rounded_digest`. If such files were evicted and are computed again, with equal code from equal
    inputs, then `content` stays what it was: the readers of the first files do not depend on the rounding of the second. It
    also stays if an artifact is computed again with equal bytes: before, it was a digest of another kind.

    Args:
        files: size and sha256 of each file, by name.
        transient: whether files of the artifact may be evicted.
        former: content of the attempt that is computed again.
    """
    content = exact_digest(files)
    if former is not None and former.exact == content:
        content = former.content
    if not transient:
        return {"content": content}
    rounded = rounded_digest(folder, files, provenance)
    if former is not None and former.evicted:
        made = (former.rounded or former.content, former.reads, former.named)  # `content` ignored rounding before
        if made == (rounded, provenance.get("reads", {}), provenance.get("named", {})):
            content = former.content
    return {"content": content, "rounded": rounded}


def former_of(manifest: ArtifactRecord, *, evicted: bool) -> FormerRecord | None:
    """Return what must be known of an attempt that is discarded; None if its manifest has no digest of its content.

    Args:
        evicted: whether it is computed again because its files were evicted.
    """
    if manifest.content is None:
        return None
    same = manifest.model_dump(include={"rounded", "reads", "named"})
    return FormerRecord(exact=exact_digest(manifest.files), content=manifest.content, evicted=evicted, **same)


def exact_digest(files: Mapping[str, FileRecord]) -> str:
    """Return a digest of all files of an artifact, without pictures and pages, which no stage reads."""
    digests = sorted((name, file.sha256) for name, file in files.items() if not name.endswith(SHOWN))
    return _short(digests)[:DIGEST_LENGTH]


def rounded_digest(folder: Path, files: Mapping[str, FileRecord], provenance: Mapping[str, Any]) -> str:
    """Return a digest of an artifact's content that stays equal when the same code recomputes it with other rounding.

    Ids, labels and everything else that is not a float enter exactly. Floats enter by shape and type only; if there
    are any, so do the version and code digest of the stage. Pictures and pages, which no stage reads, are ignored.

    Args:
        files: size and sha256 of each file, by name.
        provenance: provenance of the artifact, with the version and code digest of its stage.
    """
    found = {name: _content(folder / name, file.sha256) for name, file in files.items() if not name.endswith(SHOWN)}
    code = provenance.get("definitions", provenance.get("code"))
    rounded = [provenance.get("version"), code] if any(floats for _, floats in found.values()) else []
    parts = [sorted((name, digest) for name, (digest, _) in found.items()), rounded]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:DIGEST_LENGTH]


def _content(path: Path, sha256: str) -> tuple[str, bool]:
    """Return a digest that ignores a file's float values, and whether it has any; for unknown formats return the sha256."""
    readers = {".npy": _of_npy, ".npz": _of_npz, ".parquet": _of_parquet, ".safetensors": _of_safetensors, ".json": _of_json}
    try:
        summary = readers[path.suffix](path) if path.suffix in readers else None
    except (ValueError, KeyError, TypeError, OSError, struct.error):  # not in the format that its suffix indicates
        summary = None
    return (sha256, False) if summary is None else (_short(summary), True)


def _short(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _of_npy(path: Path) -> Any:
    array = np.load(path, mmap_mode="r")
    return [str(array.dtype), list(array.shape)] if array.dtype.kind in "fc" else None


def _of_npz(path: Path) -> Any:
    with np.load(path) as arrays:
        if not any(arrays[name].dtype.kind in "fc" for name in arrays.files):
            return None
        return [[name, *_of_array(arrays[name])] for name in sorted(arrays.files)]


def _of_array(array: Any) -> list[Any]:
    exact = "" if array.dtype.kind in "fc" else hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [str(array.dtype), list(array.shape), exact]


def _of_parquet(path: Path) -> Any:
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    rounded = {field.name for field in schema if _has_floats(field.type)}
    if not rounded:
        return None
    exact = [field.name for field in schema if field.name not in rounded]
    digest = hashlib.sha256()
    for batch in file.iter_batches(columns=exact):
        for column in batch.columns:
            digest.update(canonical_json([str(column.type), column.to_pylist()]).encode())
    names = [[field.name, str(field.type)] for field in schema]
    return [names, file.metadata.num_rows, digest.hexdigest()]


def _has_floats(kind: pa.DataType) -> bool:
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return bool(pa.types.is_floating(kind)) or any(_has_floats(part) for part in inner)


def _of_safetensors(path: Path) -> Any:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [[name, entry["dtype"], entry["shape"]] for name, entry in sorted(header.items())]


def _of_json(path: Path) -> Any:
    value = json.loads(path.read_text(encoding="utf-8"))
    floats: list[float] = []
    plain = _without_floats(value, floats)
    return plain if floats else None


def _without_floats(value: Any, floats: list[float]) -> Any:
    if isinstance(value, float):
        floats.append(value)
        return "float"
    if isinstance(value, Mapping):
        return {name: _without_floats(item, floats) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_floats(item, floats) for item in value]
    return value
