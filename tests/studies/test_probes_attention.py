"""Probes of attention against closed forms: planted roles, patterns by their formula, heads that do nothing."""

import math

import numpy as np
import pytest
import torch

from qkv.errors import SourceError
from qkv.instruments.probe import fixed_batch
from qkv.studies.probes import attention
from qkv.studies.probes.attention import ablation, patterns, ranked_and_scored, roles
from qkv.tasks import validation_loss

LAYERS = range(2)


def losses(finished) -> float:
    return validation_loss(finished.model, finished.parts.task, finished.corpus, 128)


def write(finished, kind: str, values) -> None:
    """The same values in every layer."""
    with torch.no_grad():
        for layer in LAYERS:
            finished.parts.catalogue.entry(f"L{layer}.{kind}").parameter.copy_(values)


def loss_with(finished, **kinds) -> float:
    """Validation loss with other matrices; afterwards they are as before."""
    kept = finished.parts.catalogue.state()
    kept = {address: tensor.clone() for address, tensor in kept.items()}
    for kind, values in kinds.items():
        write(finished, kind, values)
    found = losses(finished)
    finished.parts.catalogue.load_state(kept)
    return found


def quarter_turns(width: int) -> torch.Tensor:
    """Each pair of coordinates by 90 degrees: J^T = -J."""
    return torch.block_diag(*[torch.tensor([[0.0, 1.0], [-1.0, 0.0]])] * (width // 2))


@pytest.fixture
def strong(finish):
    """A model whose scores and outputs are large, so that roles show at the start."""
    finished = finish(layout={"start": "xavier"})
    draws = torch.Generator().manual_seed(3)
    for kind in ("W_Q", "W_K"):
        write(finished, kind, torch.randn(16, 16, generator=draws))
    with torch.no_grad():
        finished.parts.catalogue.view("W_U").mul_(5)
    return finished


def test_symmetric_scores_do_not_ask_who_asks(strong):
    q = strong.parts.catalogue.view("L0.W_Q").transpose(0, 1).reshape(16, 16).clone()
    write(strong, "W_K", q)
    write(strong, "W_Q", q)
    found, usual = roles(strong), losses(strong)
    assert found["symmetric share"] == pytest.approx(1.0) and found["angle QK"] == pytest.approx(0.0, abs=1e-4)
    assert found["exchanged"] == 0.0 and found["symmetric part"] == pytest.approx(0.0, abs=1e-6)
    even = loss_with(strong, W_Q=torch.zeros(16, 16)) - usual
    assert abs(even) > 0.01 and found["antisymmetric part"] == pytest.approx(even, abs=1e-5)


def test_antisymmetric_scores_turn_round_when_the_two_change_places(strong):
    q = strong.parts.catalogue.entry("L0.W_Q").parameter.detach().clone()
    write(strong, "W_Q", q)
    write(strong, "W_K", q @ quarter_turns(16))
    found, usual = roles(strong), losses(strong)
    assert found["symmetric share"] == pytest.approx(0.0, abs=1e-6)
    assert found["antisymmetric part"] == pytest.approx(0.0, abs=1e-6)
    assert found["symmetric part"] == pytest.approx(loss_with(strong, W_Q=torch.zeros(16, 16)) - usual, abs=1e-5)
    turned = loss_with(strong, W_Q=-q) - usual
    assert abs(turned) > 0.01 and found["exchanged"] == pytest.approx(turned, abs=1e-5)


def test_exchanging_is_what_exchanging_the_matrices_does(strong):
    q, k = (strong.parts.catalogue.entry(f"L0.{kind}").parameter.detach().clone() for kind in ("W_Q", "W_K"))
    write(strong, "W_Q", q)
    write(strong, "W_K", k)
    before = {address: tensor.clone() for address, tensor in strong.parts.catalogue.state().items()}
    found = roles(strong)
    assert found["exchanged"] == pytest.approx(loss_with(strong, W_Q=k, W_K=q) - losses(strong), abs=1e-5)
    assert all(torch.equal(before[address], tensor) for address, tensor in strong.parts.catalogue.state().items())


def test_angles_of_spaces_that_are_known(finish):
    finished = finish()
    whole = torch.eye(16)
    write(finished, "W_Q", whole)  # heads read coordinates 0-7 and 8-15
    write(finished, "W_K", whole.roll(8, dims=1))
    half = torch.cat([whole[:, :4], whole[:, 8:12], whole[:, 4:8], whole[:, 12:]], dim=1)
    write(finished, "W_V", half)
    found = roles(finished)
    assert found["angle QK"] == pytest.approx(90.0) and found["angle QV"] == pytest.approx(45.0)
    assert found["angle KV"] == pytest.approx(45.0)
    assert "angle QK" not in roles(finish(n_heads=1)), "a head as wide as the model reads everything"


@pytest.mark.parametrize("task", ["causal", "masked"])
def test_patterns_are_those_of_the_formula(finish, task):
    finished = finish(task, layout={"start": "xavier", "scale": False})
    with torch.no_grad():
        for layer in LAYERS:
            finished.parts.catalogue.view(f"L{layer}.W_Q").mul_(3)
    found = patterns(finished)
    batch = fixed_batch(finished.parts.task, finished.corpus, finished.model.config.sizes, 32)
    with torch.no_grad():
        _, record = finished.model.forward_recorded(batch.inputs)
    first = 1 if task == "causal" else 0  # a row with one key has no choice
    p = torch.stack([record[f"L{layer}.pattern"][:, :, first:] for layer in LAYERS]).double().numpy()
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1).mean()
    most = np.mean([math.log(i + 1) for i in range(1, 16)]) if task == "causal" else math.log(16)
    assert found["entropy share"] == pytest.approx(entropy / most, rel=1e-4) and 0.2 < found["entropy share"] < 0.98
    assert found["saturated"] == pytest.approx((p.max(-1) > 0.9).mean(), abs=1e-6) and found["saturated"] > 0
    scores = torch.stack([record[f"L{layer}.scores"][:, :, first:] for layer in LAYERS])
    assert found["largest score"] == pytest.approx(float(scores.max()), rel=1e-4)


def without(finished, gone: list[tuple[int, int]], windows: slice) -> float:
    """Loss of some validation windows with W_O of (layer, head) at 0, by way of the whole matrix."""
    catalogue = finished.parts.catalogue
    kept = {address: tensor.clone() for address, tensor in catalogue.state().items()}
    for layer, head in gone:
        with torch.no_grad():
            catalogue.entry(f"L{layer}.W_O").parameter[8 * head : 8 * head + 8] = 0.0
    ids = torch.from_numpy(finished.corpus.val.ids.astype(np.int64))
    behind = torch.cat([ids[1:], torch.tensor([-100])])  # nothing is known behind the last token
    inputs, targets = (part.view(-1, 16)[windows] for part in (ids, behind))
    with torch.no_grad():
        logits = finished.model(inputs)
    catalogue.load_state(kept)
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_heads_are_chosen_on_some_windows_and_scored_on_others(strong):
    """By an account of its own: the first half of the windows ranks, the second scores."""
    before = losses(strong)
    first, second = slice(0, 32), slice(32, None)
    everyone = [(layer, head) for layer in LAYERS for head in (0, 1)]
    costs = {head: without(strong, [head], first) - without(strong, [], first) for head in everyone}
    cheaper = [min((layer, 0), (layer, 1), key=costs.__getitem__) for layer in LAYERS]
    scored = [without(strong, gone, second) for gone in ([], cheaper, [max(costs, key=costs.__getitem__)])]
    found = ablation(strong)
    assert found["one head"] == pytest.approx(np.mean(list(costs.values())), abs=1e-5)
    assert found["pruned"] == pytest.approx(scored[1] - scored[0], abs=1e-5) and abs(found["pruned"]) > 0.01
    assert found["dearest head"] == pytest.approx(scored[2] - scored[0], abs=1e-5)
    same = without(strong, cheaper, first) - without(strong, [], first)
    assert abs(found["pruned"] - same) > 1e-4, "it would be seen if both were the same windows"
    assert losses(strong) == before, "the model is as it was"


def test_no_window_is_both_ranked_on_and_scored_on(strong, monkeypatch):
    def tokens(batches) -> list[int]:
        return torch.cat([batch.inputs for batch in batches]).flatten().tolist()

    to_rank, to_score = map(tokens, ranked_and_scored(strong))
    assert to_rank + to_score == strong.corpus.val.ids.tolist() and len(to_rank) == len(to_score) == 512
    seen, scored = [], attention._scored

    def spy(model, task, batches):
        seen.append(tokens(batches))
        return scored(model, task, batches)

    monkeypatch.setattr(attention, "_scored", spy)
    ablation(strong)
    assert seen == 8 * [to_rank] + 4 * [to_score], "four heads are ranked, two choices scored"


def test_a_text_without_windows_for_both_is_refused(finish):
    with pytest.raises(SourceError, match=r"at most 8 windows; expected more"):
        ablation(finish(n_ctx=128))


def test_a_head_without_output_is_worth_nothing(strong):
    with torch.no_grad():
        for layer in LAYERS:
            strong.parts.catalogue.entry(f"L{layer}.W_O").parameter.zero_()
    assert set(ablation(strong).values()) == {0.0}
