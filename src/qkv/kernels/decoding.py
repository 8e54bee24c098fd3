"""`Decoding`'s step by C++ of ours: all layers and the matrix behind them as one call (`native/decoding.cpp`).

For float32 on a CPU, where a compiler is. What `decoding` lays out is laid out here once more, in strips of columns.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import native
from qkv.kernels.cache import SplitCache
from qkv.shapes import Float32

KINDS = ("none", "relu", "relu2", "gelu", "gelu_tanh", "silu", "swiglu")
"""MLPs, as `native/decoding.cpp` counts them."""

_STRIP = 32
_COLUMNS = ("qkv", "qkv_bias", "along", "across", "W_O", "b_O", "mlp_in", "mlp_bias", "W_out", "b_out")
_TURNS = slice(2, 4)
_KEYS = len(_COLUMNS)
"""The first of a layer's numbers that are addresses of a cache."""


class _Sizes(ctypes.Structure):
    _fields_ = [  # noqa: RUF012
        *((name, ctypes.c_int64) for name in "batch layers d_model n_heads n_kv d_head wide hidden vocab".split()),
        *((name, ctypes.c_int64) for name in ("kind", "centred", "qk_normed", "room")),
        *((name, ctypes.c_float) for name in ("rms", "eps", "qk_rms")),
    ]


def serves(layers: Sequence[Any]) -> bool:
    """Whether there is compiled code for layers as `decoding` lays them out."""
    first = layers[0]
    alike = all(layer.mlp_kind == first.mlp_kind for layer in layers)
    return (
        first.W_O.device.type == "cpu"
        and first.W_O.dtype == torch.float32
        and alike
        and (first.mlp_kind or "none") in KINDS
        and native.load("decoding") is not None
    )


class CompiledSteps:
    """One token for every row at a time, after what a `SplitCache` holds."""

    def __init__(self, layers: Sequence[Any], out: Any) -> None:
        library = native.load("decoding")
        assert library is not None
        self._call: Any = library.decode
        pointer, n = ctypes.c_void_p, ctypes.c_long
        self._call.argtypes, self._call.restype = (*4 * (pointer,), n, n, *3 * (pointer,)), None
        self._layers, self._out, first = layers, _strips(out.weight), layers[0]
        self._out_bias = out.bias
        self._kept: list[Tensor] = []  # what addresses point at
        mlp = first.mlp_kind is not None
        rms = 0.0 if out.rms is None else float(out.rms)
        self._sizes = _Sizes(
            layers=len(layers),
            d_model=first.W_O.shape[1],
            n_heads=first.n_heads,
            n_kv=first.n_kv,
            d_head=first.d_head,
            wide=first.mlp_in.weight.shape[1] if mlp else 0,
            hidden=first.W_out.shape[0] if mlp else 0,
            vocab=out.weight.shape[1],
            kind=KINDS.index(first.mlp_kind or "none"),
            centred=out.rms is None,
            qk_normed=first.qk_rms is not None,
            rms=rms,
            eps=out.eps,
            qk_rms=0.0 if first.qk_rms is None else float(first.qk_rms),
        )
        self._table = np.zeros((len(layers), _KEYS + 4), dtype=np.int64)
        for row, layer in zip(self._table, layers, strict=True):
            parts = (layer.W_O, layer.b_O, *((layer.W_out, layer.b_out) if mlp else (None, None)))
            strips = [_strips(layer.qkv.weight), layer.qkv.bias, None, None, _strips(parts[0]), parts[1]]
            strips += [_strips(layer.mlp_in.weight), layer.mlp_in.bias] if mlp else [None, None]
            strips += [None if parts[2] is None else _strips(parts[2]), parts[3]]
            for column, tensor in enumerate(strips):
                row[column] = self._address(tensor)
        self._first_turns = np.zeros((len(layers), 2), dtype=np.int64)
        self._next_turn = np.zeros((len(layers), 2), dtype=np.int64)
        for i, layer in enumerate(layers):
            for j, table in enumerate((layer.along, layer.across)):
                if table is not None:
                    self._first_turns[i, j] = self._address(table)
                    self._next_turn[i, j] = table[0].numel() * table.element_size()

    def _address(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def begin(self, cache: SplitCache, batch: int) -> None:
        """Go on from what is in the cache."""
        s = self._sizes
        s.batch, s.room = batch, cache.memory()[0][0].shape[1]
        self._find(cache)
        n = s.d_model + (s.n_heads + 2 * s.n_kv) * s.d_head + s.n_heads * s.d_head + s.wide + s.hidden
        longest = self._longest = cache.n_ctx + s.d_head + 1
        self._room = torch.empty(batch * (n + s.n_kv * longest))

    def _find(self, cache: SplitCache) -> None:
        """Where the cache's keys and values are now."""
        self._n_settled = cache.n_settled
        for row, tensors in zip(self._table, cache.memory(), strict=True):
            row[_KEYS:] = [t.data_ptr() for t in tensors] + [0] * (4 - len(tensors))

    def step(self, x: Float32[Tensor, "batch d_model"], cache: SplitCache) -> Float32[Tensor, "batch d_vocab"]:
        """Logits after the token whose vectors x are; overwrites x."""
        if cache.n_settled != self._n_settled:
            self._find(cache)
        self._table[:, _TURNS] = self._first_turns + cache.length * self._next_turn
        x, logits = x.contiguous(), x.new_empty(x.shape[0], self._sizes.vocab)
        bias = None if self._out_bias is None else self._out_bias.data_ptr()
        self._call(
            *(ctypes.addressof(self._sizes), self._table.ctypes.data, self._out.data_ptr(), bias),
            *(cache.n_settled, cache.length - cache.n_settled),
            *(x.data_ptr(), logits.data_ptr(), self._room.data_ptr()),
        )
        return logits


def _strips(weight: Tensor) -> Tensor:
    """[d_in, d_out] as [d_out / 32, d_in, 32], zeros behind the last columns."""
    padded = F.pad(weight, (0, -weight.shape[1] % _STRIP))
    return padded.view(weight.shape[0], -1, _STRIP).transpose(0, 1).contiguous()
