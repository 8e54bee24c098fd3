"""LoRA as a change: W = W_start + (alpha / r) A B, held against autograd and torch's AdamW on that sum written out."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import qkv
from qkv import api
from qkv.changes import plan_changes
from qkv.cli import main
from qkv.errors import ChangeError, ConfigError
from qkv.folder.run_folder import RunFolder
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.training.checkpoint import latest_valid
from qkv.training.config import OptimizerConfig
from qkv.training.distributed.shards import check_shard
from qkv.training.optimizers import make_optimizer
from qkv.training.precision import Machine

SIZES = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, n_ctx=8, d_mlp=24)
CHANGES = ["L*.W_[QV],L1.W_in=lora(3,alpha=6)", "W_E=lora(2)"]
SCALES = {"W_E": 1.0, "L0.W_Q": 2.0, "L0.W_V": 2.0, "L1.W_Q": 2.0, "L1.W_V": 2.0, "L1.W_in": 2.0}
SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32}


def make(dtype=torch.float64, **layout):
    layout = {"start": "normal", "tied": False, "bias": True, "norm": "layer", "mlp": "gelu"} | layout
    model = build(ModelConfig(kind="CausalLM", sizes=SIZES, layout=Layout(**layout)), seed=3)
    return Catalogue(model.to(dtype))


def loss_of(model, step):
    ids = torch.from_numpy(generator("batch", step).integers(0, 13, (4, 9)))
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def written_out(model, start, factors):
    """The same model with W_start + s A B in the place of each matrix."""
    paths = dict(zip(Catalogue(model).addresses, dict(model.named_parameters()), strict=True))

    def forward(ids):
        weights = {paths[a]: start[a] + SCALES[a] * factors[f"{a}.lora_A"] @ factors[f"{a}.lora_B"] for a in SCALES}
        return functional_call(model, weights, (ids,))

    return forward


def test_gradients_of_the_factors_are_those_of_autograd():
    catalogue = make()
    start = {address: values.clone() for address, values in catalogue.state().items()}
    plan = plan_changes(CHANGES, catalogue, 0)
    low_rank = plan.low_rank()
    assert set(low_rank) == set(SCALES)
    for matrix in low_rank.values():
        assert not matrix.b.any() and matrix.a.abs().max() <= len(matrix.a) ** -0.5 and matrix.a.std() > 0
        matrix.b.normal_(generator=torch.Generator().manual_seed(1))
        matrix.merge()
    factors = {n: f.clone().requires_grad_() for m in low_rank.values() for n, f in m.factors.items()}
    loss_of(written_out(catalogue.model, start, factors), 0).backward()
    loss = loss_of(catalogue.model, 0)
    loss.backward()
    for matrix in low_rank.values():
        matrix.take_gradient()
        for name, factor in matrix.factors.items():
            torch.testing.assert_close(factor.grad, factors[name].grad, rtol=1e-9, atol=1e-12, msg=name)
            assert factor.grad.abs().max() > 1e-6


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_updates_are_those_of_torch_s_adamw_on_the_factors(kind):
    """Five clipped updates with decay, all else frozen; under Muon factors go by AdamW as well."""
    catalogue = make()
    plan = plan_changes([f"{','.join(SCALES)}=only", *CHANGES], catalogue, 0)
    config = OptimizerConfig(kind=kind, lr=0.02, weight_decay=0.1, clip=0.05)
    optimizer = make_optimizer(catalogue, config, low_rank=plan.low_rank())
    start = {address: values.clone() for address, values in catalogue.state().items()}
    theirs = {n: f.clone().requires_grad_() for m in plan.low_rank().values() for n, f in m.factors.items()}
    torch_s = torch.optim.AdamW(
        theirs.values(), lr=0.02, betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=0.1
    )
    plain = written_out(make().model, start, theirs)
    for step in range(5):
        plan.before_step(step)
        loss_of(catalogue.model, step).backward()
        norm, each = optimizer.clip_and_measure(config.clip)
        loss_of(plain, step).backward()
        expected = torch.nn.utils.get_total_norm([factor.grad for factor in theirs.values()])
        assert norm == pytest.approx(float(expected), rel=1e-9) and norm > config.clip
        for factor in theirs.values():
            factor.grad *= config.clip / expected
        assert sum(each[each == each] ** 2) == pytest.approx(norm**2)
        torch_s.step()
        optimizer.step(1.0)
        for rule in (torch_s, optimizer):
            rule.zero_grad()
    for address, values in catalogue.state().items():
        a, b = (theirs.get(f"{address}.lora_{name}") for name in "AB")
        moved = start[address] if a is None else start[address] + SCALES[address] * a @ b
        torch.testing.assert_close(values, moved.detach(), rtol=1e-9, atol=1e-12)
        assert (a is None) == torch.equal(values, start[address])


def test_factors_are_added_to_the_weights_that_training_starts_from():
    """Also where those were loaded after the factors were made, as those of a checkpoint are."""
    catalogue, other = make(), make(start="gpt2")
    optimizer = make_optimizer(catalogue, OptimizerConfig(), low_rank=plan_changes(CHANGES, catalogue, 0).low_rank())
    catalogue.load_state(other.state())
    loss_of(catalogue.model, 0).backward()
    optimizer.clip_and_measure(0.0)
    optimizer.step(1e-6)
    for address in SCALES:
        assert not torch.equal(catalogue.state()[address], other.state()[address])
        torch.testing.assert_close(catalogue.state()[address], other.state()[address], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["L0.W_Q=lora(17)"], "L0.W_Q is 16 x 16; expected r up to 16"),
        (["L0.W_K=lora(9)"], "L0.W_K is 16 x 8; expected r up to 8"),
        (["L0.b_Q=lora(1)"], "L0.b_Q is a vector of 16 numbers; expected whole matrices"),
        (["L0.H1.W_Q=lora(1)"], "L0.H1.W_Q is a part of L0.W_Q; expected whole matrices"),
        (["W_E=lora(1)"], "W_E and W_U are one matrix; expected whole matrices of their own"),
        (["L1.W_Q=share(L0.W_Q)", "L0.W_Q=lora(2)"], "lora must be the only change of its matrix"),
        (["L0.W_Q=lora(2)", "L1.W_Q=share(L0.W_Q)"], "L0.W_Q has another change, L0.W_Q=lora(2)"),
        (["L0.W_Q=lora(2)", "L*.W_Q=lora(3)"], "L0.W_Q has another change, L0.W_Q=lora(2)"),
        (["L0.W_Q=scale(2)", "L0.W_Q=lora(2)"], "L0.W_Q has another change, L0.W_Q=scale(2.0)"),
        (["L0.W_Q=lora(2)", "L0.H1.W_Q=freeze@3.."], "L0.W_Q has another change, L0.W_Q=lora(2)"),
        (["L0.W_K=only", "L0.W_Q=lora(2)"], "L0.W_Q has another change, L0.W_K=only"),
    ],
)
def test_what_cannot_be_factored_is_one_sentence(changes, says):
    with pytest.raises(ChangeError) as caught:
        plan_changes(changes, make(tied=True), 0)
    assert says in str(caught.value)


def test_it_has_no_effect_on_a_model_that_is_not_trained_and_is_not_shared_out():
    with pytest.raises(ChangeError, match="nothing is trained here"):
        plan_changes(["L0.W_Q=lora(2)"], make(), 0, looking=True)
    with pytest.raises(ConfigError, match=r"--shard cannot train L0.W_Q by lora"):
        check_shard(Machine(ranks=2, shard=True), "", "L0.W_Q")


# whole runs


@pytest.fixture(scope="module")
def made(small_text: Path, tmp_path_factory: pytest.TempPathFactory):
    """A short run, and one from it that trains two matrices by factors alone."""
    place = tmp_path_factory.mktemp("lora")
    given = {"tokenizer": "char", "set": SMALL, "report": False, "threads": 1, "preset": "llama"}
    base = qkv.train(small_text, out=place / "base", steps=8, **given)
    run = qkv.train(small_text, out=place / "lora", from_run=str(base.path), **LORA)
    return base, run, small_text


LORA = {"change": ["L0.W_[QV]=lora(4,alpha=8)"], "only": ["L0.W_[QV]"], "steps": 24, "report": False}


def test_a_run_moves_its_matrices_by_their_product_alone(made):
    base, run, _ = made
    checkpoint = latest_valid(run.folder)[0]
    kept, last = checkpoint.optimizer_state(), qkv.load(run.path, weights="last").catalogue().state()
    for address, before in base.catalogue().state().items():
        a, b = (kept.get(f"{address}.lora_{name}") for name in "AB")
        product = torch.zeros_like(before) if a is None else 2 * a @ b
        torch.testing.assert_close(last[address], before + product, rtol=1e-6, atol=1e-7)
        assert (a is not None) == (address in ("L0.W_Q", "L0.W_V"))
        assert product.any() == (a is not None)
    assert {f"L0.W_Q.lora_{name}" for name in ("start", "A", "B", "A.exp_avg", "B.exp_avg_sq")} <= kept.keys()
    assert api.verify(run.path).is_whole


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(made, tmp_path: Path):
    base, run, text = made

    class Killed(Exception):
        pass

    def stop(told):
        if getattr(told, "step", 0) == 18:
            raise Killed

    with pytest.raises(Killed):
        qkv.train(text, out=tmp_path / "again", from_run=str(base.path), progress=stop, **LORA)
    again = qkv.train(out=tmp_path / "again", resume=True)
    assert 0 < again.summary["resumed_from_step"] < 18
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (latest_valid(RunFolder(path))[0].path / name for path in (run.path, tmp_path / "again"))
        assert one.read_bytes() == other.read_bytes()


def test_an_export_has_the_merged_matrix_and_the_same_logits(made, tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    run = made[1]
    run.export(tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(12)[None] % 7
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, run.model(ids), rtol=1e-5, atol=1e-5)
    run.export(tmp_path / "run.gguf", format="gguf")
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    tensors = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "run.gguf").tensors}
    merged = run.catalogue().state()["L0.W_V"]
    torch.testing.assert_close(torch.from_numpy(tensors["blk.0.attn_v.weight"].copy()), merged.T, rtol=0, atol=0)


def test_show_says_which_matrices_are_lora(made, capsys: pytest.CaptureFixture[str]):
    run = made[1]
    assert run.lora == dict.fromkeys(["L0.W_Q", "L0.W_V"], "L0.W_[QV]=lora(4,alpha=8.0)") and made[0].lora == {}
    assert main(["show", str(run.path), "--all"]) == 0
    shown = capsys.readouterr().out
    assert "L0.W_Q (lora)" in shown and "L0.W_K (lora)" not in shown and "every measure is of their sum" in shown
    assert main(["show", str(run.path), "L0.W_V"]) == 0
    assert "Trained by L0.W_[QV]=lora(4,alpha=8.0)" in capsys.readouterr().out
    assert main(["show", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lora"] == run.lora
