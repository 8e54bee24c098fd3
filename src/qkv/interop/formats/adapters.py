"""A LoRA adapter, as `peft` saves one, merged into the model that it was trained on.

A weight W becomes W + s B A, where s is lora_alpha / r (Hu et al. 2021, arXiv 2106.09685), or lora_alpha / sqrt(r) with
use_rslora. What an adapter holds whole (`modules_to_save`, biases) takes the place of the model's own. A setting that
asks for another formula is refused by its name.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from qkv.errors import SourceError
from qkv.interop.folders import ADAPTER, INDEX, MERGE, SINGLE, Weights, no_base, no_model, read_json
from qkv.interop.hub import fetch
from qkv.interop.layers import unread
from qkv.interop.settings import WORDS, Always, Reading, read_config
from qkv.words import many

_PIECES = (
    unread(*WORDS["adapter"].split()),
    Always("peft_type", "LORA"),
    Always("alpha_pattern", {}),
    Always("init_lora_weights", True, also=("gaussian", "eva", "orthogonal")),  # others change the model's weights too
)


class Adapter:
    """The changes that an adapter makes to a model in the folder `base`."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base
        given = read_json(folder, ADAPTER[0])
        said = {key: value for key, value in given.items() if value is not None and value is not False and value != {}}
        reading = Reading(str(folder / ADAPTER[0]), said)
        if said.get("use_dora"):
            raise reading.refuse("use_dora", f"DoRA (LoRA with trained norms of columns) is not read; {MERGE}")
        read_config(_PIECES, reading)
        self._alpha, self._root = reading.number("lora_alpha", 8), 0.5 if said.get("use_rslora") else 1.0
        self._weights = Weights(folder, ADAPTER[1])
        self._factors: dict[str, dict[str, str]] = {}
        """Module -> A and B -> tensor."""
        self._whole: dict[str, str] = {}
        """Tensor of the model -> tensor that takes its place."""
        for name in self._weights.tensors:
            path = name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".modules_to_save.", ".")
            if factor := re.fullmatch(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?", path):
                self._factors.setdefault(factor[1], {})[factor[2]] = name
            elif "lora_" in path:
                raise SourceError(f"{self._weights.told(name)} is no factor A or B of LoRA; {MERGE}")
            else:
                self._whole[path] = name
        self._of: dict[tuple[str, ...], str] = {}
        """Addresses -> the name of the tensor that is changed."""

    def fit(self, stored: Mapping[str, tuple[str, ...]], tied: set[str], start: str) -> None:
        """Find what is changed by the model's names; `stored` has the addresses of each, `start` begins them all.

        Raises SourceError for a tensor that the model does not have, or that has two uses (`tied` addresses).
        """
        for path in [*(f"{module}.weight" for module in self._factors), *self._whole]:
            addresses = stored.get(path) or stored.get(start + path)
            if addresses is None:
                raise SourceError(f"the adapter {self.folder} changes {path}, which the model in {self.base} has not")
            if tied & set(addresses):
                raise SourceError(f"the adapter {self.folder} changes {path}, which is W_E and W_U at once; {MERGE}")
            self._of[addresses] = path

    def changed(self, addresses: tuple[str, ...], values: Tensor, *, inputs_first: bool) -> Tensor:
        """The tensor of these addresses with the change, where there is one; `inputs_first`: it is [in, out].

        Raises SourceError for factors of other shapes.
        """
        path = self._of.get(addresses, "")
        if name := self._whole.get(path):
            values = self._fitting(path, self._weights.read(name, values.dtype), values)
        if factors := self._factors.get(path.removesuffix(".weight")):
            if set(factors) != {"A", "B"}:
                raise SourceError(f"the adapter {self.folder} has one factor of {path} only; give it whole")
            a, b = (self._weights.read(factors[one], values.dtype) for one in "AB")
            if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
                told = self._weights.told(factors["B"])
                raise SourceError(f"{told} is {list(b.shape)}, and its factor A is {list(a.shape)}; they do not fit")
            change = self._alpha / len(a) ** self._root * (b @ a)
            values = values + self._fitting(path, change.t() if inputs_first else change, values)
        return values

    def _fitting(self, path: str, new: Tensor, old: Tensor) -> Tensor:
        """`new`, which has to be finite and have the shape of `old`. Raises SourceError."""
        if new.shape != old.shape:
            raise SourceError(
                f"the adapter {self.folder} has a {path} of {list(new.shape)}, and in {self.base} it is"
                f" {list(old.shape)}; give the model that it was trained on"
            )
        if not new.isfinite().all():
            raise SourceError(f"the adapter {self.folder} has NaN or infinity in its {path}: it is damaged")
        return new

    @property
    def note(self) -> str:
        """A sentence for the user."""
        n, whole = len(self._factors), f" and {many(len(self._whole), 'whole tensor')}" if self._whole else ""
        return f"the adapter {self.folder} (LoRA of {many(n, 'matrix', 'matrices')}{whole}) was merged into {self.base}"


def read_adapter(folder: Path, base: str) -> Adapter | None:
    """The adapter in a folder; None where it holds a model. `base` names the model, where the adapter names none here.

    Raises SourceError for an adapter that cannot be read or whose model is not here.
    """
    if not is_adapter(folder):
        if base:
            raise SourceError(f"{folder} is no adapter ({ADAPTER[0]}), so it has no --base; leave that out")
        return None
    place = base_of(folder)
    if base:
        place = fetch(base[3:]) if base.startswith("hf:") else Path(base).expanduser()
    if place is None:
        raise SourceError(no_base(folder))
    if not (place / "config.json").is_file():
        raise SourceError(no_model(place))
    return Adapter(folder, place)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (folder / ADAPTER[0]).is_file() and not any((folder / name).exists() for name in (SINGLE, INDEX))


def base_of(folder: Path) -> Path | None:
    """The folder of the model that an adapter names; None where it is not here, and for a model."""
    if not is_adapter(folder):
        return None
    said = read_json(folder, ADAPTER[0]).get("base_model_name_or_path")
    return Path(said) if isinstance(said, str) and said and os.path.isfile(f"{said}/config.json") else None
