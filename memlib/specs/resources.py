"""What carries the work out: machines, never part of a key."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_MODELS, MOST_NUMBER

OWN = ("cpu", "gpu", "memory", "object_store_memory")  # resources that Ray itself counts


class Needs(Spec):
    """What one part of a stage takes: a worker of a model in training, a chunk of small nets, a shard of scores."""

    cpus: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """CPU cores; by default resources.threads_per_worker."""
    gpus: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """GPUs, also parts of one; by default 1 when the cluster has any (see resources.gpu)."""
    memory_gb: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """GiB of memory that Ray sets aside; by default it does not count memory."""
    accelerator_type: str | None = None
    """Only on nodes with this accelerator, as Ray names it: A100, H100, ..."""
    custom: Mapping[str, Annotated[float, Field(gt=0, le=MOST_NUMBER)]] = {}
    """The cluster's own resources, as in {licence: 1}."""
    parallel: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """Parts at a time; by default as many as the cluster holds."""
    timeout: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Seconds after which the stage is stopped if it still runs; by default never."""

    @model_validator(mode="after")
    def _as_ray_counts(self) -> Self:
        if self.gpus is not None and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus is {self.gpus:g}; more than one are whole ones")
        for name in self.custom:
            if name.lower() in OWN:
                raise ValueError(f"custom names {name}, which has a key of its own: cpus, gpus, memory_gb")
        return self


class Resources(Spec):
    """How the work is carried out. Changes nothing but rounding, so it is part of no key."""

    ray_address: str | None = None
    """An existing cluster (auto, host:port); by default Ray starts on this machine, on loopback."""
    workers_per_model: int = Field(default=1, ge=1, le=MOST_MODELS)
    """Workers that train one model together (data parallel)."""
    gpu: bool | None = None
    """One GPU a worker; by default when the cluster has any."""
    threads_per_worker: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """CPU cores a worker takes; by default the machine's, shared evenly, and 1 on a cluster that was there."""
    stages: Mapping[str, Needs] = {}
    """What a part of a stage takes, by the stage's name (see memlib plan), as in {train: {gpus: 1, accelerator_type: A100},
    score_nets: {memory_gb: 8}}."""
    resume_seconds: float = Field(default=60.0, ge=0, le=MOST_NUMBER)
    """Seconds between two saves of the state that a killed training resumes from; 0 saves after every step."""
    max_failures: int = Field(default=3, ge=0, le=MOST_MODELS)
    """How often a killed worker is replaced before the run gives up."""
    index_float16: bool = False
    """Hold the public set in float16 in the GPU search; distances are recomputed, so results are the same."""
    room_timeout: float = Field(default=300.0, gt=0, le=MOST_NUMBER)
    """Seconds to wait for a node that can carry what is to be done, where the cluster has lost all of them."""
    max_hours: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Hours that workers may take in all, in one go (a worker has the cores or the GPU of a part); then the run stops. What
    is done is kept, and running it again goes on."""
    keep_embeddings: bool = True
    """False: the embeddings, which are most of a store, go when the run has ended and no other is under way; they are made
    again where a later run reads them in another way."""
    elastic: bool = False
    """Train with as many models side by side as the cluster holds at the time: fewer where nodes are lost, more when
    they come. By default a fit keeps the size that it started with."""

    def of(self, stage: str) -> Needs:
        """What a part of a stage takes; a stage within a folder goes by its last name."""
        return self.stages.get(stage.rpartition("/")[2], Needs())
