"""Which matrix was the first to lose its numbers: NaN and infinity in weights and gradients, by address."""

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from qkv.models.matrices import Catalogue

__all__ = ["culprit", "first_non_finite"]


def first_non_finite(catalogue: "Catalogue", *, gradients: bool) -> str:
    """The first address, in the catalogue's order, whose gradient (or weights) are not all finite, or ""."""
    for address in catalogue.addresses:
        parameter = catalogue.entry(address).parameter
        tensor = parameter.grad if gradients else parameter.detach()
        # A finite sum proves the whole tensor finite; only where it is not is every element looked at.
        if tensor is not None and not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            return address
    return ""


def culprit(catalogue: "Catalogue") -> tuple[str, str]:
    """(address, words for a person): where numbers were lost first; the address is "" where all are finite."""
    weights, gradient = (first_non_finite(catalogue, gradients=which) for which in (False, True))
    words = f"the first matrix with a non-finite gradient is {gradient}" if gradient else "every gradient is finite"
    if weights:
        words += f", and the weights of {weights} are not finite"
    return gradient or weights, words
