"""Faults simulated: drivers of one audit, and memlib gc, on a store whose every operation may fail or be the last one.

Each seed draws a kind of store (a folder, or objects as on S3, whose listings may lag behind), up to three actors (a run; a run
that recomputes a stage; gc), the order of their operations, and their faults: a kill before, in the midst of, or after an
operation, a full disk, an error of input or output, a lost connection. Actors are threads of which one at a time goes on, and
switches at operations of the store alone; time and random names are simulated, so that a seed replays. Ray is out of scope.

After every seed: an actor without a fault of its own has completed; what is committed is whole; the next run completes,
computes nothing again that was whole, and gives the tables and artifacts of an undisturbed run; memlib verify finds them unchanged; and memlib gc
leaves nothing behind. A seed that violates this is printed, with its operations (--seed N).
"""

import argparse
import contextlib
import errno
import faulthandler
import functools
import gc
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fsspec.implementations.local import LocalFileSystem

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.recipes.request import AuditRequest
from memlib.running.in_process import carry_out_here
from memlib.running.verification import verified
from memlib.runs import garbage
from memlib.runs.index import list_runs, read_run
from memlib.specs.resources import RunOptions
from memlib.store import MANIFEST, Ref, Store
from memlib.store.backend import TMP
from memlib.store.copies import Copies
from memlib.store.local import Local
from memlib.store.refs import Attempt
from memlib.store.remote import Remote

MOONS: dict[str, Any] = {
    "audit": "self_influence", "title": "moons", "data": {"source": {"kind": "two_moons", "num_examples": 40}},
    "split": {"train_per_class": 15}, "model": {"architecture": "mlp", "widths": [4]}, "influence": {"checkpoints": 1},
    "training": {"objective": {"kind": "supervised"}, "epochs": 2, "batch_size": 5, "augment": None},
}  # fmt: skip
AUDIT = MOONS | {"resources": {"resume_seconds": 0}}
STAGES = ("decode", "hold_out", "train", "gradient_norms", "self_influence", "report")
KINDS = ("folder", "objects")
DAY = 86_400.0
WRITES = frozenset({"put", "create", "make_folder", "filling", "send", "fill", "pipe_file", "put_file"})
CHANGES = WRITES | {"remove", "rm_file"}
FAULTS = ("killed before", "killed in", "killed after", "full", "error", "lost connection", "reply lost")
START = 2_500_000_000.0  # later than any time of this process


class Killed(BaseException):
    """The end of an actor: nothing that it does afterwards reaches the store."""


@dataclass
class Actor:
    """A driver, or gc, with the faults that meet it."""

    name: str
    work: Callable[[Store], Any]
    #: by number of the operation, of all or of those that change the store.
    faults: dict[tuple[int, bool], str] = field(default_factory=dict)
    count: int = 0  #: operations so far.
    changes: int = 0  #: those of them that change the store.
    is_dead: bool = False
    is_over: bool = False
    error: BaseException | None = None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    met: list[str] = field(default_factory=list)  #: faults that have met it.


class World:
    """One simulated store with its clock and its actors."""

    def __init__(self, seed: int, kind: str, folder: Path) -> None:
        self.rng, self.kind, self.folder = random.Random(seed), kind, folder
        self.now, self.lag, self.actors = START, 0.0, list[Actor]()
        self.names = random.Random(seed + 1)
        self.back = threading.Semaphore(0)
        self.bucket = Bucket(self)
        self.log: list[str] = []
        self.filled: set[Path] = set()  # folders that stages fill
        self.touched = ""  # path that the last operation changed
        self.problems: list[str] = []  # what a reader could have seen
        self._of_thread = threading.local()

    # -- actors ---------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The actor of this thread; None outside of actors."""
        return getattr(self._of_thread, "actor", None)

    def store(self) -> Store:
        """Return the store as a new process opens it."""
        return Store("simulated")

    def backend(self, *given: Any) -> Any:
        """Return the store's backend for the actor of this thread."""
        if self.kind == "folder":
            return Folder(self)
        own = self.folder / "copies" / (self.actor.name if self.actor else "later")
        return Remote(self.bucket, "objects://simulated", "simulated", copies=Copies(own, 2**30), patience=30.0)

    def act(self, actors: Sequence[Actor]) -> None:
        """Let actors work beside one another until all have ended."""
        self.actors = list(actors)
        threads = [threading.Thread(target=self._thread, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
        last = None
        while waiting := [actor for actor in self.actors if not actor.is_over]:
            if last not in waiting or self.rng.random() < 0.3:
                last = self.rng.choice(waiting)
            assert last is not None
            state = _random_state()
            last.turn.release()
            if not self.back.acquire(timeout=60):
                faulthandler.dump_traceback(sys.__stderr__)
                raise TimeoutError(f"{last.name} does not go on: {''.join(self.log[-3:])}")
            _set_random_state(state)
            self._check_touched()
        for thread in threads:
            thread.join()

    def _check_touched(self) -> None:
        """Note whether the artifact that the last operation concerned is committed without all of its files."""
        parts = self.touched.removeprefix("simulated/").split("/")
        if parts[0] != "artifacts" or len(parts) < 3:
            return
        folder = "/".join(parts[:3])
        manifest = self._content(f"{folder}/{MANIFEST}")
        if manifest is None:
            return
        try:
            record = json.loads(manifest)
        except ValueError:
            self.problems.append(f"{folder} is committed by half a manifest")
            return
        for name, file in record["files"].items():
            content = self._content(f"{folder}/{record['attempt']}/{name}")
            if content is None or hashlib.sha256(content).hexdigest() != file["sha256"]:
                self.problems.append(f"{folder} is committed, but not its file {name}")
        self.touched = ""

    def _content(self, path: str) -> bytes | None:
        """Return the content of a file of the store, without an operation."""
        if self.kind == "objects":
            return self.bucket.objects.get(f"simulated/{path}", (None, 0.0))[0]
        file = self.folder / "store" / path
        return file.read_bytes() if file.is_file() else None

    def _thread(self, actor: Actor) -> None:
        self._of_thread.actor = actor
        actor.turn.acquire()
        try:
            actor.work(self.store())
        except BaseException as error:
            actor.error = error
        actor.is_over = True
        self.log.append(f"{actor.name}: {'completed' if actor.error is None else repr(actor.error)[:200]}\n")
        self.back.release()

    def operation(self, name: str, path: str) -> str:
        """Wait for the turn of this thread's actor; return the fault that meets this operation, "" if none."""
        actor = self.actor
        self._date_written()
        self.now += self.rng.uniform(0.0, 0.2)
        if actor is None:
            return ""
        if actor.is_dead:
            raise Killed
        state = _random_state()
        self.back.release()
        actor.turn.acquire()
        _set_random_state(state)
        fault = actor.faults.get((actor.count, False), "")
        actor.count += 1
        if name in CHANGES:
            fault = actor.faults.get((actor.changes, True), fault)
            actor.changes += 1
        if fault in ("full", "lost connection", "reply lost") and not self._applies(fault, name):
            fault = ""
        self.log.append(f"{actor.name} {actor.count - 1}: {name} {path} {fault}\n")
        self.touched = path if name in CHANGES else ""
        if not fault:
            return ""
        actor.met.append(fault)
        if fault == "killed before":
            self.kill()
        if fault == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault == "error":
            raise OSError(errno.EIO, "Input/output error")
        return fault

    def _applies(self, fault: str, name: str) -> bool:
        return name in WRITES if fault == "full" else self.kind == "objects"

    def kill(self) -> None:
        """End this thread's actor."""
        assert self.actor is not None
        self._date_written()
        self.actor.is_dead = True
        raise Killed

    def _date_written(self) -> None:
        """Give the files that stages have written to the store the time of the simulation."""
        for folder in sorted(self.filled) if self.kind == "folder" else ():
            for path in folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < START:
                        os.utime(path, (self.now, self.now))

    # -- simulated modules ----------------------------------------------------------------------------

    def time(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.operation("sleep", "")

    def uuid4(self) -> uuid.UUID:
        """Return the next random name."""
        return uuid.UUID(int=self.names.getrandbits(128), version=4)


def _random_state() -> Any:
    import numpy as np
    import torch

    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_random_state(state: Any) -> None:
    import numpy as np
    import torch

    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])


class Folder(Local):
    """A local store, each operation of which is one of the simulation's."""

    def __init__(self, world: World) -> None:
        super().__init__(LocalFileSystem(), str(world.folder / "store"))
        self.world = world

    def _dated(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.at(path), (self.world.now, self.world.now))

    def _torn(self, path: str, data: bytes) -> None:
        """Leave the first half of a file that is being written, and die."""
        part = self._part()
        part.write_bytes(data[: len(data) // 2])
        os.utime(part, (self.world.now, self.world.now))
        self.world.kill()

    def read(self, path: str) -> bytes | None:
        self.world.operation("read", path)
        return super().read(path)

    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        self.world.operation("read_together", str(len(paths)))
        with mock.patch.object(Folder, "read", Local.read):
            return super().read_together(paths)

    def digest(self, path: str) -> str:
        self.world.operation("digest", path)
        return super().digest(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.world.operation("read_range", path)
        return super().read_range(path, start, end)

    def entries(self, folder: str) -> list[str] | None:
        self.world.operation("entries", folder)
        return super().entries(folder)

    def listing(self, folder: str) -> dict[str, Any]:
        self.world.operation("listing", folder)
        return super().listing(folder)

    def create(self, path: str, data: bytes, bits: int) -> bool:
        fault = self.world.operation("create", path)
        if fault == "killed in":
            self._torn(path, data)
        with mock.patch.object(Folder, "read", Local.read):
            done = super().create(path, data, bits)
        self._dated(path)
        self._after(fault)
        return done

    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        fault = self.world.operation("put", path)
        if fault == "killed in":
            self._torn(path, source if isinstance(source, bytes) else source.read_bytes())
        done = super().put(path, source, bits=bits, folder_bits=folder_bits)
        self._dated(path)
        self._after(fault)
        return done

    def remove(self, path: str) -> None:
        fault = self.world.operation("remove", path)
        if fault == "killed in":  # some of the files of a folder are gone
            below = sorted(Path(self.at(path)).rglob("*"))
            for file in below[: len(below) // 2]:
                if file.is_file():
                    file.unlink()
            self.world.kill()
        super().remove(path)
        self._after(fault)

    def drop_empty(self, path: str) -> None:
        self._after(self.world.operation("drop_empty", path))
        super().drop_empty(path)

    def clock(self) -> float:
        self.world.operation("clock", "")
        return self.world.now

    def sweep(self, now: float) -> None:
        self.world.operation("sweep", "")
        super().sweep(now)

    @contextlib.contextmanager
    def filling(self, folder: str, bits: Any) -> Iterator[Path]:
        fault = self.world.operation("filling", folder)
        with super().filling(folder, bits) as path:
            if fault.startswith("killed"):
                self.world.kill()
            yield path

    def send(self, filled: Path, folder: str, files: Mapping[str, Any]) -> None:
        fault = self.world.operation("send", folder)
        for name in files:
            self._dated(f"{folder}/{name}")
        self.world.filled.discard(filled)
        self._after(fault)

    def local(self, path: str, expected: Any) -> Path:
        self.world.operation("local", path)
        return super().local(path, expected)

    def _after(self, fault: str) -> None:
        if fault.startswith("killed"):
            self.world.kill()


class Bucket:
    """Objects in memory, with the part of fsspec's interface that a remote store uses; listings may lag behind."""

    protocol = ("simulated",)

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.removed: dict[str, tuple[int, float, float]] = {}  # size, time of writing, time of removal

    def _begin(self, name: str, path: str) -> str:
        fault = self.world.operation(name, path)
        if fault == "lost connection":
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")
        return fault

    def _end(self, fault: str) -> None:
        if fault.startswith("killed"):
            self.world.kill()
        if fault == "reply lost":
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")

    def _get(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return self.objects[path][0]

    def _seen(self) -> dict[str, tuple[int, float]]:
        """Return size and time of the objects that a listing shows."""
        since = self.world.now - self.world.lag
        seen = {path: (size, when) for path, (size, when, gone) in self.removed.items() if when <= since < gone}
        return seen | {
            path: (len(data), when) for path, (data, when) in self.objects.items() if when <= since or not self.world.lag
        }

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self._begin("cat_file", path)
        return self._get(path)[start:end]

    def cat(self, paths: Sequence[str], on_error: str = "raise") -> dict[str, bytes]:
        self._begin("cat", str(len(paths)))
        return {path: self.objects[path][0] for path in paths if path in self.objects}

    def info(self, path: str) -> dict[str, Any]:
        self._begin("info", path)
        return {"size": len(self._get(path)), "mtime": self.objects[path][1]}

    def ls(self, path: str, detail: bool = False) -> list[str]:
        self._begin("ls", path)
        below = {one[len(path) + 1 :].split("/")[0] for one in self._seen() if one.startswith(f"{path}/")}
        if not below:
            raise FileNotFoundError(path)
        return sorted(f"{path}/{name}" for name in below)

    def find(self, path: str, detail: bool = True) -> dict[str, Any]:
        self._begin("find", path)
        seen = self._seen().items()
        return {one: {"size": size, "mtime": when} for one, (size, when) in seen if one == path or one.startswith(f"{path}/")}

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        fault = self._begin("pipe_file", path)
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self._write(path, data, fault)
        self._end(fault)

    def put_file(self, source: str, path: str) -> None:
        fault = self._begin("put_file", path)
        self._write(path, Path(source).read_bytes(), fault)
        self._end(fault)

    def put(self, sources: Sequence[str], paths: Sequence[str]) -> None:
        """Write one object after another; each is an operation."""
        for source, path in zip(sources, paths, strict=True):
            self.put_file(source, path)

    def _write(self, path: str, data: bytes, fault: str) -> None:
        if fault != "killed in":  # an upload that was not ended leaves nothing
            self.objects[path] = (data, self.world.now)
            self.removed.pop(path, None)

    def get_file(self, path: str, target: str) -> None:
        self._begin("get_file", path)
        Path(target).write_bytes(self._get(path))

    def rm(self, path: str, recursive: bool = False) -> None:
        found = [one for one in self._seen() | self.objects if one == path or one.startswith(f"{path}/")]
        if not found:
            raise FileNotFoundError(path)
        for one in found:
            self.rm_file(one)

    def rm_file(self, path: str) -> None:
        fault = self._begin("rm_file", path)
        if path in self.objects and fault != "killed in":
            data, when = self.objects.pop(path)
            self.removed[path] = (len(data), when, self.world.now)
        self._end(fault)

    def invalidate_cache(self) -> None:
        pass

    def unstrip_protocol(self, path: str) -> str:
        return f"objects://{path}"


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Put the simulated store, clock and random names in the place of this process's in the block."""
    own_path = Attempt.path

    def path(attempt: Attempt, name: str) -> Path:
        fault = world.operation("fill", name)
        found = own_path(attempt, name)
        world.filled.add(attempt.folder)
        if fault.startswith("killed"):
            found.write_bytes(b"half")
            world.kill()
        return found

    def figure(figure: Any, folder: Path, name: str) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.svg").write_text("<svg></svg>")
        return "<svg></svg>"

    patches = [
        mock.patch("memlib.store.store._backend", world.backend),
        mock.patch("memlib.runs.heartbeat.threading", mock.Mock()),  # no heart beats, as no time passes without operations
        mock.patch("memlib.pipeline.provenance.check_sources"),  # a half of the seconds
        mock.patch("memlib.audits.self_influence.report.save_figure", figure),  # another one
        mock.patch.object(Attempt, "path", path),
        mock.patch("time.time", world.time),
        mock.patch("time.monotonic", world.time),
        mock.patch("time.sleep", world.sleep),
        mock.patch("uuid.uuid4", world.uuid4),
    ]
    with contextlib.ExitStack() as patched:
        for one in patches:
            patched.enter_context(one)
        yield


def carry_out(store: Store, **options: Any) -> Any:
    """Run the audit."""
    return carry_out_here(
        AuditRequest.read(AUDIT), store, RunOptions(quiet=True, **options), device="cpu", say=lambda line: None
    )


def content_of(store: Store) -> dict[str, str]:
    """Return digests of the files of artifacts and of published tables, which must be those of an undisturbed run."""
    found = {}
    for ref in garbage.committed(store):
        files = store.artifacts.manifest(ref).files.items()
        found |= {f"{ref}/{name}": file.sha256 for name, file in files if not name.endswith(".html")}
    for entry in list_runs(store).entries:
        published = read_run(store, entry["run"]).published
        found |= {name: digest for name, digest in published.items() if name.startswith("results/")}
    return found


def whole_artifacts(store: Store) -> tuple[dict[Ref, str], list[str]]:
    """Return the attempt of each artifact whose files are those of its manifest, and the problems of others."""
    whole, problems = {}, []
    for ref in garbage.committed(store):
        try:
            found = store.artifacts.problems(ref)
            whole[ref] = store.artifacts.manifest(ref).attempt
        except CorruptArtifact as error:
            found = [str(error)]
        problems += [f"{ref} is committed, but {problem}" for problem in found]
    return whole, problems


@dataclass(frozen=True)
class Undisturbed:
    """A run without faults: what it leaves, and its operations."""

    content: dict[str, str]
    operations: list[str]  #: names of its operations on the store.


def undisturbed(kind: str, folder: Path) -> Undisturbed:
    """Run the audit alone."""
    world = World(0, kind, folder)
    actor = Actor("alone", carry_out)
    with simulated(world):
        world.act([actor])
        if actor.error is not None:
            raise actor.error
        names = [line.split(": ")[1].split()[0] for line in world.log if not line.startswith("alone:")]
        return Undisturbed(content_of(world.store()), names)


def draw_actors(rng: random.Random, operations: Sequence[str]) -> list[Actor]:
    """Draw up to three actors and their faults, most of which meet operations that change the store.

    Args:
        operations: those of an undisturbed run.
    """
    changes = sum(name in CHANGES for name in operations)
    actors = []
    for number in range(rng.choice((1, 2, 2, 3))):
        what = rng.choice(("run", "run", "forced", "forced", "gc")) if number else "run"
        if what == "run":
            work: Callable[[Store], Any] = carry_out
        elif what == "forced":
            stage = rng.choice(STAGES)
            work = lambda store, stage=stage: carry_out(store, force=(stage,), cascade=True)  # noqa: E731
            what = f"forced {stage}"
        else:
            work = lambda store: list(garbage.clear(store, days=0)) if store.marker() else None  # noqa: E731
        faults = {}
        for _ in range(rng.choice((0, 0, 1, 1, 2)) if number else rng.choice((0, 1, 1, 2))):
            fault = rng.choice(FAULTS)
            of_changes = rng.random() < 0.7
            start = rng.randrange(rng.choice((5, 20, 60, changes)) if of_changes else len(operations))
            long = rng.choice((1, 5, 30)) if fault in ("full", "lost connection") else 1
            faults |= dict.fromkeys(((place, of_changes) for place in range(start, start + long)), fault)
        actors.append(Actor(f"{what} {number}", work, faults))
    return actors


def allowed(actor: Actor, others: Sequence[Actor]) -> bool:
    """Return whether an actor may end as it did."""
    error = actor.error
    if error is None or isinstance(error, Killed):
        return True
    if actor.met:  # a line for the user; a defect would be another kind of error
        return isinstance(error, RunError | UserError | OSError)
    return "gc" in actor.name and type(error) is RunError and bool(others)


def problems_of(seed: int, folder: Path, expected: Mapping[str, Undisturbed]) -> tuple[list[str], World]:
    """Simulate one seed; return its violations, and the world with its operations."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    world = World(seed, kind, folder)
    world.lag = rng.choice((0.0, 0.0, 2.0, 60.0)) if kind == "objects" else 0.0
    problems: list[str] = []
    with simulated(world):
        rounds = rng.choice((1, 1, 2))
        for _ in range(rounds):
            actors = draw_actors(rng, expected[kind].operations)
            world.act(actors)
            for actor in actors:
                if not allowed(actor, [other for other in actors if other is not actor]):
                    lines = traceback.format_exception(actor.error) if actor.error else []
                    problems.append(f"{actor.name} ended with {actor.error!r}\n{''.join(lines[-6:])}")
            world.now += rng.choice((0.0, 600.0, 2 * DAY))
        problems += dict.fromkeys(world.problems)
        world.now += 2 * DAY
        later = world.store()
        whole, found = whole_artifacts(later) if later.marker() is not None else ({}, [])
        problems += found
        try:
            carry_out(world.store())
        except Exception as error:
            return [*problems, f"the next run ended with {error!r}\n{traceback.format_exc()[-1500:]}"], world
        world.now += 600.0  # longer than any listing lags behind
        now, found = whole_artifacts(world.store())
        problems += found
        problems += [f"{ref} was computed again, though it was whole" for ref, one in whole.items() if now.get(ref) != one]
        content = content_of(world.store())
        names = sorted(content.keys() | expected[kind].content.keys())
        problems += [
            f"{name} is not that of an undisturbed run"
            for name in names
            if content.get(name) != expected[kind].content.get(name)
        ]
        checked = verified(world.store())
        problems += [f"verify: {one.what}: {one.problem}" for one in checked.problems]
        world.now += 8 * DAY
        list(garbage.clear(world.store(), days=7))
        world.now += 600.0
        problems += [f"gc left {item.path}" for item in garbage.leftovers(world.store())]
        left = {path for part in ("requests", "status", TMP, "clearing") for path in world.store().listing(part)}
        problems += [f"gc left {path}" for path in sorted(left)]
        problems += [f"verify after gc: {one.what}: {one.problem}" for one in verified(world.store()).problems]
    return problems, world


def base_folder() -> Path:
    """Return the folder for stores: in memory, if there is such a file system."""
    return Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())


def simulate(seeds: Sequence[int], say: Callable[[str], None] = lambda line: None) -> dict[int, tuple[list[str], list[str]]]:
    """Simulate seeds; return the violations and operations of those with violations."""
    failed = {}
    scratch = base_folder() / f"memlib-simulation-{os.getuid()}"  # of one name, by which sets are ordered
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    with contextlib.redirect_stderr(io.StringIO()):
        expected = {}
        for kind in KINDS:
            expected[kind] = undisturbed(kind, Path(scratch, kind))
        for one in gc.get_objects() if sys.version_info < (3, 12) else ():
            if issubclass(type(one), functools.cached_property):
                one.lock = contextlib.nullcontext()  # of all objects, so that an actor would hold it when its turn ends
        for seed in seeds:
            folder = Path(scratch, str(seed))
            folder.mkdir()
            problems, world = problems_of(seed, folder, expected)
            if problems:
                failed[seed] = problems, world.log
                say(f"seed {seed} ({world.kind}): {problems[0]}")
            shutil.rmtree(folder)
    shutil.rmtree(scratch)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="replay this one alone, and print its operations")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    began = time.monotonic()
    if options.seed is not None:
        failed = simulate([options.seed])
        for problems, log in failed.values():
            print("".join(log), "\n".join(problems))
        print(f"seed {options.seed}: {'violated' if failed else 'holds'}")
        return len(failed)
    failed = simulate(range(options.seeds), lambda line: print(line, flush=True))
    minutes = (time.monotonic() - began) / 60
    print(f"{options.seeds} seeds, {len(failed)} with violations, {options.seeds / minutes:.0f} a minute")
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
