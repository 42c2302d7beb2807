"""The place where training workers meet: a file in a private folder on one machine, their nodes' addresses on several."""

import contextlib
import os
import socket
import struct
import sys
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

SIOCGIFADDR = 0x8915  # Linux: the address of an interface

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
    """Return the network interface with an IPv4 address; None if there is none, or on systems other than Linux."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _join(path: str, backend: str, rank: int, size: int, seconds: int) -> None:
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
