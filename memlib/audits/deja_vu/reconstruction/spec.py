"""Settings of reconstructions."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from memlib.specs import ModelSpec, Spec, TrainingSpec
from memlib.specs.base import MOST_DRAWS, MOST_EXAMPLES, MOST_NUMBER, MOST_SEED, MOST_STEPS, MOST_TRAINED
from memlib.specs.models import DecoderSpec, DenoiserSpec
from memlib.specs.training import DecodingSpec, DenoisingSpec, GeneratorTrainingSpec, OptimizerSpec, SupervisedSpec


class GeneratorSpec(Spec):
    """A generator of images from representations, and its training on the public set."""

    model: DenoiserSpec = DenoiserSpec()
    """The U-Net that removes noise; its input_size is the side of the reconstructions in pixels."""
    training: GeneratorTrainingSpec = GeneratorTrainingSpec(epochs=100)
    """Training on public images, with the same seed for every encoder."""

    @model_validator(mode="after")
    def _removes_noise(self) -> "GeneratorSpec":
        if not isinstance(self.training.objective, DenoisingSpec):
            raise ValueError(
                f"training.objective {self.training.objective.kind} does not train a generator; use {{kind: denoising}}"
            )
        if self.training.augment is not None:
            raise ValueError(
                "a generator learns to draw the very images that were embedded; set its training.augment to null"
            )
        return self


class _Trained(Spec):
    """A network that is trained on public images without augmentation."""

    epochs: int = Field(default=50, ge=1, le=MOST_STEPS)
    """Epochs of training."""
    batch_size: int = Field(default=64, ge=2, le=MOST_EXAMPLES)
    """Images per step."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=0.001, weight_decay=0.0, warmup_epochs=1)
    """The network's optimizer."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the training, the same for every encoder."""

    @property
    def _training(self) -> dict[str, Any]:
        names = ("epochs", "batch_size", "optimizer", "seed")
        return {"augment": None, **{name: getattr(self, name) for name in names}}


class BaselineSpec(_Trained):
    """An MLP that decodes a representation to an image, without noise: what the generator has to surpass."""

    model: DecoderSpec = DecoderSpec(kind="decoder")
    """The MLP; input_size is set to the side of the reconstructions."""

    @property
    def training(self) -> GeneratorTrainingSpec:
        """Training of the MLP, by squared error."""
        return GeneratorTrainingSpec(objective=DecodingSpec(kind="decoding"), **self._training)


class JudgeSpec(_Trained):
    """A classifier trained on public images, whole and with the part that a crop shows painted over."""

    model: ModelSpec = ModelSpec(projector=())
    """The judge's network; input_size is set to the side of the reconstructions."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=0.002, weight_decay=0.05, warmup_epochs=2)
    """The judge's optimizer."""

    @property
    def training(self) -> TrainingSpec:
        """Training of the judge, by cross-entropy."""
        return TrainingSpec(objective=SupervisedSpec(kind="supervised"), **self._training)


class ReconstructSpec(Spec):
    """Reconstructions of audited images from their background crops."""

    layers: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Layers whose outputs together are the representation that the generator sees; by default backbone, as in the paper's
    text (its code uses backbone and last), and for external encoders all decoded layers. Neighbours are searched at the
    headline's layer."""
    crops: bool = True
    """Train the generator on representations of the public images' crops, too, so that it has seen crops like those of
    audited images."""
    generator: GeneratorSpec = GeneratorSpec()
    baseline: BaselineSpec | None = BaselineSpec()
    """null: no MLP decoder is trained."""
    judge: JudgeSpec = JudgeSpec()
    neighbors: int = Field(default=5, ge=1, le=MOST_EXAMPLES)
    """Number of public neighbours of the crop whose representations are averaged."""
    images: int = Field(default=200, ge=2, le=MOST_EXAMPLES)
    """Number of audited images to reconstruct, the first ones in an order of hashed ids; with many classes, from some
    classes only, with 20 images each."""
    samples: int = Field(default=4, ge=1, le=MOST_DRAWS)
    """Reconstructions of each image; the same noise serves all images and both models."""
    steps: int = Field(default=50, ge=2, le=MOST_STEPS)
    """DDIM steps of each reconstruction; they divide the generator's steps of diffusion."""
    guidance: float = Field(default=2.0, ge=0, le=MOST_NUMBER)
    """Classifier-free guidance: 1 is plain sampling, 0 ignores the representation."""
    candidates: int = Field(default=99, ge=1, le=MOST_EXAMPLES)
    """Largest number of other audited images of the same class among which the true image is ranked."""
    pairs: int = Field(default=1, ge=1, le=MOST_TRAINED)
    """Number of pairs of models whose images are reconstructed, the first ones."""
    shown: int = Field(default=10, ge=0, le=MOST_DRAWS)
    """Number of images that the page shows by each rule of selection."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the noise, the choice of images and the order of candidates; generators are trained from training.seed."""

    @model_validator(mode="after")
    def _steps_are_those_of_training(self) -> "ReconstructSpec":
        objective = self.generator.training.objective
        assert isinstance(objective, DenoisingSpec)
        if objective.steps % self.steps:
            raise ValueError(
                f"reconstruct.steps is {self.steps}, but must divide the {objective.steps} diffusion steps of the "
                "generator's training.objective; choose a divisor"
            )
        return self

    @property
    def side(self) -> int:
        """Side of the reconstructions in pixels."""
        return self.generator.model.input_size

    @property
    def judging_model(self) -> ModelSpec:
        """The judge's network, for pictures of the reconstructions' size."""
        return self.judge.model.model_copy(update={"input_size": self.side})
