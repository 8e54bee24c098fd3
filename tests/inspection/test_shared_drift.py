"""Shared drift against closed forms: parts of matrices, independent movements, a common part, and weight decay."""

import math

import numpy as np
import pytest
import torch

from qkv.inspection.shared_drift import agreement, cosine, movement
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.training.config import OptimizerConfig, ScheduleConfig
from qkv.training.optimizers import make_optimizer
from qkv.training.schedules import lr_scale


@pytest.fixture
def catalogue() -> Catalogue:
    sizes = Sizes(d_vocab=11, d_model=12, n_layers=1, n_heads=3, n_ctx=8).resolved()
    return Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(tied=False, start="gpt2")), 0))


def by_numpy(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / math.sqrt((one**2).sum() * (other**2).sum()))


@pytest.mark.parametrize("address", ["L0.W_Q", "L0.W_K", "L0.W_O", "W_E", "W_U", "L0.W_in"])
def test_a_matrix_its_heads_and_its_rows_are_cosines_of_their_own_weights(catalogue, address):
    entry, draws = catalogue.entry(address), np.random.default_rng(0)
    one, other = (draws.standard_normal(entry.parameter.shape) for _ in range(2))
    found = agreement(entry, torch.from_numpy(one), torch.from_numpy(other))
    assert found.whole == pytest.approx(by_numpy(one, other))
    if address == "L0.W_in":
        assert found.pieces == pytest.approx([found.whole])
        return
    rows = address in ("L0.W_O", "W_E")
    width = 4 if entry.n_heads else 1
    cuts = [np.s_[i : i + width] if rows else np.s_[:, i : i + width] for i in range(0, one.shape[1 - rows], width)]
    assert found.pieces == pytest.approx([by_numpy(one[cut], other[cut]) for cut in cuts])
    assert len(found.pieces) == (3 if entry.n_heads else 11)


def test_independent_movements_agree_by_0_with_a_spread_of_one_over_the_root_of_their_directions():
    """Where all directions are alike these are all weights; where k of them are favored, (tr C)^2 / tr C^2."""
    draws = torch.Generator().manual_seed(0)
    for scale in (torch.ones(900), torch.cat([torch.full((20,), 10.0), torch.ones(880)])):
        one, other = (torch.randn(4000, 900, generator=draws, dtype=torch.float64) * scale for _ in range(2))
        d_eff = float(scale.square().sum() ** 2 / scale.pow(4).sum())
        found = cosine(one, other)
        assert abs(float(found.mean())) < 4 / math.sqrt(4000 * d_eff)
        assert float(found.std()) == pytest.approx(1 / math.sqrt(d_eff), rel=0.06)


def test_of_a_common_part_and_independent_ones_the_common_share_of_the_squared_movement_is_found():
    draws = torch.Generator().manual_seed(1)
    common, one, other = torch.randn(3, 400, 2000, generator=draws, dtype=torch.float64)
    for share in (0.0, 0.1, 0.6):
        pair = (math.sqrt(share) * common + math.sqrt(1 - share) * own for own in (one, other))
        assert float(cosine(*pair).mean()) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_what_weight_decay_alone_does_is_taken_off(catalogue, kind):
    """With gradients of zero nothing but decay moves a matrix; vectors it does not touch."""
    config = OptimizerConfig(kind=kind, lr=0.05, muon_lr=0.03, embed_factor=3.0, weight_decay=0.4)
    schedule = ScheduleConfig(steps=40, warmup_steps=4, decay_share=0.5)
    start = {address: values.clone() for address, values in catalogue.state().items()}
    optimizer = make_optimizer(catalogue, config)
    scales = [lr_scale(step, schedule) for step in range(40)]
    for scale in scales:
        for entry in catalogue:
            entry.parameter.grad = torch.zeros_like(entry.parameter)
        optimizer.step(scale)
    left = optimizer.decayed(scales)
    assert len(set(left.values())) == (4 if kind == "muon" else 3)
    for address, end in catalogue.state().items():
        assert (end.equal(start[address])) == (left[address] == 1.0)
        assert float(movement(start[address], end, left[address]).norm()) < 1e-5 * float(start[address].norm() + 1)
    assert float(movement(start["W_E"], catalogue.state()["W_E"]).norm()) > 0.3 * float(start["W_E"].norm())


def test_what_did_not_move_agrees_with_nothing(catalogue):
    entry = catalogue.entry("W_E")
    start, moved = entry.parameter.detach().clone(), entry.parameter.detach().clone()
    moved[3] += 1
    still, gone = movement(start, start.clone(), 0.5), movement(start, moved)
    assert not still.any() and math.isnan(agreement(entry, still, gone).whole)
    pieces = agreement(entry, gone, gone).pieces
    assert pieces[3] == pytest.approx(1) and np.isnan(np.delete(pieces, 3)).all()
