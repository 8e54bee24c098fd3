"""The same numbers on a CUDA device: losses, gradients, optimizers, whole trainings, and what is read of them after.

A processor's float32 is the oracle. Run with `pytest -m gpu`; on a machine without such a device all is passed over.
"""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.api import verify
from qkv.models import Catalogue, build
from qkv.randomness import generator
from qkv.recipe import Request
from qkv.recipe.assemble import assemble
from qkv.recipe.request import resolve
from qkv.tasks import find_task
from qkv.tasks.crossentropy import linear_cross_entropy
from qkv.training.captured import Captured
from qkv.training.dropout import make_drop
from qkv.training.muon import orthogonalise
from qkv.training.optimizers import make_optimizer
from qkv.training.ranks import ALONE
from qkv.training.weights import Weights

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
STEPS = 12


@pytest.fixture(scope="session")
def sources(small_text: Path, small_pairs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A source for each task, all of our own making."""
    folder = tmp_path_factory.mktemp("gpu-sources")
    lines = small_text.read_text("utf-8").splitlines()
    table = "".join(f"{line}\t{'cat' if 'cat' in line else 'other'}\n" for line in lines[:300])
    (folder / "labels.tsv").write_text("text\tlabel\n" + table, encoding="utf-8")
    images = folder / "images"
    images.mkdir()
    for name, n in (("train", 60), ("t10k", 20)):
        pixels, labels = generator("tests", name).integers(0, 255, (n, 8, 8)), np.arange(n) % 2
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (images / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    texts = {"causal": small_text, "masked": small_text}
    return texts | {"classify": folder / "labels.tsv", "image": images, "translate": ":".join(map(str, small_pairs))}


def asked(case: tuple[str, str], sources: dict, **more) -> dict:
    """What `qkv.train` is given for a model of some thousand parameters."""
    preset, task = case
    sizes = {"d_model": 32, "n_layers": 2} | ({} if preset == "lstm" else {"n_heads": 2})
    sizes |= {"patch": 4} if task == "image" else {"n_ctx": 32} if task != "translate" else {}
    given = {"source": str(sources[task]), "task": task, "preset": preset, "steps": STEPS, "set": sizes, "seed": 3}
    if task != "image":
        given["tokenizer"] = "word" if task in ("translate", "classify") else "char"
    return given | more


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
def test_losses_and_gradients_are_those_of_the_processor(case, sources):
    request = Request(**asked(case, sources, device="cpu", precision="fp32"))
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
def test_a_training_repeats_its_bits_and_is_read_afterwards(case, precision, sources, tmp_path):
    given = asked(case, sources, device=DEVICE, precision=precision, watch="full", report=False)
    first, second = (qkv.train(out=tmp_path / name, **given) for name in ("a", "b"))
    ours, again = ({e.address: e.parameter for e in run.catalogue()} for run in (first, second))
    assert ours.keys() == again.keys() and all(torch.equal(ours[name], again[name]) for name in ours)
    verdict = verify(first.path)
    assert verdict.is_whole, [str(fault) for fault in verdict.faults]
    on_cpu = qkv.train(out=tmp_path / "cpu", **given | {"device": "cpu"})
    apart = abs(first.summary["val_loss"] - on_cpu.summary["val_loss"])
    assert apart < (0.02 if precision == "bf16" else 0.002)


def updated(kind: type[Weights], case: tuple[str, str], sources: dict, precision: str):
    """What holds the weights after five updates, dropout on, and losses and norms on the way."""
    given = asked(case, sources, device=DEVICE, precision=precision)
    given["set"]["dropout"] = 0.1
    config, corpus, _ = resolve(Request(**given), None)
    parts = assemble(config, corpus)
    parts.model.to(DEVICE)
    optimizer = make_optimizer(parts.catalogue, config.training.optimizer, precision=precision)
    held, losses = kind(parts.model, parts.catalogue, optimizer, parts.task.loss, ALONE, config.machine), []
    with config.machine.active():
        for step in range(5):
            examples = np.arange(8 * step, 8 * step + 8)
            batch = parts.task.train_batch(corpus, parts.model.config.sizes, config.seed, step, examples)
            names = examples if batch.examples is None else batch.examples.numpy()
            drop, n_targets = make_drop(0.1, config.seed, step, names), batch.targets.numel()
            losses += [float(held.learn(batch, drop, n_targets)), held.clip_and_measure(1.0)[0]]
            held.update(1 - step / 10) if kind is Captured else optimizer.step(torch.tensor(1 - step / 10).to(DEVICE))
            held.zero_grad()
    return held, losses


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_an_update_that_is_played_again_is_the_update(case, precision, sources):
    """Passes are recorded of whole rows, the optimizer's step of every task; all bits are the same."""
    played, ours = updated(Captured, case, sources, precision)
    plain, theirs = updated(Weights, case, sources, precision)
    assert not played._gives_up
    assert (played._passes is not None) == (case[1] in ("causal", "image"))
    assert ours == theirs
    for entry in played.catalogue:
        assert torch.equal(entry.parameter, plain.catalogue.entry(entry.address).parameter), entry.address


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_loss_is_the_loss(sources, tmp_path):
    given = asked(("fast", "causal"), sources, device=DEVICE, precision="fp32", watch="off", report=False)
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
def test_a_model_answers_on_the_device_as_on_the_processor(case, sources, tmp_path):
    run = qkv.train(out=tmp_path / "run", **asked(case, sources, device="cpu", precision="fp32", report=False))
    here = build(run.config.model, run.config.seed)
    there = build(run.config.model, run.config.seed).to(DEVICE)
    task, data = find_task(run.config.task), run.corpus()
    for batch in list(task.val_batches(data, run.config.model.sizes, 4))[:2]:
        mine = task.score(here, batch)
        theirs = task.score(there, batch.to(DEVICE))
        assert torch.allclose(mine.nats, theirs.nats.cpu(), atol=1e-4)
    assert Catalogue(there).addresses == Catalogue(here).addresses
