"""Roles of examples: target A, reference B, shared C, public X (Meehan 2023, A.2.1) and extra E; or training and held-out.

A and B hold only images whose background can be cut out (that is, images with a box and a large enough crop), in equal
numbers. C tops both up to the training budget and is seen by both models; X is seen by neither and serves to decode their
embeddings.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.images.crops import periphery_crops
from memlib.errors import UserError
from memlib.identity import canonical_json, derive_seed
from memlib.sanitize import count_of
from memlib.specs import CropSpec, HoldOutSpec, SplitSpec
from memlib.stats.randomization import Design, home_labels
from memlib.tables import SPLITS, read_groups

SPLITS_FILE = "splits.parquet"
MOST_NAMED = 3  # classes named in a message
TARGET, REFERENCE, SHARED, PUBLIC, EXTRA, LEFT_OUT = "target", "reference", "shared", "public", "extra", "left_out"
GIVEN = {"A": TARGET, "B": REFERENCE, "C": SHARED, "X": PUBLIC}
"""Role of each set, by the letter that the paper and a user's file give it."""
_NEEDED = {"A": "the training images", "B": "the held-out images", "X": "the public images used to decode embeddings"}
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held_out"
Places = NDArray[np.int64]  # positions of examples in the index
_ROWS = 2**16  # number of rows that are serialized as JSON at a time
ROLES = {TARGET, REFERENCE, SHARED, PUBLIC, EXTRA, LEFT_OUT, TRAIN, VALIDATION, HELD_OUT}


class _Candidates:
    """The examples of an index as columns, and the roles assigned to the examples."""

    def __init__(self, index: pa.Table, groups: NDArray[np.int64] | None, crop: CropSpec | None) -> None:
        self.index = index
        self.label: NDArray[np.int64] = index["label"].to_numpy()
        self.crop = None if crop is None else periphery_crops(index, crop)
        self.has_crop = np.zeros(index.num_rows, dtype=bool) if self.crop is None else self.crop[:, 0] >= 0
        self.group = np.arange(index.num_rows) if groups is None else groups
        self.role = np.full(index.num_rows, LEFT_OUT, dtype=object)
        self.reason: NDArray[Any] = np.full(index.num_rows, None, dtype=object)
        self.names = named_classes(index)

    def give(self, members: Places | Sequence[int], role: str, reason: str | None = None) -> None:
        """Assign a role to some examples."""
        self.role[members], self.reason[members] = role, reason

    @property
    def usable(self) -> Places:
        """The positions of the examples that are not excluded."""
        return np.flatnonzero([reason is None for reason in self.reason])


def split_examples(
    index: pa.Table, spec: SplitSpec, groups: NDArray[np.int64] | None = None, given: Mapping[str, str] | None = None
) -> pa.Table:
    """Assign a role to every example of the index.

    The draw is seeded and, within a class, depends only on the set of example ids; classes are balanced. Groups are drawn
    as a whole, within the class of most of their examples, so that a test can redraw their sides by the same rule.

    Args:
        spec: budgets, seed, and the background crop that an auditable image must have.
        groups: (num_examples,) from `groups_of`; by default each example is a separate group.
        given: set (A, B, C or X) by example id, instead of a draw; examples without a set are left out.

    Returns:
        tables.SPLITS, one row per example, sorted by example id.

    Raises:
        UserError: when the given sets do not fit the examples, or classes cannot fill their budget (unless they are left
            out); the message names the first few such classes and their sizes.
    """
    crop = spec.crop
    candidates = _Candidates(index, groups, crop)
    _exclude(candidates, drop_duplicates=spec.drop_duplicates and given is None)
    usable = candidates.usable
    if len(usable) and not candidates.has_crop[usable].any():
        wanted = f"a {crop.mode} crop whose shorter side is at least {crop.min_side:.0%} of the image's"
        hint = "give the source boxes, lower split.crop.min_side, or set split.crop.mode to corner"
        raise UserError(f"none of the {len(usable)} images has {wanted}; {hint}")
    if given is not None:
        _assign_given(candidates, usable, given, spec)
        return _table(candidates)
    blocks = _blocks(candidates, usable)
    small: list[str] = []
    for label in sorted(candidates.names):
        members = blocks.get(label, [])
        try:
            if spec.group is None:
                _assign_class(candidates, np.array([block[0] for block in members], dtype=np.int64), label, spec)
            else:
                _assign_blocks(candidates, members, label, spec)
        except UserError as error:
            small.append(str(error))
            candidates.give([member for block in members for member in block], LEFT_OUT, "of a class that is too small")
    if small and (spec.small_classes != "leave_out" or len(small) == len(candidates.names)):
        more = f"; {len(small) - MOST_NAMED} more classes are too small" if len(small) > MOST_NAMED else ""
        hint = "" if spec.small_classes == "leave_out" else "; or set split.small_classes to less or leave_out"
        raise UserError(f"{'; '.join(small[:MOST_NAMED])}{more}{hint}")
    if spec.group is None:
        _check_balance(candidates)
    return _table(candidates)


def check_sets(given: Mapping[str, str]) -> None:
    """Raise UserError if split.sets assigns examples to a set that does not exist, such as train or test."""
    if unknown := sorted(set(given.values()) - GIVEN.keys()):
        raise UserError(
            f"split.sets puts examples in {unknown[0]!r}; sets are A (the model trained on it), B (held out, or the second "
            "model's), C (both models') and X (public)"
        )


def _assign_given(found: _Candidates, usable: Places, given: Mapping[str, str], spec: SplitSpec) -> None:
    """Assign the roles given in a user's file. A and B may differ in size, as audits compare them within classes."""
    check_sets(given)
    ids = found.index["example_id"].to_pylist()
    strange = given.keys() - set(ids)
    if strange:
        raise UserError(
            f"split.sets names {count_of(len(strange), 'example')} not in the data, such as {min(strange)!r}; ids look like "
            f"{ids[0]!r}"
        )
    named = np.array([given.get(ids[place], "") for place in usable.tolist()])
    for name, role in GIVEN.items():
        found.give(usable[named == name], role)
    found.give(usable[named == ""], LEFT_OUT, "in none of the given sets")
    if spec.drop_duplicates:
        _drop_copies(found, usable[named != ""], named[named != ""])
    for name in "ABX":
        if not (found.role == GIVEN[name]).any():
            raise UserError(f"split.sets puts no usable image in {name}, {_NEEDED[name]}; add some")
    both = np.intersect1d(found.group[usable[named == "A"]], found.group[usable[named == "B"]])
    if len(both):
        one, other = (ids[usable[(named == name) & (found.group[usable] == both[0])][0]] for name in "AB")
        raise UserError(f"split.sets separates a group of split.group: {one!r} is in A, {other!r} in B")
    of_a, of_b = ((found.role == GIVEN[name]) & found.has_crop for name in "AB")
    audited = of_a | of_b
    if not set(found.label[of_a].tolist()) & set(found.label[of_b].tolist()):
        kinds = [sorted({found.names[label] for label in found.label[chosen].tolist()}) for chosen in (of_a, of_b)]
        seen = " but ".join(f"{'A' if number == 0 else 'B'} has {', '.join(each[:3])}" for number, each in enumerate(kinds))
        raise UserError(
            f"split.sets puts no class in both A and B ({seen}); the held-out images must be of the same classes as the "
            "training images, in one tree of class folders"
        )
    if not Design.of(of_a[audited], found.label[audited], found.group[audited]).balance:
        raise UserError(
            "split.sets leaves no class that is the most frequent one of groups in both A and B; use held-out groups that "
            "resemble the groups of the training images"
        )


def _drop_copies(found: _Candidates, places: Places, named: NDArray[Any]) -> None:
    """Leave out images that are in more than one set, and all but the first copy of an image within a set.

    Args:
        places: positions of the examples that have a given set.
        named: (num_places,) set of each example.
    """
    digests = found.index["digest"].take(places).combine_chunks()
    number = pc.dictionary_encode(digests).indices.to_numpy()
    ids = found.index["example_id"]
    for copies in np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1]):
        sets = sorted(set(named[copies].tolist()))
        if len(sets) > 1:
            found.give(places[copies], LEFT_OUT, f"the same image in {' and '.join(sets)}")
        elif len(copies) > 1:
            found.give(places[copies[1:]], LEFT_OUT, f"duplicate of {ids[int(places[copies[0]])].as_py()}")


def small_classes(index: pa.Table, spec: SplitSpec) -> list[str]:
    """Return the classes with too few readable images for their budgets, smallest first; assume that all images have crops.

    Args:
        index: tables.INDEX.
    """
    whole = index.filter(pc.field("unreadable").is_null())
    counts = Counter(whole["class_name"].to_pylist())
    public = 1 if spec.small_classes == "less" else spec.public_per_class or 1
    needed = spec.budget + 1 + public + spec.extra_per_class  # at least one image each for A and B, then C and X
    return [f"{name} ({count})" for name, count in sorted(counts.items(), key=lambda item: item[1]) if count < needed]


def named_classes(table: pa.Table) -> dict[int, str]:
    """Return the class names by label, for a table with columns label and class_name."""
    labels, places = np.unique(table["label"].to_numpy(), return_index=True)
    return dict(zip(labels.tolist(), table["class_name"].take(places).to_pylist(), strict=True))


def _blocks(found: _Candidates, usable: Places) -> dict[int, list[list[int]]]:
    """Return the groups by the class of most of their examples, in order of their first example.

    In a group with background crops, only the examples with a crop are counted, as only these are audited.
    """
    if not len(usable):
        return {}
    numbers = np.unique(found.group[usable], return_inverse=True)[1]
    cropped = np.zeros(int(numbers.max()) + 1, dtype=bool)
    cropped[numbers[found.has_crop[usable]]] = True
    counted = found.has_crop[usable] | ~cropped[numbers]
    homes = home_labels(found.label[usable][counted], numbers[counted])
    members: dict[int, list[int]] = {}
    for place, number in zip(usable.tolist(), numbers.tolist(), strict=True):
        members.setdefault(number, []).append(place)
    blocks: dict[int, list[list[int]]] = {}
    for number, block in members.items():
        blocks.setdefault(int(homes[number]), []).append(block)
    return blocks


def _table(found: _Candidates) -> pa.Table:
    """Build the splits table (tables.SPLITS); a group is named after the id of its first example."""
    _, first, number, size = np.unique(found.group, return_index=True, return_inverse=True, return_counts=True)
    names = pa.array(first[number], mask=size[number] == 1)  # groups of one example have no name
    ids = found.index["example_id"].combine_chunks()
    columns = {name: found.index[name] for name in ("example_id", "row", "label", "class_name")}
    columns |= {"role": pa.array(found.role, type=pa.string()), "reason": pa.array(found.reason, type=pa.string())}
    crop = np.full((len(ids), 4), -1) if found.crop is None else found.crop
    columns |= {f"crop_{end}": pa.array(crop[:, i], mask=crop[:, 0] < 0) for i, end in enumerate(("x0", "y0", "x1", "y1"))}
    columns["group"] = ids.take(names)
    table = pa.table([columns[name] for name in SPLITS.arrow.names], names=SPLITS.arrow.names).cast(SPLITS.arrow)
    assert_disjoint(table)
    return table


def assert_disjoint(splits: pa.Table, roles: Collection[str] = ROLES) -> None:
    """Assert that every example has exactly one role, as all audits require."""
    assert pc.count_distinct(splits["example_id"]).as_py() == splits.num_rows, "an example has two roles"
    assert set(pc.unique(splits["role"]).to_pylist()) <= set(roles)


def hold_out(index: pa.Table, spec: HoldOutSpec, groups: NDArray[np.int64] | None = None) -> pa.Table:
    """Assign the role train, validation, held_out or left_out to every example of the index, class by class.

    Args:
        index: tables.INDEX.
        spec: number of examples for each role.
        groups: (num_examples,) from `groups_of`; by default each example is a separate group. All examples of
            a group get the same role.

    Returns:
        tables.SPLITS, sorted by example id; the crops are null.

    Raises:
        UserError: when a class has too few examples; the message names it.
    """
    candidates = _Candidates(index, groups, None)
    _exclude(candidates, drop_duplicates=False)
    blocks = _blocks(candidates, candidates.usable)
    for label, name in sorted(candidates.names.items()):
        rng = np.random.default_rng(derive_seed(spec.seed, "hold out", label))
        members = blocks.get(label, [])
        _assign_roles(candidates, [members[i] for i in rng.permutation(len(members))], name, spec)
    return _table(candidates)


def _assign_roles(found: _Candidates, shuffled: Sequence[Sequence[int]], name: str, spec: HoldOutSpec) -> None:
    """Fill validation, held_out and train, in this order, with whole groups."""
    available = sum(map(len, shuffled))
    kept = spec.validation_per_class + spec.held_out_per_class
    least = 0 if spec.group is not None else 1  # a class may be the most frequent one of no group
    train = spec.train_per_class if spec.train_per_class is not None else max(least, available - kept)
    if kept + train > available:
        raise UserError(
            f"class {name!r} has {available} examples, but the split needs {kept + train} ({train} to train "
            f"on, {spec.validation_per_class} for validation, {spec.held_out_per_class} held out)"
        )
    budgets = {VALIDATION: spec.validation_per_class, HELD_OUT: spec.held_out_per_class, TRAIN: train}
    for block in shuffled:
        role = next((role for role, left in budgets.items() if left > 0), LEFT_OUT)
        budgets[role] = budgets.get(role, 0) - len(block)
        found.give(block, role, None if role != LEFT_OUT else "surplus")


def select(splits: pa.Table, *roles: str) -> pa.Table:
    """Return the rows of a splits table that have one of the roles, in order of example id."""
    return splits.filter(pc.is_in(splits["role"], value_set=pa.array(roles, type=pa.string())))


def read_members(path: Path, *roles: str, columns: Sequence[str]) -> pa.Table:
    """Read some columns of a splits file for the rows that have one of the roles, in order of example id."""
    groups = read_groups(path, ["role", *columns])
    return pa.concat_tables(select(group, *roles).select(columns) for group in groups)


def column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column as a NumPy array."""
    values: NDArray[Any] = table[name].to_numpy()
    return values


def members_digest(members: pa.Table) -> str:
    """Return a digest of example ids and labels, which represents the training set in a model's key."""
    digest, separator = hashlib.sha256(), canonical_json([0, 0])[2:-2].encode()
    for start, name in (("[[", "example_id"), ("]" + separator.decode() + "[", "label")):
        digest.update(start.encode())
        for place in range(0, members.num_rows, _ROWS):
            part = canonical_json(members[name].slice(place, _ROWS).to_pylist())[1:-1].encode()
            digest.update(separator + part if place else part)
    digest.update(b"]]")
    return digest.hexdigest()


def _exclude(found: _Candidates, *, drop_duplicates: bool) -> None:
    unreadable = pc.is_valid(found.index["unreadable"]).to_numpy()
    for place in np.flatnonzero(unreadable).tolist():
        found.reason[place] = f"unreadable: {found.index['unreadable'][place].as_py()}"
    if not drop_duplicates:
        return
    readable = np.flatnonzero(~unreadable)
    digests = pc.dictionary_encode(found.index["digest"].take(readable).combine_chunks()).indices.to_numpy()
    _, first, number = np.unique(digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[number] != np.arange(len(readable)))
    ids = found.index["example_id"]
    for place, of in zip(readable[again].tolist(), readable[first[number[again]]].tolist(), strict=True):
        found.reason[place] = f"duplicate of {ids[of].as_py()}"


def _assign_class(found: _Candidates, members: Places, label: int, spec: SplitSpec) -> None:
    name = found.names[label]
    if not len(members):
        raise UserError(f"class {name!r} has no usable image; remove the class or repair its images")
    rng = np.random.default_rng(derive_seed(spec.seed, "split", label))
    shuffled = members[rng.permutation(len(members))]
    auditable, others = shuffled[found.has_crop[shuffled]], shuffled[~found.has_crop[shuffled]]
    if len(auditable) < 2:
        raise UserError(f"class {name!r} has {len(auditable)} images with a large enough background crop; it needs 2")
    share = min(len(auditable) // 2, spec.budget)
    found.give(auditable[:share], TARGET)
    found.give(auditable[share : 2 * share], REFERENCE)
    rest = np.concatenate([others, auditable[2 * share :]])
    num_shared = spec.budget - share
    extra = spec.extra_per_class
    num_public = spec.public_per_class or max(1, len(rest) - num_shared - extra)
    if spec.small_classes == "less":
        num_public = max(1, min(num_public, len(rest) - num_shared - extra))
    if num_shared + num_public + extra > len(rest):
        needed = f"{2 * share + num_shared} training images and {num_public} public images"
        needed += f" and {extra} extra images" if extra else ""
        raise UserError(
            f"class {name!r} has {len(members)} usable images ({len(auditable)} with a large enough crop), but the "
            f"split needs {needed}; lower split.train_per_class or split.public_per_class"
        )
    ends = np.cumsum([num_shared, num_public, extra])
    for role, part in zip((SHARED, PUBLIC, EXTRA), np.split(rest, ends)[:3], strict=True):
        found.give(part, role)
    found.give(rest[ends[-1] :], LEFT_OUT, "surplus")


def _assign_blocks(found: _Candidates, blocks: Sequence[Sequence[int]], label: int, spec: SplitSpec) -> None:
    """Draw whole groups: an even number of auditable groups, half for A and half for B; then C and X from the rest.

    The audited groups are chosen by the order of the draw and their total size, regardless of side. Half of them are then
    drawn for A, so that any half is as likely as any other.
    """
    name = found.names[label]
    rng = np.random.default_rng(derive_seed(spec.seed, "split", label))
    shuffled = [np.array(blocks[i], dtype=np.int64) for i in rng.permutation(len(blocks))]
    cropped = [int(found.has_crop[block].sum()) for block in shuffled]
    audited = [block for block, crops in zip(shuffled, cropped, strict=True) if crops]
    sizes = np.cumsum([crops for crops in cropped if crops])
    fitting = int(np.searchsorted(sizes, 2 * spec.budget, side="right"))
    chosen = audited[: fitting - fitting % 2]
    if len(chosen) < 2:
        raise UserError(
            f"class {name!r} has {len(audited)} groups with a large enough background crop; it needs 2 groups that together "
            f"have at most twice split.train_per_class ({spec.train_per_class}) such images"
        )
    targets = 0
    for place, position in enumerate(rng.permutation(len(chosen)).tolist()):
        has_crop = found.has_crop[chosen[position]]
        found.give(chosen[position][has_crop], TARGET if place < len(chosen) // 2 else REFERENCE)
        found.give(chosen[position][~has_crop], LEFT_OUT, "no background crop, in the group of an audited image")
        targets += int(has_crop.sum()) if place < len(chosen) // 2 else 0
    taken = {id(block) for block in chosen}
    rest = [block for block in shuffled if id(block) not in taken]
    _fill_shared_and_public(found, rest, max(0, spec.budget - targets), name, spec)


def _fill_shared_and_public(found: _Candidates, rest: Sequence[Places], shared: int, name: str, spec: SplitSpec) -> None:
    left = {SHARED: float(shared), PUBLIC: math.inf, EXTRA: float(spec.extra_per_class)}
    order = (SHARED, EXTRA, PUBLIC)  # all remaining groups are public
    if spec.public_per_class is not None:
        left[PUBLIC], order = float(spec.public_per_class), (SHARED, PUBLIC, EXTRA)
    given: Counter[str] = Counter()
    for block in rest:
        role = next((role for role in order if left[role] > 0), LEFT_OUT)
        left[role] = left.get(role, 0.0) - len(block)
        given[role] += 1
        found.give(block, role, "surplus" if role == LEFT_OUT else None)
    if left[SHARED] > 0 or left[EXTRA] > 0 or not given[PUBLIC]:
        more = " and split.extra_per_class" if spec.extra_per_class else ""
        raise UserError(
            f"class {name!r} has too few groups left after A and B for split.train_per_class {spec.train_per_class} and "
            f"public images; lower split.train_per_class{more}"
        )


def _check_balance(found: _Candidates) -> None:
    training = np.isin(found.role, (TARGET, SHARED))
    counts = np.unique(found.label[training], return_counts=True)[1]
    assert len(set(counts.tolist())) == 1, f"training classes are not balanced: {counts.tolist()}"
