"""An optimizer and a model class of one's own: their updates, what a run records, every mistake in words."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import ConfigError, RunFolderError
from qkv.extensions import load
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import OwnRule, own_class, settings_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SET = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the modules of the documentation in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for module in EXAMPLES.glob("*.py"):
        (tmp_path / module.name).write_text(module.read_text())
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
    own_class.cache_clear()
    return tmp_path


def train(text: Path, out: str, settings: dict, **more) -> "qkv.Run":
    how = {"steps": 24, "watch": "off", "report": False, "tokenizer": "char"} | more
    return qkv.train(text, out=out, set=SET | settings, **how)


def state(run: "qkv.Run") -> dict:
    return {name: p.detach() for name, p in run.model.named_parameters()}


def test_an_optimizer_of_ones_own_makes_its_own_updates(folder: Path) -> None:
    """Lion by its formula in NumPy: W <- (1 - lr wd) W - lr sign(b1 m + (1 - b1) G); m <- b2 m + (1 - b2) G."""
    config = OptimizerConfig(kind="lion:Lion", lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.1)
    draws = np.random.default_rng(0)
    W = draws.standard_normal((4, 3)).astype(np.float32)
    weight, m = torch.nn.Parameter(torch.from_numpy(W.copy())), np.zeros_like(W)
    rule = OwnRule({"W": weight}, config, weight_decay=config.weight_decay)
    for step in range(5):
        G, lr = draws.standard_normal(W.shape).astype(np.float32), 0.01 / (step + 1)
        weight.grad = torch.from_numpy(G)
        rule.step(1 / (step + 1))
        W, m = (1 - lr * 0.1) * W - lr * np.sign(0.9 * m + 0.1 * G), 0.99 * m + 0.01 * G
    assert np.allclose(weight.detach().numpy(), W, atol=1e-6) and settings_of("lion:Lion") == {
        "lr", "beta1", "beta2", "weight_decay"
    }  # fmt: skip


def test_an_optimizer_of_torch_ends_where_the_built_in_one_does(folder: Path, small_text: Path) -> None:
    settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
    ours = train(small_text, "ours", settings | {"optimizer.kind": "adamw"})
    theirs = train(small_text, "theirs", settings | {"optimizer.kind": "torch.optim:AdamW"})
    for name, values in state(ours).items():
        assert torch.allclose(values, state(theirs)[name], atol=2e-5), name


def test_a_run_records_its_own_code_and_resumes_exactly(folder: Path, small_text: Path) -> None:
    def lose(told) -> None:
        if getattr(told, "step", 0) >= 18 and hasattr(told, "lr"):
            raise KeyboardInterrupt

    settings = {"optimizer.kind": load("lion:Lion", "optimizer.kind"), "model.kind": "cubic:CubicLM"}
    whole = train(small_text, "whole", settings)
    assert whole.config.training.optimizer.kind == "lion:Lion" and whole.config.training.optimizer.beta2 == 0.99
    code = whole.folder.read_manifest()["code"]
    assert set(code) == {"lion:Lion", "cubic:CubicLM"} and all(len(sha256) == 64 for sha256 in code.values())
    with pytest.raises(KeyboardInterrupt):
        train(small_text, "killed", settings, progress=lose)
    made = (folder / "lion.py").read_text()
    (folder / "lion.py").write_text(made + "\n# another file\n")
    with pytest.raises(RunFolderError, match=r"killed was trained with lion:Lion as of sha256 \w+..., and its file is"):
        qkv.train(out="killed", resume=True)
    (folder / "lion.py").write_text(made)
    resumed = qkv.train(out="killed", resume=True, report=False)
    assert resumed.summary["resumed_from_step"] == 16
    assert all(torch.equal(values, state(resumed)[name]) for name, values in state(whole).items())
    assert qkv.api.verify("killed", updates=None).is_whole


def test_what_is_recorded_is_the_hash_of_the_code_that_ran(folder: Path, small_text: Path) -> None:
    """A file changed while its code trains, and one changed between two trainings of one Python."""
    made = (folder / "lion.py").read_text()

    def edit(told) -> None:
        (folder / "lion.py").write_text(made + "\n# another file\n")

    first = train(small_text, "first", {"optimizer.kind": "lion:Lion"}, progress=edit)
    source = json.loads((folder / "first" / "source.json").read_text())
    wanted = {"lion:Lion": hashlib.sha256(made.encode()).hexdigest()}
    assert first.folder.read_manifest()["code"] == source["code"] == wanted
    for settings in ({"optimizer.kind": "lion:Lion"}, {"optimizer.kind": "lion:Lion", "lr": 0.02}):
        with pytest.raises(ConfigError, match=r"lion:Lion was changed after this Python imported it; start Python"):
            train(small_text, "second", settings)
    assert not (folder / "second").exists()
    (folder / "lion.py").write_text(made)
    assert train(small_text, "second", {"optimizer.kind": "lion:Lion"}).folder.read_manifest()["code"] == wanted


def test_a_model_of_ones_own_is_trained_and_opened_with_its_module_alone(
    folder: Path, small_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(small_text, "mine", {"model.kind": "cubic:CubicLM", "mlp": "relu"})
    usual = train(small_text, "usual", {"mlp": "relu"})
    assert type(run.model).__name__ == "CubicLM" and run.config.model.kind == "CausalLM"
    assert not torch.equal(state(run)["blocks.0.mlp.W_in"], state(usual)["blocks.0.mlp.W_in"])
    ids = torch.tensor([[1, 2, 3]])
    x = run.model.blocks[0].norm2(torch.randn(1, 3, 16))
    mlp = run.model.blocks[0].mlp
    assert torch.allclose(mlp(x), (x @ mlp.W_in).clamp(min=0) ** 3 @ mlp.W_out)
    names = run.model.activation_names()
    recorded = run.model.forward_recorded(ids)
    assert torch.allclose(run.model(ids), recorded[0], atol=1e-5) and "L0.mlp_out" in names
    assert run.predict(["the"])[0] == qkv.load("mine").predict(["the"])[0]
    with pytest.raises(ConfigError, match=r"mine is a model of your own class cubic:CubicLM"):
        run.export("out")
    (folder / "cubic.py").unlink()
    monkeypatch.delitem(sys.modules, "cubic")
    with pytest.raises(ConfigError, match=r"model.kind is 'cubic:CubicLM', but there is no cubic.py in this folder"):
        qkv.load("mine").model  # noqa: B018


BROKEN = """
import torch
from qkv.models import CausalLM
class Rate(torch.optim.Optimizer):
    def __init__(self, params, rate): super().__init__(params, {})
class Fails(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0): super().__init__(params, {"lr": lr})
    def step(self, closure=None): raise ValueError("not today")
class Forgets(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0): super().__init__(params, {"lr": lr}); self.n = 0
    def step(self, closure=None):
        self.n += 1
        for p in self.param_groups[0]["params"]: p.sub_(p.grad * self.n)
class Other(CausalLM):
    def __init__(self, sizes): pass
def function(): pass
"""


@pytest.mark.parametrize(
    ("setting", "given", "said"),
    [
        ("optimizer.kind", "adamv", r"unknown value for training.optimizer.kind 'adamv'; did you mean 'adamw'\?"),
        ("optimizer.kind", "broken:", r"optimizer.kind is 'broken:'; expected module:name, such as lion:Lion"),
        ("optimizer.kind", "nowhere:X", "there is no nowhere.py in this folder, and nowhere is not installed"),
        ("optimizer.kind", "broken:Rat", r"unknown name in broken 'Rat'; did you mean 'Rate'\?"),
        ("optimizer.kind", "broken:function", "broken:function is a function; expected a class"),
        ("optimizer.kind", "broken:Other", "no optimizer; expected a subclass of torch.optim.Optimizer"),
        ("optimizer.kind", "broken:Rate", r"it is Rate\(params, rate\); expected \(params, lr, ...\)"),
        ("optimizer.kind", "broken:Fails", "broken:Fails fails on a 3 x 2 matrix: ValueError: not today"),
        ("optimizer.kind", "broken:Forgets", "could not be resumed exactly: it keeps numbers outside self.state"),
        ("optimizer.kind", "syntax:X", "syntax cannot be imported: SyntaxError"),
        ("model.kind", "broken:Rate", "broken:Rate', which is not a subclass of qkv.models.CausalLM"),
        ("model.kind", "broken:Other", r"whose constructor is Other\(sizes\); expected \(config, \*, seed\)"),
        ("optimizer.kind", lambda params, lr: None, "other processes could not find; define it at the top of a file"),
    ],
)
def test_mistakes_are_said_before_anything_is_trained(
    folder: Path, small_text: Path, setting: str, given: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.py").write_text(BROKEN)
    (folder / "syntax.py").write_text("class X(:")
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(ConfigError, match=said):
        train(small_text, "none", {setting: given})
    assert not (folder / "none").exists()


def test_a_setting_that_the_class_does_not_take_is_refused(folder: Path, small_text: Path) -> None:
    with pytest.raises(ConfigError, match=r"eps=1e-06 has no effect with optimizer.kind=lion:Lion, whose constructor"):
        train(small_text, "none", {"optimizer.kind": "lion:Lion", "eps": 1e-6})
