"""Digests of a run's data sources and of their examples."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from memlib.identity import canonical_json
from memlib.pipeline.stage import AnyArtifact
from memlib.store import Ref
from memlib.tables import read_table

DATA_STAGES = ("decode", "secret/corpus", "documents")
KEPT, LENGTH = 16, 12  # number of digests by which examples are recognized, and their length


def examples_of(artifacts: Iterable[AnyArtifact]) -> list[str]:
    """Return the 16 smallest digests of the examples in a run's decoded sources; overlapping sources tend to share some."""
    found: set[str] = set()
    for artifact in {artifact.ref: artifact for artifact in artifacts if artifact.ref.stage == DATA_STAGES[0]}.values():
        for digest in artifact.content.index["digest"].drop_null().to_pylist():
            found.add(hashlib.sha256(digest.encode()).hexdigest()[:LENGTH])
    return sorted(found)[:KEPT]


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
