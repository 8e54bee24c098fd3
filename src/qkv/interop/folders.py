"""Reading a folder that somebody else made: JSON of a sane size, safetensors, and nothing outside the folder.

Nothing in it is executed or unpickled. Every failure is one sentence that names the file, and the tensor where there is
one. Links may lead out of the folder only as the hub's own cache makes them: from `snapshots/REVISION` to `blobs`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkv.errors import SourceError, typed
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.signatures import refuse_pointer, signature_of_file

ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
"""Files of an adapter (LoRA and others), by which it is known."""
MERGE = "merge the two (peft: model.merge_and_unload().save_pretrained('FOLDER')) and give that folder"
"""What to do with an adapter that qkv cannot merge."""
ALONE = f"give the adapter alone ({ADAPTER[0]}, {ADAPTER[1]}) and its model's folder with --base DIR; or {MERGE}"
"""What to do with one that qkv could merge."""
UNQUANTIZED = "give the model as it was before: qkv reads weights that are stored as real numbers"
"""What to do with quantized weights."""

LARGEST_JSON = 64 << 20
"""Bytes of the largest JSON that is read; the index of a very large model has a few MB."""

OWN_TYPE = "qkv"
"""model_type of an export in a layout of its own."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLES = (b"PK", b"\x80")
"""How a file begins that torch has pickled, in a zip archive or not."""
_OTHERS = {".h5": "TensorFlow", ".msgpack": "Flax", ".gguf": "GGUF", ".onnx": "ONNX"}
_REAL = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def within(folder: Path, name: str) -> Path:
    """The file of that name in a folder, which may not lead out of it.

    Raises SourceError for a name with a path in it, or a link that leaves the folder.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise SourceError(f"{folder}: {name[:80]!r} is not the name of a file in that folder")
    path, home = folder / name, folder.resolve()
    target = path.resolve()
    places = [home]
    if home.parent.name == "snapshots":
        places.append(home.parent.parent / "blobs")
    if not any(place in target.parents for place in places):
        raise SourceError(f"{path} is a link that leads out of the folder, to {target}; copy the file itself there")
    return path


def read_json(folder: Path, name: str) -> JsonObject:
    """A JSON object in a file of the folder.

    Raises SourceError where it is missing, huge, no JSON object, or what git-lfs left in its place.
    """
    path = within(folder, name)
    refuse_pointer(path)
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise SourceError(f"{path} has {size:,} bytes; a {name} has less than {LARGEST_JSON:,}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0][:120]
        raise SourceError(f"{path} cannot be read as JSON: {reason}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path} holds no JSON object, but a {type(found).__name__}")
    return found


def json_file(value: JsonMapping) -> bytes:
    """A JSON object as a file of ours."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True)
class _Stored:
    file: str
    shape: tuple[int, ...]
    kind: str


class Weights:
    """The tensors of a checkpoint's safetensors, single or sharded, by name; values are read when asked for.

    Raises SourceError where there are none, a file is damaged, or an index does not agree with its files.
    """

    def __init__(self, folder: Path, single: str = SINGLE) -> None:
        self.folder = folder
        self.tensors: dict[str, _Stored] = {}
        """Name -> file, shape and type."""
        self._in_file: dict[str, str] = {}
        expected: dict[str, str] = {}
        if (folder / single).exists():
            files = [single]
        elif single == SINGLE and (folder / INDEX).exists():
            expected = self._index()
            files = sorted(set(expected.values()))
        else:
            raise SourceError(_no_weights(folder))
        for file in files:
            self._read_header(file)
        for name, file in expected.items():
            if name not in self.tensors or self.tensors[name].file != file:
                raise SourceError(f"{folder / INDEX} says that {name} is in {file}, but it is not")

    def _index(self) -> dict[str, str]:
        where = read_json(self.folder, INDEX).get("weight_map")
        if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
            raise SourceError(f"{self.folder / INDEX} has no weight_map from tensors to files")
        return where

    def _read_header(self, file: str) -> None:
        path = within(self.folder, file)
        if not path.is_file():
            raise SourceError(f"{path} is not there, but {INDEX} names it; the folder is not complete")
        try:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    piece = opened.get_slice(name)
                    if name in self.tensors:
                        raise SourceError(f"{name} is in {self.tensors[name].file} and again in {file}")
                    self.tensors[name] = _Stored(file, tuple(piece.get_shape()), str(piece.get_dtype()))
        except (SafetensorError, OSError, ValueError) as error:
            refuse_pointer(path)
            known = signature_of_file(path)
            what = f"{known.what}, and not a safetensors file" if known else f"not a whole safetensors file: {error}"
            raise SourceError(f"{path} is {what}") from None

    def rename(self, names: dict[str, str]) -> None:
        """Let tensors be known by other names: new name -> name in the file."""
        self._in_file |= {new: self._in_file.get(old, old) for new, old in names.items()}
        self.tensors |= {new: self.tensors.pop(old) for new, old in names.items()}

    def written(self, name: str) -> str:
        """The name of a tensor as it stands in its file."""
        return self._in_file.get(name, name)

    def told(self, name: str) -> str:
        """A tensor for messages: its name as it is written, and the file that holds it."""
        return f"{self.written(name)} in {self.place(name)}"

    def place(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.folder / self.tensors[name].file

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The values of a tensor as `dtype`. Raises SourceError for a type that is no real number."""
        stored, path = self.tensors[name], self.place(name)
        real = self.written(name)
        if stored.kind not in _REAL:
            fine = ", ".join(_REAL)
            raise SourceError(f"{real} in {path} is stored as {stored.kind}, quantized; {UNQUANTIZED} ({fine})")
        try:
            with safe_open(path, framework="pt") as opened:
                return opened.get_tensor(real).to(dtype)
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{real} in {path} cannot be read: {error}") from None


def no_model(path: Path) -> str:
    """Why a path without a config.json in it is no model that can be read, and what to give instead."""
    if path.is_file():
        return f"{path} is a file{_kind_of(path)}; {_instead(path.parent)}"
    if not path.is_dir():
        hint = f"; a model of the hub is named hf:{path.as_posix()}" if _is_hub_name(path) else ""
        return f"{path} is not there; give a folder with config.json and model.safetensors{hint}"
    if (path / "config.toml").is_file():
        return f"{path} is a run of qkv already: open it as it is, for example with qkv show {typed(path)}"
    if any((path / name).is_file() for name in ADAPTER):
        return no_base(path)
    inside = sorted(found.parent for found in (*path.glob("*/config.json"), *path.glob("snapshots/*/config.json")))
    hint = f"; {_instead(inside[-1])}" if inside else ""
    return f"{path} is not a model: it has no config.json{hint}"


def no_base(folder: Path) -> str:
    """What is said of a folder that holds an adapter alone, whose model is not here."""
    name, readable = ADAPTER[0], all((folder / name).is_file() for name in ADAPTER[:2])
    base = read_json(folder, name).get("base_model_name_or_path") if (folder / name).is_file() else None
    to = f" to {base}" if isinstance(base, str) and base else " to another model"
    do = f"give that model's folder too: qkv import {typed(folder)} --base DIR --out RUN" if readable else ALONE
    return f"{folder} is an adapter (such as LoRA){to}, and not a model; {do}"


def _kind_of(path: Path) -> str:
    """What a file of a model is, behind "is a file"; "" where its name does not tell."""
    if path.suffix == ".bin" and path.stat().st_size and not _head(path).startswith(_PICKLES):
        return " of bare numbers (llama2.c writes such) and no pickle, which qkv does not read"
    if path.name.endswith(_PICKLED):
        return " of pickled weights, which qkv does not open (unpickling can run any program)"
    if path.suffix in _OTHERS:
        return f" of weights of {_OTHERS[path.suffix]}, which qkv does not read"
    return " of weights without their settings" if path.suffix == ".safetensors" else ""


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(2)


def _instead(folder: Path) -> str:
    """What to give in place of something in or above `folder`."""
    if (folder / "config.json").is_file():
        return f"give the folder with its config.json: {folder}"
    return "expected a folder with config.json and model.safetensors"


def _is_hub_name(path: Path) -> bool:
    """Whether a path looks like ORG/NAME of the hub, and nothing like it is here."""
    name = re.compile(r"[A-Za-z0-9][\w.-]*")
    parts = path.parts
    return len(parts) == 2 and all(name.fullmatch(part) for part in parts) and not Path(parts[0]).exists()


def _no_weights(folder: Path) -> str:
    """Why a folder without model.safetensors cannot be read, and what would help."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    if set(ADAPTER) & set(names):
        return no_base(folder)
    pickled = [name for name in names if name.endswith(_PICKLED) and name != "training_args.bin"]
    if pickled:
        return (
            f"{folder} holds pickled weights ({pickled[0]}), which qkv does not open: unpickling can run any program."
            ' If you trust where they come from, convert them with transformers: python -c "from transformers import'
            " AutoModelForCausalLM as M; M.from_pretrained('FOLDER').save_pretrained('NEW_FOLDER')\""
            " (AutoModelForMaskedLM for a masked model)"
        )
    others = [name for name in names if Path(name).suffix in _OTHERS]
    if others:
        kind = _OTHERS[Path(others[0]).suffix]
        return (
            f"{folder} holds weights of {kind} ({others[0]}); qkv reads safetensors ({SINGLE}, or shards with an index)"
        )
    return f"{folder} has no weights: expected {SINGLE}, or {INDEX} with its shards"
