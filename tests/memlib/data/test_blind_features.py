"""Features without the model: solved by hand, bounded in memory, blind to innocent draws, and telling for leaked ones."""

import datetime
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from memlib.data import blind_features as module
from memlib.data.blind_features import (
    BlindFeatures,
    blind_features,
    class_features,
    date_features,
    first_date,
    id_features,
    joined,
    owner_names,
    pixel_features,
    point_features,
    size_features,
    text_features,
)
from memlib.data.images.stored import ReadRows
from memlib.errors import UserError
from memlib.specs import DataSpec
from memlib.stats.blind import BlindBaseline, described_baseline, folds_by_group, tested_baseline
from memlib.stats.randomization import Design
from memlib.tables import INDEX
from tests.assignments import assert_exact, each_observed

COUNT = 120


def index_of(ids: list[str], **columns: Any) -> pa.Table:
    count = len(ids)
    plain = {
        "example_id": ids,
        "row": np.arange(count),
        "label": np.arange(count) % 3,
        "class_name": ["thing"] * count,
        "boxes": [[]] * count,
        "content": [[0, 0, 8, 8]] * count,
        "original_width": np.full(count, 64),
        "original_height": np.full(count, 48),
        "digest": [str(i) for i in range(count)],
        "unreadable": [None] * count,
    }
    return pa.table(plain | columns).cast(INDEX.arrow)


def column(features: BlindFeatures, name: str) -> list[float]:
    return [float(value) for value in features.values[:, features.names.index(name)]]


def shard(seed: int, leak: str | None = None) -> tuple[BlindFeatures, Design]:
    """The features of images with captions, whose members, drawn within class, differ by one leak or by none."""
    rng = np.random.default_rng(seed)
    labels, member = np.arange(COUNT) % 3, np.zeros(COUNT, dtype=bool)
    for label in range(3):
        member[rng.permutation(np.flatnonzero(labels == label))[:20]] = True
    number = rng.permutation(COUNT) + (1000 if leak == "ids" else 0) * member
    days = rng.integers(0, 2000, COUNT) + 2500 * (member if leak == "dates" else 0)
    dates = [datetime.date(2010, 1, 1) + datetime.timedelta(days=int(day)) for day in days]
    ids = [f"scan/{place:05d}_{date}.png" for place, date in zip(number, dates, strict=True)]
    widths = rng.integers(50, 90, COUNT) + 30 * (member if leak == "sizes" else 0)
    brighter = 12 * (member if leak == "pixels" else np.zeros(COUNT, dtype=int))
    images = rng.integers(0, 200, (COUNT, 8, 8, 3)) + brighter[:, None, None, None]
    year = [2023 if new and leak == "text" else 2019 for new in member]
    texts = [f"Report of {which} on {' '.join(rng.choice(list('abcdef'), 9))}." for which in year]
    index = index_of(ids, label=labels, original_width=widths)
    features = joined(
        [blind_features(index, images.astype(np.uint8), names=index["example_id"].to_pylist()), text_features(texts)]
    )
    return features, Design.of(member, labels)


def tested(features: BlindFeatures, design: Design, seed: int) -> BlindBaseline:
    folds = folds_by_group(design.group, 5, seed=seed)
    return tested_baseline(features.values, features.families, design, folds, redraws=59, seed=seed)


@pytest.mark.parametrize("leak", ["ids", "dates", "sizes", "pixels", "text"])
def test_a_leaked_benchmark_is_caught_and_its_family_named(leak: str) -> None:
    for seed in range(3):
        found = tested(*shard(seed, leak), seed)
        assert found.p_value is not None
        assert found.p_value <= 0.05
        assert found.by_family[leak] > 0.85
        assert found.by_family["classes"] < 0.6


@pytest.mark.parametrize("leak", ["ids", "sizes"])
def test_a_leak_is_described_without_a_test_if_membership_was_not_drawn(leak: str) -> None:
    features, design = shard(0, leak)
    found = described_baseline(
        features.of(leak), (leak,) * features.of(leak).shape[1], design.first, design.group, folds=3, seed=0
    )
    assert found.low > 0.8
    assert found.by_family == {leak: found.auc}


def test_features_are_tested_exactly_for_every_draw_of_the_members() -> None:
    """Four of eight scans; no feature depends on the draw."""
    rng, days = np.random.default_rng(0), [3, 900, 40, 77, 1500, 2, 650, 31]
    ids = [f"scan/{n:05d}_{datetime.date(2010, 1, 1) + datetime.timedelta(days=day)}.png" for n, day in enumerate(days)]
    features = blind_features(
        index_of(ids, original_width=rng.integers(50, 90, 8)), names=ids
    )  # of pixels and texts there are many
    design = Design.of(np.arange(8) < 4, np.zeros(8, dtype=int))
    p_values = []
    for one in each_observed(design):
        found = tested_baseline(features.values, features.families, one, np.arange(8) % 2, redraws=1, seed=0)
        assert found.p_value is not None
        p_values.append(found.p_value)
    assert_exact(p_values)


def test_more_rows_per_member_are_caught_by_the_sizes_of_persons() -> None:
    rng = np.random.default_rng(0)
    member = np.arange(60) < 30
    person = np.repeat(np.arange(60), np.where(member, 5, 3))
    by_person = id_features([f"{n:04d}" for n in rng.permutation(len(person))]).by_group(person)
    assert column(by_person, "units of the group") == [5.0] * 30 + [3.0] * 30
    found = tested(by_person, Design.of(member, np.zeros(60, dtype=int)), 0)
    assert found.p_value == pytest.approx(1 / 60)
    assert found.by_family["sizes"] == 1.0


def test_features_by_group_are_the_means_of_their_units_in_the_order_of_group_numbers() -> None:
    features = class_features(np.array([0, 1, 1, 0]))
    means = features.by_group(np.array([9, 4, 9, 9])).values
    assert means == pytest.approx(np.array([[0, 1, 1], [2 / 3, 1 / 3, 3]]))


def test_blind_features_are_finite_and_named_even_where_values_are_missing() -> None:
    index = index_of(["a", "b", "é"], original_width=[None, 10, 30], digest=["x", "x", "y"], boxes=[None, [0, 0, 2, 3], []])
    features = blind_features(index, names=index["example_id"].to_pylist())
    assert np.isfinite(features.values).all()
    assert len(set(zip(features.families, features.names, strict=True))) == len(features.names)
    assert list(dict.fromkeys(features.families)) == ["ids", "dates", "sizes", "classes"]
    sizes = size_features(index)
    assert column(sizes, "width") == [20.0, 10.0, 30.0]
    assert column(sizes, "copies") == [2.0, 2.0, 1.0]
    assert column(sizes, "area of the first box") == [0.0, 6.0, 0.0]
    assert column(sizes, "boxes") == [0.0, 1.0, 0.0]


def test_features_of_ids_include_their_numbers_length_and_alphabetical_place() -> None:
    features = id_features(["b/7", "b/12/3", "a", f"c/{10**30 + 7}"])
    assert column(features, "length") == [3.0, 6.0, 1.0, 33.0]
    assert column(features, "runs of digits") == [1.0, 2.0, 0.0, 1.0]
    assert column(features, "alphabetical place") == [0.75, 0.5, 0.25, 1.0]
    assert column(features, "number 1") == [0.625, 1.0, 0.25, 0.625]  # the last 18 digits of the long one are 7
    assert column(features, "last digit") == [7.0, 3.0, 9.0, 7.0]


def test_pairs_of_characters_are_hashed_without_their_digits() -> None:
    some, other = id_features(["ab1", "ab2", "ba1"]), id_features(["ab3", "ab4", "ba9"])
    pairs = [name.startswith("pairs") for name in some.names]
    assert (some.values[:, pairs] == other.values[:, pairs]).all()
    place = zlib.crc32(b"ab") % module.BIGRAMS
    assert column(some, f"pairs of characters {place}")[0] >= 0.5


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("IMG_20210305_1230.jpg", (2021, 3, 5)),
        ("2021-03-05/x", (2021, 3, 5)),
        ("a 5.3.2021 b", (2021, 3, 5)),
        ("report_2019_11.txt", (2019, 11, 1)),
        ("2021-13-05", (2021, 1, 1)),
        ("year 1987", (1987, 1, 1)),
        ("x12021030512", None),
        ("no date", None),
    ],
)
def test_dates_are_recognized(text: str, date: tuple[int, int, int] | None) -> None:
    assert first_date(text) == (None if date is None else datetime.date(*date))


def test_a_missing_date_has_the_mean_day() -> None:
    features = date_features(["2021-01-01", "2021-01-03", "none"])
    days = column(features, "day")
    assert days[2] == days[0] + 1 == days[1] - 1
    assert column(features, "has a date") == [1.0, 1.0, 0.0]


class Counted(ReadRows):
    """Images of which the largest number that is read at once is noted."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        self._images, self.most = images, 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self._images.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._images.dtype

    def read(self, rows: NDArray[np.int64], found: NDArray[Any]) -> None:
        self.most = max(self.most, len(rows))
        found[:] = self._images[rows]


@pytest.mark.parametrize("shape", [(13, 17, 3), (4, 5, 1), (12, 12, 1)])
def test_features_of_pixels_equal_a_plain_loop_and_are_computed_in_blocks(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images, rows = rng.integers(0, 256, (40, *shape)).astype(np.uint8), rng.permutation(40)[:30]
    monkeypatch.setattr(module, "BLOCK_BYTES", 7 * int(np.prod(shape)))
    counted = Counted(images)
    features = pixel_features(counted, rows)  # type: ignore[arg-type]
    assert counted.most == 7
    edges = [[side * place // 6 for place in range(6)] for side in shape[:2]]
    for unit, row in enumerate(rows[:5]):
        grey = images[row].astype(float).mean(axis=2)
        cells = []
        for i, top in enumerate(edges[0]):
            for j, left in enumerate(edges[1]):
                bottom, right = ([*edges[0], shape[0]][i + 1], [*edges[1], shape[1]][j + 1])
                cells.append(grey[top : max(bottom, top + 1), left : max(right, left + 1)].mean())
        channels = images[row].reshape(-1, shape[2]).astype(float)
        expected = [*cells, *channels.mean(axis=0), *channels.std(axis=0)]
        assert features.values[unit] == pytest.approx(np.array(expected), rel=1e-4)


def test_points_are_capped_and_missing_coordinates_filled() -> None:
    points = np.arange(300, dtype=np.float32).reshape(3, 100)
    points[1, 2] = np.nan
    features = point_features(points, np.array([2, 1]))
    assert features.values.shape == (2, 64)
    assert features.values[0, :3].tolist() == [200.0, 201.0, 202.0]
    assert features.values[1, :3].tolist() == [100.0, 101.0, 202.0]


def test_features_of_texts_equal_statistics_computed_by_hand() -> None:
    text = "In 2021, IN 2019!\n"
    features = text_features([text, "", "plain words"])
    expected = {
        "characters": 18.0,
        "mean word length": 3.0,
        "share of digits": 8 / 18,
        "share of upper case": 3 / 18,
        "share of punctuation": 2 / 18,
        "share of white space": 4 / 18,
        "share beyond ASCII": 0.0,
        "lines per character": 1 / 18,
        "share of distinct words": 3 / 4,
        "compressed size": len(zlib.compress(text.encode())) / 18,
        "years mentioned": 2.0,
        "latest year": 2021.0,
        "mean year": 2020.0,
    }
    assert {name: column(features, name)[0] for name in expected} == pytest.approx(expected)
    assert column(features, "latest year") == [2021.0] * 3
    assert np.isfinite(features.values).all()


def test_families_of_features_with_unequal_numbers_of_units_are_refused() -> None:
    with pytest.raises(UserError, match="of 2 and of 3 units"):
        joined([text_features(["a", "b"]), id_features(["1", "2", "3"])])


CLASS = "ab"
PATHS = [f"{side}/{name}/{number:03d}.png" for number in range(4) for side, name in zip(("train", "val"), CLASS, strict=True)]


@pytest.mark.parametrize(
    ("source", "ids", "expected"),
    [
        ({"kind": "table", "path": "a.csv", "label_column": "y"}, ["0000000", "0000001"], None),
        ({"kind": "table", "path": "a.csv", "label_column": "y", "id_column": "id"}, ["x1", "x2"], ["x1", "x2"]),
        ({"kind": "table", "path": "a.csv", "label_column": "y", "person_column": "p"}, ["ann/0000001"], ["ann"]),
        (
            {"kind": "table", "files": {"a": "a.csv", "b": "b.csv"}, "label_column": "y", "id_column": "id"},
            ["a/x1", "b/x2"],
            ["x1", "x2"],
        ),
        ({"kind": "npz", "path": "a.npz"}, ["train_images-0000001"], None),
        ({"kind": "digits"}, ["digit-0001"], None),
        ({"kind": "image_folder", "path": "a"}, PATHS, [path.split("/")[1] for path in PATHS]),  # numbered in each part
        ({"kind": "image_folder", "path": "a"}, ["train/a/000.png", "val/b/007.png"], ["a/000.png", "b/007.png"]),
        ({"kind": "image_folder", "path": "a"}, ["a/000.png", "a/001.png"], ["a/000.png", "a/001.png"]),
        ({"kind": "image_folder", "path": "a"}, ["ward_3/a/x.png"], ["ward_3/a/x.png"]),
        (
            {"kind": "joined", "parts": {"in": {"source": {"kind": "image_folder", "path": "a"}}}},
            ["in/cat/1.png"],
            ["cat/1.png"],
        ),
    ],
)
def test_ids_made_from_positions_tell_nothing_about_members(
    source: dict[str, Any], ids: list[str], expected: list[str] | None
) -> None:
    spec = DataSpec.model_validate({"source": source}).source
    assert owner_names(spec, ids) == expected
    families = set(blind_features(index_of(ids), names=owner_names(spec, ids)).families)
    assert ("ids" in families) is (expected is not None)
