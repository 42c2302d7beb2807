"""Files and folders that are never more accessible than intended, and temporary folders that the next run cleans up."""

import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from memlib.errors import UserError

Mode = Literal["private", "group", "open"]
MODES: tuple[Mode, ...] = ("private", "group", "open")
SETTLING_SECONDS = 60.0  # longer than the time between creating and locking a temporary folder
LOCK = ".lock"


@dataclass(frozen=True)
class Permissions:
    """Permission bits of files and folders."""

    file: int
    folder: int


PRIVATE = Permissions(0o600, 0o700)
_GROUP = Permissions(0o660, 0o770)
_OPEN = Permissions(0o644, 0o755)


def permissions(mode: Mode, *, secret: bool) -> Permissions:
    """Return the permissions of a store's files and folders.

    Args:
        mode: "private": only the owner has access; "group": the group may read and write everything, for stores shared by
            several people; "open": everybody may read the results and manifests of runs.
        secret: whether the file is an artifact, a page or anything else that may reveal training data.
    """
    if mode == "group":
        return _GROUP
    return _OPEN if mode == "open" and not secret else PRIVATE


def mode_like(folder: Path) -> Mode:
    """Return the mode suggested by an existing folder's permissions: group if it is group-writable, else private."""
    try:
        return "group" if folder.stat().st_mode & stat.S_IWGRP else "private"
    except OSError:
        return "private"


def make_folder(path: Path, bits: int) -> None:
    """Create a folder and its missing parents; none is ever more accessible than its final permissions allow.

    An existing folder is left unchanged.
    """
    missing = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
            folder.mkdir(mode=bits & 0o700)
            os.chmod(folder, bits | (folder.stat().st_mode & stat.S_ISGID))


def write_file(path: Path, data: bytes, bits: int) -> None:
    """Write a new file whose permissions are set before its content.

    Raises:
        FileExistsError: when the path exists, even as a link.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits & 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, bits)
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a private file, replacing an earlier one as a whole; missing folders are created.

    Raises:
        UserError: when it cannot be written.
    """
    try:
        make_folder(path.parent, PRIVATE.folder)
        with scratch("file", path.parent) as folder:
            write_file(folder / path.name, data, PRIVATE.file)
            (folder / path.name).replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def copy_file(source: Path, path: Path, bits: int) -> None:
    """Copy to a new file whose permissions are set before its content."""
    write_file(path, b"", bits)
    with source.open("rb") as reader, path.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 2**20)


def read_plain(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file, without blocking on pipes or devices.

    Raises:
        FileNotFoundError: when it does not exist.
        OSError: when it is not a regular file, or larger than `most` bytes.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{path} has {size} bytes; at most {most} are read")
        return file.read()


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading, without blocking on pipes or devices.

    Raises:
        FileNotFoundError: when it does not exist.
        OSError: when it is not a regular file.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


@contextlib.contextmanager
def scratch(purpose: str, base: Path | None = None) -> Iterator[Path]:
    """Create a temporary folder for private files; it is removed after the block, or by the next run if this one is killed.

    Args:
        purpose: part of the folder's name.
        base: parent folder; by default the system's folder for temporary files.
    """
    base = Path(tempfile.gettempdir()) if base is None else base
    _sweep_once(str(base))
    outer = Path(tempfile.mkdtemp(prefix=f"memlib-{purpose}-", dir=base))
    lock = open(outer / LOCK, "w")  # noqa: SIM115 - held until the folder is removed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inner = outer / "files"
        inner.mkdir(mode=0o700)
        yield inner
    finally:
        lock.close()
        shutil.rmtree(outer, ignore_errors=True)


@functools.cache
def _sweep_once(base: str) -> None:
    sweep(Path(base))


def sweep(base: Path) -> None:
    """Remove the temporary folders of this user's memlib processes that have died."""
    for folder in base.glob("memlib-*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and _is_abandoned(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    if lock.lstat().st_mtime > time.time() - SETTLING_SECONDS:
        return False
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the process that created the folder is alive
            return False
    return True


def user_folder(kind: str) -> Path:
    """Return memlib's folder in the user's home (or XDG) folder.

    Args:
        kind: "cache" or "config".

    Raises:
        UserError: when the user has no home folder.
    """
    variable = f"XDG_{kind.upper()}_HOME"
    base = os.environ.get(variable)
    if base:
        return Path(base) / "memlib"
    try:
        return Path.home() / f".{kind}" / "memlib"
    except RuntimeError as error:
        raise UserError(f"this user has no home folder; set HOME or {variable}") from error
