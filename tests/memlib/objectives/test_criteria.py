"""The self-supervised criteria against lightly's losses, and against slow versions of their papers' formulas."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.models.encoder import Encoder, build_encoder
from memlib.objectives import build_objective
from memlib.objectives.distillation import (
    cosine_distance,
    distillation_loss,
    follow,
    rising_momentum,
    teacher_of,
)
from memlib.objectives.ssl import contrastive_loss
from memlib.specs import AugmentSpec, BarlowTwinsSpec, BYOLSpec, DINOSpec, ModelSpec, SimCLRSpec

LABELS = torch.zeros(12)
SMALL = ModelSpec(width=4, projector=(10, 6), input_size=16)


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    first = torch.randn(12, 6, generator=rng)
    return first, first + 0.5 * torch.randn(12, 6, generator=rng) + 1


def gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves))


def same(mine: Tensor, theirs: Tensor, *leaves: Tensor) -> None:
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-5)
    for one, other in zip(gradients(mine, *leaves), gradients(theirs, *leaves), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_barlow_twins_equals_lightlys(views: tuple[Tensor, Tensor]) -> None:
    theirs = pytest.importorskip("lightly.loss", reason="lightly is no dependency; make test installs it")
    a, b = (view.requires_grad_() for view in views)
    terms = build_objective(BarlowTwinsSpec(kind="barlow_twins"))(nn.Identity(), [a, b], LABELS)
    same(terms["loss"], theirs.BarlowTwinsLoss(lambda_param=0.0051)(a, b), a, b)
    assert terms["loss"].item() == pytest.approx(terms["invariance"].item() + 0.0051 * terms["redundancy"].item())


def test_barlow_twins_equals_its_formula(views: tuple[Tensor, Tensor]) -> None:
    a, b = (view.double().numpy() for view in views)
    found = 0.0
    for i in range(6):
        for j in range(6):
            x, y = a[:, i] - a[:, i].mean(), b[:, j] - b[:, j].mean()
            c = (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())
            found += (1 - c) ** 2 if i == j else 0.0051 * c**2
    terms = build_objective(BarlowTwinsSpec(kind="barlow_twins"))(nn.Identity(), list(views), LABELS)
    assert terms["loss"].item() == pytest.approx(found, rel=1e-3)  # an epsilon keeps constant dimensions finite


@pytest.mark.parametrize("temperature", [0.15, 0.5])
def test_simclr_loss_and_gradients_equal_those_of_lightly(temperature: float, views: tuple[Tensor, Tensor]) -> None:
    theirs = pytest.importorskip("lightly.loss", reason="lightly is no dependency; make test installs it")
    a, b = (view.requires_grad_() for view in views)
    spec = SimCLRSpec(kind="simclr", temperature=temperature)
    terms = build_objective(spec)(nn.Identity(), [a, b], LABELS)
    same(terms["loss"], theirs.NTXentLoss(temperature=temperature)(a, b), a, b)


def test_contrastive_loss_equals_its_formula(views: tuple[Tensor, Tensor]) -> None:
    all_views = torch.cat(views).double().numpy()
    all_views /= np.linalg.norm(all_views, axis=1, keepdims=True)
    found = 0.0
    for i in range(24):
        partner = (i + 12) % 24
        scores = [math.exp(all_views[i] @ all_views[j] / 0.2) for j in range(24) if j != i]
        found -= math.log(math.exp(all_views[i] @ all_views[partner] / 0.2) / sum(scores)) / 24
    assert contrastive_loss(*views, 0.2).item() == pytest.approx(found, rel=1e-5)


def test_dino_equals_lightlys_with_its_centre_and_temperatures() -> None:
    theirs = pytest.importorskip("lightly.loss", reason="lightly is no dependency; make test installs it")
    rng = torch.Generator().manual_seed(0)
    scores = [torch.randn(5, 7, generator=rng).requires_grad_() for _ in range(4)]  # two global views, two local ones
    teacher = [torch.randn(5, 7, generator=rng) for _ in range(2)]
    loss = theirs.DINOLoss(output_dim=7, teacher_temp=0.06, student_temp=0.1)
    loss.center.copy_(centre := torch.randn(7, generator=rng))
    mine = distillation_loss([score / 0.1 for score in scores], [(score - centre) / 0.06 for score in teacher])
    same(mine, loss(teacher, scores, teacher_temp=0.06), *scores)


def test_distillation_loss_equals_its_formula() -> None:
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(3, 4, 5)), rng.normal(size=(2, 4, 5))

    def soft(values: np.ndarray) -> np.ndarray:
        return np.exp(values) / np.exp(values).sum()

    terms = [
        -sum(soft(teacher[t, i])[k] * math.log(soft(student[s, i])[k]) for k in range(5))
        for t in range(2) for s in range(3) for i in range(4) if s != t
    ]  # fmt: skip
    found = distillation_loss([torch.from_numpy(s) for s in student], [torch.from_numpy(t) for t in teacher])
    assert found.item() == pytest.approx(np.mean(terms))


def prepared(spec: BYOLSpec | DINOSpec) -> tuple[Encoder, nn.Module]:
    encoder, objective = build_encoder(SMALL, num_classes=None, seed=0), build_objective(spec)
    torch.manual_seed(0)
    objective.prepare(encoder)
    return encoder, objective


def images(side: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(8, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_byol_predicts_the_teacher_both_ways_and_no_gradient_reaches_it() -> None:
    encoder, objective = prepared(BYOLSpec(kind="byol", predictor=12))
    a, b = images(seed=1), images(seed=2)
    loss = objective(encoder, [a, b], LABELS)["loss"]
    student, teacher, predictor = (copy.deepcopy(m) for m in (encoder, teacher_of(encoder), objective.predictor))
    expected = 0.0
    for one, other in ((a, b), (b, a)):
        p, aim = predictor(student(one)), teacher(other)
        expected += np.mean([(2 - 2 * F.cosine_similarity(x, y, dim=0)).item() for x, y in zip(p, aim, strict=True)])
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher_of(encoder).parameters())
    assert all(p.grad is not None for p in [*encoder.backbone.parameters(), *objective.parameters()])


def test_cosine_distance_is_0_for_equal_and_4_for_opposite_directions() -> None:
    a = torch.randn(5, 3)
    assert cosine_distance(a, 3 * a).item() == pytest.approx(0, abs=1e-6)
    assert cosine_distance(a, -a).item() == pytest.approx(4)


def test_momentum_rises_to_one_along_a_cosine() -> None:
    assert [rising_momentum(0.9, p) for p in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1.0])


@pytest.mark.parametrize("spec", [BYOLSpec(kind="byol", momentum=0.8), DINOSpec(kind="dino", prototypes=9, momentum=0.8)])
def test_the_teacher_is_a_moving_average_of_the_student(spec: BYOLSpec | DINOSpec) -> None:
    encoder, objective = prepared(spec)
    teacher = teacher_of(encoder)
    for mine, theirs in zip(encoder.projector.parameters(), teacher.projector.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        encoder.projector[0][0].weight.add_(1)
    objective.after_step(encoder)
    moved = teacher.projector[0][0].weight - (encoder.projector[0][0].weight - 1)
    assert torch.allclose(moved, torch.full_like(moved, 0.2), atol=1e-6)
    follow(teacher, encoder, 1.0)
    assert torch.allclose(moved, torch.full_like(moved, 0.2), atol=1e-6)


def test_dinos_prototypes_are_frozen_at_first_and_its_teacher_warms_up() -> None:
    spec = DINOSpec(kind="dino", prototypes=9, frozen_epochs=2, teacher_warmup_epochs=10)
    encoder, objective = prepared(spec)
    for epoch, frozen, temperature in ((0.0, True, 0.04), (1.9, True, 0.0457), (2.0, False, 0.046), (30.0, False, 0.07)):
        objective.epoch = epoch
        objective.zero_grad()
        objective(encoder, [images(seed=1), images(seed=2)], LABELS)["loss"].backward()
        assert (objective.prototypes.grad is None) == frozen
        assert objective.teacher_temperature == pytest.approx(temperature)


def test_dinos_centre_is_a_running_mean_of_the_teachers_scores() -> None:
    encoder, objective = prepared(DINOSpec(kind="dino", prototypes=9))
    views = [images(seed=1), images(seed=2)]
    teacher = copy.deepcopy(teacher_of(encoder))
    expected = torch.cat([F.normalize(teacher(v), dim=1) @ F.normalize(objective.followed, dim=1).T for v in views]).mean(0)
    objective(encoder, views, LABELS)
    assert torch.allclose(objective.centre, 0.1 * expected, atol=1e-6)
    objective.eval()
    before = objective.centre.clone()
    objective(encoder, views, LABELS)
    assert torch.equal(objective.centre, before)  # validation moves nothing


def test_local_views_are_smaller_and_seen_by_the_student_alone() -> None:
    spec = DINOSpec(kind="dino", prototypes=9, local_views=3, local_scale=(0.1, 0.3))
    encoder, objective = prepared(spec)
    augment = AugmentSpec(crop_scale=(0.4, 1.0))
    assert objective.num_views == 5
    assert [objective.view(n, augment, 32)[1] for n in range(5)] == [32, 32, 14, 14, 14]
    assert [objective.view(n, augment, 32)[0].crop_scale for n in (1, 2)] == [(0.4, 1.0), (0.1, 0.3)]
    seen: list[int] = []
    teacher_of(encoder).register_forward_hook(lambda *_: seen.append(1))
    terms = objective(encoder, [images(), images(), *[images(side=8)] * 3], LABELS)
    assert len(seen) == 2
    assert 0 < terms["teacher_entropy"].item() <= math.log(9) + 1e-5
    assert DINOSpec(kind="dino", local_views=1, local_side=10).local_side_at(32) == 10
    assert DINOSpec(kind="dino").local_side_at(32) == 32
