"""LSTM and bag against torch's own modules, the formula, and sums written out."""

import pytest
import torch
from torch import nn

from qkv.errors import ConfigError
from qkv.models import CausalLM, Encoder, Layout, MaskedLM, ModelConfig, Sizes, build
from qkv.models.lstm import LSTM, _formula, _Recurrence
from qkv.models.masks import Visible

PLAIN = Layout(mixer="lstm", positions="none", norm="none", mlp="none", skip=False, tied=False, start="recurrent")
BAG = Layout(mixer="mean", positions="none", norm="none", mlp="none", skip=False, tied=False, start="recurrent")
SIZES = Sizes(d_vocab=11, d_model=8, n_layers=2, n_heads=1, n_ctx=9)
IDS = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(4))


def model_of(kind: str, layout: Layout = PLAIN) -> CausalLM | MaskedLM:
    model = build(ModelConfig(kind=kind, sizes=SIZES, layout=layout), 3).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    return model


def torchs(model: CausalLM | MaskedLM) -> nn.LSTM:
    """torch's LSTM with the same weights, differentiable with respect to them through a copy."""
    both = not model.causal
    d = SIZES.d_model
    other = nn.LSTM(d, d // 2 if both else d, SIZES.n_layers, batch_first=True, bidirectional=both).double()
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            for ours, theirs in (("", ""), ("_back", "_reverse"))[: 1 + both]:
                for name, word in (("W_ih", "weight_ih"), ("W_hh", "weight_hh"), ("b_ih", "bias_ih")):
                    getattr(other, f"{word}_l{layer}{theirs}").copy_(getattr(block.mixer, f"{name}{ours}").t())
                getattr(other, f"bias_hh_l{layer}{theirs}").zero_()
    return other


@pytest.mark.parametrize("kind", ["CausalLM", "MaskedLM"])
def test_values_and_gradients_equal_those_of_torchs_lstm(kind):
    model, ids = model_of(kind), IDS
    other = torchs(model)
    x = model.embedding(ids).detach().requires_grad_()
    mine, (theirs, _) = model.hidden(x), other(x)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    grads = torch.autograd.grad((mine * weights).sum(), [x, *(p for b in model.blocks for p in b.parameters())])
    (expected,) = torch.autograd.grad((theirs * weights).sum(), x, retain_graph=True)
    torch.testing.assert_close(grads[0], expected, rtol=0, atol=1e-12)
    (theirs * weights).sum().backward()
    names = [name for block in model.blocks for name, _ in block.named_parameters()]
    named, last = dict(zip(names, grads[1:], strict=True)), SIZES.n_layers - 1  # of a name, the last layer's
    for ours, word in (("mixer.W_ih", "weight_ih"), ("mixer.W_hh", "weight_hh"), ("mixer.b_ih", "bias_ih")):
        torch.testing.assert_close(named[ours].t(), getattr(other, f"{word}_l{last}").grad, rtol=0, atol=1e-12)


def test_padding_equals_torchs_packed_sequences():
    model, lengths = model_of("MaskedLM"), [9, 4, 6]
    mask = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    x = model.embedding(IDS).detach()
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(torchs(model)(packed)[0], batch_first=True)
    torch.testing.assert_close(model.hidden(x, mask=mask)[mask], expected[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by_document", [False, True])
def test_the_hand_written_gradient_is_that_of_the_formula(masked, by_document):
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    inputs, weight, h, c = draw(6, 3, 16), draw(4, 16), torch.zeros(3, 4).double(), torch.zeros(3, 4).double()
    carried = (torch.rand(6, 3, 1, generator=generator) > 0.4).double() if by_document else None
    real = (torch.rand(6, 3, 1, generator=generator) > 0.3) if masked else None
    fast, slow = (run(inputs, weight, h, c, carried, real) for run in (_Recurrence.apply, _formula))
    for mine, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    grad = torch.randn(6, 3, 4, generator=generator, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(fast[0], (inputs, weight), grad),
        torch.autograd.grad(slow[0], (inputs, weight), grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda a, w: _Recurrence.apply(a, w, h, c, carried, real)[0], (inputs, weight))


def test_reading_on_from_a_cache_is_reading_at_once():
    for layout in (PLAIN, BAG):
        model = model_of("CausalLM", layout)
        with torch.no_grad():
            whole, cache = model.hidden(IDS), model.new_cache(3)
            parts = [model.hidden(part, cache=cache) for part in IDS.split([4, 1, 3, 1], dim=1)]
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
            again = model.new_cache(3)
            model.hidden(IDS[:, :5], cache=again)
            again.select(torch.tensor([2, 0]))
            torch.testing.assert_close(
                model.hidden(IDS[[2, 0], 5:], cache=again), whole[[2, 0], 5:], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("kind", ["CausalLM", "MaskedLM"])
def test_a_document_of_one_position_reads_as_it_does_alone(kind):
    model = model_of(kind)
    with torch.no_grad():
        torch.testing.assert_close(
            model.hidden(IDS[:, :1], documents=torch.arange(3)[:, None]), model.hidden(IDS[:, :1]), rtol=0, atol=1e-12
        )


def test_a_bag_is_the_mean_of_what_may_be_seen():
    for kind, n in (("CausalLM", 5), ("MaskedLM", 9)):
        model = model_of(kind, BAG)
        rows = model.embedding(IDS)
        once = rows[:, :n].mean(dim=1) if kind == "MaskedLM" else rows[:, :5].mean(dim=1)
        encoder = model.blocks[0].mixer
        mixed = encoder.mixed(rows, Visible(model.causal, None))
        torch.testing.assert_close(mixed[:, 4], once, rtol=0, atol=1e-12)


def test_a_bag_does_not_know_the_order_of_what_it_read():
    model = model_of("MaskedLM", BAG)
    torch.testing.assert_close(model(IDS)[:, 0], model(IDS.flip(1))[:, 0], rtol=0, atol=1e-12)


def test_settings_of_attention_are_refused_with_their_name():
    for name, value in {"qk_norm": True, "positions": "rotary", "scale": False, "attention_bias": "qkv"}.items():
        with pytest.raises(ConfigError, match=f"{name} = .* is a setting of attention; with mixer = lstm"):
            Encoder(SIZES, Layout(**(PLAIN.__dict__ | {name: value})))
    with pytest.raises(ConfigError, match="n_heads = 2 is a setting of attention"):
        Encoder(Sizes(d_vocab=3, d_model=8, n_layers=1, n_heads=2, n_ctx=4), PLAIN)
    for layout in (PLAIN, BAG):
        with pytest.raises(ConfigError, match="d_head = 4 is a setting of attention"):
            Encoder(Sizes(d_vocab=3, d_model=8, n_layers=1, n_heads=1, d_head=4, n_ctx=4), layout)
    with pytest.raises(ConfigError, match="an encoder-decoder needs mixer = attention; it is lstm"):
        build(ModelConfig(kind="EncoderDecoderLM", sizes=SIZES, layout=PLAIN), 0)


def test_two_threads_give_the_bits_of_one_in_two_runs_alike():
    def grads() -> list[torch.Tensor]:
        mixer = LSTM(Sizes(d_vocab=1, d_model=64, n_layers=1, n_heads=1, n_ctx=32), PLAIN, causal=True)
        generator = torch.Generator().manual_seed(1)
        for parameter in mixer.parameters():
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
        x = torch.randn(8, 32, 64, generator=generator)
        mixer.mixed(x, Visible(True, None)).square().sum().backward()
        return [parameter.grad for parameter in mixer.parameters()]  # type: ignore[misc]

    assert all(a.equal(b) for a, b in zip(grads(), grads(), strict=True))
