"""Comparison of the code, the libraries and the processor that made an artifact with those of this process."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from memlib.errors import CorruptArtifact
from memlib.identity import file_digest
from memlib.pipeline.definitions import equal_codes
from memlib.pipeline.provenance import software
from memlib.pipeline.stage import AnyStage
from memlib.sanitize import plain
from memlib.store import Ref, Store
from memlib.store.records import ArtifactRecord

UNTRACED = "some artifacts are of an earlier memlib that did not record their code, so whether it has changed is unknown"
MOST_DIFFERENCES = 4  # that a line lists


class OldCode:
    """The stages of a run whose artifacts are reused although what made them has changed within the same version.

    Code that was confirmed to give the same results (`make pins`) counts as unchanged.

    Attributes:
        changed: names of the stages whose code has changed, as accepted by --force-stage.
        differing: names of the stages that other libraries or another kind of processor computed, with the differences.
        untraced: whether an artifact is reused whose code cannot be compared.
    """

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.differing: dict[str, dict[str, None]] = {}
        self.untraced = False

    def note(self, store: Store, ref: Ref, stage: AnyStage) -> list[str]:
        """Compare what made a committed artifact with this process; return the new lines for the user."""
        before = self.lines
        with contextlib.suppress(CorruptArtifact):
            manifest, named, name = store.artifacts.manifest(ref), stage.named_code, ref.stage_name
            self.untraced |= manifest.definitions is None or not named.keys() <= manifest.named.keys()
            if name not in self.changed and is_changed(manifest, stage):
                self.changed.append(name)
            if found := dict.fromkeys(differences(manifest)):
                self.differing[name] = self.differing.get(name, {}) | found
        return [line for line in self.lines if line not in before]

    @property
    def lines(self) -> list[str]:
        """Lines for the user."""
        lines = [UNTRACED] if self.untraced else []
        if self.changed:
            problem = "its code has changed since its artifact was made, but its version has not"
            if len(self.changed) > 1:
                problem = "their code has changed since their artifacts were made, but their versions have not"
            lines.append(f"{', '.join(self.changed)}: {problem}; {_reused(self.changed)}")
        if self.differing:
            found = list(dict.fromkeys(one for differences in self.differing.values() for one in differences))
            more = f" and {len(found) - MOST_DIFFERENCES} more" if len(found) > MOST_DIFFERENCES else ""
            made = f"made with {', '.join(found[:MOST_DIFFERENCES])}{more}, so that computed again their numbers may differ"
            lines.append(f"{', '.join(self.differing)}: {made}; {_reused(self.differing)}")
        return lines


def _reused(stages: list[str] | Mapping[str, object]) -> str:
    forced = " ".join(f"--force-stage {name}" for name in stages)
    return f"old artifacts are reused ({forced} recomputes them)"


def is_changed(manifest: ArtifactRecord, stage: AnyStage) -> bool:
    """Return whether the code of memlib or the user's that made an artifact has changed; False if it was not recorded."""
    if manifest.definitions is None:
        return False
    others = any(manifest.named.get(module, code) != code for module, code in stage.named_code.items())
    kind = type(stage)
    equal = {kind.code(), *equal_codes(kind.__module__, kind.__qualname__)}
    return manifest.definitions not in equal or others or any(_changed_files(manifest))


def _changed_files(manifest: ArtifactRecord) -> Iterator[str]:
    """Yield the files of the user's that ran when an artifact was made, and have changed since; absent ones are skipped."""
    ran = manifest.facts.get("ran")
    for path, digest in ran.items() if isinstance(ran, dict) else ():
        with contextlib.suppress(OSError):
            if Path(path).is_file() and file_digest(Path(path)) != digest:
                yield path


def other_libraries(manifest: ArtifactRecord, here: Mapping[str, str]) -> Iterator[str]:
    """Yield the libraries of an artifact's making that have other versions here, but for those on which no number depends."""
    for name, version in here.items():
        there = manifest.libraries.get(name)
        if name not in ("memlib", "ray", "prefect") and there is not None and there != version:
            yield f"{name} {plain(there)} (here {version})"


def differences(manifest: ArtifactRecord) -> Iterator[str]:
    """Yield the libraries, and the kind of processor, that differ between an artifact's making and this process."""
    yield from other_libraries(manifest, software())
    machine, torch = manifest.facts.get("machine"), sys.modules.get("torch")
    there = machine.get("cpu") if isinstance(machine, dict) else None
    if torch is not None and there is not None and there != (here := torch.backends.cpu.get_cpu_capability()):
        yield f"{there} (here {here})"
