"""A model that was trained elsewhere and is fine-tuned here: its folder in the store, where every worker finds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from memlib.models.external import read_files
from memlib.private import scratch
from memlib.provenance import Declared
from memlib.specs import LoraSpec, PretrainedSpec
from memlib.stage import Artifact, Stage
from memlib.store import Attempt

if TYPE_CHECKING:
    import torch

    from memlib.models.causal import Causal, FolderTokenizer


class Pretrained:
    """A Hugging Face folder in the store."""

    def __init__(self, artifact: Artifact[Pretrained]) -> None:
        self._artifact = artifact

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder with its files, as long as the block lasts."""
        with scratch("pretrained") as found:
            for name in self._artifact.files:
                (found / name).symlink_to(self._artifact.path(name))
            yield found

    @cached_property
    def tokenizer(self) -> FolderTokenizer:
        """Its tokenizer."""
        from memlib.models.causal import FolderTokenizer

        with self.folder() as folder:
            return FolderTokenizer(str(folder))

    def model(self, lora: LoraSpec | None, *, seed: int) -> Causal:
        """Return the model with its weights, on the CPU, with new adapters where they are asked for.

        Args:
            lora: null leaves all weights to learn.
            seed: of the adapters.
        """
        from memlib.models.causal import Causal, load_model, with_adapters

        with self.folder() as folder:
            model, start = load_model(str(folder)), self.tokenizer.start
            model = model.float()  # checkpoints may be in half precision, which training rounds too much
        return Causal(model if lora is None else with_adapters(model, lora, seed=seed), start=start)


@dataclass(frozen=True)
class TakeOver(Stage[Pretrained]):
    """Take a Hugging Face model with its tokenizer into the store, as it is.

    Attributes:
        model: its folder.
    """

    declared: ClassVar[Declared] = Declared("pretrained", 1, ("memlib.training.pretrained",))
    title: ClassVar[str] = "take over model"

    model: PretrainedSpec

    @property
    def spec(self) -> Mapping[str, Any]:
        """Nothing: its files say all."""
        return {}

    @cached_property
    def _files(self) -> dict[str, Path]:
        return read_files(self.model.path)

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """Digests of its files."""
        from memlib.identity import file_digest

        return {name: file_digest(path) for name, path in self._files.items()}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Copy the files, once the tokenizer and the weights could be loaded."""
        from memlib.models.causal import FolderTokenizer, load_model

        FolderTokenizer(self.model.path)
        model = load_model(self.model.path)
        for name, path in self._files.items():
            shutil.copyfile(path, attempt.path(name))
        attempt.facts["parameters"] = sum(value.numel() for value in model.parameters())

    @classmethod
    def open(cls, artifact: Artifact[Pretrained]) -> Pretrained:
        """Return the folder."""
        return Pretrained(artifact)

    @classmethod
    def described(cls, artifact: Artifact[Pretrained]) -> list[str]:
        """Return its size."""
        return [f"{artifact.facts['parameters']:,} weights, {len(artifact.content.tokenizer.pieces):,} tokens"]
