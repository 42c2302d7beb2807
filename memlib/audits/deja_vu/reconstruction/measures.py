"""Measures of a reconstruction: only the part of the image that the crop did not show counts.

Attackers know the crop, so that ranks and names by whole pictures would reward copying it. Ranks and names therefore rest on
the hidden part, given as a mask, or on pictures whose shown part was painted over. Whole pictures are compared with public
images alone.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memlib.stats.ranks import halves_nearer

PICTURES_AT_ONCE = 1024
PAINT = (124, 116, 104)  # ImageNet's mean colour, which encoders see as 0


def hidden_part(box: NDArray[np.int64], *, size: int, side: int) -> NDArray[np.bool_]:
    """Return the pixels of a picture that no pixel of the crop has influenced: (side, side).

    Args:
        box: (4,) x0, y0, x1, y1 of the crop in stored pixels.
        size: side of the stored image.
        side: side of the picture, a resized version of the image. Where it differs from `size`, resizing mixes neighbours,
            so that one more pixel around the crop counts as shown.
    """
    scale, margin = side / size, 0 if side == size else 1
    x0, y0 = (max(0, int(np.floor(edge * scale)) - margin) for edge in box[:2])
    x1, y1 = (min(side, int(np.ceil(edge * scale)) + margin) for edge in box[2:])
    hidden = np.ones((side, side), dtype=bool)
    hidden[y0:y1, x0:x1] = False
    return hidden


def painted(pictures: NDArray[np.uint8], hidden: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a copy of pictures with the shown part painted over.

    Args:
        pictures: (num_pictures, side, side, 3).
        hidden: (side, side) mask of the hidden part, or (num_pictures, side, side).
    """
    mask = np.broadcast_to(hidden, pictures.shape[:3])[..., None]
    return np.where(mask, pictures, np.array(PAINT, dtype=np.uint8))


def resized(images: NDArray[np.uint8], rows: NDArray[np.int64], side: int) -> NDArray[np.uint8]:
    """Read stored images (num_stored, size, size, channels) as colour pictures (num_rows, side, side, 3), in batches.

    Args:
        rows: (num_rows,) stored rows of the images to read.
        side: side of the pictures in pixels.
    """
    parts = [
        _resized(images[rows[start : start + PICTURES_AT_ONCE]], side) for start in range(0, len(rows), PICTURES_AT_ONCE)
    ]
    return np.concatenate(parts)


def _resized(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    import torch

    from memlib.observe.embeddings import cut

    values = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float()
    small = cut(values.expand(-1, 3, -1, -1), None, side=side).round_().clamp_(0, 255)
    return small.to(torch.uint8).permute(0, 2, 3, 1).numpy()


def pixel_distances(
    samples: NDArray[np.uint8], candidates: NDArray[np.uint8], hidden: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the mean squared difference of pixel values in [0, 1] over the hidden part, averaged over samples.

    Args:
        samples: (num_samples, side, side, 3).
        candidates: (num_candidates, side, side, 3).
        hidden: (side, side) mask.

    Returns:
        (num_candidates,); NaN if nothing is hidden.
    """
    return mean_squares(samples[:, hidden].reshape(len(samples), -1) / 255, candidates[:, hidden] / 255)


def mean_squares(samples: NDArray[np.floating], candidates: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the mean squared difference of candidates from samples, averaged over samples: (num_candidates,).

    Args:
        samples: (num_samples, ...) vectors, or arrays of any shape.
        candidates: (num_candidates, ...) of the same shape.
    """
    ours, theirs = samples.reshape(len(samples), -1), candidates.reshape(len(candidates), -1)
    if not ours.shape[1]:
        return np.full(len(candidates), np.nan)
    # mean over s of |s - c|^2 = |mean - c|^2 + mean over s of |s - mean|^2
    centre = ours.mean(axis=0, dtype=np.float64)
    around = np.square(ours - centre).sum(axis=1, dtype=np.float64).mean()
    apart: NDArray[np.float64] = np.square(theirs - centre).sum(axis=1, dtype=np.float64) + around
    return apart / ours.shape[1]


def scaled_squares(samples: NDArray[np.floating], candidates: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return `mean_squares` in units of the candidates' variance, so that features of several judges can be added up.

    Args:
        samples: (num_samples, dim).
        candidates: (num_candidates, dim).
    """
    variance = float(candidates.var(axis=0, dtype=np.float64).mean())
    return mean_squares(samples, candidates) / max(variance, 1e-12)


def mid_rank(true: float, others: NDArray[np.float64]) -> float:
    """Return the share of other candidates that are nearer than the true image, ties counted half; NaN without others.

    Example:
        >>> import numpy as np
        >>> mid_rank(0.5, np.array([0.1, 0.5, 0.9, 0.9]))
        0.375
    """
    if not len(others) or np.isnan(true):
        return float("nan")
    return float(halves_nearer(true, others).mean() / 2)


class Pictures:
    """Pictures to which others are compared as wholes, block by block.

    Args:
        pictures: (num_pictures, side, side, 3) uint8.
    """

    def __init__(self, pictures: NDArray[np.uint8]) -> None:
        self.pictures = pictures
        self._flat = pictures.reshape(len(pictures), -1)
        self._squares = np.concatenate([np.square(_unit(block)).sum(axis=1) for block in self._blocks()])

    def _blocks(self) -> Iterator[NDArray[np.uint8]]:
        for start in range(0, len(self._flat), PICTURES_AT_ONCE):
            yield self._flat[start : start + PICTURES_AT_ONCE]

    def nearest(self, samples: NDArray[np.uint8], *, rank: int = 0) -> NDArray[np.float64]:
        """Return the distance of each sample to the nearest picture, or to a later one in order of distance: (num_samples,).

        Distances are root mean square differences of pixel values in [0, 1].

        Args:
            samples: (num_samples, side, side, 3).
            rank: 0 for the nearest, 1 for the next one.
        """
        ours = _unit(samples.reshape(len(samples), -1))
        near = np.full((len(ours), 0), np.inf, dtype=np.float32)
        for number, block in enumerate(self._blocks()):
            squares = self._squares[number * PICTURES_AT_ONCE : number * PICTURES_AT_ONCE + len(block)]
            near = np.concatenate([near, squares - 2 * ours @ _unit(block).T], axis=1)
            near = np.partition(near, rank, axis=1)[:, : rank + 1]
        apart = near.max(axis=1) + np.square(ours).sum(axis=1)
        distances: NDArray[np.float64] = np.sqrt(np.maximum(apart, 0).astype(np.float64) / ours.shape[1])
        return distances

    def copy_distance(self, *, most: int = 500) -> float:
        """Return the distance below which a sample counts as a copy: half the median distance between nearest pictures.

        Args:
            most: number of pictures, evenly spaced, whose nearest other picture is searched.
        """
        asked = np.unique(np.linspace(0, len(self.pictures) - 1, min(most, len(self.pictures))).astype(np.int64))
        return float(np.median(self.nearest(self.pictures[asked], rank=1)) / 2)  # the nearest is the picture itself


def _unit(flat: NDArray[np.uint8]) -> NDArray[np.float32]:
    return flat.astype(np.float32) / np.float32(255)


def spread(samples: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Return the standard deviation over samples of pixel values in [0, 1], averaged over a mask; NaN for one sample."""
    if len(samples) < 2 or not where.any():
        return float("nan")
    return float((samples[:, where] / 255).std(axis=0, ddof=1).mean())
