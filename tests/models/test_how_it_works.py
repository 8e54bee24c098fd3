"""Every formula of docs/how-it-works.md about the way back equals torch's automatic differentiation, in float64."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

PAGE = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
N, D_VOCAB, D_MODEL, D_HEAD = 7, 6, 8, 4
IDS = torch.tensor([3, 1, 3, 0, 2, 3, 1])
"""Token 3 occurs three times, tokens 4 and 5 never."""
NEXT = torch.tensor([1, 3, 0, 2, 3, 1, 5])
PARAMETERS = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_U")
FORMULAS = {
    r"\bar z = \bar o\, W_O^T": ("z", lambda m, g: g.o @ m.W_O.T),
    r"\bar v = A^T \bar z": ("v", lambda m, g: m.A.T @ g.z),
    r"\bar A = \bar z\, v^T": ("A", lambda m, g: g.z @ m.v.T),
    r"\bar S_{ij} = A_{ij} \left( \bar A_{ij} - \sum_m A_{im} \bar A_{im} \right)": (
        "S",
        lambda m, g: m.A * (g.A - (m.A * g.A).sum(dim=1, keepdim=True)),
    ),
    r"\bar q = \frac{\bar S\, k}{\sqrt{d_{head}}}": ("q", lambda m, g: g.S @ m.k / math.sqrt(D_HEAD)),
    r"\bar k = \frac{\bar S^T q}{\sqrt{d_{head}}}": ("k", lambda m, g: g.S.T @ m.q / math.sqrt(D_HEAD)),
    r"\bar W_Q = x^T \bar q": ("W_Q", lambda m, g: m.x.T @ g.q),
    r"\bar W_K = x^T \bar k": ("W_K", lambda m, g: m.x.T @ g.k),
    r"\bar W_V = x^T \bar v": ("W_V", lambda m, g: m.x.T @ g.v),
    r"\bar W_O = z^T \bar o": ("W_O", lambda m, g: m.z.T @ g.o),
    r"\bar x = \bar q\, W_Q^T + \bar k\, W_K^T + \bar v\, W_V^T + \bar x'": (
        "x",
        lambda m, g: g.q @ m.W_Q.T + g.k @ m.W_K.T + g.v @ m.W_V.T + g.after,
    ),
    r"\bar W_E[t] = \sum_{i\,:\,t_i = t} \bar x_i": (
        "W_E",
        lambda m, g: torch.stack([g.x[IDS == t].sum(dim=0) for t in range(D_VOCAB)]),
    ),
    r"\bar W_{pos}[i] = \bar x_i": ("W_pos", lambda m, g: g.x),
    r"\overline{\mathrm{logits}} = \frac{1}{n} \left("
    r" \mathrm{softmax}(\mathrm{logits}) - \mathrm{onehot}(t_{i+1}) \right)": (
        "logits",
        lambda m, g: (m.logits.softmax(dim=1) - F.one_hot(NEXT, D_VOCAB)) / N,
    ),
    r"\bar W_U = (x^{(L)})^T\, \overline{\mathrm{logits}}": ("W_U", lambda m, g: m.after.T @ g.logits),
}  # fmt: skip
"""LaTeX of the page -> the value whose gradient it is, and the same formula in torch."""


def trained_step(frozen: tuple[str, ...] = ()) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Causal attention with a skip connection, forward and back: every value, and autograd's gradient of it."""
    draws = torch.Generator().manual_seed(1)
    shapes = ((D_VOCAB, D_MODEL), (N, D_MODEL), *[(D_MODEL, D_HEAD)] * 3, (D_HEAD, D_MODEL), (D_MODEL, D_VOCAB))
    m = SimpleNamespace()
    for name, shape in zip(PARAMETERS, shapes, strict=True):
        drawn = torch.randn(shape, generator=draws, dtype=torch.float64)
        setattr(m, name, drawn.requires_grad_(name not in frozen))
    m.x = m.W_E[IDS] + m.W_pos
    m.q, m.k, m.v = m.x @ m.W_Q, m.x @ m.W_K, m.x @ m.W_V
    m.S = (m.q @ m.k.T / math.sqrt(D_HEAD)).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -math.inf)
    m.A = m.S.softmax(dim=1)
    m.z = m.A @ m.v
    m.o = m.z @ m.W_O
    m.after = m.x + m.o
    m.logits = m.after @ m.W_U
    values = {name: value for name, value in vars(m).items() if value.requires_grad}
    loss = F.cross_entropy(m.logits, NEXT)
    found = torch.autograd.grad(loss, list(values.values()))
    return m, SimpleNamespace(**dict(zip(values, found, strict=True)))


@pytest.mark.parametrize("latex", FORMULAS)
def test_a_formula_on_the_page_equals_autograd(latex):
    assert latex in PAGE
    values, gradients = trained_step()
    name, formula = FORMULAS[latex]
    torch.testing.assert_close(formula(values, gradients), getattr(gradients, name), rtol=1e-12, atol=1e-14)


def test_every_formula_of_the_way_back_is_tested():
    back = PAGE.partition("## Backward")[2].partition("## Check it yourself")[0]
    shown = [part.strip() for block in re.findall(r"\$\$(.+?)\$\$", back, re.S) for part in block.split(r", \qquad ")]
    assert sorted(shown) == sorted(FORMULAS)


def test_a_frozen_w_q_still_passes_its_part_down():
    _, free = trained_step()
    values, frozen = trained_step(frozen=("W_Q",))
    assert not hasattr(frozen, "W_Q")
    torch.testing.assert_close(frozen.x, free.x, rtol=0, atol=0)
    torch.testing.assert_close(frozen.W_E, free.W_E, rtol=0, atol=0)
    assert (frozen.q @ values.W_Q.T).norm() > 1e-3 * frozen.x.norm()


def test_a_token_that_does_not_occur_has_no_gradient_unless_the_tables_are_tied():
    values, gradients = trained_step()
    assert gradients.W_E[4:].abs().max() == 0 and gradients.W_E[:4].abs().min() > 0
    tied = values.W_E.detach().requires_grad_()
    x = tied[IDS] + values.W_pos.detach()
    (both,) = torch.autograd.grad(F.cross_entropy(x @ tied.T, NEXT), tied)
    assert both[4:].norm(dim=1).min() > 0


def test_q_k_and_v_are_linear_in_x_in_the_model_that_is_trained():
    from qkv.models import MultiHeadAttention

    attention = MultiHeadAttention(D_MODEL, 2, causal=True).double()
    a, b = (torch.randn(1, N, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (0, 1))

    def products(x):
        seen = attention.forward_recorded(x)[1]
        return [seen[name] for name in ("q", "k", "v")]

    for mixed, first, second in zip(products(2 * a - 3 * b), products(a), products(b), strict=True):
        torch.testing.assert_close(mixed, 2 * first - 3 * second, rtol=1e-12, atol=1e-12)
