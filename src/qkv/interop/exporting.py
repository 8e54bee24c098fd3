"""From a model of ours to a Hugging Face folder, by the same maps that read one.

A model fits a family where reading what its map would write gives the same model back. One that fits none is written
under our own names, with a small modelling file of ours beside it, and says so. Files come out the same, byte for byte,
for the same model; the folder appears whole or not at all.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from qkv.errors import ConfigError, RunFolderError, SourceError
from qkv.folder.run_folder import check_place, write_atomically
from qkv.folder.staging import check_elsewhere, staged
from qkv.interop.families import FAMILIES
from qkv.interop.family import Family
from qkv.interop.folders import INDEX, SINGLE, json_file
from qkv.interop.importing import as_model, neutral, rows_of_model
from qkv.interop.own import OWN_CLASSES, OWN_FILE, own_family, own_file, own_settings
from qkv.interop.settings import Reading, read_config
from qkv.interop.tokenizer_files import token_ids, tokenizer_files
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import ModelConfig, Patches
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.tensorfile import streamed

LARGEST_FILE = 5_000_000_000
"""Bytes of tensors in one file; beyond, there are shards."""

_UNREADABLE = 1000
"""So many settings away is a family that cannot even read what would be written."""


@dataclass(frozen=True)
class Fit:
    """The family that a model is written as."""

    family: Family | None
    """None: a layout of its own."""
    auto: str
    """The class of transformers that loads it."""
    why_not: str = ""
    """What stands in the way of the nearest family, where there is none."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about a file in another program's format, without a full stop."""


def find_family(config: ModelConfig, wanted: str = "") -> Fit:
    """The family that a model is of: `wanted` where that fits, else the first that does.

    Raises ConfigError for a model without attention.
    """
    if config.layout.mixer != "attention":
        raise ConfigError(
            f"a model without attention (mixer = {config.layout.mixer}) cannot be exported: no class has it"
        )
    special = config.layout.special + ["d_embed"] * bool(config.sizes.d_embed)
    fit = first_fit(config, sorted(FAMILIES.values(), key=lambda family: family.name != wanted), wanted)
    if special and fit.family is None:
        raise ConfigError(
            f"this model cannot be exported: {fit.why_not}, and the file of qkv's own has no {', '.join(special)}"
        )
    return fit


def first_fit(config: ModelConfig, order: Sequence[Family], wanted: str = "") -> Fit:
    """The first of these families that a model is of; a family without a head only where it is `wanted`."""
    nearest: tuple[int, str] | None = None
    for family in order:
        if family.kind != config.kind or (family.absent and family.name != wanted):
            continue
        try:
            obstacles = _obstacles(family, config)
        except SourceError as error:
            distance, lacks = _UNREADABLE, f"cannot hold it: {str(error).removeprefix(': ')}"
        else:
            distance, lacks = len(obstacles), f"has not {', '.join(obstacles)}"
        if not distance:
            return Fit(family, family.auto)
        if nearest is None or distance < nearest[0]:
            nearest = distance, f"the nearest known layout, {family.title}, {lacks}"
    why_not = nearest[1] if nearest else f"no known layout is a {config.kind}"
    return Fit(None, OWN_CLASSES[config.kind], why_not)


def _obstacles(family: Family, config: ModelConfig) -> list[str]:
    """What of a model a family cannot say; empty where it fits.

    Raises SourceError where what the family's map would write cannot be read at all.
    """
    sizes = config.sizes
    if family.even_heads and sizes.d_model % sizes.n_heads:
        return [f"d_model {sizes.d_model} with n_heads {sizes.n_heads}"]
    reading = Reading("", _config_json(family, config))
    if config.patches is not None:
        reading.values |= {"patches.mean": config.patches.mean, "patches.std": config.patches.std}
    read_config(family.pieces, reading)
    mine, back = neutral(config), neutral(as_model(family, reading))
    return [
        f"{name} = {value}"
        for part in ("sizes", "layout", *(["patches"] if mine.patches else []))
        for name, value in asdict(getattr(mine, part)).items()
        if value != asdict(getattr(back, part))[name]
    ]


def _config_json(family: Family, config: ModelConfig) -> JsonObject:
    """The settings of a config.json, without ids of tokens."""
    out: JsonObject = {"architectures": [family.architecture], "model_type": family.model_type, "dtype": "float32"}
    words = neutral(config).layout  # biases in the words that families use
    said = {name: getattr(words, name) for name in ("attention_bias", "norm_bias", "mlp_bias")}
    for piece in family.pieces:
        piece.write(replace(config, layout=replace(config.layout, **said)), out)
    return out


def write_checkpoint(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    out: Path,
    *,
    card: str,
    wanted: str = "",
    marks: JsonMapping | None = None,
    chat: JsonMapping | None = None,
    largest_file: int = LARGEST_FILE,
) -> Fit:
    """Write a model as a Hugging Face folder; returns the family that it was written as.

    `state` has the values of every address, shared ones under each of their names; `card` is the README.md; `wanted`
    names a family to prefer, `marks` the tokens that begin, end and fill texts by their names in config.json; `chat` is
    its chat template and what that names.

    Raises RunFolderError where `out` is taken, StorageError where it cannot be written; nothing is left then.
    """
    fit = find_family(config, wanted)
    if fit.family is not None:
        settings, tensors = _config_json(fit.family, config), stored_tensors(fit.family, config, state)
    else:
        settings, tensors = own_settings(config), stored_tensors(own_family(config.kind), config, state)
    ids = token_ids(tokenizer, config) | dict(marks or {})
    settings |= {key: value for key, value in ids.items() if key not in settings}
    check_export(out)
    with staged(out) as folder:
        write_atomically(folder / "config.json", json_file(settings))
        _write_tensors(folder, tensors, largest_file)
        if config.patches is not None:
            write_atomically(folder / "preprocessor_config.json", json_file(_pixels(config.patches)))
        for name, data in tokenizer_files(tokenizer, config, chat or {}).items() if tokenizer is not None else ():
            write_atomically(folder / name, data)
        if fit.family is None:
            write_atomically(folder / OWN_FILE, own_file())
        write_atomically(folder / "README.md", card.encode())
    return fit


def stored_tensors(family: Family, config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored name -> values, in the order of the map; a tied table is written once."""
    return {
        item.row.stored: item.row.form.join([state[address] for address in item.addresses]).contiguous()
        for item in rows_of_model(family, config)
        if not item.tied and not item.row.alias
    }


def _pixels(patches: Patches) -> JsonObject:
    """How images become pixels, for AutoImageProcessor."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": patches.height, "width": patches.width},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [patches.mean] * patches.channels,
        "image_std": [patches.std] * patches.channels,
    }


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor], largest: int) -> None:
    """model.safetensors, or shards of at most `largest` bytes each (a larger tensor is a shard of its own)."""
    shards: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for name, tensor in tensors.items():
        n_bytes = tensor.numel() * tensor.element_size()
        if shards[-1] and size + n_bytes > largest:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size, total = size + n_bytes, total + n_bytes
    if len(shards) == 1:
        write_atomically(folder / SINGLE, streamed(tensors))
        return
    where = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_atomically(folder / file, streamed(shard))
        where |= dict.fromkeys(shard, file)
    write_atomically(folder / INDEX, json_file({"metadata": {"total_size": total}, "weight_map": where}))


def check_export(out: Path) -> None:
    """Make sure that a model may be written to the folder `out`, before the work that leads up to it.

    Raises RunFolderError where it is there and not empty, or where you are, UserError where no folder can be made.
    """
    check_place(out, folder=True)
    check_elsewhere(out)
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise RunFolderError(f"{out} is there already; choose another --out")
