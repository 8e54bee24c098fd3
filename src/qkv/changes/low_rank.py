"""LoRA: a matrix frozen at its start, plus a trained product of two narrow ones (Hu et al. 2021, arXiv 2106.09685).

    W = W_start + (alpha / r) A B        A [in, r] is random, B [r, out] starts at zero; x W, so the paper's B A is A B

The model's parameter always holds this sum, so whatever reads it (instruments, checkpoints, exports) reads the merged
matrix. Gradients of the factors follow from the parameter's by the chain rule, so passes need no code of their own.
"""

import torch
from torch import Tensor, nn

from qkv.randomness import generator


class LowRank:
    """The factors of one matrix [in, out], with their gradients; `parameter` is written by `merge`."""

    def __init__(self, address: str, parameter: nn.Parameter, rank: int, alpha: float, seed: int) -> None:
        """A is uniform within 1 / sqrt(in), as in PEFT, drawn by (seed, address)."""
        rows, columns = parameter.shape
        self.address, self._parameter, self._scale = address, parameter, alpha / rank
        self._start = parameter.detach().clone()
        self.both = parameter.detach().new_zeros(rank * (rows + columns))
        """A and B in one memory, of which a gradient has one norm."""
        self.a, self.b = self._cut(self.both)
        draws = generator(seed, "lora", address).uniform(-(rows**-0.5), rows**-0.5, self.a.shape)
        self.a.copy_(torch.from_numpy(draws))

    @property
    def factors(self) -> dict[str, Tensor]:
        """What is trained, by address: `L0.W_Q.lora_A` and `L0.W_Q.lora_B`."""
        return {f"{self.address}.lora_A": self.a, f"{self.address}.lora_B": self.b}

    def state(self) -> dict[str, Tensor]:
        """The factors, and what they are added to (`L0.W_Q.lora_start`), sharing memory."""
        return {f"{self.address}.lora_start": self._start} | self.factors

    @torch.no_grad()
    def take_gradient(self) -> None:
        """dL/dA = s dL/dW B^T and dL/dB = s A^T dL/dW with s = alpha / r; None where W has no gradient."""
        whole = self._parameter.grad
        self.both.grad = self.a.grad = self.b.grad = None
        if whole is None:
            return
        if not self.b.any():  # nothing is added yet, and weights may have been loaded since this was made
            self._start.copy_(self._parameter)
        to_a, to_b = whole @ self.b.T, self.a.T @ whole
        self.both.grad = torch.cat((to_a.flatten(), to_b.flatten())).mul_(self._scale)
        self.a.grad, self.b.grad = self._cut(self.both.grad)

    @torch.no_grad()
    def merge(self) -> None:
        """Write W_start + (alpha / r) A B into the parameter."""
        torch.addmm(self._start, self.a, self.b, alpha=self._scale, out=self._parameter.detach())

    def _cut(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """A and B in a tensor of the layout of `both`."""
        rows, columns = self._parameter.shape
        rank = len(both) // (rows + columns)
        return both[: rows * rank].view(rows, rank), both[rows * rank :].view(rank, columns)
