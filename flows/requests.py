"""What was asked of a store and has not ended: enough to go on without the recipe at hand."""

import contextlib
import json
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from memlib.errors import UserError
from memlib.identity import content_key
from memlib.specs import Resources, Spec
from memlib.store import Store

FOLDER = "requests"


@contextlib.contextmanager
def announced(store: Store, audit: str, recipe: Spec, resources: Resources, computed: Collection[str]) -> Iterator[str]:
    """Notes what is asked for while it is under way, and yields its id; what ends well or cannot even begin is forgotten.

    Args:
        store: where it runs.
        audit: its name on the command line.
        recipe, resources: what is asked for.
        computed: what it has made so far; a run that has made something is worth going on with.
    """
    asked = {"audit": audit, "recipe": recipe.model_dump(mode="json")}
    key = content_key("request", version=1, spec=asked, inputs={})[:12]
    note = asked | {
        "run": key, "title": str(getattr(recipe, "title", "")), "resources": resources.model_dump(mode="json"),
        "started": time.time(), "finished": None,
    }  # fmt: skip
    path = f"{FOLDER}/{key}.json"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.json"
        file.write_text(json.dumps(note, indent=1))
        store.publish(path, file)
    try:
        yield key
    except UserError:
        if not computed:
            store.drop(path)
        raise
    store.drop(path)


def unfinished(store: Store) -> list[dict[str, Any]]:
    """What was asked for and has not ended, or is under way; the newest first."""
    found = []
    for path in (path for path in store.listing(FOLDER) if path.endswith(".json")):  # a killed driver may leave half a note
        with contextlib.suppress(ValueError):
            content = store.published(path)
            if content is not None:
                found.append(json.loads(content))
    return sorted(found, key=lambda note: note["started"], reverse=True)
