"""Training on Ray, many models side by side; each model is committed when it is done.

A model that one CPU worker of this machine trains is a task like any other part. Groups of workers, GPUs and clusters are
Ray Train's, which trains all models in one fit.
"""

import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import torch

from memlib.errors import CorruptArtifact, ResourcesError, RunError, UserError
from memlib.pipeline.stage import AnyStage
from memlib.running.threads import TRAINING, settings_of
from memlib.specs import Resources
from memlib.store import Making, Ref, Store
from memlib.store.permissions import scratch
from memlib.training.fit import Train, check_jobs
from memlib.training.loop import Worker
from tasks.cluster import (
    LOOK_SECONDS,
    Part,
    Watch,
    calls_on_ray,
    demand,
    needs_in_words,
    needs_of,
    places,
    runtime_env,
    start_ray,
)
from tasks.progress import Bars
from tasks.remote import in_words, reach, saved_step, train_there
from tasks.runtime import Context
from tasks.training_board import LONGEST_SECONDS, Board

SHOWN_PROBLEMS = 2
GROWING_SECONDS = 60.0  # wait for a further node of an autoscaling cluster after the last node joined
MOST_STARTS = 10  # starts of all workers for each failure that a model may have
ENDING_SECONDS = 30.0  # wait for a fit to end after it was stopped


def train_missing(context: Context, missing: Mapping[Ref, AnyStage], of: int, bars: Bars) -> None:
    """Train models that are missing from the store.

    Args:
        of: number of models of the step, committed ones included.

    Raises:
        RunError: if training ended before all models were trained.
    """
    jobs = [job for job in missing.values() if isinstance(job, Train)]
    assert len(jobs) == len(missing)
    # whether workers have GPUs is not known yet, unless the resources exclude them
    device = torch.device("cpu" if context.resources.gpu is False else "cuda")
    check_jobs(jobs, Worker(world_size=context.resources.workers_per_model, device=device))
    train_on_ray(context, jobs, of, bars)
    untrained = [
        job.name for ref, job in zip(missing, jobs, strict=True) if context.store.artifacts.lookup(ref.stage, ref.key) is None
    ]
    if untrained:
        raise RunError(f"training ended before all models were trained ({', '.join(untrained)}); run the same command again")


def train_on_ray(context: Context, jobs: Sequence[Train], of: int, bars: Bars) -> None:
    """Train the jobs, as many side by side as the cluster has room for, and wait for all of them.

    Raises:
        RunError: if a worker kept failing, a job diverged, the time limit passed, or the cluster has no room for the workers.
        UserError: if workers that train one model together are configured with fractions of a GPU.
    """
    ray = start_ray(context)
    resources = context.resources
    stage = settings_of(resources, jobs[0])
    needs = needs_of(ray, context, stage, of * resources.workers_per_model)
    if 0 < needs.get("GPU", 0) < 1 < resources.workers_per_model:
        raise ResourcesError(
            f"resources.stages.{stage}.gpus is {needs['GPU']:g}; workers that train one model together need whole GPUs"
        )
    _check_reach(ray, context, stage)
    train = _by_tasks if uses_tasks(resources, needs) else _by_ray_train
    problems = train(ray, context, jobs, of, bars, needs, stage)
    if problems:
        damaged = next((ref for _, (_, ref) in problems if ref is not None), None)
        message = _in_a_line([(name, problem) for name, (problem, _) in problems])
        raise RunError(message) if damaged is None else CorruptArtifact(message, damaged)


Problems = list[tuple[str, tuple[str, Any]]]


def uses_tasks(resources: Resources, needs: Mapping[str, float]) -> bool:
    """Return whether each model is trained by one Ray task, and not by Ray Train."""
    if resources.trainer != "auto":
        return resources.trainer == "tasks"
    alone = resources.workers_per_model == 1 and not needs.get("GPU")
    return alone and resources.ray_address is None and not resources.elastic


def _by_tasks(
    ray: Any, context: Context, jobs: Sequence[Train], of: int, bars: Bars, needs: Mapping[str, float], stage: str
) -> Problems:
    """Train each model by a task; one whose worker was lost resumes, unless that happened too often without any progress."""
    context.say(f"training {', '.join(job.name for job in jobs)}")
    board = Board([job.name for job in jobs], context.resources.max_failures)
    for number, job in enumerate(jobs):
        board.may_start(number, saved_step(job))

    def may_repeat(number: int) -> bool:
        board.lose(number)
        if not board.may_start(number, step := saved_step(jobs[number])):
            return False
        context.note(f"{jobs[number].name}: its worker was lost; another one resumes at step {step}")
        return True

    parts = [Part(job.name, (job, context.record_of(job), context.resources.resume_seconds)) for job in jobs]
    _, failures = calls_on_ray(context, stage, train_there, parts, of, bars, may_repeat=may_repeat)
    problems = board.problems()
    for number, error in failures.items():
        if not isinstance(error, RunError | UserError):
            raise error
        if jobs[number].name not in problems:
            board.object_to(jobs[number].name, str(error), error.ref if isinstance(error, CorruptArtifact) else None)
    return list(problems.items())


def _by_ray_train(
    ray: Any, context: Context, jobs: Sequence[Train], of: int, bars: Bars, needs: dict[str, float], stage: str
) -> Problems:
    """Train all models in one fit of Ray Train."""
    resources = context.resources
    groups = min(_groups(ray, context, needs, len(jobs), stage), len(jobs))
    threads = resources.threads(stage, of * resources.workers_per_model)
    context.say(f"training {', '.join(job.name for job in jobs)}: {groups} in parallel")
    board = _board(ray, [job.name for job in jobs], resources.max_failures)
    done = threading.Event()
    bars.expect(len(jobs))
    copied = contextvars.copy_context()  # tells Prefect to which task run the progress belongs
    watcher = threading.Thread(target=copied.run, args=(_watch, ray, board, bars, jobs, done), daemon=True)
    watcher.start()
    makings = {job.identity.ref: context.record_of(job) for job in jobs}
    fit = _begin(_fit, context.store, resources, list(jobs), makings, groups, board, needs, threads, stage)
    watch = Watch(ray, context, stage, needs, parts=resources.workers_per_model * (1 if resources.elastic else groups))
    try:
        looked = time.monotonic()
        while True:
            is_done = not wait([fit], timeout=LOOK_SECONDS).not_done
            looked, before = time.monotonic(), looked
            context.spend(groups * resources.workers_per_model, looked - before)
            if is_done:
                break
            context.check_going()
            watch.look()
    except BaseException:  # an interrupt or a passed time limit: end the fit
        done.set()
        ray.shutdown()
        wait([fit], timeout=ENDING_SECONDS)  # Ray sometimes waits forever for workers that it has ended itself
        raise
    problems: Problems = list(ray.get(board.problems.remote()).items())
    done.set()
    watcher.join()
    if not problems and fit.result():
        raise RunError(str(fit.result()))
    return problems


def _check_reach(ray: Any, context: Context, stage: str) -> None:
    """Check on a cluster that a worker can read the store; nodes may have other credentials or folders than the driver.

    Raises:
        RunError: if a worker cannot read the store, or the cluster has lost all nodes. The error is one line; Ray's own would
            have hundreds of lines.
    """
    if context.resources.ray_address is None:
        return
    asked, watch = ray.remote(num_cpus=1, max_retries=3)(reach).remote(context.store), Watch(ray, context, stage, {"CPU": 1})
    while not ray.wait([asked], timeout=LOOK_SECONDS)[0]:
        context.check_going()
        watch.look()
    if problem := ray.get(asked):
        raise RunError(
            f"a worker of the Ray cluster cannot read the store {context.store.uri} ({problem}); give the workers the "
            "driver's credentials and addresses, or use a folder that all nodes share"
        )


def _in_a_line(problems: Sequence[tuple[str, str]]) -> str:
    more = len(problems) - SHOWN_PROBLEMS
    text = "; ".join(f"{name}: {problem}" for name, problem in problems[:SHOWN_PROBLEMS])
    return f"{text}; and {more} other models" if more > 0 else text


def _begin(function: Callable[..., str | None], *arguments: Any) -> "Future[str | None]":
    """Call a function in a daemon thread, which does not delay the end of the process."""
    future: Future[str | None] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def _board(ray: Any, names: list[str], max_failures: int) -> Any:
    """Create the board on the driver's node, so that it survives the loss of a worker's node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=pinned)(Board).remote(names, max_failures)


def _groups(ray: Any, context: Context, needs: Mapping[str, float], count: int, stage: str = TRAINING) -> int:
    """Return how many models fit side by side; if a cluster has no room for any, request room for all and wait.

    Raises:
        RunError: if there is no room for the workers of a single model.
    """
    resources, size = context.resources, context.resources.workers_per_model
    if resources.ray_address is not None and places(ray, resources, needs) < size:  # nodes may be on their way
        wanted, room, grown = size * _most(resources, count, stage), 0, time.monotonic()
        context.journal.note("waiting", stage, waits=f"nodes with room for {wanted} x {needs_in_words(needs)}")
        with demand(needs, wanted):
            while room < wanted:
                context.check_going()
                before, room = room, places(ray, resources, needs)
                grown = time.monotonic() if room > before else grown
                patience = resources.room_timeout if room < size else GROWING_SECONDS
                if room >= wanted or time.monotonic() - grown > patience:
                    break
                time.sleep(LOOK_SECONDS)
        context.journal.note("waiting", stage, waits="")
    workers = places(ray, resources, needs)
    if workers < size:
        raise RunError(
            f"one model needs {size} workers of {needs_in_words(needs)} each, but the Ray cluster has room for "
            f"{workers}; lower resources.workers_per_model, resources.threads_per_worker or resources.stages.{stage}"
        )
    return min(workers // size, resources.of(stage).parallel or workers)


def _most(resources: Resources, count: int, stage: str) -> int:
    """Return the maximum number of models that a growing cluster trains side by side."""
    return min(count, resources.of(stage).parallel or count)


def _fit(
    store: Store,
    resources: Resources,
    jobs: list[Train],
    makings: Mapping[Ref, Making],
    groups: int,
    board: Any,
    needs: Mapping[str, float],
    threads: int,
    stage: str,
) -> str | None:
    """Run one TorchTrainer.fit over all jobs; return an error message, or None."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchTrainer

    from tasks.meeting import MeetAtAddress, MeetInFile
    from tasks.train_worker import train_worker  # loads Ray, which is not needed if all models are in the store

    name = f"memlib-{uuid.uuid4().hex[:12]}"  # unique per attempt, so that Ray does not restore a finished run
    use_gpu, size, is_local = needs.get("GPU", 0) > 0, resources.workers_per_model, resources.ray_address is None
    # long timeout: finished groups wait for the last one, and Ray itself detects dead workers. NCCL requires whole GPUs, but
    # models with one worker each may need only a fraction
    group: dict[str, Any] = {"backend": "nccl" if use_gpu and size > 1 else "gloo", "timeout_s": LONGEST_SECONDS}
    with scratch("meeting") as folder:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={
                "store": store,
                "jobs": jobs,
                "makings": makings,
                "resources": resources,
                "board": board,
                "use_gpu": use_gpu,
                "threads": threads,
            },
            scaling_config=ScalingConfig(
                # Ray's type hints describe an earlier version than the one that RAY_TRAIN_V2_ENABLED selects
                num_workers=(size, _most(resources, len(jobs), stage) * size) if resources.elastic else groups * size,  # type: ignore[arg-type]
                use_gpu=use_gpu,
                resources_per_worker=dict(needs),
            ),
            torch_config=MeetInFile(**group, folder=str(folder)) if is_local else MeetAtAddress(**group),
            run_config=RunConfig(
                name=name,
                worker_runtime_env=runtime_env(resources.ray_address),
                failure_config=FailureConfig(
                    max_failures=MOST_STARTS * (resources.max_failures + 1) * len(jobs),  # the board counts those per model
                    controller_failure_limit=5,  # type: ignore[call-arg]
                ),
                **_ray_storage(store),
            ),
        )
        try:
            trainer.fit()
        except TrainingFailedError as error:
            cause = next(iter(getattr(error, "worker_failures", {}).values()), error)
            last = str(cause).strip().splitlines()[-1]
            return f"training failed ({type(cause).__name__}: {last}); run the same command again to resume"
        finally:
            store.drop(f"ray/{name}")
    return None


def _ray_storage(store: Store) -> dict[str, Any]:
    """Return the settings by which Ray keeps its records of an attempt below the store, which every node can reach."""
    if store.is_local:
        return {"storage_path": store.make_folder("ray")}
    import pyarrow.fs

    handler = pyarrow.fs.FSSpecHandler(store.file_system)
    return {"storage_path": f"{store.root}/ray", "storage_filesystem": pyarrow.fs.PyFileSystem(handler)}


def _watch(ray: Any, board: Any, bars: Bars, jobs: Sequence[Train], done: threading.Event) -> None:
    epochs = {job.name: job.training.epochs for job in jobs}
    while not done.wait(0.5):
        try:
            news = ray.get(board.news.remote(), timeout=5)
        except Exception:  # the cluster is shutting down or slow; progress is for display only
            time.sleep(1)
            continue
        for name, state in news.items():
            bars.move(name, state["epoch"], epochs[name], in_words(state))
