"""`SEL=stop_gradient`: values stay, and no gradient passes the activations that are named."""

import pytest
import torch
import torch.nn.functional as F

from qkv.changes import plan_changes
from qkv.errors import AddressError, ChangeError
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.models.zoo import stacks_of
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import make_optimizer

SIZES = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_ctx=8, d_mlp=24)
SHARED = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, n_ctx=8, d_mlp=24)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
PLAIN = {"start": "normal", "tied": False, "bias": True, "norm": "layer", "mlp": "gelu"}
MODERN = {"start": "normal", "tied": False, "positions": "rotary", "qk_norm": True, "norm": "rms", "mlp": "swiglu"}


def make(sizes=SIZES, kind="CausalLM", **layout):
    return Catalogue(build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(**layout or PLAIN)), seed=3).double())


def loss_of(model):
    if hasattr(model, "enc"):
        return F.cross_entropy(model(IDS, IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
    return F.cross_entropy(model(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())


def gradients(catalogue, changes=(), step=0):
    """(loss, gradient of every matrix) under a plan at a step; the plan is ended again."""
    plan = plan_changes(changes, catalogue, 0)
    plan.at_start()
    plan.before_step(step)
    catalogue.model.zero_grad(set_to_none=True)
    loss = loss_of(catalogue.model)
    loss.backward()
    plan.after_step(step)
    plan.at_end()
    return float(loss.detach()), {entry.address: entry.parameter.grad.clone() for entry in catalogue}


def detached(catalogue, pick):
    """The same by plain `detach` of what `pick(name, x)` says, in the recorded forward pass."""
    model = catalogue.model
    model.zero_grad(set_to_none=True)
    h = model.hidden(IDS[:, :-1], hook=pick)
    loss = F.cross_entropy(model.unembed(h).flatten(0, 1), IDS[:, 1:].flatten())
    loss.backward()
    return {
        entry.address: torch.zeros_like(entry.parameter)
        if entry.parameter.grad is None
        else entry.parameter.grad.clone()
        for entry in catalogue
    }


@pytest.mark.parametrize("layout", [PLAIN, MODERN], ids=["plain", "modern"])
@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("L0.v", {"L0.v"}),
        ("L1.[qk]", {"L1.q", "L1.k"}),
        ("L1.resid_pre", {"L1.resid_pre"}),
        ("L*.scores", {"L0.scores", "L1.scores"}),
        ("L0.mlp_out,L1.attn_out", {"L0.mlp_out", "L1.attn_out"}),
        ("embed", {"embed"}),
    ],
)
def test_gradients_are_those_of_a_detached_activation_and_the_loss_is_the_same(layout, selector, names):
    catalogue = make(**layout)
    expected = detached(catalogue, lambda name, x: x.detach() if name in names else x)
    free, _ = gradients(catalogue)
    loss, found = gradients(catalogue, [f"{selector}=stop_gradient"])
    assert loss == pytest.approx(free, abs=1e-12)
    for address, gradient in found.items():
        torch.testing.assert_close(gradient, expected[address], rtol=1e-10, atol=1e-12, msg=address)


def test_what_lies_before_gets_exactly_nothing_and_the_rest_what_it_had():
    catalogue = make()
    _, free = gradients(catalogue)
    _, found = gradients(catalogue, ["L1.v=stop_gradient"])
    assert not found["L1.W_V"].any() and not found["L1.b_V"].any()
    for address in ("L1.W_O", "L1.W_Q", "L1.W_K", "L1.W_in", "W_U"):
        torch.testing.assert_close(found[address], free[address], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found["L0.W_V"], free["L0.W_V"])
    _, found = gradients(catalogue, ["L1.resid_pre=stop_gradient"])
    assert all(not found[a].any() for a in found if a.startswith(("L0.", "W_E")))
    assert all(found[a].any() for a in found if a.startswith("L1.W"))


def test_one_head_is_cut_and_its_neighbours_are_not():
    catalogue = make()
    _, free = gradients(catalogue)
    _, found = gradients(catalogue, ["L0.H2.v=stop_gradient"])
    heads = catalogue.part("L0.W_V").shaped(found["L0.W_V"])
    assert not heads[2].any() and all(heads[head].any() for head in (0, 1, 3))
    _, found = gradients(catalogue, ["L0.H[0-3].v=stop_gradient"])
    assert not found["L0.W_V"].any()
    _, found = gradients(catalogue, ["L0.H1.v=stop_gradient", "L0.H3.v=stop_gradient"])
    heads = catalogue.part("L0.W_V").shaped(found["L0.W_V"])
    assert [bool(head.any()) for head in heads] == [True, False, True, False]
    torch.testing.assert_close(heads[0], catalogue.part("L0.W_V").shaped(free["L0.W_V"])[0], rtol=1e-9, atol=1e-12)
    catalogue = make(SHARED)
    _, found = gradients(catalogue, ["L0.KV1.k=stop_gradient"])
    heads = catalogue.part("L0.W_K").shaped(found["L0.W_K"])
    assert heads[0].any() and not heads[1].any()


def test_it_holds_for_its_window_and_ends_with_the_training():
    catalogue = make()
    change = ["L0.v=stop_gradient@2..4", "L0.v,L1.v=stop_gradient@3.."]
    cut = [[a for a in ("L0.W_V", "L1.W_V") if not gradients(catalogue, change, step)[1][a].any()] for step in range(6)]
    assert cut == [[], [], ["L0.W_V"], ["L0.W_V", "L1.W_V"], ["L0.W_V", "L1.W_V"], ["L0.W_V", "L1.W_V"]]
    assert all(stack.stops == {} for stack in stacks_of(catalogue.model))
    plan = plan_changes(change, catalogue, 0)
    assert [plan.acts_at(step) for step in range(5)] == [False, False, True, True, True]
    assert plan.describe()[:2] == [
        "L0.v: passed by no gradient from step 2 to step 3.",
        "L0.v and L1.v: passed by no gradient from step 3 to the end.",
    ]


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_a_matrix_without_gradient_stays_where_nothing_decays_it(kind):
    catalogue = make()
    plan = plan_changes(["L*.v=stop_gradient"], catalogue, 0)
    plan.at_start()
    start = {address: values.clone() for address, values in catalogue.state().items()}
    optimizer = make_optimizer(catalogue, OptimizerConfig(kind=kind, weight_decay=0.0))
    for step in range(3):
        plan.before_step(step)
        loss_of(catalogue.model).backward()
        optimizer.step(1.0)
        optimizer.zero_grad()
        plan.after_step(step)
    after = catalogue.state()
    still = {address for address in after if torch.equal(after[address], start[address])}
    assert still == {"L0.W_V", "L0.b_V", "L1.W_V", "L1.b_V"}
    assert all(values.isfinite().all() for values in after.values())


def test_of_two_stacks_each_has_its_own():
    catalogue = make(kind="EncoderDecoderLM", start="normal", tied=False)
    _, found = gradients(catalogue, ["dec.L*.cross.[kv]=stop_gradient"])
    assert all(not found[a].any() for a in found if a.startswith("enc.")), "what the decoder reads leads nowhere"
    assert found["dec.L0.W_V"].any()
    _, found = gradients(catalogue, ["enc.L1.v=stop_gradient"])
    assert not found["enc.L1.W_V"].any() and found["enc.L0.W_V"].any() and found["dec.L1.W_V"].any()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ("L0.W_V=stop_gradient", AddressError, "activation"),
        ("L9.v=stop_gradient", AddressError, "L1.v"),
        ("L0.attn=stop_gradient", AddressError, "activation"),
        ("L0.v,-L0.v=stop_gradient", AddressError, "activation"),
        ("L0.v,L9.v=stop_gradient", AddressError, "L9.v"),
        ("L0.v,L0.W_Q=stop_gradient", AddressError, "L0.W_Q"),
        ("L*.v,-L7.v=stop_gradient", AddressError, "L7.v"),
        ("L0.v=stop_gradient(2)", ChangeError, "takes no argument"),
        ("L0.v=stop_gradient(train=true)", ChangeError, "no effect"),
        ("L0.v=freeze", AddressError, "L0.v"),
    ],
)
def test_what_cannot_be_stopped_is_said(change, error, said):
    with pytest.raises(error, match=said):
        plan_changes([change], make(), 0)


def test_it_is_for_training_alone():
    with pytest.raises(ChangeError, match="nothing is trained here"):
        plan_changes(["L0.v=stop_gradient"], make(), 0, looking=True)


def test_the_fast_path_and_the_cut_one_give_the_same_loss_in_training_precision():
    catalogue = make(**MODERN)
    catalogue.model.float()
    free, _ = gradients(catalogue)
    loss, _ = gradients(catalogue, ["L0.v=stop_gradient"])
    assert loss == pytest.approx(free, rel=1e-5)


def test_a_stop_that_an_earlier_one_covers_has_no_effect_but_is_no_fault_of_a_run_that_has_it():
    for first, second in (("L0.v", "L0.v"), ("L0.v", "L0.H1.v"), ("L*.[vq]", "L1.v@3..9")):
        changes = [
            f"{first}=stop_gradient",
            "=stop_gradient@".join(second.split("@")) if "@" in second else f"{second}=stop_gradient",
        ]
        with pytest.raises(ChangeError, match="no gradient passes there already"):
            plan_changes(changes, make(), 0)
        plan_changes(changes, make(), 0, resumed_at=1 << 60)
    plan_changes(["L0.H1.v=stop_gradient", "L0.v=stop_gradient"], make(), 0)
    plan_changes(["L0.v=stop_gradient@..4", "L0.v=stop_gradient@3.."], make(), 0)
