"""Training on Ray: one fit carries many models, groups of workers train them side by side, each model commits itself."""

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Store
from memlib.training.fit import TrainingJob
from tasks.board import Board
from tasks.runtime import Context, start_ray
from tasks.stage import cached, committed, stage_task


@stage_task("train models")
def train_models(context: Context, jobs: Sequence[TrainingJob]) -> Any:
    """Trains the models that are not in the store; returns their references in the order of the jobs."""
    refs = [job.ref(context.store) for job in jobs]
    missing = {ref: job for ref, job in zip(refs, jobs, strict=True) if not committed(context, ref)}
    if not missing:
        return cached(context, refs)
    train_on_ray(context, list(missing.values()))
    lost = [job.name for ref, job in missing.items() if context.store.lookup(ref.stage, ref.key) is None]
    if lost:
        raise RunError(f"training ended without {', '.join(lost)}; run the same command again")
    context.computed += [str(ref) for ref in missing]
    context.reused += [str(ref) for ref in refs if ref not in missing]
    return refs


def train_on_ray(context: Context, jobs: Sequence[TrainingJob]) -> None:
    """Trains the jobs, as many side by side as the cluster holds, and waits for all of them.

    Raises:
        RunError: when a worker kept failing, a job diverged, or the time limit passed.
        UserError: when the cluster cannot hold one model's workers.
    """
    ray = start_ray(context)
    resources = context.resources
    cluster = ray.cluster_resources()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    use_gpu = resources.gpu if resources.gpu is not None else cluster.get("GPU", 0) >= 1
    groups = min(_slots(nodes, resources, use_gpu=use_gpu), len(jobs))
    threads = resources.threads_per_worker or _threads(cluster, resources, groups)
    resources = resources.model_copy(update={"threads_per_worker": threads})
    context.say(f"training {', '.join(job.name for job in jobs)}: {groups} side by side")
    board = ray.remote(num_cpus=0)(Board).remote()
    done = threading.Event()
    with context.bars() as bars, ThreadPoolExecutor(1) as pool:
        watcher = threading.Thread(target=_watch, args=(ray, board, bars, jobs, done), daemon=True)
        watcher.start()
        fit: Future[str | None] = pool.submit(_fit, context.store, resources, list(jobs), groups, board, use_gpu)
        try:
            late = wait([fit], timeout=resources.train_timeout).not_done
        except BaseException:  # an interrupt: end the fit, or leaving the pool would wait for it
            done.set()
            ray.shutdown()
            raise
        problems = [] if late else list(ray.get(board.problems.remote()).items())
        done.set()
        watcher.join()
        if late:
            ray.shutdown()  # ends the fit, so that its thread returns
    if late:
        raise RunError(f"training still ran after {resources.train_timeout:g} s (resources.train_timeout); it was stopped")
    if problems:
        raise RunError("; ".join(f"{name}: {problem}" for name, problem in problems))
    if fit.result():
        raise RunError(str(fit.result()))


def _slots(nodes: Sequence[dict[str, float]], resources: Resources, *, use_gpu: bool) -> int:
    """How many models fit side by side, given each node's resources.

    Raises:
        UserError: when there is no room for a single model's workers.
    """
    needs = {"CPU": resources.threads_per_worker or 1} | ({"GPU": 1} if use_gpu else {})
    workers = sum(min(int(node.get(kind, 0) // amount) for kind, amount in needs.items()) for node in nodes)
    fit = workers // resources.workers_per_model
    if fit < 1:
        asked = " and ".join(f"{amount} {kind}" for kind, amount in needs.items())
        raise UserError(
            f"one model needs {resources.workers_per_model} workers of {asked} each, but the Ray cluster has room for "
            f"{workers}; lower resources.workers_per_model or resources.threads_per_worker"
        )
    return min(fit, resources.concurrent_models or fit)


def _threads(cluster: dict[str, float], resources: Resources, groups: int) -> int:
    """Cores a worker: all of this machine's, shared evenly; 1 on a cluster, whose nodes may differ."""
    if resources.ray_address is not None:
        return 1
    return max(1, int(cluster["CPU"]) // (groups * resources.workers_per_model))


def _fit(store: Store, resources: Resources, jobs: list[TrainingJob], groups: int, board: Any, use_gpu: bool) -> str | None:
    """One TorchTrainer.fit over all jobs; returns what went wrong, in words."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    from tasks.workers import train_worker  # loads Ray, which a run that finds its models does not need

    name = f"memlib-{uuid.uuid4().hex[:12]}"  # an attempt's own, so that no finished Ray run answers for it
    needs: dict[str, float] = {"CPU": resources.threads_per_worker or 1}
    if use_gpu:
        needs["GPU"] = 1
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"store": store, "jobs": jobs, "resources": resources, "board": board, "use_gpu": use_gpu},
        scaling_config=ScalingConfig(
            num_workers=groups * resources.workers_per_model, use_gpu=use_gpu, resources_per_worker=needs
        ),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=RunConfig(
            name=name,
            failure_config=FailureConfig(max_failures=resources.max_failures, controller_failure_limit=5),
            **_ray_storage(store),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        cause = next(iter(getattr(error, "worker_failures", {}).values()), error)
        last = str(cause).strip().splitlines()[-1]
        return f"training failed ({type(cause).__name__}: {last}); run the same command again to go on"
    finally:
        store.drop(f"ray/{name}")
    return None


def _ray_storage(store: Store) -> dict[str, Any]:
    """Where Ray keeps its own notes of an attempt: below the store, which every node reaches."""
    if store.is_local:
        return {"storage_path": f"{store.uri}/ray"}
    import fsspec
    import pyarrow.fs

    file_system, root = fsspec.url_to_fs(store.uri)
    handler = pyarrow.fs.FSSpecHandler(file_system)
    return {"storage_path": f"{root.rstrip('/')}/ray", "storage_filesystem": pyarrow.fs.PyFileSystem(handler)}


def _watch(ray: Any, board: Any, bars: Any, jobs: Sequence[TrainingJob], done: threading.Event) -> None:
    epochs = {job.name: job.training.epochs for job in jobs}
    while not done.wait(0.5):
        try:
            news = ray.get(board.news.remote(), timeout=5)
        except Exception:  # the cluster is going away, or slow: progress is only for the eye
            time.sleep(1)
            continue
        for name, state in news.items():
            note = f"{state['images_per_second']:.0f} images/s, loss {state['loss']:.3g}"
            bars.move(name, state["epoch"], epochs[name], note)
