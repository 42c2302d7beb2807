"""Digests of a run's data sources and of their examples."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memlib.identity import canonical_json
from memlib.pipeline.stage import AnyArtifact
from memlib.runs.fingerprints import fingerprint_of, fingerprints_of
from memlib.runs.pins import AS_READ
from memlib.runs.records import Fingerprints
from memlib.store import Ref
from memlib.tables import read_table

DATA_STAGES = ("decode", "secret/corpus", "documents")
KEPT = 16  # number of digests by which runs of earlier versions recognize examples


def examples_of(artifacts: Iterable[AnyArtifact]) -> list[str]:
    """Return the 16 smallest digests of the examples in a run's decoded sources; overlapping sources tend to share some."""
    found = {fingerprint_of(digest) for artifact in _decoded(artifacts) for digest in _digests(artifact, "index.parquet")}
    return sorted(found)[:KEPT]


def fingerprints_in(artifacts: Iterable[AnyArtifact]) -> Fingerprints | None:
    """Return the fingerprints of the examples in a run's decoded sources; None without any, or if none were recorded."""
    digests: set[str] = set()
    for artifact in _decoded(artifacts):
        is_table = artifact.store.artifacts.manifest(artifact.ref).spec["source"]["kind"] == "table"
        if is_table and AS_READ not in artifact.files:
            return None
        digests.update(_digests(artifact, AS_READ if is_table else "index.parquet"))
    return fingerprints_of(digests)


def _decoded(artifacts: Iterable[AnyArtifact]) -> Iterator[AnyArtifact]:
    yield from {artifact.ref: artifact for artifact in artifacts if artifact.ref.stage == DATA_STAGES[0]}.values()


def _digests(artifact: AnyArtifact, name: str) -> list[str]:
    return [digest for digest in read_table(artifact.path(name), ["digest"])["digest"].drop_null().to_pylist() if digest]


def data_digest(artifacts: Iterable[AnyArtifact]) -> str:
    """Return a digest of the content of a run's data sources, independent of the decoded size; "" if it has no sources.

    Args:
        artifacts: artifacts of the run, including its decoded sources and corpora.
    """
    manifests = {
        artifact.ref: artifact.store.artifacts.manifest(artifact.ref) for artifact in artifacts if is_source(artifact.ref)
    }
    return digest_of((manifest.inputs, manifest.spec) for manifest in manifests.values())


def is_source(ref: Ref) -> bool:
    """Return whether an artifact holds the content of a data source."""
    return ref.stage in DATA_STAGES


def digest_of(sources: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return a digest of data sources; "" if there are none.

    Args:
        sources: inputs and spec of the stage that reads each source.
    """
    read = [[inputs.get("source") or inputs["text"], spec.get("source")] for inputs, spec in sources]
    return hashlib.sha256(canonical_json(sorted(read, key=canonical_json)).encode()).hexdigest() if read else ""


def ids_in(artifact: AnyArtifact) -> list[str]:
    """Return the ids of the examples in a decoded source; an empty list for text, whose windows are only counted."""
    name = "index.parquet"
    return list(read_table(artifact.path(name), ["example_id"])["example_id"].to_pylist()) if name in artifact.files else []
