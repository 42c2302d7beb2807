"""Measures of a reconstruction: only the part of the image that the crop did not show counts.

Attackers know the crop, so that any measure of whole images would reward copying it. Every function takes the hidden part as
a mask, or takes pictures whose shown part was painted over.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from memlib.observe.embeddings import cut
from memlib.stats.ranks import halves_nearer

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
    """Paint over the shown part of pictures.

    Args:
        pictures: (num_pictures, side, side, 3).
        hidden: (side, side) mask of the hidden part, or (num_pictures, side, side).
    """
    mask = np.broadcast_to(hidden, pictures.shape[:3])[..., None]
    return np.where(mask, pictures, np.array(PAINT, dtype=np.uint8))


def resized(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resize pictures (num_pictures, size, size, channels) to colour pictures (num_pictures, side, side, 3)."""
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


def copy_distance(public: NDArray[np.uint8], *, most: int = 500) -> float:
    """Return the distance to a public image below which a sample counts as its copy: half the median between neighbours.

    Args:
        public: (num_public, side, side, 3).
        most: number of public images, evenly spaced, whose nearest other image is searched.

    Returns:
        root mean square difference of pixel values in [0, 1].
    """
    flat = _flat(public)
    asked = np.unique(np.linspace(0, len(flat) - 1, min(most, len(flat))).astype(np.int64))
    apart = np.sqrt(np.partition(_squares(flat[asked], flat), 1, axis=1)[:, 1])  # the nearest is the image itself
    return float(np.median(apart) / 2)


def nearest_public(samples: NDArray[np.uint8], public: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the distance of each sample to the nearest public image, whole pictures: (num_samples,), as `copy_distance`."""
    nearest: NDArray[np.float64] = np.sqrt(_squares(_flat(samples), _flat(public)).min(axis=1, initial=np.inf))
    return nearest


def _flat(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pictures.reshape(len(pictures), -1).astype(np.float32) / np.float32(255)


def _squares(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return mean squared differences, (num_ours, num_theirs)."""
    sums = np.square(ours).sum(axis=1)[:, None] + np.square(theirs).sum(axis=1) - 2 * ours @ theirs.T
    squares: NDArray[np.float64] = np.maximum(sums, 0).astype(np.float64) / ours.shape[1]
    return squares


def spread(samples: NDArray[np.uint8], where: NDArray[np.bool_]) -> float:
    """Return the standard deviation over samples of pixel values in [0, 1], averaged over a part; NaN for one sample."""
    if len(samples) < 2 or not where.any():
        return float("nan")
    return float((samples[:, where] / 255).std(axis=0, ddof=1).mean())
