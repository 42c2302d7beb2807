"""The price of a run: hours of cores and GPUs, time, memory and bytes, by stage and in all."""

from __future__ import annotations

import math
import re
import shutil
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlib.audits.base import Audit
from memlib.pipeline.stage import AnyStage, Artifact, Stage
from memlib.pricing.machines import ASSUMED_GPU, Machine, known
from memlib.pricing.runner import Part, followed
from memlib.pricing.work import Work
from memlib.specs import Resources, Spec
from memlib.specs.cores import cores, memory
from memlib.store import Ref, Store
from memlib.store.records import ArtifactRecord

SAMPLE = 50  # artifacts of a stage that are looked at
LIKE = 4.0  # factor within which work is of similar size
SURE, MEASURED, ASSUMED = 1.25, 1.5, 4.0
"""The factors by which an estimate may be wrong: with similar runs in the store, with measured rates, with assumed ones."""
LIBRARIES = 0.95 * 2**30  # bytes of a process that has loaded PyTorch, SciPy and FAISS
CHANGING, ASKING = 11.0, 6.5
"""Requests of a part to S3, PUT and LIST, and GET and HEAD: means of 36 parts of three audits (9 to 14; 6.5 to 6.8)."""
MUCH = 100 * 2**30  # bytes of embeddings in a store from which on a plan says how to write less
IGNORED = (
    "seed",
    "seeds",
    "epochs",
    "epoch",
    "step",
    "name",
    "rows",
    "models",
    "nets",
    "coins",
    "checkpoint_epochs",
    "first",
    "last",
)


@dataclass
class StagePrice:
    """The price of the parts of one stage that have yet to be computed."""

    stage: str
    parts: int = 0
    cpu_seconds: float = 0.0  #: of one core each.
    gpu_seconds: float = 0.0
    wall_seconds: float = 0.0  #: with the machine's cores or GPUs, one step after another.
    memory: float = 0.0  #: peak bytes of one part's process, without mapped files.
    mapped: float = 0.0  #: bytes of files that it maps, or has mapped in earlier steps, which it can do without.
    written: float = 0.0  #: bytes written to the store.
    kept: float = 0.0  #: bytes that remain in the store at the end.
    factor: float = 1.0  #: factor by which the time may be wrong.
    similar: int = 0  #: parts of similar finished stages on which the time is based.
    work: Work = field(default_factory=Work)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain JSON."""
        return {
            **{name: getattr(self, name) for name in (*NUMBERS, "stage", "factor", "similar")},
            "work": self.work.as_json(),
        }


NUMBERS = ("parts", "cpu_seconds", "gpu_seconds", "wall_seconds", "memory", "mapped", "written", "kept")


@dataclass
class Price:
    """The price of a run."""

    machine: Machine
    stages: dict[str, StagePrice]
    stopped: Mapping[str, str]  #: stages without a price, and what must be known first.
    warnings: list[str] = field(default_factory=list)

    def total(self, name: str) -> float:
        """Return the sum of a number over all stages; of memory and mapped files, the largest."""
        values = [float(getattr(stage, name)) for stage in self.stages.values()]
        return max(values, default=0.0) if name in ("memory", "mapped") else sum(values)

    @property
    def factor(self) -> float:
        """The factor by which the time in all may be wrong."""
        seconds = [(one.cpu_seconds + one.gpu_seconds, one.factor) for one in self.stages.values()]
        spent = sum(value for value, _ in seconds)
        return sum(value * factor for value, factor in seconds) / spent if spent else 1.0

    @property
    def by_reason(self) -> dict[str, list[str]]:
        """The stages without a price, by what must be known first."""
        found: dict[str, list[str]] = {}
        for stage, reason in self.stopped.items():
            found.setdefault(reason, []).append(stage)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the price as plain JSON."""
        return {
            "machine": self.machine.name,
            "measured": self.machine.measured,
            "stages": [one.as_json() for one in self.stages.values()],
            "total": {name: self.total(name) for name in NUMBERS},
            "factor": self.factor,
            "without_price": dict(self.stopped),
            "warnings": self.warnings,
        }


def price_of(
    audit: Audit, recipe: Spec, store: Store, resources: Resources, *, forced: Collection[str] = (), by_similar: bool = True
) -> Price:
    """Return the price of what a run has yet to compute.

    Args:
        recipe, resources: recipe and machine settings of the run.
        store: the run's store, which may hold the machine's rates, and similar finished stages.
        forced: stages that are computed even if the store holds them.
        by_similar: whether times of similar finished stages correct those by rates.
    """
    from memlib.pricing.measuring import machine as this_machine

    machine = known(store, this_machine())
    with followed(audit, recipe, store, resources, forced=forced) as found:
        similar = _Similar(store if by_similar else None)
        prices: dict[str, StagePrice] = {}
        by_stage: dict[str, list[Part]] = {}
        for part in found.parts:
            by_stage.setdefault(part.ref.stage, []).append(part)
        stopped = dict(found.stopped)
        held = 0.0  # bytes of images that a process has mapped in earlier steps
        for name, parts in by_stage.items():
            one = _of_stage(name, parts, machine, resources, similar)
            held = max(held, *(part.work.images for part in parts if part.work is not None), 0.0)
            if one is None:
                stopped.setdefault(name, "only runs like it say what it takes")
            else:
                one.mapped += held
                prices[name] = one
        price = Price(machine, prices, stopped)
    if machine.gpu is None and price.total("gpu_seconds"):
        price.warnings.append("no GPU was measured: its rates are assumed, those of an A100's data sheet")
    if not store.is_local and prices:
        price.warnings.append(_of_remote(price))
    price.warnings += _warnings(price, store, resources, is_half=_stores_half(recipe))
    return price


def _of_remote(price: Price) -> str:
    """Say what a remote store is asked, and how long one process takes to send it what is written."""
    parts, written, sent = price.total("parts"), price.total("written"), price.machine.sent
    takes = "" if sent is None else f", which one process sends in {written / sent:,.0f} s at {sent / 1e6:.0f} MB/s"
    asked = f"{CHANGING * parts:,.0f} times by PUT and LIST, {ASKING * parts:,.0f} times by GET and HEAD"
    return f"the store is asked about {asked}; {written / 2**20:,.0f} MiB are sent to it{takes}"


def _of_stage(
    name: str, parts: Sequence[Part], machine: Machine, resources: Resources, similar: _Similar
) -> StagePrice | None:
    """Return the price of the parts of a stage; None if neither its work nor the time of a similar one is known."""
    price = StagePrice(name, len(parts), similar=0)
    gpu = machine.gpu or ASSUMED_GPU
    factors, each = [], []
    for part in parts:
        on_gpu = part.stage.where in ("fleet", "anywhere") and _has_gpu(resources, machine)
        work = part.work or Work()
        measured, count = similar.seconds(part, on_gpu=on_gpu)
        if part.work is None and measured is None:
            return None
        seconds = (gpu if on_gpu else machine.core).seconds(work) if measured is None else measured
        assumed = machine.measured is None or (on_gpu and machine.gpu is None)
        factors.append(SURE if count else ASSUMED if assumed else MEASURED)
        price.similar = max(price.similar, count)
        if on_gpu:
            price.gpu_seconds += seconds
        price.cpu_seconds += seconds
        each.append((seconds + (work.written / machine.sent if machine.sent else 0.0), on_gpu))
        workers = resources.workers_per_model if part.stage.where == "fleet" else 1  # each takes its share of a batch
        price.memory = max(price.memory, LIBRARIES + work.memory / workers)
        price.mapped = max(price.mapped, work.mapped)
        price.written += work.written
        price.kept += 0.0 if part.stage.transient and not resources.keep_embeddings else work.written
        price.work += work
    spent = sum(seconds for seconds, _ in each)
    price.factor = sum(one[0] * factor for one, factor in zip(each, factors, strict=True)) / spent if spent else 1.0
    price.wall_seconds = _wall(parts[0].stage, each, machine, resources)
    return price


def _has_gpu(resources: Resources, machine: Machine) -> bool:
    return machine.gpu is not None if resources.gpu is None else resources.gpu


def _wall(stage: AnyStage, each: Sequence[tuple[float, bool]], machine: Machine, resources: Resources) -> float:
    """Return the time of the parts of a step, with sending their files, in as many rounds as the machine's room demands."""
    longest, total = max(seconds for seconds, _ in each), sum(seconds for seconds, _ in each)
    name, parts = stage.declared.name, len(each)
    workers = resources.workers_per_model if stage.where == "fleet" else 1
    limit = resources.of(name).parallel or parts
    if each[0][1]:  # the GPUs that the recipe asks for
        at_once = min(limit, parts)
        return math.ceil(parts / at_once) * longest / workers
    available = cores()
    threads = min(resources.cpus(name, parts), available)
    at_once = max(1, min(limit, parts, available // (threads * min(workers, available))))
    if stage.where == "driver":
        return total
    gain = 1.0 + (machine.speedup - 1.0) * (threads - 1) / max(1, machine.cores - 1)
    return max(longest, total / at_once) / max(1.0, gain) / min(workers, available)


class _Similar:
    """Finished stages of a store, and the time that they took."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._known: dict[str, list[tuple[Any, ArtifactRecord]]] = {}

    def seconds(self, part: Part, *, on_gpu: bool) -> tuple[float | None, int]:
        """Return the time of a part by the median time of a unit of similar stages, and their number; None without any.

        Stages are similar if they agree in all that determines the time of a unit of work (the architecture, the batch, the
        objective, the layers), and if their amounts of work lie within a factor of `LIKE`. Stages that do not state their
        amount of work have none.
        """
        stage, name = part.stage, part.ref.stage
        if self._store is None or type(stage).units is Stage.units:
            return None, 0
        units = max(stage.units, 1e-9)
        if name not in self._known:
            found = self._store.artifacts.manifests(name, limit=SAMPLE)
            self._known[name] = [((_kind(m.spec), self._model_in(m.inputs)), m) for m in found]
        wanted = _kind(stage.identity.spec), _model_of(stage)
        measured = [
            (m.metrics.seconds if on_gpu else m.metrics.cpu_seconds) / max(m.metrics.units, 1e-9)
            for kind, m in self._known[name]
            if kind == wanted
            and 1 / LIKE <= m.metrics.units / units <= LIKE
            and (m.metrics.gpu_peak_memory_bytes is not None) == on_gpu
            and m.metrics.cpu_seconds > 0
        ]
        return (float(statistics.median(measured)) * units if measured else None), len(measured)

    def _model_in(self, inputs: Mapping[str, Any]) -> Any:
        """Return the architecture of the model that a finished stage read; None if it read none."""
        key = inputs.get("model", inputs.get("models"))
        if not isinstance(key, str) or self._store is None:
            return None
        if not re.fullmatch("[0-9a-f]+", key):  # the digest of a model that was trained elsewhere
            return key
        for stage in self._store.names("artifacts"):
            if stage.startswith("train") and self._store.artifacts.has(Ref(stage, key)):
                return _kind(self._store.artifacts.manifest(Ref(stage, key)).spec.get("model"))
        return key


def _model_of(stage: AnyStage) -> Any:
    """Return the architecture of the model that a stage reads, as `_Similar._model_in`."""
    key = stage.identity.inputs.get("model", stage.identity.inputs.get("models"))
    if not isinstance(key, str):
        return None
    read = [getattr(stage, name, None) for name in ("model", "models")] + [getattr(getattr(stage, "at", None), "model", None)]
    for one in read:
        if isinstance(one, Artifact):
            return _kind(one.store.artifacts.manifest(one.ref).spec.get("model"))
    return key


def _kind(spec: Any) -> Any:
    """Return what determines the time of a unit of a stage's work: its spec without seeds, names, epochs and rows."""
    if isinstance(spec, Mapping):
        return {name: _kind(value) for name, value in spec.items() if name not in IGNORED}
    return [_kind(value) for value in spec] if isinstance(spec, list | tuple) else spec


def _stores_half(recipe: Spec) -> bool:
    """Return whether a recipe stores embeddings in float16."""
    return getattr(getattr(recipe, "decode", None), "embeddings", "float32") == "float16"


def _warnings(price: Price, store: Store, resources: Resources, *, is_half: bool) -> list[str]:
    """Return lines on what cannot fit, with the setting that helps.

    Args:
        is_half: whether embeddings are stored in float16.
    """
    lines, halves = [], "" if is_half else "decode.embeddings: float16 halves them, and "
    for one in price.stages.values():
        granted = resources.of(one.stage).memory_gb
        most = granted * 2**30 if granted else float(memory())
        if one.memory > most and resources.ray_address is None:
            lines.append(
                f"a part of {one.stage} needs about {one.memory / 2**30:.0f} GiB of memory, and a worker has "
                f"{most / 2**30:.0f}; lower the batch size, raise training.accumulate, or take a larger machine"
            )
    if store.is_local and price.total("written") > (free := shutil.disk_usage(_existing(store.root)).free):
        lines.append(
            f"about {price.total('written') / 2**30:.0f} GiB will be written, and the store's disk has {free / 2**30:.0f} "
            "left; set resources.keep_embeddings to false, decode.embeddings to float16 or data.storage to jpeg"
        )
    embedded = sum(one.written for one in price.stages.values() if one.stage.rpartition("/")[2].startswith("embed"))
    if embedded > MUCH:
        lines.append(
            f"embeddings take {embedded / 2**30:.0f} GiB; {halves}resources.keep_embeddings: false evicts them in the end"
        )
    return lines


def _existing(root: str) -> str:
    path = Path(root)
    while not path.exists() and path != path.parent:
        path = path.parent
    return str(path)
