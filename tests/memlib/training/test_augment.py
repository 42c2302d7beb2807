import pytest
import torch

from memlib.specs import AugmentSpec
from memlib.training.augment import MEAN, STD, apply_view, draw_view, resized_crops

NOTHING = AugmentSpec(crop_scale=(1, 1), crop_ratio=(1, 1), flip=0, jitter=0, grey=0, blur=(0, 0), solarize=(0, 0))


def undo(view: torch.Tensor) -> torch.Tensor:
    return view * torch.tensor(STD).view(1, 3, 1, 1) + torch.tensor(MEAN).view(1, 3, 1, 1)


def apply(images: torch.Tensor, side: int | None = None, **changes: object) -> torch.Tensor:
    spec = NOTHING.model_copy(update=changes)
    draws = draw_view(spec, batch=len(images), seed=0, step=0, view=0)
    return undo(apply_view(images, draws, side=side or images.shape[-1]))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_augmentation_without_transforms_leaves_images_unchanged(images: torch.Tensor) -> None:
    assert torch.allclose(apply(images), images, atol=1e-5)


def test_flip_grey_and_solarize_of_probability_1_equal_their_formulas(images: torch.Tensor) -> None:
    assert torch.allclose(apply(images, flip=1.0), images.flip(3), atol=1e-5)
    grey = apply(images, grey=1.0)
    luma = torch.einsum("j,bjhw->bhw", torch.tensor([0.299, 0.587, 0.114]), images)
    assert torch.allclose(grey, luma[:, None].expand_as(grey), atol=1e-4)
    assert torch.allclose(apply(images, solarize=(1.0, 1.0)), torch.where(images >= 0.5, 1 - images, images), atol=1e-4)


def test_hue_keeps_brightness_and_jitter_keeps_grey_images_grey(images: torch.Tensor) -> None:
    muted = images * 0.2 + 0.4  # so that nothing is clipped
    luma = torch.tensor([0.299, 0.587, 0.114])
    turned = apply(muted, jitter=1.0, brightness=0, contrast=0, saturation=0, hue=0.5)
    assert not torch.allclose(turned, muted, atol=1e-2)
    before, after = (torch.einsum("j,bjhw->bhw", luma, x) for x in (muted, turned))
    assert torch.allclose(before, after, atol=2e-3)
    grey = muted.mean(dim=1, keepdim=True).expand_as(muted)
    assert apply(grey, jitter=1.0).std(dim=1).max() < 2e-3


def test_blur_keeps_the_mean_and_smooths(images: torch.Tensor) -> None:
    blurred = apply(images.repeat(1, 1, 4, 4), blur=(1.0, 1.0))
    assert blurred.mean() == pytest.approx(float(images.mean()), abs=5e-3)
    assert blurred.var() < images.var()


def test_crops_cut_the_rectangle_they_name() -> None:
    image = torch.zeros(2, 3, 20, 20)
    image[:, :, 5:15, 10:20] = 1
    boxes = torch.tensor([[0.5, 0.25, 1.0, 0.75], [0.0, 0.0, 0.5, 1.0]])
    crops = resized_crops(image, boxes, side=8)
    assert crops[0, :, 1:-1, 1:-1].min() == 1
    assert crops[1, :, :, :-1].max() == 0


def test_draws_depend_on_seed_step_view_and_place_alone() -> None:
    spec = AugmentSpec()
    whole = draw_view(spec, batch=8, seed=1, step=5, view=1)
    again = draw_view(spec, batch=8, seed=1, step=5, view=1).part(slice(4, 8))
    assert torch.equal(whole.boxes[4:], again.boxes)
    assert torch.equal(whole.colour[4:], again.colour)
    for other in ({"seed": 2}, {"step": 6}, {"view": 0}):
        assert not torch.equal(draw_view(spec, **({"batch": 8, "seed": 1, "step": 5, "view": 1} | other)).boxes, whole.boxes)


def test_crop_boxes_stay_inside_and_have_the_requested_area() -> None:
    boxes = draw_view(AugmentSpec(crop_scale=(0.2, 0.5)), batch=2000, seed=0, step=0, view=0).boxes
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert area.min() > 0.19
    assert area.max() < 0.51
    assert area.mean() == pytest.approx(0.35, abs=0.01)


def test_the_views_differ_in_how_often_they_blur() -> None:
    spec = AugmentSpec(blur=(1.0, 0.1), solarize=(0.0, 0.2))
    first, second = (draw_view(spec, batch=1000, seed=0, step=0, view=view) for view in (0, 1))
    assert (first.blur > 0).all()
    assert 0.05 < (second.blur > 0).float().mean() < 0.15
    assert not first.solarize.any()
    assert 0.15 < second.solarize.float().mean() < 0.25
