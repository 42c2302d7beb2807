"""Ray on demand: connecting, calling a function once for each part of a stage, noticing that no node is left for it."""

import contextlib
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memlib import code
from memlib.errors import CorruptArtifact, EngineLost, ResourcesError, RunError, UserError
from memlib.journal import LOG_VARIABLE
from memlib.private import scratch
from tasks.runtime import Context

RAY_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # halves the cost of a short fit
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # where Ray was stopped, nothing may start another one
}
WORKER_SETTINGS = {  # freed memory is kept: returning it to the system after every step costs a quarter of the time
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
}
OBJECT_STORE_BYTES = 128 * 2**20  # nothing large travels through Ray's own store
MOST_ASKED = 1000  # parts that wait in a cluster, which may grow for them
LOOK_SECONDS = 5.0  # between two looks at the cluster while nothing ends
LONGEST_SOCKET, OWN_SOCKET = 107, 91  # characters of a socket's path; of what Ray puts below its folder
_starting = threading.Lock()
_own = contextlib.ExitStack()  # of a Ray of our own: its folder, until it ends


def start_ray(context: Context) -> Any:
    """The ray module, connected: to the cluster the resources name, or to one of our own on this machine."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if context.resources.ray_address is None and "RAY_AUTH_MODE" not in os.environ:
        # parts of Ray listen on all addresses, whatever it is told; nobody else on the network knows this token
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if context.resources.ray_address is None:  # all of it is on this machine, where nobody restarts it
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "15")
        os.environ.setdefault("AUTOSCALER_METRIC_PORT", "-1")  # these would be told to whoever asks
    import ray

    with _starting:
        if not ray.is_initialized():
            _connect(ray, context)
    return ray


def _connect(ray: Any, context: Context) -> None:
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
            "_temp_dir": _own_folder(),
        }
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises plain ones where a part of it dies at the start
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        said = (str(error).strip(" .\n") or type(error).__name__).splitlines()[0]
        if address is None:
            raise EngineLost(f"cannot start {where} ({said}); run the same command again") from error
        look = "resources.ray_address, and RAY_AUTH_MODE=token and RAY_AUTH_TOKEN where the cluster wants a token"
        raise RunError(f"cannot reach {where} ({said}); see {look}") from error


def _own_folder() -> str:
    """A folder for Ray's sockets and logs that nobody else on this machine can enter: Ray itself lets all write its logs.

    Raises:
        RunError: when there is no place for one.
    """
    named = os.environ.get("RAY_TMPDIR")
    places = [named] if named else [tempfile.gettempdir(), "/tmp"]
    base = next((place for place in places if len(place) + OWN_SOCKET <= LONGEST_SOCKET), None)
    if base is None:
        raise RunError(f"{places[0]} is too long a path for Ray's sockets; name a shorter one by RAY_TMPDIR or TMPDIR")
    try:
        return str(_own.enter_context(scratch("ray", Path(base))))
    except OSError as error:
        raise RunError(f"Ray cannot have a folder below {base} ({error}); name another one by RAY_TMPDIR") from error


def _check_address(address: str | None) -> None:
    """Fails at once where nothing listens; Ray itself would try for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=20).close()
    except OSError as error:
        raise RunError(f"cannot reach the Ray cluster at {address} ({error}); see resources.ray_address") from error


def needs_of(ray: Any, context: Context, stage: str, *, gpu: bool = True) -> dict[str, float]:
    """What a part of a stage asks a node for, as Ray counts it: CPU, GPU, memory in bytes, and the site's own names.

    Args:
        ray, context, stage: the cluster, the run, the stage.
        gpu: whether it can use one.
    """
    asked, resources = context.resources.of(stage), context.resources
    gpus = asked.gpus
    if gpus is None:
        wanted = resources.gpu if resources.gpu is not None else ray.cluster_resources().get("GPU", 0) >= 1
        gpus = 1.0 if wanted and gpu else 0.0
    needs: dict[str, float] = {"CPU": float(asked.cpus or resources.threads_per_worker or 1)}
    needs |= {"GPU": gpus} if gpus else {}
    needs |= {"memory": asked.memory_gb * 2**30} if asked.memory_gb else {}
    needs |= {f"accelerator_type:{asked.accelerator_type}": 0.001} if asked.accelerator_type else {}
    return needs | dict(asked.custom)


def places(ray: Any, needs: Mapping[str, float]) -> int:
    """How many parts with these needs the living nodes hold at once."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(kind, 0) // amount) for kind, amount in needs.items()) for node in nodes)


@contextlib.contextmanager
def demand(needs: Mapping[str, float], parts: int) -> Iterator[None]:
    """Asks a cluster that grows for nodes with room for these parts; any other takes no notice."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(needs)] * parts)
    try:
        yield
    finally:
        request_resources(bundles=[])


def in_words(needs: Mapping[str, float]) -> str:
    """What a part asks for, for a message."""
    shown = {name: f"{amount / 2**30:g} GiB" if name == "memory" else f"{amount:g}" for name, amount in needs.items()}
    return " and ".join(
        name.partition(":")[2] if name.startswith("accelerator_type:") else f"{amount} {name}"
        for name, amount in shown.items()
    )


class Watch:
    """Says when a stage has waited long enough: for its time limit, or for a node that could carry it.

    Ray itself waits for ever for resources that went away with a node.
    """

    def __init__(self, ray: Any, context: Context, stage: str, needs: Mapping[str, float], *, parts: int = 1) -> None:
        self._ray, self._stage, self._needs, self._parts = ray, stage, needs, parts
        self._limit, self._patience = context.resources.of(stage).timeout, context.resources.room_timeout
        self._started = self._had_room = time.monotonic()

    def look(self) -> None:
        """Raises RunError when it is too late."""
        now = time.monotonic()
        if self._limit is not None and now - self._started > self._limit:
            raise RunError(
                f"{self._stage} still ran after {self._limit:g} s (resources.stages.{self._stage}.timeout); stopped"
            )
        if places(self._ray, self._needs) >= self._parts:
            self._had_room = now
        elif now - self._had_room > self._patience:
            raise RunError(
                f"for {self._patience:g} s (resources.room_timeout) the Ray cluster has had no room for {self._parts} x "
                f"{in_words(self._needs)}, which {self._stage} needs; add nodes and run the same command again"
            )


def map_on_ray(
    context: Context,
    stage: str,
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    progress: Callable[[int, int], None],
    near: Sequence[str | None] = (),
    *,
    gpu: bool = True,
) -> list[str]:
    """Calls a function once for each tuple of arguments, in Ray tasks of one thread, or of a GPU each.

    The function gets its number of threads as a last argument. Killed workers and lost nodes are survived by trying
    again; no more tasks are submitted than keep the cluster busy and let it grow, however many calls there are.

    Args:
        context: of the run.
        stage: whose needs the calls have.
        function: returns lines that must be seen, and the seconds that it took.
        calls: its arguments.
        progress: called with (calls done, calls in all).
        near: ids of the nodes that have what the calls read; they go there when there is room.
        gpu: whether the calls can use one.

    Returns:
        the lines that must be seen, each once.

    Raises:
        UserError, RunError: the first that a call raised, once all have ended, with the number of failures; or at once
            when the stage's time is over, or the cluster has lost all nodes that could carry it.
    """
    ray = start_ray(context)
    needs = needs_of(ray, context, stage, gpu=gpu)
    _refuse_without_room(ray, context, stage, needs)
    threads = int(needs["CPU"])
    asked = context.resources.of(stage)
    options: dict[str, Any] = {"num_cpus": threads, "num_gpus": needs.get("GPU", 0), "resources": dict(asked.custom)}
    options |= {"memory": needs["memory"]} if "memory" in needs else {}
    options |= {"accelerator_type": asked.accelerator_type} if asked.accelerator_type else {}
    # where one is not set, the cluster's own machines decide
    here = {name: os.environ[name] for name in (code.VARIABLE, LOG_VARIABLE) if os.environ.get(name)}
    settings = WORKER_SETTINGS | here
    remote = ray.remote(**options, max_retries=3, runtime_env={"env_vars": settings})(function)
    watch, limit = Watch(ray, context, stage, needs), asked.parallel
    waiting = list(zip(calls, near or [None] * len(calls), strict=True))[::-1]
    running: list[Any] = []
    failures: list[Exception] = []
    said: list[str] = []
    looked, slots = -LOOK_SECONDS, 1
    asked_for = MOST_ASKED if context.resources.ray_address is not None else 1  # a cluster grows for tasks that wait
    try:
        while waiting or running:
            if time.monotonic() - looked >= LOOK_SECONDS:
                context.check_going()
                watch.look()
                room = max(2 * places(ray, needs), asked_for, 2)  # the next parts wait beside those under way
                looked, slots = time.monotonic(), min(room, limit or room)
            while waiting and len(running) < slots:
                call, node = waiting.pop()
                running.append(_near(remote, node).remote(*call, threads))
            finished, running = ray.wait(running, num_returns=1, timeout=LOOK_SECONDS)
            for done in finished:
                try:
                    lines, seconds = ray.get(done)
                    said += lines
                    context.spend(1, seconds)
                except ray.exceptions.RayError as error:
                    failures.append(_cause(ray, error))
            progress(len(calls) - len(waiting) - len(running), len(calls))
    except BaseException:
        with contextlib.suppress(Exception):  # Ray may be gone
            for task in running:
                ray.cancel(task, force=True)
        raise
    if failures:
        raise _joined(failures, len(calls))
    return list(dict.fromkeys(said))


def _near(remote: Any, node: str | None) -> Any:
    """The remote function, on that node when it lives and has room."""
    if node is None:
        return remote
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True))


def _refuse_without_room(ray: Any, context: Context, stage: str, needs: Mapping[str, float]) -> None:
    """On our own machine no node will join: what does not fit never will."""
    if context.resources.ray_address is None and places(ray, needs) < 1:
        raise ResourcesError(
            f"{stage} needs {in_words(needs)} a part, which this machine does not have; see resources.stages"
        )


def _cause(ray: Any, error: Exception) -> Exception:
    """What went wrong in a task, as whoever runs the audit should hear of it."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause  # what Ray makes of it begins with a traceback
        if isinstance(cause, OSError):  # a full disk
            return RunError(f"{type(cause).__name__}: {cause}")
        found: Exception = cause if isinstance(cause, UserError | RunError) else error.as_instanceof_cause()
        return found
    return RunError(f"a worker was lost again and again ({str(error).strip().splitlines()[0]})")


def _joined(failures: Sequence[Exception], count: int) -> Exception:
    first = failures[0]
    if len(failures) == 1 or not isinstance(first, UserError | RunError):
        return first
    said = f"{first} ({len(failures)} of {count} parts failed)"
    damaged = next((failure.ref for failure in failures if isinstance(failure, CorruptArtifact)), None)
    if damaged is not None:
        return CorruptArtifact(said, damaged)
    return UserError(said) if isinstance(first, UserError) else RunError(said)


def as_lost(error: BaseException) -> BaseException:
    """An error as whoever runs the audit should hear of it: Ray's own say what has died in many lines."""
    ray = sys.modules.get("ray")
    if ray is None or not isinstance(error, ray.exceptions.RayError):
        return error
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return EngineLost(f"Ray has died under the run ({said}); run the same command again")


def stop_ray() -> None:
    """Disconnects, if Ray was ever started in this process."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
    _own.close()
