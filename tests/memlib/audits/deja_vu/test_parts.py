"""Embeddings and searches in parts: the same votes for any blocks, and the same keys where one block is enough."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.deja_vu import PROBED_VIEW
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu import embedding
from memlib.audits.deja_vu import stages as scoring
from memlib.audits.deja_vu.embedding import Embed, View
from memlib.audits.deja_vu.stages import ScoreSetting
from memlib.data.splits import PUBLIC, REFERENCE, TARGET
from memlib.errors import CorruptArtifact
from memlib.observe.embeddings import search
from memlib.pipeline.stage import AnyStage, Artifact
from memlib.recipes.files import load_recipe, validate
from memlib.running.checks import check_artifacts, check_run
from memlib.running.finished import plan
from memlib.running.reuse import evict
from memlib.running.runners import PlainRunner
from memlib.runs.garbage import garbage
from memlib.runs.index import list_runs, read_run, rows_of
from memlib.specs import Resources
from memlib.store import Store

pytestmark = pytest.mark.usefixtures("never_power")

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.epochs=2",
    "training.batch_size=20", "model.projector=[16, 16]", "decode.k=[10, 5]", "decode.layers=[last, backbone]",
    "decode.crops=[maximal, corner]",
]  # fmt: skip

KEYS = [("metric", "ascending"), ("params", "ascending")]
KEYS_OF_CURVES = [("series", "ascending"), ("params", "ascending"), ("x", "ascending")]


class Watching(PlainRunner):
    """Notes the stages that are run."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.stages: list[AnyStage] = []

    def run_all(self, stages):  # type: ignore[no-untyped-def]
        self.stages += stages
        return super().run_all(stages)


def carried_out(folder: Path, *settings: str) -> tuple[Watching, pa.Table, set[str]]:
    audit = AUDITS["deja-vu"]
    spec = validate(audit.recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = Watching(Store(str(folder)))
    run = body_of(audit)(runner, spec)
    assert run is not None
    parts = sorted(Path(run.results["units"]).parent.glob("part-*.parquet"))
    return (
        runner,
        pa.concat_tables([pq.ParquetFile(part).read() for part in parts]),
        {str(stage.identity.ref) for stage in runner.stages},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watching, pa.Table, set[str]]:
    return carried_out(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture
def copy(whole: tuple[Watching, pa.Table, set[str]], tmp_path: Path) -> Path:
    """A copy of its store, in which other ways of observing find its models."""
    shutil.copytree(whole[0].store.uri, tmp_path / "store", symlinks=True)
    return tmp_path / "store"


def test_small_audits_keep_whole_embed_and_search_stages(whole: tuple[Watching, pa.Table, set[str]]) -> None:
    embeds = [stage for stage in whole[0].stages if isinstance(stage, Embed)]
    assert embeds
    assert all(stage.rows is None and "rows" not in stage.spec for stage in embeds)
    search_of = next(stage for stage in whole[0].stages if stage.declared.name == "search")
    assert isinstance(search_of.inputs["public"], str)  # a key, as before there were parts


def assert_same_units(units: pa.Table, expected: pa.Table) -> None:
    assert units.num_rows == expected.num_rows
    keys = [(name, "ascending") for name in ("layer", "crop", "k", "direction", "example_id")]
    mine, theirs = (table.sort_by(keys) for table in (units, expected))
    for name in expected.column_names:
        if pa.types.is_floating(expected.schema.field(name).type):
            np.testing.assert_allclose(mine[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-6, atol=1e-9)
        else:
            assert mine[name].equals(theirs[name]), name


@pytest.mark.parametrize("block", [64, 23])
def test_embedding_and_searching_in_blocks_change_no_vote(
    whole: tuple[Watching, pa.Table, set[str]], block: int, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "BLOCK_ROWS", block)
    runner, units, _ = carried_out(copy)
    assert {"embed", "search", "score"} <= {ref.partition("/")[0] for ref in runner._work.computed}
    parts = [stage for stage in runner.stages if isinstance(stage, Embed)]
    assert all(stage.rows is not None for stage in parts)
    assert len(parts) >= 4 * 360 // block / 2
    assert_same_units(units, whole[1])
    assert len(list(copy.glob("runs/*/report.html"))) == 2


def test_images_stored_as_png_files_change_no_vote(whole: tuple[Watching, pa.Table, set[str]], tmp_path: Path) -> None:
    _, units, refs = carried_out(tmp_path / "store", "data.storage=png")
    assert not refs & whole[2]  # what is stored otherwise has other keys
    assert_same_units(units, whole[1])


@pytest.mark.parametrize(("setting", "stored"), [("embeddings=float16", np.float16), ("precision=bfloat16", np.float32)])
def test_embeddings_of_fewer_digits_change_few_votes(
    setting: str, stored: Any, whole: tuple[Watching, pa.Table, set[str]], copy: Path
) -> None:
    runner, units, refs = carried_out(copy, f"decode.{setting}")
    assert {ref.split("/")[0] for ref in refs - whole[2]} == {"embed", "search", "probe"}
    for stage in runner.stages:
        if isinstance(stage, Embed):
            assert Embed.open(Artifact(runner.store, stage.identity.ref, Embed)).layer("backbone").dtype == stored
    keys = [(name, "ascending") for name in ("layer", "crop", "k", "direction", "example_id")]
    mine, theirs = (table.sort_by(keys)["target_prediction"].to_numpy() for table in (units, whole[1]))
    assert (mine == theirs).mean() > (0.97 if stored == np.float16 else 0.85)
    assert not np.array_equal(mine, theirs) or stored == np.float16  # bfloat16 has eight bits


def test_settings_scored_in_parts_give_the_same_units_summary_and_curves(
    whole: tuple[Watching, pa.Table, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MOST_UNITS", 100)
    runner, units, refs = carried_out(tmp_path / "store")
    parts = [stage for stage in runner.stages if isinstance(stage, ScoreSetting)]
    assert len(parts) == 8  # layers, crops and k
    assert [part.headline for part in parts] == [True] + [False] * 7
    assert_same_units(units, whole[1])
    assert whole[2] <= refs  # nothing else has another key: how the scores were taken is part of none
    summaries = [published(store, "summary") for store in (runner.store, whole[0].store)]
    assert summaries[0].sort_by(KEYS).equals(summaries[1].sort_by(KEYS))
    assert summaries[0].slice(0, 1).equals(summaries[1].slice(0, 1))  # the headline
    curves = [published(store, "curves").sort_by([*KEYS_OF_CURVES]) for store in (runner.store, whole[0].store)]
    assert curves[0].equals(curves[1])
    (entry,) = list_runs(runner.store).entries
    assert {str(part.identity.ref) for part in parts} <= set(entry["refs"])  # or gc would take them
    run = read_run(runner.store, entry["run"])
    assert len([path for path in run.published if "table=units" in path]) == 8
    assert not list(check_run(runner.store, run, rows_of([entry])))
    last = Path(run.results["units"]).with_name("part-7.parquet")
    shutil.copy(last.with_name("part-6.parquet"), last)
    said = [str(problem) for problem in check_run(runner.store, run, rows_of([entry]))]
    assert any("part-7.parquet" in line and "has been changed since it was published" in line for line in said)


def published(store: Store, table: str) -> pa.Table:
    (path,) = Path(store.uri).glob(f"results/table={table}/audit=deja_vu/run=*/part-0.parquet")
    return pq.ParquetFile(path).read().replace_schema_metadata()


def test_parts_of_an_embed_stage_cover_all_its_rows_once(
    whole: tuple[Watching, pa.Table, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = next(s for s in whole[0].stages if isinstance(s, Embed) and s.view.crop is not None)
    monkeypatch.setattr(embedding, "BLOCK_ROWS", 30)
    parts = stage.in_parts(["backbone"])
    assert {part.layers for part in parts} == {("backbone",)}  # of a large view
    shown = [name for part in parts for name in part._shown.members["example_id"].to_pylist()]
    assert shown == stage._shown.members["example_id"].to_pylist()
    assert len({part.identity.ref for part in parts}) == len(parts)
    assert {role for part in parts for role in part._shown.members["role"].to_pylist()} == {TARGET, REFERENCE}
    assert stage.view != View((PUBLIC,))


def test_pickled_stages_are_small_and_keep_their_identity(whole: tuple[Watching, pa.Table, set[str]]) -> None:
    for stage in whole[0].stages:
        assert stage.identity  # worked out here
        sent = pickle.dumps(stage)
        assert len(sent) < 20_000
        assert pickle.loads(sent).identity == stage.identity


def test_search_over_public_parts_equals_search_over_their_concatenation() -> None:
    rng = np.random.default_rng(0)
    queries, public = rng.normal(size=(20, 8)).astype(np.float32), rng.normal(size=(300, 8)).astype(np.float32)
    cuts = [public[:1], public[1:150], public[150:]]
    for shard_bytes in (512, 2**20):
        found, whole_ = search(queries, cuts, 5, shard_bytes=shard_bytes), search(queries, [public], 5)
        assert np.array_equal(found[0], whole_[0])
        assert np.array_equal(found[1], whole_[1])


def test_evicted_embeddings_are_recomputed_only_where_a_stage_reads_them(
    whole: tuple[Watching, pa.Table, set[str]], copy: Path, tmp_path: Path
) -> None:
    store, said = Store(str(tmp_path / "store")), list[str]()
    transient = [Artifact(store, artifact.ref, Embed) for artifact in whole[0].transient]
    evict(store, transient, Resources(), say=said.append)
    assert not said  # by default they stay
    arrays = set((tmp_path / "store" / "artifacts" / "embed").rglob("*.npy"))
    note = tmp_path / "store" / "requests" / f"{'0' * 12}.json"
    note.parent.mkdir(exist_ok=True)
    note.write_text("{}")
    evict(store, transient, Resources(keep_embeddings=False), say=said.append)
    assert "other runs are in progress" in said.pop()
    note.unlink()
    evict(store, transient, Resources(keep_embeddings=False), say=said.append)
    assert "MiB of embeddings were evicted" in said.pop()
    assert arrays
    assert not any(path.exists() for path in arrays)
    assert not list(check_artifacts(store, {artifact.ref for artifact in transient}))
    assert not garbage(store, days=0)
    evict(store, transient, Resources(keep_embeddings=False), say=said.append)
    assert not said  # there is nothing left
    with pytest.raises(CorruptArtifact, match="was evicted"):
        transient[0].open().layer("backbone")
    assert not store.artifacts.is_complete(transient[0].ref)
    left = transient[0].store.artifacts
    file = tmp_path / "store" / transient[0].ref.folder / left.manifest(transient[0].ref).attempt / "backbone.npy"
    file.write_bytes(b"left by who was killed over it")
    evict(store, transient, Resources(keep_embeddings=False), say=said.append)
    assert not file.exists()

    again, units, _ = carried_out(tmp_path / "store")
    assert not again._work.computed
    assert_same_units(units, whole[1])

    wider = ["decode.k=[12, 5]"]
    audit = AUDITS["deja-vu"]
    planned = plan(audit, validate(audit.recipe, load_recipe("smoke", [*SETTINGS, *wider])[0]), store.uri, Resources())
    anew = {ref.stage for ref, part in planned.parts.items() if not part.hit}
    assert anew == {"embed", "search", "score", "report"}
    probed = {s.identity.ref for s in whole[0].stages if isinstance(s, Embed) and s.view == PROBED_VIEW}
    assert probed
    assert not any(not planned.parts[ref].hit for ref in probed)  # nobody reads these
    more, units, _ = carried_out(tmp_path / "store", *wider)
    assert {ref.split("/")[0] for ref in more._work.computed} == {"search", "score", "report"}
    assert not any(store.artifacts.evicted_files(ref) for ref in planned.parts if ref.stage == "embed" and ref not in probed)
    five = [units.filter(pc.equal(units["k"], 5)), whole[1].filter(pc.equal(whole[1]["k"], 5))]
    assert_same_units(*five)
