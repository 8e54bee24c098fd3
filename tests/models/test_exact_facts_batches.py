"""Exact facts about batches: padding, packing and order change no sequence, and nothing leaks."""

import pytest
import torch
import torch.nn.functional as F

from qkv.models import Layout, ModelConfig, Sizes, build

POSITIONS = ["none", "sinusoidal", "sinusoidal_halves", "learned", "rotary"]
KINDS = ["CausalLM", "MaskedLM"]


def make(kind: str, positions: str, **layout):
    config = ModelConfig(
        kind=kind,
        sizes=Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, n_ctx=16),
        layout=Layout(positions=positions, qk_norm=True, start="xavier", **layout),
    )
    return build(config, 0).double()


def sequence(n: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 13, (n,), generator=torch.Generator().manual_seed(seed))


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Summed next-token loss of one sequence."""
    return F.cross_entropy(logits[:-1], ids[1:], reduction="sum")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_on_either_side_never_changes_the_loss_of_a_sequence(kind, positions, side):
    model, ids = make(kind, positions), sequence(7, 1)
    alone = loss_of(model(ids[None])[0], ids)
    for content in (0, 5):
        row = torch.full((12,), content)
        mask = torch.zeros(12, dtype=torch.bool)
        span = slice(0, 7) if side == "right" else slice(5, 12)
        row[span], mask[span] = ids, True
        padded = loss_of(model(row[None], mask[None])[0, span], ids)
        torch.testing.assert_close(padded, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_packing_never_changes_the_loss_of_a_sequence(kind, positions):
    model, parts = make(kind, positions), [sequence(5, 1), sequence(3, 2), sequence(6, 3)]
    packed = torch.cat(parts)[None]
    documents = torch.cat([torch.full((len(part),), i) for i, part in enumerate(parts)])[None]
    logits = model.unembed(model.hidden(packed, documents=documents))[0].split([5, 3, 6])
    for part, own in zip(parts, logits, strict=True):
        torch.testing.assert_close(loss_of(own, part), loss_of(model(part[None])[0], part), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_packing_together_never_change_the_loss_of_a_sequence(kind):
    model, parts = make(kind, "learned"), [sequence(5, 1), sequence(3, 2)]
    row = torch.cat([torch.tensor([4, 4]), *parts, torch.tensor([0])])[None]
    documents = torch.tensor([[0] * 7 + [1] * 4])
    mask = torch.tensor([[False] * 2 + [True] * 8 + [False]])
    logits = model.unembed(model.hidden(row, mask=mask, documents=documents))[0]
    for part, own in zip(parts, (logits[2:7], logits[7:10]), strict=True):
        torch.testing.assert_close(loss_of(own, part), loss_of(model(part[None])[0], part), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_batch_never_changes_the_loss_of_a_sequence(kind):
    model = make(kind, "rotary")
    batch = torch.stack([sequence(8, seed) for seed in range(4)])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(batch[order]), model(batch)[order], rtol=0, atol=1e-13)
    torch.testing.assert_close(model(batch[1:2])[0], model(batch)[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_nothing_leaks_between_packed_documents_not_even_gradient(kind, positions):
    model = make(kind, positions)
    ids, documents = sequence(10, 4)[None], torch.tensor([[0] * 4 + [1] * 6])
    rows: list[torch.Tensor] = []

    def watch(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name != "embed":
            return tensor
        rows.append(tensor.detach().requires_grad_())
        return rows[-1]

    for hook in (watch, None):
        hidden = model.hidden(ids, documents=documents, hook=hook)
        changed = ids.clone()
        changed[0, :4] = (changed[0, :4] + 1) % 13
        other = model.hidden(changed, documents=documents)
        torch.testing.assert_close(other[0, 4:], hidden[0, 4:], rtol=0, atol=1e-12)
        assert (other[0, :4] - hidden[0, :4]).abs().max() > 1e-3
    model.hidden(ids, documents=documents, hook=watch)[0, 4:].square().sum().backward()
    assert (rows[-1].grad[0, :4] == 0).all() and (rows[-1].grad[0, 4:] != 0).any()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mlp", ["relu2", "swiglu", "gelu"])
def test_nothing_leaks_from_the_future_in_a_causal_model(positions, mlp):
    model, ids = make("CausalLM", positions, mlp=mlp), sequence(10, 5)[None]
    logits = model(ids)
    for last in range(9):
        changed = ids.clone()
        changed[0, last + 1 :] = (changed[0, last + 1 :] + 3) % 13
        torch.testing.assert_close(model(changed)[0, : last + 1], logits[0, : last + 1], rtol=0, atol=1e-13)


def test_a_row_of_padding_alone_gives_finite_logits_and_gradients():
    for kind in KINDS:
        model = make(kind, "learned")
        ids = torch.stack([sequence(6, 1), torch.zeros(6, dtype=torch.int64)])
        mask = torch.tensor([[True] * 6, [False] * 6])
        logits = model(ids, mask)
        assert logits.isfinite().all()
        logits[mask].sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
