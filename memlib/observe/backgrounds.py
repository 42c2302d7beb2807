"""Prediction of an object from its background alone: classifiers of crops, applied to images outside their training set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from memlib.identity import derive_seed
from memlib.models.encoder import build_encoder
from memlib.observe.embeddings import cut
from memlib.specs.backgrounds import CropNetwork, VisualWords
from memlib.stats.randomization import home_labels
from memlib.training.augment import normalize, pixels
from memlib.training.optim import build_optimizer, learning_rate
from memlib.training.threads import multiplications_of, threads_for

BATCH_ROWS = 256  # number of crops that are cut or classified together
MOST_PATCHES = 2**18  # maximum number of patches from which typical patches are computed
CONTRAST = 10 / 255  # added to a patch's standard deviation, so that flat patches are not amplified
SMOOTHING = 1.0  # added to each count of words (Laplace)


def folds_of(
    ids: Sequence[str], labels: NDArray[np.int64], groups: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Return the fold of each image, (num_images,): groups stay whole, and classes are spread as evenly as they allow.

    Args:
        ids: (num_images,) ids of the images; a group's place depends on the smallest hash of its ids.
        labels: (num_images,) classes.
        groups: (num_images,) int; images of one group are in one fold.
    """
    drawn = np.array([hashlib.sha256(f"{seed}/{name}".encode()).hexdigest() for name in ids])
    numbers = np.unique(groups, return_inverse=True)[1]
    homes = home_labels(labels, numbers)
    first = np.lexsort((drawn, numbers))
    tickets = drawn[first[np.searchsorted(numbers[first], np.arange(len(homes)))]]  # the smallest of each group
    order = np.lexsort((tickets, homes))
    fold = np.empty(len(homes), dtype=np.int64)
    fold[order] = np.arange(len(homes)) % count  # one class after the other
    return fold[numbers]


def cut_crops(
    images: NDArray[np.uint8], rows: NDArray[np.int64], boxes: NDArray[np.int64], *, side: int
) -> NDArray[np.uint8]:
    """Return background crops, resized to (num_images, 3, side, side).

    Args:
        images: (num_stored, size, size, 3) uint8, images of the shard.
        rows: (num_images,) rows of the shard.
        boxes: (num_images, 4) x0, y0, x1, y1 in stored pixels.
        side: side of a crop in pixels; elongated crops are squashed.
    """
    crops = np.empty((len(rows), 3, side, side), dtype=np.uint8)
    for start in range(0, len(rows), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        cropped = cut(pixels(torch.from_numpy(images[rows[part]]), torch.device("cpu")), boxes[part], side=side)
        crops[part] = cropped.mul_(255).round_().clamp_(0, 255).to(torch.uint8).numpy()
    return crops


def name_with_network(
    spec: CropNetwork,
    crops: NDArray[np.uint8],
    labels: NDArray[np.int64],
    asked: NDArray[np.uint8],
    *,
    num_classes: int,
    seed: int,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> NDArray[np.float64]:
    """Fit a network to background crops and return its class probabilities for other crops.

    Args:
        spec: network and training settings.
        crops: (num_crops, 3, side, side).
        labels: (num_crops,) classes of the crops.
        asked: (num_asked, 3, side, side) crops to classify.
        seed: seed of weights, order and mirroring.
        progress: called with (steps done, total steps).

    Returns:
        (num_asked, num_classes).
    """
    network = build_encoder(spec.model, num_classes=num_classes, seed=seed).to(device)
    size = min(spec.batch_size, len(crops)) * multiplications_of(network, torch.zeros(1, *crops.shape[1:], device=device))
    with threads_for(size, device):
        _fit(network, spec, crops, labels, seed=seed, device=device, progress=progress)
    with torch.inference_mode():
        parts = [
            network(normalize(part.to(device).float().div_(255))).double().softmax(dim=1).cpu().numpy()
            for part in torch.split(torch.from_numpy(asked), BATCH_ROWS)
        ]
    return np.concatenate(parts) if parts else np.empty((0, num_classes))


def _fit(
    network: nn.Module,
    spec: CropNetwork,
    crops: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    seed: int,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> None:
    """Fit a network to mirrored crops, and leave it in evaluation mode."""
    network.train()
    optimizer, rng = build_optimizer(spec.optimizer, [network]), torch.Generator().manual_seed(derive_seed(seed, "crops"))
    batch = min(spec.batch_size, len(crops))
    per_epoch = max(1, len(crops) // batch)  # the last incomplete batch is dropped, as in all training
    stored, targets = torch.from_numpy(crops), torch.from_numpy(labels)
    total = spec.epochs * per_epoch
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(crops), generator=rng)
        rows = order[step % per_epoch * batch :][:batch]
        shown = normalize(stored[rows].to(device).float().div_(255))
        mirrored = (torch.rand(len(rows), generator=rng) < 0.5).to(device)[:, None, None, None]
        scores = network(torch.where(mirrored, shown.flip(3), shown))
        loss = F.cross_entropy(scores, targets[rows].to(device))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec.optimizer, step=step, steps_per_epoch=per_epoch, num_steps=total)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress(step + 1, total)
    network.eval()


def name_with_words(
    spec: VisualWords,
    crops: NDArray[np.uint8],
    labels: NDArray[np.int64],
    asked: NDArray[np.uint8],
    *,
    num_classes: int,
    seed: int,
) -> NDArray[np.float64]:
    """Count the visual words of background crops and return naive Bayes' class probabilities for other crops.

    The logarithm of a class's probability is log P(class) + sum over the words of a crop of log P(word | class), normalized
    (Meehan's follow-up, section 3).

    Args:
        spec: number of words, and settings of the patches.
        crops, labels, asked, num_classes: as for `name_with_network`.
        seed: seed of the typical patches.

    Returns:
        (num_asked, num_classes); classes without a crop have 0.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.naive_bayes import MultinomialNB

    def patches(part: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return patches without mean brightness and contrast: (num_crops * patches per crop, 3 * patch_size ** 2)."""
        values = F.unfold(torch.from_numpy(part).float().div_(255), spec.patch_size, stride=spec.stride).transpose(1, 2)
        flat = values.reshape(-1, values.shape[2])
        flat = flat - flat.mean(dim=1, keepdim=True)
        return (flat / (flat.std(dim=1, keepdim=True) + CONTRAST)).numpy()

    each = ((spec.side - spec.patch_size) // spec.stride + 1) ** 2
    rng = np.random.default_rng(seed)
    sampled = rng.permutation(len(crops))[: max(1, MOST_PATCHES // each)]
    typical = patches(crops[sampled])
    means = MiniBatchKMeans(min(spec.words, len(typical)), random_state=seed % 2**32, n_init=1, batch_size=4096).fit(typical)

    def counts(of: NDArray[np.uint8]) -> NDArray[np.float64]:
        values = np.zeros((len(of), means.n_clusters))
        for start in range(0, len(of), BATCH_ROWS):
            part = of[start : start + BATCH_ROWS]
            words = means.predict(patches(part)).reshape(len(part), each)
            np.add.at(values, (start + np.arange(len(part))[:, None], words), 1.0)
        return values

    bayes = MultinomialNB(alpha=SMOOTHING).fit(counts(crops), labels)
    probabilities = np.zeros((len(asked), num_classes))
    if len(asked):
        probabilities[:, bayes.classes_] = bayes.predict_proba(counts(asked))
    return probabilities


def answers_of(probabilities: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the likeliest class of each row, (num_rows,), and its confidence: the negative entropy in nats, at most 0."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return probabilities.argmax(axis=1), (probabilities * logs).sum(axis=1)
