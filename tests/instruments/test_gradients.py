"""The parts of a gradient: they sum to what backward gives, and each is what its edge alone lets through."""

import numpy as np
import pytest
import torch

from qkv.instruments.gradients import MIXED_PATHS, OUTPUT, PATHS, gradient_path
from qkv.laws import Scale
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.presets import PRESETS, model_config
from qkv.randomness import generator
from qkv.tasks import TASKS, Batch

TEXT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
LAYOUTS = {
    "pre-rms-rotary-qk-norm": dict(qk_norm=True, tied=False),
    "post-layer-learned-tied": dict(norm="layer", norm_place="post", positions="learned", bias=True, norm_e=True),
    "pre-sinusoidal-scaled-tied": dict(norm="layer", positions="sinusoidal", embed_scale=True, mlp="relu"),
    "post-rms-swiglu": dict(norm_place="post", mlp="swiglu", positions="none"),
    "side-by-side": dict(parallel=True, norm="layer", bias=True, tied=False),
    "no-skip": dict(skip=False, mlp="gelu"),
    "no-mlp": dict(mlp="none", qk_norm=True),
    "bloem": dict(positions="none", norm="none", mlp="none", tied=False, skip=False),
}


def generic(config: ModelConfig):
    """A float64 model with every parameter a generic number."""
    model = build(config, 0).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += torch.from_numpy(generator("gradients", name).normal(0, 0.3, size=parameter.shape))
    return model


def made(kind: str, *, n_kv_heads: int = 2, n_layers: int = 2, **layout):
    sizes = Sizes(d_vocab=10, d_model=16, n_layers=n_layers, n_heads=4, n_kv_heads=n_kv_heads, n_ctx=8, d_mlp=24)
    return generic(ModelConfig(kind=kind, sizes=sizes, layout=Layout(**layout)))


def batch_for(kind: str) -> Batch:
    if kind == "CausalLM":
        return Batch(TEXT[:, :-1], TEXT[:, 1:].flatten())
    positions = torch.tensor([1, 6, 9, 13])
    mask = torch.ones_like(TEXT, dtype=torch.bool)
    mask[1, 6:] = False
    return Batch(TEXT, TEXT.flatten()[positions], positions, mask)


def task_of(kind: str):
    return TASKS["causal" if kind == "CausalLM" else "masked"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_first_block_alone_is_that_of_the_whole_path(layout):
    model, batch = made("CausalLM", **layout), batch_for("CausalLM")
    whole, first = (gradient_path(model, TASKS["causal"], batch, first_only=only) for only in (False, True))
    assert first.blocks[0].shares == pytest.approx(whole.blocks[0].shares) and len(first.blocks) == 1
    assert first.crossed == pytest.approx({0: whole.crossed[0]}, abs=1e-15)
    torch.testing.assert_close(first.rows.total, whole.rows.total)


def assert_sums(model, task, batch):
    found = gradient_path(model, task, batch)
    nats, n = task.loss(model, batch)  # the fused path, an independent backward
    (expected,) = torch.autograd.grad(nats / n, model.embedding.W_E)
    assert found.loss == pytest.approx(float(nats.detach()) / n, rel=1e-12)
    torch.testing.assert_close(found.rows.total, expected[found.row_ids], rtol=1e-10, atol=1e-12)
    for parts in (*found.blocks, found.rows):
        size = parts.norm
        assert size > 1e-6
        error = float((sum(parts.parts.values()) - parts.total).abs().max())
        assert error <= 1e-10 * size, (parts.address, error, size)
        assert sum(parts.shares.values()) == pytest.approx(1, abs=1e-10)
    assert sum(found.crossed.values()) == pytest.approx(1, abs=1e-10)
    attends = model.layout.mixer == "attention"
    assert set(found.blocks[0].parts) == set(PATHS if attends else MIXED_PATHS)
    return found


@pytest.mark.parametrize("kind", ["CausalLM", "MaskedLM"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_parts_sum_to_the_gradient_in_every_layout(kind, layout, n_kv_heads):
    found = assert_sums(made(kind, n_kv_heads=n_kv_heads, **layout), task_of(kind), batch_for(kind))
    tied = layout.get("tied", True)
    assert (OUTPUT in found.rows.parts) == tied


CASES = [(p, task) for p in PRESETS.values() for task in ("causal", "masked") if TASKS[task].stack in p.stacks]


@pytest.mark.parametrize(("preset", "task"), CASES, ids=[f"{p.name}-{t}" for p, t in CASES])
def test_parts_sum_to_the_gradient_in_every_preset(preset, task):
    kind = TASKS[task].model_kind
    scale = Scale(d_model=32, n_layers=2, n_ctx=8, batch_tokens=0)
    config = model_config(preset, kind, 10, scale, {"n_heads": 2} if preset.head_width else {})
    assert_sums(generic(config), TASKS[task], batch_for(kind))


def test_each_part_is_what_remains_when_the_other_edges_are_cut():
    """Cut by detaching inside a second, hand-written forward of the block: an oracle that knows no shortcut."""
    model, batch = made("CausalLM", n_layers=1, qk_norm=True), batch_for("CausalLM")
    found = gradient_path(model, TASKS["causal"], batch)
    block = model.blocks[0]
    with torch.no_grad():
        _, record = model.forward_recorded(batch.inputs)
    for path in PATHS:
        x = record["L0.resid_pre"].clone().requires_grad_()
        alone = {name: (x if name == path else x.detach()) for name in PATHS}
        q = block.attention.queries(block.norm1.plain(alone["Q"]))
        k = block.attention.keys_values(block.norm1.plain(alone["K"]))[0]
        v = block.attention.keys_values(block.norm1.plain(alone["V"]))[1]
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
        pattern = ((q @ k.mT) * block.attention.scale).masked_fill(hidden, -torch.inf).softmax(-1)
        attended = (pattern @ v).transpose(1, 2).flatten(2) @ block.attention.W_O
        # attention's own edges lead on through both ways above; the skip edge of attention is parted by them
        mid = attended + (x.detach() if path in "VQK" else 0)
        if path in "VQK":
            top = mid + block.mlp(block.norm2.plain(mid))
        else:
            around, into = (mid.detach() + alone[name] for name in ("skip", "MLP"))
            top = around + block.mlp(block.norm2.plain(into))
        logits = model.unembed(model.norm_f(top))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets)
        (expected,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(found.blocks[0].parts[path], expected, rtol=1e-9, atol=1e-13, msg=path)


def test_no_sublayer_crossed_is_the_gradient_at_the_top_where_the_norm_stands_before():
    model, batch = made("CausalLM", norm="layer", positions="learned", tied=False), batch_for("CausalLM")
    found = gradient_path(model, TASKS["causal"], batch)
    record = {}
    h = model.hidden(batch.inputs, hook=lambda name, t: record.setdefault(name, t))
    loss = torch.nn.functional.cross_entropy(model.unembed(h).flatten(0, 1), batch.targets)
    top, bottom = torch.autograd.grad(loss, [record["L1.resid_post"], record["L0.resid_pre"]])
    assert found.crossed[0] == pytest.approx(float((top * bottom).sum() / (bottom * bottom).sum()), rel=1e-10)
    assert sorted(found.crossed) == [0, 1, 2, 3, 4]


def test_without_skip_everything_goes_through_attention():
    found = gradient_path(made("CausalLM", skip=False), TASKS["causal"], batch_for("CausalLM"))
    for block in found.blocks:
        assert block.shares["skip"] == block.shares["MLP"] == 0
    assert found.crossed[4] == pytest.approx(1)


def test_a_zero_gradient_has_no_shares():
    sizes = Sizes(d_vocab=10, d_model=16, n_layers=1, n_heads=2, n_ctx=8)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(tied=False)), 0).double()
    with torch.no_grad():
        model.head.W_U.zero_()
    found = gradient_path(model, TASKS["causal"], batch_for("CausalLM"))
    assert np.isnan(list(found.blocks[0].shares.values())).all() and found.blocks[0].norm == 0


def test_nothing_of_the_model_is_changed():
    model = made("CausalLM")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradient_path(model, TASKS["causal"], batch_for("CausalLM"))
    assert all(p.grad is None and p.equal(before[name]) for name, p in model.named_parameters())
