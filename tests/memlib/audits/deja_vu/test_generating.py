"""Generators are trained on public images and their representations, by the same loop, keys and resumption as models."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from memlib.audits.deja_vu import generating
from memlib.audits.deja_vu.embedding import PUBLIC_VIEW, Embed, EmbeddedView, View
from memlib.audits.deja_vu.generating import Conditions, GenerateTrain, Scale, generator_of, noise_bank
from memlib.data.splits import PUBLIC, SHARED, TARGET
from memlib.data.stages import Split, decode, members_of
from memlib.errors import CorruptArtifact, UserError
from memlib.models.denoising import ddim
from memlib.pipeline.stage import Artifact, Known
from memlib.running.reuse import evict
from memlib.running.runners import PlainRunner
from memlib.specs import (
    CropSpec,
    DataSpec,
    DecoderSpec,
    DenoiserSpec,
    GeneratorTrainingSpec,
    ModelSpec,
    Resources,
    SplitSpec,
    TrainingSpec,
)
from memlib.store import Store
from memlib.training.fit import Train, check_jobs
from memlib.training.loop import Worker

DATA = {"source": {"kind": "scenes", "num_examples": 300, "size": 16, "digit_size": 8}, "image_size": 16}
LAYERS = ("backbone", "projector_1")
SIDE = 8  # smaller than the stored images, which are resized


@dataclass
class Audit:
    """An audit up to the embeddings of its public images: whole, and their crops."""

    runner: PlainRunner
    job: GenerateTrain
    views: list[EmbeddedView]


def make_audit(folder: Path) -> Audit:
    runner = PlainRunner(Store(str(folder / "store")))
    shard = decode(runner, DataSpec.model_validate(DATA))
    splits = runner.run(Split(SplitSpec(train_per_class=3, public_per_class=5), shard))
    training = TrainingSpec(objective={"kind": "supervised"}, epochs=1, batch_size=10)
    model = ModelSpec(width=8, projector=(16,), input_size=16)
    encoder = runner.run(Train("model A0", model, training, 10, shard, splits, (TARGET, SHARED)))
    views = [
        EmbeddedView(runner.run_all(Embed(encoder, 1, view, shard, splits, LAYERS).in_parts(LAYERS)))
        for view in (PUBLIC_VIEW, View((PUBLIC,), CropSpec(mode="corner")))
    ]
    spec = GeneratorTrainingSpec(objective={"kind": "denoising", "ema": 0.8, "steps": 50}, epochs=3, batch_size=16)
    generator = DenoiserSpec(channels=(8, 16), input_size=SIDE, attention_side=4)
    job = GenerateTrain("generator A0", generator, spec, shard, splits, conditions=tuple(views), layers=LAYERS)
    return Audit(runner, job, views)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    audit = make_audit(tmp_path_factory.mktemp("audit"))
    audit.runner.run(audit.job)
    return audit


def given(*arrays: NDArray[Any]) -> Any:
    """Return a view whose parts hold arrays, each (rows, dim), as its layer named `a`, and their negatives as `b`."""

    class Given:
        def layer(self, name: str) -> Sequence[NDArray[Any]]:
            return [array if name == "a" else -array[:, :1] for array in arrays]

    return Given()


def test_scale_standardizes_each_dimension_by_its_mean_and_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    whole = (rng.standard_normal((50, 3)) * [1, 5, 0.1] + [0, 7, -3]).astype(np.float16)
    whole[:, 2] = 0.3
    monkeypatch.setattr(generating, "ROWS_AT_ONCE", 7)
    scale, both = Scale.of(given(whole[:20], whole[20:]), ("a", "b")), np.hstack([whole, -whole[:, :1]]).astype(np.float64)
    assert np.allclose(scale.mean, both.mean(axis=0), rtol=1e-6)
    assert np.allclose(scale.spread, [*both[:, :2].std(axis=0), 0, both[:, 3].std()], rtol=1e-6)
    scaled = scale.apply(both)
    assert scaled.dtype == np.float32
    assert not scaled[:, 2].any()  # the constant dimension
    assert np.allclose(scaled[:, [0, 1, 3]].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(scaled[:, [0, 1, 3]].std(axis=0), 1, atol=1e-5)


def test_conditions_of_any_rows_are_their_layers_scaled_by_the_whole_images(made: Audit) -> None:
    conditions, scale = Conditions(made.views, LAYERS), Scale.of(made.views[0], LAYERS)
    slow = np.concatenate([np.hstack([np.concatenate(view.layer(layer)) for layer in LAYERS]) for view in made.views])
    assert len(conditions) == len(slow) == made.views[0].ids.num_rows + made.views[1].ids.num_rows
    chosen = np.random.default_rng(0).permutation(len(slow))[:40]
    assert np.allclose(conditions[chosen], scale.apply(slow[chosen]), atol=1e-6)
    whole = conditions[np.arange(made.views[0].ids.num_rows)]
    assert np.allclose(whole.mean(axis=0), 0, atol=1e-5)
    swapped = Conditions([made.views[1], made.views[0]], LAYERS)  # the whole images are found by their ids
    assert np.array_equal(swapped.scale.mean, scale.mean)


def test_a_generator_trains_on_public_images_only_each_with_its_condition(made: Audit) -> None:
    data, public = made.job.training_set(), members_of(made.job.splits, PUBLIC)
    assert set(data.rows.tolist()) == set(public["row"].to_pylist())
    assert data.rows.tolist() == [row for view in made.views for row in view.ids["row"].to_pylist()]
    ids = made.views[1].ids["row"].to_numpy()
    last = len(data) - 1
    assert data.rows[last] == ids[-1]
    raw = np.concatenate([np.concatenate(made.views[1].layer(layer))[-1] for layer in LAYERS])
    assert np.allclose(data.labels[np.array([last])][0], Scale.of(made.views[0], LAYERS).apply(raw[None])[0], atol=1e-6)


def test_the_key_of_a_generator_covers_conditions_layers_images_and_settings_only(made: Audit) -> None:
    job = made.job
    key = job.identity.ref.key
    changes: list[dict[str, Any]] = [
        {"conditions": (made.views[0],)},
        {"layers": ("backbone",)},
        {"model": job.model.model_copy(update={"channels": (8, 8)})},
        {"training": job.training.model_copy(update={"seed": 1})},
    ]
    keys = [replace(job, **change).identity.ref.key for change in changes]
    assert len({key, *keys}) == len(changes) + 1
    assert replace(job, name="another", num_classes=7).identity.ref.key == key
    assert job.inputs["conditions"] == [view.key for view in made.views]
    assert pickle.loads(pickle.dumps(job)).identity.ref.key == key  # as it reaches Ray's workers


def test_a_manifest_records_the_content_of_the_conditions(made: Audit) -> None:
    store, ref = made.runner.store, made.job.identity.ref
    reads = store.artifacts.manifest(ref).reads
    parts = [part for view in made.views for part in view.parts]
    assert {part.key for part in parts} | {made.job.shard.key} <= set(reads)
    store.artifacts.discard(ref)
    known = Known()
    for part in (*parts, made.job.shard):
        known.add(part.ref)
    making = known.record(store, made.job)  # by the driver, for workers of Ray
    assert made.job.into_store(making, threads=1, worker=Worker(), resume_seconds=60) == ref
    assert {part.key for part in parts} | {made.job.shard.key} <= set(store.artifacts.manifest(ref).reads)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["denoiser", "decoder"])
def test_a_killed_generator_training_resumes_to_the_same_weights(made: Audit, kind: str) -> None:
    store, job = made.runner.store, replace(made.job, training=made.job.training.model_copy(update={"seed": 5}))
    if kind == "decoder":
        job = decoder_of(job)

    def progress(news: dict[str, Any]) -> None:
        if news["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        job.into_store(job.record({}), threads=1, worker=Worker(), resume_seconds=0, progress=progress)
    ref = job.into_store(job.record({}), threads=1, worker=Worker(), resume_seconds=0)
    assert store.artifacts.manifest(ref).facts["resumed_from_step"] > 0
    resumed = Artifact(store, ref, GenerateTrain).content.load(epoch=3)[0].state_dict()
    store.artifacts.discard(ref)
    job.into_store(job.record({}), threads=1, worker=Worker(), resume_seconds=0)
    whole = Artifact(store, ref, GenerateTrain).content.load(epoch=3)[0].state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    assert any(name.startswith("teacher.") for name in whole) == (kind == "denoiser")


def decoder_of(job: GenerateTrain) -> GenerateTrain:
    training = GeneratorTrainingSpec(objective={"kind": "decoding"}, epochs=3, batch_size=16)
    return replace(
        job, name="decoder A0", model=DecoderSpec(kind="decoder", hidden=(16,), input_size=SIDE), training=training
    )


def test_samples_are_those_of_the_moving_average_whatever_the_batches(made: Audit) -> None:
    model = Artifact(made.runner.store, made.job.identity.ref, GenerateTrain)
    sample, noise = generator_of(model, 3), noise_bank(5, SIDE, seed=2)
    conditions = Conditions(made.views, LAYERS)[np.arange(5)]
    found = sample(conditions, noise, steps=5, guidance=2.0, batch_size=2)
    assert found.shape == (5, SIDE, SIDE, 3)
    assert found.dtype == np.uint8
    teacher = model.content.load(epoch=3)[0].teacher.eval()
    images = ddim(teacher, torch.from_numpy(conditions), torch.from_numpy(noise), steps=5, guidance=2.0)
    assert np.abs(found - ((images.permute(0, 2, 3, 1).numpy() + 1) * 127.5)).max() <= 0.51
    assert not np.array_equal(found, sample(None, noise, steps=5))
    assert np.array_equal(sample(None, noise, steps=5), sample(conditions, noise, steps=5, guidance=0))


def test_samples_of_a_decoder_do_not_depend_on_the_noise(made: Audit) -> None:
    model = made.runner.run(decoder_of(made.job))
    sample, conditions = generator_of(model, 3), Conditions(made.views, LAYERS)[np.arange(4)]
    first, second = (sample(conditions, noise_bank(4, SIDE, seed=seed), steps=5, batch_size=3) for seed in (0, 1))
    assert np.array_equal(first, second)
    assert len(np.unique(first.reshape(4, -1), axis=0)) == 4


def test_the_noise_bank_follows_from_its_seed_and_grows_at_its_end() -> None:
    bank = noise_bank(20, SIDE, seed=1)
    assert bank.dtype == np.float32
    assert bank.std() == pytest.approx(1, abs=0.05)
    assert np.array_equal(bank[:3], noise_bank(3, SIDE, seed=1))
    assert not np.array_equal(bank, noise_bank(20, SIDE, seed=2))


@pytest.mark.parametrize("kind", ["denoiser", "decoder"])
def test_a_generator_and_an_objective_that_do_not_fit_are_refused_before_training(made: Audit, kind: str) -> None:
    job = replace(made.job, model=decoder_of(made.job).model)
    if kind == "denoiser":
        job = replace(made.job, training=decoder_of(made.job).training)
    with pytest.raises(UserError, match=f"does not train a {kind}; train a denoiser by denoising or decoder by decoding"):
        check_jobs([job], Worker())
    check_jobs([made.job, decoder_of(made.job)], Worker())


def test_initial_weights_of_two_generators_with_one_seed_are_equal(made: Audit) -> None:
    first = replace(made.job, training=made.job.training.model_copy(update={"checkpoint_epochs": (0,)}))
    second = replace(first, name="generator B0", conditions=(made.views[0],))  # other conditions of the same length
    initial = [made.runner.run(job).content.load(epoch=0)[0].state_dict() for job in (first, second)]
    assert all(torch.equal(initial[0][name], value) for name, value in initial[1].items())


def test_evicted_embeddings_are_recomputed_for_a_generator_that_reads_them(tmp_path: Path) -> None:
    audit = make_audit(tmp_path)
    store, parts = audit.runner.store, [part for view in audit.views for part in view.parts]
    evict(store, parts, Resources(keep_embeddings=False), say=lambda _: None)
    assert not any(store.artifacts.is_complete(part.ref) for part in parts)
    with pytest.raises(CorruptArtifact, match="was evicted"):  # outside a run there is no stage to recompute them
        audit.job.into_store(audit.job.record({}), threads=1, worker=Worker(), resume_seconds=60)
    audit.runner.run(audit.job)
    assert all(store.artifacts.is_complete(part.ref) for part in parts)
    assert list(audit.job.reads_transient) == parts
    evict(store, parts, Resources(keep_embeddings=False), say=lambda _: None)
    again = PlainRunner(store)
    again.run(audit.job)  # what is committed needs none
    assert not again.computed
    assert not any(store.artifacts.is_complete(part.ref) for part in parts)
