"""What the sublayers of a block share: the sum with the residual stream, and the norm that a fast part takes inside."""

from collections.abc import Callable

from torch import Tensor, nn

from qkv.kernels import autograd
from qkv.kernels.attention import Stream

Drop = Callable[[str, Tensor], Tensor]
"""`drop(site, tensor) -> tensor`: dropout by site name ("L0.mlp_out"); the caller owns its randomness.

One that has `drop.onto(stream, site, tensor)` makes the sum with the residual stream itself."""


def joined(stream: Stream | None, drop: Drop | None, site: str, out: Stream) -> Stream:
    """[stream +] drop(out): what a sublayer made, back on the residual stream."""
    if stream is None:
        return out if drop is None else drop(site, out)
    if drop is None:
        return stream + out
    onto = getattr(drop, "onto", None)
    return stream + drop(site, out) if onto is None else onto(stream, site, out)


def entering(norm: nn.Module | None, x: Stream) -> tuple[Stream, autograd.Norm | None]:
    """What enters a fast part, and the norm that it takes there; any other norm is made before."""
    inside: autograd.Norm | None = getattr(norm, "fast", None)
    return x if norm is None or inside is not None else norm(x), inside
