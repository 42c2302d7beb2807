"""How much a file may unfold to, and how far a name may lead: data come from people whom nobody knows."""

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

from memlib.errors import UserError

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
)  # what zipfile and NumPy raise of archives that are damaged, encrypted, or packed in ways that they do not know


def most_pixels() -> int:
    """Pixels that an image may have: MEMLIB_MAX_PIXELS, or 100 million."""
    return _setting("MEMLIB_MAX_PIXELS", MOST_PIXELS)


def most_bytes() -> int:
    """Bytes that a compressed file may unfold to: MEMLIB_MAX_BYTES, or 32 GiB."""
    return _setting("MEMLIB_MAX_BYTES", MOST_BYTES)


def _setting(name: str, default: int) -> int:
    said = os.environ.get(name, "")
    if said and not (said.isascii() and said.isdigit() and int(said) > 0):
        raise UserError(f"{name} is {said!r}; it is a number of at least 1")
    return int(said) if said else default


def read_pieces(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yield a file that is unpacked while it is read, up to the bound.

    Raises:
        UserError: when it is longer.
    """
    most, size = most_bytes(), 0
    while part := file.read(PIECE):
        size += len(part)
        if size > most:
            raise UserError(f"{path} unfolds to more than {most} bytes; if that is right, raise MEMLIB_MAX_BYTES")
        yield part


def check_pixels(image: Any) -> None:
    """Refuses an image (Pillow's, not yet decoded) with more pixels than the bound.

    Raises:
        ValueError: saying how many.
    """
    if image.width * image.height > most_pixels():
        raise ValueError(f"{image.width} x {image.height} pixels; if that is right, raise MEMLIB_MAX_PIXELS")


def check_arrays(path: Path) -> None:
    """Refuses an .npz file whose arrays claim to be larger than what it holds, or than the bound.

    Raises:
        UserError: naming the array.
        UNREADABLE_ZIP: when it is no such file.
    """
    most = most_bytes()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                try:
                    shape, _, dtype = read(file)
                except (tokenize.TokenError, SyntaxError) as error:  # which NumPy lets through
                    raise ValueError(f"array {entry.filename} has no header that can be read") from error
            size = math.prod(shape) * dtype.itemsize
            if size > min(most, entry.file_size):
                raise UserError(f"{path}: array {entry.filename} claims {size} bytes, but it holds {entry.file_size}")


def check_inside(fs: Any, root: str, name: str, said_by: str) -> None:
    """Refuses a file that is not below a source's root, by its name or through a link.

    Args:
        fs, root: of the source.
        name: relative to the root.
        said_by: what names it, for the message.

    Raises:
        UserError: naming it.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise UserError(f"{said_by} names {name!r}, which does not lie below {root}")
    if isinstance(fs, LocalFileSystem):
        _check_links(Path(root), Path(root) / name, said_by)


def check_links(fs: Any, root: str, listing: Mapping[str, Mapping[str, Any]]) -> None:
    """The same for the links among listed files."""
    if isinstance(fs, LocalFileSystem):
        for name, info in listing.items():
            if info.get("islink"):
                _check_links(Path(root), Path(root) / name, f"a link in {root}")


def _check_links(root: Path, path: Path, said_by: str) -> None:
    allowed = [root, *(Path(part) for part in os.environ.get(ROOTS, "").split(os.pathsep) if part)]
    real = path.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in allowed):
        raise UserError(
            f"{said_by} leads from {path.name} to {real}, outside of {root}; if it may, name that folder in {ROOTS}"
        )
