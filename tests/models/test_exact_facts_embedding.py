"""Exact facts about token embeddings, what trains them, and what a frozen or zero matrix does to the rest."""

import pytest
import torch
import torch.nn.functional as F

from qkv.models import CausalLM, Layout, ModelConfig, MultiHeadAttention, Sizes, build

SIZES = Sizes(d_vocab=11, d_model=16, n_layers=2, n_heads=2, n_ctx=8)


def make(seed: int = 0, **layout) -> CausalLM:
    layout = {"positions": "learned", "norm": "rms", "mlp": "gelu", "tied": False, "start": "normal"} | layout
    model = build(ModelConfig(kind="CausalLM", sizes=SIZES, layout=Layout(**layout)), seed)
    assert isinstance(model, CausalLM)
    return model.double()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.tensor([[1, 4, 4, 9, 2], [2, 1, 9, 9, 4]])


def loss_of(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_onehot_times_W_E_is_the_row_of_the_token_forward_and_backward(ids):
    W_E = make().embedding.W_E
    assert W_E is not None
    onehot = F.one_hot(ids, 11).double()
    looked_up, multiplied = F.embedding(ids, W_E), onehot @ W_E
    assert torch.equal(looked_up, multiplied)
    cotangent = torch.randn(looked_up.shape, dtype=torch.float64)
    (by_row,) = torch.autograd.grad(looked_up, W_E, cotangent)
    (by_product,) = torch.autograd.grad(multiplied, W_E, cotangent)
    torch.testing.assert_close(by_row, by_product, rtol=0, atol=1e-14)


def test_only_rows_of_tokens_in_the_batch_get_gradient_and_sgd_leaves_the_others_bit_identical(ids):
    model = make()
    before = model.embedding.W_E.detach().clone()
    loss_of(model, ids).backward()
    seen = torch.zeros(11, dtype=torch.bool)
    seen[ids[:, :-1].unique()] = True
    assert (model.embedding.W_E.grad[~seen] == 0).all()
    assert (model.embedding.W_E.grad[seen].abs().sum(1) > 0).all()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert torch.equal(model.embedding.W_E[~seen], before[~seen])
    assert not torch.equal(model.embedding.W_E[seen], before[seen])


def test_a_tied_W_E_gets_gradient_in_every_row_because_it_is_also_W_U(ids):
    model = make(tied=True)
    loss_of(model, ids).backward()
    assert (model.embedding.W_E.grad.abs().sum(1) > 0).all()


def test_zero_W_O_makes_the_gradients_of_W_Q_W_K_and_W_V_exactly_zero(ids):
    model = make()
    for block in model.blocks:
        block.attention.W_O.data.zero_()
    loss_of(model, ids).backward()
    for block in model.blocks:
        for name in ("W_Q", "W_K", "W_V"):
            assert (getattr(block.attention, name).grad == 0).all()
        assert (block.attention.W_O.grad != 0).any()


def test_the_start_zero_out_begins_there_and_leaves_after_one_step(ids):
    model = make(start="zero_out")
    model.head.W_U.data.normal_()
    loss_of(model, ids).backward()
    assert all((block.attention.W_Q.grad == 0).all() for block in model.blocks)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()
    loss_of(model, ids).backward()
    assert all((block.attention.W_Q.grad != 0).any() for block in model.blocks)


def test_zero_W_U_makes_the_gradient_of_everything_below_it_exactly_zero(ids):
    model = make()
    model.head.W_U.data.zero_()
    loss_of(model, ids).backward()
    for path, parameter in model.named_parameters():
        assert (parameter.grad != 0).any() if path == "head.W_U" else (parameter.grad == 0).all(), path


def test_gradient_flows_through_frozen_matrices_to_what_lies_below_them(ids):
    free, frozen = make(), make()
    for path, parameter in frozen.named_parameters():
        parameter.requires_grad_(path == "embedding.W_E")
    loss_of(free, ids).backward()
    loss_of(frozen, ids).backward()
    assert (frozen.embedding.W_E.grad != 0).any()
    torch.testing.assert_close(frozen.embedding.W_E.grad, free.embedding.W_E.grad, rtol=0, atol=1e-15)


def test_the_input_of_a_layer_is_no_parameter_except_at_the_bottom(ids):
    model = make()
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        seen[name] = tensor
        return tensor

    model.hidden(ids, hook=keep)
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    for layer in range(2):
        x = seen[f"L{layer}.x"]
        assert not x.is_leaf and x.requires_grad
        assert tuple(x.shape) not in shapes
    rows = model.embedding.W_E[ids] + model.embedding.W_pos[: ids.shape[1]]
    assert torch.equal(seen["L0.resid_pre"], rows), "the first layer reads rows of W_E and W_pos"


def small_table(d_vocab: int, d_model: int, seed: int) -> torch.Tensor:
    return torch.randn(d_vocab, d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_with_no_more_tokens_than_dimensions_other_matrices_make_up_for_any_frozen_table():
    ids = torch.tensor([[0, 3, 1, 2, 3]])
    frozen, trained = small_table(4, 6, 1), small_table(4, 6, 2)
    attention = MultiHeadAttention(6, 2, causal=True).double()
    changed = MultiHeadAttention(6, 2, causal=True).double()
    bridge = torch.linalg.pinv(frozen) @ trained
    for name in ("W_Q", "W_K", "W_V"):
        getattr(changed, name).data = bridge @ getattr(attention, name).data
    changed.W_O.data = attention.W_O.data
    _, wanted = attention.forward_recorded(F.embedding(ids, trained))
    _, got = changed.forward_recorded(F.embedding(ids, frozen))
    for name in ("q", "k", "v", "pattern", "z"):
        torch.testing.assert_close(got[name], wanted[name], rtol=0, atol=1e-12)


def test_with_more_tokens_than_dimensions_some_trained_table_cannot_be_made_up_for():
    frozen, trained = small_table(5, 3, 1), small_table(5, 3, 2)
    W_Q = torch.eye(3, dtype=torch.float64)
    best = torch.linalg.lstsq(frozen, trained @ W_Q).solution
    assert (frozen @ best - trained @ W_Q).norm() > 0.1
