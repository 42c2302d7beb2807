"""Sanitizing of a text by the disagreement of two models that were trained on its halves (Carlini 2019, 9.2).

Text that only one of the models has seen is likely to that model alone. The windows about which the models disagree most are
removed, and another model is trained on the rest. A canary in a single window is in one half only. A canary in several
windows may be in both halves; then the models agree about it, and its windows are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.exposure.models import ModelAt, StoredCorpus
from memlib.data.splits import LEFT_OUT, SPLITS_FILE, column
from memlib.data.stages import SplitsStage
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place
from memlib.store import Attempt
from memlib.tables import SPLITS, read_table, write_table

if TYPE_CHECKING:
    import torch

HALVES = ("half 0", "half 1")
DISAGREED = "two models disagree about it"


@dataclass(frozen=True)
class Halve(SplitsStage):
    """Assign each training window at random to one of two halves: splits.parquet."""

    declared: ClassVar[Declared] = Declared("secret/halves", 1)
    title: ClassVar[str] = "halve the text"
    place: ClassVar[Place] = "cores"

    corpus: Artifact[StoredCorpus]  #: windows with their roles.
    roles: tuple[str, ...]  #: roles of the windows that one model trains on.
    seed: int  #: seed of the draw.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The roles and the seed."""
        return {"roles": list(self.roles), "seed": self.seed}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The corpus."""
        return {"corpus": self.corpus.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the table."""
        splits = read_table(self.corpus.path(SPLITS_FILE))
        write_table(halved(splits, self.roles, seed=self.seed), SPLITS, attempt.path(SPLITS_FILE))


def halved(splits: pa.Table, roles: tuple[str, ...], *, seed: int) -> pa.Table:
    """Return a splits table in which the windows with one of the roles are divided at random into two equal HALVES."""
    members = np.flatnonzero(pc.is_in(splits["role"], value_set=pa.array(roles)).to_numpy())
    drawn = np.random.default_rng(derive_seed(seed, "halves")).permutation(members)
    role = np.array(splits["role"].to_pylist(), dtype=object)
    role[drawn[::2]], role[drawn[1::2]] = HALVES
    return _with(splits, role=role)


@dataclass(frozen=True)
class Sanitize(SplitsStage):
    """Leave out the training windows about which the models of two halves disagree most: splits.parquet."""

    declared: ClassVar[Declared] = Declared("secret/sanitize", 1)
    title: ClassVar[str] = "sanitize the text"
    place: ClassVar[Place] = "anywhere"

    corpus: Artifact[StoredCorpus]  #: windows with their roles.
    roles: tuple[str, ...]  #: roles of the windows that one model trains on.
    models: tuple[ModelAt, ModelAt]  #: the models of the two halves.
    share: float  #: share of the training windows to leave out.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The roles, the share, and the settings of the models."""
        return {"roles": list(self.roles), "share": self.share, "models": [model.spec for model in self.models]}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The corpus and the models."""
        return {"corpus": self.corpus.key, "models": [model.model.key for model in self.models]}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the table."""
        splits = read_table(self.corpus.path(SPLITS_FILE))
        members = np.flatnonzero(pc.is_in(splits["role"], value_set=pa.array(self.roles)).to_numpy())
        windows = np.array(self.corpus.content.windows[column(splits, "row")[members]])
        first, second = (window_nats(model, windows, device) for model in self.models)
        removed = members[most_disputed(first, second, share=self.share)]
        attempt.facts["removed"] = len(removed)
        write_table(without(splits, removed), SPLITS, attempt.path(SPLITS_FILE))


def window_nats(at: ModelAt, windows: NDArray[Any], device: torch.device) -> NDArray[np.float64]:
    """Compute a model's loss in each window, in nats per symbol: (num_windows,)."""
    import torch

    from memlib.objectives.language import window_losses

    model = at.load(device)
    parts, rows = [], model.most_rows(windows.shape[1])
    with torch.inference_mode():
        for start in range(0, len(windows), rows):
            losses, scored = window_losses(model, torch.from_numpy(windows[start : start + rows]).to(device).long())
            parts.append((losses / scored).double().cpu().numpy())
    return np.concatenate(parts)


def most_disputed(first: NDArray[np.float64], second: NDArray[np.float64], *, share: float) -> NDArray[np.int64]:
    """Return the sorted positions of the windows whose losses under two models differ most.

    Args:
        first, second: (num_windows,) losses under each model.
        share: share of the windows to return; at least one is returned.
    """
    differences = np.abs(first - second)
    count = max(1, round(share * len(differences)))
    order: NDArray[np.int64] = np.argsort(-differences, kind="stable")
    return np.sort(order[:count])


def without(splits: pa.Table, removed: NDArray[np.int64]) -> pa.Table:
    """Return a splits table in which the rows at the positions `removed` have the role LEFT_OUT, with the reason."""
    role, reason = (np.array(splits[name].to_pylist(), dtype=object) for name in ("role", "reason"))
    role[removed], reason[removed] = LEFT_OUT, DISAGREED
    return _with(splits, role=role, reason=reason)


def _with(splits: pa.Table, **columns: NDArray[Any]) -> pa.Table:
    for name, values in columns.items():
        splits = splits.set_column(splits.column_names.index(name), name, pa.array(values.tolist(), type=pa.string()))
    return splits.cast(SPLITS.arrow)


def left(splits: Artifact[pa.Table], role_of_canary: Mapping[int, str]) -> dict[int, int]:
    """Return the number of windows left to each canary; canaries without any are omitted.

    Args:
        role_of_canary: role of the windows of each canary, by id.
    """
    counts = Counter(splits.content["role"].to_pylist())
    return {canary: counts[role] for canary, role in role_of_canary.items() if counts[role]}
