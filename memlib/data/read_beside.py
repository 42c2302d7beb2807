"""Digests of what stages read beside artifacts: data, models, outputs, and lists of their owner."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memlib.identity import KEY, KEY_LENGTH
from memlib.pipeline.sources import is_source
from memlib.specs.data import POOL
from memlib.store import Ref, Store

LONG = re.compile(rf"[0-9a-f]{{{KEY_LENGTH},}}")
OF_SOURCES = frozenset({"source", "text"})  # which may look like keys, as users' sources choose their digests


def reads_of(stages: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return the digests of what stages read beside artifacts, by stage and role.

    Args:
        stages: name and inputs of each stage.
    """
    found = defaultdict[str, set[str]](set)
    for stage, inputs in stages:
        for role, value in inputs.items():
            if role not in _of_examples():
                texts = {text for text in _texts(value) if role in OF_SOURCES or not KEY.fullmatch(text)}
                found[f"{stage} {role}"] |= {text if LONG.fullmatch(text) else _hashed(text) for text in texts}
    return {name: sorted(digests) for name, digests in sorted(found.items()) if digests}


def _hashed(text: str) -> str:
    """Return the digest of a description, as of generated data or of the files of a model."""
    return hashlib.sha256(text.encode()).hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in an input; inputs of a mapping that name examples are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for role, inner in value.items():
            if role not in _of_examples():
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def read_beside_data(store: Store, refs: Iterable[Ref]) -> frozenset[str]:
    """Return the digests of what artifacts were made from beside data and other artifacts: models, outputs, lists."""
    made = store.artifacts.manifests_of([ref for ref in refs if not is_source(ref)])
    read = reads_of((ref.stage, manifest.inputs) for ref, manifest in made.items())
    return frozenset(digest for digests in read.values() for digest in digests)


def _of_examples() -> frozenset[str]:
    """Return the inputs that name examples: they follow from data, recipe and code, which are compared themselves."""
    from memlib.data.splits import ROLES  # loads scipy

    return frozenset({*ROLES, *POOL, "examples", "query", "canary"})
