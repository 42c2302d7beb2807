"""Limits on decompressed sizes and on the paths that file names may refer to, as data can come from untrusted sources."""

import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from memlib.errors import DataError, UserError

MOST_PIXELS = 100_000_000
MOST_BYTES = 32 * 2**30
ROOTS = "MEMLIB_DATA_ROOTS"
PIECE = 2**20
UNREADABLE_ZIP = (
    OSError,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)  # raised by zipfile and NumPy for archives that are damaged, encrypted, or compressed by an unknown method


def most_pixels() -> int:
    """Return the largest number of pixels of an image: MEMLIB_MAX_PIXELS, or 100 million."""
    return _setting("MEMLIB_MAX_PIXELS", MOST_PIXELS)


def most_bytes() -> int:
    """Return the largest decompressed size of a file in bytes: MEMLIB_MAX_BYTES, or 32 GiB."""
    return _setting("MEMLIB_MAX_BYTES", MOST_BYTES)


def _setting(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    if value and not (value.isascii() and value.isdigit() and int(value) > 0):
        raise UserError(f"{name} is {value!r}; set it to a whole number of at least 1")
    return int(value) if value else default


def read_pieces(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yield the content of a file that is decompressed while it is read.

    Raises:
        DataError: when the content is longer than `most_bytes`.
    """
    size = 0
    while part := file.read(PIECE):
        size += len(part)
        check_size(path, size)
        yield part


def check_size(path: str, size: int) -> None:
    """Raise DataError if the decompressed content of a file has more than `most_bytes` bytes."""
    if size > (most := most_bytes()):
        raise DataError(f"{path} decompresses to more than {most} bytes; if the size is right, raise MEMLIB_MAX_BYTES")


def check_pixels(image: Any) -> None:
    """Refuse a Pillow image, before it is decoded, if it has more than `most_pixels` pixels.

    Raises:
        ValueError: when the image is too large; the message gives its size.
    """
    if image.width * image.height > most_pixels():
        raise ValueError(
            f"{image.width} x {image.height} pixels exceed the limit; if the size is right, raise MEMLIB_MAX_PIXELS"
        )


def check_arrays(path: Path) -> None:
    """Refuse an .npz file with an array whose header claims more bytes than the archive entry or than `most_bytes`.

    Raises:
        DataError: when there is such an array; the message names it.
        UNREADABLE_ZIP: when the file is not an .npz file.
    """
    most = most_bytes()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                try:
                    shape, _, dtype = read(file)
                except (tokenize.TokenError, SyntaxError) as error:  # not converted by NumPy
                    raise ValueError(f"the header of array {entry.filename} cannot be read") from error
            size = math.prod(shape) * dtype.itemsize
            if size > min(most, entry.file_size):
                raise DataError(
                    f"{path} is damaged: the header of array {entry.filename} states {size} bytes, but the file holds "
                    f"{entry.file_size}"
                )


def check_inside(fs: Any, root: str, name: str, said_by: str) -> None:
    """Refuse a file whose name lies outside a source's root, or whose link leads outside the root and MEMLIB_DATA_ROOTS.

    Args:
        fs, root: file system and root of the source.
        name: path relative to the root.
        said_by: description of the file or link that refers to `name`, for the message.

    Raises:
        DataError: when the file lies outside; the message names it.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise DataError(f"{said_by} names {name!r}, which does not lie below {root}")
    if isinstance(fs, LocalFileSystem):
        _check_links(Path(root), Path(root) / name, said_by)


def check_links(fs: Any, root: str, listing: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse links among listed files that lead outside the source's root and the folders of MEMLIB_DATA_ROOTS.

    Raises:
        DataError: when there is such a link; the message names it.
    """
    if isinstance(fs, LocalFileSystem):
        for name, info in listing.items():
            if info.get("islink"):
                _check_links(Path(root), Path(root) / name, f"a link in {root}")


def _check_links(root: Path, path: Path, said_by: str) -> None:
    allowed = [root, *(Path(part) for part in os.environ.get(ROOTS, "").split(os.pathsep) if part)]
    try:
        real = path.resolve()
    except (OSError, RuntimeError):  # Python's for a loop of links
        raise DataError(f"{said_by}: {path.name} leads to itself; remove it") from None
    if not any(real.is_relative_to(folder.resolve()) for folder in allowed):
        raise DataError(
            f"{said_by} leads from {path.name} to {real}, outside of {root}; to allow this link, "
            f"add the folder of its target to {ROOTS}"
        )
