"""Training on Ray: several models share a fit, several fits run side by side, each model commits on its own."""

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE

from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Ref, Store
from memlib.training.fit import TrainingJob, train_into_store
from memlib.training.loop import Worker
from tasks.runtime import Context, start_ray
from tasks.stage import cached, committed


@task(name="train models", cache_policy=NO_CACHE)
def train_models(context: Context, jobs: Sequence[TrainingJob]) -> Any:
    """Trains the models that are not in the store; returns their references in the order of the jobs."""
    refs = [job.ref(context.store) for job in jobs]
    missing = {ref: job for ref, job in zip(refs, jobs, strict=True) if not committed(context, ref)}
    if not missing:
        return cached(context, refs)
    train_on_ray(context, list(missing.values()))
    lost = [job.name for ref, job in missing.items() if context.store.lookup(ref.stage, ref.key) is None]
    if lost:
        raise RunError(f"training ended without a model for {', '.join(lost)}; run the same command again")
    context.computed += [str(ref) for ref in missing]
    context.reused += [str(ref) for ref in refs if ref not in missing]
    return refs


def train_on_ray(context: Context, jobs: Sequence[TrainingJob]) -> None:
    """Shares the jobs among fits that run side by side, and waits for all of them.

    Raises:
        RunError: when a worker kept failing, a job diverged, or the time limit passed.
        UserError: when the cluster cannot hold a single worker, or a job is impossible.
    """
    ray = start_ray(context)
    resources = context.resources
    use_gpu = resources.gpu if resources.gpu is not None else ray.cluster_resources().get("GPU", 0) >= 1
    slots = _slots(ray.cluster_resources(), resources, use_gpu=use_gpu)
    groups = [list(jobs[i::slots]) for i in range(min(slots, len(jobs)))]
    context.say(f"training {', '.join(job.name for job in jobs)}: {len(groups)} side by side")
    board = ray.remote(num_cpus=0)(Board).remote()
    with context.bars() as bars, ThreadPoolExecutor(len(groups)) as pool:
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(ray, board, bars, jobs, done), daemon=True)
        watcher.start()
        fits = [pool.submit(_fit, context, group, board, use_gpu) for group in groups]
        late = wait(fits, timeout=resources.train_timeout).not_done
        if late:
            ray.shutdown()  # ends the fits, so that their threads return
        done.set()
        watcher.join()
    if late:
        raise RunError(f"training still ran after {resources.train_timeout:g} s (resources.train_timeout); it was stopped")
    problems = [problem for fit in fits for problem in fit.result()]
    if problems:
        raise RunError("; ".join(problems))


def _slots(cluster: dict[str, float], resources: Resources, *, use_gpu: bool) -> int:
    """How many models fit side by side."""
    kind = "GPU" if use_gpu else "CPU"
    needed = resources.workers_per_model * (1 if use_gpu else resources.threads_per_worker)
    fit = int(cluster.get(kind, 0) // needed)
    if fit < 1:
        raise UserError(
            f"one model needs {needed} {kind}s, but the Ray cluster has {cluster.get(kind, 0):g}; lower "
            f"resources.workers_per_model or resources.threads_per_worker"
        )
    return min(fit, resources.concurrent_models or fit)


def _fit(context: Context, jobs: list[TrainingJob], board: Any, use_gpu: bool) -> list[str]:
    """One TorchTrainer.fit over a list of jobs; returns what went wrong, in words."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    resources, store = context.resources, context.store
    needs: dict[str, float] = {"CPU": resources.threads_per_worker}
    if use_gpu:
        needs["GPU"] = 1
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"store": store, "jobs": jobs, "resources": resources, "board": board},
        scaling_config=ScalingConfig(
            num_workers=resources.workers_per_model, use_gpu=use_gpu, resources_per_worker=needs
        ),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=RunConfig(
            name=f"memlib-{uuid.uuid4().hex[:12]}",  # an attempt's own, so that no finished Ray run answers for it
            failure_config=FailureConfig(max_failures=resources.max_failures, controller_failure_limit=5),
            **_ray_storage(store),
        ),
    )
    names = ", ".join(job.name for job in jobs)
    try:
        result = trainer.fit()
    except TrainingFailedError as error:
        cause = next(iter(getattr(error, "worker_failures", {}).values()), error)
        return [f"training {names} failed ({type(cause).__name__}: {str(cause).strip().splitlines()[-1]})"]
    return list(result.return_value or [])


def _ray_storage(store: Store) -> dict[str, Any]:
    """Where Ray keeps its own notes of an attempt: below the store, which every node reaches."""
    if store.is_local:
        return {"storage_path": f"{store.uri}/ray"}
    import fsspec
    import pyarrow.fs

    file_system, root = fsspec.url_to_fs(store.uri)
    handler = pyarrow.fs.FSSpecHandler(file_system)
    return {"storage_path": f"{root.rstrip('/')}/ray", "storage_filesystem": pyarrow.fs.PyFileSystem(handler)}


def train_worker(config: dict[str, Any]) -> list[str]:
    """What each Ray worker runs: the jobs one after another. A job that cannot succeed does not stop the others."""
    import ray.train

    context = ray.train.get_context()
    resources: Resources = config["resources"]
    rank, world = context.get_world_rank(), context.get_world_size()
    on_gpu = torch.cuda.is_available() and resources.gpu is not False
    device = ray.train.torch.get_device() if on_gpu else torch.device("cpu")
    torch.set_num_threads(resources.threads_per_worker)
    problems = []
    for job in config["jobs"]:
        def show(news: dict[str, Any], name: str = job.name) -> None:
            config["board"].post.remote(name, news)

        try:
            worker = Worker(rank, world, device)
            train_into_store(config["store"], job, worker=worker, resume_seconds=resources.resume_seconds, progress=show)
        except (RunError, UserError) as error:
            problems.append(f"{job.name}: {error}")
    return problems


class Board:
    """A Ray actor to which workers post how far they are."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}

    def post(self, name: str, news: dict[str, Any]) -> None:
        """Replaces what is known of a model."""
        self._news[name] = news

    def read(self) -> dict[str, dict[str, Any]]:
        """The newest of every model."""
        return self._news


def _watch(ray: Any, board: Any, bars: Any, jobs: Sequence[TrainingJob], done: threading.Event) -> None:
    epochs = {job.name: job.training.epochs for job in jobs}
    while not done.wait(0.5):
        try:
            news = ray.get(board.read.remote(), timeout=5)
        except Exception:  # the cluster is going away, or slow: progress is only for the eye
            time.sleep(1)
            continue
        for name, state in news.items():
            note = f"{state['images_per_second']:.0f} images/s, loss {state['loss']:.3g}"
            bars.move(name, state["epoch"], epochs[name], note)


__all__ = ["Ref", "train_models", "train_on_ray", "train_worker"]
