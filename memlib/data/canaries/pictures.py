"""Canary pictures for image classifiers that are trained outside memlib: random pictures with random labels, and coins.

A folder of canaries has insert.npz, the pictures whose coin is "in", all.npz, all pictures in the order of their draw,
plan.json and coins.parquet, with the roles of the files of canary documents.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memlib.data.canaries.plan import EARLIER, Coins, check_count, drawing, ids_of, reason, toss, write_folder
from memlib.data.canaries.secret_key import keyed_seed
from memlib.errors import UserError
from memlib.stats.canaries import Plan

INSERT_FILE, ALL_FILE = "insert.npz", "all.npz"
CELL = 4  # pixels along a side of a cell of one colour: augmentation by a shift does not destroy it
MOST_BYTES = 2**31


@dataclass(frozen=True)
class CanaryPictures:
    """Canary pictures."""

    canaries: tuple[str, ...]  #: their ids.
    images: NDArray[np.uint8]  #: (num_canaries, height, width, channels).
    labels: NDArray[np.int64]  #: (num_canaries,) random classes.

    @property
    def digest(self) -> str:
        """A digest of the pictures and their labels."""
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()


def draw_pictures(count: int, shape: tuple[int, int, int], classes: int, *, secret: bytes, seed: int | str) -> CanaryPictures:
    """Draw pictures of cells of random colours, each with a random label.

    Args:
        count: number of pictures.
        shape: height, width, channels.
        classes: number of classes.
        secret, seed: determine the pictures together.

    Raises:
        UserError: when a number is out of bounds.
    """
    check_count(count)
    height, width, channels = shape
    if min(height, width) < CELL or channels not in (1, 3) or classes < 2 or count * height * width * channels > MOST_BYTES:
        raise UserError(
            f"pictures of {height} x {width} x {channels} in {classes} classes cannot be drawn; give a side of at least "
            f"{CELL} pixels, 1 or 3 channels, and at least 2 classes"
        )
    rng = np.random.default_rng(keyed_seed(secret, "canary pictures", seed))
    cells = rng.integers(0, 256, size=(count, -(-height // CELL), -(-width // CELL), channels), dtype=np.uint8)
    images = cells.repeat(CELL, axis=1).repeat(CELL, axis=2)[:, :height, :width]
    return CanaryPictures(ids_of(count), np.ascontiguousarray(images), rng.integers(0, classes, size=count))


def write_pictures(
    folder: Path, count: int, shape: tuple[int, int, int], classes: int, *, repeats: int = 1, guesses: tuple[int, ...] = (),
    plan: Plan = EARLIER, secret: bytes, seed: int,
) -> Coins:  # fmt: skip
    """Draw canary pictures and write their folder, which its owner alone can read.

    Args:
        count, shape, classes: as in `draw_pictures`.
        repeats: number of times that a picture is written to insert.npz.
        guesses, plan, secret, seed: as for canary documents.

    Raises:
        UserError: when a number is out of bounds, or the folder exists.
    """
    of = drawing(plan, repeats, guesses, seed)
    drawn = draw_pictures(count, shape, classes, secret=secret, seed=of)
    coins = toss(drawn.canaries, content=drawn.digest, repeats=repeats, guesses=guesses, plan=plan, secret=secret, seed=of)
    chosen = np.tile(np.flatnonzero(coins.inside), repeats)
    insert = _npz(images=drawn.images[chosen], labels=drawn.labels[chosen])
    write_folder(folder, coins, {INSERT_FILE: insert, ALL_FILE: _npz(images=drawn.images, labels=drawn.labels)})
    return coins


def is_of_pictures(path: Path) -> bool:
    """Return whether a folder of canaries, or a file of it, is of pictures."""
    return path.suffix == ".npz" or (path / ALL_FILE).exists()


def read_pictures(path: Path) -> CanaryPictures:
    """Read the pictures of all.npz.

    Args:
        path: the file, or a folder of canaries.

    Raises:
        UserError: when the file cannot be read.
    """
    file = path / ALL_FILE if path.is_dir() else path
    try:
        with np.load(file, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(f"cannot read the canaries of {file} ({reason(error)}); memlib canaries make writes them") from error
    if images.ndim != 4 or images.dtype != np.uint8 or labels.shape != (len(images),) or not len(images):
        raise UserError(f"{file} has no pictures with labels; use all.npz as memlib canaries make wrote it")
    return CanaryPictures(ids_of(len(images)), images, labels)


def _npz(**arrays: NDArray[np.generic]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()
