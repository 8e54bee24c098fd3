"""Starting values of every matrix: one table of named starts, each value a pure function of (seed, address).

Nothing depends on how many numbers were drawn before, so two models that share an address and a seed share that start.
A start is a row per kind of matrix (the last part of an address); kinds that a row does not name start as `_EVERYWHERE`
says: gains at 1, biases at 0.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, unknown
from qkv.randomness import generator


@dataclass(frozen=True)
class Draw:
    """One distribution: its sentence for people and `values(rng, shape, fan_in, n_layers)` as a float32 array."""

    sentence: str
    values: Callable[[np.random.Generator, tuple[int, ...], int, int], np.ndarray]


def _normal(std: float) -> Draw:
    return Draw(f"N(0, {std:g})", lambda rng, shape, fan_in, n_layers: rng.standard_normal(shape, np.float32) * std)


def _normal_residual(std: float) -> Draw:
    """Radford et al. 2019 (GPT-2), section 2.3: residual outputs scaled by 1/sqrt(number of residual layers)."""
    return Draw(
        f"N(0, {std:g} / sqrt(2 n_layers))",
        lambda rng, shape, fan_in, n_layers: rng.standard_normal(shape, np.float32) * (std / math.sqrt(2 * n_layers)),
    )


def _truncated(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    values = rng.standard_normal(shape, np.float32)
    beyond = np.abs(values) > 2
    while beyond.any():
        values[beyond] = rng.standard_normal(int(beyond.sum()), np.float32)
        beyond = np.abs(values) > 2
    return values * std


def _truncated_normal(std: float) -> Draw:
    return Draw(f"N(0, {std:g}) cut at 2 sigma", lambda rng, shape, fan_in, n_layers: _truncated(rng, shape, std))


def _constant(value: float) -> Draw:
    return Draw(f"{value:g}", lambda rng, shape, fan_in, n_layers: np.full(shape, value, np.float32))


_FAN_IN_UNIFORM = Draw(
    "U(-sqrt(3 / fan_in), sqrt(3 / fan_in)), std 1/sqrt(fan_in)",
    lambda rng, shape, fan_in, n_layers: (rng.random(shape, np.float32) * 2 - 1) * math.sqrt(3 / fan_in),
)
_XAVIER_UNIFORM = Draw(
    "U(-sqrt(6 / (fan_in + fan_out)), +)",
    lambda rng, shape, fan_in, n_layers: (rng.random(shape, np.float32) * 2 - 1) * math.sqrt(6 / (fan_in + shape[-1])),
)
_EMBEDDING_NORMAL = Draw(
    "N(0, 1 / sqrt(d_model))",
    lambda rng, shape, fan_in, n_layers: rng.standard_normal(shape, np.float32) / math.sqrt(shape[-1]),
)
_OPEN_FORGET_GATE = Draw(
    "1 for the forget gate, 0 for the others",
    lambda rng, shape, fan_in, n_layers: np.repeat(np.array([0, 1, 0, 0], np.float32), shape[0] // 4),
)
"""Jozefowicz et al. 2015 (ICML, "An empirical exploration of recurrent network architectures")."""
_IDENTITY = Draw("the identity", lambda rng, shape, fan_in, n_layers: np.eye(*shape, dtype=np.float32))
ZERO, ONE = _constant(0.0), _constant(1.0)
_SMALL, _SMALL_RESIDUAL, _SMALL_CUT = _normal(0.02), _normal_residual(0.02), _truncated_normal(0.02)
_HIDDEN = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "W_transform", "W_project", "W_pool")
_RECURRENT: dict[str, Draw] = {
    f"{name}{back}": _OPEN_FORGET_GATE if name == "b_ih" else _FAN_IN_UNIFORM
    for name in ("W_ih", "W_hh", "b_ih")
    for back in ("", "_back")
}
_EVERYWHERE: dict[str, Draw] = (
    _RECURRENT
    | {"gain": ONE, "W_token": _SMALL}
    | dict.fromkeys("bias b_E b_project b_Q b_K b_V b_O b_sink b_in b_out b_transform b_U b_pool b_cls".split(), ZERO)
)


def _rows(hidden: Draw, **others: Draw) -> dict[str, Draw]:
    return (
        _EVERYWHERE
        | dict.fromkeys(_HIDDEN, hidden)
        | {"W_type": others["W_pos"], "W_rel": others["W_pos"], "W_cls": others["W_U"]}
        | others
    )


START: Mapping[str, Mapping[str, Draw]] = {
    # Radford et al. 2019; code of openai/gpt-2 and nanoGPT.
    "gpt2": _rows(_SMALL, W_E=_SMALL, W_pos=_SMALL, W_U=_SMALL, W_O=_SMALL_RESIDUAL, W_out=_SMALL_RESIDUAL),
    # Devlin et al. 2018 (arXiv 1810.04805); google-research/bert `create_initializer`.
    "bert": _rows(_SMALL_CUT, W_E=_SMALL_CUT, W_pos=_SMALL_CUT, W_U=_SMALL_CUT),
    # Touvron et al. 2023 (arXiv 2302.13971) as released: plain normal everywhere.
    "normal": _rows(_SMALL, W_E=_SMALL, W_pos=_SMALL, W_U=_SMALL),
    # Glorot and Bengio 2010, as tensor2tensor starts the transformer of Vaswani et al. 2017 (arXiv 1706.03762).
    "xavier": _rows(_XAVIER_UNIFORM, W_E=_EMBEDDING_NORMAL, W_pos=_SMALL, W_U=_XAVIER_UNIFORM),
    # Outputs of sublayers (and an untied W_U) start at zero, so a block is the identity at step 0 (Zhang et al. 2019,
    # arXiv 1901.09321; karpathy/nanochat `init_weights`, MIT).
    "zero_out": _rows(_FAN_IN_UNIFORM, W_E=_EMBEDDING_NORMAL, W_pos=_SMALL, W_U=ZERO, W_O=ZERO, W_out=ZERO),
    # What recurrent layers read starts as large as what they carry over.
    "recurrent": _rows(_FAN_IN_UNIFORM, W_E=_normal(0.5), W_pos=_SMALL, W_U=_FAN_IN_UNIFORM),
    # Attention without parameters: W_Q = W_K = W_V = W_O = I, so that q = k = v = x in a model of one head.
    "identity": _rows(
        _FAN_IN_UNIFORM,
        W_E=_normal(1.0),
        W_pos=_SMALL,
        W_U=_FAN_IN_UNIFORM,
        **dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), _IDENTITY),
    ),  # fmt: skip
}
"""Name of a start -> kind of matrix -> its distribution."""


def start_values(
    name: str, address: str, kind: str, shape: tuple[int, ...], fan_in: int, n_layers: int, seed: int
) -> Tensor:
    """Starting values of one matrix, float32 [*shape]: a pure function of its arguments.

    `kind` is the last part of `address` ("W_Q", "gain"); `fan_in` is the number of inputs a column sums over.

    Raises ConfigError for an unknown start or a kind it has no row for.
    """
    if name not in START:
        raise ConfigError(unknown("start", name, START))
    if kind not in START[name]:
        raise ConfigError(unknown("kind of matrix", kind, START[name]))
    values = START[name][kind].values(generator(seed, "start", address), tuple(shape), fan_in, n_layers)
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


_STRUCTURE = frozenset({"embedding", "distances", "blocks", "attention", "mixer", "mlp", "head"})


def address_of(path: str) -> str:
    """The address of a parameter from its path in the module: `blocks.0.attention.W_Q` -> `L0.W_Q`."""
    parts = (f"L{part}" if part.isdigit() else part for part in path.split("."))
    return ".".join(part for part in parts if part not in _STRUCTURE)


@torch.no_grad()
def fill(module: nn.Module, start: str, n_layers: int, seed: int | None) -> None:
    """Write the start named `start` into every parameter of `module`, each by its own address; without a seed none."""
    if seed is None:
        return
    for path, parameter in module.named_parameters():
        address = address_of(path)
        shape = tuple(parameter.shape)
        values = start_values(start, address, address.rsplit(".", 1)[-1], shape, shape[0], n_layers, seed)
        parameter.copy_(values)
