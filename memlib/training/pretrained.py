"""A pretrained model to be fine-tuned: its folder is copied into the store, where every worker can read it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from memlib.errors import UserError
from memlib.models.external.factory import read_files
from memlib.models.hugging import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_files
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Stage
from memlib.specs import LoraSpec, PretrainedSpec
from memlib.store import Attempt
from memlib.store.permissions import scratch

if TYPE_CHECKING:
    import torch

    from memlib.models.causal import Causal, FolderTokenizer

ADAPTER = "adapter"  # folder of its files, below the model's
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


class Pretrained:
    """A pretrained Hugging Face model in the store."""

    def __init__(self, artifact: Artifact[Pretrained]) -> None:
        self._artifact = artifact

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a temporary folder with links to the model's files; those of its adapter are in a folder below."""
        with scratch("pretrained") as path:
            (path / ADAPTER).mkdir()
            for name in self._artifact.files:
                (path / ADAPTER / name if name in ADAPTER_FILES else path / name).symlink_to(self._artifact.path(name))
            yield path

    @cached_property
    def tokenizer(self) -> FolderTokenizer:
        """The model's tokenizer."""
        from memlib.models.causal import FolderTokenizer

        with self.folder() as folder:
            return FolderTokenizer(str(folder))

    def check_precision(self, precision: str) -> None:
        """Check that the model can be evaluated in a precision, as recorded when it was copied; load nothing.

        Raises:
            UserError: when the model cannot be evaluated in this precision.
        """
        tried = self._artifact.facts["precisions"]
        if precision not in tried:
            raise UserError(f"the model (model.path) cannot be evaluated in {precision}; set score.precision: {tried[0]}")

    def model(self, lora: LoraSpec | None, *, seed: int) -> Causal:
        """Return the model with its weights, on the CPU, with new adapters if requested.

        Args:
            lora: settings of the adapters; None trains all weights.
            seed: seed of the adapters' initial weights.
        """
        from memlib.models.causal import Causal, load_model, with_adapters

        with self.folder() as folder:
            adapter = str(folder / ADAPTER) if ADAPTER_CONFIG in self._artifact.files else None
            model, start = load_model(str(folder), adapter), self.tokenizer.start
            model = model.float()  # checkpoints may be in half precision, which is too coarse for training
        return Causal(model if lora is None else with_adapters(model, lora, seed=seed), start=start)


@dataclass(frozen=True)
class TakeOver(Stage[Pretrained]):
    """Copy a Hugging Face model with its tokenizer and its adapter into the store, unchanged."""

    declared: ClassVar[Declared] = Declared("pretrained", 2)
    title: ClassVar[str] = "copy pretrained model"

    model: PretrainedSpec  #: spec with the paths of the folders of the model and of its adapter.

    @property
    def spec(self) -> Mapping[str, Any]:
        """An empty spec, as the files determine the artifact."""
        return {}

    @cached_property
    def _files(self) -> dict[str, Path]:
        adapter = {} if self.model.adapter is None else adapter_files(self.model.adapter)
        return read_files(self.model.path) | adapter

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The digests of the files of the model and its adapter, by name."""
        from memlib.identity import file_digest

        return {name: file_digest(path) for name, path in self._files.items()}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Check that the tokenizer and the weights load, try the precisions for evaluation, then copy the files."""
        from memlib.models.causal import Causal, FolderTokenizer, load_model

        model = load_model(self.model.path, self.model.adapter)
        tokenizer = FolderTokenizer(self.model.path)
        attempt.facts["precisions"] = _precisions(Causal(model, start=tokenizer.start).eval())
        for name, path in self._files.items():
            shutil.copyfile(path, attempt.path(name))
        attempt.facts["parameters"] = sum(value.numel() for value in model.parameters())

    @classmethod
    def open(cls, artifact: Artifact[Pretrained]) -> Pretrained:
        """Return the pretrained model."""
        return Pretrained(artifact)

    @classmethod
    def described(cls, artifact: Artifact[Pretrained]) -> list[str]:
        """Return the numbers of weights and tokens."""
        return [f"{artifact.facts['parameters']:,} weights, {len(artifact.content.tokenizer.pieces):,} tokens"]


def _precisions(model: Causal) -> list[str]:
    """Return the precisions in which a model can be evaluated; convert its weights in place.

    Raises:
        UserError: when the model cannot be evaluated in float32.
    """
    model.float().check_precision()
    try:
        model.double().check_precision()
    except UserError:
        return ["float32"]
    return ["float32", "float64"]
