"""Built-in image-text pairs with a known ground truth: which digits a caption leaves out cannot be guessed from it."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from memlib.data.examples import NO_BOXES, Caption, Example
from memlib.data.scenes import digit_images
from memlib.identity import canonical_json, derive_seed
from memlib.specs import CaptionedScenesSource

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
        return Example(_id_of(index), np.repeat(scene[..., None], 3, axis=2), 0, NO_BOXES)

    @cached_property
    def captions(self) -> Mapping[str, Caption]:
        """The caption and the objects of each scene by example id."""
        return {_id_of(index): self._caption(index) for index in range(len(self))}

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


def _id_of(index: int) -> str:
    return f"pair-{index:07d}"
