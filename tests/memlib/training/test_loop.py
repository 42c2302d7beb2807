import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from memlib.errors import RunError, UserError
from memlib.models.encoder import build_encoder
from memlib.objectives import Objective, build_objective
from memlib.specs import AugmentSpec, ModelSpec, OptimizerSpec, TrainingSpec
from memlib.training import loop
from memlib.training.loop import Prefetcher, Training, TrainingSet, Worker, epoch_order
from tests.forks import together

CRITERIA = ["barlow_twins", "simclr", "byol", "dino"]
OPTIONS = {"dino": {"prototypes": 12, "local_views": 2, "local_side": 10}}
SHARED_STEPS = 2  # in more steps, training multiplies the rounding of the first ones
MODEL = ModelSpec(width=8, projector=(16, 16), input_size=16)


def make_data(count: int = 26) -> TrainingSet:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(40, 16, 16, 3), dtype=np.uint8)
    rows = rng.permutation(40)[:count]
    return TrainingSet(images, rows, rng.integers(0, 3, size=count))


def make_training(
    kind: str = "vicreg", *, optimizer: str = "adamw", worker: Worker | None = None, **changes: Any
) -> Training:
    spec = TrainingSpec(
        objective={"kind": kind, **OPTIONS.get(kind, {})},
        optimizer=OptimizerSpec(name=optimizer, learning_rate=0.01, warmup_epochs=1),
        **({"epochs": 4, "batch_size": 8, "augment": AugmentSpec()} | changes),
    )
    encoder = build_encoder(MODEL, num_classes=3 if kind == "supervised" else None, seed=1)
    return Training(encoder, build_objective(spec.objective), make_data(), spec, input_size=16, worker=worker)


def weights(training: Training) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(
    ("kind", "optimizer", "precision", "stop"),  # every criterion, optimizer, and each precision with each place to stop
    [
        ("vicreg", "adamw", "float32", 1), ("vicreg", "lars", "bfloat16", 5), ("supervised", "adamw", "float32", 9),
        ("supervised", "adagrad", "float32", 5), ("supervised", "adadelta", "float32", 1), ("barlow_twins", "adamw", "bfloat16", 9),
        ("simclr", "adamw", "bfloat16", 1), ("byol", "adamw", "bfloat16", 5), ("dino", "adamw", "bfloat16", 9),
    ],
)  # fmt: skip
def test_stopping_and_resuming_changes_no_bit(kind: str, optimizer: str, precision: str, stop: int) -> None:
    whole = make_training(kind, optimizer=optimizer, precision=precision)
    means: list[dict[str, float]] = []
    whole.run(after_epoch=lambda _, m: means.append(m))
    first = make_training(kind, optimizer=optimizer, precision=precision)
    again: list[dict[str, float]] = []
    first.run(stop_after=stop, after_epoch=lambda _, m: again.append(m))
    assert first.step == stop
    second = make_training(kind, optimizer=optimizer, precision=precision)
    torch.manual_seed(99)  # whatever the process did before
    second.load_state(through_a_file(first.state()))
    second.run(after_epoch=lambda _, m: again.append(m))
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    for name, tensor in whole.objective.state_dict().items():
        assert torch.equal(tensor, second.objective.state_dict()[name]), name
    assert means == again


@pytest.mark.parametrize("kind", ["barlow_twins", "simclr", "byol"])  # DINO's targets change with its teacher
def test_full_batches_of_equal_views_drive_the_loss_of_a_criterion_down(kind: str) -> None:
    means = list[dict[str, float]]()
    make_training(kind, epochs=60, batch_size=26, augment=None).run(after_epoch=lambda _, found: means.append(found))
    assert means[-1]["loss"] < means[0]["loss"] / 3  # over 24 seeds at most a sixth


@pytest.mark.parametrize("kind", CRITERIA)
def test_the_weights_of_a_criterion_follow_from_the_seed_alone(kind: str) -> None:
    torch.manual_seed(1)
    first = make_training(kind)
    before = weights(first)
    first.run()
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(first).items())
    torch.manual_seed(2)  # whatever the process did before
    second = make_training(kind)
    second.run()
    for name, tensor in weights(first).items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_validation_does_not_change_the_teacher() -> None:
    spec = TrainingSpec(objective={"kind": "dino", "prototypes": 12}, epochs=3, batch_size=8, patience=3)
    encoder = build_encoder(MODEL, num_classes=None, seed=1)
    training = Training(encoder, build_objective(spec.objective), make_data(), spec, input_size=16, validation=make_data(9))
    before = training.state()
    before = {place: {n: v.clone() for n, v in before[place].items()} for place in ("model", "objective")}
    assert np.isfinite(training._validate(training.validation))
    for place, values in before.items():
        assert all(torch.equal(value, training.state()[place][name]) for name, value in values.items())


class Forgetful(Objective):
    """Dropout on the embedding, an EMA teacher and a centre: state of every kind."""

    num_views = 3

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.teacher = nn.Linear(16, 16)
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(16))

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> dict[str, Tensor]:
        assert len(views) == 3
        outputs = [self.dropout(model(view)) for view in views]
        aim = self.teacher(outputs[0].detach()) - self.centre
        return {"loss": sum((out - aim).square().mean() for out in outputs)}

    def prepare(self, model: nn.Module) -> None:
        self.teacher.load_state_dict(model.projector[-1][0].state_dict())

    def after_step(self, model: nn.Module) -> None:
        self.centre.lerp_(torch.full((16,), self.progress + self.epoch), 0.1)
        self.teacher.weight.lerp_(model.projector[-1][0].weight.detach(), 0.1)


def test_an_objectives_state_is_updated_after_the_step_and_resumed() -> None:
    def make() -> Training:
        torch.manual_seed(5)
        spec = TrainingSpec(objective={"kind": "vicreg"}, epochs=3, batch_size=8)
        return Training(build_encoder(MODEL, num_classes=None, seed=1), Forgetful(), make_data(), spec, input_size=16)

    whole, first, second = make(), make(), make()
    whole.run()
    first.run(stop_after=4)
    second.load_state(through_a_file(first.state()))
    second.run()
    for name, tensor in whole.objective.state_dict().items():
        assert torch.equal(tensor, second.objective.state_dict()[name]), name
    assert whole.objective.centre.abs().sum() > 0
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_every_epoch_visits_every_example_once_in_an_order_of_its_own() -> None:
    orders = [epoch_order(50, seed=1, epoch=epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[2], epoch_order(50, seed=1, epoch=2))


def test_batches_without_shuffling_follow_the_order_of_the_data() -> None:
    spec = TrainingSpec(objective={"kind": "supervised"}, epochs=2, batch_size=8, shuffle=False, augment=None)
    data = make_data()
    seen = [labels.tolist() for _, labels in Prefetcher(data, spec, Worker(), first_step=0, last_step=4)]
    per_epoch = len(data) // 8
    starts = [step % per_epoch * 8 for step in range(4)]
    assert seen == [data.labels[start : start + 8].tolist() for start in starts]


def test_a_loss_that_is_not_finite_stops_training_with_the_preceding_means() -> None:
    class Bursting(Objective):
        steps = 0

        def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> dict[str, Tensor]:
            self.steps += 1
            size = model(views[0]).square().mean()
            return {"loss": size * (float("nan") if self.steps > 4 else 1.0), "size": size}

    spec = TrainingSpec(objective={"kind": "vicreg"}, epochs=3, batch_size=8)
    training = Training(build_encoder(MODEL, num_classes=None, seed=1), Bursting(), make_data(), spec, input_size=16)
    with pytest.raises(
        RunError, match=r"not finite at step 4 \(epoch 2\): loss nan, size .*; means before it: loss .*learning rate"
    ):
        training.run()


@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_deferred_losses_equal_immediate_ones(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[dict[str, float]]] = []
    states = []
    for after in (1, steps):  # as on a CPU, as on a GPU
        monkeypatch.setattr(loop, "TOLD_AFTER", {"cpu": after})
        training, means = make_training(epochs=3), list[dict[str, float]]()
        training.run(stop_after=training.steps_per_epoch + 1)
        states.append(training.state())  # in the middle of an epoch
        resumed = make_training(epochs=3)
        resumed.load_state(states[-1])
        resumed.run(after_epoch=lambda _, found, means=means: means.append(found))  # type: ignore[misc]
        told.append(means)
    assert told[0] == told[1]
    assert len(told[0]) == 2
    assert states[0]["epoch_sums"] == states[1]["epoch_sums"] != {}


def test_a_non_finite_deferred_loss_names_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TOLD_AFTER", {"cpu": 1000})
    training = make_training(epochs=3)
    training.model.load_state_dict({name: value * float("nan") for name, value in training.model.state_dict().items()})
    with pytest.raises(RunError, match=r"not finite at step 0 \(epoch 1\)"):
        training.run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"batch_size": 27}, "exceeds the 26 training examples"), ({"precision": "float16"}, "float16 needs a GPU")],
)
def test_training_refuses_too_large_batches_and_float16_without_a_gpu(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_training(**changes)


def train_shared(rank: int, folder: str, kind: str, precision: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    worker = Worker(rank, 2, torch.device("cpu"), dist.new_group([0, 1]))
    training = make_training(kind, optimizer="lars", worker=worker, epochs=2, precision=precision)
    training.run(stop_after=SHARED_STEPS)
    if rank == 0:
        torch.save([training.model.state_dict(), training.objective.state_dict()], f"{folder}/shared.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "precision", "tolerance"),
    [
        *[(kind, "float32", 0.1) for kind in ("supervised", "vicreg", *CRITERIA)],  # over five seeds at most .02
        ("vicreg", "bfloat16", 0.5),
    ],
)
@pytest.mark.long
def test_two_workers_train_the_same_model_as_one(kind: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    together(train_shared, str(tmp_path), kind, precision)
    alone = make_training(kind, optimizer="lars", epochs=2, precision=precision)
    before = [module.state_dict() for module in (alone.model, alone.objective)]
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in before]
    alone.run(stop_after=SHARED_STEPS)
    shared = torch.load(tmp_path / "shared.pt", weights_only=True)
    for module, start, found in zip((alone.model, alone.objective), before, shared, strict=True):
        for name, tensor in module.state_dict().items():
            change, other = (state.double() - start[name].double() for state in (tensor, found[name]))
            assert (change - other).norm() <= tolerance * (change.norm() + 4e-4), name
