"""Nets that train together end as they would alone, and as in plain torch code."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.data.canaries.features import TrainingRows, build_feature, training_rows
from memlib.errors import RunError, UserError
from memlib.models.classifiers import build_classifier
from memlib.specs import CanarySpec, ClassifierSpec, GlyphFeature, ScalarFeature, TrainingSpec
from memlib.training import stacked
from memlib.training.augment import prepare
from memlib.training.loop import epoch_order
from memlib.training.stacked import (
    Budget,
    Examples,
    NetJob,
    StackedNet,
    _Stack,
    choose_stack_size,
    even_size,
    stream,
    train_nets,
)

CPU = torch.device("cpu")
MLP = ClassifierSpec(architecture="mlp", widths=(16, 16))


def training(**changes: Any) -> TrainingSpec:
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
    base = {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 16, "augment": None, "optimizer": optimizer}
    return TrainingSpec.model_validate(base | changes)


def points(count: int = 80) -> Examples:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, count)
    values = (rng.normal(size=(count, 3)) + labels[:, None]).astype(np.float32)
    return Examples(values, labels, build_feature(ScalarFeature(kind="scalar", value=3), (3,)), np.arange(60, count))


def images(side: int = 12, channels: int = 1) -> Examples:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    pixels = (rng.integers(0, 100, (60, side, side, channels)) + 50 * labels[:, None, None, None]).astype(np.uint8)
    feature = build_feature(GlyphFeature(kind="glyph"), (side, side, channels))
    return Examples(pixels, labels, feature, np.arange(45, 60))


def jobs(count: int, data: Examples, *, repeats: int = 1) -> list[NetJob]:
    spec = CanarySpec.model_validate({"feature": {"kind": "glyph"}, "repeats": repeats})
    seen = np.arange(len(data.labels) - len(data.validation))
    return [NetJob(100 + i, training_rows(seen, i % 5, spec, with_feature=i % 2 == 0)) for i in range(count)]


CASES = {
    "full batch": (MLP, training(batch_size=None, epochs=20), points()),
    "batches": (MLP, training(), points()),
    "dropout and batch norm": (MLP.model_copy(update={"dropout": 0.2, "batch_norm": True}), training(), points()),
    "cnn_1": (ClassifierSpec(architecture="cnn_1"), training(epochs=2), images()),
    "cnn_2, regularised": (
        ClassifierSpec(architecture="cnn_2", dropout=0.2, dropout_conv=0.5, batch_norm=True), training(epochs=2), images(16),
    ),
    "augmented": (
        MLP,
        training(augment={"crop_scale": (1, 1), "crop_ratio": (1, 1), "brightness": 0, "contrast": 0.2, "shift": 1, "blur": (0, 0)}),
        images(),
    ),
    "patience": (MLP, training(epochs=60, patience=2, optimizer={"learning_rate": 0.05, "warmup_epochs": 0}), points()),
}  # fmt: skip


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Relative difference of all weights; where a gradient is near 0, Adam turns rounding into whole steps of single weights."""
    mine, theirs = (torch.cat([state[name].double().flatten() for name in b]) for state in (a, b))
    return float((mine - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("case", CASES)
def test_a_net_does_not_depend_on_others_in_its_stack(case: str) -> None:
    spec, how, data = CASES[case]
    nets = jobs(6, data)
    together = train_nets(spec, how, data, nets, 3, stack_size=6, device=CPU)
    others = train_nets(spec, how, data, nets[::-1], 3, stack_size=4, device=CPU)[::-1]
    alone = train_nets(spec, how, data, nets[:2], 3, stack_size=1, device=CPU)
    for a, b in [*zip(together, others, strict=True), *zip(together, alone, strict=False)]:
        assert a.epoch == b.epoch
        assert len(a.history) == len(b.history)
        assert difference(a.state, b.state) < 0.01
    assert not torch.equal(together[0].state["1.weight" if "1.weight" in together[0].state else "0.weight"],
                           together[1].state["1.weight" if "1.weight" in together[1].state else "0.weight"])  # fmt: skip


def plain(spec: ClassifierSpec, how: TrainingSpec, data: Examples, job: NetJob, classes: int) -> nn.Module:
    """The training of one net as one would write it down."""
    shown = data.images[job.rows.rows].copy()
    shown[job.rows.marked] = data.feature.insert(shown[job.rows.marked])
    inputs, labels = prepare(shown, CPU), torch.from_numpy(data.labels[job.rows.rows])
    net = build_classifier(spec, data.input_shape, classes, seed=job.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=how.optimizer.learning_rate)
    size = how.batch_size or len(labels)
    for epoch in range(how.epochs):
        order = torch.from_numpy(epoch_order(len(labels), seed=job.seed, epoch=epoch))
        for start in range(0, len(labels) - size + 1, size):
            chosen = order[start : start + size]
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("case", ["full batch", "batches", "cnn_1"])
def test_the_stack_equals_plain_code(case: str) -> None:
    spec, how, data = CASES[case]
    nets = jobs(3, data)
    for job, found in zip(nets, train_nets(spec, how, data, nets, 3, stack_size=3, device=CPU), strict=True):
        assert difference(found.state, plain(spec, how, data, job, 3).state_dict()) < 0.01


def test_large_batches_take_the_net_by_net_path_with_the_same_result() -> None:
    rng = np.random.default_rng(1)
    data = Examples(rng.normal(size=(400, 3)).astype(np.float32), rng.integers(0, 2, 400), points().feature)
    how = training(batch_size=None, epochs=5)
    nets = jobs(2, data)
    found = train_nets(MLP, how, data, nets, 2, stack_size=2, device=CPU)
    for job, result in zip(nets, found, strict=True):
        assert difference(result.state, plain(MLP, how, data, job, 2).state_dict()) < 0.01


def test_without_the_feature_canary_net_and_control_are_the_same_net() -> None:
    data = points()
    rows = np.arange(60)
    spec = CanarySpec.model_validate({"feature": {"kind": "scalar", "value": float(data.images[3, 2])}})
    same = Examples(data.images, data.labels, build_feature(spec.feature, (3,)), data.validation)
    pair = [NetJob(5, training_rows(rows, 3, spec, with_feature=w)) for w in (True, False)]
    a, b = train_nets(MLP, training(), same, pair, 2, stack_size=2, device=CPU)
    assert all(torch.equal(value, b.state[name]) for name, value in a.state.items())


def test_early_stopping_keeps_the_best_epoch() -> None:
    spec, how, data = CASES["patience"]
    for result in train_nets(spec, how, data, jobs(5, data), 2, stack_size=5, device=CPU):
        losses = result.history[:, 2]
        assert result.epoch == int(losses.argmin()) + 1
        assert len(losses) == min(result.epoch + 2, 60)  # and no longer than patience lasts


def test_earlier_epochs_are_those_of_shorter_trainings() -> None:
    data, constant = points(), {"schedule": "constant", "warmup_epochs": 0}
    how = training(epochs=4, optimizer=constant, checkpoint_epochs=(0, 2, 4))
    found = train_nets(MLP, how, data, jobs(3, data), 2, stack_size=2, device=CPU)
    for epoch in (0, 2):
        shorter = training(epochs=epoch, optimizer=constant)
        for result, other in zip(
            found, train_nets(MLP, shorter, data, jobs(3, data), 2, stack_size=2, device=CPU), strict=True
        ):
            assert set(result.earlier) == {0, 2}
            assert difference(result.earlier[epoch], other.state) < 1e-6


def test_after_a_net_has_stopped_its_best_epoch_is_its_last_one() -> None:
    spec, how, data = CASES["patience"]
    how = how.model_copy(update={"checkpoint_epochs": (how.epochs - 1,)})
    for result in train_nets(spec, how, data, jobs(5, data), 2, stack_size=5, device=CPU):
        assert len(result.history) < how.epochs - 1
        assert difference(result.earlier[how.epochs - 1], result.state) == 0


def test_a_net_that_has_stopped_cannot_stop_its_neighbours() -> None:
    spec, how, data = CASES["patience"]
    stack = _Stack(spec, how, data, jobs(3, data), 2, CPU)
    stack.stopped.add(1)
    stack._note(1, torch.tensor([1.0, torch.nan, 1.0]), torch.ones(3), torch.ones(3))
    assert [len(history) for history in stack.histories] == [1, 0, 1]
    with pytest.raises(RunError, match="not finite in epoch 2"):
        stack._note(2, torch.tensor([1.0, 1.0, torch.nan]), torch.ones(3), torch.ones(3))


def test_watch_gets_the_same_scores_whether_known_or_recomputed() -> None:
    data = points()
    probe = prepare(data.images[:7], CPU)
    seen: dict[str, dict[tuple[int, int], np.ndarray]] = {"full": {}, "again": {}}

    def watcher(name: str, use_known: bool) -> Any:
        def watch(epoch: int, nets: Any, forward: Any, known: Any) -> None:
            scores = known[:, :7] if use_known and known is not None else forward(probe)
            for net, row in zip(nets, scores, strict=True):
                seen[name][net, epoch] = row.detach().numpy().copy()

        return watch

    for name, use_known in (("full", True), ("again", False)):
        nets = [NetJob(i, TrainingRows(np.arange(60), np.zeros(60, dtype=bool))) for i in range(3)]
        train_nets(
            MLP, training(batch_size=None, epochs=5), data, nets, 2, stack_size=2, device=CPU, watch=watcher(name, use_known)
        )
    assert set(seen["full"]) == {(net, epoch) for net in range(3) for epoch in range(1, 6)}
    for key, value in seen["full"].items():
        np.testing.assert_allclose(value, seen["again"][key], rtol=1e-4, atol=1e-6)


def test_nets_loaded_from_a_stacked_state_equal_the_trained_ones() -> None:
    spec, how, data = CASES["batches"]
    results = train_nets(spec, how, data, jobs(3, data), 2, stack_size=3, device=CPU)
    state = {name: torch.stack([r.state[name] for r in results]) for name in results[0].state}
    skeleton = build_classifier(spec, data.input_shape, 2, seed=9)
    assert isinstance(skeleton, nn.Sequential)
    scores = StackedNet.load(skeleton, state, CPU).forward(prepare(data.images, CPU)[None])
    for result, mine in zip(results, scores, strict=True):
        skeleton.load_state_dict(result.state)
        torch.testing.assert_close(skeleton.eval()(prepare(data.images, CPU)), mine)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"batch_size": 200}, UserError, "exceeds the 60 training examples"),
        ({"patience": 3}, UserError, "needs validation"),
        ({"precision": "bfloat16"}, UserError, "train in float32"),
        ({"optimizer": {"name": "lars"}}, UserError, "cannot train stacked nets"),
        ({"augment": {}}, UserError, "for images"),
        ({"optimizer": {"learning_rate": 1e12, "warmup_epochs": 0}}, RunError, "not finite in epoch"),
    ],
)
def test_train_nets_refuses_unsupported_settings_and_non_finite_losses(
    changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    data = points()
    nets = jobs(2, data)
    data = Examples(data.images, data.labels, data.feature)
    with pytest.raises(error, match=said):
        train_nets(MLP, training(**changes), data, nets, 2, stack_size=2, device=CPU)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"name": "sgd"}},
        {"shuffle": False},
        {"checkpoint_steps": (1,)},
        {"privacy": {"epsilon": 1}},
        {"precision": "float16"},
    ],
)
def test_settings_with_which_nets_cannot_be_stacked_are_known_beforehand(changes: dict[str, Any]) -> None:
    data = points()
    assert not training().unstackable
    said = training(**changes).unstackable
    assert said
    with pytest.raises(UserError) as refused:
        train_nets(MLP, training(**changes), data, jobs(1, data), 2, stack_size=1, device=CPU)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("count", "most", "size"),
    [(5, 8, 5), (12, 8, 6), (9, 8, 5), (300, 256, 150), (7, 1, 1), (1, 8, 1), (16, 8, 8), (17, 8, 6)],
)
def test_stacks_are_as_few_as_possible_and_of_even_size(count: int, most: int, size: int) -> None:
    assert even_size(count, most) == size


WEIGHTS = 3 * 24 + 24 + 24 * 2 + 2  # of the net below: as many multiplications an example


@pytest.mark.parametrize(
    ("batch", "budget", "size"),
    [
        (10, Budget(1e9, 1e9), 12),
        (10, Budget(WEIGHTS * 10 * 4, 1e9), 4),
        (10, Budget(WEIGHTS * 10 * 4 - 1, 1e9), 3),
        (20, Budget(WEIGHTS * 10 * 4, 1e9), 2),
        (None, Budget(WEIGHTS * 60 * 6, 1e9), 6),  # all 60 examples
        (10, Budget(1e9, 4 * (4 * WEIGHTS + 10 * 3) * 6), 6),
        (10, Budget(1e9, 4 * (4 * WEIGHTS + 10 * 3) * 6 - 1), 4),  # five would leave two in the third stack
        (10, Budget(1.0, 1.0), 1),
    ],
)
def test_the_stack_size_follows_from_multiplications_and_bytes(
    batch: int | None, budget: Budget, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stacked.BUDGETS, "cpu", budget)
    net, data = ClassifierSpec(architecture="mlp", widths=(24,)), without_feature(points())
    assert choose_stack_size(net, training(batch_size=batch), data, jobs(12, data), 2, CPU) == size


def test_a_stack_tells_its_epochs_and_those_that_it_saves_by_stopping_early() -> None:
    data, told = points(), []
    patient = training(epochs=6, patience=1, optimizer=training().optimizer.model_copy(update={"learning_rate": 0.5}))
    results = train_nets(
        MLP,
        patient,
        data,
        jobs(3, data),
        2,
        stack_size=2,
        device=CPU,
        progress=lambda done, total: told.append((done, total)),
    )
    assert {len(result.history) for result in results} != {6}
    assert {total for _, total in told} == {3 * 6}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert (12, 18) in told
    assert told[-1] == (18, 18)


# -- training sets of unequal size ----------------------------------------------------------------------


def sets(*sizes: int, pool: int = 60) -> list[NetJob]:
    """Training sets of these sizes from the first `pool` rows, drawn by net, without a feature."""
    drawn = [np.sort(np.random.default_rng(net).permutation(pool)[:size]) for net, size in enumerate(sizes)]
    return [NetJob(200 + net, TrainingRows(rows, np.zeros(len(rows), dtype=bool))) for net, rows in enumerate(drawn)]


def without_feature(data: Examples) -> Examples:
    return Examples(data.images, data.labels, validation=data.validation)


def counted_passes(size: int, *, seed: int, epoch_size: int, batch: int, epochs: int) -> list[list[int]]:
    """The batches of one net, dealt example by example."""
    deck: list[int] = []
    batches, number = [], 0
    for _ in range(epochs):
        epoch = []
        for _ in range(epoch_size):
            if not deck:
                deck = epoch_order(size, seed=seed, epoch=number).tolist()
                number += 1
            epoch.append(deck.pop(0))
        batches += [epoch[start : start + batch] for start in range(0, epoch_size - batch + 1, batch)]
    return batches


def plain_of(spec: ClassifierSpec, how: TrainingSpec, data: Examples, job: NetJob, batches: list[list[int]]) -> nn.Module:
    """The training of one net on these batches as one would write it down."""
    inputs, labels = prepare(data.images[job.rows.rows], CPU), torch.from_numpy(data.labels[job.rows.rows])
    net = build_classifier(spec, data.input_shape, 3, seed=job.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=how.optimizer.learning_rate)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize(
    ("batch", "epoch_size", "data"),
    [
        (16, 40, points()),
        (8, 24, points()),
        (40, 40, points()),  # the batch is an epoch, but the whole training set of only one net
        (16, 32, images()),
    ],
    ids=["remainder", "whole batches", "batch of an epoch", "images"],
)
def test_nets_of_unequal_sets_equal_plain_code_on_the_same_batches(batch: int, epoch_size: int, data: Examples) -> None:
    how, nets, data = training(epochs=3, batch_size=batch), sets(31, 40, 5, 44, pool=45), without_feature(data)
    for size in (4, 2, 1):
        found = train_nets(MLP, how, data, nets, 3, stack_size=size, device=CPU, epoch_size=epoch_size)
        for job, result in zip(nets, found, strict=True):
            batches = counted_passes(len(job.rows.rows), seed=job.seed, epoch_size=epoch_size, batch=batch, epochs=3)
            assert difference(result.state, plain_of(MLP, how, data, job, batches).state_dict()) < 1e-5


REGULARIZED = MLP.model_copy(update={"dropout": 0.2, "batch_norm": True})
VIEWS = {"crop_scale": (1, 1), "crop_ratio": (1, 1), "brightness": 0, "contrast": 0.2, "shift": 1, "blur": (0, 0)}


@pytest.mark.parametrize(
    ("changes", "data"),
    [({}, points()), ({"batch_size": 40}, points()), ({"augment": VIEWS}, images())],
    ids=["batches", "batch of an epoch", "augmented"],
)
def test_a_net_does_not_depend_on_the_set_sizes_of_others_in_its_stack(changes: dict[str, Any], data: Examples) -> None:
    how, nets, data = training(**changes), sets(31, 40, 12, 44, pool=45), without_feature(data)
    alone = train_nets(REGULARIZED, how, data, nets, 3, stack_size=1, device=CPU, epoch_size=40)
    together = train_nets(REGULARIZED, how, data, nets, 3, stack_size=4, device=CPU, epoch_size=40)
    others = train_nets(REGULARIZED, how, data, nets[1:], 3, stack_size=2, device=CPU, epoch_size=40)
    for a, b in [*zip(alone, together, strict=True), *zip(alone[1:], others, strict=True)]:
        assert difference(a.state, b.state) < 1e-4
        np.testing.assert_allclose(a.history[:, [0, 2]], b.history[:, [0, 2]], rtol=1e-4)  # losses


@pytest.mark.parametrize("batch", [16, 60, None])
def test_an_epoch_size_equal_to_that_of_all_sets_changes_nothing(batch: int | None) -> None:
    how, data, nets = training(batch_size=batch), points(), sets(60, 60, 60)
    default = train_nets(REGULARIZED, how, data, nets, 2, stack_size=3, device=CPU)
    given = train_nets(REGULARIZED, how, data, nets, 2, stack_size=3, device=CPU, epoch_size=60)
    for a, b in zip(default, given, strict=True):
        assert all(torch.equal(value, b.state[name]) for name, value in a.state.items())


def test_an_epoch_of_a_whole_set_has_the_order_of_the_plain_loop() -> None:
    for epoch in range(3):
        order = stream(60, seed=9, start=epoch * 60, count=48)
        assert order.tolist() == epoch_order(60, seed=9, epoch=epoch)[:48].tolist()


@pytest.mark.parametrize("size", [1, 7, 24, 31, 100])
def test_parts_of_a_stream_join_and_show_each_example_equally_often_up_to_one(size: int) -> None:
    shown = np.concatenate([stream(size, seed=3, start=epoch * 24, count=24) for epoch in range(10)])
    assert shown.tolist() == stream(size, seed=3, start=0, count=240).tolist()
    counts = np.bincount(shown, minlength=size)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == 240
    passes = shown[: 240 // size * size].reshape(-1, size)
    assert np.array_equal(np.sort(passes), np.tile(np.arange(size), (len(passes), 1)))


def test_a_stack_shows_every_net_its_own_rows_for_equally_many_steps() -> None:
    data, nets = without_feature(points()), sets(12, 24, 37)
    stack = _Stack(MLP, training(batch_size=8, epochs=37), data, nets, 2, CPU, epoch_size=24)
    batches = [batch for epoch in range(37) for batch in stack._batches(epoch)]
    assert [batch.shape for batch in batches] == [(3, 8)] * 3 * 37
    for net, job in enumerate(nets):
        inputs = torch.cat([stack.pool.inputs[batch[net]] for batch in batches])
        rows, counts = np.unique(inputs.numpy(), axis=0, return_counts=True)
        assert np.array_equal(rows, np.unique(data.images[job.rows.rows], axis=0))
        assert set(counts) == {37 * 24 // len(job.rows.rows)}  # all sizes divide the examples of 37 epochs


def test_a_full_batch_is_not_shuffled_whatever_else_is_in_the_stack() -> None:
    data, nets = without_feature(points()), sets(24, 24, 37)
    for group in (nets[:1], nets[:2], nets):
        stack = _Stack(MLP, training(batch_size=24), data, group, 2, CPU, epoch_size=24)
        [batch] = stack._batches(1)
        assert all(torch.equal(batch[net], stack.pool.places(nets[net].rows)) for net in range(min(2, len(group))))


def test_the_remaining_nets_keep_their_batches_when_others_are_dropped() -> None:
    data = without_feature(points())
    stack = _Stack(MLP, training(batch_size=8), data, sets(12, 37, 24), 2, CPU, epoch_size=24)
    before = stack._batches(1)
    stack._keep([1, 2])
    for batch, kept in zip(before, stack._batches(1), strict=True):
        assert torch.equal(batch[1:], kept)


def test_nets_without_canaries_train_alike_with_and_without_a_feature_in_the_data() -> None:
    nets = sets(60, 60)
    with_one, without = (
        train_nets(MLP, training(), data, nets, 2, stack_size=2, device=CPU) for data in (points(), without_feature(points()))
    )
    for a, b in zip(with_one, without, strict=True):
        assert all(torch.equal(value, b.state[name]) for name, value in a.state.items())


@pytest.mark.parametrize(
    ("batch", "sizes", "said"),
    [
        (None, (31, 44), "batch_size null needs training sets of 40 examples, but the nets have 31 to 44"),
        (None, (44, 44), "batch_size null needs training sets of 40 examples, but the nets have 44 to 44"),
        (41, (44, 44), "batch_size 41 exceeds the 40 training examples of an epoch"),
        (16, (44, 0), "1 of 2 nets have no training examples"),
    ],
)
def test_sets_that_an_epoch_cannot_serve_are_refused_when_stacks_are_chosen_and_trained(
    batch: int | None, sizes: tuple[int, ...], said: str
) -> None:
    data, nets, how = without_feature(points()), sets(*sizes), training(batch_size=batch)
    with pytest.raises(UserError, match=said):
        train_nets(MLP, how, data, nets, 2, stack_size=2, device=CPU, epoch_size=40)
    with pytest.raises(UserError, match=said):
        choose_stack_size(MLP, how, data, nets, 2, CPU, epoch_size=40)


def test_the_stack_size_of_sets_of_unequal_size_follows_from_an_epoch() -> None:
    nets = sets(31, 44, 5, 44)
    assert choose_stack_size(MLP, training(), without_feature(points()), nets, 2, CPU, epoch_size=40) == 4
