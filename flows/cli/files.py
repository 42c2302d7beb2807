"""Files that commands write for the user."""

import os
from pathlib import Path

from memlib.errors import UserError
from memlib.store.permissions import PRIVATE, write_file


def write_new(path: Path, content: bytes) -> None:
    """Write a new file that is private from its first byte.

    Raises:
        UserError: if the file exists or cannot be written.
    """
    try:
        write_file(path, content, PRIVATE.file)
    except FileExistsError as error:
        raise UserError(f"{path} already exists; choose another file") from error
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def write_again(path: Path, content: bytes) -> None:
    """Write a file that is private if it is new; one that exists is overwritten and keeps its permissions, as in builds.

    Raises:
        UserError: if the file cannot be written.
    """
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, PRIVATE.file)) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error
