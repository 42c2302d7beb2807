"""Examples, their decoding from bytes to pixels, and the content digests of sources."""

import contextlib
import hashlib
import math
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from PIL import Image

from memlib.data.bounds import check_links
from memlib.data.images.dicom import is_dicom
from memlib.data.images.pictures import READINGS, Picture, Undecodable, oddities_of, open_image, read_picture
from memlib.errors import DataError, UserError
from memlib.identity import canonical_json, file_digest
from memlib.sanitize import is_text, one_line
from memlib.store.permissions import PRIVATE, make_folder, user_folder

ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
HEADER = 256  # bytes of a file by which DICOM is known
REHASH = "MEMLIB_REHASH"
MEMO_ROWS = 2_000  # files whose digests are committed together
MOST_CLASSES = 1_000_000
NO_BOXES: NDArray[np.int64] = np.zeros((0, 4), dtype=np.int64)


@dataclass(frozen=True)
class Example:
    """One image, or point, of a source."""

    example_id: str  #: path or row within the source.
    #: (height, width, 3) uint8, RGB; or intensities of more than 8 bits, (height, width) or (height, width, 3), which are
    #: scaled once for the source; or a point, (dim,) float32.
    image: NDArray[Any]
    label: int  #: index into the source's class_names.
    boxes: NDArray[np.int64]  #: (num_boxes, 4) int64, half-open pixel rectangles x0, y0, x1, y1 of the objects; may be empty.
    oddities: tuple[str, ...] = ()  #: descriptions of what was corrected when the image was read.
    window: tuple[float, float] | None = None  #: intensities of black and white, if the file states them.


@dataclass(frozen=True)
class Caption:
    """A caption, and all objects in its image."""

    text: str  #: the caption.
    objects: tuple[str, ...]  #: names of the objects, named by the caption or not.


class UnreadableImage(ValueError):
    """Error for an image that cannot be decoded; it carries the id and label so that the image can be listed."""

    def __init__(self, example_id: str, label: int, reason: str) -> None:
        super().__init__(f"{one_line(example_id)}: {one_line(reason)}")
        self.example_id, self.label, self.reason = example_id, label, reason


class Source(Protocol):
    """Interface of a data set that the pipeline reads.

    A source of points has the attribute `point_dim`, their dimension. The optional attribute `remarks` is a list of lines
    that are shown to the user before training; the optional attribute `attributes` is a mapping from names of attributes
    beyond the class to their values (text) by example id; the optional attribute `captions` is a mapping from example ids to
    captions.
    """

    class_names: list[str]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...
    def content_digest(self) -> str:
        """Return a digest that changes exactly when the source's content does."""
        ...


def decode_example(
    data: bytes | Image.Image,
    example_id: str,
    label: int,
    boxes: Callable[[Picture], NDArray[np.int64]] = lambda picture: NO_BOXES,
) -> Example:
    """Decode an image into an example.

    Args:
        data: the encoded or opened image.
        boxes: function that returns the boxes of the objects, given the decoded picture.

    Raises:
        UnreadableImage: for an image that cannot be decoded, and for boxes that do not fit it.
    """
    try:
        picture = read_picture(data)
        return Example(example_id, picture.pixels, label, boxes(picture), picture.oddities, picture.window)
    except Undecodable as error:
        raise UnreadableImage(example_id, label, str(error)) from error


def check_no_fractions(boxes: Sequence[Sequence[float]], where: str) -> None:
    """Refuse boxes in fractions of the picture, as in YOLO's format; read as pixels, they would cover a single pixel.

    Args:
        boxes: the four numbers of each box.
        where: location of the boxes, for the message.

    Raises:
        DataError: when all numbers lie in [0, 1] and some are not integers.
    """
    values = [value for box in boxes for value in box]
    if any(value != int(value) for value in values if math.isfinite(value)) and all(0 <= value <= 1 for value in values):
        raise DataError(f"{where} has boxes in fractions of the picture, as in YOLO's format; give them in pixels")


def numbered_classes(largest: int, where: str) -> list[str]:
    """Return the class names "0", "1", ... for classes that are only numbered.

    Args:
        largest: the largest label.
        where: location of the labels, for the message.

    Raises:
        DataError: for a label that is too large for a class index.
    """
    if largest >= MOST_CLASSES:
        raise DataError(f"{where}: label {largest} is not a class index; classes are numbered from 0")
    return [str(label) for label in range(largest + 1)]


# -- content of a folder or bucket --------------------------------------------------------------------


def is_hidden(name: str) -> bool:
    """Return True if a path has a hidden part; notebooks and archivers leave copies of files in hidden folders."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def find_files(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return the file system's details of every file below `root`, by full path; an empty dict if there are no files.

    Raises:
        DataError: when the file system cannot be listed (no network, no permission), or the name of a file is not UTF-8.
    """
    try:
        files: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:  # each file system raises different errors
        raise DataError(f"cannot list {root}: {type(error).__name__}: {error}") from error
    for name in files:
        if not is_text(name):
            how = "convmv -r -f latin1 -t utf8 --notest FOLDER renames files from Latin-1"
            raise DataError(f"the name of the file {name!a} is not UTF-8; {how}")
    return files


def list_files(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return the details of every file by path relative to `root`, sorted; follow links to folders inside allowed roots.

    Raises:
        DataError: as in `find_files`, and for links that lead outside the root and the allowed roots.
    """
    root = root.rstrip("/")
    files = find_files(fs, root)
    listing = {name[len(root) + 1 :]: files[name] for name in sorted(files) if name != root}
    check_links(fs, root, listing)
    if not isinstance(fs, LocalFileSystem):
        return listing
    seen = {Path(root).resolve()}
    while links := [name for name, info in listing.items() if info.get("islink") and Path(info["name"]).is_dir()]:
        for link in links:
            inner = listing.pop(link)["name"]
            if Path(inner).resolve() not in seen:  # else a cycle of links
                seen.add(Path(inner).resolve())
                more = find_files(fs, inner)
                listing |= {name[len(root) + 1 :]: more[name] for name in more if name != inner}
        check_links(fs, root, listing)
    return dict(sorted(listing.items()))


def check_no_archives(names: Iterable[str], path: str) -> None:
    """Raise DataError if images lie in archives of many files, as those of webdataset do."""
    if archive := next((name for name in names if name.lower().endswith(ARCHIVES)), None):
        raise DataError(
            f"{path}: archives such as {archive.rpartition('/')[2]} (webdataset) are not read; unpack them, and write a "
            "table of images and labels (kind: csv) or class folders (kind: image_folder)"
        )


def listing_digest(
    fs: Any,
    root: str,
    listing: Mapping[str, Mapping[str, Any]],
    *,
    look: Callable[[str], Collection[str]] | None = None,
    looks_for: str = "",
) -> str:
    """Return a digest of a listing: path, size, and content hash (local) or ETag (object stores) of each file.

    Local hashes are cached by path, size, inode and modification times, so that an unchanged folder of any size is read
    once; copying or touching the files does not change the digest. MEMLIB_REHASH in the environment bypasses the cache.

    The digest of a source with images that an earlier version of memlib decoded differently (see `pictures.READINGS`) differs
    from the digest of that version. All other sources keep their digest, so that no model is retrained needlessly.

    Args:
        fs, root: file system and folder of the files.
        listing: file names below the root, with the file system's details of each.
        look: function that returns the oddities of the images in a local file, given its path; None if the files hold no
            images. Remote files would have to be fetched, so they count as having the oldest oddities in READINGS.
        looks_for: parameters of `look` other than the file; part of the cache key.
    """
    local = isinstance(fs, LocalFileSystem)
    odd = set[str]()
    with _HashMemo() as memo:
        rows = []
        for name, info in listing.items():
            tag = memo.digest(Path(info["name"])) if local else info.get("ETag") or info.get("LastModified")
            rows.append([name, info["size"], str(tag)])
            odd |= memo.oddities(Path(info["name"]), look, looks_for) if local and look is not None else set()
    digest = hashlib.sha256(canonical_json(rows).encode()).hexdigest()
    if look is not None and not local:
        return f"{digest}{READINGS[-1][0]}"
    return digest + next((mark for mark, oddities in READINGS if oddities & odd), "")


def look_at_image(path: str) -> Collection[str]:
    """Return the oddities that the header of an image file shows."""
    try:
        with open(path, "rb") as file:
            start = file.read(HEADER)
            if is_dicom(start):
                return oddities_of(start + file.read())
            file.seek(0)
            with open_image(file) as image:
                return oddities_of(image)
    except Exception:  # the file is reported when it is decoded
        return ()


class _HashMemo:
    """Cache, in the user's cache folder, of the SHA-256 of local files and of the oddities of their images.

    Entries are committed in batches: one commit per file would take longer than reading a small file.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[str, str]]] = {"digests": [], "oddities": []}

    def __enter__(self) -> "_HashMemo":
        try:
            folder = user_folder("cache")
            make_folder(folder, PRIVATE.folder)
            self._db = sqlite3.connect(folder / "digests.sqlite", timeout=5, isolation_level=None)
            self._make_tables()
        except (OSError, sqlite3.Error, UserError):  # no cache folder: hash every time
            self._db = sqlite3.connect(":memory:")
            self._make_tables()
        return self

    def _make_tables(self) -> None:
        self._db.execute("create table if not exists digests (mark text primary key, sha256 text)")
        self._db.execute("create table if not exists oddities (mark text primary key, said text)")

    def __exit__(self, *_: object) -> None:
        for table in self._found:
            self._write_down(table)
        self._db.close()

    def digest(self, path: Path) -> str:
        return self._remembered("digests", "sha256", self._mark(path), lambda: file_digest(path))

    def oddities(self, path: Path, look: Callable[[str], Collection[str]], looks_for: str) -> frozenset[str]:
        mark = f"{READINGS[0][0]}:{looks_for}:{self._mark(path)}"
        lines = self._remembered("oddities", "said", mark, lambda: "\n".join(sorted(look(str(path)))))
        return frozenset(filter(None, lines.split("\n")))

    def _mark(self, path: Path) -> str:
        stat = path.stat()  # ctime, as mtime can be set back after a write
        return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_dev}:{stat.st_ino}"

    def _remembered(self, table: str, column: str, mark: str, find: Callable[[], str]) -> str:
        row = self._db.execute(f"select {column} from {table} where mark = ?", (mark,)).fetchone()
        if row is not None and not os.environ.get(REHASH):
            return str(row[0])
        value = find()
        self._found[table].append((mark, value))
        if len(self._found[table]) >= MEMO_ROWS:
            self._write_down(table)
        return value

    def _write_down(self, table: str) -> None:
        rows, self._found[table] = self._found[table], []
        with contextlib.suppress(sqlite3.Error):  # another process is writing; the cache is optional
            self._db.execute("begin immediate")
            self._db.executemany(f"insert or replace into {table} values (?, ?)", rows)
            self._db.execute("commit")
