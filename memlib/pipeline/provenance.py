"""Provenance of an artifact, recorded beside its key: the code, the libraries, and the exact content of its inputs.

A key identifies the requested work. Two artifacts with the same key may still differ because code was changed without raising
its stage's version, or because the machines round differently. `content_digest` distinguishes the first case from the
second.
"""

import functools
import getpass
import importlib.metadata
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlib.version import VERSION

LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "pyarrow", "faiss-cpu", "faiss-gpu", "ray", "prefect")


@dataclass(frozen=True)
class Declared:
    """A stage's declaration of its name and version."""

    name: str  #: the stage's name in the store.
    version: int  #: version of the code, raised whenever the stage's results change.


def provenance_of(version: int, definitions: str, reads: Mapping[str, str], named: Mapping[str, str]) -> dict[str, Any]:
    """Return the provenance that an artifact's manifest records.

    Args:
        definitions: digest of the stage's code, see `memlib.pipeline.definitions`.
        reads: content digests of the artifacts that the stage reads, by key.
        named: identities of the code that the recipe names, see `memlib.pipeline.user_code.identity_of`.
    """
    return {
        "version": version,
        "definitions": definitions,
        "reads": dict(reads),
        **({"named": dict(named)} if named else {}),
        "software": dict(software()),
        "source": dict(source_state()),
    }


@functools.cache
def software() -> Mapping[str, str]:
    """Return the versions of memlib, Python and the numerical libraries."""
    versions = {"memlib": VERSION, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # only one FAISS package is installed, and Ray is optional
            continue
    return versions


@functools.cache
def source_state() -> Mapping[str, str | bool]:
    """Return the commit that memlib runs from and whether tracked files differ from it; empty for an installed package."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return {}
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # git is missing, or refuses another user's checkout
        return {}
    return {"commit": commit, "dirty": bool(changed)}


def who() -> str:
    """Return user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
