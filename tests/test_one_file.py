"""The model written out in NumPy is the one that qkv trains: the same loss, and the same gradient of every matrix."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv import one_file
from qkv.laws import Scale
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS, model_config

D_VOCAB, N_CTX = 23, 10


@pytest.fixture
def both():
    """The preset `textbook` in float64, and the same weights by address."""
    scale = Scale(d_model=24, n_layers=2, n_ctx=N_CTX, batch_size=2)
    config = model_config(PRESETS["textbook"], "CausalLM", D_VOCAB, scale, {"d_vocab": D_VOCAB, "n_heads": 3})
    model = build(config.resolved(), 1).double()
    catalogue = Catalogue(model)
    draws = np.random.default_rng(0)
    with torch.no_grad():  # far from the start, where softmax and GELU are almost linear
        for address in catalogue.state():
            view = catalogue.view(address)
            view += torch.from_numpy(draws.normal(0, 0.5, tuple(view.shape)))
    return model, catalogue


def arrays(catalogue: Catalogue) -> dict[str, np.ndarray]:
    return {address: catalogue.view(address).detach().numpy().copy() for address in catalogue.state()}


def text(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, D_VOCAB, (3, N_CTX + 1))


def test_loss_and_every_gradient_are_torchs(both):
    model, catalogue = both
    ids, targets = text()[:, :-1], text()[:, 1:]
    logits = model(torch.from_numpy(ids))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
    loss.backward()
    W = arrays(catalogue)
    found, G = one_file.loss_and_gradients(W, ids, targets)
    assert found == pytest.approx(loss.item(), abs=1e-12)
    np.testing.assert_allclose(one_file.predict(W, ids)[0], logits.detach().numpy(), atol=1e-10)
    assert set(G) == set(catalogue.state())
    for address in G:
        wanted = catalogue.grad(address).numpy()
        assert np.abs(wanted).max() > 1e-4
        np.testing.assert_allclose(G[address], wanted, atol=1e-10, err_msg=address)


def test_a_frozen_w_q_still_hands_the_gradient_to_the_rows_of_w_e(both):
    """What reaches x through q is q_bar W_Q^T, whether or not W_Q is updated; without it the rows get another sum."""
    W = arrays(both[1])
    x = np.random.default_rng(1).normal(size=(2, 5, 24))
    out_bar = np.random.default_rng(2).normal(size=x.shape)
    matrices = [W[f"L0.{name}"] for name in ("W_Q", "W_K", "W_V", "W_O")]
    x_bar, G = one_file.attention_backward(out_bar, one_file.attention(x, *matrices)[1], *matrices)
    step, along = 1e-6, np.random.default_rng(3).normal(size=x.shape)
    ahead, behind = (one_file.attention(x + sign * step * along, *matrices)[0] for sign in (1, -1))
    assert ((ahead - behind) * out_bar).sum() / (2 * step) == pytest.approx((x_bar * along).sum(), rel=1e-6)
    assert set(G) == {"W_Q", "W_K", "W_V", "W_O"}


def test_its_adam_is_torchs():
    draws = np.random.default_rng(4)
    W = {"W": draws.normal(size=(3, 4))}
    parameter = torch.nn.Parameter(torch.from_numpy(W["W"].copy()))
    theirs, state = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.99), eps=1e-8), {}
    for step in range(1, 6):
        gradient = draws.normal(size=(3, 4))
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
        one_file.adam(W, {"W": gradient}, state, step, 0.01)
    np.testing.assert_allclose(W["W"], parameter.detach().numpy(), atol=1e-12)


def test_it_learns_a_text_and_writes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat. " * 40)
    done = subprocess.run(
        [sys.executable, "-m", "qkv.one_file", str(path), "41"], capture_output=True, text=True, check=True
    )
    losses = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert losses[-1] < 0.75 * losses[0] and "nats per character" in done.stdout
    assert set(done.stdout.splitlines()[-1]) <= set("the cat sat on the mat. ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "expected a text"),
        (["missing.txt"], "cannot be read"),
        (["a.txt", "x"], "number of steps"),
        (["a.txt", "0"], "steps"),
    ],
)
def test_bad_input_is_one_sentence(args, says, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "qkv.one_file", *args], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_it_is_short_enough_to_read():
    with open(one_file.__file__, encoding="utf-8") as file:
        assert sum(1 for _ in file) <= 250
