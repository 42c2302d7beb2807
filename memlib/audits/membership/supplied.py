"""The list of training examples and the outputs that the owner of an external target supplies."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.shadows import Answers
from memlib.data.canaries.secret_key import read_secret
from memlib.data.groups import groups_in
from memlib.data.id_files import named_content, named_digest, said_of_examples
from memlib.data.opening import digest_of, reason
from memlib.data.splits import HELD_OUT, TRAIN, column
from memlib.data.stages import TrainingData
from memlib.errors import UserError
from memlib.observe.encoders import pseudonym_of
from memlib.observe.supplied_outputs import read_outputs
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Stage
from memlib.sanitize import count_of
from memlib.specs import OutputsSpec
from memlib.specs.external import is_part
from memlib.stats.likelihood import decimals_of, log_odds, odds_of, rounded
from memlib.store import Attempt

if TYPE_CHECKING:
    import torch

MEMBERS_FILE = "members.npy"
YES, NO = {"yes", "true", "1", "in", "member"}, {"no", "false", "0", "out", "nonmember"}
UNLISTED = -1
FEWEST = 10  # members, and non-members


@dataclass(frozen=True)
class ReadMembers(Stage[NDArray[np.int8]]):
    """Read which examples of the pool an external target was trained on."""

    declared: ClassVar[Declared] = Declared("members", 1)
    title: ClassVar[str] = "read members"

    data: TrainingData  #: the pool.
    path: str  #: the file, see `recipe.TargetSpec.members`.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Empty: the file is identified by its content, which is an input."""
        return {}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The pool and the content of the file."""
        said = self.path if is_part(self.path) else named_digest(self.path, setting="target.members")
        return {"splits": self.data.splits.key, "members": said}

    @property
    def pool(self) -> pa.Table:
        """The examples that the file may list, rows of tables.SPLITS."""
        return self.data.members(TRAIN)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write members.npy: 1 for members, 0 for non-members, -1 for examples that are not listed."""
        members = self.pool
        ids = members["example_id"].to_pylist()
        listed, values = self._listed(ids)
        if not (values != UNLISTED).any():
            raise UserError(f"{self.path} names none of the {len(ids)} examples; use ids such as {ids[0]!r}")
        if strange := sorted(listed.keys() - set(ids)):
            attempt.warn(
                f"{self.path} lists {count_of(len(strange), 'example')} outside of the pool, such as {strange[0]!r}, without "
                f"effect; ids of the pool look like {ids[0]!r}"
            )
        for value, word in ((1, "members"), (0, "non-members")):
            if (count := int((values == value).sum())) < FEWEST:
                raise UserError(
                    f"{self.path} lists {count} {word} among the {len(ids)} examples of the pool; an audit compares members "
                    f"with non-members and needs at least {FEWEST} of each"
                )
        _refuse_divided(values, groups_in(members), ids, self.path)
        np.save(attempt.path(MEMBERS_FILE), values)

    def _listed(self, ids: list[str]) -> tuple[dict[str, str], NDArray[np.int8]]:
        """Return what the file says by example id, and the values of the examples of the pool."""
        if is_part(self.path):
            return {}, np.array([name.startswith(self.path) for name in ids], dtype=np.int8)
        if self.path.endswith(".npy"):
            mask = mask_of(self.path, self.data.shard.content.index.num_rows)
            return {}, mask[self.pool["row"].to_numpy()].astype(np.int8)
        listed = _by_id(said_of_examples(self.path, "member", setting="target.members"), ids)
        return listed, np.array([_flag(listed.get(name), name, self.path) for name in ids], dtype=np.int8)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.int8]]) -> NDArray[np.int8]:
        """Return the values by example of the pool, in order of example id: (num_pool,)."""
        values: NDArray[np.int8] = np.load(artifact.path(MEMBERS_FILE))
        return values

    @classmethod
    def described(cls, artifact: Artifact[NDArray[np.int8]]) -> list[str]:
        """Describe the numbers of members and non-members."""
        values = artifact.content
        listed = f"{int((values == 1).sum()):,} members, {int((values == 0).sum()):,} non-members"
        left_out = int((values == UNLISTED).sum())
        return [listed + (f"; {left_out:,} examples of the pool are not listed and left out" if left_out else "")]


def mask_of(path: str, count: int | None = None) -> NDArray[np.bool_]:
    """Return which examples of a source, in its order, an array names: a mask of all, or the numbers of members from 0.

    Args:
        count: number of examples of the source; None if only the file is checked.

    Raises:
        UserError: when the file is no such array, or is of another number of examples.
    """
    try:
        array = np.load(io.BytesIO(named_content(path, setting="target.members")), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"cannot read target.members {path} (it is no array that np.save wrote)") from error
    if array.ndim != 1 or not (array.dtype == bool or np.issubdtype(array.dtype, np.integer)) or not len(array):
        raise UserError(f"{path} holds {array.dtype} of shape {array.shape}; give a mask of all examples, or their numbers")
    is_mask = array.dtype == bool or (len(array) > 2 and set(np.unique(array).tolist()) <= {0, 1})
    if is_mask and len(array) != (count or len(array)):
        raise UserError(f"{path} is a mask of {len(array):,} examples, but the data have {count:,}")
    if is_mask or count is None:
        return np.array(array, dtype=bool)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= count or len(np.unique(array)) < len(array):
        raise UserError(f"{path} holds numbers from {low} to {high}; give those of members, once each, from 0 to {count - 1}")
    mask = np.zeros(count, dtype=bool)
    mask[array] = True
    return mask


def _by_id(listed: dict[str, str], ids: list[str]) -> dict[str, str]:
    """Return the entries of a list by example id; pseudonyms from `memlib ids` are replaced by the ids."""
    if listed.keys() & set(ids):
        return listed
    secret = read_secret()
    named = {pseudonym_of(name, secret): name for name in ids}
    return {named.get(name, name): text for name, text in listed.items()}


def _flag(text: str | None, name: str, path: str) -> int:
    if text is None:
        return UNLISTED
    if text.strip().lower() in YES:
        return 1
    if text.strip().lower() in NO:
        return 0
    raise UserError(f"{path} has {text!r} for example {name!r} in column member; write yes or no")


def _refuse_divided(values: NDArray[np.int8], groups: NDArray[np.int64], ids: list[str], path: str) -> None:
    """Raise UserError for a group of examples of which only some are members."""
    listed = values != UNLISTED
    order = np.argsort(groups[listed], kind="stable")
    sorted_groups, sorted_values = groups[listed][order], values[listed][order]
    differs = (sorted_groups[1:] == sorted_groups[:-1]) & (sorted_values[1:] != sorted_values[:-1])
    if differs.any():
        places = np.flatnonzero(listed)[order]
        at = int(np.flatnonzero(differs)[0])
        one, other = sorted(ids[int(places[place])] for place in (at, at + 1))
        raise UserError(
            f"{path} lists only one of {one!r} and {other!r} as a member, but both belong to one group of split.group (a "
            "person, copies of a record); audit data in which all examples of each group are members, or none"
        )


@dataclass(frozen=True)
class ReadOutputs(Stage[Answers]):
    """Read the outputs of an external target on the pool."""

    declared: ClassVar[Declared] = Declared("read_outputs", 1)
    title: ClassVar[str] = "read outputs"

    data: TrainingData  #: the pool.
    outputs: OutputsSpec  #: file, columns and kind.
    members: Artifact[NDArray[np.int8]]  #: the owner's list; only examples that it names need outputs.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Columns and kind of the outputs."""
        return self.outputs.model_dump(mode="json", exclude={"path"})

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The pool, the owner's list and the digest of the file."""
        try:
            digest = digest_of(self.outputs.path)
        except OSError as error:
            raise UserError(f"cannot read outputs from {self.outputs.path} ({reason(error)})") from error
        return {"splits": self.data.splits.key, "members": self.members.key, "outputs": digest}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the answers; those on held-out and on unlisted examples are unknown."""
        listed = self.members.content != UNLISTED
        members = self.data.members(TRAIN).filter(pa.array(listed))
        labels = column(members, "label")
        supplied = read_outputs(self.outputs, members, self.data.num_classes)
        scores, probabilities = supplied.scores, supplied.probabilities
        odds = scores[:, 0] if self.outputs.kind == "scores" else log_odds(scores, labels)
        decimals = None if probabilities is None else decimals_of(probabilities)
        if probabilities is not None and decimals is not None:  # rounded rows do not sum to 1
            odds = rounded(odds_of(probabilities[np.arange(len(labels)), labels]), decimals)
        attempt.facts |= {"decimals": decimals}
        of_pool = Answers(
            np.zeros((1, 1, len(listed)), dtype=np.float32),
            np.zeros((1, len(listed)), dtype=bool),
            np.zeros((1, self.data.members(HELD_OUT).num_rows), dtype=bool),
        )
        of_pool.odds[0, 0, listed], of_pool.correct[0, listed] = odds, scores.argmax(axis=1) == labels
        of_pool.write(attempt)

    @classmethod
    def open(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers."""
        return Answers.read(artifact)
