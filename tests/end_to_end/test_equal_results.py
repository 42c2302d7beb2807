"""One audit cut into 1, 3 and about 1,000 parts, on one node and three, in a folder and on S3: the same votes and findings."""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import Memlib, published
from test_membership import NETS
from test_s3_server import s3_manifest, s3_tables

from benchmarks.faults import ray_cluster
from deployments.local.swift import SwiftServer

pytestmark = pytest.mark.slow
# the command, with parts of another size, which says at its end what it asked of S3
COMMAND = """
import collections, json, sys
from memlib.audits.deja_vu import embedding, stability
from memlib.audits.deja_vu import stages as scoring
from memlib.data import stages as data
rows, settings = int(sys.argv[1]), int(sys.argv[2])
if rows:
    embedding.BLOCK_ROWS = stability.BLOCK_ROWS = rows
    data.BLOCK_IMAGES, scoring.MOST_UNITS = 2 * rows, settings
import s3fs
asked, call = collections.Counter(), s3fs.S3FileSystem._call_s3
async def counted(self, method, *arguments, **options):
    said = {**(arguments[0] if arguments else {}), **options}
    asked[f"{method} {said.get('Key') or said.get('Prefix') or ''}"] += 1
    return await call(self, method, *arguments, **options)
s3fs.S3FileSystem._call_s3 = counted
from flows.cli.app import main
status = main(sys.argv[3:])
print("ASKED", json.dumps(asked), file=sys.stderr)
sys.exit(status)
"""


def run(memlib: Memlib, store: str, rows: int, *settings: str, **environment: str) -> tuple[dict[str, Any], Counter[str]]:
    """An audit in parts of so many images; its manifest, and what the driver asked of S3."""
    command = [sys.executable, "-c", COMMAND, str(rows), "1", "run", "deja-vu", "--recipe", str(memlib.recipe)]
    options = [part for setting in ("resources.threads_per_worker=1", *settings) for part in ("--set", setting)]
    done = subprocess.run(
        [*command, "--store", store, "--json", *options], capture_output=True, text=True,
        env=memlib.environment | environment, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked = next(line for line in done.stderr.splitlines() if line.startswith("ASKED "))
    return json.loads(done.stdout), Counter(json.loads(asked.removeprefix("ASKED ")))


def assert_same(tables: dict[str, pa.Table], expected: dict[str, pa.Table]) -> None:
    """Tables that are equal but for the order of rows and the rounding of floats."""
    for name in ("units", "summary"):
        keys = [
            (k, "ascending")
            for k in ("metric", "params", "layer", "k", "direction", "example_id")
            if k in expected[name].column_names
        ]
        mine, theirs = (table[name].sort_by(keys) for table in (tables, expected))
        assert mine.num_rows == theirs.num_rows
        for column in theirs.column_names:
            if pa.types.is_floating(theirs.schema.field(column).type):
                np.testing.assert_allclose(mine[column].to_numpy(), theirs[column].to_numpy(), rtol=1e-6, atol=1e-9)
            else:
                assert mine[column].equals(theirs[column]), (name, column)


def local_tables(store: Path, manifest: dict[str, Any]) -> dict[str, pa.Table]:
    whole = published(store, manifest)
    files = sorted(Path(manifest["results"]["units"]).parent.glob("part-*.parquet"))
    whole["units"] = pa.concat_tables([pq.ParquetFile(file).read().replace_schema_metadata() for file in files])
    return whole


@pytest.fixture(scope="module")
def whole(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """The tables of the audit in one part, on this machine's own Ray."""
    store = tmp_path_factory.mktemp("whole") / "store"
    return local_tables(store, run(memlib, str(store), 0)[0])


@pytest.mark.parametrize(("rows", "nodes"), [(40, 3), (40, 1), (1, 3)])
def test_results_do_not_depend_on_the_number_of_parts_and_nodes(
    memlib: Memlib, whole: dict[str, pa.Table], tmp_path: Path, rows: int, nodes: int
) -> None:
    with ray_cluster(nodes) as (cluster, _, environment):
        address = f"resources.ray_address={cluster.address}"
        manifest, _ = run(memlib, str(tmp_path / "store"), rows, address, **environment)
    made = Counter(ref.split("/")[0] for ref in manifest["computed"])
    assert made["search"] == 6 if rows > 1 else 150 < made["search"] <= 240
    assert sum(made.values()) > 800 if rows == 1 else sum(made.values()) > 20
    print(f"{sum(made.values())} parts on {nodes} nodes: {dict(made)}")
    workers = {json.loads(path.read_text())["facts"].get("worker", {}).get("node_id")
               for path in (tmp_path / "store").glob("artifacts/embed/*/manifest.json")}  # fmt: skip
    assert len(workers) == nodes
    assert_same(local_tables(tmp_path / "store", manifest), whole)


def test_shadow_models_of_three_nodes_equal_those_of_one(memlib: Memlib, tmp_path: Path) -> None:
    (tmp_path / "nets.yaml").write_text(NETS)
    command = ("run", "membership", "--recipe", str(tmp_path / "nets.yaml"), "--json", "--store")
    tables = []
    with ray_cluster(3) as (cluster, _, environment):
        for store, settings in (("own", ()), ("three", ("--set", f"resources.ray_address={cluster.address}"))):
            apart = replace(memlib, environment=memlib.environment | environment)
            done = (apart if settings else memlib).call_on_ray(*command, str(tmp_path / store), *settings)
            assert done.returncode == 0, done.stderr
            tables.append(published(tmp_path / store, json.loads(done.stdout)))
    places = [json.loads(path.read_text())["facts"]["worker"]["node_id"]
              for path in (tmp_path / "three").glob("artifacts/train_subsets/*/manifest.json")]  # fmt: skip
    assert len(set(places)) == 3
    for name, table in tables[0].items():
        keys = [(key, "ascending") for key in ("unit", "metric", "params") if key in table.column_names]
        mine, theirs = (each.sort_by(keys) if keys else each for each in (table, tables[1][name]))
        pd.testing.assert_frame_equal(mine.to_pandas(), theirs.to_pandas(), rtol=1e-6, atol=1e-6, obj=name)


def test_s3_changes_nothing_and_a_finished_run_costs_a_few_requests(
    memlib: Memlib, whole: dict[str, pa.Table], swift: SwiftServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in swift.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"audits-{uuid.uuid4().hex[:8]}"
    swift.make_bucket(bucket)
    uri = f"s3://{bucket}/here"
    with ray_cluster(3) as (cluster, _, environment):
        settings = dict(swift.environment) | environment
        address = f"resources.ray_address={cluster.address}"
        manifest, _ = run(memlib, uri, 40, address, **settings)
    mine = s3_tables(s3_manifest(uri, manifest["run"]))
    s3 = fsspec.filesystem("s3")
    files = sorted(s3.find(os.path.dirname(manifest["results"]["units"])))
    mine["units"] = pa.concat_tables([pq.ParquetFile(s3.open(file)).read().replace_schema_metadata() for file in files])
    assert_same(mine, whole)
    again, asked = run(memlib, uri, 40, **swift.environment)
    assert again["computed"] == []
    artifacts = len(again["reused"])
    of_artifacts = sum(count for name, count in asked.items() if "/artifacts/" in name)
    print(f"{artifacts} artifacts: {of_artifacts} requests for them in the finished run, {sum(asked.values())} in all")
    assert of_artifacts <= 3 * artifacts
    assert sum(asked.values()) - of_artifacts < 60  # to note who has run it again, and when
    read = [name for name in asked if name.startswith("get_object") and "/artifacts/" in name]
    assert not [name for name in read if not name.endswith("/manifest.json")]  # no artifact's bytes
