"""Images with labels: IDX files, or a folder with a folder of image files for each class.

IDX (LeCun, Cortes and Burges 1998) is a header and bytes: two zeros, the type (8: unsigned byte), the number of
dimensions, each dimension as a big-endian int32, then the values. Labels lie in a file of the same name in which
"images" reads "labels" and "idx3" "idx1"; both may be gzipped. A folder of classes needs Pillow (extra `image`).

What is read is held whole, as bytes, all of one size. Nothing is downloaded, guessed or repaired here: what does not
fit is said in one sentence.
"""

import hashlib
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from qkv.data.config import ImageOptions
from qkv.data.dataset import DataSet
from qkv.data.labelled import alike
from qkv.data.sources.image_files import (
    CLASS_SUFFIXES,
    ReadImages,
    class_folders,
    file_hash,
    image_files,
    listed,
    read_classes,
)
from qkv.data.sources.published import Role, role_of
from qkv.data.sources.reading import binary_file, size_of
from qkv.data.sources.receipt import Passed, ReadFile, Receipt, Rows, make_receipt
from qkv.data.split import repeated
from qkv.errors import SourceError
from qkv.signatures import is_idx_name, signature_of_file
from qkv.words import plural, some

_SPLIT_SHARE = 0.1
"""Of each class, held out where nothing is given for validation."""
_MOST_HELD_OUT = 10_000
_UBYTE = 8
_AS_THEY_ARE = ImageOptions()


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images of one part, training or validation."""

    pixels: np.ndarray
    """uint8 [n, channels, height, width]."""
    labels: np.ndarray
    """int64 [n]: index into the classes."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Images(DataSet):
    """Images to train on and to measure on."""

    classes: tuple[str, ...]
    """What a label means, in the order of the labels."""
    train: ImageSet
    val: ImageSet
    options: ImageOptions = ImageOptions()
    tokenizer: None = None
    """There is no text."""

    def describe(self) -> str:
        """One line: how many images, of what size, of how many classes."""
        channels, height, width = self.shape
        kind = "grey" if channels == 1 else "colour"
        size = f"{width} x {height} {kind} pixels, {len(self.classes)} classes; {self.rule}"
        counts = f"{len(self.train):,} training and {len(self.val):,} validation images"
        return f"{self.name}: {counts} of {size}." + (f" {self.note}." if self.note else "")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width

    @cached_property
    def level(self) -> tuple[float, float]:
        """Mean and standard deviation of the training pixels, as values in 0..1, over all channels."""
        counts = np.bincount(self.train.pixels.reshape(-1), minlength=256).astype(np.float64)
        values = np.arange(256) / 255
        mean = float((counts * values).sum() / counts.sum())
        return mean, max(1e-3, float(np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum())))


def load_images(
    source: str,
    val: str = "",
    options: ImageOptions = _AS_THEY_ARE,
    classes: tuple[str, ...] = (),
    shape: tuple[int, ...] = (),
) -> Images:
    """Read images and labels, and what they are measured on.

    Without `val`, IDX files and folders that their names say are for validation (see `published`) are measured on, if
    they hold images by class; where there are none, those for the test (t10k of MNIST), which is left alone otherwise;
    where there are neither, a tenth of each class. Where `source` and `val` are the same nothing is held out: all of it
    is measured on. IDX images are never resized. `classes`, where they are known already, are those labels may have,
    and `shape` (channels, height, width) is what image files are brought to.

    Raises SourceError in one sentence for what cannot be read, labels that do not fit or are of one class only, and a
    class of the validation part that training does not have; MissingExtra where Pillow is needed and not there.
    """
    path = Path(source)
    train_at, val_at, alone = _parts(path, Path(val) if val else None)
    train = _read(train_at, options.size, shape or None)
    if shape and train.pixels.shape[1:] != shape:
        raise SourceError(f"the images of {source!r} are {_sized(train.pixels.shape)}; expected {_sized((0, *shape))}")
    held_out = _read(val_at, options.size, train.pixels.shape[1:]) if val_at is not None else None
    chosen = None
    known = np.array(classes) if classes else _classes(train.names, source)
    if held_out is None:
        parts, rule, chosen = _split_off(train, known, source)
    else:
        parts, rule = _given_apart(train, held_out, known, (source, str(val_at)), val or str(val_at))
        left = f", {' and '.join(path.name for path in alone)} left alone" if alone else ""
        rule = f"validated on {val_at.name if val_at is not None else val}{left}{rule}"
    digests = [part.sha256 for part in (train, held_out) if part is not None]
    return Images(
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", path.resolve().name.split(".")[0]) or "images",
        kind="idx" if train_at.is_file() else "classes",
        sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        classes=tuple(str(name) for name in known),
        train=parts[0],
        val=parts[1],
        rule=rule,
        note=train.note,
        options=options,
        receipt=_receipt(train, held_out, chosen, alone, [str(name) for name in known]),
    )


def _receipt(
    train: ReadImages, held_out: ReadImages | None, chosen: np.ndarray | None, alone: list[Path], classes: list[str]
) -> Receipt:
    """What became of the files; `chosen` are the training images that are held out, bool [n], where some are."""
    read, names = [], []
    for part in (train,) if held_out is None else (train, held_out):
        measured = np.full(len(part.names), part is held_out) if chosen is None else chosen
        several = part.files[-1][1] > 0
        for file, first, size in part.files:
            held = measured[first : first + 1] if several else measured
            n_train, n_val = int((~held).sum()) * size, int(held.sum()) * size
            read.append((ReadFile(file, {"header": size_of(file) - n_train - n_val}), n_train, n_val))
        names += [str(name) for name in part.names]
    counts = Counter(names)
    aside = [file for path in alone for file in (path, *_labels_of(path)[:1])]
    passed = [
        *train.passed,
        *(held_out.passed if held_out else ()),
        *(Passed(path, "left alone for the test", is_test=True) for path in aside),
    ]
    rows = Rows(read=len(names), set_aside=sum(map(_count, alone)))
    return make_receipt(read, passed, rows=rows, classes={name: counts[name] for name in classes})


def _count(path: Path) -> int:
    """Images of a part that is left alone: in the folders of its classes, or of an IDX file, 0 of a damaged one."""
    if path.is_dir():
        return sum(len(image_files(inner)) for inner in class_folders(path))
    try:
        return len(read_idx(path, (3, 4)))
    except SourceError:
        return 0


def _split_off(train: ReadImages, known: np.ndarray, source: str) -> tuple[list[ImageSet], str, np.ndarray]:
    """Training and validation part of images that came without one, the rule in words, and which are held out."""
    labels = _indices(train.names, known, source)
    chosen = _tenth(train.pixels, labels)
    parts = [ImageSet(pixels=train.pixels[keep], labels=labels[keep]) for keep in (~chosen, chosen)]
    gone = [str(name) for i, name in enumerate(known) if i not in parts[0].labels]
    if gone:
        raise SourceError(
            f"{source!r} has too few images of {gone[0]!r} that differ to hold some out and train on others;"
            " give more, or others for validation with --val"
        )
    share = min(_SPLIT_SHARE, _MOST_HELD_OUT / len(labels))
    part = "tenth" if share == _SPLIT_SHARE else f"{100 * share:.2g}%"
    rule = f"the {part} of each class whose bytes have the smallest hashes is held out, equal images together"
    return parts, rule, chosen


def _given_apart(
    train: ReadImages, held_out: ReadImages, known: np.ndarray, sources: tuple[str, str], named: str
) -> tuple[list[ImageSet], str]:
    """Both parts, and in brackets how many validation images are also in training; empty where none are.

    sources: where each part lies; named: what the person called the second.
    """
    labels = _indices(train.names, known, sources[0])
    if train.pixels.shape[1:] != held_out.pixels.shape[1:]:
        sizes = _sized(train.pixels.shape), _sized(held_out.pixels.shape)
        raise SourceError(f"training images are {sizes[0]}, those of {named!r} {sizes[1]}; expected the same")
    parts = [
        ImageSet(pixels=train.pixels, labels=labels),
        ImageSet(pixels=held_out.pixels, labels=_indices(held_out.names, known, sources[1])),
    ]
    n = int(np.isin(_hashes(held_out.pixels), _hashes(train.pixels)).sum())
    said = repeated(n, len(held_out.pixels), "images")
    return parts, f" ({said})" if said else ""


# where the parts lie


def _parts(path: Path, val: Path | None) -> tuple[Path, Path | None, list[Path]]:
    """Where training and validation images lie, IDX image files or folders of classes, and what is left alone."""
    if not path.exists():
        raise SourceError(f"{str(path)!r} does not exist; expected an IDX file or a folder with images")
    inside = _idx_inside(path) if path.is_dir() else [path]
    if path.is_file() or inside:
        training = _only(_named(inside, "train") or inside, path, "training")
        if path.is_file():
            inside = _idx_inside(path.parent) if role_of(path.name) == "train" else []
        beside = [file for file in inside if file != training]
    else:
        parts = [folder for folder in listed(path) if folder.is_dir()]
        training = _only(
            [folder for folder in _named(parts, "train") if class_folders(folder)] or [path], path, "training"
        )
        beside = [part for part in parts if class_folders(part) or _idx_inside(part)] if training != path else []
    validation, test = _named(beside, "validation"), _named(beside, "test")
    if val is not None:
        chosen = _one(val)
        return training, chosen, [part for part in (*validation, *test) if part.resolve() != chosen.resolve()]
    if not (validation or test):
        return training, None, []
    chosen = _one(_only(validation or test, path, "validation"))
    return training, chosen, test if validation else []


def _named(paths: list[Path], role: Role) -> list[Path]:
    """Those whose names say that they are for this."""
    return [path for path in paths if role_of(path.name) == role]


def _one(val: Path) -> Path:
    """A validation source as one IDX file or one folder of classes."""
    if not val.exists():
        raise SourceError(f"--val {str(val)!r} does not exist; expected an IDX file or a folder with images")
    if val.is_dir():
        folders = [folder for folder in listed(val) if folder.is_dir() and class_folders(folder)]
        val = next(iter((*_named(folders, "validation"), *_named(folders, "test"))), val)
    inside = _idx_inside(val) if val.is_dir() else []
    held_out = _named(inside, "validation") or _named(inside, "test")
    return _only(held_out or inside, val, "validation") if inside else val


def _only(files: list[Path], path: Path, what: str) -> Path:
    if len(files) > 1:
        names = ", ".join(sorted(file.name for file in files))
        kind = "files" if files[0].is_file() else "folders"
        raise SourceError(f"{str(path)!r} holds several {kind} of {what} images ({names}); name one of them")
    return files[0]


def _idx_inside(folder: Path) -> list[Path]:
    return [file for file in listed(folder) if file.is_file() and is_idx_name(file.name)]


def holds_images(path: Path) -> bool:
    """Whether it is an IDX file of images, or a folder with one or with folders of image files."""
    if not path.is_dir():
        return path.is_file() and is_idx_name(path.name)
    folders = [path, *_named([inner for inner in listed(path) if inner.is_dir()], "train")]
    return bool(_idx_inside(path)) or any(class_folders(folder) for folder in folders)


# one part


def _read(path: Path, size: int, shape: tuple[int, ...] | None) -> ReadImages:
    """One part, IDX or a folder of classes; files of images are brought to `shape` where it is given."""
    if path.is_dir():
        found = read_classes(path, size, shape)
        return replace(found, note="; ".join(filter(None, (found.note, alike(np.unique(found.names).tolist())))))
    if size:
        raise SourceError(f"size has no effect on {path.name}: IDX images are of one size already")
    if path.suffix.lower() in CLASS_SUFFIXES:
        raise SourceError(f"{str(path)!r} is one image; give the folder that has a folder of images for each class")
    labels_path = _labels_beside(path)
    pixels, labels = read_idx(path, (3, 4)), read_idx(labels_path, (1,))
    if len(pixels) != len(labels):
        raise SourceError(
            f"{path.name} holds {len(pixels):,} images but {labels_path.name} {len(labels):,} labels;"
            f" expected as many of both"
        )
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    if pixels.shape[1] not in (1, 3) or not pixels.size:
        raise SourceError(f"{path.name} holds images of {list(pixels.shape[1:])}; expected 1 or 3 channels, and pixels")
    digest = hashlib.sha256((file_hash(path).hex() + file_hash(labels_path).hex()).encode()).hexdigest()
    files = [(path, 0, int(np.prod(pixels.shape[1:]))), (labels_path, 0, 1)]
    return ReadImages(pixels=np.ascontiguousarray(pixels), names=labels.astype(np.int64), sha256=digest, files=files)


def _labels_beside(path: Path) -> Path:
    """The labels' file of an IDX file of images, gzipped or not."""
    found = _labels_of(path)
    if not found:
        name, known = _labels_name(path), signature_of_file(path)
        expected = "expected NAME-images-idx3-ubyte beside NAME-labels-idx1-ubyte, or a folder for each class"
        if name == path.name:
            if known:
                raise SourceError(f"{str(path)!r} is {known.told(path)}")
            raise SourceError(f"{str(path)!r} is no IDX file of images by its name; {expected}")
        raise SourceError(f"{str(path)!r}: its labels were looked for in {name} and are not there; {expected}")
    return found[0]


def _labels_name(path: Path) -> str:
    return re.sub(r"idx[34]", "idx1", path.name.replace("images", "labels"))


def _labels_of(path: Path) -> list[Path]:
    name = _labels_name(path)
    options = [path.with_name(name), path.with_name(name.removesuffix(".gz")), path.with_name(f"{name}.gz")]
    return [option for option in options if option.is_file() and option != path]


_MOST_DEFLATED = 1040
"""A gzipped byte holds no more (RFC 1951: at most 258 for each 2 bits); a header may claim what it likes."""


def read_idx(path: Path, dimensions: tuple[int, ...]) -> np.ndarray:
    """The values of an IDX file, uint8 with as many axes as its header says; gzipped where its name ends in .gz.

    Raises SourceError where it is no IDX file of bytes, has another number of dimensions than one of `dimensions`, or
    is longer or shorter than its header says.
    """
    with binary_file(path) as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0":
            raise SourceError(f"{str(path)!r} is no IDX file: it does not begin with two zero bytes")
        if head[2] != _UBYTE:
            raise SourceError(f"{str(path)!r} holds values of type {head[2]:#04x}; expected unsigned bytes (0x08)")
        if head[3] not in dimensions:
            expected = " or ".join(map(str, dimensions))
            raise SourceError(f"{str(path)!r} has {head[3]} dimensions; expected {expected}")
        sizes = file.read(4 * head[3])
        shape = tuple(int(n) for n in np.frombuffer(sizes[: len(sizes) // 4 * 4], ">i4"))
        if len(shape) < head[3]:
            raise SourceError(f"{str(path)!r} is cut off inside its header")
        if min(shape) < 0:
            raise SourceError(f"{str(path)!r} is no IDX file: its header says sizes of {shape}")
        expected = math.prod(shape)
        data = file.read(min(expected + 1, path.stat().st_size * _MOST_DEFLATED))
    if len(data) != expected:
        held = "more than" if len(data) > expected else f"{len(data):,} of"
        size = " x ".join(map(str, shape))
        raise SourceError(f"{str(path)!r} holds {held} the {expected:,} bytes of {size} that its header says")
    return np.frombuffer(data, np.uint8).reshape(shape)


# labels and parts


def _classes(names: np.ndarray, source: str) -> np.ndarray:
    """The names of the classes: numbers in their order, folders by name."""
    classes = np.unique(names)
    if len(classes) < 2:
        raise SourceError(f"{source!r} has labels of one class only ({classes[0]}); expected at least two classes")
    return classes


def _indices(names: np.ndarray, classes: np.ndarray, where: str) -> np.ndarray:
    """Labels as indices into `classes`: int64 [n]."""
    place = {str(name): i for i, name in enumerate(classes)}
    distinct, inverse = np.unique(names, return_inverse=True)
    strange = [name for name in distinct if str(name) not in place]
    if strange:
        raise SourceError(f"{where!r} has a class that training does not have: {strange[0]}; expected {some([*place])}")
    return np.array([place[str(name)] for name in distinct], dtype=np.int64)[inverse]


def _sized(shape: tuple[int, ...]) -> str:
    """Of images [n, channels, height, width]: `28 x 28 in 1 channel`."""
    return f"{shape[3]} x {shape[2]} in {shape[1]} {plural(shape[1], 'channel')}"


def _hashes(pixels: np.ndarray) -> np.ndarray:
    """Of each image, S8 [n]."""
    return np.array([hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in pixels], dtype="S8")


def _tenth(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """bool [n]: which images are held out; the same whatever the order of the images, equal images together."""
    hashes = _hashes(pixels)
    share = min(_SPLIT_SHARE, _MOST_HELD_OUT / len(pixels))
    chosen = np.zeros(len(pixels), dtype=bool)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        last = np.sort(hashes[mine])[max(0, round(share * len(mine)) - 1)]
        chosen[mine[hashes[mine] <= last]] = True
    return np.isin(hashes, hashes[chosen])  # under another label too
