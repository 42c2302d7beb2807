"""Features of examples without the model, by which members may be told from non-members: ids, sizes, dates, pixels, texts.

A benchmark of membership leaks if its members differ from its non-members in such features (Das, Zhang and Tramèr 2024,
Blind baselines beat membership inference attacks). None of them uses a side, a split or a model.
"""

import datetime
import functools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.data.images.stored import are_images
from memlib.errors import UserError
from memlib.specs.base import Source
from memlib.specs.data import JoinedSource, TableSource

IDS, SIZES, DATES, CLASSES, PIXELS, POINTS, TEXT = "ids", "sizes", "dates", "classes", "pixels", "points", "text"
SETS = frozenset(
    {"train", "training", "val", "valid", "validation", "test", "testing", "eval", "members", "nonmembers", "non_members",
     "non-members", "in", "out", "holdout", "held_out", "held-out"}
)  # fmt: skip
"""Names of folders that hold a side, in lower case."""
NUMBERS = 3  # runs of digits of an id, from its start, that are features; the last run is one, too
GAPS = 0.1  # share of numbers of files that may be left out
DIGITS = 18  # of a run that are read, from its end, so that a number fits an integer
BIGRAMS, WORDS = 16, 32  # columns to which pairs of characters of ids, and words of texts, are hashed
MOST_CLASSES = 64  # most frequent classes with a column of their own
MOST_COORDINATES = 64  # of points
SIDE = 6  # cells of a thumbnail along a side
BLOCK_BYTES = 2**24  # of pixels that are read at a time
BEGINNING = 100_000  # characters of a text that are read
TYPED = 200  # words of a text whose types are counted, so that long texts do not seem repetitive

_NUMBER = re.compile(r"[0-9]+")
_DATES = (
    re.compile(r"(?<!\d)(?P<y>(?:19|20)\d\d)(?P<s>[-_/.]?)(?P<m>\d\d)(?P=s)(?P<d>\d\d)(?!\d)"),
    re.compile(r"(?<!\d)(?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>(?:19|20)\d\d)(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>(?:19|20)\d\d)[-_/.](?P<m>\d\d)(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>(?:19|20)\d\d)(?!\d)"),
)
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class BlindFeatures:
    """Features of units, by family."""

    values: NDArray[np.float64]  #: (num_units, num_features) float64, finite.
    names: tuple[str, ...]  #: name of each feature.
    families: tuple[str, ...]  #: family of each feature: ids, sizes, dates, classes, pixels, points or text.

    def __post_init__(self) -> None:
        assert self.values.ndim == 2
        assert self.values.shape[1] == len(self.names) == len(self.families)

    def of(self, family: str) -> NDArray[np.float64]:
        """Return the features of one family, (num_units, num_features of the family)."""
        return self.values[:, [name == family for name in self.families]]

    def by_group(self, groups: NDArray[np.int64]) -> "BlindFeatures":
        """Return the mean features of each group, in ascending order of the groups' numbers, and the size of the group.

        Args:
            groups: (num_units,) int, such as the person of each unit.
        """
        _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        units = np.arange(len(number))
        membership = scipy.sparse.csr_array((np.ones(len(units)), (number, units)), shape=(len(sizes), len(units)))
        means = np.asarray(membership @ self.values) / sizes[:, None]
        return joined([replace(self, values=means), _of(SIZES, {"units of the group": sizes})])


Naming = Literal["memlib's", "persons", "in parts", "owner's"]


def naming_of(source: Source) -> Naming:
    """Return which part of an id is its owner's: none, the folder of a person, what follows the part, or all of it."""
    if isinstance(source, JoinedSource):
        return "in parts" if all(part.source.states_ids for part in source.parts.values()) else "memlib's"
    if not source.states_ids:
        return "persons" if source.persons else "memlib's"
    return "in parts" if isinstance(source, TableSource) and source.files else "owner's"


def owner_names(source: Source, ids: Sequence[str]) -> list[str] | None:
    """Return what the owner of the data calls examples; None where memlib made the ids from their positions.

    Positions, names of parts, and folders called train, test and the like tell members from non-members by themselves, and
    say nothing of how members were drawn.

    Example:
        >>> from memlib.specs import ImageFolderSource, TableSource
        >>> owner_names(ImageFolderSource(kind="image_folder", path="photos"), ["train/cat/a1.png", "val/dog/b2.png"])
        ['cat/a1.png', 'dog/b2.png']
        >>> owner_names(TableSource(kind="table", path="a.csv", label_column="y"), ["0000000", "0000001"]) is None
        True
    """
    naming = naming_of(source)
    if naming == "memlib's":
        return None
    if naming == "persons":
        return [name.rpartition("/")[0] for name in ids]
    if naming == "in parts":
        return [name.partition("/")[2] for name in ids]
    names = ["/".join(part for part in name.split("/") if part.lower() not in SETS) for name in ids]
    return [name.rpartition("/")[0] for name in names] if _only_number(ids) else names


def _only_number(ids: Sequence[str]) -> bool:
    """Return whether the last part of ids does no more than number the examples of each folder, beside the name of a side.

    Such names were given after the sides were made, by whoever made the folders.

    Example:
        >>> _only_number(["train/cat/train1.png", "train/cat/train2.png", "val/cat/val1.png", "val/cat/val2.png"])
        True
        >>> _only_number(["train/cat/2019_1.png", "val/cat/2021_1.png"])
        False
    """
    folders: dict[str, list[str]] = {}
    for name in ids:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, []).append(last.partition(".")[0])
    if any(folder.partition("/")[0].lower() not in SETS for folder in folders):
        return False  # the sides are not folders
    stems = {_without_sides(_NUMBER.sub("", stem)) for found in folders.values() for stem in found}
    return len(stems) == 1 and all(_counts_from_start(found) for found in folders.values())


def _without_sides(stem: str) -> str:
    return "".join(word for word in re.split(r"[^A-Za-z]+", stem) if word.lower() not in SETS)


def _counts_from_start(stems: Sequence[str]) -> bool:
    """Return whether names have one number each, which together count from 0 or 1 on, but for some that were left out."""
    runs = [_NUMBER.findall(stem) for stem in stems]
    if any(len(run) != 1 for run in runs):
        return False
    numbers = {int(run[0][-DIGITS:]) for run in runs}
    return len(numbers) == len(runs) and max(numbers) <= (1 + GAPS) * len(runs) + 1


def blind_features(index: pa.Table, examples: NDArray[Any] | None = None, *, names: Sequence[str] | None) -> BlindFeatures:
    """Compute all features of the examples of a shard that are known without a model.

    Memory is bounded by the features and a block of examples of 16 MiB.

    Args:
        index: rows of tables.INDEX; its row column is the place among the examples.
        examples: (num_stored, height, width, channels) uint8 images, or (num_stored, dim) points, read in blocks; None if
            there are none.
        names: what the owner calls the examples, see `owner_names`; None if only memlib has names for them.

    Returns:
        the features, in the order of the index.
    """
    parts = [] if names is None else [id_features(names), date_features(names)]
    parts += [size_features(index), class_features(index["label"].to_numpy())]
    if examples is not None and are_images(examples):
        parts.append(pixel_features(examples, index["row"].to_numpy()))
    elif examples is not None:
        parts.append(point_features(examples, index["row"].to_numpy()))
    return joined(parts)


def joined(parts: Sequence[BlindFeatures]) -> BlindFeatures:
    """Join features of the same units, column by column.

    Raises:
        UserError: for parts of different numbers of units.
    """
    counts = [len(part.values) for part in parts]
    if len(set(counts)) > 1:
        raise UserError(f"features of {min(counts)} and of {max(counts)} units cannot be joined; give each unit one text")
    names = tuple(name for part in parts for name in part.names)
    families = tuple(name for part in parts for name in part.families)
    return BlindFeatures(np.concatenate([part.values for part in parts], axis=1), names, families)


def id_features(ids: Sequence[str]) -> BlindFeatures:
    """Compute features of ids: length, runs of digits as numbers, place in alphabetical order, and pairs of characters.

    Numbers enter by their rank, as their scale is arbitrary, and by their last digit.
    """
    runs = [_NUMBER.findall(name) for name in ids]
    columns: dict[str, NDArray[np.float64]] = {
        "length": np.array([len(name) for name in ids], dtype=np.float64),
        "digits": np.array([sum(map(len, found)) for found in runs], dtype=np.float64),
        "runs of digits": np.array([len(found) for found in runs], dtype=np.float64),
        "alphabetical place": _ranks(np.unique(np.array(ids, dtype=object), return_inverse=True)[1].astype(np.float64)),
    }
    for name, place in [*((f"number {place + 1}", place) for place in range(NUMBERS)), ("last number", -1)]:
        columns[name] = _ranks(np.array([_number(found, place) for found in runs], dtype=np.float64))
    last = np.array([_number(found, -1) for found in runs], dtype=np.int64)
    columns["last digit"] = (last % 10).astype(np.float64)
    columns["is odd"] = (last % 2).astype(np.float64)
    pairs = _hashed(([name[i : i + 2] for i in range(len(name) - 1)] for name in map(_no_digits, ids)), BIGRAMS)
    return joined([_of(IDS, columns), _of_table(IDS, "pairs of characters", pairs)])


def date_features(texts: Sequence[str]) -> BlindFeatures:
    """Compute features of the first date that is recognized in each text, such as 2021-03-05, 20210305, 5.3.2021 or 2021.

    The day is counted from the year 1; texts without a date get the mean day of those with one, and 0 as "has a date".

    Args:
        texts: ids or names.
    """
    found = [first_date(text) for text in texts]
    known = np.array([date is not None for date in found])
    columns = {
        "has a date": known.astype(np.float64),
        "day": _filled(np.array([0.0 if date is None else float(date.toordinal()) for date in found]), known),
        "month": _filled(np.array([0.0 if date is None else float(date.month) for date in found]), known),
        "weekday": _filled(np.array([0.0 if date is None else float(date.weekday()) for date in found]), known),
    }
    return _of(DATES, columns)


def first_date(text: str) -> datetime.date | None:
    """Return the first date in a text, of the most complete form that occurs; None for a text without a date.

    A missing month or day counts as the first.
    """
    for pattern in _DATES:
        for match in pattern.finditer(text):
            parts = match.groupdict()
            try:
                return datetime.date(int(parts["y"]), int(parts.get("m") or 1), int(parts.get("d") or 1))
            except ValueError:  # such as month 13
                continue
    return None


def size_features(index: pa.Table) -> BlindFeatures:
    """Compute features of the files' geometry: width, height, their ratio, boxes, and copies.

    Args:
        index: rows of tables.INDEX.
    """
    width, height = (_numbers(index, name) for name in ("original_width", "original_height"))
    boxes = [[] if value is None else value for value in index["boxes"].to_pylist()]
    digests = np.array([str(value) for value in index["digest"].to_pylist()], dtype=object)
    _, number, copies = np.unique(digests, return_inverse=True, return_counts=True)
    columns = {
        "width": width,
        "height": height,
        "log area": np.log1p(width * height),
        "aspect": width / np.maximum(height, 1),
        "boxes": np.array([len(value) / 4 for value in boxes]),
        "area of the first box": np.array([float(_area(value[:4])) for value in boxes]),
        "copies": copies[number].astype(np.float64),
    }
    return _of(SIZES, columns)


def class_features(labels: NDArray[np.integer]) -> BlindFeatures:
    """Compute an indicator of each of the 64 most frequent classes.

    Args:
        labels: (num_units,) classes.
    """
    known, counts = np.unique(labels, return_counts=True)
    kept = np.sort(known[np.argsort(-counts, kind="stable")][:MOST_CLASSES])
    return _of(CLASSES, {f"class {label}": labels == label for label in kept.tolist()})


def pixel_features(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> BlindFeatures:
    """Compute grey thumbnails of 6 x 6 cells, and mean and standard deviation of each channel.

    Args:
        images: (num_stored, height, width, channels) uint8, read in blocks.
        rows: (num_units,) places among the images.
    """
    height, width, channels = images.shape[1:]
    names = [f"cell {row}, {column}" for row in range(SIDE) for column in range(SIDE)]
    names += [f"{name} of channel {channel}" for name in ("mean", "deviation") for channel in range(channels)]
    table = np.empty((len(rows), len(names)))
    for here, some in _blocks(images, rows, height * width * channels):
        table[here] = _thumbnails(some)
    return BlindFeatures(table, tuple(names), (PIXELS,) * len(names))


def point_features(points: NDArray[np.floating], rows: NDArray[np.int64]) -> BlindFeatures:
    """Return the first 64 coordinates of points; missing ones get the mean of the others.

    Args:
        points: (num_stored, dim), read in blocks.
        rows: (num_units,) places among the points.
    """
    dim = points.shape[1]
    kept = min(dim, MOST_COORDINATES)
    table = np.empty((len(rows), kept))
    for here, some in _blocks(points, rows, 8 * dim):
        table[here] = some[:, :kept]
    known = np.isfinite(table)
    for column in np.flatnonzero(~known.all(axis=0)):
        table[:, column] = _filled(np.where(known[:, column], table[:, column], 0.0), known[:, column])
    return BlindFeatures(table, tuple(f"coordinate {place}" for place in range(kept)), (POINTS,) * kept)


def text_features(texts: Iterable[str]) -> BlindFeatures:
    """Compute statistics of texts: length, words, characters, repetition, years mentioned, and hashed words.

    Only the first 100,000 characters of a text enter, besides its length; texts are read one by one.
    """
    rows, words = [], []
    for text in texts:
        some = text[:BEGINNING]
        found = _WORD.findall(some)
        rows.append([float(len(text)), *_statistics(some, found), *_years(some)])
        words.append(_hashed_shares([word.lower() for word in found], WORDS))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(_STATISTICS))
    columns = dict(zip(_STATISTICS, table.T, strict=True))
    columns["log characters"] = np.log1p(columns["characters"])
    dated = columns["years mentioned"] > 0
    for name in ("latest year", "mean year"):
        columns[name] = _filled(columns[name], dated)
    hashed = np.array(words, dtype=np.float64).reshape(len(words), WORDS)
    return joined([_of(TEXT, columns), _of_table(TEXT, "words", hashed)])


_STATISTICS = (
    "characters",
    "mean word length",
    "share of digits",
    "share of upper case",
    "share of punctuation",
    "share of white space",
    "share beyond ASCII",
    "lines per character",
    "share of distinct words",
    "compressed size",
    "years mentioned",
    "latest year",
    "mean year",
)


def _statistics(text: str, words: Sequence[str]) -> list[float]:
    """Return the statistics of a text from its mean word length to its compressed size, per character or byte."""
    count = max(1, len(text))
    characters = Counter(text)

    def number(test: Callable[[str], bool]) -> int:
        return sum(times for character, times in characters.items() if test(character))

    digits, upper, spaces = number(str.isdigit), number(str.isupper), number(str.isspace)
    data, some = text.encode("utf-8", "replace"), words[:TYPED]
    return [
        sum(map(len, words)) / max(1, len(words)),
        digits / count,
        upper / count,
        (len(text) - number(str.isalnum) - spaces) / count,
        spaces / count,
        (len(text) - number(str.isascii)) / count,
        characters["\n"] / count,
        len({word.lower() for word in some}) / max(1, len(some)),
        len(zlib.compress(data)) / max(1, len(data)),
    ]


def _years(text: str) -> list[float]:
    """Return the number of years mentioned, the latest and their mean; 0 if there are none."""
    years = [int(year) for year in _YEAR.findall(text)]
    return [float(len(years)), float(max(years, default=0)), sum(years) / max(1, len(years))]


def _of(family: str, columns: Mapping[str, NDArray[Any]]) -> BlindFeatures:
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)
    return BlindFeatures(table, tuple(columns), (family,) * len(columns))


def _of_table(family: str, name: str, table: NDArray[np.float64]) -> BlindFeatures:
    count = table.shape[1]
    return BlindFeatures(table, tuple(f"{name} {place}" for place in range(count)), (family,) * count)


def _number(runs: Sequence[str], place: int) -> int:
    """Return the run of digits at a place as a number; -1 if there are fewer runs."""
    return int(runs[place][-DIGITS:]) if -len(runs) <= place < len(runs) else -1


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return average ranks, divided by the number of values."""
    ranks: NDArray[np.float64] = scipy.stats.rankdata(values) / max(1, len(values))
    return ranks


def _filled(values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Replace unknown values by the mean of the known ones; 0 if none is known."""
    return np.where(known, values, values[known].mean() if known.any() else 0.0)


def _numbers(index: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a column of numbers; missing ones get the mean of the others."""
    values = np.array([np.nan if value is None else float(value) for value in index[name].to_pylist()], dtype=np.float64)
    known = np.isfinite(values)
    return _filled(np.where(known, values, 0.0), known)


def _area(box: Sequence[int]) -> int:
    return (box[2] - box[0]) * (box[3] - box[1]) if len(box) == 4 else 0


def _no_digits(name: str) -> str:
    """Return a name with all digits alike: their numbers are features of their own."""
    return re.sub(r"\d", "0", name)


@functools.lru_cache(maxsize=2**16)
def _place(token: str, columns: int) -> int:
    return zlib.crc32(token.encode("utf-8", "replace")) % columns


def _hashed(tokens: Iterable[Sequence[str]], columns: int) -> NDArray[np.float64]:
    table = [_hashed_shares(some, columns) for some in tokens]
    return np.array(table, dtype=np.float64).reshape(len(table), columns)


def _hashed_shares(tokens: Sequence[str], columns: int) -> NDArray[np.float64]:
    """Return the share of the tokens in each column of a hash, (columns,)."""
    counted = Counter(tokens)
    places = np.array([_place(token, columns) for token in counted], dtype=np.int64)
    return np.bincount(places, weights=list(counted.values()), minlength=columns) / max(1, len(tokens))


def _blocks(
    examples: NDArray[Any], rows: NDArray[np.int64], bytes_each: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Yield the places of some units and their examples, block by block, in the order in which the examples are stored."""
    order, size = np.argsort(rows, kind="stable"), max(1, BLOCK_BYTES // max(1, bytes_each))
    for start in range(0, len(rows), size):
        here = order[start : start + size]
        yield here, np.asarray(examples[rows[here]])


def _thumbnails(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return grey cells, channel means and channel deviations of images, (num_images, num_features)."""
    height, width = images.shape[1:3]
    rows, columns = (np.linspace(0, side, SIDE + 1).astype(int)[:-1] for side in (height, width))
    values = images.astype(np.float32)
    grey = values.mean(axis=3)
    cells = np.add.reduceat(np.add.reduceat(grey, rows, axis=1), columns, axis=2)
    ones = np.add.reduceat(np.add.reduceat(np.ones((height, width)), rows, axis=0), columns, axis=1)
    parts = [(cells / ones).reshape(len(images), -1), values.mean(axis=(1, 2)), values.std(axis=(1, 2))]
    return np.concatenate(parts, axis=1).astype(np.float64)
