"""Tables of scores, opened by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from memlib.runs.pins import pinned_manifest
from memlib.runs.records import RunRecord
from memlib.store import Ref, Store
from memlib.tables import read_table

PARTS_FILE = "parts.json"  # lists, for each table, the artifacts that hold its parts


class Tables:
    """The tables of an artifact, read on access by name; the parts of a large table may lie in other artifacts.

    Args:
        of: the run whose scores they are; nothing but what it pins is then read.
    """

    def __init__(self, store: Store, ref: Ref, *, of: RunRecord | None = None) -> None:
        self._store, self._artifacts, self._ref, self._run = store, store.artifacts, ref, of

    @classmethod
    def of_run(cls, store: Store, run: RunRecord) -> Tables:
        """Return the scores of a finished run.

        Reading them raises CorruptArtifact when they are damaged, or are not those that the run pins.
        """
        return cls(store, Ref.parse(run.artifacts["scores"]), of=run)

    def __getitem__(self, name: str) -> pa.Table:
        return pa.concat_tables(self.parts(name))

    def has(self, name: str) -> bool:
        """Return whether the artifact itself holds a table in a single file."""
        return f"{name}.parquet" in self._artifacts.manifest(self._ref).files

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the parts of a table; most tables have only one part."""
        return map(read_table, self.paths(name))

    def paths(self, name: str) -> Iterator[Path]:
        """Yield the local files of the parts of a table."""
        artifacts, listed = self._artifacts, {}
        if self._run is not None:
            pinned_manifest(self._store, self._run, self._ref)
        if PARTS_FILE in artifacts.manifest(self._ref).files:
            listed = json.loads(artifacts.local_path(self._ref, PARTS_FILE).read_text(encoding="utf-8"))
        for ref in map(Ref.parse, listed.get(name, [str(self._ref)])):
            if self._run is not None:
                pinned_manifest(self._store, self._run, ref)
            yield artifacts.local_path(ref, f"{name}.parquet")
