"""Whole audits through the command line, on scenes so small that a training takes seconds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from in_process import call
from markupsafe import escape

from deployments.local.processes import free_port
from flows.cli.running import ENGINE
from memlib.report.page import SENTENCE_END

RECIPE = """
audit: deja_vu
title: tiny
data: {source: {kind: scenes, num_examples: 240, size: 16, digit_size: 8, background: palette}, image_size: 16}
split: {train_per_class: 6}
model: {backbone: small_resnet, width: 8, projector: [32, 32], input_size: 16}
training:
  objective: {kind: supervised}
  epochs: 50
  batch_size: 10
  checkpoint_epochs: [25]
decode: {k: [5], replicates: 200, permutations: 200}
report: {gallery: 2}
"""
INFLUENCE: dict[str, Any] = {
    "audit": "self_influence", "title": "two moons", "data": {"source": {"kind": "two_moons", "num_examples": 40}},
    "split": {"train_per_class": 15}, "model": {"architecture": "mlp", "widths": [4]}, "influence": {"checkpoints": 1},
    "training": {"objective": {"kind": "supervised"}, "epochs": 2, "batch_size": 5, "augment": None},
}  # fmt: skip
"""The smallest audit."""


@contextlib.contextmanager
def file_system(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of its own at a new folder; skip the test where nothing can be mounted.

    Args:
        size: its size, as for `mount`: 900k, 64m.
    """
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@dataclass
class Memlib:
    """The memlib command, with its recipe and environment."""

    recipe: Path
    environment: dict[str, str]
    audit_name: str = "deja-vu"

    def start(
        self, store: Path | str, *settings: str, preexec_fn: Callable[[], None] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """Start an audit in its own session, so that all processes it leaves behind can be found."""
        options = [part for setting in settings for part in ("--set", setting)]
        command = [
            sys.executable,
            "-m",
            "flows.cli.entry",
            "run",
            self.audit_name,
            "--recipe",
            str(self.recipe),
            "--store",
            str(store),
        ]
        return subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment | environment, start_new_session=True, preexec_fn=preexec_fn,
        )  # fmt: skip

    def on_ray(self, store: Path, *settings: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run an audit by the command, on Prefect and Ray."""
        process = self.start(store, *settings, **environment)
        output, errors = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def audit_on_ray(self, store: Path, *settings: str, **environment: str) -> dict[str, Any]:
        """Run an audit that must succeed by the command, on Prefect and Ray; return its manifest."""
        done = self.on_ray(store, *settings, **environment)
        assert done.returncode == 0, done.stderr
        return newest(store)

    def run(
        self, store: Path, *settings: str, more: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run an audit in this process, with more options of the command."""
        options = [part for setting in settings for part in ("--set", setting)]
        asked = ("run", self.audit_name, "--recipe", str(self.recipe), "--store", str(store), *options, *more)
        return self.call(*asked, **environment)

    def audit(self, store: Path, *settings: str, **environment: str) -> dict[str, Any]:
        """Run an audit that must succeed, in this process; return its manifest."""
        done = self.run(store, *settings, **environment)
        assert done.returncode == 0, done.stderr
        return newest(store)

    def refusal(self, store: Path, *settings: str) -> str:
        """Run an audit that must be refused, in this process; return the message, at most two lines."""
        done = self.run(store, *settings)
        assert done.returncode == 2, done.stderr
        message = done.stderr.partition("memlib: ")[2].strip()
        assert 1 <= len(message.splitlines()) <= 2, done.stderr
        return message

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call the command in this process, which computes without Prefect and Ray."""
        whole = self.environment | {ENGINE: "process"} | environment
        return call(list(arguments), self.recipe.parent, whole)

    def call_on_ray(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call the command in a process of its own; runs are on Prefect and Ray."""
        command = [sys.executable, "-m", "flows.cli.entry", *arguments]
        whole = self.environment | environment
        return subprocess.run(command, capture_output=True, text=True, env=whole, timeout=3000)


def newest(store: Path) -> dict[str, Any]:
    manifests = [json.loads(path.read_text()) for path in store.glob("runs/*/manifest.json")]
    return max(manifests, key=lambda manifest: manifest["finished"])


def published(store: Path, manifest: dict[str, Any]) -> dict[str, pa.Table]:
    """Return a run's tables, without the metadata of the files."""
    return {
        name: pq.read_table(path, partitioning=None).replace_schema_metadata() for name, path in manifest["results"].items()
    }


def says_one_thing(memlib: Memlib, store: Path, manifest: dict[str, Any]) -> str:
    """Check that terminal, JSON, Parquet and page give the run's verdict in the same words; return the sentence."""
    verdict = manifest["verdict"]
    assert verdict["word"] in ("shown", "bounded", "inconclusive", "descriptive")
    page = Path(manifest["report"]).read_text()
    terminal = memlib.call("show", manifest["run"], "--store", str(store)).stdout
    listed = json.loads(memlib.call("show", manifest["run"], "--store", str(store), "--json").stdout)
    assert listed["verdict"] == verdict
    for words in (verdict["sentence"], verdict["explanation"]):
        assert words in terminal
        assert all(str(escape(sentence)) in page for sentence in SENTENCE_END.split(words))  # a long text continues below
    if "summary" in manifest["results"]:
        first, *others = published(store, manifest)["summary"].to_pylist()
        assert (first["conclusion"], first["sentence"], first["explanation"]) == tuple(verdict.values())
        assert not any(row["sentence"] or row["conclusion"] for row in others)
        assert all(row["verdict"] is None for row in (first, *others) if row["role"] != "test")
        if verdict["word"] == "shown":  # other runs give tests outside their headline families no verdict
            assert all(row["verdict"] for row in (first, *others) if row["role"] == "test")
        assert all(row["interval"] for row in (first, *others) if row["ci_low"] is not None)
    else:
        metadata = pq.read_schema(manifest["results"]["sweep"]).metadata
        assert metadata[b"memlib.sentence"].decode() == verdict["sentence"]
    return str(verdict["sentence"])


def wait_for(condition: Callable[[], Any], *, seconds: float = 480, process: subprocess.Popen[str] | None = None) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        assert process is None or process.poll() is None, f"ended early: {process.communicate()}"
        time.sleep(0.1)
    raise AssertionError("the condition was not met in time")


def resume_step(store: Path) -> int:
    """Return the newest step of any unfinished training in the store, 0 if there is none."""
    steps = [int(path.parent.name.split("-")[0]) for path in store.glob("resume/*/*/manifest.json")]
    return max(steps, default=0)


def saved_models(store: Path) -> int:
    """Return the number of unfinished models with a resume state in the store."""
    return len({path.parent.parent for path in store.glob("resume/*/*/manifest.json")})


def start_prefect_server(environment: dict[str, str], folder: Path) -> tuple[str, subprocess.Popen[str]]:
    """Start a Prefect server on loopback with its own database; return the URL of its API once it answers."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=environment | {"PREFECT_HOME": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/api"
    try:
        wait_for(lambda: _answers(f"{url}/health"), process=server)
    except BaseException:
        end_session(server.pid)
        raise
    return url, server


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2)
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextlib.contextmanager
def prefect_server(environment: dict[str, str], folder: Path) -> Iterator[str]:
    """Start a Prefect server on loopback with its own database; yield the URL of its API, and end the server."""
    url, server = start_prefect_server(environment, folder)
    try:
        yield url
    finally:
        end_session(server.pid)


def end_session(leader: int) -> None:
    """Kill everything that still runs in the session of a process."""
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == leader:
                other.send_signal(signal.SIGKILL)
        except (psutil.Error, ProcessLookupError):
            continue


def unlike(mine: pa.Table, theirs: pa.Table) -> list[str]:
    """Return the columns in which two tables differ by more than rounding: nets in stacks of other sizes differ by 1e-7."""
    if mine.schema != theirs.schema or mine.num_rows != theirs.num_rows:
        return ["schema or number of rows"]
    return [name for name in theirs.column_names if not _alike(mine[name], theirs[name])]


def _alike(mine: pa.ChunkedArray, theirs: pa.ChunkedArray) -> bool:
    if pa.types.is_list(theirs.type):
        lengths = [pc.list_value_length(column) for column in (mine, theirs)]
        return bool(lengths[0].equals(lengths[1])) and _alike(pc.list_flatten(mine), pc.list_flatten(theirs))
    if not pa.types.is_floating(theirs.type):
        return bool(mine.equals(theirs))
    pair = (column.to_numpy(zero_copy_only=False) for column in (mine, theirs))
    return np.allclose(*pair, rtol=1e-3, atol=1e-6, equal_nan=True)
