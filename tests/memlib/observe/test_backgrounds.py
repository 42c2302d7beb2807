"""Background classifiers predict what the background reveals, for images that they were not fitted to, and nothing else."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from memlib.observe.backgrounds import answers_of, cut_crops, folds_of, name_with_network, name_with_words
from memlib.specs import ModelSpec
from memlib.specs.backgrounds import BackgroundSpec, CropNetwork, VisualWords

CPU = torch.device("cpu")
NETWORK = CropNetwork(kind="network", model=ModelSpec(width=4, projector=(16,), input_size=8), epochs=8, batch_size=16)
WORDS = VisualWords(kind="visual_words", words=16, side=8, patch_size=3, stride=1)


def named(
    spec: BackgroundSpec, known: NDArray[np.uint8], labels: NDArray[np.int64], asked: NDArray[np.uint8]
) -> NDArray[np.float64]:
    if isinstance(spec, CropNetwork):
        quiet = {"device": CPU, "progress": lambda done, total: None}
        return name_with_network(spec, known, labels, asked, num_classes=3, seed=1, **quiet)
    return name_with_words(spec, known, labels, asked, num_classes=3, seed=1)


def striped(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Crops with stripes across, down or none: what a background may tell."""
    labels = rng.integers(0, 3, size=count)
    crops = rng.integers(90, 120, size=(count, 3, 8, 8))
    crops[labels == 0, :, ::2] += 100
    crops[labels == 1, :, :, ::2] += 100
    return crops.astype(np.uint8), labels


@pytest.mark.parametrize("spec", [NETWORK, WORDS], ids=["network", "visual words"])
def test_the_class_is_read_from_informative_backgrounds_and_guessed_from_noise(spec: BackgroundSpec) -> None:
    rng = np.random.default_rng(0)
    crops, labels = striped(240, rng)
    probabilities = named(spec, crops[:180], labels[:180], crops[180:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    assert (probabilities.argmax(axis=1) == labels[180:]).mean() > 0.85
    noise = rng.integers(90, 120, size=crops.shape).astype(np.uint8)
    guessed = named(spec, noise[:180], labels[:180], noise[180:]).argmax(axis=1)
    assert (guessed == labels[180:]).mean() <= 0.65  # P(Binomial(60, 1/3) > 39) = 2e-7
    np.testing.assert_array_equal(named(spec, crops[:180], labels[:180], crops[180:]), probabilities)


def test_naive_bayes_equals_its_formula() -> None:
    rng = np.random.default_rng(1)
    crops, labels = striped(30, rng)
    labels[labels == 1] = 2  # a class of which there is no crop
    spec = WORDS.model_copy(update={"words": 2, "patch_size": 8, "stride": 8})  # a crop is one word
    found = name_with_words(spec, crops, labels, crops, num_classes=3, seed=0)
    assert (found[:, 1] == 0).all()
    words = np.unique(found[:, 0].round(12), return_inverse=True)[1]  # crops of one word get one answer
    counts = np.array([[((words == word) & (labels == label)).sum() for word in range(2)] for label in (0, 2)])
    prior = np.array([(labels == label).mean() for label in (0, 2)])
    likely = prior[:, None] * (counts + 1) / (counts.sum(axis=1, keepdims=True) + 2)
    np.testing.assert_allclose(found[:, [0, 2]], (likely / likely.sum(axis=0)).T[words], rtol=1e-9)


def test_folds_keep_groups_together_and_classes_even_and_do_not_depend_on_order() -> None:
    rng = np.random.default_rng(2)
    ids, labels = [f"image {number}" for number in range(103)], rng.integers(0, 4, size=103)
    each = np.arange(103)
    fold = folds_of(ids, labels, each, 5, seed=3)
    for label in range(4):
        counts = np.bincount(fold[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    order = rng.permutation(103)
    shuffled = folds_of([ids[place] for place in order], labels[order], each[order], 5, seed=3)
    np.testing.assert_array_equal(shuffled, fold[order])
    assert (folds_of(ids, labels, each, 5, seed=4) != fold).any()
    groups = np.repeat(np.arange(35), 3)[:103]
    together = folds_of(ids, labels, groups, 5, seed=3)
    assert all(len(set(together[groups == group])) == 1 for group in range(35))
    assert set(together) == set(range(5))


def test_crops_are_cut_and_resized_and_contain_nothing_else() -> None:
    images = np.zeros((2, 16, 16, 3), dtype=np.uint8)
    images[:, 4:12, 4:12] = 255  # the object
    images[1, :4] = 77
    crops = cut_crops(images, np.array([1, 0]), np.array([[0, 0, 16, 4], [12, 0, 16, 16]]), side=8)
    assert crops.shape == (2, 3, 8, 8)
    assert set(np.unique(crops[0])) == {77}
    assert set(np.unique(crops[1])) == {0}


def test_confidence_of_backgrounds_is_the_negative_entropy() -> None:
    prediction, confidence = answers_of(np.array([[1.0, 0.0, 0.0], [0.2, 0.4, 0.4], [1 / 3, 1 / 3, 1 / 3]]))
    assert prediction.tolist() == [0, 1, 0]
    np.testing.assert_allclose(confidence, [0, 0.2 * np.log(0.2) + 0.8 * np.log(0.4), -np.log(3)])
