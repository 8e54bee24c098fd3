"""Small changes of training images that keep what they show: shifts, mirror images, erased squares.

Every change is a pure function of (seed, step, global example index), so that arms of a study see the same pictures, a
resumed run needs no stored state, and two ranks see together what one rank sees. Validation images are never changed.
"""

import numpy as np

from qkv.data.config import ImageOptions
from qkv.randomness import generator

_LEAST_SQUARE, _MOST_SQUARE = 0.15, 0.5
"""Side of an erased square as a share of the image's shorter side."""


def augmented(
    pixels: np.ndarray, options: ImageOptions, fill: int, seed: int, step: int, examples: np.ndarray
) -> np.ndarray:
    """uint8 [batch, channels, height, width] -> the same shape, each image changed by draws of its own.

    A shift is a whole number of pixels, uniform up to `options.shift` of each side in both directions; what comes in at
    an edge repeats it. With `options.flip` half of the images are mirrored left to right. Of `options.erase` of them a
    square somewhere, cut off at the edges, is set to `fill` (DeVries and Taylor 2017, arXiv 1708.04552; Zhong et al.
    2017, arXiv 1708.04896). examples: int64 [batch].
    """
    if not (options.shift or options.flip or options.erase):
        return pixels
    batch, channels, height, width = pixels.shape
    draws = np.stack([generator(seed, "augment", step, int(example)).random(7) for example in examples])
    rows, columns = np.arange(height)[None], np.arange(width)[None]
    rows = np.clip(rows + _shift(draws[:, 0], options.shift * height), 0, height - 1)
    columns = np.clip(columns + _shift(draws[:, 1], options.shift * width), 0, width - 1)
    if options.flip:
        columns = np.where(draws[:, 2:3] < 0.5, columns[:, ::-1], columns)
    place = np.arange(batch)[:, None, None, None], np.arange(channels)[None, :, None, None]
    out = pixels[(*place, rows[:, None, :, None], columns[:, None, None, :])]
    if options.erase:
        side = (_LEAST_SQUARE + (_MOST_SQUARE - _LEAST_SQUARE) * draws[:, 4:5]) * min(height, width)
        inside_rows = np.abs(np.arange(height)[None] + 0.5 - draws[:, 5:6] * height) < side / 2
        inside_columns = np.abs(np.arange(width)[None] + 0.5 - draws[:, 6:7] * width) < side / 2
        chosen = draws[:, 3] < options.erase
        erased = inside_rows[:, None, :, None] & inside_columns[:, None, None, :] & chosen[:, None, None, None]
        out = np.where(erased, np.uint8(fill), out)
    return out


def _shift(draws: np.ndarray, most: float) -> np.ndarray:
    """Whole numbers from -most to most, equally likely: int64 [batch, 1]."""
    n = int(round(most))
    return np.floor(draws * (2 * n + 1)).astype(np.int64)[:, None] - n
