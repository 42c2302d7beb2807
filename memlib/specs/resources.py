"""Computing resources and options of a run, which are not part of any key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from memlib.specs.base import MOST_MODELS, MOST_NUMBER, Spec
from memlib.specs.cores import cores, threads

OWN = ("cpu", "gpu", "memory", "object_store_memory")  # resources with built-in names in Ray


class Needs(Spec):
    """Resources of one part of a stage: a worker that trains a model, a chunk of small nets, a shard of scores."""

    cpus: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """CPU cores, and with them threads; by default resources.threads_per_worker."""
    gpus: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """Number of GPUs, possibly a fraction; by default 1 if the cluster has any (see resources.gpu)."""
    memory_gb: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """GiB of memory that Ray reserves; by default Ray does not account for memory."""
    accelerator_type: str | None = None
    """Run only on nodes with this accelerator, by Ray's name: A100, H100, ..."""
    custom: Mapping[str, Annotated[float, Field(gt=0, le=MOST_NUMBER)]] = {}
    """Custom resources of the cluster, as in {licence: 1}."""
    parallel: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """Largest number of parts at a time; by default as many as the cluster has room for."""
    timeout: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Seconds after which a running stage is stopped; by default never."""

    @model_validator(mode="after")
    def _as_ray_counts(self) -> Self:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus:g}; above 1 it must be a whole number")
        for name in self.custom:
            if name.lower() in OWN:
                raise ValueError(f"custom contains {name}; set it with its own key instead (cpus, gpus, memory_gb)")
        return self


class Resources(Spec):
    """Machines, GPUs and limits of a run. They affect only rounding, and are not part of any key."""

    ray_address: str | None = None
    """Address of an existing cluster (auto, host:port); by default Ray is started on this machine, on loopback."""
    workers_per_model: int = Field(default=1, ge=1, le=MOST_MODELS)
    """Workers that train one model together (data parallel)."""
    trainer: Literal["auto", "tasks", "train"] = "auto"
    """How Ray trains models: tasks, one worker per model; train (Ray Train), groups of workers. By default tasks for models
    that a single CPU worker of this machine trains, and Ray Train for GPUs, clusters and models with several workers."""
    gpu: bool | None = None
    """true: each worker uses one GPU; false: workers use no GPUs. By default true if the cluster has any."""
    threads_per_worker: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """CPU cores per worker, and with them threads; by default the machine's cores divided by the number of parts of the step
    (at most all cores), whether or not some of them are already in the store; 1 on an existing cluster."""
    stages: Mapping[str, Needs] = {}
    """Resources of one part of a stage, by the stage's name (see memlib plan), as in {train: {gpus: 1, accelerator_type:
    A100}, score_nets: {memory_gb: 8}}."""
    resume_seconds: float = Field(default=60.0, ge=0, le=MOST_NUMBER)
    """Seconds between two saves of the state from which an interrupted training run resumes; 0 saves after every step."""
    max_failures: int = Field(default=3, ge=0, le=MOST_MODELS)
    """Number of times that a killed worker is replaced before the run fails."""
    index_float16: bool = False
    """Store the public set in float16 for the search on GPUs; distances are recomputed, so results do not change."""
    room_timeout: float = Field(default=300.0, gt=0, le=MOST_NUMBER)
    """Seconds to wait for a suitable node after the cluster has lost all suitable nodes."""
    max_hours: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Limit of the total worker hours of one invocation (a worker occupies the cores or the GPU of one part); the run then
    stops. Finished work is kept; running the same command again continues the run."""
    keep_embeddings: bool = True
    """false: evict the embeddings, which make up most of a store, once the run has ended and no other run is in progress; a
    later run that needs them recomputes them."""
    elastic: bool = False
    """Adapt the number of models trained in parallel to the cluster: fewer when nodes are lost, more when nodes join. By
    default the number stays as it was at the start."""

    @model_validator(mode="after")
    def _tasks_train_alone(self) -> Self:
        if self.trainer == "tasks" and self.workers_per_model > 1:
            raise ValueError(
                f"workers_per_model is {self.workers_per_model}, but with trainer tasks one worker trains a model; set "
                "trainer to train, or leave it out"
            )
        return self

    def of(self, stage: str) -> Needs:
        """Return the resources of one part of a stage; a stage in a folder is looked up by the last part of its name."""
        return self.stages.get(stage.rpartition("/")[2], Needs())

    def cpus(self, stage: str, parts: int) -> int:
        """Return the CPU cores of each part of a step: the same whatever the store already holds.

        Args:
            parts: number of parts of the step, committed ones included; several workers of one model count as parts.
        """
        if granted := self.of(stage).cpus or self.threads_per_worker:
            return granted
        return 1 if self.ray_address is not None else cores() // min(cores(), parts)

    def threads(self, stage: str, parts: int) -> int:
        """Return the threads of each part of a step: its cores, or the limit that OMP_NUM_THREADS sets in the driver."""
        return threads(self.cpus(stage, parts))


@dataclass(frozen=True)
class RunOptions:
    """Options of a run."""

    quiet: bool = False  #: do not show progress.
    verbose: bool = False  #: show the keys of artifacts, and details of the progress.
    force: tuple[str, ...] = ()  #: names of stages to recompute even if the store holds their artifacts.
    cascade: bool = False  #: retrain models whose inputs were recomputed with a different result.
    plan: str = ""  #: content of the file with the frozen plan that the run was given; "" for none.
    #: id of the run that will compare this one with others, if it is one cell of a sweep; "" for a run of its own.
    look: str = ""
