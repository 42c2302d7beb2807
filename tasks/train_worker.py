"""Code that runs inside Ray's training workers; a separate module, so that workers load neither Prefect nor FAISS."""

import uuid
from datetime import timedelta
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from memlib.errors import CorruptArtifact, RunError, StoreRefused, StoreUnreachable, UserError
from memlib.models.collectives import share
from memlib.specs import Resources
from memlib.training.fit import Train
from memlib.training.loop import Worker
from tasks.remote import FREE_SPACE, is_full, log_kept, saved_step, telling, whereabouts
from tasks.training_board import LONGEST_SECONDS


def train_worker(config: dict[str, Any]) -> None:
    """Train one job after another with this worker's group, until none is left; runs in each Ray worker.

    A job that cannot succeed is reported and does not stop the others. Ray replaces a worker that dies, and all groups
    resume from their latest saved states.
    """
    context = ray.train.get_context()
    world_rank, world_size = context.get_world_rank(), context.get_world_size()
    resources: Resources = config["resources"]
    device = ray.train.torch.get_device() if config["use_gpu"] else torch.device("cpu")
    size = resources.workers_per_model
    number, rank = divmod(world_rank, size)
    groups = max(1, world_size // size)  # after a cluster has shrunk, some workers may be left over
    ranks = [list(range(group * size, (group + 1) * size)) for group in range(groups)] if size > 1 else []
    members: list[Any] = [dist.new_group(group, timeout=timedelta(seconds=LONGEST_SECONDS)) for group in ranks]
    worker = Worker(rank, size, device, members[number] if number < len(members) else None)
    board = config["board"]
    meeting = device if dist.get_backend() == "nccl" else torch.device("cpu")
    ray.get(board.begin.remote(share(uuid.uuid4().hex, None, meeting)))  # all workers use the id of the first one
    while number < groups and (taken := _take(board, number, worker, config)) is not None:
        if taken >= 0:
            _train_one(config["jobs"][taken], worker, config)
    # a worker that exits early would count as a failure
    dist.barrier(device_ids=[device.index or 0] if meeting.type == "cuda" else None)


def _take(board: Any, group: int, worker: Worker, config: dict[str, Any]) -> int | None:
    """Return the number of the group's next job; None if no job is left, -1 if its next job has failed too often."""
    taken = None
    if worker.rank == 0:
        taken = ray.get(board.take.remote(group))
        if taken is not None:
            job = config["jobs"][taken]
            taken = taken if ray.get(board.may_start.remote(taken, saved_step(job))) else -1
    shared: int | None = worker.share(taken)
    return shared


def _train_one(job: Train, worker: Worker, config: dict[str, Any]) -> None:
    def show(news: dict[str, Any]) -> None:
        config["board"].post.remote(job.name, news)

    seconds = config["resources"].resume_seconds
    try:
        with telling(job.identity.ref), log_kept(config["store"], job.identity.ref):
            job.into_store(
                config["makings"][job.identity.ref], worker=worker, threads=config["threads"], resume_seconds=seconds,
                progress=show, where=whereabouts(),
            )  # fmt: skip
    except (StoreUnreachable, StoreRefused, CorruptArtifact) as error:
        if worker.world_size > 1:  # only this worker has seen the error and the rest of its group waits: let Ray restart them
            raise
        ref = error.ref if isinstance(error, CorruptArtifact) else None
        ray.get(config["board"].object_to.remote(job.name, str(error), ref))
    except (RunError, UserError) as error:
        ray.get(config["board"].object_to.remote(job.name, str(error)))
    except OSError as error:
        if not is_full(error) or worker.world_size > 1:  # the rest of its group waits for this worker
            raise
        ray.get(config["board"].object_to.remote(job.name, f"OSError: {error}; {FREE_SPACE}"))
