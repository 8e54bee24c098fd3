"""Image files by Pillow (extra `image`): a folder for each class, or single files that somebody asks about.

All images come out with one size and one number of channels. Grey stays grey where every file is; a transparent pixel
lies on black. Files whose shape differs are scaled until they cover the common size, and what juts out is cut off
evenly. Animations are their first picture. Grey of 16 bits is brought to 8; grey without a known white (real numbers,
32 bits) is refused. Nothing is executed or unpickled, and a file that claims to be larger than Pillow's limit is
refused.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import MissingExtra, SourceError
from qkv.installing import install

__all__ = ["CLASS_SUFFIXES", "class_folders", "read_classes", "read_pictures"]

CLASS_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
)
"""How the name of an image file ends."""
_LONGEST_SIDE = 64
"""Of images for which no size was asked: beyond it a processor would be busy for hours."""
_MOST_BYTES = 4 << 30
_GREY = frozenset({"1", "L", "LA", "I", "F"})
_UP_TO_65535 = frozenset({"PNG", "PPM"})
"""Formats whose whole numbers (mode I) are of 16 bits."""


def class_folders(folder: Path) -> list[Path]:
    """The folders in it that hold image files, by name."""
    return sorted(
        inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith(".") and _files(inner)
    )


def read_classes(folder: Path, size: int, shape: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray, str, str]:
    """(pixels uint8 [n, channels, height, width], the class of each [n], sha256 of names and bytes, a note).

    Without `shape` (channels, height, width) the most frequent size counts, brought to a longer side of `size`, or of
    at most 64.

    Raises SourceError for a folder without classes or a file that cannot be read, MissingExtra without Pillow.
    """
    folders = class_folders(folder)
    if not folders:
        raise SourceError(
            f"{str(folder)!r} holds no images that can be read; expected an IDX file (NAME-images-idx3-ubyte),"
            f" or a folder for each class with files such as .png or .jpg"
        )
    files = [(file, inner.name) for inner in folders for file in _files(inner)]
    digest = hashlib.sha256()
    for file, name in files:
        digest.update(f"{name}/{file.name}\0".encode("utf-8", "surrogateescape"))
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    note = ""
    if shape is None:
        shape, note = _survey([file for file, _ in files], size)
    needed = len(files) * int(np.prod(shape))
    if needed > _MOST_BYTES:
        raise SourceError(
            f"{len(files):,} images of {shape[2]} x {shape[1]} pixels are {needed / 2**30:.1f} GiB; expected at most 4"
        )
    pixels = read_pictures([file for file, _ in files], shape)
    return pixels, np.array([name for _, name in files]), digest.hexdigest(), note


def read_pictures(files: Sequence[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Image files as uint8 [n, channels, height, width], brought to that shape.

    Raises SourceError for a file that is no image or is cut off, MissingExtra without Pillow.
    """
    channels, height, width = shape
    out = np.empty((len(files), channels, height, width), np.uint8)
    for i, file in enumerate(files):
        with _opened(file) as image:
            image = _of_8_bits(image, file)
            if "A" in image.getbands() or "transparency" in image.info:
                image = _on_black(image)
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = _covering(image, width, height)
            out[i] = np.moveaxis(np.asarray(image).reshape(height, width, channels), 2, 0)
    return out


def _files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in CLASS_SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _survey(files: Sequence[Path], size: int) -> tuple[tuple[int, int, int], str]:
    """The common shape of files, by their headers, and what a person should know about it."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for file in files:
        with _opened(file) as image:
            sizes[image.size] += 1
            grey = grey and (image.mode in _GREY or image.mode.startswith("I;"))
    (width, height), n = max(sizes.items(), key=lambda item: (item[1], item[0]))
    longest = size or min(_LONGEST_SIDE, max(width, height))
    factor = longest / max(width, height)
    shape = 1 if grey else 3, max(1, round(height * factor)), max(1, round(width * factor))
    changed = len(files) - (n if factor == 1 else 0)
    note = f"{changed:,} of {len(files):,} images were resized to {shape[2]} x {shape[1]}" if changed else ""
    return shape, note


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(f"image files need another library; type: {install('image')}") from None
    return Image


class _opened:
    """An image file, loaded; what Pillow raises becomes one sentence."""

    def __init__(self, file: Path) -> None:
        self._file, self._library = file, _pillow()

    def __enter__(self) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", self._library.DecompressionBombWarning)
                self._image = self._library.open(self._file)
        except (OSError, ValueError, SyntaxError, self._library.DecompressionBombError, Warning) as error:
            raise self._refused(error) from None
        return self._image

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._image.close()
        if isinstance(error, OSError | ValueError | SyntaxError):
            raise self._refused(error) from None

    def _refused(self, error: BaseException) -> SourceError:
        if isinstance(error, FileNotFoundError):
            return SourceError(f"{str(self._file)!r} does not exist; expected an image file, such as a .png")
        return SourceError(f"{str(self._file)!r} cannot be read as an image: {error}")


def _of_8_bits(image: Any, file: Path) -> Any:
    """Grey of 16 bits divided by 257, anything else as it is: Pillow's own conversion makes all above 255 white.

    Raises SourceError for grey that may lie anywhere.
    """
    if image.mode == "F" or (image.mode == "I" and image.format not in _UP_TO_65535):
        kind = "real numbers" if image.mode == "F" else "whole numbers of 32 bits"
        raise SourceError(
            f"{str(file)!r} holds {kind}, of which none is known as white; save it as grey of 8 or 16 bits"
        )
    if image.mode[0] != "I":
        return image
    values = np.asarray(image).astype(np.int64)
    values[values == image.info.get("transparency", -1)] = 0  # on black
    return _pillow().fromarray(((values + 128) // 257).astype(np.uint8))


def _on_black(image: Any) -> Any:
    with_alpha = image.convert("RGBA")
    black = _pillow().new("RGBA", with_alpha.size, (0, 0, 0, 255))
    return _pillow().alpha_composite(black, with_alpha)


def _covering(image: Any, width: int, height: int) -> Any:
    """Scaled until it covers width x height, the rest cut off evenly."""
    factor = max(width / image.width, height / image.height)
    size = max(width, round(image.width * factor)), max(height, round(image.height * factor))
    image = image.resize(size, _pillow().Resampling.BICUBIC if factor >= 1 else _pillow().Resampling.BOX)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return image.crop((left, top, left + width, top + height))
