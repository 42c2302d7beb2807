"""Training on Ray: one fit carries many models, groups of workers train them side by side, each model commits itself."""

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Store
from memlib.training.fit import TrainingJob
from tasks.board import Board
from tasks.runtime import Context, start_ray
from tasks.stage import cached, committed, stage_task
from tasks.workers import train_worker


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
    use_gpu = resources.gpu if resources.gpu is not None else ray.cluster_resources().get("GPU", 0) >= 1
    groups = min(_slots(ray.cluster_resources(), resources, use_gpu=use_gpu), len(jobs))
    context.say(f"training {', '.join(job.name for job in jobs)}: {groups} side by side")
    board = ray.remote(num_cpus=0)(Board).remote()
    done = threading.Event()
    with context.bars() as bars, ThreadPoolExecutor(1) as pool:
        watcher = threading.Thread(target=_watch, args=(ray, board, bars, jobs, done), daemon=True)
        watcher.start()
        fit = pool.submit(_fit, context, list(jobs), groups, board, use_gpu)
        late = wait([fit], timeout=resources.train_timeout).not_done
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


def _fit(context: Context, jobs: list[TrainingJob], groups: int, board: Any, use_gpu: bool) -> str | None:
    """One TorchTrainer.fit over all jobs; returns what went wrong, in words."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    resources, store = context.resources, context.store
    needs: dict[str, float] = {"CPU": resources.threads_per_worker}
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
            name=f"memlib-{uuid.uuid4().hex[:12]}",  # an attempt's own, so that no finished Ray run answers for it
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
