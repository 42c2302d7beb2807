"""What a run carries from task to task, Ray on demand, and progress for people."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from memlib.errors import UserError
from memlib.specs import Resources
from memlib.store import Store

RAY_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # halves the cost of a short fit
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
OBJECT_STORE_BYTES = 128 * 2**20  # nothing large travels through Ray's own store


@dataclass
class Context:
    """A run's store, resources and display; and what it found and made, for its manifest."""

    store: Store
    resources: Resources = field(default_factory=Resources)
    quiet: bool = False
    reused: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._console = Console(stderr=True, markup=False)
        self.live = self._console.is_terminal and not self.quiet

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda" if torch.cuda.is_available() and self.resources.gpu is not False else "cpu")

    def say(self, text: str) -> None:
        """A line about what is going on, for someone who watches."""
        if self.live:
            self._console.print(text, style="dim", highlight=False)

    def warn(self, text: str) -> None:
        """A line that must be seen, also in a log."""
        self._console.print(f"warning: {text}", style="yellow" if self.live else None, highlight=False, soft_wrap=True)

    @contextmanager
    def bars(self) -> Iterator["Bars"]:
        """Progress bars on a terminal, nothing elsewhere."""
        if not self.live:
            yield Bars(None)
            return
        columns = (
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield Bars(progress)

    @contextmanager
    def counter(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """A bar for one loop, moved by calling it with (done, total)."""
        with self.bars() as bars:
            yield lambda done, total: bars.move(name, done, total)


class Bars:
    """Named progress bars that appear when they first move."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def move(self, name: str, done: int, total: int, note: str = "") -> None:
        """Shows that `done` of `total` are finished."""
        if self._progress is None:
            return
        with self._lock:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._tasks[name], completed=done, total=total, note=note)


def start_ray(context: Context) -> Any:
    """The ray module, connected: to the cluster the resources name, or to one of our own on loopback."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    if not ray.is_initialized():
        address = context.resources.ray_address
        _check_address(address)
        context.say(f"starting Ray{f' at {address}' if address else ' on this machine'}")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "memlib"}
        if address is None:
            options |= {
                "address": "local",  # also where RAY_ADDRESS names a cluster
                "_node_ip_address": "127.0.0.1",
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "num_cpus": os.cpu_count(),
            }
        else:
            options["address"] = address
        try:
            ray.init(**options)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"the Ray cluster at {address}" if address else "Ray on this machine"
            said = str(error).strip().splitlines()[0]
            raise UserError(f"cannot start or reach {where} ({said}); see resources.ray_address") from error
    return ray


def _check_address(address: str | None) -> None:
    """Fails at once where nothing listens; Ray itself would try for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=20).close()
    except OSError as error:
        raise UserError(f"cannot start or reach the Ray cluster at {address} ({error}); see resources.ray_address") from error


def run_on_cluster(context: Context, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a Ray task, on a GPU when the cluster has one; a lost node is survived by trying again."""
    ray = start_ray(context)
    use_gpu = context.resources.gpu is not False and ray.cluster_resources().get("GPU", 0) >= 1
    options = {"num_cpus": context.resources.threads_per_worker or 1, "num_gpus": int(use_gpu), "max_retries": 3}
    try:
        return ray.get(ray.remote(**options)(function).remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from error


def stop_ray() -> None:
    """Disconnects, if Ray was ever started in this process."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
