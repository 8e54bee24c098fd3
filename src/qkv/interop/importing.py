"""From a Hugging Face folder to our model: its configuration, every tensor by address, its tokenizer, and what to know.

Nothing is guessed and nothing ignored: a setting that changes what is computed and is not known, a tensor too many or
too few, a wrong shape, are errors that name it. Nothing is written here; `qkv.recipe.imported` makes the run folder.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from qkv.errors import ConfigError, SourceError, nearest
from qkv.interop.chat import read_chat
from qkv.interop.families import families_of, why_not_read
from qkv.interop.family import Family
from qkv.interop.folders import ALONE, OWN_TYPE, UNQUANTIZED, Weights, no_model, read_json
from qkv.interop.formats.adapters import Adapter, read_adapter
from qkv.interop.hub import fetch
from qkv.interop.name_map import BESIDE, SAME, Row
from qkv.interop.own import own_family, read_own
from qkv.interop.settings import Reading, is_number, read_config
from qkv.interop.tokenizer_files import read_marks, read_tokenizer
from qkv.jsontypes import JsonObject
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Patches, Sizes
from qkv.models.matrices import Catalogue
from qkv.models.positions import SINES
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.words import many, plural


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A checkpoint as ours."""

    folder: Path
    family: Family
    config: ModelConfig
    """With nothing left to resolve."""
    state: dict[str, Tensor]
    """Address -> values as we store them."""
    tokenizer: Tokenizer | None
    """None where the folder has no tokenizer."""
    notes: list[str]
    """Sentences for the user: what was left out, what is different here."""
    marks: Mapping[str, int | list[int]]
    """The tokens that begin, end and fill texts, by their names in config.json (`tokenizer_files.MARKS`)."""
    chat: JsonObject
    """Its chat template and the tokens that it names (`chat.read_chat`); empty where it has none."""


def read_checkpoint(path: str | Path, *, base: str = "", dtype: torch.dtype = torch.float32) -> Imported:
    """The model in a Hugging Face folder, or of the hub (`hf:ORG/NAME`).

    A folder with a LoRA adapter is merged into its model: the folder that it names, or `base`, where that is given.

    Raises SourceError for the first thing that cannot be read as it stands.
    """
    folder = fetch(str(path)[3:]) if str(path).startswith("hf:") else Path(path)
    adapter = read_adapter(folder, base)
    home = folder if adapter is None else adapter.base
    family, config, notes = read_model_config(home)
    weights = Weights(home)
    state = _read_state(family, config, weights, dtype, notes, adapter)
    tokenizer = read_tokenizer(home, family, config, notes)
    marks = {} if config.kind == "ImageClassifier" else read_marks(home, config)
    chat = {} if tokenizer is None else read_chat(home)
    return Imported(
        folder=folder, family=family, config=config, state=state, tokenizer=tokenizer, notes=notes, marks=marks,
        chat=chat,
    )  # fmt: skip


def read_model_config(folder: Path) -> tuple[Family, ModelConfig, list[str]]:
    """Family, model and notes of a folder's config.json. Raises SourceError."""
    if not (folder / "config.json").is_file():
        raise SourceError(no_model(folder))
    given, path = read_json(folder, "config.json"), folder / "config.json"
    name = given.get("model_type")
    if name == OWN_TYPE:
        config = read_own(given, path)
        return own_family(config.kind), config, []
    families = families_of(name)
    if not families:
        raise SourceError(f"{why_not_read(given)} ({path})")
    found = given.get("architectures") or [families[0].architecture]
    classes = set(map(str, found)) if isinstance(found, list) else set()
    family = next((one for one in families if {one.architecture, *one.also} & classes), None)
    if family is None:
        fine = " or ".join(cls for one in families for cls in (one.architecture, *one.also))
        raise SourceError(f"{path}: the model is a {str(found)[1:-1]}; of this family qkv reads {fine}")
    reading = Reading(str(path), given)
    read_config(family.pieces, reading)
    if family.kind == "ImageClassifier":
        _read_pixels(folder, reading)
    if family.absent:
        reading.notes.append(
            f"a {family.architecture} has no output head: its hidden vectors are exact, and the logits here are h W_E^T"
        )
    return family, as_model(family, reading), reading.notes


def _read_pixels(folder: Path, reading: Reading) -> None:
    """How pixels are standardised: one mean and one standard deviation of all channels. Raises SourceError."""
    name, usual = "preprocessor_config.json", [0.5]
    found = read_json(folder, name) if (folder / name).exists() else {}
    if not found:
        reading.notes.append(f"{folder} has no {name}: pixels of 0..1 are taken less 0.5, by 0.5")
    wanted = found.get("do_normalize", True)
    for key, ours, plain in (("image_mean", "patches.mean", 0.0), ("image_std", "patches.std", 1.0)):
        values = found.get(key, usual) if wanted else [plain]
        values = values if isinstance(values, list) else [values]
        if not all(map(is_number, values)) or len(set(values)) != 1:
            raise SourceError(f"{folder / name}: {key} is {values}; qkv reads one number for all channels")
        reading.values[ours] = float(values[0])
    factor = found.get("rescale_factor", 1 / 255)
    if not is_number(factor) or abs(factor - 1 / 255) > 1e-9 or found.get("do_rescale", True) is not True:
        raise SourceError(f"{folder / name}: rescale_factor is not 1/255; qkv takes pixels of 0..1")


def as_model(family: Family, reading: Reading) -> ModelConfig:
    """The model that a configuration means. Raises SourceError where it cannot be built."""
    values: dict[str, JsonObject] = {"sizes": {}, "layout": dict(family.layout), "patches": {}}
    for key, value in reading.values.items():
        part, _, name = key.partition(".")
        if name:
            values[part][name] = value
    try:
        if family.kind == "ImageClassifier":
            values["sizes"] |= {"d_vocab": 0, "n_ctx": 0}
        return ModelConfig(
            kind=family.kind,  # type: ignore[arg-type]
            sizes=Sizes(**values["sizes"]),
            layout=Layout(**values["layout"]),
            classes=reading.values.get("classes", ()),
            patches=Patches(**values["patches"]) if values["patches"] else None,
        ).resolved()
    except ConfigError as error:
        raise SourceError(f"{reading.path}: {error}") from None


# tensors


@dataclass(frozen=True)
class Placed:
    """A row of one model, resolved: every address is the storage's own."""

    row: Row
    addresses: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """As we store them."""
    tied: bool
    """The row is another name of a table (W_U of W_E), stored as that table is."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that the file's tensor must have."""
        return self.shapes[0] if self.tied else self.row.form.stored_shape(self.shapes)


def rows_of_model(family: Family, config: ModelConfig) -> list[Placed]:
    """The rows that a model has, layer by layer; together they name every address."""
    catalogue = Catalogue(build(config, 0, materialise=False))
    placed = []
    for row in family.rows(config):
        for layer in range(config.sizes.n_layers) if row.per_layer else (0,):
            here = row.at(layer)
            aliases = [catalogue.aliases.get(address) for address in here.addresses]
            own = tuple(alias or address for alias, address in zip(aliases, here.addresses, strict=True))
            if all(address in catalogue.addresses for address in own):
                shapes = tuple(tuple(catalogue.entry(address).parameter.shape) for address in own)
                placed.append(Placed(here, own, shapes, any(aliases)))
    named = {address for item in placed for address in item.addresses} | set(family.absent)
    assert named == set(catalogue.addresses), f"{family.name} names not {set(catalogue.addresses) - named}"
    return placed


def _read_state(
    family: Family, config: ModelConfig, weights: Weights, dtype: torch.dtype, notes: list[str], adapter: Adapter | None
) -> dict[str, Tensor]:
    """Every matrix by address. Raises SourceError naming tensor and file."""
    if config.sizes.n_layers > len(weights.tensors):  # before anything of that size is laid out
        raise SourceError(
            f"{weights.folder}: config.json asks for {config.sizes.n_layers:,} layers, and the files hold"
            f" {many(len(weights.tensors), 'tensor')} in all"
        )
    rows = rows_of_model(family, config)
    _take_off_wrappers(family, rows, weights, notes)
    _settle_names(family, rows, weights)
    _refuse_others(family, rows, config, weights, notes)
    if adapter is not None:
        tied = {address for item in rows if item.tied for address in item.addresses}
        adapter.fit({item.row.stored: item.addresses for item in rows}, tied, family.base)
        notes.append(adapter.note)
    state: dict[str, Tensor] = {}
    given_by: dict[str, str] = {}
    for item in rows:
        if item.row.copy or item.row.stored not in weights.tensors:
            continue
        given, expected = weights.tensors[item.row.stored].shape, item.stored_shape
        if given != expected:
            raise SourceError(
                f"{weights.told(item.row.stored)} is {list(given)}; by config.json it is {list(expected)}"
                f" ({', '.join(item.addresses)})"
            )
        stored = weights.read(item.row.stored, dtype)
        if adapter is not None:
            stored = adapter.changed(item.addresses, stored, inputs_first=item.row.form in (SAME, BESIDE))
        if not stored.isfinite().all():
            raise SourceError(
                f"{weights.told(item.row.stored)} holds NaN or infinity: it was saved"
                " after its training had broken down, or is damaged; give another checkpoint of the model"
            )
        parts = [stored] if item.tied else item.row.form.split(stored, item.shapes)
        for address, part in zip(item.addresses, parts, strict=True):
            if address in state and not torch.equal(state[address], part):
                both = " and ".join(map(weights.written, (item.row.stored, given_by[address])))
                raise SourceError(
                    f"{both} in {weights.folder} differ, but config.json makes them one matrix"
                    f" ({address}); check tie_word_embeddings"
                )
            given_by.setdefault(address, item.row.stored)
            state.setdefault(address, part.contiguous())
    for address, table in family.spare.items():
        if address not in state and table in state:
            state[address] = state[table].t().contiguous()
            notes.append(f"{address} is not in the files: it starts as {table} transposed, and is trained by itself")
    missing = [item for item in rows if not item.row.alias and not set(item.addresses) <= set(state)]
    if missing:
        names = ", ".join(item.row.stored for item in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        files = ", ".join(sorted({stored.file for stored in weights.tensors.values()})[:3])
        raise SourceError(f"{weights.folder}: missing from {files}: {names}{more}; config.json asks for them")
    catalogue = Catalogue(build(config, 0, materialise=False))
    state |= {a: torch.zeros(catalogue.entry(a).parameter.shape, dtype=dtype) for a in family.absent}
    return {address: state[address] for address in catalogue.addresses}


WRAPPERS = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""What wraps a module under a name of its own, anywhere in a tensor's name, and that never is the name of a part."""


def _take_off_wrappers(family: Family, rows: list[Placed], weights: Weights, notes: list[str]) -> None:
    """Take off what programs put around a model before they saved it: names of wrappers, and a beginning that all names
    have (`module.` of DataParallel, `base_model.model.` of peft), if what is left are names of the family.
    """
    inner = {name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in weights.tensors}
    known = {item.row.stored for item in rows}
    known |= {name.removeprefix(family.base) for name in known}
    parts = [name.split(".")[:-1] for name in inner.values()]
    shared = os.path.commonprefix(parts) if parts else []
    for n in range(len(shared) + 1):
        beginning = "".join(f"{part}." for part in shared[:n])
        if known & {name.removeprefix(beginning) for name in inner.values()}:
            break
    else:
        beginning = ""
    new = {name.removeprefix(beginning): old for old, name in inner.items()}
    if len(new) < len(inner):
        return  # two names would be one; the first is refused as it stands
    weights.rename({name: old for name, old in new.items() if name != old})
    wrappers = dict.fromkeys(part for name in inner for part in name.split(".") if part in WRAPPERS)
    why = "{}. was taken off the names of tensors: it is from {}, which wrapped the model"
    notes += [why.format(wrapper, WRAPPERS[wrapper]) for wrapper in wrappers]
    if beginning:
        notes.append(f"the prefix {beginning} was taken off the names of all tensors")


def _settle_names(family: Family, rows: list[Placed], weights: Weights) -> None:
    """Old spellings of norms, and files that leave out what every name begins with."""
    known = {item.row.stored for item in rows}
    spelled = {
        name: name.removesuffix(old) + new
        for name in weights.tensors
        for old, new in ((".gamma", ".weight"), (".beta", ".bias"))
        if name.endswith(old)
    }
    weights.rename({new: old for old, new in spelled.items() if new not in weights.tensors})
    if not any(name.startswith(family.base) for name in weights.tensors):
        weights.rename({family.base + name: name for name in list(weights.tensors) if name not in known})


def _check_sines(weights: Weights, name: str, config: ModelConfig) -> None:
    """Make sure that a stored table of positions holds what the model computes. Raises SourceError."""
    sizes, told = config.sizes, weights.told(name)
    (expected,) = SINES[config.layout.positions](sizes.d_model).tables(sizes.n_ctx, torch.float32, torch.device("cpu"))
    if (given := weights.tensors[name].shape) != (shape := tuple(expected.shape)):
        raise SourceError(f"{told} is {list(given)}; by config.json it is {list(shape)}")
    gap = float((weights.read(name, torch.float32) - expected).abs().max())
    if not gap <= _SINES_AGREE:
        raise SourceError(
            f"{told} holds other numbers than the sines and cosines of positions (up to {gap:.3g} off), which qkv"
            " computes and does not read from a file; a model with learned positions of this kind cannot be imported"
        )


def _refuse_others(family: Family, rows: list[Placed], config: ModelConfig, weights: Weights, notes: list[str]) -> None:
    """Make sure that every tensor of the files means something here, or is known to be left out."""
    known = {item.row.stored for item in rows}
    left: dict[str, int] = {}
    for name in list(weights.tensors):
        if name in known or any(fnmatchcase(name, pattern) for pattern in family.buffers):
            continue
        if any(fnmatchcase(name, pattern) for pattern in family.sines):
            _check_sines(weights, name, config)
            continue
        what = next((words for pattern, words in family.left_out.items() if fnmatchcase(name, pattern)), None)
        if what is None:
            raise SourceError(_no_tensor(family, known, weights, name))
        left[what] = left.get(what, 0) + 1
    for what, n in left.items():
        notes.append(f"{what} ({n} {plural(n, 'tensor')}) is no part of a {family.architecture}: left out")


_SINES_AGREE = 0.01
"""How far a table of sines may lie from the rule: bf16 rounds by 0.004."""
_QUANTIZED = ("qweight", "qzeros", "scales", "SCB", "absmax", "quant_map", "quant_state", "weight_scale", "g_idx")
"""Last or next to last parts of names that quantization adds to a weight's."""


def _no_tensor(family: Family, known: set[str], weights: Weights, name: str) -> str:
    """What is said of a tensor that a family does not have: what it is from, or the name that looks most like it."""
    told = weights.told(name)
    added = next((other for other in weights.tensors if ".lora_" in other), None)
    if added is not None:
        return f"{weights.told(added)} is part of an adapter (LoRA) that was not merged; {ALONE}"
    if any(part.startswith(_QUANTIZED) for part in name.split(".")[-2:]):
        return f"{told} is part of a quantized weight; {UNQUANTIZED}"
    near = nearest(name, known, 1, alike=0.8)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{told} is no tensor of a {family.title} with that config.json{hint}"


def neutral(config: ModelConfig) -> ModelConfig:
    """The same without what no output depends on (dropout, the name of the start, a stride that patches have anyway),
    and with one spelling of what has several: biases, and the factor of scores."""
    layout, plain = config.layout, "all" if config.layout.bias else "none"
    of_norms, of_mlps = ("all" if layout.has_bias(part) else "none" for part in ("norm", "mlp"))
    biases = {"attention_bias": layout.biased, "norm_bias": of_norms if layout.norm == "layer" else plain}
    biases["mlp_bias"] = of_mlps
    said = {name: "same" if bias == plain else bias for name, bias in biases.items()}
    factor = layout.score_factor or (config.resolved().sizes.d_head ** -0.5 if layout.scale else 1.0)
    alike = {"dropout": 0.0, "start": "normal", "scale": True, "score_factor": factor}
    layout = dataclasses.replace(layout, **alike, **said)  # type: ignore[arg-type]
    patches = config.patches
    if patches is not None and patches.stride == patches.patch:
        patches = dataclasses.replace(patches, stride=0)
    return dataclasses.replace(config, layout=layout, patches=patches).resolved()
