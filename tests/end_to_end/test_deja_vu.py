import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from harness import Memlib, end_session, newest, published, says_one_thing, wait_for

from memlib.audits import tables_of
from memlib.audits.deja_vu.tables import UNITS

NO_RAY = {"RAY_TMPDIR": "/dev/null/none"}  # starting Ray would fail
Started = Callable[..., tuple[Path, subprocess.Popen[str]]]
Finished = tuple[Path, dict[str, Any]]


def train_facts(store: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text())["facts"] for path in store.glob("artifacts/train/*/manifest.json")]


def assert_same_results(store: Path, other: Finished) -> None:
    mine, theirs = published(store, newest(store)), published(*other)
    assert newest(store)["run"] == other[1]["run"]
    for name in theirs:
        assert mine[name].equals(theirs[name]), name


def test_an_audit_publishes_tables_page_figures_and_manifest(memlib: Memlib, finished: Finished) -> None:
    store, manifest = finished
    says_one_thing(memlib, store, manifest)
    assert len(manifest["computed"]) == 16
    page = Path(manifest["report"]).read_text()
    assert "://" not in page.replace("http://www.w3.org", "")  # figures name their SVG namespace, nothing else
    assert page.count("<svg") == 2
    assert {path.name for path in Path(manifest["report"]).parent.glob("figures/*")} == {
        f"{name}.svg" for name in ("accuracy_by_confidence", "categories")
    }
    metrics = {row["metric"] for row in manifest["findings"]}
    assert metrics >= {
        "deja_vu_score", "accuracy_target", "accuracy_reference", "share_memorized", "share_misrepresented",
        "share_correlated", "share_unassociated", "share_excess", "probe_gap_backbone", "probe_gap_projector",
    }  # fmt: skip
    assert [facts["resumed_from_step"] for facts in train_facts(store)] == [None, None]
    assert not list(store.glob("resume/*")) + list(store.glob("ray/*"))
    for name in ("decode", "embed", "report"):
        files = [p for p in store.glob(f"artifacts/{name}/*/*/*") if p.is_file()]
        assert files
        assert all(path.stat().st_mode & 0o077 == 0 for path in files), "training images are secret"


def test_a_finished_audit_requested_again_trains_nothing(memlib: Memlib, finished: Finished) -> None:
    store, first = finished
    again = json.loads(memlib.run(store, more=("--json",)).stdout)
    assert again["computed"] == []
    assert sorted(set(again["reused"])) == sorted(set(first["computed"]))
    assert again["run"] == first["run"]
    assert len(again["history"]) >= 2
    assert again["history"][0]["computed"] == 16
    assert again["history"][-1]["computed"] == 0
    tables = sorted(store.glob("results/**/*.parquet"))
    retitled = memlib.audit(store, "title=the same with another title", "report.gallery=1")
    assert retitled["run"] == first["run"]  # presentation is no other run, and no second copy of the numbers
    assert retitled["title"] == "the same with another title"
    assert sorted(store.glob("results/**/*.parquet")) == tables
    assert memlib.audit(store)["title"] == first["title"]
    verified = memlib.call("verify", "--store", str(store))
    assert verified.returncode == 0, verified.stdout
    assert {"version", "definitions", "reads", "software", "content"} <= set(
        json.loads(next(store.glob("artifacts/search/*/manifest.json")).read_text())
    )


@pytest.mark.ray
def test_a_finished_audit_requested_again_by_the_command_does_not_start_ray(served: Memlib, finished: Finished) -> None:
    store, first = finished
    again = served.audit_on_ray(store, **NO_RAY)
    assert again["computed"] == []
    assert again["run"] == first["run"]


@pytest.mark.ray
def test_a_ray_that_cannot_start_or_be_reached_is_reported_without_traceback(served: Memlib, tmp_path: Path) -> None:
    said = {"cannot create a folder for Ray": served.on_ray(tmp_path, **NO_RAY)}
    said["cannot reach the Ray cluster"] = served.on_ray(tmp_path, "resources.ray_address=127.0.0.1:1")
    for message, done in said.items():
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_audit_on_an_existing_ray_cluster_gives_the_same_results(
    served: Memlib, finished: Finished, tmp_path: Path
) -> None:
    scripts = Path(sys.executable).parent
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = subprocess.Popen(
        [scripts / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--port=6399", "--num-cpus=2",
         "--include-dashboard=false", "--object-store-memory=100000000"],
        env=served.environment | token | {"PATH": f"{scripts}:{os.environ['PATH']}"}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: _listens(6399), process=head)
        store = tmp_path / "store"
        run = served.audit_on_ray(store, "resources.ray_address=127.0.0.1:6399", **token)
        assert run["resources"]["ray_address"] == "127.0.0.1:6399"
        assert_same_results(store, finished)
    finally:
        end_session(head.pid)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_changing_k_keeps_models_and_embeddings_and_changing_p_keeps_searches(memlib: Memlib, finished: Finished) -> None:
    store, first = finished
    other_k = memlib.audit(store, "decode.k=[7,5]")
    assert {name.split("/")[0] for name in other_k["computed"]} == {"search", "score", "report"}
    other_p = memlib.audit(store, "decode.p=0.5", "report.gallery=1")
    assert {name.split("/")[0] for name in other_p["computed"]} == {"score", "report"}
    other_crop = memlib.audit(store, "decode.crops=[maximal,corner]")
    made = sorted(name.split("/")[0] for name in other_crop["computed"])
    assert made == ["embed", "embed", "report", "score", "search", "search"]
    assert len({first["run"], other_k["run"], other_p["run"], other_crop["run"]}) == 4


@pytest.mark.parametrize(
    "stage", [pytest.param("train", marks=pytest.mark.slow), "embed", pytest.param("split", marks=pytest.mark.slow)]
)
def test_a_damaged_artifact_is_named_and_recomputed_to_the_same_results(
    memlib: Memlib, finished: Finished, tmp_path: Path, stage: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished[0], store)
    kinds = {"train": "*.safetensors", "embed": "*.npy", "split": "*.parquet"}
    artifact = next(name for name in finished[1]["computed"] if name.startswith(f"{stage}/"))
    victim = sorted(store.glob(f"artifacts/{artifact}/*/{kinds[stage]}"))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    done = memlib.run(store)
    assert done.returncode == 0, done.stderr
    assert f"artifact {stage}/{victim.parent.parent.name}" in done.stderr.replace("\n", "")
    assert "computing it again" in done.stderr
    assert [name.split("/")[0] for name in newest(store)["computed"]] == [stage]
    mine, theirs = published(store, newest(store)), published(*finished)
    assert all(mine[name].equals(theirs[name]) for name in theirs)


def test_results_are_read_by_duckdb_and_polars(finished: Finished) -> None:
    store, manifest = finished
    tables = tables_of("deja_vu")
    joined = duckdb.sql(f"""
        select s.metric, r.verdict, r.title
        from read_parquet('{store}/results/table=summary/**/*.parquet', hive_partitioning=true, union_by_name=true) s
        join read_parquet('{store}/results/table=runs/**/*.parquet', hive_partitioning=true, union_by_name=true) r
        using (audit, run) where r.current and run = '{manifest["run"]}'
    """).fetchall()
    assert [row[0] for row in joined] == [row["metric"] for row in pq.read_table(manifest["results"]["summary"]).to_pylist()]
    options: dict[str, Any] = {"hive_partitioning": True, "missing_columns": "insert", "extra_columns": "ignore"}
    runs = polars.scan_parquet(f"{store}/results/table=runs/**/*.parquet", **options).filter("current")
    units = polars.scan_parquet(f"{store}/results/table=units/audit=deja_vu/**/*.parquet", **options)
    assert (
        len(units.join(runs, on=["audit", "run"], how="semi").filter(polars.col("run") == manifest["run"]).collect())
        == pq.ParquetFile(manifest["results"]["units"]).metadata.num_rows
    )
    left_out = set(tables) - set(manifest["results"])
    assert all(tables[name].optional for name in left_out)
    for name, schema in ((name, schema) for name, schema in tables.items() if name not in left_out):
        glob = f"{store}/results/table={name}/**/*.parquet"
        columns = [column.name for column in schema.columns]
        rows = duckdb.sql(
            f"select * from read_parquet('{glob}', hive_partitioning=true, union_by_name=true) where run = '{manifest['run']}'"
        )
        assert set(columns) <= set(rows.columns)
        assert {"audit", "run", "table"} <= set(rows.columns)
        frame = polars.scan_parquet(glob, hive_partitioning=True).filter(polars.col("run") == manifest["run"]).collect()
        assert len(frame) == len(rows) > 0
        assert len(frame.select(schema.keys).unique()) == len(frame), f"{schema.keys} do not identify a row of {name}"
    file = pq.ParquetFile(manifest["results"]["units"])
    assert file.schema_arrow.metadata[b"memlib.version"] == str(UNITS.version).encode()
    assert file.schema_arrow.metadata[b"memlib.run"] == manifest["run"].encode()
    assert file.schema_arrow.field("target_confidence").metadata[b"unit"] == b"nat"
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_runs_and_show_print_a_finished_run(memlib: Memlib, finished: Finished) -> None:
    store, manifest = finished
    listed = memlib.call("runs", "--store", str(store))
    assert manifest["run"] in listed.stdout
    shown = memlib.call("show", manifest["run"][:6], "--store", str(store))
    assert "share_excess" in shown.stdout
    assert manifest["report"] in shown.stdout
    assert json.loads(memlib.call("show", manifest["run"], "--store", str(store), "--json").stdout)["run"] == manifest["run"]
    lost = memlib.call("show", "zzz", "--store", str(store))
    assert lost.returncode == 2
    assert "no run id in" in lost.stderr


def test_show_reveal_is_refused_for_audits_other_than_exposure(memlib: Memlib, finished: Finished) -> None:
    store, manifest = finished
    done = memlib.call("show", manifest["run"], "--reveal", "--store", str(store))
    assert done.returncode == 2
    assert "only exposure, canaries audits have secrets" in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(["decode.k=[5000]"], "decode.k is 5000, but the public set has only 120 images", marks=pytest.mark.slow),
        pytest.param(["training.optimizer.learning_rate=1e12"], "the loss is not finite at step", marks=pytest.mark.slow),
        (["training.batch_size=61"], "training.batch_size 61 exceeds the 60 training examples"),
    ],
)
def test_impossible_settings_end_with_a_short_error_and_keep_earlier_stages(
    memlib: Memlib, tmp_path: Path, settings: list[str], message: str
) -> None:
    assert message in memlib.refusal(tmp_path, *settings)
    assert len(list(tmp_path.glob("artifacts/split/*/manifest.json"))) == 1


@pytest.mark.ray
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["resources.workers_per_model=60", "training.batch_size=60"], "one model needs 60 workers of 1 CPU each"),
        (["resources.workers_per_model=7"], "training.batch_size 10 cannot be divided evenly among 7 workers"),
    ],
)
def test_numbers_of_workers_that_cannot_be_are_refused(
    served: Memlib, tmp_path: Path, settings: list[str], message: str
) -> None:
    done = served.on_ray(tmp_path, *settings)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.partition("memlib: ")[2].strip().splitlines()) <= 2, done.stderr  # after the lines of progress


def test_mistakes_on_the_command_line_end_with_a_message_and_status_2(memlib: Memlib, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    for arguments, message in (
        (["run", "deja-vu", "--recipe", "smokee"], "did you mean smoke"),
        (["run", "deja-vu", "--recipe", "smoke", "--set", "training.epoch=1"], "did you mean epochs"),
        (["run", "deja-vu", "--recipe", "smoke", "--store", f"{blocker}/store"], "cannot be written to"),
        (["schema", "sumary"], "no table or audit 'sumary'"),
        (["run", "deja-vu", "--recipe", "smoke", "--colour"], "--colour"),
        (["run", "dejavu", "--recipe", "smoke"], "dejavu"),
    ):
        done = memlib.call(*arguments)
        assert done.returncode == 2, (arguments, done.returncode)
        assert message in done.stderr + done.stdout
        assert "Traceback" not in done.stderr + done.stdout


def test_every_command_and_option_is_documented(memlib: Memlib) -> None:
    overview = memlib.call("--help").stdout
    options = ("--recipe", "--set", "--store", "--quiet")
    for command in ("run", "resume", "runs", "show", "diff", "verify", "gc", "recipes", "schema"):
        assert command in overview
        described = memlib.call(command, "--help")
        assert described.returncode == 0
        assert command != "run" or all(option in described.stdout for option in options)
    assert "smoke" in memlib.call("recipes").stdout
    units = memlib.call("schema", "units").stdout
    assert "nat" in units
    assert "share_excess" not in units
    assert json.loads(memlib.call("schema", "deja-vu").stdout)["properties"]["training"]
