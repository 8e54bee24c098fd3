"""The same numbers on a CUDA device: losses, gradients, optimizers, whole trainings, and what is read of them after.

A processor's float32 is the oracle. Run with `pytest -m gpu`; on a machine without such a device all is passed over.
"""

import numpy as np
import pytest
import torch

import qkv
from qkv.api import verify
from qkv.models import Catalogue, build
from qkv.recipe import Request
from qkv.recipe.build import assemble
from qkv.recipe.request import resolve
from qkv.tasks import find_task
from qkv.tasks.crossentropy import linear_cross_entropy
from qkv.training.dropout import make_drop
from qkv.training.muon import orthogonalise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

DEVICE = "cuda"
CASES = (
    ("fast", "causal"),
    ("gpt2", "causal"),
    ("llama", "causal"),
    ("lstm", "causal"),
    ("modern", "masked"),
    ("bert", "masked"),
    ("bert", "classify"),
    ("vaswani", "translate"),
    ("modern", "image"),
)


def whole(config, corpus, device: str):
    """(loss, gradient of each matrix) of the first batch on a device, dropout on."""
    parts = assemble(config, corpus)
    parts.model.to(device)
    config, sizes = parts.config, parts.model.config.sizes
    batch = parts.task.train_batch(corpus, sizes, config.seed, 0, np.arange(8, dtype=np.int64)).to(device)
    names = np.arange(8) if batch.examples is None else batch.examples.cpu().numpy()
    nats, n = parts.task.loss(parts.model, batch, make_drop(0.1, config.seed, 0, names))
    (nats / n).backward()
    grads = {e.address: e.parameter.grad for e in parts.catalogue if e.parameter.grad is not None}
    return float(nats.detach() / n), {name: grad.double().cpu() for name, grad in grads.items()}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_losses_and_gradients_are_those_of_the_processor(case, asked):
    request = Request(**asked(case, device="cpu", precision="fp32"))
    config, corpus, _ = resolve(request, None)
    there, slopes = whole(config, corpus, DEVICE)
    here, wanted = whole(config, corpus, "cpu")
    assert there == pytest.approx(here, rel=1e-5)
    assert slopes.keys() == wanted.keys()
    for name, grad in wanted.items():
        assert float((slopes[name] - grad).norm()) <= 2e-4 * float(grad.norm()) + 1e-7, name


@pytest.mark.parametrize(
    ("case", "precision"),
    [*((case, "bf16") for case in CASES), (CASES[0], "fp32")],
    ids=lambda x: "-".join([x] if isinstance(x, str) else x),
)
def test_a_training_repeats_its_bits_and_is_read_afterwards(case, precision, asked, tmp_path):
    given = asked(case, device=DEVICE, precision=precision, watch="full", report=False)
    first, second = (qkv.train(out=tmp_path / name, **given) for name in ("a", "b"))
    ours, again = ({e.address: e.parameter for e in run.catalogue()} for run in (first, second))
    assert ours.keys() == again.keys() and all(torch.equal(ours[name], again[name]) for name in ours)
    verdict = verify(first.path)
    assert verdict.is_whole, [str(fault) for fault in verdict.faults]
    on_cpu = qkv.train(out=tmp_path / "cpu", **given | {"device": "cpu"})
    apart = abs(first.summary["val_loss"] - on_cpu.summary["val_loss"])
    assert apart < (0.02 if precision == "bf16" else 0.002)


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_loss_is_the_loss(asked, tmp_path):
    given = asked(("fast", "causal"), device=DEVICE, precision="fp32", watch="off", report=False)
    given["set"]["dropout"] = 0.1
    plain = qkv.train(out=tmp_path / "plain", **given)
    fast = qkv.train(out=tmp_path / "fast", **given | {"set": given["set"] | {"machine.compile": True}})
    assert fast.summary["val_loss"] == pytest.approx(plain.summary["val_loss"], abs=2e-3)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("d_vocab", [65, 50_257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_many_words_is_torchs_own(d_vocab, dtype, compiled):
    loss = torch.compile(linear_cross_entropy) if compiled else linear_cross_entropy
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(6_000, 64, generator=draw).to(DEVICE, dtype).requires_grad_()
    table = (0.1 * torch.randn(d_vocab, 64, generator=draw)).to(DEVICE).requires_grad_()
    targets = torch.randint(d_vocab, (6_000,), generator=draw).to(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours = loss(h, table, None, targets, is_table=True)
    found = torch.autograd.grad(ours / 6_000, (h, table))
    wide, wide_table = (x.detach().double().requires_grad_() for x in (h, table))
    theirs = torch.nn.functional.cross_entropy(wide @ wide_table.t(), targets, reduction="sum")
    wanted = torch.autograd.grad(theirs / 6_000, (wide, wide_table))
    limit = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-3 if dtype == torch.bfloat16 else 1e-5)
    for one, other in zip(found, wanted, strict=True):
        assert float((one.double() - other).norm()) <= limit * float(other.norm())


def test_muons_updates_are_those_of_the_processor():
    stack = torch.randn(6, 48, 32, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(orthogonalise(stack.to(DEVICE)).cpu(), orthogonalise(stack), atol=1e-4)


@pytest.mark.parametrize("case", [("fast", "causal"), ("vaswani", "translate"), ("bert", "classify")], ids="-".join)
def test_a_model_answers_on_the_device_as_on_the_processor(case, asked, tmp_path):
    run = qkv.train(out=tmp_path / "run", **asked(case, device="cpu", precision="fp32", report=False))
    here = build(run.config.model, run.config.seed)
    there = build(run.config.model, run.config.seed).to(DEVICE)
    task, data = find_task(run.config.task), run.corpus()
    for batch in list(task.val_batches(data, run.config.model.sizes, 4))[:2]:
        mine = task.score(here, batch)
        theirs = task.score(there, batch.to(DEVICE))
        assert torch.allclose(mine.nats, theirs.nats.cpu(), atol=1e-4)
    assert Catalogue(there).addresses == Catalogue(here).addresses
