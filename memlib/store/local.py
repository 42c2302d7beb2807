"""Backend of a store in a folder of this machine's file system, which may be shared between nodes."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from typing_extensions import override

from memlib.errors import RunError, UserError
from memlib.store.backend import HALF_WRITTEN_SECONDS, TMP, Backend, Damaged, Facts
from memlib.store.permissions import (
    PRIVATE,
    Mode,
    Permissions,
    copy_file,
    make_folder,
    mode_like,
    open_plain,
    read_plain,
    write_file,
)
from memlib.store.records import MOST_BYTES, FileRecord, Unreadable

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)  # of a store that can only be read
TIMES = 3
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # file systems without hard links


class Local(Backend):
    """A store's files in a local folder.

    Args:
        file_system: fsspec's local file system.
        root: absolute path of the folder.
    """

    is_local = True

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        super().__init__()
        self.file_system, self.uri, self.root = file_system, root, root.rstrip("/")

    @override
    def read(self, path: str) -> bytes | None:
        try:
            return read_plain(Path(self.at(path)), MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unreadable(str(error)) from error

    @override
    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        contents = {}
        for path in paths:
            with contextlib.suppress(Unreadable):
                content = self.read(path)
                if content is not None:
                    contents[path] = content
        return contents

    @override
    def digest(self, path: str) -> str:
        with open_plain(Path(self.at(path))) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @override
    def read_range(self, path: str, start: int, end: int) -> bytes:
        with open_plain(Path(self.at(path))) as file:
            file.seek(start)
            return file.read(end - start)

    @override
    def entries(self, folder: str) -> list[str] | None:
        at = Path(self.root, folder)
        if not folder and at.is_file():
            raise UserError(f"{self.uri} is a file; a store must be a folder")
        try:
            return os.listdir(at)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @override
    def listing(self, folder: str) -> dict[str, Facts]:
        base = self._plain(folder)
        if base is None:
            return {}
        if base.is_file():
            facts = base.stat()
            return {folder: (facts.st_size, facts.st_mtime)}
        return dict(_files_below(str(base), folder))

    @override
    def walk(self, folder: str) -> Iterator[tuple[str, Facts]]:
        base = self._plain(folder)
        if base is not None:
            yield from _files_below(str(base), folder)

    @override
    def links(self, folder: str) -> list[str]:
        at = Path(self.root, folder)
        if at.is_symlink() or (at.exists() and not (at.is_dir() or at.is_file())):
            return [folder]
        return sorted(_links_below(str(at), folder)) if at.is_dir() else []

    def _plain(self, path: str) -> Path | None:
        """Return a path below the root, or None if a part of it is a link."""
        at = Path(self.root)
        for part in path.split("/"):
            at = at / part
            if at.is_symlink():
                return None
        return at

    @override
    def create(self, path: str, data: bytes, bits: int) -> bool:
        part, target = self._part(), self.at(path)
        write_file(part, data, bits)
        try:
            os.link(part, target)
        except FileExistsError:
            return self.read(path) == data  # true if this call wrote the file but NFS repeated the request
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            part.replace(target)  # the last writer wins, as on S3 without conditional writes
        finally:
            part.unlink(missing_ok=True)
        return True

    @override
    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        target = Path(self.at(path))
        part = self._part()
        try:
            if isinstance(source, bytes):
                write_file(part, source, bits)
            else:
                copy_file(source, part, bits)
            _into_folder(target.parent, folder_bits, lambda: part.replace(target))
        finally:
            part.unlink(missing_ok=True)
        return str(target)

    def _part(self) -> Path:
        """Return a path for a temporary file in the same file system as the store."""
        return Path(self.root, TMP, f"{uuid.uuid4().hex}.part")

    @override
    def make_folder(self, path: str, bits: int) -> None:
        make_folder(Path(self.root, path), bits)

    @override
    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            plain = self._plain(path)
            if plain is None:
                raise RunError(f"{self.at(path)} is reached through a link; memlib removes nothing behind links")
            if plain.is_dir():
                shutil.rmtree(plain)
            else:
                plain.unlink()

    @override
    def drop_empty(self, path: str) -> None:
        folder = self._plain(path)
        while folder is not None and Path(self.root) not in (folder, folder.parent):  # others are about to write to these
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # not empty, or a file
                return
            folder = folder.parent

    @override
    def clock(self) -> float:
        part = self._part()
        try:
            write_file(part, b"memlib", PRIVATE.file)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            return time.time()  # nothing is written here, so nothing here is younger than this
        try:
            return part.stat().st_mtime
        finally:
            part.unlink(missing_ok=True)

    @override
    def sweep(self, now: float) -> None:
        for part in Path(self.root, TMP).glob("*.part"):
            with contextlib.suppress(OSError):
                if part.lstat().st_mtime < now - HALF_WRITTEN_SECONDS:
                    part.unlink()

    @override
    def suggested_mode(self) -> Mode:
        return mode_like(Path(self.root))

    @override
    @contextlib.contextmanager
    def filling(self, folder: str, bits: Permissions) -> Iterator[Path]:
        path = Path(self.at(folder))
        _into_folder(path.parent, bits.folder, lambda: path.mkdir(mode=PRIVATE.folder))
        yield path

    @override
    def send(self, filled: Path, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Do nothing: the files were written in place."""

    @override
    def keep(self, filled: Path, files: Mapping[str, FileRecord]) -> None:
        """Do nothing: the files were written in place."""

    @override
    def check_there(self, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Do nothing: `local` checks the files themselves."""

    @override
    def local(self, path: str, expected: FileRecord) -> Path:
        file = Path(self.at(path))
        if problem := self._problem(file, expected):
            raise Damaged(problem)
        return file

    @override
    def forget(self, expected: FileRecord) -> None:
        """Do nothing: there are no copies."""


def _into_folder(folder: Path, bits: int, move: Callable[[], object]) -> None:
    """Create a folder and move something into it, again if another process has removed the folder, still empty, meanwhile."""
    for _ in range(TIMES):
        with contextlib.suppress(FileNotFoundError):
            make_folder(folder, bits)
            move()
            return
    move()


def _links_below(base: str, name: str) -> Iterator[str]:
    """Yield the names of links, and of all else below a folder that is neither a regular file nor a folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in list(os.scandir(base)):
            if entry.is_dir(follow_symlinks=False):
                yield from _links_below(entry.path, f"{name}/{entry.name}")
            elif not entry.is_file(follow_symlinks=False):
                yield f"{name}/{entry.name}"


def _files_below(base: str, name: str) -> Iterator[tuple[str, Facts]]:
    """Yield the name and facts of each regular file below a folder; files that disappear meanwhile are left out."""
    try:
        entries = list(os.scandir(base))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path, f"{name}/{entry.name}")
                continue
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                yield f"{name}/{entry.name}", (facts.st_size, facts.st_mtime)
