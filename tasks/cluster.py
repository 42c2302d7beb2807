"""Ray on demand: connect, call a function once per part of a stage, and give up when no node can run it."""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlib.errors import CorruptArtifact, EngineLost, ResourcesError, RunError, UserError
from memlib.pipeline import user_code
from memlib.running.limits import check_time
from memlib.runs.journal import LOG_VARIABLE
from memlib.settings import waiting
from memlib.specs import Resources
from memlib.specs.cores import cores
from memlib.store.permissions import scratch
from tasks.news import NEWS_SECONDS, hearing
from tasks.progress import Bars
from tasks.runtime import Context

RAY_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # halves the cost of a short fit
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # after Ray was stopped, no call may start it implicitly
}
WORKER_SETTINGS = {  # keep freed memory: returning it to the system after every step costs a quarter of the time
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
}
OBJECT_STORE_BYTES = 128 * 2**20  # no large data pass through Ray's object store
MOST_ASKED = 1000  # parts that are queued in a cluster, which may grow for them
NODE_LOST = "Ray died during the run (its node on this machine was lost); run the same command again"
LOOK_SECONDS = 5.0  # between two checks of the cluster while no part ends
LONGEST_SOCKET, OWN_SOCKET = 107, 91  # characters: limit of a socket's path; length of what Ray appends to its folder
LOOPBACK = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")  # interfaces for gradients
_starting = threading.Lock()
_inherited: dict[str, str] = {}  # environment variables with which a local Ray started, and with it all of its workers
_own = contextlib.ExitStack()  # holds the folder of a local Ray until it stops


@contextlib.contextmanager
def ray_started(resources: Resources) -> Iterator[None]:
    """Start Ray on this machine before a run in the block needs it; if it cannot start, the run reports it.

    It starts in a thread, where Ray leaves the handlers of signals alone. The thread lives as long as Ray, whose processes
    the kernel ends with the thread that started them.
    """
    tried, over = threading.Event(), threading.Event()

    def start() -> None:
        with contextlib.suppress(Exception):
            start_ray(Starting(resources))
        tried.set()
        over.wait()

    threading.Thread(target=start, daemon=True).start()
    try:
        yield
    finally:
        tried.wait()
        stop_ray()
        over.set()


@dataclass(frozen=True)
class Starting:
    """As much of a run's context as the start of Ray needs."""

    resources: Resources

    def say(self, text: str) -> None:
        """Print nothing."""


def start_ray(context: Context | Starting) -> Any:
    """Connect Ray to the cluster named in the resources, or start it on this machine; return the ray module."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if context.resources.ray_address is None and "RAY_AUTH_MODE" not in os.environ:
        # some Ray components listen on all addresses regardless of settings; a secret token keeps the network out
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if context.resources.ray_address is None:  # all of Ray is on this machine, where nothing restarts it
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "15")
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, other programs take all of a core
        os.environ.setdefault("AUTOSCALER_METRIC_PORT", "-1")  # the metrics would be served without authentication
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a process of each fit; no node is preempted here
    import ray

    with _starting:
        if not ray.is_initialized():
            _connect(ray, context)
    return ray


def _connect(ray: Any, context: Context | Starting) -> None:
    address = context.resources.ray_address
    _check_address(address)
    context.say(f"starting Ray{f' at {address}' if address else ' on this machine'}")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "memlib"}
    if address is None:
        options |= {
            "address": "local",  # even if RAY_ADDRESS names a cluster
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "num_cpus": cores(),
            "_temp_dir": _own_folder(),
        }
    else:
        options["address"] = address
    options["job_config"] = _job_config()
    with contextlib.suppress(AttributeError):  # Ray prints pages of its logs about a lost worker; memlib says it itself
        ray._private.worker._worker_logs_enabled = False
    try:
        with _unchanged_handler(signal.SIGTERM), _inheriting() if address is None else contextlib.nullcontext():
            ray.init(**options)
    except Exception as error:  # Ray raises plain Exceptions if one of its processes dies during start-up
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        cause = (str(error).strip(" .\n") or type(error).__name__).splitlines()[0]
        if address is None:
            raise EngineLost(f"cannot start {where} ({cause}); run the same command again") from error
        hint = "resources.ray_address, and RAY_AUTH_MODE=token and RAY_AUTH_TOKEN if the cluster requires a token"
        raise RunError(f"cannot reach {where} ({cause}); check {hint}") from error


@contextlib.contextmanager
def _unchanged_handler(number: signal.Signals) -> Iterator[None]:
    """Restore a signal's handlers at the end of the block: Ray replaces Python's, and prints a backtrace from one in C."""
    here, outer = signal.getsignal(number), ctypes.pythonapi.PyOS_getsig
    outer.restype, ctypes.pythonapi.PyOS_setsig.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    in_c = outer(int(number))
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, here)
        ctypes.pythonapi.PyOS_setsig(int(number), in_c)


@contextlib.contextmanager
def _inheriting() -> Iterator[None]:
    """Give a Ray that starts in the block on this machine the environment of workers.

    Workers that need no environment of their own are processes that Ray has already started, or used for other stages.
    """
    given = worker_environment(None)
    before = {name: os.environ[name] for name in given if name in os.environ}
    os.environ |= given
    try:
        yield
        _inherited.update(given)
    finally:
        for name in given.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


class _PathsWithoutFolder(list[str]):
    """The folders that Ray puts on its workers' module path, without the current folder, whose `tasks/` may be the user's."""

    def extend(self, paths: Iterable[str]) -> None:
        super().extend(path for path in paths if path != str(Path.cwd()) or path in sys.path)


def _job_config() -> Any:
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _PathsWithoutFolder()
    return config


def _own_folder() -> str:
    """Create a private folder for Ray's sockets and logs; Ray itself would make its logs writable for all users.

    Raises:
        RunError: if no such folder can be created.
    """
    named = os.environ.get("RAY_TMPDIR")
    places = [named] if named else [tempfile.gettempdir(), "/tmp"]
    base = next((place for place in places if len(place) + OWN_SOCKET <= LONGEST_SOCKET), None)
    if base is None:
        raise RunError(f"{places[0]} is too long a path for Ray's sockets; set RAY_TMPDIR or TMPDIR to a shorter one")
    try:
        return str(_own.enter_context(scratch("ray", Path(base))))
    except OSError as error:
        raise RunError(f"cannot create a folder for Ray below {base} ({error}); set RAY_TMPDIR to another one") from error


def _check_address(address: str | None) -> None:
    """Fail immediately if nothing listens at the address; Ray itself would retry for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=20).close()
    except OSError as error:
        raise RunError(f"cannot reach the Ray cluster at {address} ({error}); check resources.ray_address") from error


def needs_of(ray: Any, context: Context, stage: str, parts: int, *, gpu: bool = True) -> dict[str, float]:
    """Return the resources that a part of a stage needs, as Ray counts them: CPU, GPU, memory in bytes, custom resources.

    Args:
        ray: the ray module, connected to the cluster.
        parts: number of parts of the step, committed ones included.
        gpu: whether the part can use a GPU.
    """
    configured, resources = context.resources.of(stage), context.resources
    gpus = configured.gpus
    if gpus is None:
        nodes = live_nodes(ray, resources)
        wanted = resources.gpu if resources.gpu is not None else sum(node.get("GPU", 0) for node in nodes) >= 1
        gpus = 1.0 if wanted and gpu else 0.0
    needs: dict[str, float] = {"CPU": float(resources.cpus(stage, parts))}
    needs |= {"GPU": gpus} if gpus else {}
    needs |= {"memory": configured.memory_gb * 2**30} if configured.memory_gb else {}
    needs |= {f"accelerator_type:{configured.accelerator_type}": 0.001} if configured.accelerator_type else {}
    return needs | dict(configured.custom)


def live_nodes(ray: Any, resources: Resources) -> list[dict[str, float]]:
    """Return the resources of the cluster's live nodes; a dying node may still be listed, without any resources.

    Raises:
        EngineLost: if Ray runs on this machine alone and has lost it.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if resources.ray_address is None and (_has_died() or not any("CPU" in node for node in nodes)):
        raise EngineLost(NODE_LOST)
    return nodes


def _has_died() -> bool:
    """Return whether a process of a local Ray has died that holds its node: Ray itself notices that some seconds later."""
    worker = sys.modules.get("ray._private.worker")
    node = getattr(worker, "_global_node", None)
    return node is not None and any(kind in ("raylet", "gcs_server") for kind, _ in node.dead_processes())


def places(ray: Any, resources: Resources, needs: Mapping[str, float]) -> int:
    """Return how many parts with these needs the live nodes can run at once; raise EngineLost as `live_nodes` does."""
    nodes = live_nodes(ray, resources)
    return sum(min(int(node.get(kind, 0) // amount) for kind, amount in needs.items()) for node in nodes)


@contextlib.contextmanager
def demand(needs: Mapping[str, float], parts: int) -> Iterator[None]:
    """Request nodes with room for these parts from an autoscaling cluster; other clusters ignore the request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(needs)] * parts)
    try:
        yield
    finally:
        request_resources(bundles=[])


def needs_in_words(needs: Mapping[str, float]) -> str:
    """Return the needs of a part in words, for a message."""
    shown = {name: f"{amount / 2**30:g} GiB" if name == "memory" else f"{amount:g}" for name, amount in needs.items()}
    return " and ".join(
        name.partition(":")[2] if name.startswith("accelerator_type:") else f"{amount} {name}"
        for name, amount in shown.items()
    )


class Watch:
    """Time limits of a stage: on its running time, and on the wait for a node that can run it.

    Ray itself waits forever for resources that were lost with a node.
    """

    def __init__(self, ray: Any, context: Context, stage: str, needs: Mapping[str, float], *, parts: int = 1) -> None:
        self._ray, self._stage, self._needs, self._parts = ray, stage, needs, parts
        self._resources, self._patience = context.resources, context.resources.room_timeout
        self._started = self._had_room = time.monotonic()
        self._journal, self._is_waiting = context.journal, False

    def look(self) -> None:
        """Check the time limits; raise RunError if one has passed, and EngineLost as `live_nodes` does."""
        now = time.monotonic()
        check_time(self._resources, self._stage, now - self._started)
        has_room = places(self._ray, self._resources, self._needs) >= self._parts
        if has_room is self._is_waiting:
            self._is_waiting = not has_room
            waits = "" if has_room else f"a node with room for {self._parts} x {needs_in_words(self._needs)}"
            self._journal.note("waiting", self._stage, waits=waits)
        if has_room:
            self._had_room = now
        elif now - self._had_room > self._patience:
            raise RunError(
                f"for {self._patience:g} s (resources.room_timeout) the Ray cluster has had no room for {self._parts} x "
                f"{needs_in_words(self._needs)}, which {self._stage} needs; add nodes and run the same command again"
            )


@dataclass(frozen=True)
class Part:
    """One part of a step, computed by one call on a worker."""

    name: str  #: name in the display of the progress, unique within the step.
    arguments: tuple[Any, ...]  #: arguments of the call.
    #: id of the node that holds a copy of what the call reads, or None; the call goes there if there is room.
    near: str | None = None


def map_on_ray(
    context: Context,
    stage: str,
    function: Callable[..., tuple[list[str], float]],
    parts: Sequence[Part],
    of: int,
    bars: Bars,
    *,
    gpu: bool = True,
) -> list[str]:
    """Compute the parts of a step by Ray tasks, see `calls_on_ray`; lost workers are replaced up to three times a part.

    Returns:
        the warnings, without duplicates.

    Raises:
        UserError, RunError: the first error of a part, after all parts have ended, with the number of failures.
    """
    warnings, failures = calls_on_ray(context, stage, function, parts, of, bars, gpu=gpu)
    if failures:
        raise _joined(list(failures.values()), len(parts))
    return warnings


def calls_on_ray(
    context: Context,
    stage: str,
    function: Callable[..., tuple[list[str], float]],
    parts: Sequence[Part],
    of: int,
    bars: Bars,
    *,
    gpu: bool = True,
    may_repeat: Callable[[int], bool] | None = None,
) -> tuple[list[str], dict[int, Exception]]:
    """Call a function once for each part, in Ray tasks with the resources that the stage needs.

    The function gets a `Told` for its progress and its number of threads as its last arguments. A part that fails does not
    stop the others. Only as many tasks are submitted at a time as keep the cluster busy and let it grow.

    Args:
        stage: stage that determines the resources of the calls.
        function: function that returns warnings and the seconds that it took.
        of: number of parts of the whole step, committed ones included.
        gpu: whether the calls can use a GPU.
        may_repeat: called with the number of a part whose worker was lost; returns whether the part is tried again. By
            default Ray tries it three more times.

    Returns:
        the warnings, without duplicates, and the errors by the number of the part.

    Raises:
        RunError: immediately if a time limit has passed or the cluster has lost all nodes that could run the parts.
    """
    ray = start_ray(context)
    needs = needs_of(ray, context, stage, of, gpu=gpu)
    _refuse_without_room(ray, context, stage, needs)
    remote = _as_task(ray, context, stage, function, needs, retries=3 if may_repeat is None else 0)
    threads, limit = context.resources.threads(stage, of), context.resources.of(stage).parallel
    watch = Watch(ray, context, stage, needs)
    waiting = list(range(len(parts)))[::-1]
    running: dict[Any, int] = {}
    failures: dict[int, Exception] = {}
    warnings: list[str] = []
    looked, slots = -LOOK_SECONDS, 1
    queued = MOST_ASKED if context.resources.ray_address is not None else 1  # an autoscaling cluster grows for queued tasks
    bars.expect(len(parts))
    with hearing([part.name for part in parts], bars, context.spend) as news:
        try:
            while waiting or running:
                if time.monotonic() - looked >= LOOK_SECONDS:
                    context.check_going()
                    watch.look()
                    # keep further parts queued behind the running ones
                    room = max(2 * places(ray, context.resources, needs), queued, 2)
                    looked, slots = time.monotonic(), min(room, limit or room)
                while waiting and len(running) < slots:
                    number = waiting.pop()
                    called = _near(remote, parts[number].near).remote(*parts[number].arguments, news.of(number), threads)
                    running[called] = number
                finished, _ = ray.wait(list(running), num_returns=1, timeout=NEWS_SECONDS)
                for done in finished:
                    number = running.pop(done)
                    try:
                        lines, seconds = ray.get(done)
                        warnings += lines
                        news.end(number, seconds)
                    except ray.exceptions.RayError as error:
                        if isinstance(error, ray.exceptions.LocalRayletDiedError) and context.resources.ray_address is None:
                            raise EngineLost(NODE_LOST) from error  # before the list of nodes says so
                        live_nodes(ray, context.resources)
                        if may_repeat is not None and is_loss(ray, error) and may_repeat(number):
                            waiting.append(number)
                        else:
                            failures[number] = _cause(ray, error)
                news.look(running.values())
        except BaseException:
            with contextlib.suppress(Exception):  # Ray may be gone
                for task in running:
                    ray.cancel(task, force=True)
            raise
    return list(dict.fromkeys(warnings)), failures


def _as_task(
    ray: Any, context: Context, stage: str, function: Callable[..., Any], needs: Mapping[str, float], *, retries: int
) -> Any:
    """Return a function as a Ray task with the resources that a part of the stage needs."""
    configured = context.resources.of(stage)
    options: dict[str, Any] = {
        "num_cpus": needs["CPU"],
        "num_gpus": needs.get("GPU", 0),
        "resources": dict(configured.custom),
        "max_retries": retries,
        "runtime_env": runtime_env(context.resources.ray_address),
    }
    options |= {"memory": needs["memory"]} if "memory" in needs else {}
    options |= {"accelerator_type": configured.accelerator_type} if configured.accelerator_type else {}
    return ray.remote(**options)(function)


def worker_environment(address: str | None) -> dict[str, str]:
    """Return the environment variables of all workers; others keep the values that they have on the cluster's machines.

    Args:
        address: address of the cluster; None for Ray on this machine, where gradients must not leave loopback.
    """
    here = {name: os.environ[name] for name in (user_code.VARIABLE, LOG_VARIABLE) if os.environ.get(name)}
    return WORKER_SETTINGS | waiting() | (LOOPBACK if address is None and sys.platform == "linux" else {}) | here


def runtime_env(address: str | None) -> dict[str, Any]:
    """Return, in Ray's form, the environment variables of workers that its processes do not have from the start."""
    missing = {name: value for name, value in worker_environment(address).items() if _inherited.get(name) != value}
    return {"env_vars": missing} if missing else {}


def _near(remote: Any, node: str | None) -> Any:
    """Return the remote function, scheduled on that node if it is alive and has room."""
    if node is None:
        return remote
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True))


def _refuse_without_room(ray: Any, context: Context, stage: str, needs: Mapping[str, float]) -> None:
    """Check that a part fits on this machine if Ray runs only here, where no node can join later."""
    if context.resources.ray_address is None and places(ray, context.resources, needs) < 1:
        raise ResourcesError(
            f"each part of {stage} needs {needs_in_words(needs)}, which this machine does not have; lower "
            f"resources.stages.{stage}"
        )


def is_loss(ray: Any, error: Exception) -> bool:
    """Return whether an error of a task means that its worker was lost, by a signal, for lack of memory, or with its node."""
    return not isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.TaskCancelledError)


def _cause(ray: Any, error: Exception) -> Exception:
    """Return the error of a task in the form that the user should see."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause: Exception = error.cause  # Ray's own message would begin with a traceback
        if isinstance(cause, OSError):  # for example, a full disk
            return RunError(f"{type(cause).__name__}: {cause}")
        if not isinstance(cause, UserError | RunError):  # a defect of memlib's or of the user's code, not a loss of Ray
            cause.add_note(error.traceback_str)
        return cause
    return RunError(f"a worker was lost repeatedly ({str(error).strip().splitlines()[0]})")


def _joined(failures: Sequence[Exception], count: int) -> Exception:
    first = failures[0]
    if len(failures) == 1 or not isinstance(first, UserError | RunError):
        return first
    message = f"{first} ({len(failures)} of {count} parts failed)"
    damaged = next((failure.ref for failure in failures if isinstance(failure, CorruptArtifact)), None)
    if damaged is not None:
        return CorruptArtifact(message, damaged)
    return UserError(message) if isinstance(first, UserError) else RunError(message)


def as_lost(error: BaseException) -> BaseException:
    """Return an error in the form that the user should see: a Ray error becomes an EngineLost of one line.

    An error that a task raised is no loss of Ray: running the same command again would only repeat it.
    """
    ray = sys.modules.get("ray")
    if ray is None or not isinstance(error, ray.exceptions.RayError):
        return error
    if isinstance(error, ray.exceptions.RayTaskError):
        return _cause(ray, error)
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return EngineLost(f"Ray died during the run ({cause}); run the same command again")


def stop_ray() -> None:
    """Disconnect from Ray if it was started in this process, or is being started by another thread of it.

    Ray says that it is initialized before its start has ended; where it is stopped in between, it ends the process.
    """
    with _starting:
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()
        _inherited.clear()
        _own.close()
