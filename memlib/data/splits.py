"""Who may see what: target A, reference B, shared C and public X (Meehan 2023, A.2.1); or train and held out.

A and B hold only images whose background can be cut out (a box, and a large enough crop), half each. C tops
both up to the training budget and is seen by both models; X is seen by neither and decodes their embeddings.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.crops import Box, periphery_crop
from memlib.errors import UserError
from memlib.identity import canonical_json, derive_seed
from memlib.specs import CropSpec, HoldOutSpec, SplitSpec
from memlib.stats.randomization import home_labels
from memlib.tables import SPLITS

SPLITS_FILE = "splits.parquet"
MOST_NAMED = 3  # classes of a message
TARGET, REFERENCE, SHARED, PUBLIC, LEFT_OUT = "target", "reference", "shared", "public", "left_out"
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held_out"
ROLES = {TARGET, REFERENCE, SHARED, PUBLIC, LEFT_OUT, TRAIN, VALIDATION, HELD_OUT}


@dataclass
class _Candidate:
    entry: dict[str, Any]
    crop: Box | None
    group: int
    role: str = LEFT_OUT
    reason: str | None = None


def split_examples(index: pa.Table, spec: SplitSpec, groups: NDArray[np.int64] | None = None) -> pa.Table:
    """Assigns a role to every example of the index.

    The draw is seeded and, within a class, depends only on the set of example ids; classes are balanced. Groups are drawn
    as one, within the class that most of their examples have, so that a test can redraw their sides by the same rule.

    Args:
        index: tables.INDEX.
        spec: budgets, seed, and the background crop that an auditable image must have.
        groups: (num_examples,) of `groups_of`; by default each example is its own.

    Returns:
        tables.SPLITS, a row an example, sorted by example id.

    Raises:
        UserError: when classes cannot fill their budget (unless they are left out); the message names the first few and says
            what they have.
    """
    crop = spec.crop
    candidates = _candidates(index, groups, crop)
    _exclude(candidates, drop_duplicates=spec.drop_duplicates)
    usable = [c for c in candidates if c.reason is None]
    if usable and not any(c.crop for c in usable):
        wanted = f"a {crop.mode} crop whose shorter side is at least {crop.min_side:.0%} of the image's"
        hint = "give the source boxes, lower split.crop.min_side, or set split.crop.mode to corner"
        raise UserError(f"none of the {len(usable)} images has {wanted}; {hint}")
    names = {c.entry["label"]: c.entry["class_name"] for c in candidates}
    blocks = _blocks(usable)
    small: list[str] = []
    for label in sorted(names):
        mine = blocks.get(label, [])
        try:
            if spec.group is None:
                _assign_class([block[0] for block in mine], names[label], label, spec)
            else:
                _assign_blocks(mine, names[label], label, spec)
        except UserError as error:
            small.append(str(error))
            for candidate in (candidate for block in mine for candidate in block):
                candidate.role, candidate.reason = LEFT_OUT, "of a class that is too small"
    if small and (spec.small_classes != "leave_out" or len(small) == len(names)):
        more = f"; {len(small) - MOST_NAMED} more classes are too small" if len(small) > MOST_NAMED else ""
        hint = "" if spec.small_classes == "leave_out" else "; or say split.small_classes: less, or leave_out"
        raise UserError(f"{'; '.join(small[:MOST_NAMED])}{more}{hint}")
    if spec.group is None:
        _check_balance(candidates)
    return _table(candidates)


def small_classes(index: pa.Table, spec: SplitSpec) -> list[str]:
    """Return the classes that are too small for their budgets whatever their images show, smallest first.

    Args:
        index: tables.INDEX.
        spec: the budgets.
    """
    whole = index.filter(pc.field("unreadable").is_null())
    counts = Counter(whole["class_name"].to_pylist())
    public = 1 if spec.small_classes == "less" else spec.public_per_class or 1
    needed = spec.train_per_class + 1 + public  # one image each for A and B at least, C and X
    return [f"{name} ({count})" for name, count in sorted(counts.items(), key=lambda item: item[1]) if count < needed]


def _candidates(index: pa.Table, groups: NDArray[np.int64] | None, crop: CropSpec | None) -> list[_Candidate]:
    numbers = range(index.num_rows) if groups is None else groups.tolist()
    return [
        _Candidate(entry, None if crop is None else crop_of(entry, crop), group)
        for entry, group in zip(index.to_pylist(), numbers, strict=True)
    ]


def _blocks(usable: Sequence[_Candidate]) -> dict[int, list[list[_Candidate]]]:
    """The groups by the class that most of their examples have, in order of their first example.

    Of a group with background crops only these count, as they alone are audited.
    """
    if not usable:
        return {}
    numbers = np.unique([c.group for c in usable], return_inverse=True)[1]
    cropped = {c.group for c in usable if c.crop is not None}
    counted = np.array([c.crop is not None or c.group not in cropped for c in usable])
    homes = home_labels(np.array([c.entry["label"] for c in usable])[counted], numbers[counted])
    members: dict[int, list[_Candidate]] = {}
    for candidate, number in zip(usable, numbers.tolist(), strict=True):
        members.setdefault(number, []).append(candidate)
    found: dict[int, list[list[_Candidate]]] = {}
    for number, block in members.items():
        found.setdefault(int(homes[number]), []).append(block)
    return found


def _table(candidates: Sequence[_Candidate]) -> pa.Table:
    """tables.SPLITS; a group is named by its first example's id."""
    sizes = Counter(c.group for c in candidates)
    first: dict[int, str] = {}
    for candidate in candidates:
        first.setdefault(candidate.group, candidate.entry["example_id"])
    rows = [_row(c) | {"group": first[c.group] if sizes[c.group] > 1 else None} for c in candidates]
    table = pa.Table.from_pylist(rows, schema=SPLITS.arrow)
    assert_disjoint(table)
    return table


def assert_disjoint(splits: pa.Table, roles: Collection[str] = ROLES) -> None:
    """Every example has exactly one role: the promise that everything else rests on."""
    ids = splits["example_id"].to_pylist()
    assert len(set(ids)) == len(ids), "an example has two roles"
    assert set(splits["role"].to_pylist()) <= set(roles)


def hold_out(index: pa.Table, spec: HoldOutSpec, groups: NDArray[np.int64] | None = None) -> pa.Table:
    """Gives every example of the index the role train, validation, held_out or left_out, class by class.

    Args:
        index: tables.INDEX.
        spec: how many of each.
        groups: (num_examples,) of `groups_of`; by default each example is its own. A group has one role.

    Returns:
        tables.SPLITS, sorted by example id; the crops are null.

    Raises:
        UserError: when a class has too few examples; the message names it.
    """
    candidates = _candidates(index, groups, None)
    _exclude(candidates, drop_duplicates=False)
    names = {c.entry["label"]: c.entry["class_name"] for c in candidates}
    blocks = _blocks([c for c in candidates if c.reason is None])
    for label in sorted(names):
        rng = np.random.default_rng(derive_seed(spec.seed, "hold out", label))
        mine = blocks.get(label, [])
        _assign_roles([mine[i] for i in rng.permutation(len(mine))], names[label], spec)
    return _table(candidates)


def _assign_roles(shuffled: Sequence[Sequence[_Candidate]], name: str, spec: HoldOutSpec) -> None:
    """Fills validation, held out and train in turn with whole groups."""
    available = sum(map(len, shuffled))
    kept = spec.validation_per_class + spec.held_out_per_class
    train = spec.train_per_class if spec.train_per_class is not None else max(1, available - kept)
    if kept + train > available:
        raise UserError(
            f"class {name!r} has {available} examples, but the split needs {kept + train} ({train} to train "
            f"on, {spec.validation_per_class} for validation, {spec.held_out_per_class} held out)"
        )
    budgets = {VALIDATION: spec.validation_per_class, HELD_OUT: spec.held_out_per_class, TRAIN: train}
    for block in shuffled:
        role = next((role for role, left in budgets.items() if left > 0), LEFT_OUT)
        budgets[role] = budgets.get(role, 0) - len(block)
        for candidate in block:
            candidate.role, candidate.reason = role, None if role != LEFT_OUT else "surplus"


def select(splits: pa.Table, *roles: str) -> pa.Table:
    """The rows of the splits with one of the roles, in order of example id."""
    return splits.filter(pc.is_in(splits["role"], value_set=pa.array(roles, type=pa.string())))


def column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as a NumPy array."""
    values: NDArray[Any] = table[name].to_numpy()
    return values


def crop_rectangles(index: pa.Table, example_ids: Sequence[str], crop: CropSpec) -> dict[str, Box]:
    """The background crop of each of the examples that has one, in stored pixels."""
    wanted = index.filter(pc.is_in(index["example_id"], value_set=pa.array(example_ids, type=pa.string())))
    crops = {entry["example_id"]: crop_of(entry, crop) for entry in wanted.to_pylist()}
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
    if spec.small_classes == "less":
        num_public = max(1, min(num_public, len(rest) - num_shared))
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


def _assign_blocks(blocks: Sequence[Sequence[_Candidate]], name: str, label: int, spec: SplitSpec) -> None:
    """Draws whole groups: an even number of auditable ones for A and B, half each, then C and X from the rest.

    Which groups are audited depends on the order of the draw and their sizes together, not on the side that each gets; the
    sides are then drawn among them, so that any half is as likely as any other.
    """
    rng = np.random.default_rng(derive_seed(spec.seed, "split", label))
    shuffled = [blocks[i] for i in rng.permutation(len(blocks))]
    audited = [block for block in shuffled if any(c.crop for c in block)]
    sizes = np.cumsum([sum(c.crop is not None for c in block) for block in audited])
    fitting = int(np.searchsorted(sizes, 2 * spec.train_per_class, side="right"))
    chosen = audited[: fitting - fitting % 2]
    if len(chosen) < 2:
        raise UserError(
            f"class {name!r} has {len(audited)} groups with a large enough background crop that fit twice "
            f"split.train_per_class {spec.train_per_class}; it needs 2"
        )
    for place, position in enumerate(rng.permutation(len(chosen)).tolist()):
        for candidate in chosen[position]:
            candidate.role = TARGET if place < len(chosen) // 2 else REFERENCE
            if candidate.crop is None:
                candidate.role, candidate.reason = LEFT_OUT, "no background crop, in the group of an audited image"
    taken = {id(block) for block in chosen}
    rest = [block for block in shuffled if id(block) not in taken]
    shared = max(0, spec.train_per_class - sum(c.role == TARGET for block in chosen for c in block))
    _fill_shared_and_public(rest, shared, name, spec)


def _fill_shared_and_public(rest: Sequence[Sequence[_Candidate]], shared: int, name: str, spec: SplitSpec) -> None:
    public = spec.public_per_class
    for block in rest:
        role = SHARED if shared > 0 else PUBLIC if public is None or public > 0 else LEFT_OUT
        shared -= len(block) if role == SHARED else 0
        public = public - len(block) if role == PUBLIC and public is not None else public
        for candidate in block:
            candidate.role, candidate.reason = role, "surplus" if role == LEFT_OUT else None
    if shared > 0 or not any(c.role == PUBLIC for block in rest for c in block):
        raise UserError(
            f"class {name!r} has too few groups besides the audited ones for split.train_per_class {spec.train_per_class} "
            "and public images; lower it"
        )


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
