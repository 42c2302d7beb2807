"""What a run carries from task to task, Ray on demand, and progress for people."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Store

RAY_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # halves the cost of a short fit
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
WORKER_SETTINGS = {  # freed memory is kept: returning it to the system after every step costs a quarter of the time
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
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


def run_on_cluster(context: Context, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function in a Ray task, on a GPU when the cluster has one; a lost node is survived by trying again."""
    map_on_ray(context, function, [arguments], lambda done, total: None)


def map_on_ray(
    context: Context,
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    progress: Callable[[int, int], None],
) -> None:
    """Calls a function once for each tuple of arguments, in Ray tasks of one thread, or of a GPU each.

    The function gets its number of threads as a last argument. Killed workers and lost nodes are survived by trying
    again; no more tasks are submitted than keep the cluster busy.

    Raises:
        UserError, RunError: the first that a call raised, once all have ended, with the number of failures.
    """
    ray = start_ray(context)
    use_gpu = context.resources.gpu is not False and ray.cluster_resources().get("GPU", 0) >= 1
    threads = context.resources.threads_per_worker or 1
    options = {"num_cpus": threads, "num_gpus": int(use_gpu), "max_retries": 3, "runtime_env": {"env_vars": WORKER_SETTINGS}}
    remote = ray.remote(**options)(function)
    slots = 2 * max(1, int(ray.cluster_resources().get("GPU" if use_gpu else "CPU", 1)) // (1 if use_gpu else threads))
    waiting, running, failures = list(calls)[::-1], [], []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(remote.remote(*waiting.pop(), threads))
        finished, running = ray.wait(running, num_returns=1)
        for done in finished:
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                said = isinstance(error.cause, UserError | RunError)  # what Ray makes of it begins with a traceback
                failures.append(error.cause if said else error.as_instanceof_cause())
            except ray.exceptions.RayError as error:
                failures.append(RunError(f"a worker was lost again and again ({str(error).strip().splitlines()[0]})"))
        progress(len(calls) - len(waiting) - len(running), len(calls))
    if failures:
        raise _joined(failures, len(calls))


def _joined(failures: Sequence[Exception], count: int) -> Exception:
    first = failures[0]
    if len(failures) == 1 or not isinstance(first, UserError | RunError):
        return first
    kind = UserError if isinstance(first, UserError) else RunError
    return kind(f"{first} ({len(failures)} of {count} parts failed)")


def stop_ray() -> None:
    """Disconnects, if Ray was ever started in this process."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
