"""Cross-entropy by compiled passes over logits, against all logits in float64 and against torch's operators."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from qkv import native
from qkv.kernels import elementwise
from qkv.tasks import crossentropy
from qkv.tasks.crossentropy import linear_cross_entropy, token_scores

pytestmark = pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))

SIZES = [(1, 3, 1), (2, 5, 7), (33, 8, 16), (40, 16, 65), (70, 16, 1024), (300, 24, 2100)]
"""Rows, width and words."""


@pytest.fixture(autouse=True)
def compiled():
    with elementwise.using(True):
        yield


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def words(n: int, d_vocab: int) -> torch.Tensor:
    return torch.randint(d_vocab, (n,), generator=torch.Generator().manual_seed(9))


def found(loss_of, h, weight, bias, targets):
    """The loss, and its gradients by h, weight and bias."""
    leaves = [x if x is None else x.detach().clone().requires_grad_() for x in (h, weight, bias)]
    loss = loss_of(*leaves, targets)
    (loss / 3).backward()
    return [loss.detach(), *(None if x is None else x.grad for x in leaves)]


def exact(h, weight, bias, targets, *, smoothing: float, is_table: bool):
    """The same of all logits, by torch in float64."""

    def plain(h, weight, bias, targets):
        logits = h @ (weight.t() if is_table else weight)
        logits = logits if bias is None else logits + bias
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)

    return found(plain, *(x if x is None else x.double() for x in (h, weight, bias)), targets)


@pytest.mark.parametrize("chunk", [7, None], ids=["by chunks", "whole"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "d", "m"), SIZES)
def test_float32_is_as_near_to_float64_as_torch_is(monkeypatch, n, d, m, with_bias, is_table, smoothing, chunk):
    if chunk:
        monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: chunk)
    h, bias, targets = normal(n, d), normal(m, seed=2) if with_bias else None, words(n, m)
    weight = normal(*((m, d) if is_table else (d, m)), seed=1)
    loss_of = partial(linear_cross_entropy, smoothing=smoothing, is_table=is_table)
    ours = found(loss_of, h, weight, bias, targets)
    with elementwise.using(False):
        theirs = found(loss_of, h, weight, bias, targets)
    for mine, their, true in zip(
        ours, theirs, exact(h, weight, bias, targets, smoothing=smoothing, is_table=is_table), strict=True
    ):
        assert (mine is None) == (true is None)
        if mine is not None:
            assert mine.dtype == torch.float32
            assert (mine - true).abs().max() <= 3 * (their - true).abs().max() + 2e-6 * true.abs().max()


@pytest.mark.parametrize("chunk", [7, None], ids=["by chunks", "whole"])
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "d", "m"), SIZES)
def test_bfloat16_products_have_a_float32_softmax(monkeypatch, n, d, m, with_bias, is_table, chunk):
    if chunk:
        monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: chunk)
    h, bias, targets = (
        normal(n, d, dtype=torch.float32).bfloat16(),
        normal(m, seed=2) if with_bias else None,
        words(n, m),
    )
    weight = (normal(*((m, d) if is_table else (d, m)), seed=1) / d**0.5).bfloat16().float()
    loss_of = partial(linear_cross_entropy, smoothing=0.05, is_table=is_table)
    ours = found(loss_of, h, weight, bias, targets)
    with elementwise.using(False):
        theirs = found(loss_of, h, weight, bias, targets)
    true = exact(h, weight, bias, targets, smoothing=0.05, is_table=is_table)
    for mine, their, of_float64 in zip(ours, theirs, true, strict=True):
        assert (mine is None) == (their is None)
        if mine is not None:
            assert mine.dtype == their.dtype
            assert (mine - of_float64).abs().max() <= 2**-6 * of_float64.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "d", "m"), SIZES)
def test_scores_are_those_of_all_logits(n, d, m, dtype):
    h, weight, bias, targets = normal(n, d).to(dtype), normal(d, m, seed=1).to(dtype), normal(m, seed=2), words(n, m)
    targets[::2] = ((h @ weight).float() + bias).argmax(1)[::2]
    nats, correct = token_scores(h, weight, bias, targets)
    logits = (h @ weight).float() + bias
    expected = F.cross_entropy(logits.double(), targets, reduction="none")
    torch.testing.assert_close(nats.double(), expected, rtol=1e-5, atol=1e-5)
    assert correct.equal(logits.argmax(1) == targets)


def test_among_equal_logits_the_first_word_is_the_answer():
    h, weight = normal(64, 8), normal(8, 5, seed=1)
    weight = torch.cat([weight, weight, torch.zeros_like(weight)], dim=1)  # each answer of the first five stands twice
    targets = torch.arange(64) % weight.shape[1]
    _, correct = token_scores(h, weight, None, targets)
    assert correct.equal((h @ weight).argmax(1) == targets) and correct.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_depends_on_threads_or_on_what_is_asked_beside(dtype):
    h, weight, targets = normal(130, 16).to(dtype), normal(16, 3000, seed=1), words(130, 3000)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(
                elementwise.compiled_for(h).loss_slope((h @ weight.to(dtype)).clone(), None, targets, 0.1)[0]
            )
            results.append(token_scores(h, weight.to(dtype), None, targets)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(one.equal(results[0]) for one in results[::2]) and all(one.equal(results[1]) for one in results[1::2])


def test_huge_logits_stay_finite_and_exact():
    h = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    loss = linear_cross_entropy(h, torch.eye(2), None, torch.tensor([1, 0]))
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(2e4 + 0.6931472))
    torch.testing.assert_close(h.grad, torch.tensor([[1.0, -1.0], [-0.5, 0.5]]))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_in_its_row(wrong):
    whole, targets = normal(4, 40, seed=1), words(4, 40)
    whole[2, 5] = wrong
    expected = F.cross_entropy(whole, targets, reduction="none")
    nats, correct = elementwise.compiled_for(whole).scores(whole, None, targets)
    torch.testing.assert_close(nats, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not (correct & expected.isnan()).any()
    logits = whole.clone()
    losses, _ = elementwise.compiled_for(logits).loss_slope(logits, None, targets, 0.0)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    slope = torch.softmax(whole, 1) - F.one_hot(targets, 40)
    torch.testing.assert_close(logits, slope, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("target", [-1, 40])
def test_a_target_that_is_no_word_is_refused(target):
    h, weight, targets = normal(4, 4), normal(4, 40, seed=1), words(4, 40)
    targets[1] = target
    with pytest.raises(IndexError, match="1 targets are not from 0 to 39"):
        linear_cross_entropy(h, weight.requires_grad_(), None, targets)
    with pytest.raises(IndexError, match="1 targets are not from 0 to 39"):
        token_scores(h, weight.detach(), None, targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows_have_no_loss(dtype):
    h, weight = torch.zeros(0, 4, dtype=dtype), normal(4, 40).requires_grad_()
    loss = linear_cross_entropy(h, weight, None, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss == 0 and weight.grad.equal(torch.zeros(4, 40))
