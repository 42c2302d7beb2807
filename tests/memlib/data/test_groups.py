"""Groups by name, by file and by similarity; splits never separate their members."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from memlib.audits.forgetting.sets import draw_sets
from memlib.data.groups import groups_digest, groups_in, groups_of, joined, near_copies
from memlib.data.splits import hold_out, select, split_examples
from memlib.errors import UserError
from memlib.specs import CropSpec, GroupSpec, HoldOutSpec, SetSpec, SplitSpec
from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.stats.randomization import Design, two_sided_p
from memlib.tables import INDEX, SPLITS
from tests.chance import most_of

RNG = np.random.default_rng(0)


def index(names: list[str], labels: list[int]) -> pa.Table:
    rows = [
        {
            "example_id": name, "row": i, "label": label, "class_name": f"c{label}", "boxes": [], "content": [0, 0, 16, 16],
            "original_width": 16, "original_height": 16, "digest": name, "unreadable": None,
        }
        for i, (name, label) in enumerate(zip(names, labels, strict=True))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=INDEX.arrow)


def entries(names: list[str]) -> list[dict[str, Any]]:
    return [{"example_id": name, "row": i, "unreadable": None} for i, name in enumerate(names)]


def test_groups_of_follows_a_pattern_a_file_or_likeness(tmp_path: Path) -> None:
    names = ["p1/a", "p1/b", "p2/a", "x", "y"]
    assert groups_of(entries(names), None, None).tolist() == [0, 1, 2, 3, 4]
    assert groups_of(entries(names), None, GroupSpec(pattern="(p[0-9])/")).tolist() == [0, 0, 1, 2, 3]
    file = tmp_path / "groups.csv"
    file.write_text("example_id,group\nx,one\np2/a,one\ny,\n")
    by_file = groups_of(entries(names), None, GroupSpec(path=str(file)))
    assert by_file[2] == by_file[3]
    assert len(set(by_file.tolist())) == 4
    images = RNG.integers(0, 256, size=(5, 20, 20, 1), dtype=np.uint8)
    images[4] = np.clip(images[0].astype(int) + 1, 0, 255)
    near = groups_of(entries(names), images, GroupSpec(near=2.0))
    assert near[0] == near[4]
    assert len(set(near.tolist())) == 4
    digest = groups_digest(GroupSpec(path=str(file)))
    file.write_text("example_id,group\nx,two\ny,two\n")
    assert groups_digest(GroupSpec(path=str(file))) != digest


def test_joined_merges_groups_connected_by_a_link() -> None:
    assert joined(np.array([0, 1, 1, 2]), [(0, 3)]).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [({}, "needs at least one of pattern, path, near and identical"), ({"pattern": "("}, "not a valid regular expression")],
)
def test_group_spec_refuses_empty_settings_and_invalid_patterns(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GroupSpec.model_validate(spec)


def test_groups_of_refuses_settings_that_match_no_example(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="matches no example id; ids look like 'x'"):
        groups_of(entries(["x"]), None, GroupSpec(pattern="nobody"))
    (tmp_path / "g.csv").write_text("name,group\nx,1\n")
    with pytest.raises(UserError, match="has no column 'example_id'"):
        groups_of(entries(["x"]), None, GroupSpec(path=str(tmp_path / "g.csv")))
    (tmp_path / "who.csv").write_text("id,person\nx,1\ny,1\nz,2\n")
    assert groups_of(entries(["x", "y", "z"]), None, GroupSpec(path=str(tmp_path / "who.csv"))).tolist() == [0, 0, 1]
    with pytest.raises(UserError, match="cannot read group.path"):
        groups_of(entries(["x"]), None, GroupSpec(path=str(tmp_path / "none.csv")))
    with pytest.raises(UserError, match="these examples are points"):
        groups_of(entries(["x"]), None, GroupSpec(near=1.0))


def people(count: int, each: int) -> tuple[list[str], list[int]]:
    """Persons with images of several classes, as findings on several X-rays."""
    names = [f"p{i:03d}/{j}" for i in range(count) for j in range(each)]
    return names, [(i + (j == each - 1)) % 2 for i in range(count) for j in range(each)]


PERSON = GroupSpec(pattern="^(p[0-9]+)")


def test_a_split_keeps_each_person_in_one_role() -> None:
    names, labels = people(60, 3)
    table = index(names, labels)
    spec = SplitSpec(train_per_class=30, crop=CropSpec(mode="corner"), group=PERSON)
    splits = split_examples(table, spec, groups_of(table.to_pylist(), None, PERSON))
    roles: dict[str, set[str]] = {}
    for row in splits.to_pylist():
        roles.setdefault(row["example_id"][:4], set()).add(row["role"])
        assert row["group"] == row["example_id"][:4] + "/0"
    assert all(len(found) == 1 for found in roles.values())
    sizes = {role: select(splits, role).num_rows for role in ("target", "reference", "shared", "public")}
    assert sizes["target"] == sizes["reference"] > 0
    assert sizes["public"] > 0
    assert len(set(groups_in(splits).tolist())) == 60


def test_persons_are_held_out_whole() -> None:
    names, labels = people(40, 3)
    table = index(names, labels)
    spec = HoldOutSpec(train_per_class=30, validation_per_class=6, held_out_per_class=6, group=PERSON)
    splits = hold_out(table, spec, groups_of(table.to_pylist(), None, PERSON))
    roles: dict[str, set[str]] = {}
    for row in splits.to_pylist():
        roles.setdefault(row["example_id"][:4], set()).add(row["role"])
    assert all(len(found) == 1 for found in roles.values())
    assert set.union(*roles.values()) >= {"train", "validation", "held_out"}


def test_a_default_group_is_left_out_of_the_spec() -> None:
    assert "group" not in SplitSpec(train_per_class=5).model_dump()
    assert "group" not in HoldOutSpec().model_dump(mode="json")
    dumped = HoldOutSpec(group=PERSON).model_dump(mode="json")
    assert HoldOutSpec.model_validate(dumped).group == PERSON


def test_the_pool_of_forgetting_is_drawn_by_persons_and_copies() -> None:
    names, labels = people(60, 3)
    images = RNG.integers(0, 256, size=(180, 20, 20, 1), dtype=np.uint8)
    images[3] = images[0]
    table = index(names, labels)
    specs = {
        "query": SetSpec(per_class=12), "known": SetSpec(per_class=12), "withheld": SetSpec(per_class=12),
        "calibration": SetSpec(per_class=10),
    }  # fmt: skip
    drawn = draw_sets(table, images, specs, seed=0, near=2.0, group=PERSON).to_pylist()
    roles: dict[str, set[str]] = {}
    for row in drawn:
        roles.setdefault(row["example_id"][:4], set()).add(row["role"])
    for found in roles.values():
        assert len(found & {QUERY, KNOWN, WITHHELD}) <= 1
        assert not (found & {QUERY, KNOWN, WITHHELD} and "calibration" in found)
    pool = {name: found & {QUERY, KNOWN, WITHHELD} for name, found in roles.items()}
    assert not (pool["p000"] and pool["p001"]) or pool["p000"] == pool["p001"]  # p001/0 is a copy of p000/0


def test_sides_of_the_pool_are_equally_likely() -> None:
    names, labels = [f"e{i:02d}" for i in range(24)], [0, 1] * 12
    images = RNG.integers(0, 256, size=(24, 20, 20, 1), dtype=np.uint8)
    specs = {"query": SetSpec(per_class=3), "withheld": SetSpec(per_class=6), "calibration": SetSpec()}
    counts = np.zeros(24)
    for seed in range(300):
        rows = draw_sets(index(names, labels), images, specs, seed=seed, near=None).to_pylist()
        counts += np.array([row["role"] == QUERY for row in rows])
    expected = 300 * 6 / 24
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(expected * 0.75)


def test_groups_across_sets_drawn_singly_by_the_owner_are_left_out() -> None:
    """A pair that lies whole in one set is less likely there than a single example."""
    names = [f"{part}/p{i}" for part in "qh" for i in range(8)] + [f"c/x{i}" for i in range(8)]
    labels = [0, 1] * 12
    images = RNG.integers(0, 256, size=(24, 20, 20, 1), dtype=np.uint8)
    specs = {"query": SetSpec(part="q"), "withheld": SetSpec(part="h"), "calibration": SetSpec(part="c")}
    group = GroupSpec(pattern="(p[01])$")
    rows = draw_sets(index(names, labels), images, specs, seed=0, near=None, group=group).to_pylist()
    gone = {row["example_id"] for row in rows if row["role"] == "left_out"}
    assert gone == {"q/p0", "q/p1", "h/p0", "h/p1"}


def test_innocent_pairs_drawn_singly_keep_the_level() -> None:
    """The owner draws sides 1:2, and pairs are easier than single examples; keeping whole pairs would accuse the model."""
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        pairs = np.repeat(np.arange(60), 2)
        groups = np.concatenate([pairs, 60 + np.arange(120)])
        query = rng.random(240) < 1 / 3
        alone = np.bincount(groups)[groups] == 1
        values = rng.normal(size=240) + 1.0 * ~alone
        design = Design.of(query[alone], np.zeros(int(alone.sum()), dtype=np.int64), groups[alone])
        null = design.redrawn_sums(values[alone], 199, seed=seed)
        rejected += two_sided_p(float(values[alone][query[alone]].sum()), null) <= 0.05
    assert rejected <= most_of(200, 0.05)


def test_a_class_with_too_few_examples_for_all_sets_is_refused() -> None:
    names, labels = [f"e{i:02d}" for i in range(30)], [0] * 12 + [1] * 12 + [2] * 6
    images = RNG.integers(0, 256, size=(30, 20, 20, 1), dtype=np.uint8)
    specs = {"calibration": SetSpec(per_class=2), "query": SetSpec(), "withheld": SetSpec(per_class=4)}
    with pytest.raises(UserError, match="needs 5 examples of class 'c2', but only 4 are left"):
        draw_sets(index(names, labels), images, specs, seed=0, near=None)


def make_splits(roles: list[str]) -> pa.Table:
    rows = [
        {"example_id": f"image-{n}", "row": n, "role": role, "label": 0, "class_name": "a"} for n, role in enumerate(roles)
    ]
    return pa.Table.from_pylist(rows, schema=SPLITS.arrow)


def test_near_copies_finds_similar_images_in_different_roles() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(8, 32, 32, 3), dtype=np.uint8)
    images[5] = np.clip(images[0].astype(int) + rng.integers(-3, 4, size=images[0].shape), 0, 255)  # a copy in the public set
    images[6] = images[1]  # in the same role
    images[7] = images[2]  # left out
    splits = make_splits(["target", "target", "target", "reference", "public", "public", "target", "left_out"])
    assert near_copies(splits, images) == [("image-5", "image-0")]  # once, whichever side is asked first
    images[4] = images[0]
    assert {frozenset(pair) for pair in near_copies(splits, images)} == {
        frozenset(("image-0", "image-4")), frozenset(("image-0", "image-5")),
    }  # fmt: skip


def test_near_copies_needs_two_roles_and_limits_the_pairs_it_reports() -> None:
    images = np.zeros((2000, 16, 16, 1), dtype=np.uint8)
    assert near_copies(make_splits(["train"] * 2000), images) == []
    assert near_copies(make_splits([]), images) == []
    found = near_copies(make_splits(["train", "validation"] * 1000), images)
    assert 0 < len(found) <= 1000


def test_identical_examples_form_one_group_whatever_their_labels() -> None:
    entries = [
        {"example_id": str(number), "digest": digest, "unreadable": None, "label": number}
        for number, digest in enumerate(["a", "b", "a", "", ""])
    ]
    groups = groups_of(entries, None, GroupSpec(identical=True))
    assert groups[0] == groups[2]
    assert len(set(groups.tolist())) == 4  # unreadable examples have no digest and stay by themselves


def test_groups_of_joins_copies_in_addition_to_a_pattern() -> None:
    entries = [
        {"example_id": name, "digest": digest, "unreadable": None, "label": 0}
        for name, digest in [("a/1", "x"), ("a/2", "y"), ("b/1", "y"), ("c/1", "z")]
    ]
    groups = groups_of(entries, None, GroupSpec(identical=True, pattern="^(.+)/")).tolist()
    assert groups == [0, 0, 0, 1]  # a by name, b by a copy of a's


def test_joins_copies_alone_is_false_with_a_pattern_or_file() -> None:
    assert GroupSpec(identical=True, near=2).joins_copies_alone
    assert not GroupSpec(identical=True, pattern="^p").joins_copies_alone
    assert not GroupSpec(path="groups.csv").joins_copies_alone
