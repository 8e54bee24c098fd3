"""Exact facts about gradients: by hand, by finite differences, and what a step along them does to the loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.kernels import blocks
from qkv.models import Layout, ModelConfig, MultiHeadAttention, SelfAttention, Sizes, build
from qkv.models.blocks import MLP, Block
from qkv.models.embedding import Embedding, Head
from qkv.models.masks import Visible, visible
from qkv.models.norms import LayerNorm, RMSNorm


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numpy_backward(
    X: np.ndarray, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, W_O: np.ndarray, dY: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Y = softmax(Q K^T / sqrt(d), causal) V W_O by hand: the gradients of X, W_Q, W_K, W_V and W_O."""
    scale = 1 / np.sqrt(W_Q.shape[1])
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    S = np.where(np.tri(len(X), dtype=bool), scale * Q @ K.T, -np.inf)
    A = np.exp(S - S.max(axis=1, keepdims=True))
    A /= A.sum(axis=1, keepdims=True)
    Z = A @ V
    dZ = dY @ W_O.T
    dA, dV = dZ @ V.T, A.T @ dZ
    dS = A * (dA - (dA * A).sum(axis=1, keepdims=True))
    dQ, dK = scale * dS @ K, scale * dS.T @ Q
    dX = dQ @ W_Q.T + dK @ W_K.T + dV @ W_V.T
    return dX, X.T @ dQ, X.T @ dK, X.T @ dV, Z.T @ dY


@pytest.mark.parametrize("kind", ["SelfAttention", "MultiHeadAttention"])
def test_a_backward_pass_of_one_attention_layer_written_by_hand_equals_autograd(kind):
    if kind == "SelfAttention":
        attention = SelfAttention(4, d_head=3, causal=True).double()
    else:
        attention = MultiHeadAttention(4, 1, d_head=3, causal=True).double()
    x, dy = normal(1, 5, 4).requires_grad_(), normal(1, 5, 4, seed=1)
    attention(x).backward(dy)
    weights = [attention.W_Q, attention.W_K, attention.W_V, attention.W_O]
    by_hand = numpy_backward(x[0].detach().numpy(), *(W.detach().numpy() for W in weights), dy[0].numpy())
    for expected, tensor in zip(by_hand, [x, *weights], strict=True):
        np.testing.assert_allclose(tensor.grad.numpy().reshape(expected.shape), expected, rtol=0, atol=1e-13)


def checked(module: torch.nn.Module, forward, *inputs: torch.Tensor) -> bool:
    """gradcheck of `forward(*inputs)` in the inputs that require it and in every parameter of `module`."""
    module.double()
    for i, parameter in enumerate(module.parameters()):
        parameter.data = normal(*parameter.shape, seed=30 + i) / 2
    return torch.autograd.gradcheck(lambda *tensors: forward(*tensors[: len(inputs)]), (*inputs, *module.parameters()))


@pytest.mark.parametrize("norm", [RMSNorm(4, 1e-3), LayerNorm(4, 1e-3)])
def test_gradient_of_a_norm_equals_finite_differences(norm):
    assert checked(norm, norm, normal(2, 3, 4).requires_grad_())


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu"])
def test_gradient_of_an_mlp_equals_finite_differences(kind):
    mlp = MLP(kind, 4, 5, bias=kind != "swiglu")
    assert checked(mlp, mlp, normal(2, 3, 4).requires_grad_())
    assert checked(mlp, lambda x: blocks.mlp(mlp, x), normal(2, 3, 4).requires_grad_())


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(bias=True),
        dict(causal=True, qk_norm=True, rope_base=10.0, n_kv_heads=1),
        dict(rope_base=10.0, bias=True),
    ],
)
def test_gradient_of_attention_equals_finite_differences(options):
    attention = MultiHeadAttention(4, 2, **options)
    assert checked(attention, attention, normal(1, 3, 4).requires_grad_())


def test_gradient_of_masked_attention_and_of_cross_attention_equals_finite_differences():
    attention = MultiHeadAttention(4, 2)
    mask = torch.tensor([[True, True, False]])
    assert checked(attention, lambda x: attention(x, mask=mask), normal(1, 3, 4).requires_grad_())
    context = normal(1, 4, 4, seed=1).requires_grad_()
    assert checked(attention, attention, normal(1, 3, 4).requires_grad_(), context)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("skip", [True, False])
def test_gradient_of_a_block_equals_finite_differences(place, norm, skip):
    layout = Layout(norm=norm, norm_place=place, norm_eps=1e-2, skip=skip, qk_norm=True, start="normal")
    block = Block(Sizes(d_vocab=0, d_model=4, n_layers=1, n_heads=1, n_ctx=3, d_mlp=3).resolved(), layout, layer=0)
    causal = Visible(True, None)
    assert checked(block, lambda x: block(x, causal), normal(1, 3, 4).requires_grad_())


def test_gradient_of_a_block_that_reads_a_context_equals_finite_differences():
    layout = Layout(norm_eps=1e-2, start="normal")
    sizes = Sizes(d_vocab=0, d_model=4, n_layers=1, n_heads=1, n_ctx=3, d_mlp=3).resolved()
    block, context = Block(sizes, layout, layer=0, cross=True), normal(1, 2, 4, seed=1).requires_grad_()
    x, causal = normal(1, 3, 4).requires_grad_(), Visible(True, None)
    assert checked(block, lambda x, context: block(x, causal, context=context), x, context)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
def test_gradient_of_an_embedding_equals_finite_differences(positions):
    sizes = Sizes(d_vocab=5, d_model=4, n_layers=1, n_heads=1, n_ctx=3)
    embedding = Embedding(sizes, Layout(positions=positions, norm_e=True, norm_eps=1e-2, embed_scale=True))
    assert checked(embedding, lambda: embedding(torch.tensor([[1, 4, 1]])))


def test_gradient_of_a_head_equals_finite_differences():
    head = Head(Sizes(d_vocab=5, d_model=4, n_layers=1, n_heads=1, n_ctx=3), tied=False, bias=True)
    assert checked(head, lambda h: head(h, None), normal(2, 4).requires_grad_())


@pytest.mark.parametrize("name", ["embedding.W_E", "blocks.0.attention.W_Q", "blocks.1.mlp.W_in", "head.W_U"])
def test_a_small_sgd_step_on_one_matrix_changes_the_loss_by_minus_eta_times_the_squared_gradient_norm(name):
    layout = Layout(positions="learned", norm="layer", mlp="gelu", tied=False, start="xavier")
    config = ModelConfig(
        kind="CausalLM", sizes=Sizes(d_vocab=7, d_model=8, n_layers=2, n_heads=2, n_ctx=6), layout=layout
    )
    model, ids = build(config, 0).double(), torch.tensor([[1, 5, 2, 2, 6, 0]])

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    before = loss()
    before.backward()
    matrix = dict(model.named_parameters())[name]
    squared, errors = matrix.grad.square().sum(), []
    for eta in (1e-2, 1e-3):
        with torch.no_grad():
            matrix -= eta * matrix.grad
            errors.append(abs((loss() - before) / (-eta * squared) - 1).item())
            matrix += eta * matrix.grad
    assert errors[1] < 0.05 and errors[1] < errors[0] / 5, "the error is of the next order in eta"


def test_an_adam_or_orthogonal_step_is_another_direction_than_the_gradient():
    gradient = normal(6, 8)
    sign_step = -gradient.sign()  # the first step of Adam
    U, _, V = torch.linalg.svd(gradient, full_matrices=False)
    for step in (sign_step, -(U @ V)):
        cosine = F.cosine_similarity(step.flatten(), -gradient.flatten(), dim=0)
        assert 0.5 < cosine < 0.99


def test_hidden_keys_get_no_gradient():
    attention, x = MultiHeadAttention(4, 2).double(), normal(1, 4, 4).requires_grad_()
    to = visible(4, 4, causal=True, keys=torch.tensor([[True, True, False, True]]), like=x)
    blocks.attention(attention, x, to)[0, 3].sum().backward()
    assert (x.grad[0, 2] == 0).all()
    assert (x.grad[0, [0, 1, 3]] != 0).any(dim=-1).all()
