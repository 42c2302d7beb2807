"""Who may see what: target A, reference B, shared C and public X (Meehan 2023, A.2.1); or train and held out.

A and B hold only images whose background can be cut out (a box, and a large enough crop), half each. C tops
both up to the training budget and is seen by both models; X is seen by neither and decodes their embeddings.
"""

import hashlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.data.crops import Box, periphery_crop
from memlib.errors import UserError
from memlib.identity import canonical_json, derive_seed
from memlib.specs import CropSpec, HoldOutSpec, SplitSpec
from memlib.tables import SPLITS

TARGET, REFERENCE, SHARED, PUBLIC, LEFT_OUT = "target", "reference", "shared", "public", "left_out"
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held_out"
ROLES = {TARGET, REFERENCE, SHARED, PUBLIC, LEFT_OUT, TRAIN, VALIDATION, HELD_OUT}


@dataclass
class _Candidate:
    entry: dict[str, Any]
    crop: Box | None
    role: str = LEFT_OUT
    reason: str | None = None


def split_examples(index: pa.Table, spec: SplitSpec) -> pa.Table:
    """Assigns a role to every example of the index.

    The draw is seeded and, within a class, depends only on the set of example ids; classes are balanced.

    Args:
        index: tables.INDEX.
        spec: budgets, seed, and the background crop that an auditable image must have.

    Returns:
        tables.SPLITS, a row an example, sorted by example id.

    Raises:
        UserError: when a class cannot fill its budget; the message names it and says what it has.
    """
    crop = spec.crop
    candidates = [_Candidate(entry, crop_of(entry, crop)) for entry in index.to_pylist()]
    _exclude(candidates, drop_duplicates=spec.drop_duplicates)
    usable = [c for c in candidates if c.reason is None]
    if usable and not any(c.crop for c in usable):
        wanted = f"a {crop.mode} crop whose shorter side is at least {crop.min_side:.0%} of the image's"
        hint = "give the source boxes, lower split.crop.min_side, or set split.crop.mode to corner"
        raise UserError(f"none of the {len(usable)} images has {wanted}; {hint}")
    names = {c.entry["label"]: c.entry["class_name"] for c in candidates}
    for label in sorted(names):
        members = [c for c in usable if c.entry["label"] == label]
        _assign_class(members, names[label], label, spec)
    _check_balance(candidates)
    table = pa.Table.from_pylist([_row(c) for c in candidates], schema=SPLITS.arrow)
    assert_disjoint(table)
    return table


def assert_disjoint(splits: pa.Table, roles: Collection[str] = ROLES) -> None:
    """Every example has exactly one role: the promise that everything else rests on."""
    ids = splits["example_id"].to_pylist()
    assert len(set(ids)) == len(ids), "an example has two roles"
    assert set(splits["role"].to_pylist()) <= set(roles)


def hold_out(index: pa.Table, spec: HoldOutSpec) -> pa.Table:
    """Gives every example of the index the role train, validation, held_out or left_out, class by class.

    Args:
        index: tables.INDEX.
        spec: how many of each.

    Returns:
        tables.SPLITS, sorted by example id; the crops are null.

    Raises:
        UserError: when a class has too few examples; the message names it.
    """
    candidates = [_Candidate(entry, None) for entry in index.to_pylist()]
    _exclude(candidates, drop_duplicates=False)
    names = {c.entry["label"]: c.entry["class_name"] for c in candidates}
    for label in sorted(names):
        members = [c for c in candidates if c.reason is None and c.entry["label"] == label]
        rng = np.random.default_rng(derive_seed(spec.seed, "hold out", label))
        shuffled = [members[i] for i in rng.permutation(len(members))]
        kept = spec.validation_per_class + spec.held_out_per_class
        train = spec.train_per_class if spec.train_per_class is not None else max(1, len(members) - kept)
        if kept + train > len(members):
            raise UserError(
                f"class {names[label]!r} has {len(members)} examples, but the split needs {kept + train} ({train} to train "
                f"on, {spec.validation_per_class} for validation, {spec.held_out_per_class} held out)"
            )
        roles = [VALIDATION] * spec.validation_per_class + [HELD_OUT] * spec.held_out_per_class + [TRAIN] * train
        for candidate, role in itertools.zip_longest(shuffled, roles):
            candidate.role, candidate.reason = role or LEFT_OUT, None if role else "surplus"
    table = pa.Table.from_pylist([_row(c) for c in candidates], schema=SPLITS.arrow)
    assert_disjoint(table)
    return table


def select(splits: pa.Table, *roles: str) -> pa.Table:
    """The rows of the splits with one of the roles, in order of example id."""
    wanted = pa.array([role in roles for role in splits["role"].to_pylist()], type=pa.bool_())
    return splits.filter(wanted)


def column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as a NumPy array."""
    values: NDArray[Any] = table[name].to_numpy()
    return values


def crop_rectangles(index: pa.Table, example_ids: Sequence[str], crop: CropSpec) -> dict[str, Box]:
    """The background crop of each of the examples that has one, in stored pixels."""
    wanted = set(example_ids)
    entries = [entry for entry in index.to_pylist() if entry["example_id"] in wanted]
    crops = {entry["example_id"]: crop_of(entry, crop) for entry in entries}
    return {name: box for name, box in crops.items() if box is not None}


def members_digest(members: pa.Table) -> str:
    """A digest of which examples, with which labels: what a model's key says of its training set."""
    rows = [members["example_id"].to_pylist(), members["label"].to_pylist()]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def crop_of(entry: dict[str, Any], crop: CropSpec) -> Box | None:
    """The background crop of a row of the index, None where there is none."""
    if entry["unreadable"] is not None:
        return None
    x0, y0, x1, y1 = entry["content"]
    boxes = np.array(entry["boxes"], dtype=np.int64).reshape(-1, 4)
    return periphery_crop((x0, y0, x1, y1), boxes, crop)


def _exclude(candidates: list[_Candidate], *, drop_duplicates: bool) -> None:
    first_with: dict[str, str] = {}
    for candidate in candidates:
        entry = candidate.entry
        if entry["unreadable"] is not None:
            candidate.reason = f"unreadable: {entry['unreadable']}"
        elif drop_duplicates and entry["digest"] in first_with:
            candidate.reason = f"duplicate of {first_with[entry['digest']]}"
        else:
            first_with[entry["digest"]] = entry["example_id"]


def _assign_class(members: list[_Candidate], name: str, label: int, spec: SplitSpec) -> None:
    if not members:
        raise UserError(f"class {name!r} has no usable image; remove it or mend its images")
    rng = np.random.default_rng(derive_seed(spec.seed, "split", label))
    shuffled = [members[i] for i in rng.permutation(len(members))]
    auditable = [c for c in shuffled if c.crop is not None]
    others = [c for c in shuffled if c.crop is None]
    if len(auditable) < 2:
        raise UserError(f"class {name!r} has {len(auditable)} images with a large enough background crop; it needs 2")
    share = min(len(auditable) // 2, spec.train_per_class)
    for candidate in auditable[:share]:
        candidate.role = TARGET
    for candidate in auditable[share : 2 * share]:
        candidate.role = REFERENCE
    rest = others + auditable[2 * share :]
    num_shared = spec.train_per_class - share
    num_public = spec.public_per_class or max(1, len(rest) - num_shared)
    if num_shared + num_public > len(rest):
        needed = f"{2 * share + num_shared} to train on and {num_public} public ones"
        raise UserError(
            f"class {name!r} has {len(members)} usable images ({len(auditable)} with a large enough crop), but the "
            f"split needs {needed}; lower split.train_per_class or split.public_per_class"
        )
    for candidate in rest[:num_shared]:
        candidate.role = SHARED
    for candidate in rest[num_shared : num_shared + num_public]:
        candidate.role = PUBLIC
    for candidate in rest[num_shared + num_public :]:
        candidate.reason = "surplus"


def _check_balance(candidates: list[_Candidate]) -> None:
    targets: dict[str, int] = {}
    for candidate in candidates:
        if candidate.role in (TARGET, SHARED):
            name = candidate.entry["class_name"]
            targets[name] = targets.get(name, 0) + 1
    assert len(set(targets.values())) == 1, f"training classes are not balanced: {targets}"


def _row(candidate: _Candidate) -> dict[str, Any]:
    x0, y0, x1, y1 = candidate.crop or (None, None, None, None)
    entry = candidate.entry
    return {
        **{name: entry[name] for name in ("example_id", "row", "label", "class_name")},
        "role": candidate.role,
        **{"crop_x0": x0, "crop_y0": y0, "crop_x1": x1, "crop_y1": y1},
        "reason": candidate.reason,
    }
