"""Changes of training images: pure functions of (seed, step, example) that keep what an image shows."""

import numpy as np
import pytest

from qkv.data.augmenting import augmented
from qkv.data.config import ImageOptions
from qkv.randomness import generator

PIXELS = generator("tests", "augmenting").integers(1, 256, (400, 2, 10, 8)).astype(np.uint8)
EXAMPLES = np.arange(400)


def changed(options: ImageOptions, seed: int = 1, step: int = 0, examples: np.ndarray = EXAMPLES) -> np.ndarray:
    return augmented(PIXELS[examples], options, 0, seed, step, examples)


def test_with_everything_off_images_are_as_they_were():
    assert np.array_equal(changed(ImageOptions(shift=0.0)), PIXELS)


def test_an_image_has_the_same_fate_in_any_batch_and_another_in_another_step_or_seed():
    options = ImageOptions(shift=0.2, flip=True, erase=0.5)
    whole = changed(options)
    assert np.array_equal(changed(options, examples=EXAMPLES[100:120]), whole[100:120])
    assert not np.array_equal(changed(options, step=1), whole) and not np.array_equal(changed(options, seed=2), whole)


def test_a_shift_moves_whole_pixels_at_most_as_far_as_allowed_and_every_distance_occurs():
    seen = set()
    for before, after in zip(PIXELS, changed(ImageOptions(shift=0.2)), strict=True):
        moves = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if np.array_equal(
                after, before[:, np.clip(np.arange(10) + dy, 0, 9)][..., np.clip(np.arange(8) + dx, 0, 7)]
            )
        ]
        assert len(moves) == 1
        seen |= set(moves)
    assert {dy for dy, _ in seen} == {-2, -1, 0, 1, 2}  # 0.2 of 10 rows
    assert {dx for _, dx in seen} == {-2, -1, 0, 1, 2}  # 0.2 of 8 columns, rounded


def test_half_of_the_images_are_mirrored():
    after = changed(ImageOptions(shift=0.0, flip=True))
    mirrored = np.array([np.array_equal(a, b[..., ::-1]) for a, b in zip(after, PIXELS, strict=True)])
    plain = np.array([np.array_equal(a, b) for a, b in zip(after, PIXELS, strict=True)])
    assert np.array_equal(mirrored, ~plain) and 0.4 < mirrored.mean() < 0.6


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_square_is_erased_from_a_share_of_the_images_and_the_rest_is_untouched(share):
    after = changed(ImageOptions(shift=0.0, erase=share))
    gone = (after != PIXELS).any(axis=1)
    assert (after[np.broadcast_to(gone[:, None], after.shape)] == 0).all()
    touched = gone.any(axis=(1, 2))
    assert abs(touched.mean() - share) < 0.08 or (share == 1.0 and touched.mean() > 0.95)
    for mask in gone[touched]:
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert len(rows) <= 5 and len(columns) <= 5  # at most half of the shorter side, and its edge
