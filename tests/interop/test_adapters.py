"""A LoRA adapter is merged into its model by the formula W + s B A, and what has another formula is refused."""

import json
import math

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkv
from qkv.cli import main
from qkv.errors import SourceError
from qkv.interop import read_checkpoint
from qkv.models import build
from qkv.models.matrices import Catalogue

SIZES = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)
KINDS = {
    "llama": (
        transformers.LlamaForCausalLM,
        SIZES,
        ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"),
    ),
    "gpt2": (
        transformers.GPT2LMHeadModel,
        dict(vocab_size=61, n_embd=24, n_layer=2, n_head=4, n_positions=32),
        ("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_proj"),
    ),
    "phi3": (transformers.Phi3ForCausalLM, SIZES | dict(pad_token_id=0), ("model.layers.1.self_attn.qkv_proj",)),
}
IDS = torch.randint(5, 61, (2, 9), generator=torch.Generator().manual_seed(1))


def normal(*shape, seed=0):
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    place = tmp_path_factory.mktemp("bases")
    for name, (cls, settings, _) in KINDS.items():
        torch.manual_seed(3)
        cls(cls.config_class(**settings)).save_pretrained(place / name)
    return place


def adapt(folder, base, modules, *, whole=(), **settings):
    """Write an adapter of rank 3 as peft does; returns the tensors of the merged model, by the formula."""
    folder.mkdir()
    state, tensors = load_file(base / "model.safetensors"), {}
    root = math.sqrt(3) if settings.get("use_rslora") else 3
    for module in modules:
        first, second = state[f"{module}.weight"].shape
        conv1d = "c_" in module.rpartition(".")[2]  # of GPT-2: [in, out]
        a, b = normal(3, first if conv1d else second), normal(second if conv1d else first, 3, seed=1)
        tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
        change = 5 / root * (b @ a)
        state[f"{module}.weight"] = state[f"{module}.weight"] + (change.t() if conv1d else change)
    for name in whole:
        state[name] = tensors[f"base_model.model.{name}"] = normal(*state[name].shape, seed=2)
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 3, "lora_alpha": 5, "loftq_config": {}}
    (folder / "adapter_config.json").write_text(json.dumps(said | {"use_dora": False, "bias": "none"} | settings))
    return state


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}], ids=["", "rslora"])
def test_an_adapter_is_merged_by_the_formula(name, settings, bases, tmp_path):
    cls, _, modules = KINDS[name]
    whole = ("model.norm.weight", "lm_head.weight") if name == "llama" else ()
    state = adapt(tmp_path / "a", bases / name, modules, whole=whole, **settings)
    theirs, imported = cls.from_pretrained(bases / name).eval(), read_checkpoint(tmp_path / "a")
    with torch.no_grad():
        before = theirs(IDS).logits
        theirs.load_state_dict(state, strict=False)
        wanted = theirs(IDS).logits
        model = build(imported.config, 0)
        Catalogue(model).load_state(imported.state)
        found = model(IDS)
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert (before - wanted).abs().max() > 0.1 * wanted.abs().max()
    assert "was merged into" in " ".join(imported.notes)


def test_the_base_is_what_the_adapter_names_or_what_is_given(bases, tmp_path, capsys):
    adapter = tmp_path / "a"
    adapt(adapter, bases / "llama", KINDS["llama"][2])
    merged = qkv.load(adapter).model.state_dict()
    said = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": "org/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    assert main(["import", str(adapter), "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "is an adapter (such as LoRA) to org/base, and not a model" in told and "--base DIR" in told
    assert not (tmp_path / "run").exists()
    assert main(["import", str(adapter), "--base", str(bases / "llama"), "--out", str(tmp_path / "run")]) == 0
    assert "was merged into" in capsys.readouterr().out
    again = qkv.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(again[name], values) for name, values in merged.items())
    for base, words in (("nowhere", "is not there"), (str(adapter), "not a model")):
        assert main(["import", str(adapter), "--base", base, "--out", str(tmp_path / "b")]) == 2
        assert words in capsys.readouterr().err
    assert main(["import", str(bases / "llama"), "--base", str(bases / "gpt2"), "--out", str(tmp_path / "b")]) == 2
    assert "is no adapter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "use_dora is true; DoRA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"lora_alpha": "high"}, "lora_alpha"),
    ],
)
def test_a_setting_with_another_formula_is_refused_by_its_name(settings, words, bases, tmp_path):
    adapt(tmp_path / "a", bases / "llama", KINDS["llama"][2], **settings)
    with pytest.raises(SourceError, match=words):
        read_checkpoint(tmp_path / "a")


def with_tensors(change):
    def damage(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return damage


A = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update({A.replace("layers.0", "layers.9"): t.pop(A)}), "changes model.layers.9.mlp.down_proj"),
        (lambda t: t.update({A: normal(3, 7)}), r"has a model.layers.0.mlp.down_proj.weight of \[24, 7\]"),
        (lambda t: t.update({A: normal(2, 40)}), "they do not fit"),
        (lambda t: t.pop(A), "one factor"),
        (lambda t: t.update({A: t[A] * torch.nan}), "NaN or infinity"),
        (lambda t: t.update({A.replace("A.weight", "magnitude_vector"): normal(24)}), "no factor A or B of LoRA"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_its_name(change, words, bases, tmp_path):
    adapt(tmp_path / "a", bases / "llama", KINDS["llama"][2])
    with_tensors(change)(tmp_path / "a")
    with pytest.raises(SourceError, match=words):
        read_checkpoint(tmp_path / "a")


def test_a_tied_table_is_left_to_peft(bases, tmp_path):
    adapt(tmp_path / "a", bases / "gpt2", (), whole=("transformer.wte.weight",))
    with pytest.raises(SourceError, match="W_E and W_U at once"):
        read_checkpoint(tmp_path / "a")
