"""Parts of a stage go where what they read is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from memlib.specs import Resources
from memlib.store import Ref, Store
from tasks.runtime import Context
from tasks.stage import _nodes_near

MODEL = Ref("train_nets", "0" * 32)


@dataclass(frozen=True)
class Part:
    near: Ref | None


@pytest.mark.parametrize(
    ("uri", "address", "near", "found"),
    [
        ("memory://b/s", "auto", MODEL, "node-1"),
        ("memory://b/s", "auto", None, None),
        ("memory://b/s", None, MODEL, None),  # one machine has but one node
        ("local", "auto", MODEL, None),  # a shared folder is as near to all
    ],
)
def test_a_part_goes_to_the_node_that_made_what_it_reads(
    tmp_path: Path, uri: str, address: str | None, near: Ref | None, found: str | None
) -> None:
    fsspec.filesystem("memory").store.clear()
    store = Store(str(tmp_path / "store") if uri == "local" else uri, cache=str(tmp_path / "cache"))
    with store.write(MODEL) as attempt:
        attempt.facts["worker"] = {"node_id": "node-1"}
        attempt.path("a").write_text("a")
    part: Any = Part(near)
    assert _nodes_near(Context(store, Resources(ray_address=address)), [part, part]) == [found, found]
