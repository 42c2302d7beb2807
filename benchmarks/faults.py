"""The fault matrix: in every stage of every audit something breaks, and the audit is run again.

`make faults` prints it as a table (docs/evidence/reliability.md says what it holds); `make test-slow` fails if a row is not as promised.

- driver: the driver is killed with -9 while it computes the stage.
- byte, truncated: a byte of the largest file of the stage's first artifact is flipped, or its second half is cut off.
- worker: a Ray worker is killed with -9 in the stage; the run must complete without help.
- spare, node: the node that works on the stage is lost, with a second node to continue on (spare) or without one (node).
  Without one, the run must report the loss in time, and a run on a new cluster must complete.
- raylet, gcs: a server of the run's own Ray is killed with -9; prefect: the Prefect server that the run started; hangup:
  the run's terminal goes away. The run must complete, or end with one line and status 75 or 130, and leave no process.

In each case the results must equal those of an undisturbed run, and no intact artifact may be computed again.
"""

import argparse
import contextlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from harness import RECIPE, Memlib, end_session, newest, prefect_server, published, unlike
from small_models import save_canaries, save_model
from test_exposure import RECIPE as EXPOSURE
from test_forgetting import RECIPE as FORGETTING
from test_membership import NETS as MEMBERSHIP
from test_unique_feature import MOONS

from memlib.audits import AUDITS
from memlib.audits.arrangement import stage_names

SELF_INFLUENCE = """
audit: self_influence
title: tiny moons
data: {source: {kind: two_moons, num_examples: 80}}
split: {train_per_class: 30}
model: {architecture: mlp, widths: [16, 16]}
training:
  objective: {kind: supervised}
  epochs: 30
  batch_size: 5
  augment: null
  optimizer: {learning_rate: 0.01, weight_decay: 0, warmup_epochs: 0, schedule: constant}
influence: {checkpoints: 3}
"""
FINE_TUNING = """
audit: exposure
title: tiny fine-tuning
seeds: 2
data: {source: {kind: topics}, fraction: 0.03, unit: token, window: 24, validation: 0.2}
canaries: {format: "my pin is {x4}.", alphabets: {x: ["1", "2", "3"]}, insertions: [20], never: 3, together: true}
model: {kind: huggingface, path: MODEL, lora: {rank: 4}}
training:
  objective: {kind: language}
  epochs: 6
  batch_size: 16
  augment: null
score: {references: 200, shards: 1}
extraction: null
discoverable: {documents: 20, prefix: 4, suffix: 8, samples: 300}
"""
CAPTIONS = """
audit: captions
title: tiny pairs
data: {source: {kind: captioned_scenes, num_examples: 160, size: 16}, image_size: 16}
split: {train_per_class: 30, public_per_class: 80, extra_per_class: 10}
model:
  image: {backbone: small_vit, patch_size: 8, width: 4, input_size: 16, projector: [8]}
  text: {width: 16}
training: {epochs: 40, batch_size: 10, optimizer: {warmup_epochs: 0}}
"""
SWEEP = f"""
audit: sweep
title: tiny sweep
recipe:
{textwrap.indent(SELF_INFLUENCE, "  ")}
grid: {{training.epochs: [10, 20, 30]}}
"""
DOSSIER = (
    SWEEP.replace("audit: sweep", "audit: dossier").replace("tiny sweep", "tiny dossier").replace("[10, 20, 30]", "[10, 20]")
)
RECONSTRUCTIONS = """
beyond: {attributes: {place: source}}
reconstruct:
  images: 24
  samples: 2
  steps: 2
  generator:
    model: {channels: [8, 8], input_size: 8, attention_side: 0}
    training: {epochs: 100, batch_size: 32, objective: {kind: denoising, ema: 0.9}}
  baseline: {epochs: 20}
  judge: {epochs: 20, model: {width: 8, projector: []}}
"""
DEJA_VU = RECIPE + "resources: {resume_seconds: 0}\n"
RECIPES = {
    "deja-vu": DEJA_VU,
    "deja-vu (views)": DEJA_VU.replace("decode: {", "decode: {stability: {views: 3}, "),
    "deja-vu (alone)": DEJA_VU + "reference: {kind: network, model: {width: 8, projector: [8], input_size: 16}, folds: 2}\n",
    "deja-vu (reconstructions)": DEJA_VU + RECONSTRUCTIONS,
    "captions": CAPTIONS,
    "canaries": "audit: canaries\ncanaries: CANARIES\nlosses: CANARIES.parquet\n",
    "unique-feature": MOONS,
    "self-influence": SELF_INFLUENCE,
    "forgetting": FORGETTING,
    "forgetting (singly)": FORGETTING.replace("optimizer: {", "optimizer: {name: rmsprop, "),
    "membership": MEMBERSHIP,
    "exposure": EXPOSURE,
    "exposure (fine-tuning)": FINE_TUNING,
    "sweep": SWEEP,
    "dossier": DOSSIER,
}
BROKEN = {
    "deja-vu (views)": ("stability",),
    "deja-vu (alone)": ("background",),
    "deja-vu (reconstructions)": ("attributes", "within", "generate_train", "train_judge", "reconstruct", "judge"),
    "exposure (fine-tuning)": ("pretrained", "train", "discover"),
    "forgetting (singly)": ("train",),
}
"""Stages to break in recipes that differ from another one in these stages only."""
ON_RAY = (
    "train",
    "embed",
    "search",
    "background",
    "stability",
    "probe",
    "generate_train",
    "train_judge",
    "reconstruct",
    "train_pairs",
    "embed_public",
    "retrieve",
    "train_nets",
    "train_subsets",
    "observe_members",
    "score_nets",
    "gradient_norms",
    "outputs",
    "perplexities",
    "ranks",
    "secret/extract",
    "discover",
)
TRAINED = ("train", "train_pairs", "generate_train", "train_judge")  # by Ray Train
ENGINES = {"raylet": "raylet/raylet", "gcs": "gcs/gcs_server", "prefect": "prefect.server.api.server:create_app"}
FAULTS = ("driver", "byte", "truncated", "worker", "spare", "node", *ENGINES, "hangup")
WITH_ENGINES = ("deja-vu", "exposure")  # audits in which engines are killed
ROOM_SECONDS = 15


@dataclass(frozen=True)
class Row:
    """Outcome of one case."""

    audit: str
    stage: str
    fault: str
    first: str  # how the disturbed run ended
    again: str  # how the next run ended
    whole: int  # artifacts that were intact before the next run
    recomputed: int  # how many of those were computed again
    equal: bool
    seconds: float

    @property
    def good(self) -> bool:
        """Return whether the case ended as promised."""
        return self.equal and not self.recomputed and not self.first.startswith("not hit")


class Watched:
    """A run whose events can be watched as they arrive."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=lambda: process.stdout and process.stdout.read(), daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            try:
                self._events.put(json.loads(line))
            except ValueError:
                continue
        self._events.put(None)

    def wait_for(self, stage: str, event: str = "computing") -> bool:
        """Wait until the stage reports the event; return False if the run ends first."""
        while (reported := self._events.get(timeout=600)) is not None:
            if (reported.get("stage"), reported.get("event")) == (stage, event):
                return True
        return False

    def end(self, timeout: float = 600) -> int:
        """Wait for the run to end; return its exit status."""
        return self.process.wait(timeout)

    @property
    def said(self) -> str:
        """Return the lines that the run wrote to stderr, without the events."""
        return "".join(line for line in self.lines if not line.startswith("{"))


@dataclass(frozen=True)
class Case:
    """A tiny audit, its command, and a folder to break it in."""

    audit: str
    memlib: Memlib
    folder: Path

    @cached_property
    def undisturbed(self) -> tuple[Path, dict[str, Any]]:
        """Run the audit undisturbed, once; return its store and manifest."""
        store = self.folder / self.audit / "undisturbed"
        return store, self.memlib.audit_on_ray(store)

    @property
    def stages(self) -> list[str]:
        """Return the stages that the audit computes, in order."""
        return [stage for stage in stage_names(AUDITS[self.memlib.audit_name]) if self.refs_of(stage)]

    def refs_of(self, stage: str) -> list[str]:
        """Return the addresses of the stage's artifacts, without those of cells, in order."""
        manifest = self.undisturbed[1]
        refs = manifest["computed"] + manifest["reused"]
        if manifest["cells"]:
            refs = [manifest["artifacts"]["scores"], manifest["artifacts"]["report"]]
        return sorted(ref for ref in refs if ref.rpartition("/")[0] == stage)

    def copy(self) -> Path:
        """Copy the undisturbed store without the run, but with the runs of its cells; return the copy's path."""
        store, run = Path(tempfile.mkdtemp(dir=self.folder)) / "store", self.undisturbed[1]["run"]
        shutil.copytree(self.undisturbed[0], store)
        for folder in (store / "runs" / run, *store.glob(f"results/*/*/run={run}")):
            shutil.rmtree(folder)
        return store

    def before(self, stage: str) -> Path:
        """Copy the undisturbed store as it was before a stage; return the copy's path."""
        store = self.copy()
        for later in self.stages[self.stages.index(stage) :]:
            for ref in self.refs_of(later):
                shutil.rmtree(store / "artifacts" / ref)
        return store

    def start(self, store: Path, *settings: str, **environment: str) -> Watched:
        return Watched(self.memlib.start(store, *settings, MEMLIB_LOG="json", **environment))

    def again(self, store: Path, stage: str, fault: str, first: str, started: float, **environment: str) -> Row:
        """Run the audit once more and compare."""
        whole = _attempts(store)
        watched = self.start(store, **environment)
        status = watched.end()
        end_session(watched.process.pid)
        return self.judged(store, stage, fault, first, _ended(status, watched), whole, started)

    def judged(
        self, store: Path, stage: str, fault: str, first: str, again: str, whole: dict[str, str], started: float
    ) -> Row:
        after = _attempts(store)
        recomputed = sum(after.get(ref) != attempt for ref, attempt in whole.items())
        equal = bool(list(store.glob("runs/*/manifest.json"))) and _same(
            published(store, newest(store)), published(*self.undisturbed)
        )
        seconds = round(time.monotonic() - started, 1)
        return Row(self.audit, stage, fault, first, again, len(whole), recomputed, equal, seconds)


def _attempts(store: Path) -> dict[str, str]:
    """Return the attempt that each committed artifact names."""
    attempts = {}
    for path in store.glob("artifacts/**/manifest.json"):
        attempts[path.parent.relative_to(store / "artifacts").as_posix()] = json.loads(path.read_text())["attempt"]
    return attempts


def _ended(status: int, watched: Watched) -> str:
    problem = [line for line in watched.said.splitlines() if line.startswith("memlib: ")]
    return "completed" if status == 0 else f"status {status}: {problem[-1][8:] if problem else watched.said[-200:]}"


def _same(mine: dict[str, pa.Table], theirs: dict[str, pa.Table]) -> bool:
    """Return whether tables are equal, except for the rounding of other stacks of nets."""
    return mine.keys() == theirs.keys() and not any(unlike(mine[name], theirs[name]) for name in theirs)


def kill_driver(case: Case, stage: str) -> Row:
    started, store = time.monotonic(), case.before(stage)
    watched = case.start(store)
    hit = watched.wait_for(stage)
    watched.process.send_signal(signal.SIGKILL)
    watched.end()
    row = case.again(store, stage, "driver", "killed" if hit else "not hit", started)
    end_session(watched.process.pid)
    return row


def damage(case: Case, stage: str, fault: str) -> Row:
    started, store, ref = time.monotonic(), case.copy(), case.refs_of(stage)[0]
    manifest = store / "artifacts" / ref / "manifest.json"
    described = json.loads(manifest.read_text())
    name = max(described["files"], key=lambda name: described["files"][name]["size"])
    file = manifest.parent / described["attempt"] / name
    data = bytearray(file.read_bytes())
    if fault == "byte":
        data[len(data) // 2] ^= 1
    else:
        del data[len(data) // 2 :]
    file.write_bytes(data)
    whole = {other: attempt for other, attempt in _attempts(store).items() if other != ref}
    watched = case.start(store)
    status = watched.end()
    named = f"artifact {ref}" in watched.said.replace("\n", "")
    first = "named" if named else "not hit"
    return case.judged(store, stage, fault, first, _ended(status, watched), whole, started)


def kill_worker(case: Case, stage: str) -> Row:
    started, store = time.monotonic(), case.before(stage)
    whole = _attempts(store)
    watched = case.start(store)
    victim = _worker(watched, stage) if watched.wait_for(stage) else None
    if victim is not None:
        victim.send_signal(signal.SIGKILL)
    status = watched.end()
    end_session(watched.process.pid)
    return case.judged(
        store, stage, "worker", "worker killed" if victim else "not hit", _ended(status, watched), whole, started
    )


def _worker(watched: Watched, stage: str) -> psutil.Process | None:
    """Return a process of the run's session in which Ray computes the stage; None if the run ends first."""
    names = ("RayTrainWorker", "ray::train_there") if stage in TRAINED else ("ray::compute_there",)
    while watched.process.poll() is None:
        for process in psutil.process_iter(["cmdline"]):
            try:
                if os.getsid(process.pid) == watched.process.pid and any(
                    name in part for part in process.cmdline() for name in names
                ):
                    return process
            except (psutil.Error, ProcessLookupError):
                continue
        time.sleep(0.01)
    return None


def lose_node(case: Case, stage: str, *, spare: bool) -> Row:
    """Remove the node that works on the stage, and run the audit again where it could not complete.

    The nodes belong to a cluster of this process, as in Ray's own tests; the run is another process that uses the cluster.
    """
    fault = "spare" if spare else "node"
    started, store = time.monotonic(), case.before(stage)
    with ray_cluster(2 if spare else 1) as (cluster, nodes, environment):
        whole = _attempts(store)
        settings = [f"resources.ray_address={cluster.address}", f"resources.room_timeout={ROOM_SECONDS}"]
        if spare:  # otherwise both nodes would be at work
            settings += [f"resources.stages.{name}.parallel=1" for name in TRAINED if name in case.stages]
        watched = case.start(store, *settings, **environment)
        hit = watched.wait_for(stage)
        time.sleep(5 if stage in TRAINED else 1)  # until Ray has placed it
        cluster.remove_node(nodes[0], allow_graceful=False)
        status = watched.end(timeout=400)
        end_session(watched.process.pid)
        first = "node lost" if hit else "not hit"
        if spare:
            return case.judged(store, stage, fault, first, _ended(status, watched), whole, started)
        if status == 0:
            return case.judged(store, stage, fault, "ended before the loss", "completed", whole, started)
        first = _ended(status, watched)
        if "room" not in first and "lost" not in first and "failed" not in first:
            first = f"not hit: {first}"
    return case.again(store, stage, fault, first, started)


def lose_engine(case: Case, stage: str, fault: str) -> Row:
    """Kill a server of Ray or Prefect that the run itself started, as after `memlib run`, or hang up its terminal."""
    started, store = time.monotonic(), case.before(stage)
    environment = {"PREFECT_API_URL": "", "PREFECT_HOME": str(store.parent / "prefect")}
    watched = case.start(store, **environment)
    hit = watched.wait_for(stage)
    victims: list[psutil.Process] = []
    end = time.monotonic() + 120
    while hit and fault != "hangup" and not victims and watched.process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        if _of_session(watched, "ray::"):  # Ray has started, and works
            victims = _of_session(watched, ENGINES[fault])
    for victim in victims:
        victim.kill()
    if fault == "hangup":
        watched.process.send_signal(signal.SIGHUP)
    status = watched.end(timeout=300)
    leftovers = [process for process in _of_session(watched, "") if process.pid != watched.process.pid]
    first = _ended(status, watched)
    if not (hit and (victims or fault == "hangup")):
        first = "not hit"
    elif leftovers or status not in (0, 75, 130) or "Traceback" in watched.said or len(watched.said) > 2000:
        first = f"not hit as promised ({len(leftovers)} processes left): {first}"
    row = case.again(store, stage, fault, first, started)
    end_session(watched.process.pid)
    return row


def _of_session(watched: Watched, name: str) -> list[psutil.Process]:
    """Return the living processes of a run whose command contains `name`."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            alive = os.getsid(process.pid) == watched.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE
            if alive and name in " ".join(process.info["cmdline"] or []):
                processes.append(process)
    return processes


@contextlib.contextmanager
def ray_cluster(count: int) -> Iterator[tuple[Any, list[Any], dict[str, str]]]:
    """Start a cluster of this process: a head without cores, and `count` nodes with one core each.

    Yields:
        the cluster, its nodes, and the environment variables that a driver needs.
    """
    require_token()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(count)]
        yield cluster, nodes, {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    finally:
        cluster.shutdown()


def require_token() -> None:
    """Set the token that Ray clusters of several nodes require; call this before anything imports Ray."""
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def rows(
    cases: Sequence[Case], faults: Sequence[str], stages: Sequence[str] = (), done: Collection[tuple[str, str, str]] = ()
) -> Iterator[Row]:
    """Yield a row for every audit, every stage (or the named ones) and every fault that applies to the stage and is not done."""
    for case in cases:
        for stage in BROKEN.get(case.audit, case.stages):
            for fault in faults if not stages or stage in stages else ():
                if (case.audit, stage, fault) not in done and (row := broken(case, stage, fault)) is not None:
                    yield row


def broken(case: Case, stage: str, fault: str) -> Row | None:
    """Break a stage and run the audit again; return None if the fault does not apply to the stage."""
    if fault == "driver":
        return kill_driver(case, stage)
    if fault in ("byte", "truncated"):
        return damage(case, stage, fault)
    if stage not in ON_RAY:
        return None
    if fault == "worker":
        return kill_worker(case, stage)
    if fault in ENGINES or fault == "hangup":
        return lose_engine(case, stage, fault) if case.audit in WITH_ENGINES else None
    return lose_node(case, stage, spare=fault == "spare")


def make_cases(folder: Path, audits: Sequence[str], environment: dict[str, str]) -> list[Case]:
    """Return the tiny audits, with a command that uses this environment."""
    require_token()
    cases = []
    for audit in audits:
        recipe = folder / f"{audit}.yaml"
        content = RECIPES[audit]
        if "MODEL" in content and not (folder / "gpt").exists():
            save_model(folder / "gpt")
        if "CANARIES" in content and not (folder / "canaries").exists():
            save_canaries(folder / "canaries", folder / "canaries.parquet")
        content = content.replace("MODEL", str(folder / "gpt")).replace("CANARIES", str(folder / "canaries"))
        recipe.write_text(content)
        cases.append(Case(audit, Memlib(recipe, environment, audit.partition(" ")[0]), folder))
    return cases


def as_promised(path: Path) -> set[tuple[str, str, str]]:
    """Return the audit, stage and fault of the rows of a file of results that ended as promised."""
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kept = [Row(**{name: value for name, value in row.items() if name != "date"}) for row in found]
    return {(row.audit, row.stage, row.fault) for row in kept if row.good}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audit", action="append", choices=RECIPES, help="by default all")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="by default all")
    parser.add_argument("--stage", action="append", default=[], help="by default all")
    parser.add_argument(
        "--results", type=Path, help="JSON lines: rows are added, and those that ended as promised are not repeated"
    )
    options = parser.parse_args()
    done = as_promised(options.results) if options.results else set()
    known = {stage for audit in options.audit or RECIPES for stage in stage_names(AUDITS[audit.partition(" ")[0]])}
    if unknown := set(options.stage) - known:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        environment = dict(os.environ) | {
            "PREFECT_HOME": str(folder / "prefect"), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }  # fmt: skip
        print("| audit | stage | fault | the run | run again | whole before | of those computed again | results equal | s |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        failures = 0
        with prefect_server(environment, folder / "server") as url:
            cases = make_cases(folder, options.audit or list(RECIPES), environment | {"PREFECT_API_URL": url})
            for row in rows(cases, options.fault or FAULTS, options.stage, done):
                failures += not row.good
                if options.results:
                    with options.results.open("a") as file:
                        file.write(json.dumps({"date": time.strftime("%Y-%m-%d")} | asdict(row)) + "\n")
                cells = (row.audit, row.stage, row.fault, row.first, row.again, row.whole, row.recomputed)
                print("|", " | ".join(map(str, (*cells, "yes" if row.equal else "NO", row.seconds))), "|", flush=True)
    print(f"\n{failures} rows are not as promised", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
