"""Objectives in which a model learns from its teacher, a moving average of itself."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.models.encoder import Encoder
from memlib.models.vision import Taught
from memlib.objectives.base import Objective, Terms
from memlib.specs import AugmentSpec, BYOLSpec, DINOSpec

GLOBAL_VIEWS = 2  # DINO's views of the whole image, which the teacher sees too


def teacher_of(model: nn.Module) -> Taught:
    """Return the teacher that `Taught.add_teacher` added to a model, even if the model is wrapped."""
    teacher = getattr(model, "module", model).teacher
    assert isinstance(teacher, Taught)
    return teacher


def rising_momentum(first: float, progress: float) -> float:
    """Return the momentum of the teacher, which rises from `first` to 1 along a cosine (Grill 2020, 3.2)."""
    return 1 - (1 - first) * (math.cos(math.pi * progress) + 1) / 2


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move a teacher's parameters towards the student's; batch statistics are not shared."""
    named = dict(student.named_parameters())
    for name, parameter in teacher.named_parameters():
        parameter.lerp_(named[name], 1 - momentum)


def cosine_distance(predicted: Tensor, aim: Tensor) -> Tensor:
    """Return the mean squared distance between directions, 2 - 2 cos: two (batch, dim) -> scalar (Grill 2020, Eq. 2)."""
    return (2 - 2 * F.cosine_similarity(predicted, aim, dim=1)).mean()


class BYOL(Objective):
    """Prediction of the teacher's embedding of each view from the student's embedding of the other view (Grill 2020).

    The predictor belongs to the objective and is not audited; batch statistics are those of the global batch.
    """

    num_views = 2

    def __init__(self, spec: BYOLSpec) -> None:
        super().__init__()
        self.spec = spec
        self.predictor: nn.Module = nn.Identity()

    def prepare(self, model: nn.Module) -> None:
        """See `Objective.prepare`."""
        assert isinstance(model, Encoder)
        model.add_teacher()
        layers = (
            nn.Linear(model.dim, self.spec.predictor, bias=False),
            nn.BatchNorm1d(self.spec.predictor),
            nn.ReLU(inplace=True),
            nn.Linear(self.spec.predictor, model.dim),
        )
        self.predictor = nn.Sequential(*layers).to(next(model.parameters()).device)

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        with torch.no_grad():
            aims = [teacher_of(model)(view).float() for view in views]
        predicted = [self.predictor(model(view)).float() for view in views]
        with torch.autocast(aims[0].device.type, enabled=False):
            loss = cosine_distance(predicted[0], aims[1]) + cosine_distance(predicted[1], aims[0])
        return {"loss": loss}

    def after_step(self, model: nn.Module) -> None:
        """See `Objective.after_step`."""
        follow(teacher_of(model), model, rising_momentum(self.spec.momentum, self.progress))


def distillation_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Return the mean cross-entropy between teacher and student distributions of different views (Caron 2021, Eq. 3).

    Args:
        student: scores (batch, prototypes) of each view, divided by the student's temperature; global views first.
        teacher: centred scores of the global views, divided by the teacher's temperature.
    """
    pairs = [(s, t) for t in range(len(teacher)) for s in range(len(student)) if s != t]
    terms = [-(teacher[t].softmax(dim=1) * student[s].log_softmax(dim=1)).sum(dim=1).mean() for s, t in pairs]
    return torch.stack(terms).mean()


class DINO(Objective):
    """Prediction of the teacher's distribution over prototypes from the student's for a different view (Caron 2021).

    Both see two global views; the student also sees local views. A score is the cosine of the projector's output and a
    prototype, as the last layer of the authors' head is normalized. Prototypes belong to the objective and are not audited.
    """

    prototypes: Tensor
    followed: Tensor
    centre: Tensor

    def __init__(self, spec: DINOSpec) -> None:
        super().__init__()
        self.spec = spec
        self.num_views = GLOBAL_VIEWS + spec.local_views

    def prepare(self, model: nn.Module) -> None:
        """See `Objective.prepare`."""
        assert isinstance(model, Encoder)
        model.add_teacher()
        device = next(model.parameters()).device
        first = nn.init.trunc_normal_(torch.empty(self.spec.prototypes, model.dim), std=0.02).to(device)
        self.prototypes = nn.Parameter(first)
        self.register_buffer("followed", first.clone())  # the teacher's prototypes
        self.register_buffer("centre", torch.zeros(self.spec.prototypes, device=device))

    def view(self, number: int, augment: AugmentSpec, side: int) -> tuple[AugmentSpec, int]:
        """See `Objective.view`; local views are smaller than global ones."""
        if number < GLOBAL_VIEWS:
            return augment, side
        return augment.model_copy(update={"crop_scale": self.spec.local_scale}), self.spec.local_side_at(side)

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        prototypes = self.prototypes.detach() if self.epoch < self.spec.frozen_epochs else self.prototypes
        embedded = [model(view) for view in views]
        with torch.no_grad():
            aims = [teacher_of(model)(view) for view in views[:GLOBAL_VIEWS]]
        with torch.autocast(embedded[0].device.type, enabled=False):
            scores = [self._scores(aim, self.followed) for aim in aims]
            teacher = [(score - self.centre) / self.teacher_temperature for score in scores]
            student = [self._scores(embedding, prototypes) / self.spec.student_temperature for embedding in embedded]
            loss = distillation_loss(student, teacher)
            entropy = torch.stack([torch.special.entr(score.softmax(dim=1)).sum(dim=1).mean() for score in teacher]).mean()
        if self.training:
            self._move_centre(torch.cat(scores))
        return {"loss": loss, "teacher_entropy": entropy}

    @property
    def teacher_temperature(self) -> float:
        """The teacher's temperature at this step of the training run."""
        first, last = self.spec.teacher_temperature
        warm = self.epoch / self.spec.teacher_warmup_epochs if self.spec.teacher_warmup_epochs else 1.0
        return first + (last - first) * min(1.0, warm)

    def after_step(self, model: nn.Module) -> None:
        """See `Objective.after_step`."""
        momentum = rising_momentum(self.spec.momentum, self.progress)
        follow(teacher_of(model), model, momentum)
        self.followed.lerp_(self.prototypes.detach(), 1 - momentum)

    @staticmethod
    def _scores(embeddings: Tensor, prototypes: Tensor) -> Tensor:
        return F.normalize(embeddings.float(), dim=1) @ F.normalize(prototypes, dim=1).T

    @torch.no_grad()
    def _move_centre(self, scores: Tensor) -> None:
        mean = scores.mean(dim=0)
        if self.group is not None:
            dist.all_reduce(mean, group=self.group)
            mean /= dist.get_world_size(self.group)
        self.centre.lerp_(mean, 1 - self.spec.centre_momentum)
