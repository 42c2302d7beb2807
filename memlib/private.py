"""Files and folders that are nobody else's from the first byte, and temporary folders that the next run sweeps."""

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
from pathlib import Path
from typing import Literal

from memlib.errors import UserError

Mode = Literal["private", "group", "open"]
MODES: tuple[Mode, ...] = ("private", "group", "open")
SETTLING_SECONDS = 60.0  # between making a temporary folder and locking it lies less
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
    """What others may do with a store's files.

    Args:
        mode: private: nothing; group: the group may read and write all, as several people use the store; open: all may read
            results and the runs' manifests.
        secret: whether it is an artifact, a page or anything else that may show training data.
    """
    if mode == "group":
        return _GROUP
    return _OPEN if mode == "open" and not secret else PRIVATE


def mode_like(folder: Path) -> Mode:
    """The mode that a folder of the user's suggests: group where its group may write to it."""
    try:
        return "group" if folder.stat().st_mode & stat.S_IWGRP else "private"
    except OSError:
        return "private"


def make_folder(path: Path, bits: int) -> None:
    """Makes a folder and those above it that are missing; none is ever more open than it will be.

    A folder that is there is left as it is.
    """
    missing = []
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            folder.mkdir(mode=bits & 0o700)
            os.chmod(folder, bits | (folder.stat().st_mode & stat.S_ISGID))


def write_file(path: Path, data: bytes, bits: int) -> None:
    """Writes a new file, which has its permissions before it has content.

    Raises:
        FileExistsError: when there is one, or a link.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits & 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, bits)
        file.write(data)


def copy_file(source: Path, path: Path, bits: int) -> None:
    """Copies into a new file, which has its permissions before it has content."""
    write_file(path, b"", bits)
    with source.open("rb") as given, path.open("wb") as taken:
        shutil.copyfileobj(given, taken, 2**20)


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a regular file: pipes and devices are not waited for.

    Raises:
        FileNotFoundError: when there is none.
        OSError: when it is no regular file, or larger than `most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is not a regular file")
        if facts.st_size > most:
            raise OSError(f"{path} has {facts.st_size} bytes; at most {most} are read")
        return file.read()


@contextlib.contextmanager
def scratch(purpose: str, base: Path | None = None) -> Iterator[Path]:
    """A temporary folder for private files, which goes with the block, or with the next run where this one was killed.

    Args:
        purpose: stands in its name.
        base: where it is made; by default where temporary files go.
    """
    base = Path(tempfile.gettempdir()) if base is None else base
    _sweep_once(str(base))
    outer = Path(tempfile.mkdtemp(prefix=f"memlib-{purpose}-", dir=base))
    lock = open(outer / LOCK, "w")  # noqa: SIM115 - held as long as the folder lives
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
    """Removes temporary folders of ours whose process has died."""
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
        except OSError:  # its process lives
            return False
    return True


def user_folder(kind: str) -> Path:
    """Memlib's folder among the user's: cache or config.

    Raises:
        UserError: where the machine knows no home.
    """
    variable = f"XDG_{kind.upper()}_HOME"
    named = os.environ.get(variable)
    if named:
        return Path(named) / "memlib"
    try:
        return Path.home() / f".{kind}" / "memlib"
    except RuntimeError as error:
        raise UserError(f"this machine knows no home folder of yours; set HOME or {variable}") from error
