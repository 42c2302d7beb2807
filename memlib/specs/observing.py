"""Specs of the data shown to models, of external models and of influence scores."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_MODELS, MOST_STEPS, Spec
from memlib.specs.data import DataSpec, SourceSpec, TableSource
from memlib.specs.external import InFile

Tie = Literal["nearest", "lowest_class"]
"""Class that wins a tied vote of neighbours: the class of the nearest neighbour, or the class with the lowest index."""


class OutputsSpec(Spec):
    """A Parquet or CSV file with a model's outputs on the audited examples (in forgetting: the query data set D_Q), for a
    model that is not available itself."""

    added_later: ClassVar[frozenset[str]] = frozenset({"larger"})

    path: str
    """The file; local or s3://."""
    id_column: str | None = "example_id"
    """Column of example ids, as in the source (with the prefix <part>/ for a joined source). null: the rows are those of the
    source in its order, and are called 0000000, 0000001, ..."""
    scores_column: str = "scores"
    """Column of lists with one number per class; for losses, a column of numbers. If it is missing, one column per class is
    read: named after the class, or p0, p1, ... in the order of the classes."""
    label_column: str | None = None
    """Column of the labels that the model's owner assigned to the examples; they are compared with those of the data."""
    kind: Literal["probabilities", "logits", "losses", "scores"] = "probabilities"
    """Type of the numbers. losses: one number per example, whatever the model's classes: the cross-entropy of its label in
    nats. The verdict uses only the ranks of losses, so any other loss serves as well (above 30, losses count alike); rho and
    the distances hold for the cross-entropy alone. scores: one number per example, of any attack; for membership alone."""
    larger: Literal["members", "nonmembers"] = "members"
    """Of scores: the side to which larger numbers point. members: as confidences and log likelihoods do; nonmembers: as
    losses, perplexities and distances do. State it before the scores are compared: trying both doubles the errors."""

    @property
    def is_single(self) -> bool:
        """True if the file holds one number per example."""
        return self.kind in ("losses", "scores")


class ProbeSpec(Spec):
    """The probe data D_r on which the black-box score is computed."""

    kind: Literal["noise", "held_out", "data"] = "noise"
    """noise: uniform over the range of the training data; held_out: examples that no model saw; data: another data set."""
    data: DataSpec | None = None
    """For kind data: the data set, stored in the same shape as the training data."""
    count: int = Field(default=500, ge=2, le=MOST_EXAMPLES)
    """Largest number of examples."""

    @model_validator(mode="after")
    def _data_where_named(self) -> "ProbeSpec":
        if (self.kind == "data") != (self.data is not None):
            raise ValueError("probe.data and probe.kind: data must be used together")
        return self


NAMED = r"^(\w+(\.\w+)*:\w+|.*[./].*)$"
"""A factory, package.module:factory, or the path of a file or folder."""
ESTIMATORS = (".joblib", ".pkl", ".pickle", ".json", ".ubj")
"""Endings of files of fitted classifiers: scikit-learn's, then XGBoost's."""


def is_path(model: str) -> bool:
    """Return whether a model is named by its file or folder instead of by a factory.

    Example:
        >>> is_path("models/forest.joblib"), is_path("torchvision.models:resnet18")
        (True, False)
    """
    return ":" not in model or "/" in model


def is_estimator_file(model: str) -> bool:
    """Return whether a model is named by the file of a fitted classifier of points."""
    return is_path(model) and model.endswith(ESTIMATORS)


WEIGHTLESS = "give trained.weights, the file of the model's weights; a factory that loads them itself needs trained.version"


class ExternalClassifierSpec(InFile):
    """An external classifier."""

    added_later: ClassVar[frozenset[str]] = frozenset({"classes", "state", "prefix"})

    model: str = Field(pattern=NAMED)
    """package.module:factory, a function that returns the torch module, such as torchvision.models:resnet18 or
    timm:create_model. The module's outputs are class scores, a tensor (batch, classes), or an object with such a tensor as
    `logits`, like the outputs of Hugging Face's models. For points, the factory may also return a fitted scikit-learn
    classifier with `predict_proba`, which needs `version`. Or a file of a fitted classifier: .joblib or .pkl of scikit-learn,
    of which only its own classes and numbers are read, .json or .ubj of XGBoost. Or a folder of an image classifier of
    Hugging Face's transformers. A file or a folder holds the weights, too."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    weights: str | None = None
    """File with the model's state dict: .safetensors, or a .pt file that contains only tensors. null if the factory loads the
    weights itself; `version` must then identify them."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module and of what it imports from its folder."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """Scale of the model's inputs: pixels in [0, 1], ImageNet-normalized pixels, or grey values from 0 to 255."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """Type of the model's outputs: logits, or probabilities in [0, 1]."""
    classes: tuple[Annotated[int, Field(ge=0, lt=MOST_EXAMPLES)], ...] | None = None
    """Index of the model's output for each class of the data, in the data's order (shown by `memlib plan`); by default the
    outputs are the classes in that order. Required for a model with more classes than the data."""

    @model_validator(mode="after")
    def _has_a_name(self) -> "ExternalClassifierSpec":
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"trained.classes lists an output twice: {list(self.classes)}")
        if is_path(self.model) and (self.weights is not None or self.options):
            raise ValueError(
                f"{self.model} holds weights and settings of the model; remove trained.weights and trained.options"
            )
        return self

    @property
    def is_whole(self) -> bool:
        """True if the spec identifies the model's weights."""
        return self.weights is not None or self.version is not None or is_path(self.model)


class OwnSpec(Spec):
    """The architecture of an external model, trained by memlib as its own trainer would train it."""

    kind: Literal["own"]
    model: str = Field(pattern=NAMED)
    """As `trained.model`: a factory, which is called for each model, with random weights; a file of a fitted classifier,
    whose settings are used; or a folder of transformers, whose configuration is used."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module and of what it imports from its folder."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """Scale of the model's inputs, as in `trained`."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """Type of the model's outputs, as in `trained`."""
    classes: tuple[Annotated[int, Field(ge=0, lt=MOST_EXAMPLES)], ...] | None = None
    """Index of the model's output for each class of the data, as in `trained`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        return {"kind": "own", "model": content} if isinstance(content, str) else content

    @property
    def given(self) -> ExternalClassifierSpec:
        """The untrained model."""
        return ExternalClassifierSpec.model_validate(self.model_dump(exclude={"kind"}))


def check_numbers(source: SourceSpec, models: Iterable[ExternalClassifierSpec | None]) -> None:
    """Raise ValueError if an external model would be queried on a table without a word on the numbers that it takes."""
    if isinstance(source, TableSource) and source.standardize is None and any(model is not None for model in models):
        raise ValueError(
            "data.source.standardize says which numbers your model takes: false for those of the file, true if it was fitted "
            "on standardized ones; each text of a column is a coordinate of 0 or 1"
        )


class InfluenceSpec(Spec):
    """TracInCP (Pruthi 2020; Hartley 2022, A.5): checkpoints and computation of self-influence."""

    checkpoints: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Number of checkpoints, evenly spaced over the epochs until the training loss has fallen (see `loss_fall`)."""
    loss_fall: float = Field(default=0.95, gt=0, le=1)
    """Share by which the training loss must have fallen; the last checkpoint is from the first epoch at which this holds."""
    epochs: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Training epochs of the model whose checkpoints are used; by default training.epochs."""
    pull: bool = False
    """Unique-feature audit only: also train with the feature in the first and in the last canary, and compare their
    self-influence with and without it (Hartley 2022, section 3.3)."""
    slow_modules: bool = False
    """Accept modules without a fast rule for gradients, and compute their gradients example by example."""
    batch_size: int = Field(default=32, ge=1, le=MOST_EXAMPLES)
    """Examples per pass; affects nothing but rounding."""
