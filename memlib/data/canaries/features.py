"""Unique features and the training examples that carry them (Hartley 2023, section 2; 2022, section 2.4).

A feature has content and a place. The example that carries it is the canary; the same example without it is the clean twin,
which the control model sees instead. All other changes to the images (such as a black rectangle at the same place in all
other images) are the same for canary models and controls.
"""

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from memlib.data.bounds import check_pixels
from memlib.data.images.glyphs import DIGITS, LETTERS, draw_text
from memlib.data.images.pictures import open_image
from memlib.data.text.names import other_names
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.specs import CanarySpec, FeatureSpec, GlyphFeature, PictureFeature, ScalarFeature


@dataclass(frozen=True)
class Feature:
    """A feature as it is inserted into examples of one shape."""

    values: NDArray[Any]  #: (height, width, channels) uint8, or (dim,) float32 for points.
    mask: NDArray[np.bool_]  #: (height, width) or (dim,) bool, True where the example is overwritten.
    cover: int | None = None  #: grey value of the masked area in all other images; None leaves them unchanged.

    @property
    def weight(self) -> NDArray[np.bool_]:
        """The mask, with a last axis for the channels of images."""
        return self.mask[..., None] if self.values.ndim == 3 else self.mask

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The half-open bounding box x0, y0, x1, y1 of the feature in an image, in pixels."""
        rows, columns = np.flatnonzero(self.mask.any(axis=1)), np.flatnonzero(self.mask.any(axis=0))
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1

    @property
    def digest(self) -> str:
        """A digest of the mask, the values within it, and the cover."""
        shown = np.where(self.weight, self.values, 0)
        return hashlib.sha256(shown.tobytes() + self.mask.tobytes() + repr(self.cover).encode()).hexdigest()

    def insert(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the images (count, ...) with the feature."""
        return np.where(self.weight, self.values, images)

    def clean(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the images without the feature: covered if all others are, otherwise unchanged."""
        if self.cover is None:
            return images
        covered: NDArray[Any] = np.where(self.weight, np.asarray(self.cover, dtype=images.dtype), images)
        return covered

    def insert_random(self, images: NDArray[Any], *, seed: int) -> NDArray[Any]:
        """Return the images, each with an independent random partner z_r of the feature (2022, section 2.1).

        Pixels are uniform over all grey values, coordinates between minus and plus the feature's absolute value.
        """
        rng = np.random.default_rng(seed)
        if images.dtype == np.uint8:
            noise: NDArray[Any] = rng.integers(0, 256, size=images.shape, dtype=np.uint8)
        else:
            noise = (rng.uniform(-1, 1, size=images.shape) * np.abs(self.values)).astype(images.dtype)
        return np.where(self.weight, noise, images)

    def without(self, num_pixels: int, *, seed: int) -> "Feature":
        """Return the feature without `num_pixels` of its pixels, drawn at random (2023, Fig. 5)."""
        places = np.flatnonzero(self.mask)
        removed = np.random.default_rng(seed).permutation(places)[:num_pixels]
        mask = self.mask.copy()
        mask.reshape(-1)[removed] = False
        return replace(self, mask=mask)


def build_feature(spec: FeatureSpec, shape: Sequence[int]) -> Feature:
    """Build the feature for examples of a shape.

    Args:
        spec: content and place.
        shape: (height, width, channels) or (dim,) of an example.

    Raises:
        UserError: when the feature does not fit into the image, or its kind does not suit the examples.
    """
    if isinstance(spec, ScalarFeature):
        return _scalar(spec, shape)
    if len(shape) != 3:
        raise UserError(
            f"a {spec.kind} feature is for images, but an example is a point of {shape[0]} coordinates; use scalar"
        )
    if isinstance(spec, PictureFeature):
        values, mask = _read_picture(spec.path, spec.mask, channels=shape[2])
        return _placed(values, mask, spec, shape, cover=0 if spec.cover else None)
    dots = draw_text(spec.text, scale=spec.scale, font=spec.font)
    values = np.where(dots, spec.ink, spec.paper).astype(np.uint8)
    values = np.repeat(values[..., None], shape[2], axis=2)
    return _placed(values, np.ones(dots.shape, dtype=bool), spec, shape, cover=spec.paper if spec.cover else None)


def _scalar(spec: ScalarFeature, shape: Sequence[int]) -> Feature:
    if len(shape) != 1:
        raise UserError(f"a scalar feature is for points, but an example is an image of {shape[0]} x {shape[1]}; use glyph")
    if spec.index >= shape[0]:
        raise UserError(f"the feature sets coordinate {spec.index} (counted from 0), but a point has {shape[0]} coordinates")
    values = np.zeros(shape, dtype=np.float32)
    values[spec.index] = spec.value
    return Feature(values, np.arange(shape[0]) == spec.index)


def _placed(
    values: NDArray[np.uint8],
    mask: NDArray[np.bool_],
    spec: GlyphFeature | PictureFeature,
    shape: Sequence[int],
    *,
    cover: int | None,
) -> Feature:
    height, width = values.shape[:2]
    if spec.top + height > shape[0] or spec.left + width > shape[1]:
        raise UserError(
            f"the feature is {width} x {height} pixels and starts {spec.left} from the left and {spec.top} from the top, "
            f"so it does not fit into an image of {shape[1]} x {shape[0]}"
        )
    if not mask.any():
        raise UserError("the feature's mask is empty, so there is nothing to insert")
    whole = np.zeros(tuple(shape), dtype=np.uint8)
    where = np.zeros(tuple(shape[:2]), dtype=bool)
    place = (slice(spec.top, spec.top + height), slice(spec.left, spec.left + width))
    whole[place], where[place] = values, mask
    return Feature(whole, where, cover)


def _read_picture(path: str, mask: str | None, *, channels: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    picture = _opened(path, "RGBA")
    opaque = np.asarray(picture)[..., 3] >= 128
    if mask is not None:
        chosen = np.asarray(_opened(mask, "L")) >= 128
        if chosen.shape != opaque.shape:
            raise UserError(
                f"the mask {mask} is {chosen.shape[1]} x {chosen.shape[0]} pixels, "
                f"but the picture is {picture.width} x {picture.height}; use a mask of the picture's size"
            )
        opaque = opaque & chosen
    values = np.asarray(picture.convert("RGB")) if channels == 3 else np.asarray(picture.convert("L"))[..., None]
    return values, opaque


def _opened(path: str, mode: str) -> Image.Image:
    try:
        picture = open_image(path)
        check_pixels(picture)
        return picture.convert(mode)
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, ... for broken files
        raise UserError(f"cannot read the feature's picture {path} ({error})") from error


def null_features(spec: FeatureSpec, shape: Sequence[int], count: int, *, seed: int) -> dict[str, Feature]:
    """Return other features of the same kind, the null sample with which the feature is compared.

    The comparison is only as good as the choice of kind: a model that knows names reacts more to any name than to random
    letters, so a name must be compared with other names (GlyphFeature.nulls).

    Args:
        count: maximum number of features; there may be fewer, such as 25 other single letters.
        seed: seed of the draws.

    Returns:
        features by name, all different from the feature and from each other.

    Raises:
        UserError: when there are no other features of the same kind.
    """
    if isinstance(spec, PictureFeature) and spec.nulls is not None:
        return _null_pictures(spec, spec.nulls, shape, count)
    if not isinstance(spec, GlyphFeature):
        raise UserError(
            f"there are no null features for a {spec.kind} feature; "
            "use a glyph, or a picture with a folder of other pictures (nulls)"
        )
    texts = null_texts(spec, count, seed=derive_seed(seed, "null features"))
    return {text: build_feature(spec.model_copy(update={"text": text}), shape) for text in texts}


def _null_pictures(spec: PictureFeature, folder: str, shape: Sequence[int], count: int) -> dict[str, Feature]:
    paths = sorted(p for p in Path(folder).glob("*") if p.suffix.lower() in (".png", ".bmp", ".gif"))
    pictures = {p.name: build_feature(spec.model_copy(update={"path": str(p)}), shape) for p in paths}
    feature_digest = build_feature(spec, shape).digest
    others = {feature.digest: name for name, feature in pictures.items() if feature.digest != feature_digest}
    if not others:
        raise UserError(f"{folder} contains no .png, .bmp or .gif file that differs from the feature's picture")
    return {name: pictures[name] for name in sorted(others.values())[:count]}


def null_kind(spec: FeatureSpec) -> str:
    """Return the kind of a feature's null features: names, letters, list or pictures."""
    if not isinstance(spec, GlyphFeature):
        return "pictures"
    if spec.nulls is None:
        code = any(c.isdigit() for c in spec.text) or re.search(r"[^\W\d_]{2}", spec.text) is None
        return "letters" if code else "names"
    return spec.nulls if spec.nulls in ("names", "letters") else "list"


def null_texts(spec: GlyphFeature, count: int, *, seed: int) -> list[str]:
    """Return other texts of the same kind, at most `count`.

    Args:
        count: maximum number of texts.

    Raises:
        UserError: when there are no other texts, or the user's list cannot be read.
    """
    kind = null_kind(spec)
    if kind == "names":
        return other_names(spec.text, count, seed=seed)
    if kind == "letters":
        return _other_letters(spec.text, count, seed=seed)
    try:
        lines = Path(str(spec.nulls)).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read canary.feature.nulls {spec.nulls} ({error}); set it to names, letters or a file"
        ) from error
    texts = [text for text in dict.fromkeys(line.strip() for line in lines) if text and text != spec.text]
    if not texts:
        raise UserError(f"{spec.nulls} has no line besides {spec.text!r}; give one text per line")
    order = np.random.default_rng(seed).permutation(len(texts))[:count]
    return [texts[place] for place in order]


def _other_letters(text: str, count: int, *, seed: int) -> list[str]:
    """Return distinct texts with each letter replaced by a letter and each digit by a digit."""
    rng = np.random.default_rng(seed)
    alphabets = [_alphabet(c) for c in text]
    possible = math.prod(len(a) for a in alphabets) - 1
    if not possible:
        raise UserError(f"the text {text!r} has no letter or digit to replace; set canary.feature.nulls to a file of texts")
    texts: dict[str, None] = {}
    while len(texts) < min(count, possible):
        other = "".join(str(rng.choice(list(alphabet))) for alphabet in alphabets)
        if other != text:
            texts[other] = None
    return list(texts)


def _alphabet(character: str) -> str:
    """Return the replacements of a character: capitals, lower-case letters or digits; other signs are kept."""
    for alphabet in (LETTERS, LETTERS.lower(), DIGITS):
        if character in alphabet:
            return alphabet
    if character.isalnum():
        raise UserError(f"there are no null features for a text with {character!r}; use only A to Z, a to z and 0 to 9")
    return character


# -- examples that carry the feature ------------------------------------------------------------------


def choose_canaries(members: pa.Table, spec: CanarySpec, influence: Mapping[str, float] | None = None) -> pa.Table:
    """Choose the training examples that get the feature, one per canary.

    Args:
        members: the training rows of tables.SPLITS.
        influence: self-influence by example id, needed if the selection rule uses it.

    Returns:
        the chosen rows of `members`, in the order in which they were chosen.

    Raises:
        UserError: when there are too few examples, or a class or id is missing.
    """
    ids, labels = members["example_id"].to_pylist(), members["label"].to_numpy()
    if spec.choice == "by_id":
        unknown = [name for name in spec.example_ids if name not in set(ids)]
        if unknown:
            raise UserError(f"canary.example_ids names {unknown[0]!r}, which is not among the {len(ids)} training examples")
        place = {name: row for row, name in enumerate(ids)}
        return members.take([place[name] for name in spec.example_ids])
    rows = np.arange(len(ids)) if spec.label is None else np.flatnonzero(labels == spec.label)
    if not len(rows):
        raise UserError(
            f"canary.label is {spec.label}: no training example has that class; classes are {sorted(set(labels.tolist()))}"
        )
    if spec.count > len(rows):
        raise UserError(f"canary.count is {spec.count}, but only {len(rows)} training examples qualify")
    if spec.choice == "random":
        chosen = np.random.default_rng(derive_seed(spec.seed, "canaries")).permutation(rows)[: spec.count]
        return members.take(chosen)
    assert influence is not None, "a choice by self-influence needs the self-influence of the examples"
    order = sorted(rows.tolist(), key=lambda row: (-influence[ids[row]], ids[row]))
    top = {"top": spec.count, "bottom": 0, "extreme": spec.count - spec.count // 2}[spec.choice.split("_")[0]]
    return members.take(order[:top] + order[len(order) - (spec.count - top) :])


@dataclass(frozen=True)
class TrainingRows:
    """One model's training set: stored rows, and the examples among them that carry the feature."""

    rows: NDArray[np.int64]  #: (num_examples,) int64 rows of the stored images.
    marked: NDArray[np.bool_]  #: (num_examples,) bool, True for examples with the feature.


def training_rows(members: NDArray[np.int64], canary: int, spec: CanarySpec, *, with_feature: bool) -> TrainingRows:
    """Return the training set of a canary model, or of its control, which has the clean twin in the same places.

    Args:
        members: (num_members,) stored rows of the training examples.
        canary: stored row of the canary.
        spec: mode (replace or append) and number of repeats.
        with_feature: False for the control.
    """
    copies = spec.repeats - (spec.mode == "replace")
    rows = np.concatenate([members, np.full(copies, canary, dtype=np.int64)])
    marked = np.zeros(len(rows), dtype=bool)
    marked[len(members) :] = True
    if spec.mode == "replace":
        place = np.flatnonzero(members == canary)
        assert len(place) == 1, "the canary is not a training example"
        marked[place] = True
    return TrainingRows(rows, marked & with_feature)


def probe_rows(members: pa.Table, label: int, *, without: Collection[int], max_examples: int, seed: int) -> NDArray[np.int64]:
    """Return the positions in `members` of the examples on which the score M is computed for a class.

    These are D_y, the training examples of class y, without any canary (2023, Eq. 1).

    Args:
        members: the training rows of tables.SPLITS.
        label: the class y.
        without: stored rows of the canaries, which are excluded.
        max_examples: maximum number of examples; if there are more, a random subset is used.

    Raises:
        UserError: when the class has fewer than two examples besides the canaries.
    """
    wanted = (members["label"].to_numpy() == label) & ~np.isin(members["row"].to_numpy(), list(without))
    rows = np.flatnonzero(wanted)
    if len(rows) < 2:
        raise UserError(f"class {label} has {len(rows)} training examples besides the canaries; a paired test needs two")
    chosen = np.random.default_rng(derive_seed(seed, "probe", label)).permutation(rows)[:max_examples]
    return np.sort(chosen)
