from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.data.splits import members_digest, select, small_classes, split_examples
from memlib.errors import UserError
from memlib.specs import CropSpec, SplitSpec
from memlib.tables import INDEX


def make_index(per_class: int = 20, classes: int = 3, with_box: float = 1.0, **changes: Any) -> pa.Table:
    rows = []
    for label in range(classes):
        for i in range(per_class):
            row: dict[str, Any] = {
                "example_id": f"{label}/{i:03d}",
                "row": len(rows),
                "label": label,
                "class_name": f"class {label}",
                "boxes": [0, 0, 16, 16] if i < with_box * per_class else [],
                "content": [0, 0, 32, 32],
                "original_width": 32,
                "original_height": 32,
                "digest": f"{label}-{i}",
                "unreadable": None,
            }
            rows.append(row | changes.get(row["example_id"], {}))
    return pa.Table.from_pylist(rows, schema=INDEX.arrow)


@given(
    per_class=st.integers(6, 30),
    classes=st.integers(1, 4),
    train=st.integers(1, 8),
    seed=st.integers(0, 5),
    with_box=st.floats(0.3, 1),
)
@settings(max_examples=60, deadline=None)
def test_split_roles_are_disjoint_and_balanced_and_audited_images_have_a_crop(
    per_class: int, classes: int, train: int, seed: int, with_box: float
) -> None:
    index = make_index(per_class, classes, with_box)
    try:
        splits = split_examples(index, SplitSpec(train_per_class=train, seed=seed))
    except UserError:
        return  # too few images: said so
    ids = splits["example_id"].to_pylist()
    assert ids == index["example_id"].to_pylist()
    by_role = {role: set(select(splits, role)["example_id"].to_pylist()) for role in set(splits["role"].to_pylist())}
    assert sum(len(members) for members in by_role.values()) == len(ids)
    for label in range(classes):
        counts = {role: len([m for m in members if m.startswith(f"{label}/")]) for role, members in by_role.items()}
        assert counts.get("target", 0) + counts.get("shared", 0) == train
        assert counts.get("target") == counts.get("reference")
        assert counts.get("public", 0) >= 1
    for row in select(splits, "target", "reference").to_pylist():
        assert row["crop_x0"] is not None
    assert all((row["reason"] is not None) == (row["role"] == "left_out") for row in splits.to_pylist())


def test_a_split_is_a_function_of_seed_and_ids() -> None:
    index, spec = make_index(), SplitSpec(train_per_class=5, seed=3)
    first, again = split_examples(index, spec), split_examples(index, spec)
    assert first.equals(again)
    assert not first.equals(split_examples(index, SplitSpec(train_per_class=5, seed=4)))
    assert members_digest(select(first, "target")) != members_digest(select(first, "reference"))


def test_shared_images_fill_up_both_sides_when_boxes_are_few() -> None:
    splits = split_examples(make_index(with_box=0.3), SplitSpec(train_per_class=5))  # 6 with a box
    counts = [select(splits, role).num_rows for role in ("target", "reference", "shared", "public")]
    assert counts == [9, 9, 6, 36]


def test_copies_and_unreadable_images_are_left_out_with_the_reason() -> None:
    changes = {"0/001": {"digest": "0-0"}, "0/002": {"unreadable": "truncated"}}
    splits = split_examples(make_index(**changes), SplitSpec(train_per_class=5)).to_pylist()
    assert splits[1]["reason"] == "duplicate of 0/000"
    assert splits[2]["reason"] == "unreadable: truncated"
    kept = split_examples(make_index(**changes), SplitSpec(train_per_class=5, drop_duplicates=False)).to_pylist()
    assert kept[1]["reason"] is None


@pytest.mark.parametrize(
    ("index", "spec", "message"),
    [
        (make_index(), SplitSpec(train_per_class=12), r"class 'class 0' has 20 usable images .* needs"),
        (make_index(with_box=0), SplitSpec(train_per_class=2), "none of the 60 images has a maximal crop"),
        (make_index(), SplitSpec(train_per_class=2, crop=CropSpec(min_side=0.9)), "lower split.crop.min_side"),
        (make_index(), SplitSpec(train_per_class=5, public_per_class=15), "and 15 public images"),
        (
            make_index(**{f"1/{i:03d}": {"boxes": []} for i in range(20)}),
            SplitSpec(train_per_class=2),
            "class 'class 1' has 0 images with a large enough background crop",
        ),
        (
            make_index(**{f"2/{i:03d}": {"unreadable": "cut"} for i in range(20)}),
            SplitSpec(train_per_class=2),
            "class 'class 2' has no usable image",
        ),
    ],
)
def test_split_examples_refuses_too_few_usable_images_or_crops(index: pa.Table, spec: SplitSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_examples(index, spec)


def test_small_classes_are_refused_left_out_or_given_fewer_images_as_requested() -> None:
    index = make_index(20, 5).filter(
        pa.array([not (label in (1, 3) and place % 20 >= 8 + label) for label in range(5) for place in range(20)])
    )  # class 1 has 9 images, class 3 has 11
    spec = SplitSpec(train_per_class=3, public_per_class=8)
    assert small_classes(index, spec) == ["class 1 (9)", "class 3 (11)"]
    with pytest.raises(UserError, match=r"class 'class 1' has 9 .*; class 'class 3' has 11 .*; or set split.small_classes"):
        split_examples(index, spec)
    left = split_examples(index, spec.model_copy(update={"small_classes": "leave_out"}))
    assert left.num_rows == index.num_rows
    for row in left.to_pylist():
        small = row["label"] in (1, 3)
        assert (row["reason"] == "of a class that is too small") is small
        assert not small or row["role"] == "left_out"
    kept = split_examples(index.filter(pa.array([label not in (1, 3) for label in index["label"].to_pylist()])), spec)
    others = left.filter(pa.array([label not in (1, 3) for label in left["label"].to_pylist()]))
    assert others["role"].to_pylist() == kept["role"].to_pylist()
    less = split_examples(index, spec.model_copy(update={"small_classes": "less"}))
    public = Counter(select(less, "public")["label"].to_pylist())
    assert public == {0: 8, 1: 3, 2: 8, 3: 5, 4: 8}
    assert Counter(select(less, "target")["label"].to_pylist()) == dict.fromkeys(range(5), 3)
    none = SplitSpec(train_per_class=30, small_classes="leave_out")
    with pytest.raises(UserError, match="and 2 more|2 more classes are too small"):
        split_examples(index, none)
    with pytest.raises(UserError, match="class 'class 1' has 9"):
        split_examples(index, SplitSpec(train_per_class=7, small_classes="less"))
