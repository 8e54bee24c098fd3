"""Images under attention: the picture beneath the patches, and the validation images that a run keeps for its page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qkv.tasks.image import EXHIBITS
from qkv.telemetry import Telemetry
from qkv.views.payloads import Picture
from qkv.views.report.packed import Packed
from qkv.views.sections.heads import PATTERN_BYTES
from qkv.views.viewer import Viewer, Words

__all__ = ["Exhibit", "exhibits_of", "how_many_fit", "picture_of"]


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A validation image that a run keeps."""

    name: str
    label: str
    """Its class."""
    pixels: np.ndarray
    """uint8 [channels, height, width]."""


def exhibits_of(telemetry: Telemetry | None) -> list[Exhibit]:
    """The images of a run; none of one without telemetry, or from before images were kept."""
    kept: Sequence[Any] = (telemetry.facts() if telemetry else {}).get(EXHIBITS) or ()
    return [
        Exhibit(
            f"validation image {one['number']:,}",
            str(one["label"]),
            np.frombuffer(base64.b64decode(one["pixels"]), "u1").reshape(one["shape"]),
        )
        for one in kept
    ]


def how_many_fit(viewer: Viewer) -> int:
    """Images of which a page can hold every head's every number; at least one."""
    sizes = viewer.config.model.sizes
    return max(1, int(PATTERN_BYTES / (sizes.n_layers * sizes.n_heads * sizes.n_ctx**2 * 4 / 3)))


def picture_of(viewer: Viewer, image: Words, label: str = "") -> Picture:
    """The image that some positions are patches of, with what the newest weights take it for; `label` is its class."""
    config = viewer.config.model
    assert config.patches is not None, "a model of images has patches"
    with torch.inference_mode():
        chances = viewer.model()(image.ids)[0].float().softmax(0)
    top = int(chances.argmax())
    said = f"taken for {config.classes[top]} with probability {float(chances[top]):.2g} at step {viewer.last_step():,}"
    return Picture(
        pixels=_bytes(image.ids[0].numpy().transpose(1, 2, 0)),
        grid=config.patches.grid,
        frame=_frame(config.patches),
        before=int(config.layout.pool == "class"),
        pooled="class" if config.layout.pool == "class" else "mean",
        said=f"of class {label}, {said}" if label else said,
    )


def _frame(cut: Any) -> tuple[float, float, float, float]:
    """Where the middles of all patches lie, each as wide as the way to the next: shares of the image."""
    (rows, columns), (left, _, top, _) = cut.grid, cut.padding
    before = (cut.patch - cut.step) / 2
    x, y = (before - left) / cut.width, (before - top) / cut.height
    return x, y, x + columns * cut.step / cut.width, y + rows * cut.step / cut.height


def _bytes(pixels: np.ndarray) -> Packed:
    """uint8 numbers as they are."""
    data = base64.b64encode(np.ascontiguousarray(pixels, "u1").tobytes()).decode("ascii")
    return Packed(dtype="uint8", shape=tuple(pixels.shape), data=data, digits=3)
