"""Optimizers: torch's own classes are the oracle; frozen means untouched; state survives."""

import math
from types import ModuleType

import pytest
import torch

from qkv import native
from qkv.errors import RunFolderError
from qkv.kernels import elementwise
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import AdamW, Optimizer, Sgd, clip_and_measure, gradient_norms, make_optimizer

SHAPES = {"W_E": (7, 4), "L0.W_Q": (4, 4), "L0.norm1.gain": (4,)}


def parameters(seed: int = 0) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draws).requires_grad_() for name, shape in SHAPES.items()}


def give_gradients(tensors: list[torch.Tensor], seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=draws)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_torchs(decay: float) -> None:
    ours, theirs = parameters(), [torch.nn.Parameter(p.detach().clone()) for p in parameters().values()]
    config = OptimizerConfig(kind="adamw", lr=3e-3, beta1=0.8, beta2=0.9, eps=1e-6)
    rule = AdamW(ours, config, weight_decay=decay)
    oracle = torch.optim.AdamW(theirs, lr=3e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=decay)
    for step in range(20):
        scale = 1.0 - step / 40
        oracle.param_groups[0]["lr"] = 3e-3 * scale
        give_gradients(list(ours.values()), step)
        give_gradients(list(theirs), step)
        with torch.no_grad():
            rule.step(scale)
        oracle.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.values(), theirs, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs(momentum: float) -> None:
    ours, theirs = parameters(), [torch.nn.Parameter(p.detach().clone()) for p in parameters().values()]
    rule = Sgd(ours, OptimizerConfig(kind="sgd", lr=0.1, momentum=momentum), weight_decay=0.0)
    oracle = torch.optim.SGD(theirs, lr=0.1, momentum=momentum)
    for step in range(20):
        give_gradients(list(ours.values()), step)
        give_gradients(list(theirs), step)
        with torch.no_grad():
            rule.step(1.0)
        oracle.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.values(), theirs, strict=True))


def test_sgds_decay_is_decoupled() -> None:
    ours = parameters()
    before = {name: p.detach().clone() for name, p in ours.items()}
    for p in ours.values():
        p.grad = torch.zeros_like(p)
    with torch.no_grad():
        Sgd(ours, OptimizerConfig(kind="sgd", lr=0.5, momentum=0.9), weight_decay=0.2).step(1.0)
    assert all(torch.allclose(p, before[name] * 0.9) for name, p in ours.items())


def test_without_decay_and_momentum_sgd_leaves_rows_without_gradient_bit_identical() -> None:
    ours = parameters()
    table, before = ours["W_E"], ours["W_E"].detach().clone()
    torch.nn.functional.embedding(torch.tensor([2, 5]), table).square().sum().backward()
    with torch.no_grad():
        Sgd(ours, OptimizerConfig(kind="sgd", lr=0.5, momentum=0.0), weight_decay=0.0).step(1.0)
    moved = (table != before).any(1)
    assert moved.tolist() == [row in (2, 5) for row in range(7)]


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_groups_partition_the_catalogue(tiny: ModuleType, kind: str) -> None:
    made = tiny.parts(kind=kind)
    groups = made["optimizer"].groups()
    assert sorted(a for group in groups.values() for a in group) == sorted(made["catalogue"].addresses)
    vectors = {e.address for e in made["catalogue"] if e.parameter.ndim != 2}
    assert {a for name, group in groups.items() if name.endswith("no_decay") for a in group} == vectors
    if kind == "muon":
        hidden = {e.address for e in made["catalogue"] if e.parameter.ndim == 2 and e.site in ("attn", "mlp")}
        assert set(groups["muon"]) == hidden and "W_E" in groups["adamw"]


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_what_enters_the_stack_has_its_own_rate_and_nothing_else_does(tiny: ModuleType, kind: str) -> None:
    ended = {}
    for name, rates in {"own": {"embed_factor": 128.0}, "slow": {}, "fast": {"lr": 0.5}}.items():
        catalogue = tiny.parts(kind=kind)["catalogue"]
        optimizer = make_optimizer(catalogue, OptimizerConfig(kind=kind, **{"lr": 0.5 / 128} | rates))
        for step in range(3):
            give_gradients(optimizer.parameters, step)
            optimizer.step(1.0)
        ended[name] = {address: tensor.clone() for address, tensor in catalogue.state().items()}
        entering = {e.address for e in catalogue if e.site == "embed" and e.parameter.ndim == 2}
        assert [set(group) == entering for g, group in optimizer.groups().items() if g.endswith("_embed")] == (
            [True] if name == "own" else []
        )
    assert "W_E" in entering
    for address, tensor in ended["own"].items():
        assert torch.equal(tensor, ended["fast" if address in entering else "slow"][address]), address
    assert not torch.equal(ended["slow"]["W_E"], ended["fast"]["W_E"])


def test_a_group_that_misses_a_parameter_is_refused(tiny: ModuleType) -> None:
    catalogue = tiny.parts()["catalogue"]
    some = {a: catalogue.entry(a).parameter for a in catalogue.addresses[1:]}
    with pytest.raises(AssertionError, match="exactly once"):
        Optimizer(catalogue, {"adamw": AdamW(some, OptimizerConfig(), weight_decay=0.0)})


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_what_has_no_gradient_is_passed_over(tiny: ModuleType, kind: str) -> None:
    made = tiny.parts(kind=kind)
    optimizer, catalogue = made["optimizer"], made["catalogue"]
    for step in range(3):
        give_gradients(optimizer.parameters, step)
        for address in ("W_E", "L0.W_Q", "L1.norm1.gain"):
            catalogue.entry(address).parameter.grad = None
        before = {a: t.clone() for a, t in {**catalogue.state(), **optimizer.state()}.items()}
        optimizer.step(1.0)
        moved = {a for a, t in {**catalogue.state(), **optimizer.state()}.items() if not torch.equal(t, before[a])}
        assert not any(a.startswith(("W_E", "L0.W_Q", "L1.norm1.gain")) for a in moved)
        assert {"L0.W_K", "L1.W_in", "W_U"} <= moved


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_a_rate_that_lies_on_a_device_is_the_same_rate(tiny: ModuleType, kind: str) -> None:
    """What a recorded update reads: a scalar in memory."""
    by_number, by_memory = tiny.parts(kind=kind), tiny.parts(kind=kind)
    for step in range(4):
        scale = 1.0 - step / 5
        for made, given in ((by_number, scale), (by_memory, torch.tensor(scale))):
            give_gradients(made["optimizer"].parameters, step)
            made["optimizer"].step(given)
    ours, theirs = by_memory["catalogue"].state(), by_number["catalogue"].state()
    assert all(torch.allclose(ours[a], theirs[a], rtol=1e-6, atol=1e-7) for a in ours)


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_a_loaded_state_continues_bit_for_bit(tiny: ModuleType, kind: str) -> None:
    whole, half = tiny.parts(kind=kind), tiny.parts(kind=kind)
    for step in range(6):
        give_gradients(whole["optimizer"].parameters, step)
        whole["optimizer"].step(1.0)
        if step == 2:
            half["catalogue"].load_state({a: t.clone() for a, t in whole["catalogue"].state().items()})
            half["optimizer"].load_state({n: t.clone() for n, t in whole["optimizer"].state().items()})
    for step in range(3, 6):
        give_gradients(half["optimizer"].parameters, step)
        half["optimizer"].step(1.0)
    ours, theirs = half["catalogue"].state(), whole["catalogue"].state()
    assert all(torch.equal(ours[a], theirs[a]) for a in ours)


def test_a_state_of_another_optimizer_is_refused(tiny: ModuleType) -> None:
    state = tiny.parts(kind="adamw")["optimizer"].state()
    with pytest.raises(RunFolderError, match="another optimizer"):
        tiny.parts(kind="muon")["optimizer"].load_state(state)


def test_every_parameter_moves_under_every_optimizer(tiny: ModuleType) -> None:
    for kind in ("muon", "adamw", "sgd"):
        made = tiny.parts(kind=kind)
        give_gradients(made["optimizer"].parameters, 0)
        before = {a: t.clone() for a, t in made["catalogue"].state().items()}
        made["optimizer"].step(1.0)
        assert all(not torch.equal(t, before[a]) for a, t in made["catalogue"].state().items())


def test_make_optimizer_without_hidden_matrices_has_no_muon_group() -> None:
    from types import SimpleNamespace

    table = torch.zeros(3, 2, requires_grad=True)
    entry = SimpleNamespace(address="W_E", parameter=table, site="embed", kind="W_E", n_heads=0)
    catalogue = SimpleNamespace(addresses=["W_E"], entry=lambda address: entry)
    assert make_optimizer(catalogue, OptimizerConfig()).groups() == {"adamw": ["W_E"]}  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6])
def test_clipping_is_torchs_and_returns_the_norm_before(clip: float) -> None:
    ours, theirs = list(parameters().values()), list(parameters().values())
    give_gradients(ours, 1)
    give_gradients(theirs, 1)
    norm, _ = clip_and_measure(ours, clip)
    expected = torch.nn.utils.clip_grad_norm_(theirs, clip or math.inf)
    assert norm == pytest.approx(float(expected), rel=1e-6)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-5) for a, b in zip(ours, theirs, strict=True))  # type: ignore[arg-type]


def test_a_non_finite_norm_is_returned_and_scales_nothing() -> None:
    ours = list(parameters().values())
    give_gradients(ours, 1)
    before = ours[1].grad.clone()  # type: ignore[union-attr]
    ours[0].grad[0, 0] = math.nan  # type: ignore[index]
    assert math.isnan(clip_and_measure(ours, 0.1)[0])
    assert torch.equal(ours[1].grad, before)  # type: ignore[arg-type]


@pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))
def test_compiled_norms_are_those_of_float64_whatever_the_threads() -> None:
    shapes, draws = [(1,), (300, 256), (0, 3), (31,), (65, 1), (2, 32769), (1024,)], torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=draws) * 3**i for i, shape in enumerate(shapes)]
    exact = torch.stack([g.double().norm() for g in gradients])
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            with elementwise.using(True):
                found.append(gradient_norms(gradients))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], torch.cat((exact, exact.norm()[None])), rtol=1e-6, atol=0)
    assert found[1].equal(found[0]) and found[2].equal(found[0])
    with elementwise.using(True):
        turned = gradient_norms([g.t() if g.ndim == 2 else g for g in gradients])
    torch.testing.assert_close(turned.double(), found[0], rtol=1e-4, atol=0)
    gradients[1][7, 200] = math.nan
    with elementwise.using(True):
        lost = gradient_norms(gradients).isnan().nonzero().flatten().tolist()
    assert lost == [1, len(shapes)]


def test_without_gradients_the_norm_is_zero() -> None:
    assert clip_and_measure([torch.zeros(2)], 1.0)[0] == 0.0
