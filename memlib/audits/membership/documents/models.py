"""Language models that are trained on documents drawn by coins, and their scores of all documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from memlib.audits.membership.documents.corpus import StoredDocuments
from memlib.audits.membership.shadows import TrainSubset
from memlib.errors import UserError
from memlib.models.external.factory import external_language_digest
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import HuggingFaceSpec
from memlib.store import Attempt, Ref
from memlib.training.fit import TrainedModel
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

    from memlib.models.sequence import LanguageModel
    from memlib.observe.token_scores import TokenScores

SCORES = "scores.npz"
Observed = Artifact[TrainedModel] | Artifact[Pretrained] | HuggingFaceSpec


@dataclass(frozen=True, kw_only=True)
class TrainDocuments(TrainSubset):
    """Train one language model on the documents that its coins choose."""

    declared: ClassVar[Declared] = Declared("train_documents", 1)
    title: ClassVar[str] = "train language models"

    corpus: Artifact[StoredDocuments]  #: all documents.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents and the model that is fine-tuned."""
        base = {} if self.base is None else {"base": self.base.key}
        return {**super().inputs, **base}

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes, with the vocabulary's size."""
        return super().describe(images) | {"classifier": len(self.corpus.content.vocabulary)}


@dataclass(frozen=True)
class ObserveDocuments(Stage["TokenScores"]):
    """Score every document under one model: scores.npz."""

    declared: ClassVar[Declared] = Declared("observe_documents", 1)
    title: ClassVar[str] = "score documents by models"
    place: ClassVar[Place] = "anywhere"

    corpus: Artifact[StoredDocuments]  #: the documents.
    model: Observed  #: a model that memlib trained, the pretrained one, or an external one.
    epoch: int  #: the last epoch of a model that memlib trained; 0 for others.
    share: float  #: share of a document's tokens that Min-K%++ takes.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The checkpoint and the share."""
        return {"epoch": self.epoch, "share": self.share}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents and the model."""
        model = self.model
        key = external_language_digest(model) if isinstance(model, HuggingFaceSpec) else model.key
        return {"documents": self.corpus.key, "model": key}

    @property
    def near(self) -> Ref | None:
        """The model, if it is in the store."""
        return None if isinstance(self.model, HuggingFaceSpec) else self.model.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the scores."""
        from memlib.observe.token_scores import token_scores

        content, model = self.corpus.content, self._load().to(device).float().eval()
        found = token_scores(model, content.windows, content.sizes.windows, share=self.share, device=device)
        found.save(attempt.path(SCORES))

    def _load(self) -> LanguageModel:
        from memlib.models.sequence import LanguageModel

        model = self.model
        if isinstance(model, HuggingFaceSpec):
            return self._external(model)
        content = model.content
        loaded = content.model(None, seed=0) if isinstance(content, Pretrained) else content.load(epoch=self.epoch)[0]
        assert isinstance(loaded, LanguageModel)
        return loaded

    def _external(self, spec: HuggingFaceSpec) -> LanguageModel:
        """Return the external model.

        Raises:
            UserError: when its tokenizer is not the pretrained model's.
        """
        from memlib.models.external.language import HuggingFace

        loaded = HuggingFace(spec.path, spec.adapter)
        if [piece or "" for piece in loaded.pieces] != self.corpus.content.vocabulary:
            raise UserError(
                f"the tokenizer of target.trained ({spec.path}) is not that of model.path; set model.path to the model that "
                "was fine-tuned"
            )
        return loaded

    @classmethod
    def open(cls, artifact: Artifact[TokenScores]) -> TokenScores:
        """Return the scores."""
        from memlib.observe.token_scores import TokenScores

        return TokenScores.load(artifact.path(SCORES))
