"""The place where training workers of one machine meet: a file in a private folder, not a port that others can reach."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
from ray.train.backend import BackendConfig
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend


@dataclass
class MeetInFile(TorchConfig):
    """Ray's settings for torch.distributed, with the process group's store in a file; TCPStore listens on all interfaces.

    Attributes:
        folder: private folder on the machine of all workers.
    """

    folder: str = ""

    @property
    def backend_cls(self) -> type["_InFile"]:
        """The class that Ray calls when a group of workers starts and ends."""
        return _InFile


class _InFile(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, MeetInFile)
        path = str(Path(backend_config.folder) / uuid.uuid4().hex)  # workers that are started again must not find the old one
        size, seconds = len(worker_group), backend_config.timeout_s
        joining = [
            worker_group.execute_single_async(rank, _join, path, backend_config.backend, rank, size, seconds)
            for rank in range(size)
        ]
        ray.get(joining)


def _join(path: str, backend: str, rank: int, size: int, seconds: int) -> None:
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
