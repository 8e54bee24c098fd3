"""Image files by Pillow (extra `image`): a folder for each class, or single files that somebody asks about.

All images come out with one size and one number of channels. Grey stays grey where every file is; a transparent pixel
lies on black. A photo lies upright, as its EXIF orientation says. Files whose shape differs are scaled until they cover
the common size, and what juts out is cut off evenly. Animations are their first picture. Grey of 16 bits is brought to
8; grey without a known white (real numbers, 32 bits) is refused. Nothing is executed or unpickled, no other program is
started, and a file that claims to be larger than Pillow's limit is refused.
"""

import contextlib
import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.sources.reading import unreadable
from qkv.data.sources.receipt import Passed
from qkv.errors import MissingExtra, QkvError, SourceError
from qkv.installing import install
from qkv.signatures import signature_of_file
from qkv.words import many, some

_FORMATS = {
    "PNG": ".png", "JPEG": ".jpg .jpeg .jpe .jfif", "JPEG2000": ".jp2 .j2k", "AVIF": ".avif", "QOI": ".qoi",
    "BMP": ".bmp", "GIF": ".gif", "WEBP": ".webp", "TIFF": ".tif .tiff", "PPM": ".ppm .pgm .pbm .pnm",
}  # fmt: skip
"""What Pillow calls a format -> how names of its files end. Whatever its name is, a file is taken for one of these and
for nothing else: other formats may start another program, as PostScript does (Ghostscript)."""
CLASS_SUFFIXES = frozenset(ending for endings in _FORMATS.values() for ending in endings.split())
"""How the name of an image file ends."""
_LONGEST_SIDE = 64
"""Of images for which no size was asked: beyond it a processor would be busy for hours."""
_MOST_BYTES = 4 << 30
_WORDS = frozenset((".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml", ".toml", ".py"))
"""How names of files end that lie beside images and are none."""
_GREY = frozenset({"1", "L", "LA", "I", "F"})
_ORIENTATION = 0x0112
"""The EXIF tag; from 5 on width and height change places."""
_UP_TO_65535 = frozenset({"PNG", "PPM"})
"""Formats whose whole numbers (mode I) are of 16 bits."""


def class_folders(folder: Path) -> list[Path]:
    """The folders in it that hold image files, by name."""
    return [inner for inner in listed(folder) if inner.is_dir() and image_files(inner)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadImages:
    """One part of some images as it was read: labels are still names."""

    pixels: np.ndarray
    """uint8 [n, channels, height, width]"""
    names: np.ndarray
    """The class of each image, [n]."""
    sha256: str
    """Of names and bytes."""
    files: list[tuple[Path, int, int]]
    """Each file with its first image and the bytes of one; what a file holds beside its images is its header."""
    passed: list[Passed] = field(default_factory=list)
    """What lies in the folder and is not read."""
    note: str = ""


def read_classes(folder: Path, size: int, shape: tuple[int, ...] | None) -> ReadImages:
    """All images of a folder with a folder for each class.

    Without `shape` (channels, height, width) the most frequent size counts, brought to a longer side of `size`, or of
    at most 64.

    Raises SourceError for a folder without classes, a class of which no file can be read, or a file that is damaged;
    MissingExtra without Pillow.
    """
    folders = class_folders(folder)
    if not folders:
        known = next(((file, known) for file in listed(folder) if (known := signature_of_file(file))), None)
        if known:
            raise SourceError(
                f"{str(folder)!r} holds no images that can be read; {known[0].name} is {known[1].told(known[0])}"
            )
        raise SourceError(
            f"{str(folder)!r} holds no images that can be read; expected an IDX file (NAME-images-idx3-ubyte),"
            " or a folder for each class with files whose names end in .png, .jpg, ..."
        )
    passed = _unread(folder, folders)
    files = [(file, inner.name) for inner in folders for file in image_files(inner)]
    digest = hashlib.sha256()
    for file, name in files:
        digest.update(f"{name}/{file.name}\0".encode("utf-8", "surrogateescape"))
        digest.update(file_hash(file))
    note = ""
    if shape is None:
        shape, note = _survey([file for file, _ in files], size)
    note = "; ".join(filter(None, (note, _told(passed))))
    needed = len(files) * int(np.prod(shape))
    if needed > _MOST_BYTES:
        raise SourceError(
            f"{len(files):,} images of {shape[2]} x {shape[1]} pixels are {needed / 2**30:.1f} GiB; expected at most 4"
        )
    paths = [file for file, _ in files]
    names = np.array([name for _, name in files])
    return ReadImages(
        pixels=read_pictures(paths, shape),
        names=names,
        sha256=digest.hexdigest(),
        files=[(file, i, file.stat().st_size) for i, file in enumerate(paths)],
        passed=passed,
        note=note,
    )


def _unread(folder: Path, classes: list[Path]) -> list[Passed]:
    """What lies in a folder of classes and is not read.

    Raises SourceError for a folder beside the classes that holds files, none of which can be read, or nothing at all.
    """
    passed: list[Passed] = []
    for inner in sorted(path for path in folder.iterdir() if path not in classes):
        if inner.name.startswith("."):
            passed.append(Passed(inner, "hidden"))
        elif not inner.is_dir():
            passed.append(Passed(inner, "in the folder of no class"))
        else:
            endings = Counter(file.suffix.lower() for file in listed(inner) if file.is_file())
            if not endings or set(endings) - _WORDS:
                what = f"{many(sum(endings.values()), 'file')} ({', '.join(sorted(endings))})" if endings else "no file"
                raise SourceError(
                    f"the class {inner.name!r} of {str(folder)!r} would vanish: it holds {what}, and none that can be"
                    f" read as an image; convert them to .png, or take the folder out"
                )
            passed.append(Passed(inner, "a folder without images"))
    for inner in classes:
        read = set(image_files(inner))
        for path in sorted(path for path in inner.iterdir() if path not in read):
            kind = "hidden" if path.name.startswith(".") else "a folder inside a class" if path.is_dir() else ""
            passed.append(Passed(path, kind or "no image file by its name"))
    return passed


def _told(passed: list[Passed]) -> str:
    """What of a folder of classes is not read and may be meant as an image, by class and ending; else empty."""
    counts = Counter(
        (one.path.parent.name, one.path.suffix.lower() or one.why)
        for one in passed
        if one.why != "hidden" and one.path.suffix.lower() not in _WORDS
    )
    found = [f"{n:,} of {name!r} ({ending})" for (name, ending), n in counts.items()]
    return f"not read: {some(found, 6)}" if found else ""


def read_pictures(files: Sequence[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Image files as uint8 [n, channels, height, width], brought to that shape.

    Raises SourceError for a file that is no image or is cut off, MissingExtra without Pillow.
    """
    channels, height, width = shape
    out = np.empty((len(files), channels, height, width), np.uint8)
    for i, file in enumerate(files):
        with _opened(file) as image:
            image = _of_8_bits(_upright(image), file)
            if "A" in image.getbands() or "transparency" in image.info:
                image = _on_black(image)
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = _covering(image, width, height, file)
            out[i] = np.moveaxis(np.asarray(image).reshape(height, width, channels), 2, 0)
    return out


def image_files(folder: Path) -> list[Path]:
    """The image files that lie in a folder, by name."""
    return [file for file in listed(folder) if file.suffix.lower() in CLASS_SUFFIXES and file.is_file()]


def _formats() -> list[str]:
    """Pillow's names of the formats that are read, as far as this version of it has them."""
    library = _pillow()
    library.init()
    return [name for name in _FORMATS if name in library.OPEN]


def listed(folder: Path) -> list[Path]:
    """What lies in a folder, by name, hidden names left out. Raises SourceError where it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise SourceError(f"folder {str(folder)!r} cannot be read: {error.strerror or error}") from None


def file_hash(file: Path) -> bytes:
    """The sha256 of a file. Raises SourceError where it cannot be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise unreadable(file, error) from None


def _survey(files: Sequence[Path], size: int) -> tuple[tuple[int, int, int], str]:
    """The common shape of files, by their headers, and what a person should know about it."""
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for file in files:
        with _opened(file) as image:
            knows = image.format != "PNG" or "exif" in image.info  # else it would be decoded to look for it
            lies = knows and image.getexif().get(_ORIENTATION, 1) >= 5
            sizes[image.size[::-1] if lies else image.size] += 1
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
    log = logging.getLogger("PIL")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # what is wrong with a file is said here, once
    return Image


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An image file while it is decoded; whatever its decoder raises, which may be anything, becomes one sentence."""
    library = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a decoder mends is in the picture, or ends in an error
            warnings.simplefilter("error", library.DecompressionBombWarning)
            with library.open(file, formats=_formats()) as image:
                yield image
    except QkvError:
        raise
    except Exception as error:  # struct.error, SyntaxError, OverflowError, MemoryError and more, for damaged bytes
        raise _refused(file, error) from None


def _refused(file: Path, error: Exception) -> SourceError:
    """The error for a file that Pillow does not open or decode: the cause as far as it is known."""
    library = _pillow()
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{str(file)!r} does not exist; expected an image file, such as a .png")
    if isinstance(error, library.DecompressionBombWarning | library.DecompressionBombError):
        reason = f"it claims more than {library.MAX_IMAGE_PIXELS:,} pixels"
    elif isinstance(error, library.UnidentifiedImageError):
        known = signature_of_file(file)
        *formats, last = _formats()
        reason = f"it is {known.what}" if known else "it is of no kind that is known, or damaged at its beginning"
        reason += f"; expected {', '.join(formats)} or {last}"
    else:
        said = getattr(error, "strerror", None) or str(error)
        reason = said.splitlines()[0][:200] if said.strip() else type(error).__name__
    return SourceError(f"{str(file)!r} cannot be read as an image: {reason}")


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


def _upright(image: Any) -> Any:
    """The image as it is looked at: turned and mirrored as its EXIF orientation says."""
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned is not image:
        turned.format = image.format
    return turned


def _on_black(image: Any) -> Any:
    with_alpha = image.convert("RGBA")
    black = _pillow().new("RGBA", with_alpha.size, (0, 0, 0, 255))
    return _pillow().alpha_composite(black, with_alpha)


def _covering(image: Any, width: int, height: int, file: Path) -> Any:
    """Scaled until it covers width x height, the rest cut off evenly.

    Raises SourceError for an image so narrow that scaled it would be beyond Pillow's limit.
    """
    factor = max(width / image.width, height / image.height)
    size = max(width, round(image.width * factor)), max(height, round(image.height * factor))
    if size[0] * size[1] > _pillow().MAX_IMAGE_PIXELS:
        raise SourceError(
            f"{str(file)!r} is {image.width} x {image.height} pixels, too narrow to be brought to {width} x {height}"
        )
    image = image.resize(size, _pillow().Resampling.BICUBIC if factor >= 1 else _pillow().Resampling.BOX)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return image.crop((left, top, left + width, top + height))
