"""Meeting places of training workers: a file of a private folder on one machine, their nodes' addresses on several."""

import os
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
    """Ray's settings for torch.distributed, with the process group's store in a file; TCPStore listens on all interfaces."""

    folder: str = ""  #: private folder on the machine of all workers.

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


class MeetAtAddress(TorchConfig):
    """Ray's settings for torch.distributed; Gloo's connections use the network interface of each node's address in Ray.

    By itself, Gloo uses the interface of the host's name, which is loopback on many hosts (Debian's /etc/hosts). A user's own
    GLOO_SOCKET_IFNAME is kept.
    """

    @property
    def backend_cls(self) -> type["_AtAddress"]:
        """The class that Ray calls when a group of workers starts and ends."""
        return _AtAddress


class _AtAddress(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, TorchConfig)
        worker_group.execute(_name_interface)
        super().on_start(worker_group, backend_config)


def _name_interface() -> None:
    name = interface_of(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def interface_of(address: str) -> str | None:
    """Return the network interface with an address, preferably one that is up; None if there is none."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    names = [
        name for name, found in psutil.net_if_addrs().items() if address in {one.address.partition("%")[0] for one in found}
    ]
    states = psutil.net_if_stats()
    return next((name for name in names if name in states and states[name].isup), next(iter(names), None))


def _join(path: str, backend: str, rank: int, size: int, seconds: int) -> None:
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
