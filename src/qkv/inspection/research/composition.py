"""Composition scores: how much a head reads what a head of an earlier layer writes.

With W_OV = W_V W_O of the writing head A and W_QK = W_Q W_K^T of the reading head B (rows: x W),

    Q    |W_OV^A W_QK^B| / (|W_OV^A| |W_QK^B|)          what A writes becomes a part of B's queries
    K    |W_OV^A (W_QK^B)^T| / (|W_OV^A| |W_QK^B|)      ... of its keys
    V    |W_OV^A W_OV^B| / (|W_OV^A| |W_OV^B|)          ... of its values, and is passed on

in Frobenius norms, from 0 to 1 (Elhage et al. 2021, transformer-circuits.pub/2021/framework). Matrices are as stored:
norms between the layers, biases and rotary turns are left out. No d_model x d_model table is made: with W_V = Q R, Q's
columns orthonormal, |W_V M| = |R M|, so every score is the norm of a d_head x d_head matrix.

Baseline: the same heads with B turned at random, its singular values kept. The root mean square of that is
1 / sqrt(d_model), whatever the heads are; its spread depends on how few directions they use.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.spectra import circuits
from qkv.models.addresses import parse_address
from qkv.models.factored import FactoredMatrix
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.shapes import Float64

KINDS = ("Q", "K", "V")
DRAWS = 400
"""Random turns that the baseline of each kind is measured with."""


@dataclass(frozen=True, eq=False)
class Composition:
    """Every pair of heads of different layers, within a stack."""

    heads: list[str]
    """`L0.H1`, in order."""
    scores: dict[str, Float64[np.ndarray, "writer reader"]] = field(repr=False)
    """Q, K, V -> scores; NaN where the writer is not in an earlier layer of the reader's stack."""
    random: dict[str, tuple[float, float]]
    """Q, K, V -> root mean square and 97.5% point of the baseline."""

    def strongest(self, n: int = 10) -> list[tuple[float, str, str, str]]:
        """(score, kind, writer, reader) of the pairs with the largest scores, falling."""
        found = [
            (float(table[a, b]), kind, self.heads[a], self.heads[b])
            for kind, table in self.scores.items()
            for a, b in np.argwhere(np.isfinite(table))
        ]
        return sorted(found, reverse=True)[:n]

    def above(self) -> dict[str, float]:
        """Q, K, V -> share of pairs above the 97.5% point of the baseline; 0.025 for heads that are unrelated."""
        finite = {kind: table[np.isfinite(table)] for kind, table in self.scores.items()}
        return {kind: float((values > self.random[kind][1]).mean()) for kind, values in finite.items()}


def composition(catalogue: Catalogue) -> Composition | None:
    """The scores of all heads; None for a model in which no head stands above another."""
    found = [one for one in circuits(catalogue.named()) if not one.is_crossed]
    stems = [one.address.removesuffix(".QK") for one in found if one.is_qk]
    layers: dict[tuple[str, int], list[int]] = {}
    for i, stem in enumerate(stems):
        parsed = parse_address(f"{stem}.QK")
        layers.setdefault((parsed.scope, parsed.layer or 0), []).append(i)
    QK = [catalogue.circuit(f"{stem}.QK") for stem in stems]
    OV = [catalogue.circuit(f"{stem}.OV") for stem in stems]
    writes = {layer: torch.stack([_writing(OV[i]) for i in of]) for layer, of in layers.items()}
    reads = {
        kind: {layer: torch.stack([_reading(of_head[i]) for i in of]) for layer, of in layers.items()}
        for kind, of_head in zip(KINDS, (QK, [qk.T for qk in QK], OV), strict=True)
    }
    scores = {kind: np.full((len(stems), len(stems)), np.nan) for kind in KINDS}
    for writer, of_writer in layers.items():
        for reader, of_reader in layers.items():
            for kind in KINDS if writer[0] == reader[0] and writer[1] < reader[1] else ():
                scores[kind][np.ix_(of_writer, of_reader)] = _scores(writes[writer], reads[kind][reader])
    if not any(np.isfinite(table).any() for table in scores.values()):
        return None
    every = torch.cat(list(writes.values()))
    random = {kind: _random(every, torch.cat(list(reads[kind].values())), kind) for kind in KINDS}
    return Composition(stems, scores, random)


def _writing(OV: FactoredMatrix) -> Tensor:
    """[d_head, d_model] with the singular values and right vectors of OV."""
    return torch.linalg.qr(OV.left.detach(), mode="r").R @ OV.right.detach()


def _reading(circuit: FactoredMatrix) -> Tensor:
    """[d_model, d_head] with the singular values and left vectors of a circuit."""
    return circuit.left.detach() @ torch.linalg.qr(circuit.right.detach().mT, mode="r").R.mT


def _scores(writes: Tensor, reads: Tensor) -> np.ndarray:
    """[writer, reader] of factors [writer, d_head, d_model] and [reader, d_model, d_head]; NaN for a head of zeros."""
    n, m = len(writes), len(reads)
    products = writes.flatten(0, 1) @ reads.permute(1, 0, 2).flatten(1)  # every head with every other at once
    squares = products.double().square().view(n, -1, m, reads.shape[-1]).sum((1, 3))
    sizes = [each.double().square().sum((1, 2)) for each in (writes, reads)]
    return (squares / torch.outer(*sizes)).sqrt().cpu().numpy()


def _random(writes: Tensor, reads: Tensor, kind: str) -> tuple[float, float]:
    """Root mean square and 97.5% point of scores of random pairs of these heads, the reader turned at random."""
    draw = generator("composition", kind)
    singular = torch.linalg.svdvals(reads.double())
    found = []
    for _ in range(DRAWS):
        a, b = draw.integers(len(writes)), draw.integers(len(reads))
        frame = np.linalg.qr(draw.standard_normal(reads.shape[1:]))[0]
        turned = torch.from_numpy(frame).to(singular) * singular[b, : frame.shape[1]]
        found.append(_scores(writes[a : a + 1].double(), turned[None])[0, 0])
    kept = np.array(found)[np.isfinite(found)]
    if not len(kept):
        return float("nan"), float("nan")
    return float(np.sqrt(np.square(kept).mean())), float(np.quantile(kept, 0.975))
