"""Prices are of a run's work: whatever the store holds, as large as its data, and corrected by runs like it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memlib
from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.embedding import Embed
from memlib.pipeline.stage import Artifact
from memlib.pricing.beside import beside_plan, cost_table
from memlib.pricing.machines import ASSUMED, Machine, _sent, keep, known
from memlib.pricing.price import Price, price_of
from memlib.pricing.runner import followed
from memlib.pricing.stages import _width
from memlib.pricing.work import CONVOLVED, SPENT, Rates, Work
from memlib.recipes.request import AuditRequest
from memlib.running.runners import PlainRunner
from memlib.runs.garbage import metrics_by_stage
from memlib.store import Ref, Store

MOONS = {
    "audit": "self_influence",
    "data": {"source": {"kind": "two_moons", "num_examples": 60}},
    "split": {"train_per_class": 20},
    "model": {"architecture": "mlp", "widths": [4]},
    "training": {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 10, "augment": None},
    "influence": {"checkpoints": 2},
}
SMOKE = (
    ("deja-vu", "smoke"), ("captions", "captions_smoke"), ("exposure", "exposure_smoke"), ("forgetting", "forgetting_smoke"),
    ("membership", "membership_smoke"), ("self-influence", "self_influence_smoke"),
    ("unique-feature", "unique_feature_smoke"),
)  # fmt: skip


STAGES = {
    "deja-vu": ("decode", "split", "train", "embed", "search", "probe", "score"),
    "captions": ("decode", "captions", "split_pairs", "train_pairs", "embed_public", "retrieve", "score_captions"),
    "exposure": ("secret/corpus", "train", "perplexities", "ranks", "secret/extract", "score_exposure"),
    "forgetting": ("decode", "sets", "mixes", "train_subsets", "outputs", "score_forgetting"),
    "membership": ("decode", "hold_out", "train_subsets", "observe_members", "score_membership"),
    "self-influence": ("decode", "hold_out", "train", "gradient_norms", "self_influence"),
    "unique-feature": ("decode", "hold_out", "canaries", "train_nets", "score_nets", "score"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def price(store: Store, audit: str, recipe: Any, changes: tuple[str, ...] = ()) -> Price:
    request = AuditRequest.of_command(audit, recipe, changes)
    return price_of(request.audit, request.recipe, store, request.resources)


def moons(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "moons.json"
    path.write_text(json.dumps(MOONS | changes))
    return str(path)


@pytest.mark.parametrize(("audit", "recipe"), SMOKE)
def test_an_empty_store_prices_every_stage_of_an_audit(audit: str, recipe: str, store: Store) -> None:
    request = AuditRequest.of_command(audit, recipe, ())
    found = price_of(request.audit, request.recipe, store, request.resources)
    assert not found.stopped
    assert {"report_captions" if audit == "captions" else "report", *STAGES[audit]} <= found.stages.keys()
    assert found.machine == ASSUMED
    assert found.factor == 4
    assert 1 < found.total("cpu_seconds") < 600
    assert not Path(store.root).exists(), "a price writes nothing"


def test_a_price_has_the_parts_and_units_of_the_run(tmp_path: Path, store: Store) -> None:
    request = AuditRequest.of_command("self-influence", moons(tmp_path), ())
    with followed(request.audit, request.recipe, store, request.resources) as found:
        planned = sorted((part.ref.stage, part.stage.units) for part in found.parts)
        keys = {part.ref.key for part in found.parts if part.ref.stage in ("decode", "hold_out")}
    runner = PlainRunner(store)
    body_of(request.audit)(runner, request.recipe)
    done = [ref.rpartition("/") for ref in runner.computed]
    made = sorted((stage, store.artifacts.manifests(stage, limit=9)[0].metrics.units) for stage, _, _ in done)
    assert planned == made
    assert keys <= {key for _, _, key in done}
    assert not price(store, "self-influence", moons(tmp_path)).stages, "nothing is left to compute"


def test_the_price_does_not_depend_on_what_else_the_store_holds(tmp_path: Path, store: Store) -> None:
    """The time of a small net must not stand for that of a large one."""
    large = moons(tmp_path, model={"architecture": "mlp", "widths": [4096, 4096]})
    before = price(store, "self-influence", large).stages["train"]
    request = AuditRequest.of_command("self-influence", moons(tmp_path), ())
    body_of(request.audit)(PlainRunner(store), request.recipe)
    after = price(store, "self-influence", moons(tmp_path, model={"architecture": "mlp", "widths": [4096, 4096]})).stages[
        "train"
    ]
    assert (after.cpu_seconds, after.similar) == (before.cpu_seconds, 0)
    small = price(store, "self-influence", moons(tmp_path), ("training.seed=5",)).stages["train"]
    assert small.similar == 1
    assert small.factor == 1.25
    (manifest,) = store.artifacts.manifests("train", limit=9)
    assert small.cpu_seconds == pytest.approx(manifest.metrics.cpu_seconds, rel=0.01)
    longer = price(store, "self-influence", moons(tmp_path), ("training.epochs=40",)).stages["train"]
    assert longer.similar == 0, "ten times as long is not of similar size"


def test_the_time_of_another_model_does_not_stand_for_a_stage_that_reads_one(tmp_path: Path, store: Store) -> None:
    """Gradient norms have equal settings under every model; their keys name the model alone."""
    request = AuditRequest.of_command("self-influence", moons(tmp_path), ())
    body_of(request.audit)(PlainRunner(store), request.recipe)
    large = moons(tmp_path, model={"architecture": "mlp", "widths": [512]})
    assert price(store, "self-influence", large).stages["gradient_norms"].similar == 0
    again = moons(tmp_path, training=MOONS["training"] | {"seed": 3})
    assert price(store, "self-influence", again).stages["gradient_norms"].similar == 2


def test_a_finished_run_is_shown_beside_its_plan(tmp_path: Path, store: Store) -> None:
    first = memlib.run(moons(tmp_path), store=store.uri, quiet=True).record
    rows = {row["stage"]: row for row in beside_plan(store, first)}
    assert rows["train"]["planned"]["cpu_seconds"] > 0
    assert 0 < rows["train"]["planned"]["bytes_out"] < rows["train"]["bytes_out"], "logs are not planned"
    headings, *cells = cost_table([*rows.values()])
    assert headings[5:9] == ["CPU s", "planned CPU s", "peak GiB", "planned peak GiB"]
    assert all(cell[6] for cell in cells if cell[0] in ("train", "gradient_norms"))
    second = memlib.run(moons(tmp_path, influence={"checkpoints": 1}), store=store.uri, quiet=True).record
    again = {row["stage"]: row for row in beside_plan(store, second)}
    assert again["train"]["reused"] == 1
    assert {name for name, row in again.items() if "planned" in row} == {"self_influence", "report"}, "reuse costs nothing"
    assert "planned CPU s" not in next(cost_table(metrics_by_stage(store, second)))


def test_stages_of_unknown_work_have_no_price_without_similar_runs(tmp_path: Path, store: Store) -> None:
    found = price(store, "membership", "membership_breast_cancer")
    assert "fit_estimators" in found.by_reason["only runs like it say what it takes"]
    assert "fit_estimators" not in found.stages


def test_a_plan_is_shown_even_if_a_stage_cannot_be_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.pricing.runner.work_of", lambda stage, artifact: 1 / 0)
    assert (
        price(store, "membership", "membership_smoke").stopped["train_subsets"]
        == "its work could not be counted (ZeroDivisionError)"
    )


@pytest.mark.parametrize(
    ("stage", "setting"),
    [("stability", "decode.stability={{views: {}}}"), ("background", "reference={{kind: network, folds: 2, epochs: {}}}")],
)
def test_views_and_backgrounds_are_priced_by_their_passes(stage: str, setting: str, store: Store) -> None:
    few, many = (price(store, "deja-vu", "smoke", (setting.format(number),)) for number in (4, 8))
    assert not many.stopped
    assert many.stages[stage].work.convolutions > 1.8 * few.stages[stage].work.convolutions > 0


def test_reconstructions_are_priced_by_their_pictures_and_steps(store: Store) -> None:
    found, plain, more = (
        price(
            store, "deja-vu", "scenes_reconstruction", (f"reconstruct.guidance={guidance}", f"reconstruct.samples={samples}")
        )
        for guidance, samples in ((2, 4), (1, 4), (2, 8))
    )
    assert not found.stopped
    drawn = found.stages["reconstruct"].work.convolutions
    assert plain.stages["reconstruct"].work.convolutions == pytest.approx(drawn / 2), "without guidance, one pass a step"
    assert more.stages["reconstruct"].work.convolutions == pytest.approx(drawn * 2)
    assert more.stages["judge"].cpu_seconds > 1.5 * found.stages["judge"].cpu_seconds
    assert found.stages["generate_train"].parts == 4, "a denoiser and a decoder for each model"


def test_mapped_images_are_counted_in_all_later_steps_and_apart_from_memory(store: Store) -> None:
    some, more = (price(store, "deja-vu", "smoke", (f"data.source.num_examples={count}",)) for count in (3000, 30_000))
    image = more.stages["split"].work.images / 30_000
    assert image == 32 * 32 * 3
    assert more.stages["split"].mapped == pytest.approx(10 * some.stages["split"].mapped)
    for later in ("train", "probe", "score"):
        assert more.stages[later].mapped >= more.stages["split"].work.images
    assert not any("memory" in line for line in more.warnings)


def test_data_that_are_not_at_hand_are_priced_by_their_expected_size(store: Store) -> None:
    small = (
        "data.expected.images=20000", "data.expected.classes=10", "split.train_per_class=100", "split.public_per_class=200",
        "training.batch_size=128", "training.checkpoint_epochs=[]", "decode.epochs=[]",
    )  # fmt: skip
    found, doubled = (price(store, "deja-vu", "deja_vu_imagenet", (*small, f"training.epochs={n}")) for n in (1, 2))
    assert not found.stopped
    steps, views, models = 1000 // 128, 2, 2
    assert found.stages["train"].work.convolutions == pytest.approx(models * steps * 128 * views * 3 * 7.8e9, rel=0.02)
    assert found.stages["train"].gpu_seconds > 0
    assert doubled.stages["train"].work.convolutions == 2 * found.stages["train"].work.convolutions


def test_the_width_of_committed_embeddings_is_that_of_their_file(store: Store) -> None:
    ref = Ref("embed", "0" * 32)
    with store.artifacts.write(ref, spec={"dtype": "float16"}, units=50) as attempt:
        np.save(attempt.path("backbone.npy"), np.zeros((50, 96), dtype=np.float16))
    assert _width(Artifact(store, ref, Embed), "backbone") == 97  # with the file's header


def test_rates_are_kept_by_machine_and_damaged_ones_are_not_read(store: Store) -> None:
    store.begin()
    core = Rates(**dict.fromkeys(Rates.model_fields, 1e9))
    here, there = (Machine(name=name, measured=when, cores=2, core=core) for name, when in (("here", 1.0), ("there", 2.0)))
    for machine in (here, there):
        keep(store, machine)
    assert known(store, "here") == here
    assert known(store, "elsewhere") == there, "else the newest"
    for path in Path(store.root, "machines").iterdir():
        path.write_text(path.read_text().replace("1000000000.0", "-1"))
    assert known(store, "here") == ASSUMED


def test_a_remote_store_is_asked_and_sent_to_at_the_speed_that_was_measured(tmp_path: Path) -> None:
    remote = Store(f"memory://{tmp_path.name}", cache=str(tmp_path / "cache"))
    here = price(remote, "self-influence", moons(tmp_path))
    (line,) = [one for one in here.warnings if "PUT and LIST" in one]
    assert line.startswith(f"the store is asked about {11 * here.total('parts'):.0f} times by PUT and LIST")
    assert "MB/s" not in line, "nothing was measured"
    sent = _sent(remote)
    assert sent > 1e6
    assert not remote.listing("machines")
    slow = ASSUMED.model_copy(update={"measured": 1.0, "sent": 100.0})
    keep(remote, slow)
    there = price(remote, "self-influence", moons(tmp_path))
    waits = there.total("wall_seconds") - here.total("wall_seconds")
    assert waits == pytest.approx(here.total("written") / 100, rel=0.5), "two parts of a step are sent side by side"
    assert any("at 0 MB/s" in one for one in there.warnings)
    assert there.total("cpu_seconds") == pytest.approx(here.total("cpu_seconds")), "a core waits, and computes no more"


def test_time_is_work_by_rates() -> None:
    rates = Rates(**dict.fromkeys(Rates.model_fields, 2.0) | {"products_half": 8.0})
    assert rates.seconds(Work(**dict.fromkeys(SPENT, 1.0))) == pytest.approx((len(SPENT) - 1 + CONVOLVED) / 2)
    assert rates.seconds(Work(products=8.0, half=True)) == 1


def test_every_audit_is_among_those_that_are_priced() -> None:
    assert {*STAGES, "sweep", "dossier", "canaries"} == set(AUDITS)
    assert {audit for audit, _ in SMOKE} == set(STAGES)
