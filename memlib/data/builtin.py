"""Built-in data with a known ground truth: scenes of real handwritten digits, scenes with captions, two moons, and a table.

The background of a scene is drawn independently of the digit, so a background crop carries no information about the class:
a model that has not seen the image can only guess (1 in 10), and anything that a model knows beyond that is memorized. A
caption names one of four digits, and the others cannot be guessed from it. Digits and the table of breast cancer are
scikit-learn's (UCI); no download is needed.
"""

from collections.abc import Mapping
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from memlib.data.examples import NO_BOXES, Caption, Example
from memlib.identity import canonical_json, derive_seed
from memlib.specs import BreastCancerSource, CaptionedScenesSource, DigitsSource, ScenesSource, TwoMoonsSource
from memlib.specs.data import TINTS

BRIGHTEST = 0.6  # largest background brightness; digits are white unless the spec has several tints


@cache
def digit_images() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the digits, (1797, 8, 8) in [0, 1], and their labels."""
    from sklearn.datasets import load_digits  # imported late: too slow to load when only planning

    bunch = load_digits()
    return bunch.images / 16.0, bunch.target.astype(np.int64)


class Digits:
    """Handwritten digits without a background; example ids are digit-<row>."""

    def __init__(self, spec: DigitsSource) -> None:
        self._spec = spec
        self.class_names = [str(digit) for digit in range(10)]

    def __len__(self) -> int:
        return len(digit_images()[1])

    def __getitem__(self, index: int) -> Example:
        images, labels = digit_images()
        image = np.repeat((images[index] * 255).round().astype(np.uint8)[..., None], 3, axis=2)
        return Example(f"digit-{index:04d}", image, int(labels[index]), NO_BOXES)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the digits come with scikit-learn and do not change."""
        return canonical_json(self._spec)


class Scenes:
    """Digits on backgrounds; a scene depends on the spec and its index only.

    Its attributes beyond the class are `colour`, the name of the ink's colour, and, for scenes with a single digit, `place`,
    the quadrant that holds the digit's centre (upper left, ...).
    """

    def __init__(self, spec: ScenesSource) -> None:
        self._spec = spec
        self.class_names = [str(digit) for digit in range(10)]

    @cached_property
    def _chosen(self) -> NDArray[np.int64]:
        """The position of each scene's digit among the digits."""
        count, rng = len(digit_images()[1]), np.random.default_rng(derive_seed(self._spec.seed, "scenes", "digits"))
        rounds = -(-self._spec.num_examples // count)
        return np.concatenate([rng.permutation(count) for _ in range(rounds)])[: self._spec.num_examples]

    def __len__(self) -> int:
        return self._spec.num_examples

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the scenes are a function of it."""
        return canonical_json(self._spec)

    def __getitem__(self, index: int) -> Example:
        spec = self._spec
        rng = np.random.default_rng(derive_seed(spec.seed, "scenes", "scene", index))
        scene = draw_background(rng, spec)
        digits, labels = digit_images()
        digit = Image.fromarray((digits[self._chosen[index]] * 255).astype(np.uint8))
        ink = np.asarray(digit.resize((spec.digit_size, spec.digit_size), Image.Resampling.BILINEAR)) / 255.0
        places = _draw_places(rng, spec)
        tint = np.array(TINTS[self._colour(index)])
        for x, y in places:
            window = scene[y : y + spec.digit_size, x : x + spec.digit_size]
            window += (tint - window) * ink[..., None]
        return Example(
            example_id=_id_of(index),
            image=(scene * 255).round().astype(np.uint8),
            label=int(labels[self._chosen[index]]),
            boxes=np.array([[x, y, x + spec.digit_size, y + spec.digit_size] for x, y in places], dtype=np.int64),
        )

    @cached_property
    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """The value of each attribute by example id."""
        indices = range(len(self))
        colours = {"colour": {_id_of(index): self._colour(index) for index in indices}}
        if self._spec.copies > 1:
            return colours
        return colours | {"place": {_id_of(index): self._place(index) for index in indices}}

    def _colour(self, index: int) -> str:
        """Draw the colour of a scene's ink from a random stream of its own, so that it changes nothing else."""
        rng = np.random.default_rng(derive_seed(self._spec.seed, "scenes", "tint", index))
        return list(TINTS)[int(rng.integers(self._spec.tints))]

    def _place(self, index: int) -> str:
        """Return the quadrant of the centre of a scene's only digit; a centre on a middle line counts as lower or right."""
        x0, y0, x1, y1 = self[index].boxes[0].tolist()
        down, right = y0 + y1 >= self._spec.size, x0 + x1 >= self._spec.size
        return f"{'lower' if down else 'upper'} {'right' if right else 'left'}"


def _id_of(index: int) -> str:
    return f"scene-{index:07d}"


def _draw_places(rng: np.random.Generator, spec: ScenesSource) -> list[tuple[int, int]]:
    """Draw upper-left corners for non-overlapping digits; start over after every 100 tries, as later digits may not fit."""
    places: list[tuple[int, int]] = []
    tries = 0
    while len(places) < spec.copies:
        x, y = (int(value) for value in rng.integers(0, spec.size - spec.digit_size + 1, size=2))
        if all(abs(x - a) >= spec.digit_size or abs(y - b) >= spec.digit_size for a, b in places):
            places.append((x, y))
        tries += 1
        if tries % 100 == 0:
            places = []
    return places


def draw_background(rng: np.random.Generator, spec: ScenesSource) -> NDArray[np.float64]:
    """Draw a background in [0, BRIGHTEST]: (size, size, 3)."""
    size = spec.size
    if spec.background == "field":
        return _resized(rng.random((spec.cells, spec.cells, 3)), size, Image.Resampling.BICUBIC) * BRIGHTEST
    if spec.background == "grid":
        cells = np.repeat(rng.random((spec.cells, spec.cells, 1)), 3, axis=2)
        return _resized(cells, size, Image.Resampling.NEAREST) * BRIGHTEST
    if spec.background == "mosaic":
        return _resized(rng.random((spec.cells, spec.cells, 3)), size, Image.Resampling.NEAREST) * BRIGHTEST
    first, second = rng.random((2, 3))
    cells = np.where(rng.random((spec.cells, spec.cells, 1)) < 0.5, first, second)
    return _resized(cells, size, Image.Resampling.NEAREST) * BRIGHTEST


def _resized(knots: NDArray[np.float64], size: int, how: Image.Resampling) -> NDArray[np.float64]:
    image = Image.fromarray((knots * 255).astype(np.uint8)).resize((size, size), how)
    return np.asarray(image).astype(np.float64) / 255.0


NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = ("upper left", "upper right", "lower left", "lower right")
SYLLABLES = [f"{consonant}{vowel}" for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


class CaptionedScenes:
    """Four digits of different classes on black, in the quarters of a square; the caption names one of them and its place.

    Given the caption, each of the other nine classes is among the three unnamed digits with probability 1/3.
    """

    def __init__(self, spec: CaptionedScenesSource) -> None:
        self._spec = spec
        self.class_names = ["scene"]
        self.labels = [0] * spec.num_examples

    def __len__(self) -> int:
        return self._spec.num_examples

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the pairs are a function of it."""
        return canonical_json(self._spec)

    def __getitem__(self, index: int) -> Example:
        digits, labels = digit_images()
        rng, kinds = self._drawn(index)
        half = self._spec.size // 2
        scene = np.zeros((self._spec.size, self._spec.size), dtype=np.uint8)
        for place, kind in enumerate(kinds):
            image = Image.fromarray((digits[rng.choice(np.flatnonzero(labels == kind))] * 255).astype(np.uint8))
            y, x = divmod(place, 2)
            ink = image.resize((half, half), Image.Resampling.BILINEAR)
            scene[y * half : (y + 1) * half, x * half : (x + 1) * half] = np.asarray(ink)
        return Example(_id_of_pair(index), np.repeat(scene[..., None], 3, axis=2), 0, NO_BOXES)

    @cached_property
    def captions(self) -> Mapping[str, Caption]:
        """The caption and the objects of each scene by example id."""
        return {_id_of_pair(index): self._caption(index) for index in range(len(self))}

    def _caption(self, index: int) -> Caption:
        _, kinds = self._drawn(index)
        rng = np.random.default_rng(derive_seed(self._spec.seed, "captioned scenes", "words", index))
        first, second = (made_up_word(int(number)) for number in rng.integers(0, self._spec.words, size=2))
        place = int(rng.integers(4))
        text = f"a {first} {second} with a {NAMES[kinds[place]]} in the {PLACES[place]}"
        return Caption(text, tuple(NAMES[kind] for kind in kinds))

    def _drawn(self, index: int) -> tuple[np.random.Generator, list[int]]:
        """Return the generator of a scene's images, and the classes in its quarters."""
        rng = np.random.default_rng(derive_seed(self._spec.seed, "captioned scenes", "scene", index))
        kinds: NDArray[np.int64] = rng.permutation(len(NAMES))[:4]
        return rng, kinds.tolist()


def made_up_word(number: int) -> str:
    """Return a word of two or three syllables, different for each number below 1,000."""
    high, low = divmod(number, len(SYLLABLES))
    return SYLLABLES[low] + SYLLABLES[(high * 11 + low * 3) % len(SYLLABLES)] + ("" if high < 5 else SYLLABLES[high])


def _id_of_pair(index: int) -> str:
    return f"pair-{index:07d}"


class TwoMoons:
    """Points (x, y, z): x and y are mean-centred moons, z is noise; the class is the moon."""

    point_dim = 3

    def __init__(self, spec: TwoMoonsSource) -> None:
        self.class_names = ["upper", "lower"]
        self._spec = spec

    def __len__(self) -> int:
        return self._spec.num_examples

    def __getitem__(self, index: int) -> Example:
        points, labels = self._drawn
        return Example(f"point-{index:07d}", points[index], int(labels[index]), NO_BOXES)

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        from sklearn.datasets import make_moons  # imported late: too slow to load when only planning

        spec, seed = self._spec, derive_seed(self._spec.seed, "two moons") % 2**32  # scikit-learn takes 32 bits
        points, labels = make_moons(spec.num_examples, noise=spec.noise, random_state=seed)
        points = points - points.mean(axis=0)
        z = np.random.default_rng(derive_seed(spec.seed, "two moons", "z")).normal(0, 1, len(points)) * spec.z_noise
        return np.column_stack([points, z]).astype(np.float32), labels.astype(np.int64)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the points are a function of it."""
        return canonical_json(self._spec)


class BreastCancer:
    """Tumors in 30 measurements, each standardized over the table; example ids are tumor-<row>."""

    point_dim = 30

    def __init__(self, spec: BreastCancerSource) -> None:
        self.class_names = ["malignant", "benign"]
        self._spec = spec

    def __len__(self) -> int:
        return len(self._table[1])

    def __getitem__(self, index: int) -> Example:
        points, labels = self._table
        return Example(f"tumor-{index:04d}", points[index], int(labels[index]), NO_BOXES)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The points, (569, 30), and their labels."""
        from sklearn.datasets import load_breast_cancer  # imported late: too slow to load when only planning

        bunch = load_breast_cancer()
        values = np.asarray(bunch.data, dtype=np.float64)
        points = (values - values.mean(axis=0)) / values.std(axis=0)
        return points.astype(np.float32), np.asarray(bunch.target, dtype=np.int64)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the table comes with scikit-learn and does not change."""
        return canonical_json(self._spec)
