"""Image classification: name the class of an image, its patches as tokens.

The loss is in nats per image: minus the log-probability of the right class. In training a label may be smoothed and an
image shifted, mirrored or partly erased (`qkv.data.config.ImageOptions`); validation takes every image once, as it is,
with plain labels. Source: Dosovitskiy et al. 2020 (arXiv 2010.11929).
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.augmenting import augmented
from qkv.data.baseline.classes import image_baselines
from qkv.data.config import DataConfig, ImageOptions
from qkv.data.images import Images, load_images, read_idx
from qkv.data.packing import once_an_epoch
from qkv.data.sources.image_files import read_pictures
from qkv.errors import SourceError
from qkv.models.layout import Patches
from qkv.models.zoo import ImageClassifier
from qkv.signatures import is_idx_name
from qkv.tasks.batch import Batch
from qkv.tasks.data import class_yardsticks
from qkv.tasks.figures import Scores
from qkv.tasks.task import Drop, PredictOptions, Progress, Ranked, Task, Yardsticks, ranked
from qkv.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.models.layout import ModelConfig, Sizes

EXHIBITS = "exhibits"
"""The telemetry fact under which some validation images are kept, for pages to show."""

_GRID = 6
"""Patches along the longer side that the law aims at: 36 positions of a square image."""
_OVERLAP = 1.6
"""Side of a patch as a multiple of the way to the next one."""
_AT_ONCE = 256
_N_EXHIBITS = 6
_EXHIBIT_BYTES = 300_000


@dataclass(frozen=True, kw_only=True)
class Image(Task[Images, ImageClassifier]):
    """The task `image`."""

    name: str = "image"
    model_kind: str = "ImageClassifier"

    preset: ClassVar[str] = "fast"
    size_law: ClassVar[str] = "images"
    reads: ClassVar[str] = "images"
    examples: ClassVar[str] = "images"
    target: ClassVar[str] = "image"
    prompt: ClassVar[str] = "picture.png"
    given: ClassVar[str] = "the image"
    judged: ClassVar[bool] = True
    yardsticks: ClassVar[Mapping[str, str]] = {
        "majority": "the most frequent class",
        "linear": "the linear model (logistic regression on pixels)",
    }

    # data and sizes

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> Images:
        """By `qkv.data.images.load_images`; nothing is cached, for reading is what a cache would do."""
        if not config.source:
            raise SourceError("--task image needs images: give an IDX file, or a folder with a folder for each class")
        if config.text_column:
            raise SourceError("--text-column has no meaning for --task image, which reads no text; leave it out")
        return load_images(config.source, config.val, config.images or ImageOptions(), config.classes, config.pixels)

    def classes(self, data: Images) -> tuple[str, ...]:
        """Names of the classes."""
        return data.classes

    def model_sizes(self, data: Images) -> Mapping[str, int]:
        """No token types."""
        return {"d_vocab": 0}

    def patches(self, data: Images) -> Patches:
        """Overlapping squares, about 6 along the longer side, each 1.6 times as wide as the way to the next."""
        channels, height, width = data.shape
        mean, std = data.level
        stride = max(1, -(-max(height, width) // _GRID))
        patch = min(round(_OVERLAP * stride), height, width)
        return Patches(
            height=height, width=width, channels=channels, patch=patch, stride=min(stride, patch), mean=mean, std=std
        )

    def yardstick_nats(self, data: Images) -> float:
        """The entropy of the classes, in nats: what knowing their frequencies alone costs."""
        shares = np.bincount(data.train.labels) / len(data.train)
        return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())

    def baselines(self, data: Images, sizes: "Sizes", cache: Path | None) -> Yardsticks:
        """The most frequent class, and a linear model of the pixels."""
        return class_yardsticks(image_baselines(data), "linear")

    def judging_seconds(self, data: Images, sizes: "Sizes") -> float:
        """Measured on 10,000 images of 28 x 28 pixels, 4 layers of 96."""
        return 5e-4 * len(data.val)

    def keepsakes(self, data: Images) -> Mapping[str, object]:
        """The first validation image of each of some classes, whole: uint8 [channels, height, width] as base64."""
        part, (channels, height, width) = data.val, data.shape
        most = max(1, min(_N_EXHIBITS, _EXHIBIT_BYTES // (channels * height * width)))
        firsts = sorted(int(np.flatnonzero(part.labels == label)[0]) for label in np.unique(part.labels))[:most]
        images = [
            {
                "number": i,
                "label": data.classes[int(part.labels[i])],
                "shape": [channels, height, width],
                "pixels": base64.b64encode(np.ascontiguousarray(part.pixels[i]).tobytes()).decode("ascii"),
            }
            for i in firsts
        ]
        return {EXHIBITS: images}

    # batches and losses

    def train_batch(self, corpus: Images, sizes: "Sizes", seed: int, step: int, examples: np.ndarray) -> Batch:
        """Images in an order of its own for each epoch, each changed by draws of its own; see `Task.train_batch`."""
        part, options = corpus.train, corpus.options
        chosen = once_an_epoch(len(part), seed, "images", examples)
        fill = round(255 * corpus.level[0])
        pixels = augmented(part.pixels[chosen], options, fill, seed, step, examples)
        return Batch(_tensor(pixels), torch.from_numpy(part.labels[chosen]), smoothing=options.smoothing)

    def val_batches(self, corpus: Images, sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """Every validation image once, in order."""
        for first in range(0, len(corpus.val), batch_size):
            part = slice(first, first + batch_size)
            yield Batch(_tensor(corpus.val.pixels[part]), torch.from_numpy(corpus.val.labels[part]))

    def loss(self, model: ImageClassifier, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum of nats, number of images); a smoothed label asks for (1 - s) of its class and s / n of each."""
        logits = model.answer(model.hidden(batch.inputs, drop=drop))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nats = F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=batch.smoothing)
        return nats, batch.n_targets

    def score(self, model: ImageClassifier, batch: Batch) -> Scores:
        """Each image's nats, and whether its class is the most probable one."""
        with torch.no_grad():
            logits = model(batch.inputs).float()
            nats = F.cross_entropy(logits, batch.targets, reduction="none")
            rows = torch.arange(batch.n_targets, device=nats.device)
            return Scores(nats, logits.argmax(dim=1) == batch.targets, rows)

    # answers

    def predict(
        self, model: ImageClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The most probable class of each image file; of an IDX file those of all its images, with spaces between.

        Raises SourceError for a file that is no image or has another shape than the model's.
        """
        answers: list[str] = []
        for path in map(Path, texts):
            pixels = read_inputs(path, model.patches)
            answers.append(" ".join(classify(model, pixels)))
        return answers

    def scores(
        self, model: ImageClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], k: int, options: PredictOptions
    ) -> list[Ranked]:
        """The k most probable classes of each image file. Raises SourceError for a file of several images."""
        found = []
        for path in map(Path, texts):
            pixels = read_inputs(path, model.patches)
            if len(pixels) != 1:
                raise SourceError(f"{path} holds {len(pixels):,} images; --scores takes files of one image")
            found.append(ranked(model.config.classes.__getitem__, probabilities(model, pixels)[0], k))
        return found

    def shown(self, text: str, output: str) -> str:
        """`picture.png: label`."""
        return f"{text}: {output}"


def read_inputs(path: Path, patches: Patches) -> np.ndarray:
    """The image or images of a file as a model takes them: uint8 [n, channels, height, width].

    Raises SourceError for a file that is no image, or an IDX file of images of another size.
    """
    shape = patches.channels, patches.height, patches.width
    if not path.is_file():
        raise SourceError(f"{str(path)!r} is no file; expected an image, such as a .png, or an IDX file of images")
    if not is_idx_name(path.name):
        return read_pictures([path], shape)
    pixels = read_idx(path, (3, 4))
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    if pixels.shape[1:] != shape:
        given, expected = ("{2} x {1} in {0} channel(s)".format(*s) for s in (pixels.shape[1:], shape))
        raise SourceError(f"{str(path)!r} holds images of {given}; this model takes {expected}")
    return pixels


def one_image(path: Path, config: "ModelConfig") -> tuple[Tensor, list[str]]:
    """(pixels uint8 [1, channels, height, width] of an image file, a name for each position: row,column of its patch).

    Raises SourceError for a file that is no image or holds several.
    """
    patches = config.patches
    assert patches is not None, "a model of images has patches"
    pixels = read_inputs(path, patches)
    if len(pixels) != 1:
        raise SourceError(f"{path} holds {len(pixels):,} images; give the file of one")
    return _tensor(pixels), position_names(config)


def position_names(config: "ModelConfig") -> list[str]:
    """A name for each position of an image: row,column of its patch; `class` of a class token."""
    assert config.patches is not None, "a model of images has patches"
    rows, columns = config.patches.grid
    before = ["class"] if config.layout.pool == "class" else []
    return before + [f"{r},{c}" for r in range(rows) for c in range(columns)]


@torch.no_grad()
def classify(model: ImageClassifier, pixels: np.ndarray) -> list[str]:
    """The most probable class of each image, uint8 [n, channels, height, width]."""
    device, classes = next(model.parameters()).device, model.config.classes
    chunks = [_tensor(pixels[first : first + _AT_ONCE]) for first in range(0, len(pixels), _AT_ONCE)]
    return [classes[int(i)] for chunk in chunks for i in model(chunk.to(device)).argmax(dim=1)]


def probabilities(model: ImageClassifier, pixels: np.ndarray) -> np.ndarray:
    """The probability of each class for images uint8 [n, channels, height, width]: float32 [n, n_classes]."""
    with torch.no_grad():
        return model(_tensor(pixels).to(next(model.parameters()).device)).float().softmax(-1).cpu().numpy()


def _tensor(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(pixels))
