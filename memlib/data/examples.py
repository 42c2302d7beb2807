"""What an example is, how its bytes become pixels, and how a source says what it holds."""

import contextlib
import hashlib
import io
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from PIL import Image

from memlib.data.bounds import check_links, check_pixels
from memlib.errors import UserError
from memlib.identity import canonical_json, file_digest
from memlib.private import PRIVATE, make_folder, user_folder

REHASH = "MEMLIB_REHASH"
MOST_CLASSES = 1_000_000
NO_BOXES: NDArray[np.int64] = np.zeros((0, 4), dtype=np.int64)


@dataclass(frozen=True)
class Example:
    """One image, or point, of a source.

    Attributes:
        example_id: path or row within the source.
        image: (height, width, 3) uint8, RGB; from a source of points (dim,) float32.
        label: index into the source's class_names.
        boxes: (num_boxes, 4) int64, half-open pixel rectangles x0, y0, x1, y1 of the objects; may be empty.
    """

    example_id: str
    image: NDArray[Any]
    label: int
    boxes: NDArray[np.int64]


class UnreadableImage(ValueError):
    """An image that cannot be decoded; carries its id and label so that it can be listed."""

    def __init__(self, example_id: str, label: int, reason: str) -> None:
        super().__init__(f"{example_id}: {reason}")
        self.example_id, self.label, self.reason = example_id, label, reason


class Source(Protocol):
    """What the pipeline needs of a data set. A source of points says their dimension in `point_dim`."""

    class_names: list[str]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...
    def content_digest(self) -> str:
        """Changes exactly when the source's content does."""
        ...


def decode_image(data: bytes | Image.Image, *, example_id: str = "", label: int = -1) -> NDArray[np.uint8]:
    """RGB pixels of an encoded image: (height, width, 3) uint8, whatever its mode (grey, CMYK, palette, 16 bit).

    Raises:
        UnreadableImage: for truncated or otherwise undecodable data.
    """
    try:
        image = data if isinstance(data, Image.Image) else Image.open(io.BytesIO(data))
        check_pixels(image)
        if image.mode.startswith("I;16") or image.mode in {"I", "F"}:
            values = np.asarray(image, dtype=np.float64)
            top = 65535.0 if values.max(initial=0) > 255 else 255.0
            image = Image.fromarray((values.clip(0, top) / top * 255).round().astype(np.uint8))
        return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, ... for broken files
        raise UnreadableImage(example_id, label, f"cannot be decoded ({error})") from error


def numbered_classes(largest: int, where: str) -> list[str]:
    """Names of classes that have none but their numbers.

    Args:
        largest: of the labels.
        where: they are, for the message.

    Raises:
        UserError: for a label that is no class index.
    """
    if largest >= MOST_CLASSES:
        raise UserError(f"{where}: label {largest} is no class index; classes are numbered from 0")
    return [str(label) for label in range(largest + 1)]


# -- what a folder or bucket holds --------------------------------------------------------------------


def open_location(uri: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path on it.

    Raises:
        UserError: for an unknown protocol.
    """
    try:
        fs, root = fsspec.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise UserError(f"cannot open {uri}: {error}") from error
    return fs, str(root)


def find_files(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """All files below `root` by their whole path, with what the file system says of them; empty when none.

    Raises:
        UserError: when the file system cannot be asked (no network, no permission).
    """
    try:
        found: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:  # each file system has errors of its own
        raise UserError(f"cannot list {root}: {type(error).__name__}: {error}") from error
    return found


def list_files(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """The same by relative path, sorted."""
    root = root.rstrip("/")
    found = find_files(fs, root)
    listing = {name[len(root) + 1 :]: found[name] for name in sorted(found) if name != root}
    check_links(fs, root, listing)
    return listing


def listing_digest(fs: Any, root: str, listing: Mapping[str, Mapping[str, Any]]) -> str:
    """A digest of a listing: path, size, and content hash (local) or ETag (object stores) of each file.

    Local hashes are remembered by path, size, inode and the times of changes, so that an unchanged folder of any size is
    read once; copying or touching the files changes nothing. With MEMLIB_REHASH in the environment all is read again.
    """
    local = isinstance(fs, LocalFileSystem)
    with _HashMemo() as memo:
        rows = []
        for name, info in listing.items():
            tag = memo.digest(Path(info["name"])) if local else info.get("ETag") or info.get("LastModified")
            rows.append([name, info["size"], str(tag)])
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


class _HashMemo:
    """sha256 of local files, remembered in the user's cache folder."""

    def __enter__(self) -> "_HashMemo":
        try:
            folder = user_folder("cache")
            make_folder(folder, PRIVATE.folder)
            self._db = sqlite3.connect(folder / "digests.sqlite", timeout=5, isolation_level=None)
            self._db.execute("create table if not exists digests (mark text primary key, sha256 text)")
        except (OSError, sqlite3.Error, UserError):  # no cache folder: hash every time
            self._db = sqlite3.connect(":memory:")
            self._db.execute("create table digests (mark text primary key, sha256 text)")
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def digest(self, path: Path) -> str:
        stat = path.stat()  # whoever writes a file and sets its times back cannot set the time of that change back
        mark = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_dev}:{stat.st_ino}"
        row = self._db.execute("select sha256 from digests where mark = ?", (mark,)).fetchone()
        if row is not None and not os.environ.get(REHASH):
            return str(row[0])
        digest = file_digest(path)
        with contextlib.suppress(sqlite3.Error):  # another process is writing: it is only a memo
            self._db.execute("insert or replace into digests values (?, ?)", (mark, digest))
        return digest
