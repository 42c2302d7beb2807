"""Resume states: unfinished work from which a stage continues after an interruption."""

import contextlib
import json
import time
import uuid
from pathlib import Path

from memlib.identity import file_digest
from memlib.store.backend import HALF_WRITTEN_SECONDS
from memlib.store.place import Place
from memlib.store.records import MANIFEST, ResumeRecord, Unreadable, parse, sealed

KEPT_RESUME_STATES = 2


class ResumeStates:
    """Resume states in resume/<key>/<step>-<attempt>/, by the key of the future artifact; the newest intact one is used.

    Args:
        place: the folder or prefix of the store.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def save(self, key: str, step: int, folder: Path) -> None:
        """Publish the state in `folder` as the newest state for artifact key `key`, and delete the oldest states."""
        target = f"resume/{key}/{step:012d}-{uuid.uuid4().hex[:12]}"
        files = self._place.describe(folder)
        try:
            for file in files:
                self._place.publish(f"{target}/{file}", folder / file, secret=True)  # unfinished work may contain anything
            record = {"files": {name: file.model_dump() for name, file in files.items()}}
            self._place.create(f"{target}/{MANIFEST}", json.dumps(sealed(record), indent=1, sort_keys=True).encode())
        except FileNotFoundError:
            return  # another driver has committed the artifact and deleted its resume states
        self._prune(key)

    def _prune(self, key: str) -> None:
        """Delete all but the newest states; another driver may be writing or pruning at the same time."""
        base = f"resume/{key}"
        listing = self._place.listing(base)
        written: dict[str, float] = {}
        for path, (_, when) in listing.items():
            state = f"{base}/{path.removeprefix(f'{base}/').split('/')[0]}"
            written[state] = max(when, written.get(state, 0.0))
        complete = sorted(state for state in written if f"{state}/{MANIFEST}" in listing)
        stale = [state for state in written if state not in complete and written[state] < time.time() - HALF_WRITTEN_SECONDS]
        for old in [*complete[:-KEPT_RESUME_STATES], *stale]:
            with contextlib.suppress(OSError):
                self._place.drop(old)

    def load(self, key: str, folder: Path) -> bool:
        """Copy the newest intact state into `folder`; return False if there is none."""
        for name in sorted(self._place.names(f"resume/{key}"), reverse=True):
            state = f"resume/{key}/{name}"
            with contextlib.suppress(Unreadable, OSError):
                content = self._place.backend.read(f"{state}/{MANIFEST}")
                if content is not None and all(
                    self._fetch(f"{state}/{file}", folder / file, expected.sha256)
                    for file, expected in parse(ResumeRecord, content).files.items()
                ):
                    return True
        return False

    def _fetch(self, path: str, copy: Path, digest: str) -> bool:
        """Copy a file; return whether its digest matches."""
        copy.parent.mkdir(parents=True, exist_ok=True)
        self._place.backend.file_system.get_file(self._place.backend.at(path), str(copy))
        return file_digest(copy) == digest

    def drop(self, key: str) -> None:
        """Delete the resume states of a committed artifact; another driver may be doing the same."""
        with contextlib.suppress(OSError):
            self._place.drop(f"resume/{key}")
