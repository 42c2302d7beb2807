"""The measures of a reconstruction see nothing of what the crop showed, and agree with slow plain versions."""

import numpy as np
import pytest

from memlib.audits.deja_vu.reconstruction.measures import (
    PAINT,
    Pictures,
    hidden_part,
    mean_squares,
    mid_rank,
    painted,
    pixel_distances,
    resized,
    scaled_squares,
    spread,
)


def pictures(count: int, side: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3)).astype(np.uint8)


def test_hidden_part_of_an_image_of_the_same_size_is_all_but_the_crop() -> None:
    hidden = hidden_part(np.array([1, 0, 3, 2]), size=4, side=4)
    assert hidden.tolist() == [
        [True, False, False, True],
        [True, False, False, True],
        [True, True, True, True],
        [True, True, True, True],
    ]


def test_hidden_part_of_a_smaller_picture_excludes_a_margin_around_the_crop() -> None:
    hidden = hidden_part(np.array([4, 4, 8, 8]), size=16, side=8)  # pixels 2 and 3 show the crop, 1 and 4 are mixed with it
    assert np.flatnonzero(~hidden.all(axis=0)).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(~hidden.all(axis=1)).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("box", [(0, 0, 13, 40), (5, 20, 64, 64), (3, 0, 29, 11)])
def test_hidden_part_of_a_smaller_picture_does_not_depend_on_the_pixels_of_the_crop(box: tuple[int, ...]) -> None:
    image, x0, y0, x1, y1 = pictures(1, 64), *box
    other = image.copy()
    other[:, y0:y1, x0:x1] = 255 - other[:, y0:y1, x0:x1]
    hidden = hidden_part(np.array(box), size=64, side=32)
    assert hidden.any()
    first = np.zeros(1, dtype=np.int64)
    assert (resized(image, first, 32)[:, hidden] == resized(other, first, 32)[:, hidden]).all()


def test_pixel_distances_agree_with_a_plain_version_and_ignore_the_crop() -> None:
    samples, candidates, hidden = pictures(3, 6), pictures(5, 6, seed=1), hidden_part(np.array([0, 0, 6, 2]), size=6, side=6)
    found = pixel_distances(samples, candidates, hidden)
    for number, candidate in enumerate(candidates):
        apart = [((sample[2:] / 255 - candidate[2:] / 255) ** 2).mean() for sample in samples]
        assert found[number] == pytest.approx(np.mean(apart))
    samples[:, :2] = 0
    assert pixel_distances(samples, candidates, hidden) == pytest.approx(found)


def test_pixel_distance_is_undefined_without_a_hidden_part() -> None:
    nothing = np.zeros((6, 6), dtype=bool)
    assert np.isnan(pixel_distances(pictures(1, 6), pictures(2, 6), nothing)).all()


def test_mean_squares_agree_with_a_plain_version() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(4, 7)), rng.normal(size=(3, 7))
    plain = [[((sample - candidate) ** 2).mean() for sample in ours] for candidate in theirs]
    assert mean_squares(ours, theirs) == pytest.approx(np.mean(plain, axis=1))


@pytest.mark.parametrize(
    ("true", "others", "rank"),
    [(0.0, [1, 2, 3], 0.0), (9.0, [1, 2, 3], 1.0), (2.0, [1, 2, 3, 4], 0.375), (1.0, [1, 1], 0.5)],
)
def test_mid_rank_counts_ties_one_half(true: float, others: list[float], rank: float) -> None:
    assert mid_rank(true, np.array(others, dtype=float)) == rank


def test_mid_rank_is_undefined_without_other_candidates() -> None:
    assert np.isnan(mid_rank(1.0, np.zeros(0)))


def test_mid_rank_of_an_exchangeable_image_is_uniform() -> None:
    rng = np.random.default_rng(0)
    ranks = [mid_rank(values[0], values[1:]) for values in rng.normal(size=(4000, 20))]
    assert np.mean(ranks) == pytest.approx(0.5, abs=0.02)


def test_copies_of_public_images_are_found() -> None:
    public = pictures(60, 8)
    known = Pictures(public)
    limit = known.copy_distance()
    samples = np.concatenate(
        [public[[7]], np.clip(public[[7]].astype(int) + 2, 0, 255).astype(np.uint8), pictures(1, 8, seed=9)]
    )
    assert (known.nearest(samples) < limit).tolist() == [True, True, False]
    plain = [np.sqrt(((samples[2] / 255 - image / 255) ** 2).mean()) for image in public]
    assert known.nearest(samples[2:])[0] == pytest.approx(min(plain), rel=1e-4)


def test_painted_covers_the_crop_and_keeps_the_hidden_part() -> None:
    hidden = hidden_part(np.array([0, 0, 3, 3]), size=6, side=6)
    before, after = pictures(2, 6), painted(pictures(2, 6), hidden)
    assert (after[:, :3, :3] == np.array(PAINT)).all()
    assert (after[:, hidden] == before[:, hidden]).all()


def test_spread_is_the_standard_deviation_of_the_samples_in_a_part() -> None:
    samples = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    samples[1, :2] = 255
    top = np.zeros((4, 4), dtype=bool)
    top[:2] = True
    assert spread(samples, top) == pytest.approx(np.sqrt(0.5))
    assert spread(samples, ~top) == 0
    assert np.isnan(spread(samples[:1], top))


def test_scaled_squares_do_not_depend_on_the_scale_of_features() -> None:
    rng = np.random.default_rng(0)
    samples, candidates = rng.normal(size=(3, 5)), rng.normal(size=(20, 5))
    plain = scaled_squares(samples, candidates)
    assert scaled_squares(100 * samples, 100 * candidates) == pytest.approx(plain)
    assert plain * candidates.var(axis=0).mean() == pytest.approx(mean_squares(samples, candidates))
    assert np.isfinite(scaled_squares(samples, np.zeros((4, 5)))).all()
