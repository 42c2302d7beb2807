"""Collectives between workers exchange bytes alone, so that no data from the network are unpickled."""

import multiprocessing
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from memlib.errors import RunError
from memlib.models import collectives
from memlib.models.collectives import share, share_files

ROOT = Path(__file__).parents[3]
VALUES: list[Any] = [None, True, 7, -1, 0.1, float("inf"), "a proböem", [1, "x"], {"a": None}]


def _worker(rank: int, meeting: str, folders: list[str], found: Any) -> None:
    collectives.PIECE = 1000
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    values = [share(value if rank == 0 else "of the second", None, cpu) for value in VALUES]
    share_files(Path(folders[rank]), None, cpu)
    found.put((rank, values))
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
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    with tempfile.TemporaryDirectory() as meeting:
        where = (f"{meeting}/store", [str(folder) for folder in folders], found)
        workers = [context.Process(target=_worker, args=(rank, *where)) for rank in range(2)]
        for worker in workers:
            worker.start()
        answers = dict(found.get(timeout=300) for _ in workers)
        for worker in workers:
            worker.join(timeout=300)
    assert answers == {0: VALUES, 1: VALUES}
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
