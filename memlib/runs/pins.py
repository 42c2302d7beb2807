"""Pins of runs: the exact content of each artifact on which a run is based, checked wherever an artifact of a run is read."""

import hashlib
import json
from collections.abc import Iterable

from memlib.errors import CorruptArtifact
from memlib.identity import canonical_json
from memlib.runs.records import Pin, RunRecord
from memlib.store import Ref, Store
from memlib.store.records import DIGEST, ArtifactRecord

AS_READ = "as_read.parquet"
"""File of decoded tables with the digests of rows as they are in the source. Earlier versions did not write it, and no result
rests on it: pins leave it out, so that a table can be decoded again by this version.
"""
_HERE = frozenset({"worker", "machine", "software", "ran"})  # facts of the process that computed
_MADE = frozenset({"version", "definitions", "code", "named", "spec", "inputs", "reads", "content", "software", "source"})


def pins_of(store: Store, refs: Iterable[Ref]) -> dict[str, Pin]:
    """Return the pin of each artifact by address; a pin distinguishes the artifact from any recomputed version."""
    return {str(ref): pin_of(manifest) for ref, manifest in sorted(store.artifacts.manifests_of(refs).items(), key=str)}


def pin_of(manifest: ArtifactRecord) -> Pin:
    """Return the pin of an artifact: its attempt, and digests of its files, its facts, its making and its whole manifest."""
    files = {name: file.sha256 for name, file in manifest.files.items() if name != AS_READ}
    facts = {name: value for name, value in manifest.facts.items() if name not in _HERE}
    made = {name: value for name, value in manifest.model_dump().items() if name in _MADE}
    return Pin(
        attempt=manifest.attempt,
        files=hashlib.sha256(canonical_json(files).encode()).hexdigest(),
        facts=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        made=hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest(),
        sealed=(manifest.model_extra or {}).get(DIGEST),
    )


def is_pinned(pin: Pin, manifest: ArtifactRecord) -> bool:
    """Return whether an artifact is the very attempt that a run pins; older pins record less of it."""
    known = pin.model_dump(exclude_none=True)
    return known == pin_of(manifest).model_dump(include=set(known))


def unlike_pin(pin: Pin, manifest: ArtifactRecord, *, made: bool = False) -> str:
    """Return how an artifact differs from what a run pins; "" if it is the same, or was recomputed with equal results.

    Args:
        made: whether a recomputed artifact must also have been made in the same way.
    """
    now = pin_of(manifest)
    if now.files != pin.files:
        return "has been recomputed with different content"
    if now.facts != (pin.facts or now.facts) or (now.attempt == pin.attempt and now.sealed != (pin.sealed or now.sealed)):
        return "has a manifest that has been changed"
    if made and now.made != (pin.made or now.made):
        return "records code, commit, software, spec or reads that differ"
    return ""


def pinned_manifest(store: Store, run: RunRecord, ref: Ref) -> ArtifactRecord:
    """Return the manifest of an artifact of a run, if it is still the one that the run pins.

    Artifacts of runs from before runs had pins are returned as they are.

    Raises:
        CorruptArtifact: when it is missing, damaged, not pinned, or another one.
    """
    manifest = store.artifacts.manifest(ref)
    _check(run, ref, manifest)
    return manifest


def check_pinned(store: Store, run: RunRecord) -> None:
    """Check that the artifacts of a run are those that it pins, as far as the store still holds them.

    Raises:
        CorruptArtifact: when one is another.
    """
    for ref, manifest in store.artifacts.manifests_of(map(Ref.parse, run.pins)).items():
        _check(run, ref, manifest)


def _check(run: RunRecord, ref: Ref, manifest: ArtifactRecord) -> None:
    pin = run.pins.get(str(ref))
    problem = "is not what the run is based on" if pin is None else unlike_pin(pin, manifest)
    if run.pins and problem:
        ending = f"since it was published; run its audit again, or see memlib verify {run.run}"
        raise CorruptArtifact(f"run {run.run}: its {ref.stage} {ref.key[:8]} {problem} {ending}", ref)
