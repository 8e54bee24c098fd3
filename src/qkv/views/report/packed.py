"""Arrays as text or bytes, and the one safe road of a payload into a page.

A page is given the words of a payload as JSON that anyone can read in its source, and the numbers of all its arrays,
one after another, deflated (RFC 1950) without loss: `carried`. An answer of a server is the same two as one byte
string: `wire`. Refuses raw text inside markup: `embed` is the only way in, and the modules of `static/` write text
nodes only.
"""

import base64
import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from qkv.jsontypes import JsonObject

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """A number array as base64 bytes, little-endian, C order: value = `scale` * stored."""

    dtype: Literal["float32", "uint8", "int32"]
    shape: tuple[int, ...]
    data: str
    scale: float = 1.0
    digits: int = 6
    """Significant digits that the stored form holds; a hover prints no more."""


def pack(array: np.ndarray, *, as_bytes: bool = False) -> Packed:
    """An array as `Packed`: float32, int32 or uint8 as they are, or non-negative values in 256 steps with `as_bytes`.

    Bytes keep two digits: the largest error is max / 510. NaN stays NaN in float32; bytes do not take NaN.
    """
    array = np.asarray(array)
    scale, digits = 1.0, 6
    if as_bytes:
        top = float(array.max()) if array.size else 0.0
        assert array.size == 0 or (np.isfinite(top) and float(array.min()) >= 0), "bytes hold finite values from 0 up"
        scale, digits = (top / 255) or 1.0, 2
        stored, name = np.rint(array / scale).astype("u1"), "uint8"
    elif array.dtype == np.uint8:
        stored, name, digits = array, "uint8", 3
    elif np.issubdtype(array.dtype, np.integer):
        stored, name, digits = array.astype("<i4"), "int32", 10
    else:
        stored, name = array.astype("<f4"), "float32"
    text = base64.b64encode(np.ascontiguousarray(stored).tobytes()).decode("ascii")
    return Packed(dtype=name, shape=tuple(int(n) for n in array.shape), data=text, scale=scale, digits=digits)  # type: ignore[arg-type]


def payload(kind: type[T], of: object, /, **own: object) -> T:
    """A dataclass `kind` whose fields are those that `of` (an object or a mapping) has by the same name, arrays packed
    and lists as tuples, but for its `own`."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in own]  # type: ignore[arg-type]
    there = of if isinstance(of, Mapping) else {name: getattr(of, name) for name in names if hasattr(of, name)}
    return kind(**{name: _held(there[name]) for name in names if name in there}, **own)


def _held(value: object) -> object:
    if hasattr(value, "numpy") or isinstance(value, np.ndarray):  # a tensor is an array as well
        return pack(np.asarray(value))
    return tuple(value) if isinstance(value, list) else value


def to_json(value: object, packed: Callable[[Packed], object] | None = None) -> Any:
    """Dataclasses, tuples and NumPy scalars as what JSON can hold; a float that is not finite becomes null. `packed`
    says what stands for an array, where that is not its fields.
    """
    if packed and isinstance(value, Packed):
        return packed(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name), packed) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): to_json(item, packed) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, packed) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def embed(value: object) -> str:
    """`value` as JSON that is safe inside a `<script>` element whatever its strings hold.

    Everything outside ASCII is escaped (U+2028 and lone surrogates with it), and so are `<`, `>` and `&`: no closing
    tag, comment opener or entity can appear. The HTML standard, section 4.12.1.3, lists what must not.
    """
    text = json.dumps(to_json(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def parted(value: object) -> tuple[object, bytes]:
    """(`value` as JSON can hold it, the bytes of its arrays one after another).

    Each array stands there as `{"dtype", "shape", "scale", "digits", "at", "bytes"}`; it begins at a multiple of 8, and
    one that occurs twice is there once.
    """
    places: dict[str, int] = {}
    blobs = bytearray()

    def place(array: Packed) -> JsonObject:
        data = base64.b64decode(array.data)
        if array.data not in places:
            places[array.data] = len(blobs)
            blobs.extend(data + b"\0" * (-len(data) % 8))
        about = {name: getattr(array, name) for name in ("dtype", "shape", "scale", "digits")}
        return {**about, "at": places[array.data], "bytes": len(data)}

    return to_json(value, place), bytes(blobs)


def wire(answer: object) -> bytes:
    """An answer as bytes: length of the header (4, little-endian), the header, the arrays one after another."""
    header, arrays = parted(answer)
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    return len(text).to_bytes(4, "little") + b"\0" * 4 + text + arrays


def carried(payload: object) -> str:
    """A payload as two script elements of a page: its words, and the numbers of its arrays, deflated, as base64."""
    header, arrays = parted(payload)
    numbers = base64.b64encode(zlib.compress(arrays, 9)).decode("ascii")
    return (
        f'<script type="application/json" id="qkv-payload">{embed(header)}</script>\n'
        f'<script type="text/plain" id="qkv-numbers">{numbers}</script>'
    )
