"""Muon: momentum, made orthogonal, for the hidden matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    M <- mu M + (1 - mu) G                 momentum of the gradient
    U  = polar((1 - mu) G + mu M)          Nesterov look-ahead; polar(A S B^T) = A B^T: every direction equally long
    W <- (1 - lr wd) W - lr sqrt(max(1, d_out / d_in)) U

What is made orthogonal is a *piece*: one head's share of W_Q, W_K, W_V and W_O (each head is a map of its own), a whole
matrix elsewhere. Pieces of one shape are stacked and made orthogonal in one batch.

The polar factor comes from three quintic steps x -> a x + b x^3 + c x^5 on the singular values, with the coefficients
that minimise the largest error for singular values from 1/100 of the largest up (Amsel, Persson, Musco and Gower 2025,
"The Polar Express", arXiv 2505.16932), after division by |(X X^T)^2|_F^(1/4): that is never below the largest singular
value, and much nearer to it than the usual |X|_F. The result's singular values are within 0.73..1.27, as those of
Jordan's five steps are within 0.68..1.13, for 3/5 of the products. Wide pieces iterate on their Gram matrix alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.kernels.elementwise import tiles_for

STEPS = (
    (8.093369023021944, -23.620431585747575, 17.446152492927),
    (3.636585657145847, -2.721926853731224, 0.5365463107591176),
    (2.661299945977125, -1.9771544938092636, 0.45261640725028324),
)
"""Coefficients (a, b, c) of each quintic step, for singular values in [0.01, 1]."""

_WIDE = 1.5
"""From this ratio of the sides on, iterating on the (smaller) Gram matrix alone needs fewer products."""
_WIDEST_BY_TILES = 512
"""Up to this shorter side a piece is made by the processor's tiles at once, each by one thread."""
_TINY = 1e-30
"""Below this squared length a piece counts as zero, and stays zero."""
_ROUNDING = 1.02
"""Room for the rounding of bfloat16: beyond the largest singular value that they are made for, the steps grow fast."""


def orthogonalise(stack: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows (columns, where it is tall) to each matrix of a stack, approximately.

    stack: [count, rows, columns], any float type. Returns the same shape and type: singular values in 0.73..1.27 where
    those of the input are above 1/100 of its largest (up to 1.5 in bfloat16), less below; a zero matrix stays zero, and
    one of entries below 1e-11 may count as zero in float32, where squares of its products vanish.
    """
    if (tiles := tiles_for(stack)) is not None and min(stack.shape[1:]) <= _WIDEST_BY_TILES:
        return tiles.orthogonalise(stack, STEPS, _ROUNDING, _TINY)
    tall = stack.shape[1] > stack.shape[2]
    stack = stack.mT if tall else stack
    gram_only = stack.shape[2] >= _WIDE * stack.shape[1] and stack.dtype == torch.float32
    gram = torch.bmm(stack, stack.mT)
    length = _lengths(gram)
    length = torch.where(length > _TINY, length, torch.inf)  # of products of what is smaller no digit is left
    gram /= length.to(gram.dtype)
    squared = torch.bmm(gram, gram)
    top = _lengths(squared).sqrt()  # at least the largest eigenvalue of the Gram matrix, which has length 1
    if stack.dtype == torch.bfloat16:
        top *= _ROUNDING
    factor = _factor(STEPS[0], gram, squared, top)
    root = (length * top).sqrt().to(stack.dtype)
    if gram_only:
        gram /= top.to(gram.dtype)
        product = _times_later_factors(factor, gram) / root
        return torch.bmm(stack.mT, product.mT) if tall else torch.bmm(product, stack)
    stack = torch.bmm(factor / root, stack)
    for step in STEPS[1:]:
        gram = torch.bmm(stack, stack.mT)
        stack = torch.bmm(_factor(step, gram, torch.bmm(gram, gram)), stack)
    return stack.mT if tall else stack


def _lengths(matrices: Tensor) -> Tensor:
    """The Frobenius norm of each matrix, at least float32 [count, 1, 1], never 0."""
    dtype = torch.promote_types(matrices.dtype, torch.float32)
    return matrices.flatten(1).norm(dim=1, dtype=dtype)[:, None, None].clamp_min(_TINY)


def _factor(step: tuple[float, float, float], gram: Tensor, squared: Tensor, top: Tensor | None = None) -> Tensor:
    """a I + b A / top + c A^2 / top^2, in the place of A^2: what multiplies the stack in one quintic step."""
    a, b, c = step
    if top is None:
        factor = squared.mul_(c).add_(gram, alpha=b)
    else:
        factor = squared.mul_((c / top**2).to(gram.dtype)).addcmul_(gram, (b / top).to(gram.dtype))
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor


def _times_later_factors(product: Tensor, gram: Tensor) -> Tensor:
    """The product of all steps' factors: polynomials of one Gram matrix, so they can be multiplied up first."""
    factor = product
    for step in STEPS[1:]:
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _factor(step, gram, torch.bmm(gram, gram))
        product = torch.bmm(factor, product)
    return product


@dataclass(frozen=True)
class Piecewise:
    """A parameter [d_in, d_out] and how it falls into pieces."""

    parameter: Tensor
    heads: int = 0
    """How many heads share it; 0 means that it is one piece."""
    on_rows: bool = False
    """Whether heads are blocks of rows (W_O) rather than of columns (W_Q, W_K, W_V)."""

    @property
    def stretch(self) -> float:
        """sqrt(max(1, d_out / d_in))"""
        d_in, d_out = self.parameter.shape
        return max(1.0, d_out / d_in) ** 0.5

    def pieces(self, tensor: Tensor) -> Tensor:
        """A tensor of the parameter's shape as [pieces, d_in, d_out] of one piece each, sharing memory."""
        count = max(1, self.heads)
        if self.on_rows:
            return tensor.unflatten(0, (count, -1))
        return tensor.unflatten(1, (count, -1)).transpose(0, 1)


class Muon:
    """Muon on some 2-D parameters by address.

    A parameter whose gradient is None is passed over: no decay, no momentum, no update.
    """

    def __init__(
        self,
        parameters: dict[str, Piecewise],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
        zeros: Callable[[Tensor], Tensor] = torch.zeros_like,
    ) -> None:
        self.addresses = list(parameters)
        self._lr, self._momentum, self._weight_decay, self._dtype = lr, momentum, weight_decay, dtype
        self.decay = lr * weight_decay
        self._members = list(parameters.values())
        self._moved = [m.parameter for m in self._members]
        self._moments = [zeros(p).detach() for p in self._moved]

    def step(self, lr_scale: float | Tensor) -> None:
        """One update at `lr_scale` times the peak rate, from the gradients that are there."""
        active = [i for i, p in enumerate(self._moved) if p.grad is not None]
        if not active:
            return
        parameters, moments = [self._moved[i] for i in active], [self._moments[i] for i in active]
        gradients = [g for p in parameters if (g := p.grad) is not None]
        torch._foreach_lerp_(moments, gradients, 1.0 - self._momentum)  # type: ignore[attr-defined]
        ahead = torch._foreach_lerp(gradients, moments, self._momentum)  # type: ignore[attr-defined]
        lr = self._lr * lr_scale
        if self._weight_decay:
            torch._foreach_mul_(parameters, 1.0 - lr * self._weight_decay)  # type: ignore[attr-defined]
        self._add_orthogonal(active, ahead, lr)

    def _add_orthogonal(self, active: list[int], ahead: Sequence[Tensor], lr: float | Tensor) -> None:
        """Take `ahead` of the active ones, made orthogonal, off them at that rate."""
        members = [self._members[i] for i in active]
        for i, update in orthogonal_pieces(members, ahead, self._dtype):
            add_scaled(members[i].pieces(members[i].parameter), update, -lr * members[i].stretch)

    def state(self) -> dict[str, Tensor]:
        """Momentum by address ("L0.W_Q.momentum"), in the parameter's own shape, sharing memory."""
        return {f"{address}.momentum": m for address, m in zip(self.addresses, self._moments, strict=True)}


def add_scaled(onto: Tensor, update: Tensor, factor: float | Tensor) -> None:
    """onto += factor update; a scalar tensor is not waited for."""
    if isinstance(factor, Tensor):
        onto.addcmul_(update, factor)
    else:
        onto.add_(update, alpha=factor)


def orthogonal_pieces(
    members: Sequence[Piecewise], ahead: Sequence[Tensor], dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """(index, [pieces, d_in, d_out]) of each: its pieces of `ahead`, made orthogonal in `dtype`, in its own type."""
    groups: dict[tuple[int, ...], list[int]] = {}  # those whose pieces have one shape, in order of first appearance
    for i, (member, moved) in enumerate(zip(members, ahead, strict=True)):
        groups.setdefault(tuple(member.pieces(moved).shape[1:]), []).append(i)
    for numbers in groups.values():
        pieces = [members[i].pieces(ahead[i]) for i in numbers]
        updates = orthogonalise(torch.cat(pieces).to(dtype)).to(pieces[0].dtype)
        yield from zip(numbers, updates.split([len(p) for p in pieces]), strict=True)
