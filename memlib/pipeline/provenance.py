"""Provenance of an artifact, recorded beside its key: the code, the libraries, and the exact content of its inputs.

A key identifies the requested work. Two artifacts with the same key may still differ because code was changed without raising
its stage's version, or because the machines round differently. `content_digest` distinguishes the first case from the
second.
"""

from __future__ import annotations

import functools
import getpass
import importlib.metadata
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlib.errors import RunError
from memlib.pipeline.arithmetic import machine
from memlib.pipeline.user_code import files_run, identity_now, identity_of
from memlib.version import AGAIN, ROOT, SOURCES, VERSION, check_sources

if TYPE_CHECKING:
    import torch

LIBRARIES = (
    "torch", "torchvision", "numpy", "scipy", "scikit-learn", "pyarrow", "faiss-cpu", "faiss-gpu", "ray", "prefect",
    "transformers", "tokenizers", "peft", "timm", "open-clip-torch", "opacus", "pillow", "pydicom", "xgboost",
)  # fmt: skip


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
        "sources": SOURCES,
    }


def check_code(provenance: Mapping[str, Any]) -> None:
    """Check that this process has run the code that a manifest is about to record, and that nobody has changed it since.

    Raises:
        RunError: when files of memlib, or of a module that the recipe names, were changed while the run was under way.
    """
    if "sources" in provenance:
        check_sources(provenance["sources"])
    for module, code in provenance.get("named", {}).items():
        if not code == identity_of(module) == identity_now(module):
            raise RunError(f"the code of {module} changed while the run was under way; {AGAIN}")


def made_here(provenance: Mapping[str, Any], device: torch.device, threads: int) -> dict[str, Any]:
    """Return facts of the process that computes: its machine, libraries other than the driver's, and files of the user's.

    Args:
        provenance: entries of the manifest, from the driver of the run.
    """
    others = {name: version for name, version in software().items() if provenance.get("software", {}).get(name) != version}
    found = {"software": others if "software" in provenance else {}, "ran": files_run(provenance.get("named", ()))}
    return {"machine": machine(device, threads), **{name: value for name, value in found.items() if value}}


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
    folder = ROOT
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
