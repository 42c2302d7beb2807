"""An encoder: a backbone, a projector on top of it and, for supervised training, a classifier on top of the projector.

Meehan 2023, A.2.2: VICReg's projector is three fully connected layers; the supervised baseline takes the same
projector, then batch norm, ReLU and a linear layer, whose class scores are its "projector embedding".
"""

import torch
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.models.vision import Taught, build_backbone
from memlib.specs import ModelSpec
from memlib.specs.models import TEACHER


class Encoder(Taught):
    """An image encoder, which maps normalized images (batch, 3, side, side) float32 to the last layer's output (batch, dim).

    Layers are named backbone, projector_1, ..., projector_n and, with `num_classes`, classifier. The projector's
    hidden layers are linear, batch norm, ReLU; its last layer is only linear. `dim` is the length of the last layer's output.
    """

    def __init__(self, spec: ModelSpec, *, num_classes: int | None = None) -> None:
        super().__init__()
        self.backbone, dim = build_backbone(spec)
        self.projector = nn.ModuleList()
        for position, width in enumerate(spec.projector):
            last = position == len(spec.projector) - 1
            linear = nn.Linear(dim, width, bias=last)
            layer = [linear] if last else [linear, nn.BatchNorm1d(width), nn.ReLU(inplace=True)]
            self.projector.append(nn.Sequential(*layer))
            dim = width
        self.frozen = False
        self.classifier: nn.Module | None = None
        if num_classes is not None:
            self.classifier = nn.Sequential(nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, num_classes))
            dim = num_classes
        self.dim = dim

    def forward(self, images: Tensor) -> Tensor:
        """Return the last layer's output (batch, dim)."""
        return self.layers(images)[-1][1]

    def freeze_backbone(self) -> None:
        """Freeze the backbone for all further training, including its running statistics."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Encoder":
        """Set the mode (training or evaluation) of all layers except a frozen backbone."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def all_layers(self, images: Tensor) -> list[tuple[str, Tensor]]:
        """Return name and output of every layer, then of the layers of the teacher, if any: teacher_backbone, ..."""
        if self.teacher is None:
            return self.layers(images)
        return self.layers(images) + [(f"{TEACHER}{name}", output) for name, output in self.teacher.layers(images)]

    def layers(self, images: Tensor) -> list[tuple[str, Tensor]]:
        """Return name and output (batch, dim) of every layer from one pass, in order of depth."""
        features = self.backbone(images)
        outputs = [("backbone", features)]
        for number, layer in enumerate(self.projector, start=1):
            features = layer(features)
            outputs.append((f"projector_{number}", features))
        if self.classifier is not None:
            outputs.append(("classifier", self.classifier(features)))
        return outputs


def build_encoder(spec: ModelSpec, *, num_classes: int | None, seed: int) -> Encoder:
    """Build an encoder initialized from `seed` alone; the caller's random state is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        return Encoder(spec, num_classes=num_classes)
