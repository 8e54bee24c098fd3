"""The fused, chunked cross-entropy against `F.cross_entropy` of all logits."""

import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks import crossentropy
from qkv.tasks.crossentropy import linear_cross_entropy, token_scores


def problem(n: int, d_model: int, d_vocab: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d_model, generator=rng, dtype=dtype)
    weight = torch.randn(d_model, d_vocab, generator=rng, dtype=dtype)
    bias = torch.randn(d_vocab, generator=rng, dtype=dtype)
    return h, weight, bias, torch.randint(d_vocab, (n,), generator=rng)


def plain(h, weight, bias, targets):
    logits = h @ weight if bias is None else h @ weight + bias
    return F.cross_entropy(logits, targets, reduction="sum")


def gradients(loss_of, *tensors):
    leaves = [None if x is None else x.detach().clone(memory_format=torch.preserve_format) for x in tensors[:3]]
    leaves = [None if x is None else x.requires_grad_() for x in leaves]
    loss = loss_of(*leaves, tensors[3])
    (loss / 3).backward()
    return loss.detach(), [None if x is None else x.grad for x in leaves]


@pytest.fixture(
    params=[(1, 64), (7, 64), (7, 3), (10_000, 3), (10_000, 64)],
    ids=["one row a chunk", "seven rows a chunk", "strips of chunks", "strips of one chunk", "one chunk"],
)
def chunks(request, monkeypatch):
    monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: request.param[0])
    monkeypatch.setattr(crossentropy, "_STRIP_BYTES", 1)
    monkeypatch.setattr(crossentropy, "_FEWEST_STRIP", request.param[1])


@pytest.mark.parametrize("with_bias", [False, True])
def test_loss_and_gradients_equal_those_of_all_logits_in_float64(chunks, with_bias):
    h, weight, bias, targets = problem(23, 8, 31)
    bias = bias if with_bias else None
    loss, grads = gradients(linear_cross_entropy, h, weight, bias, targets)
    expected, expected_grads = gradients(plain, h, weight, bias, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-11, atol=1e-13)


def test_a_tied_matrix_gets_the_sum_of_both_its_gradients(chunks):
    _, _, _, targets = problem(12, 8, 9)
    ids = torch.arange(12) % 9
    table = problem(9, 8, 9)[0]

    def run(loss_of):
        W_E = table.clone().requires_grad_()
        loss_of(F.embedding(ids, W_E).tanh(), W_E, None, targets).backward()
        return W_E.grad

    expected = run(lambda h, W_E, bias, targets: plain(h, W_E.t(), bias, targets))
    for fused in (
        run(lambda h, W_E, bias, targets: linear_cross_entropy(h, W_E.t(), bias, targets)),
        run(partial(linear_cross_entropy, is_table=True)),
    ):
        assert fused.is_contiguous()
        torch.testing.assert_close(fused, expected, rtol=1e-11, atol=1e-13)


def test_gradients_pass_gradcheck_of_the_loss():
    h, weight, bias, targets = problem(5, 3, 4)
    leaves = [x.requires_grad_() for x in (h, weight, bias)]
    assert torch.autograd.gradcheck(lambda *x: linear_cross_entropy(*x, targets), leaves)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_part_gets_no_gradient_and_the_others_keep_theirs(frozen):
    h, weight, bias, targets = problem(11, 4, 6)
    expected = gradients(plain, h, weight, bias, targets)[1]
    leaves = [x.requires_grad_(i != frozen) for i, x in enumerate((h, weight, bias))]
    (linear_cross_entropy(*leaves, targets) / 3).backward()
    for i, leaf in enumerate(leaves):
        assert leaf.grad is None if i == frozen else torch.allclose(leaf.grad, expected[i])


def test_a_kept_graph_gives_its_gradients_again(chunks):
    h, weight, bias, targets = problem(23, 8, 31)
    given = h.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    loss = linear_cross_entropy(*given, targets)
    first = torch.autograd.grad(loss, given, retain_graph=True)
    for _ in range(2):
        again = torch.autograd.grad(2 * loss, given, retain_graph=True)
        assert all(b.equal(2 * a) for a, b in zip(first, again, strict=True))


def test_token_scores_are_the_rows_of_the_loss(chunks):
    h, weight, bias, targets = problem(23, 8, 31)
    nats, correct = token_scores(h, weight, bias, targets)
    logits = h @ weight + bias
    torch.testing.assert_close(nats, F.cross_entropy(logits, targets, reduction="none"), rtol=1e-12, atol=1e-12)
    assert correct.equal(logits.argmax(1) == targets)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(h, weight, bias, targets), nats.sum())


def test_among_equal_logits_the_first_word_is_the_answer():
    h, weight, _, _ = problem(64, 8, 5)
    weight = torch.cat([weight, weight, torch.zeros_like(weight)], dim=1)  # each answer of the first five stands twice
    targets = torch.arange(64) % weight.shape[1]
    _, correct = token_scores(h, weight, None, targets)
    assert correct.equal((h @ weight).argmax(1) == targets) and correct.any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("layout", ["rows", "columns", "biased"])
def test_the_way_of_a_gpu_is_the_way_of_a_cpu(chunks, monkeypatch, smoothing, layout):
    h, weight, bias, targets = problem(23, 8, 31)
    weight = weight.t().contiguous().t() if layout == "columns" else weight
    bias = bias if layout == "biased" else None
    smooth = partial(linear_cross_entropy, smoothing=smoothing)
    expected, expected_grads = gradients(smooth, h, weight, bias, targets)
    scored, answered = token_scores(h.detach(), weight.detach(), bias, targets)
    monkeypatch.setattr(crossentropy, "_goes_by_strips", lambda x: False)
    monkeypatch.setattr(
        crossentropy, "_padded", lambda m: F.pad(m.t(), (0, 0, 0, 33)).t() if m.stride(0) == 1 else F.pad(m, (0, 33))
    )
    loss, grads = gradients(smooth, h, weight, bias, targets)
    torch.testing.assert_close([loss, *grads], [expected, *expected_grads], rtol=1e-11, atol=1e-13)
    nats, correct = token_scores(h.detach(), weight.detach(), bias, targets)
    torch.testing.assert_close(nats, scored, rtol=1e-11, atol=1e-13)
    assert correct.equal(answered)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler warns of itself
def test_compiled_chunks_have_their_gradients(monkeypatch):
    """What torch 2.11 made of a sum in place had gradients of 0."""
    monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: 7)
    h, weight, bias, targets = problem(23, 8, 31)
    expected, expected_grads = gradients(linear_cross_entropy, h, weight, bias, targets)
    loss, grads = gradients(torch.compile(linear_cross_entropy), h, weight, bias, targets)
    torch.testing.assert_close([loss, *grads], [expected, *expected_grads], rtol=1e-9, atol=1e-11)


def test_huge_logits_stay_finite_and_exact():
    h = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    weight = torch.eye(2, requires_grad=True)
    loss = linear_cross_entropy(h, weight, None, torch.tensor([1, 0]))
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(2e4 + 0.6931472))
    torch.testing.assert_close(h.grad, torch.tensor([[1.0, -1.0], [-0.5, 0.5]]))


def test_float32_is_as_near_to_float64_as_the_plain_way_is(chunks):
    h, weight, bias, targets = problem(200, 32, 500)
    exact = gradients(plain, h, weight, bias, targets)[1]
    single = [x.float() for x in (h, weight, bias)]
    ours = gradients(linear_cross_entropy, *single, targets)[1]
    theirs = gradients(plain, *single, targets)[1]
    for a, b, x in zip(ours, theirs, exact, strict=True):
        assert (a - x).abs().max() <= 3 * (b - x).abs().max() + 1e-7


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_products_keep_a_float32_softmax(autocast):
    h, weight, bias, targets = problem(64, 16, 40, torch.float32)
    weight, bias = (weight / 4).requires_grad_(), bias.requires_grad_()
    h = (h if autocast else h.bfloat16()).detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = linear_cross_entropy(h, weight, bias, targets)
    loss.backward()
    assert loss.dtype == weight.grad.dtype == bias.grad.dtype == torch.float32
    assert h.grad.dtype == h.dtype
    logits = (h.bfloat16() @ weight.bfloat16()).float() + bias
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets, reduction="sum"))
    exact = gradients(plain, h.float(), weight, bias, targets)[1]
    torch.testing.assert_close(weight.grad / 3, exact[1], rtol=0.05, atol=0.02)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 3), st.booleans(), st.booleans())
def test_any_shape_agrees_with_all_logits(n, d_model, d_vocab, seed, with_bias, transposed):
    h, weight, bias, targets = problem(n, d_model, d_vocab, seed=seed)
    weight = weight.t().contiguous().t() if transposed else weight
    bias = bias if with_bias else None
    loss, grads = gradients(linear_cross_entropy, h, weight, bias, targets)
    expected, expected_grads = gradients(plain, h, weight, bias, targets)
    torch.testing.assert_close([loss, *grads], [expected, *expected_grads], rtol=1e-10, atol=1e-12)


def test_no_more_than_a_chunk_of_logits_is_held(monkeypatch):
    largest = 0
    real = crossentropy._strips

    def watched(products, bias):
        nonlocal largest
        largest = max(largest, products.numel() * products.element_size())
        return real(products, bias)

    monkeypatch.setattr(crossentropy, "_strips", watched)
    h, weight, bias, targets = problem(600, 4, 30_000, torch.float32)
    linear_cross_entropy(h.requires_grad_(), weight, bias, targets).backward()
    token_scores(h.detach(), weight, bias, targets)
    assert 0 < largest <= 33 << 20


def test_one_chunk_of_logits_is_gone_before_the_next_is_made(monkeypatch):
    made, alive = [], []
    slope_of = crossentropy._loss_and_slope

    def slope(*args):
        alive.append(sum(ref() is not None for ref in made))
        found = slope_of(*args)
        made.append(weakref.ref(found[1]))
        return found

    monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: 4)
    monkeypatch.setattr(crossentropy, "_loss_and_slope", slope)
    h, weight, bias, targets = problem(23, 8, 31)
    linear_cross_entropy(h.requires_grad_(), weight.requires_grad_(), bias, targets).backward()
    assert alive == [0] * 6
