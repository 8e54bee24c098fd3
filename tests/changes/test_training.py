"""Changes in training: what is frozen keeps its bits under decay and momentum, everything else moves."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from qkv.changes import freeze_changes, plan_changes
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import make_optimizer

SIZES = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_ctx=8, d_mlp=24)
SHARED = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, n_ctx=8, d_mlp=24)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Matrices this small cost more to share out than to multiply."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def make(sizes=SIZES, **layout):
    layout = {"start": "normal", "tied": False, "bias": True, "norm": "layer", "mlp": "gelu"} | layout
    return Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(**layout)), seed=3))


def sgd(catalogue):
    parameters = [entry.parameter for entry in catalogue]
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)


def adamw(catalogue):
    return torch.optim.AdamW([entry.parameter for entry in catalogue], lr=0.01, weight_decay=0.1)


class Muon:
    """Ours, with the two methods the loop below asks for."""

    def __init__(self, catalogue):
        self._ours = make_optimizer(catalogue, OptimizerConfig(kind="muon", weight_decay=0.1))

    def step(self):
        self._ours.step(1.0)

    def zero_grad(self, set_to_none=True):
        self._ours.zero_grad()


OPTIMIZERS = pytest.mark.parametrize("optimizer", [sgd, adamw, Muon], ids=["sgd", "adamw", "muon"])


def copy(catalogue):
    return {address: values.clone() for address, values in catalogue.state().items()}


def train(changes, catalogue, optimizer=adamw, steps=range(4), *, plan=None, see=lambda step, catalogue: None):
    """Train with a plan; returns the plan, its catalogue, and the state after `at_start`."""
    plan = plan or plan_changes(changes, catalogue, 0)
    catalogue = plan.at_start()
    start, model = copy(catalogue), catalogue.model
    step_rule = optimizer(catalogue)
    for step in steps:
        ids = torch.from_numpy(generator("batch", step).integers(0, 12, (4, 9)))  # token 12 is never seen
        plan.before_step(step)
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        see(step, catalogue)
        step_rule.step()
        plan.after_step(step)
        step_rule.zero_grad(set_to_none=False)
    return plan, catalogue, start


def sizes_of_gradients(catalogue):
    grads = {address: catalogue.grad(address) for address in catalogue.addresses}
    return {address: None if grad is None else float(grad.norm()) for address, grad in grads.items()}


def moved(catalogue, start):
    return {address for address, values in catalogue.state().items() if not torch.equal(values, start[address])}


@OPTIMIZERS
@pytest.mark.parametrize(
    "change",
    ["W_E=freeze", "attn=freeze", "L0.W_Q=identity", "mlp,head=random(0.1)", "L1.W_V=orthogonal", "L0.W_K=zero"],
)
def test_frozen_matrices_are_bit_identical_after_training_and_all_others_move(optimizer, change):
    catalogue = make()
    plan, after, start = train([change], catalogue, optimizer)
    frozen = {part.address for part in catalogue.select(change.split("=")[0])}
    assert plan.frozen(0) == frozen
    assert moved(after, start) == set(after.addresses) - frozen


def test_gradient_flows_through_a_frozen_matrix_to_what_lies_below():
    seen = {}
    train(["L1.**=freeze"], make(), steps=[0], see=lambda step, c: seen.update(sizes_of_gradients(c)))
    assert all(seen[address] is None for address in seen if address.startswith("L1."))
    assert all(seen[address] > 0 for address in seen if address.startswith("L0."))


@OPTIMIZERS
@pytest.mark.parametrize("kind", ["W_Q", "W_K", "W_V", "W_O", "b_Q"])
def test_a_frozen_head_is_bit_identical_under_decay_and_its_neighbours_move(optimizer, kind):
    grads = []
    address = f"L0.H2.{kind}"
    _, after, start = train(
        [f"{address}=freeze"], make(), optimizer, see=lambda step, c: grads.append(c.grad(address).clone())
    )
    now, then = after.view(f"L0.{kind}"), after.part(f"L0.{kind}").shaped(start[f"L0.{kind}"])
    assert torch.equal(now[2], then[2])
    assert not any(torch.equal(now[head], then[head]) for head in (0, 1, 3))
    assert all((grad == 0).all() for grad in grads)


def test_freezing_a_shared_key_head_freezes_it_for_all_its_queries():
    plan, after, start = train(["L0.H3.W_K=freeze"], make(SHARED))
    then = after.part("L0.W_K").shaped(start["L0.W_K"])
    assert torch.equal(after.view("L0.KV1.W_K"), then[1]) and not torch.equal(after.view("L0.KV0.W_K"), then[0])
    assert "the same matrix as L0.H2.W_K" in plan.describe()[0]


@OPTIMIZERS
def test_frozen_rows_are_bit_identical_and_the_others_move(optimizer):
    _, after, start = train(["W_E[3],W_U[3],W_U[5]=freeze"], make(), optimizer)
    rows = (after.view("W_E") == start["W_E"]).all(dim=1)
    columns = (after.view("W_U") == start["W_U"]).all(dim=0)
    assert rows.nonzero().flatten().tolist() == [3]
    assert columns.nonzero().flatten().tolist() == [3, 5]


def test_rows_never_seen_move_by_decay_alone_unless_frozen():
    _, after, start = train(["W_E[12]=freeze"], make())
    _, decayed, _ = train([], make())
    assert torch.equal(after.view("W_E[12]"), start["W_E"][12])
    assert not torch.equal(decayed.view("W_E[12]"), start["W_E"][12])


@OPTIMIZERS
@pytest.mark.parametrize("change", ["W_U=freeze", "W_E=freeze", "head=freeze"])
def test_a_tied_matrix_has_no_back_door(optimizer, change):
    plan, after, start = train([change], make(tied=True), optimizer)
    assert plan.frozen(0) == {"W_E"} and moved(after, start) == set(after.addresses) - {"W_E"}
    sentence = plan.describe()[0]
    assert "W_E" in sentence and "W_U" in sentence
    assert "W_U" in plan_changes(["W_E[3]=freeze"], make(tied=True), 0).describe()[0]


def test_a_window_freezes_for_its_steps_only():
    states = {}
    train(["L0.W_Q,L1.H0.W_Q=freeze@2..4"], make(), steps=range(6), see=lambda step, c: states.update({step: copy(c)}))
    whole = [torch.equal(states[i]["L0.W_Q"], states[i + 1]["L0.W_Q"]) for i in range(5)]
    head = [torch.equal(states[i]["L1.W_Q"][:, :4], states[i + 1]["L1.W_Q"][:, :4]) for i in range(5)]
    rest = [torch.equal(states[i]["L1.W_Q"][:, 4:], states[i + 1]["L1.W_Q"][:, 4:]) for i in range(5)]
    assert whole == head == [False, False, True, True, False]
    assert rest == [False] * 5


def test_a_part_stays_held_when_the_whole_is_let_go():
    catalogue, states = make(), {}
    train(["L0.W_Q=freeze@0..2", "L0.H0.W_Q=freeze"], catalogue, see=lambda step, c: states.update({step: copy(c)}))
    first, last = states[0]["L0.W_Q"], catalogue.state()["L0.W_Q"]
    assert torch.equal(states[2]["L0.W_Q"], first)
    assert torch.equal(last[:, :4], first[:, :4]) and (last[:, 4:] != first[:, 4:]).any()


def test_what_acts_later_acts_before_its_step(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"L1.W_V": torch.full((16, 16), 0.25)}, path)
    states = {}
    changes = ["L0.W_Q=identity@2..4", f"L1.W_V=load({path})@3..", "L0.W_in=rank(2)@1..", "L1.H1.W_O=zero@2.."]
    _, after, start = train(changes, make(), steps=range(6), see=lambda step, c: states.update({step: copy(c)}))
    assert torch.equal(states[2]["L0.W_Q"], torch.eye(16)) and torch.equal(states[3]["L0.W_Q"], torch.eye(16))
    assert not torch.equal(states[1]["L0.W_Q"], torch.eye(16)) and not torch.equal(states[5]["L0.W_Q"], torch.eye(16))
    assert (states[3]["L1.W_V"] == 0.25).all() and not (states[4]["L1.W_V"] == 0.25).all()
    assert torch.linalg.matrix_rank(states[0]["L0.W_in"], tol=1e-5) > 2
    assert torch.linalg.matrix_rank(states[1]["L0.W_in"], tol=1e-5) == 2
    assert (after.view("L1.H1.W_O") == 0).all() and not (states[1]["L1.W_O"][4:8] == 0).any()


def test_ops_that_do_not_freeze_leave_their_matrix_training():
    changes = [
        "L0.W_Q=scale(2)",
        "L0.W_K=rank(4)",
        "L0.W_V=mean",
        "L0.W_O=identity(train=true)",
        "L1.W_in=random(train=true)",
    ]
    plan, after, start = train(changes, make())
    assert plan.frozen(0) == set() and moved(after, start) == set(after.addresses)


def test_a_shared_matrix_trains_as_one_on_the_sum_of_gradients():
    apart, grads = make(), {}
    with torch.no_grad():
        apart.write("L1.W_Q", apart.view("L0.W_Q"))
    train([], apart, steps=[0], see=lambda step, c: grads.update({a: c.grad(a).clone() for a in ("L0.W_Q", "L1.W_Q")}))
    _, after, start = train(
        ["L1.W_Q=share(L0.W_Q)"], make(), steps=[0], see=lambda step, c: grads.update(both=c.grad("L1.W_Q").clone())
    )
    torch.testing.assert_close(grads["both"], grads["L0.W_Q"] + grads["L1.W_Q"])
    assert len(start) == len(apart) - 1 and "L0.W_Q" in moved(after, start)


def test_freezing_one_name_of_a_shared_matrix_freezes_the_other():
    plan, after, start = train(["L1.W_Q=share(L0.W_Q)", "L1.W_Q=freeze"], make())
    assert plan.frozen(0) == {"L0.W_Q"} and moved(after, start) == set(after.addresses) - {"L0.W_Q"}
    plan, after, _ = train(["L0.W_Q=share(L1.W_Q)", "L0.H1.W_Q=freeze"], make())
    assert torch.equal(after.view("L0.H1.W_Q"), make().view("L1.H1.W_Q"))


@OPTIMIZERS
def test_only_trains_one_head_and_nothing_else(optimizer):
    _, after, start = train(freeze_changes([], ["L0.H1.W_V"]), make(), optimizer)
    assert moved(after, start) == {"L0.W_V"}
    now, then = after.view("L0.W_V"), after.part("L0.W_V").shaped(start["L0.W_V"])
    assert [torch.equal(now[head], then[head]) for head in range(4)] == [True, False, True, True]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_resumed_plan_ends_in_the_same_bits(cut):
    changes = ["L0.W_Q=identity", "L0.H1.W_V=random(0.1)@2..4", "L1.W_in=scale(2)@3..", "L1.W_K=share(L0.W_K)",
               "L1.W_O=reset@2..", "W_E[3]=zero", "L1.W_out=random(train=true)"]  # fmt: skip
    plain = lambda catalogue: torch.optim.SGD([entry.parameter for entry in catalogue], lr=0.1)  # noqa: E731
    _, whole, _ = train(changes, make(), plain, range(6))
    _, half, _ = train(changes, make(), plain, range(cut))
    kept = copy(half)
    plan = plan_changes(changes, make(), 0, resumed_at=cut)
    resumed = plan.at_start()
    resumed.load_state(kept)
    train([], resumed, plain, range(cut, 6), plan=plan)
    assert all(torch.equal(a, b) for a, b in zip(whole.state().values(), resumed.state().values(), strict=True))


def test_the_end_of_a_plan_lets_everything_train_again():
    plan, after, _ = train(["W_E=freeze", "L0.H1.W_Q=freeze"], make())
    plan.at_end()
    after.model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    assert all(entry.parameter.requires_grad for entry in after)
    assert after.grad("L0.H1.W_Q").abs().sum() > 0
