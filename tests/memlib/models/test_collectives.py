"""Collectives between workers exchange bytes alone, so that no data from the network are unpickled."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from memlib.errors import RunError
from memlib.models import collectives
from memlib.models.collectives import share, share_files
from tests.forks import together

ROOT = Path(__file__).parents[3]
VALUES: list[Any] = [None, True, 7, -1, 0.1, float("inf"), "a proböem", [1, "x"], {"a": None}]


def _worker(rank: int, meeting: str, folders: list[str]) -> None:
    collectives.PIECE = 1000
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    values = [share(value if rank == 0 else "of the second", None, cpu) for value in VALUES]
    share_files(Path(folders[rank]), None, cpu)
    Path(f"{meeting}.{rank}").write_text(json.dumps(values))
    dist.barrier()
    dist.destroy_process_group()


def test_values_and_files_of_the_first_worker_reach_the_others(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "sub").mkdir()
    contents = {"a.bin": bytes(range(256)) * 10, "sub/b.txt": b"text", "empty": b"", "whole": b"x" * 2000}
    for name, content in contents.items():
        (folders[0] / name).write_bytes(content)
    together(_worker, str(tmp_path / "store"), [str(folder) for folder in folders])
    assert [json.loads((tmp_path / f"store.{rank}").read_text()) for rank in range(2)] == [VALUES, VALUES]
    assert {name: (folders[1] / name).read_bytes() for name in contents} == contents


@pytest.mark.parametrize("folder", ["memlib", "tasks", "flows"])
def test_no_collective_exchanges_objects(folder: str) -> None:
    named = re.compile(r"broadcast_object_list|gather_object|scatter_object|send_object|recv_object")
    assert not [path for path in (ROOT / folder).rglob("*.py") if named.search(path.read_text())]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../b", ""])
def test_file_names_sent_by_another_worker_cannot_leave_the_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "share", lambda *_: [[name, 0]])
    monkeypatch.setattr(dist, "get_rank", lambda *_: 1)
    (tmp_path / "own").mkdir()
    with pytest.raises(RunError, match="does not lie below its folder"):
        share_files(tmp_path / "own", None, torch.device("cpu"))
    assert [path.name for path in tmp_path.rglob("*")] == ["own"]
