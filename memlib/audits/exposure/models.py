"""The corpus of an exposure audit and the models under audit, trained by memlib or external."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.data.images.shards import examples_file
from memlib.data.images.stored import read_images
from memlib.data.splits import SPLITS_FILE, read_members
from memlib.data.text.corpus import scored_part, text_candidates
from memlib.data.text.formats import Candidates, Format, render
from memlib.data.text.pairs import pair_candidates
from memlib.data.text.spelling import spell
from memlib.errors import UserError
from memlib.pipeline.stage import Artifact
from memlib.specs import HuggingFaceSpec, ProtocolSpec, SecretsSpec, ServedSpec, TextSpec
from memlib.tables import read_table
from memlib.training.fit import TrainedModel
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

    from memlib.models.causal import FolderTokenizer
    from memlib.models.external.language import Answering, HuggingFace
    from memlib.models.sequence import LanguageModel
    from memlib.observe.likelihoods import Predictor

VOCABULARY, CANARIES_FILE, HEADS_FILE, WORDS = "vocabulary.json", "canaries.parquet", "heads.npy", "words.json"
OUTSIDE_WINDOWS = 200  # number of windows on which the loss of an external model is measured


class StoredCorpus:
    """Windows of text with canaries in them."""

    def __init__(self, artifact: Artifact[StoredCorpus]) -> None:
        self._artifact = artifact

    @cached_property
    def symbols(self) -> list[str]:
        """The vocabulary, indexed by symbol number."""
        vocabulary: list[str] = json.loads(self._artifact.path(VOCABULARY).read_text())
        return vocabulary

    @cached_property
    def canaries(self) -> pa.Table:
        """The secret list of canaries, as tables.CANARIES."""
        return read_table(self._artifact.path(CANARIES_FILE))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words that {w} in the canaries' format stands for."""
        if WORDS not in self._artifact.files:
            return ()
        return tuple(json.loads(self._artifact.path(WORDS).read_text()))

    @property
    def windows(self) -> NDArray[Any]:
        """Symbol numbers (num_windows, window), memory-mapped; see `Corpus.windows`."""
        return read_images(self._artifact.path(examples_file(self._artifact.files)))

    @property
    def heads(self) -> NDArray[np.int64]:
        """Beginnings of documents, (num_documents, 7); see `Corpus.heads`."""
        heads: NDArray[np.int64] = np.load(self._artifact.path(HEADS_FILE))
        return heads

    def members(self, *roles: str) -> pa.Table:
        """Return a table whose column `row` lists the windows that have one of the roles."""
        return read_members(self._artifact.path(SPLITS_FILE), *roles, columns=("row",))


@dataclass(frozen=True)
class CorpusData:
    """A corpus in the store, and the candidates that belong to it."""

    corpus: Artifact[StoredCorpus]  #: windows of symbols.
    text: TextSpec  #: text, canaries: specs of the text and the canaries.
    canaries: SecretsSpec
    trained: HuggingFaceSpec | ProtocolSpec | ServedSpec | None = (
        None  #: spec of the external model; None if memlib trains the models.
    )
    #: the pretrained model to fine-tune, whose tokens are the symbols; None without one.
    base: Artifact[Pretrained] | None = None

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Id of each symbol."""
        return {symbol: number for number, symbol in enumerate(self.corpus.content.symbols)}

    @property
    def table(self) -> pa.Table:
        """The canaries, as tables.CANARIES."""
        return self.corpus.content.canaries

    def kinds(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the kinds of some canaries: inserted, given, never, unseen or recurring."""
        kinds = self.table["kind"].to_pylist()
        return tuple(kinds[canary] for canary in ids)

    @cached_property
    def outside(self) -> HuggingFace | Answering:
        """The external model."""
        from memlib.models.external.language import load_outside

        assert self.trained is not None
        assert not isinstance(self.trained, ServedSpec), "a model behind a service is not loaded"
        return load_outside(self.trained)

    @cached_property
    def tokenizer(self) -> FolderTokenizer | None:
        """The tokenizer of the model under audit; None if the model has none."""
        if self.base is not None:
            return self.base.content.tokenizer
        if self.trained is None or isinstance(self.trained, ServedSpec):
            return None
        from memlib.models.external.language import HuggingFace

        return self.outside.tokenizer if isinstance(self.outside, HuggingFace) else None

    @property
    def format(self) -> Format:
        """The canaries' format."""
        return Format(self.canaries.format, self.canaries.alphabets, words=self.corpus.content.words)

    @cached_property
    def symbols(self) -> list[str]:
        """The text of every symbol of the model."""
        if self.tokenizer is not None:
            return [piece or "" for piece in self.tokenizer.pieces]
        if self.trained is None or isinstance(self.trained, ServedSpec):
            return list(self.vocabulary)
        return cast("Answering", self.outside).vocabulary

    @cached_property
    def _scored(self) -> tuple[Candidates, tuple[int, ...]]:
        if self.tokenizer is not None:
            known = {"known_prefix": self.canaries.known_prefix, "known_suffix": self.canaries.known_suffix}
            spelled = spell(self.format, self.tokenizer, **known)
            return spelled, spelled.context
        number = {symbol: place for place, symbol in enumerate(self.symbols)}
        candidates = pair_candidates if self.text.paired else text_candidates
        return candidates(self.format, self.canaries, self.text, number)

    @property
    def context(self) -> tuple[int, ...]:
        """Symbols before the candidates, if they are known."""
        return self._scored[1]

    @property
    def space(self) -> Candidates:
        """The candidates as scored: from the first hole to the last, with the suffix if that is known."""
        return self._scored[0]

    def choices(self, ids: tuple[int, ...]) -> NDArray[np.int32]:
        """Return the choices of some canaries within the scored part: (num_canaries, num_places)."""
        first, end = scored_part(self.format, self.text, self.canaries)
        every = np.array(self.table["choices"].to_pylist(), dtype=np.int32)[list(ids)][:, first:end]
        # a tokenizer may join places before the first hole to the hole; each such place has a single choice, 0
        fixed = np.zeros((len(every), len(self.space.slots) - every.shape[1]), dtype=np.int32)
        return np.concatenate([fixed, every], axis=1)

    def text_of(self, path: Sequence[int]) -> str:
        """Render symbols of the model as text."""
        unit = self.text.unit if self.tokenizer is None else "token"
        return render([self.symbols[token] for token in path], unit)

    @property
    def key(self) -> dict[str, Any]:
        """The part of a content key that identifies the candidates."""
        return {"corpus": self.corpus.key, "prefix": self.canaries.known_prefix, "suffix": self.canaries.known_suffix}

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


class SubjectModel(Protocol):
    """A model under audit, trained by memlib or external."""

    @property
    def data(self) -> CorpusData:
        """The corpus."""
        ...

    @property
    def model(self) -> Artifact[TrainedModel] | None:
        """The artifact of the model; None for an external model."""
        ...

    @property
    def epoch(self) -> float:
        """Epoch of the checkpoint; fractional within an epoch."""
        ...

    @property
    def precision(self) -> str:
        """Precision in which the model is evaluated."""
        ...

    @property
    def spec(self) -> dict[str, Any]:
        """The part of a content key that describes the model's settings."""
        ...

    @property
    def inputs(self) -> dict[str, Any]:
        """The part of a content key that identifies the model and its corpus."""
        ...

    def load(self, device: torch.device) -> Predictor:
        """Load the model, ready for queries."""
        ...

    def loss(self, model: Predictor, windows: NDArray[Any], device: torch.device) -> float:
        """Compute the loss in nats per symbol on windows (num_windows, window) of the corpus."""
        ...


@dataclass(frozen=True)
class ModelAt:
    """A trained language model at a checkpoint."""

    data: CorpusData  #: the corpus.
    model: Artifact[TrainedModel]  #: artifact of the model.
    epoch: float  #: epoch of the checkpoint; fractional within an epoch.
    quantize: bool  #: whether each tensor of weights is quantized to 256 values.
    precision: str  #: precision in which the model is evaluated.
    step: int | None = None  #: step of the checkpoint, if it lies within an epoch.
    cache_gb: float = 1.0  #: gigabytes of memory for cached states of prefixes; not part of any key.

    @property
    def spec(self) -> dict[str, Any]:
        """The part of a content key that describes the model's settings."""
        at = {"epoch": self.epoch} if self.step is None else {"step": self.step}
        return at | {"quantize": self.quantize, "precision": self.precision}

    @property
    def inputs(self) -> dict[str, Any]:
        """The part of a content key that identifies the model and its corpus."""
        return {"model": self.model.key} | self.data.key

    def load(self, device: torch.device) -> LanguageModel:
        """Load the model, ready for queries."""
        import torch

        from memlib.models.causal import Causal
        from memlib.models.sequence import LanguageModel

        model, _ = self.model.content.load(epoch=int(self.epoch), step=self.step)
        assert isinstance(model, LanguageModel)
        if self.quantize:
            quantize_weights(model)
        model.cache_bytes = int(self.cache_gb * 1e9)
        model = model.to(device, getattr(torch, self.precision)).eval()
        if isinstance(model, Causal):
            model.check_precision()
        return model

    def loss(self, model: Predictor, windows: NDArray[Any], device: torch.device) -> float:
        """Compute the loss as `SubjectModel.loss`."""
        import torch

        from memlib.models.sequence import LanguageModel
        from memlib.objectives.language import window_losses

        assert isinstance(model, LanguageModel)
        total, count = 0.0, 0
        with torch.inference_mode():
            rows = model.most_rows(windows.shape[1])
            for start in range(0, len(windows), rows):
                losses, scored = window_losses(model, torch.from_numpy(windows[start : start + rows]).to(device).long())
                total, count = total + float(losses.sum()), count + int(scored.sum())
        return total / count


@dataclass(frozen=True)
class ExternalModel:
    """An external model."""

    data: CorpusData  #: the corpus, whose `trained` names the model.
    digest: str  #: digest of the model's files and code.
    precision: str  #: precision in which the model is evaluated.
    model: None = None
    epoch: float = 0
    cache_gb: float = 1.0  #: gigabytes of memory for cached states of prefixes; not part of any key.

    @property
    def spec(self) -> dict[str, Any]:
        """The part of a content key that describes the model's settings."""
        return {"precision": self.precision}

    @property
    def inputs(self) -> dict[str, Any]:
        """The part of a content key that identifies the model and its corpus."""
        return {"model": self.digest} | self.data.key

    def load(self, device: torch.device) -> Predictor:
        """Load the model, ready for queries."""
        import torch

        from memlib.models.external.language import HuggingFace

        model = self.data.outside
        assert model is not None
        model.cache_bytes = int(self.cache_gb * 1e9)
        if not isinstance(model, HuggingFace):
            return model
        model = model.to(device, getattr(torch, self.precision))
        model.check_precision()
        return model

    def loss(self, model: Predictor, windows: NDArray[Any], device: torch.device) -> float:
        """Compute the loss as `SubjectModel.loss`, on the first windows only, because the model may be slow."""
        from memlib.models.external.language import HuggingFace
        from memlib.observe.likelihoods import UNITS_PER_BIT, sequence_costs

        windows = windows[:OUTSIDE_WINDOWS]
        symbols = list(self.data.vocabulary)
        texts = [[symbols[token] for token in row] for row in windows.tolist()]
        if isinstance(model, HuggingFace):
            bits = sum(model.bits(tokens) for tokens in model.encode(["".join(text) for text in texts]))
        else:
            number = {symbol: place for place, symbol in enumerate(self.data.symbols)}
            missing = sorted({symbol for text in texts for symbol in text if symbol not in number})
            if missing:
                raise UserError(f"the model has no symbol {missing[0]!r}, which occurs in the text (data); use another text")
            tokens = np.array([[number[symbol] for symbol in text] for text in texts], dtype=np.int64)
            bits = float(sequence_costs(model, tokens).sum()) / UNITS_PER_BIT
        return bits * math.log(2) / windows.size


def quantize_weights(model: torch.nn.Module) -> None:
    """Round each tensor of weights to 256 evenly spaced values between its extremes, in place (Carlini 2019, 9.1)."""
    import torch

    with torch.no_grad():
        for values in model.parameters():
            low, high = values.min(), values.max()
            if high > low:
                step = (high - low) / 255
                values.copy_(low + ((values - low) / step).round() * step)
