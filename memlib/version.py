"""The version of memlib, and its source files as this process found them before it imported any other module of memlib."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

VERSION = "0.1.0"  # as in pyproject.toml
ROOT = Path(__file__).parents[1]
PACKAGES = ("memlib", "tasks", "flows")
AGAIN = "run the same command again (in a notebook, restart its kernel first)"


def source_files(root: Path = ROOT) -> Mapping[str, str]:
    """Return the sha256 of each source file of memlib, tasks and flows, by path below their common folder."""
    digests = {}
    for path in sorted(path for package in PACKAGES for path in _files(f"{root}/{package}")):
        with open(path, "rb", buffering=0) as file:
            digests[path.removeprefix(f"{root}/")] = hashlib.sha256(file.read()).hexdigest()
    return digests


def _files(folder: str) -> Iterator[str]:
    """Yield the files below a folder, without bytecode and hidden files, such as those of editors."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:  # an installation may lack the command line
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            yield entry.path


def digest_of(files: Mapping[str, str]) -> str:
    """Return a digest (from sha256) of source files and their content."""
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in files.items()).encode()).hexdigest()[:32]


AT_START = source_files()
SOURCES = digest_of(AT_START)


def check_sources(expected: str) -> None:
    """Check that this process runs the source files of a run, and that they are still the same.

    A process imports modules when it first needs them. So only if the files are equal before the first import and after the
    last one, it is known which code has computed.

    Args:
        expected: digest of the run's source files, as `SOURCES`.

    Raises:
        RunError: when they differ.
    """
    now = source_files()
    changed = sorted(name for name in AT_START.keys() | now.keys() if AT_START.get(name) != now.get(name))
    if changed:
        others = f" and {len(changed) - 1} more of memlib's files were" if len(changed) > 1 else " was"
        problem = f"{changed[0]}{others} changed while the run was under way, so what was computed meanwhile is not kept"
    elif expected != SOURCES:
        problem = (
            "this process runs other source files of memlib than the run's driver: they were changed while the run was under "
            "way, or another memlib is installed on this machine"
        )
    else:
        return
    from memlib.errors import RunError

    raise RunError(f"{problem}; {AGAIN}")
