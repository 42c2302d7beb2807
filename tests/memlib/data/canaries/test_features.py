"""Features have the form and place that the spec defines; canary and clean twin differ in nothing else."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from memlib.data.canaries.features import build_feature, choose_canaries, null_features, null_kind, probe_rows, training_rows
from memlib.data.images.glyphs import GLYPHS, draw_text
from memlib.data.text.names import other_names
from memlib.errors import UserError
from memlib.specs import CanarySpec, GlyphFeature, PictureFeature, ScalarFeature

GREY = (28, 28, 1)


def glyph(**changes: Any) -> GlyphFeature:
    return GlyphFeature(kind="glyph", **changes)


def members(labels: list[int]) -> pa.Table:
    count = len(labels)
    return pa.table({"example_id": [f"e{i}" for i in range(count)], "row": list(range(count)), "label": labels})


def test_glyph_feature_draws_the_letter_a_of_the_paper() -> None:
    feature = build_feature(glyph(text="A", top=1, left=1), GREY)
    expected = np.array([[int(dot) for dot in row] for row in ("00100", "01010", "11111", "10001", "10001")]) * 255
    assert feature.mask.sum() == 25  # all 25 pixels are overwritten
    assert feature.box == (1, 1, 6, 6)
    np.testing.assert_array_equal(feature.insert(np.full((1, *GREY), 99, np.uint8))[0, 1:6, 1:6, 0], expected)


def test_glyphs_are_distinct_and_texts_scale_with_them() -> None:
    assert len({dots.tobytes() for dots in GLYPHS.values()}) == 36
    assert draw_text("JOHN").shape == (5, 23)
    assert draw_text("A", scale=3).shape == (15, 15)


def test_a_feature_changes_only_the_pixels_of_its_mask() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, *GREY), dtype=np.uint8)
    before = images.copy()
    feature = build_feature(glyph(text="JOHN", top=3, left=2), GREY)
    for changed in (feature.insert(images), feature.insert_random(images, seed=1)):
        np.testing.assert_array_equal(changed[:, ~feature.mask], images[:, ~feature.mask])
        assert changed.dtype == np.uint8
    np.testing.assert_array_equal(images, before)
    assert feature.clean(images) is images


def test_a_cover_hides_the_same_place_everywhere() -> None:
    images = np.full((3, *GREY), 200, np.uint8)
    feature = build_feature(glyph(text="JOHN", cover=True), GREY)
    clean = feature.clean(images)
    assert (clean[:, feature.mask] == 0).all()
    assert (clean[:, ~feature.mask] == 200).all()
    assert (feature.insert(clean)[:, feature.mask] == 255).any()


def test_random_partners_are_fresh_for_every_image_and_seeded() -> None:
    images = np.zeros((3, *GREY), np.uint8)
    feature = build_feature(glyph(), GREY)
    a, b = feature.insert_random(images, seed=1), feature.insert_random(images, seed=1)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a[0], a[1])
    assert not np.array_equal(a, feature.insert_random(images, seed=2))


def test_pixels_removed_from_the_feature_stay_unchanged_in_the_image() -> None:
    images = np.full((1, *GREY), 7, np.uint8)
    feature = build_feature(glyph(), GREY)
    assert feature.without(0, seed=0).mask.sum() == 25
    part = feature.without(10, seed=0)
    assert part.mask.sum() == 15
    assert (part.insert(images)[0, feature.mask & ~part.mask] == 7).all()
    assert not (feature.without(11, seed=0).mask & ~part.mask).any()  # one pixel after the other


@pytest.mark.parametrize(
    ("spec", "shape", "said"),
    [
        (glyph(text="JOHN", left=8), GREY, "does not fit into an image of 28 x 28"),
        (glyph(scale=6), GREY, "30 x 30"),
        (glyph(text="é"), GREY, "has no 'é'"),
        (glyph(), (3,), "use scalar"),
        (ScalarFeature(kind="scalar"), GREY, "use glyph"),
        (ScalarFeature(kind="scalar", index=3), (3,), "coordinate 3"),
        (PictureFeature(kind="picture", path="/nowhere.png"), GREY, "cannot read"),
        (glyph(font="/nowhere.ttf"), GREY, "cannot read the font"),
    ],
)
def test_features_that_do_not_fit_the_examples_are_refused(spec: Any, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_feature(spec, shape)


def test_picture_feature_respects_transparency_and_refuses_an_empty_mask(tmp_path: Path) -> None:
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[:2, :, 0], rgba[:2, :, 3] = 250, 255
    Image.fromarray(rgba).save(tmp_path / "mark.png")
    feature = build_feature(PictureFeature(kind="picture", path=str(tmp_path / "mark.png"), top=5, left=7), (28, 28, 3))
    assert feature.box == (7, 5, 13, 7)
    shown = feature.insert(np.full((1, 28, 28, 3), 9, np.uint8))[0]
    assert shown[5, 7].tolist() == [250, 0, 0]
    assert shown[7, 7].tolist() == [9, 9, 9]
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "mask.png")
    with pytest.raises(UserError, match="mask is empty"):
        build_feature(PictureFeature(kind="picture", path=str(tmp_path / "mark.png"), mask=str(tmp_path / "mask.png")), GREY)


@given(text=st.text(alphabet="AJN07", min_size=1, max_size=3), seed=st.integers(0, 5))
def test_null_features_are_other_texts_of_the_same_form(text: str, seed: int) -> None:
    spec = glyph(text=text, nulls="letters")
    nulls = null_features(spec, GREY, 40, seed=seed)
    possible = int(np.prod([26 if c.isalpha() else 10 for c in text])) - 1
    assert len(nulls) == min(40, possible)
    assert text not in nulls
    for name, feature in nulls.items():
        assert [c.isalpha() for c in name] == [c.isalpha() for c in text]
        assert feature.box == build_feature(spec, GREY).box


def test_null_features_keep_upper_and_lower_case() -> None:
    font = str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf")
    names = null_features(glyph(text="Jo", font=font, scale=1, nulls="letters"), GREY, 20, seed=0)
    assert all(name[0].isupper() and name[1].islower() for name in names)


@pytest.mark.parametrize(
    ("text", "nulls", "said"),
    [
        (" ", "letters", "no letter or digit"),
        ("é", "letters", "with 'é'"),
        ("- -", "names", "no word"),
        ("Qwertzuiopasdfgh", "names", "no other name with as many letters"),
        ("JOHN", "/nowhere.txt", "cannot read canary.feature.nulls /nowhere.txt"),
    ],
)
def test_null_features_are_refused_for_texts_without_comparable_ones(text: str, nulls: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        null_features(glyph(text=text, nulls=nulls), GREY, 5, seed=0)


@pytest.mark.parametrize(
    ("text", "nulls", "kind"),
    [
        ("JOHN", None, "names"),
        ("A", None, "letters"),
        ("A7", None, "letters"),
        ("JOHN", "letters", "letters"),
        ("A7", "texts.txt", "list"),
    ],
)
def test_null_kind_takes_a_word_of_letters_for_a_name(text: str, nulls: str | None, kind: str) -> None:
    assert null_kind(glyph(text=text, nulls=nulls)) == kind


def test_a_name_is_compared_with_other_names_of_its_form() -> None:
    names = other_names("JOHN", 99, seed=0)
    assert len(set(names)) == 99
    assert "JOHN" not in names
    assert all(len(name) == 4 and name.isascii() and name.isupper() for name in names)
    assert {"MARY", "PAUL"} <= set(names)
    assert names == other_names("JOHN", 99, seed=0) != other_names("JOHN", 99, seed=1)
    for name in other_names("Smith^Mary", 99, seed=0):
        last, first = name.split("^")
        assert (len(last), len(first)) == (5, 4)
        assert last.istitle()
        assert first.istitle()
    box = build_feature(glyph(text="JOHN"), GREY).box
    assert {feature.box for feature in null_features(glyph(text="JOHN"), GREY, 99, seed=0).values()} == {box}


def test_null_features_come_from_a_given_list_without_the_canary_text(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("JOHN\nANNA\n\nPAUL\nANNA\n")
    assert set(null_features(glyph(text="JOHN", nulls=str(tmp_path / "texts.txt")), GREY, 9, seed=0)) == {"ANNA", "PAUL"}
    (tmp_path / "texts.txt").write_text("JOHN\n")
    with pytest.raises(UserError, match="no line besides 'JOHN'"):
        null_features(glyph(text="JOHN", nulls=str(tmp_path / "texts.txt")), GREY, 9, seed=0)


def test_nulls_field_is_omitted_from_the_spec_if_unset() -> None:
    assert "nulls" not in glyph().model_dump(mode="json")


def test_null_features_are_the_pictures_of_a_folder_that_differ_from_the_feature(tmp_path: Path) -> None:
    own = PictureFeature(kind="picture", path=str(tmp_path / "own.png"), nulls=str(tmp_path / "others"))
    (tmp_path / "others").mkdir()
    for name, value in (("own.png", 9), ("others/a.png", 9), ("others/b.png", 50), ("others/c.png", 50)):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / name)
    assert len(null_features(own, GREY, 5, seed=0)) == 1
    for name in ("b.png", "c.png"):
        (tmp_path / "others" / name).unlink()
    with pytest.raises(UserError, match="that differs from the feature's picture"):
        null_features(own, GREY, 5, seed=0)


def test_null_features_are_refused_for_a_scalar_feature() -> None:
    with pytest.raises(UserError, match="no null features for a scalar"):
        null_features(ScalarFeature(kind="scalar"), (3,), 5, seed=0)


def spec(**changes: Any) -> CanarySpec:
    return CanarySpec.model_validate({"feature": {"kind": "glyph"}} | changes)


def test_choose_canaries_follows_label_count_choice_and_seed() -> None:
    table = members([0, 0, 1, 1, 1, 2])
    influence = {f"e{i}": float(i) for i in range(6)}
    assert set(choose_canaries(table, spec(label=1, count=3))["row"].to_pylist()) == {2, 3, 4}
    assert choose_canaries(table, spec(choice="by_id", example_ids=("e5", "e0")))["row"].to_pylist() == [5, 0]
    assert choose_canaries(table, spec(choice="top_self_influence", count=2), influence)["row"].to_pylist() == [5, 4]
    assert choose_canaries(table, spec(choice="bottom_self_influence", count=2), influence)["row"].to_pylist() == [1, 0]
    assert choose_canaries(table, spec(choice="extreme_self_influence", count=3), influence)["row"].to_pylist() == [5, 4, 0]
    again = choose_canaries(table, spec(count=4, seed=3))
    assert again.equals(choose_canaries(table, spec(count=4, seed=3)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": 7}, "no training example has that class"),
        ({"count": 9}, "only 6 training examples qualify"),
        ({"choice": "by_id", "example_ids": ("e9",)}, "names 'e9'"),
    ],
)
def test_choose_canaries_refuses_missing_classes_counts_and_ids(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        choose_canaries(members([0, 0, 1, 1, 1, 2]), spec(**changes))


@given(repeats=st.integers(1, 4), mode=st.sampled_from(["replace", "append"]))
def test_the_control_sees_the_clean_twin_in_the_same_places(repeats: int, mode: str) -> None:
    rows = np.array([4, 7, 9])
    with_feature = training_rows(rows, 7, spec(repeats=repeats, mode=mode), with_feature=True)
    control = training_rows(rows, 7, spec(repeats=repeats, mode=mode), with_feature=False)
    np.testing.assert_array_equal(with_feature.rows, control.rows)
    assert with_feature.marked.sum() == repeats
    assert not control.marked.any()
    assert (with_feature.rows[with_feature.marked] == 7).all()
    assert len(with_feature.rows) == 3 + repeats - (mode == "replace")


def test_probe_rows_exclude_canaries_and_other_classes() -> None:
    chosen = probe_rows(members([0] * 10 + [1] * 3), 0, without=[2, 5], max_examples=6, seed=0)
    assert len(chosen) == 6
    assert not set(chosen) & {2, 5, 10, 11, 12}
    with pytest.raises(UserError, match="class 1 has 1 training examples besides"):
        probe_rows(members([0, 1, 1]), 1, without=[2], max_examples=6, seed=0)
