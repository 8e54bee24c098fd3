"""Every ingredient of the families is trained by a setting: it learns, resumes to the same bytes, is exported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import hashlib

import pytest
import torch

import qkv
from qkv.errors import ConfigError

GPT = {"positions": "rotary", "mlp": "gelu_tanh", "norm_eps": 1e-5, "tied": False}
SANDWICH = {"norm_place": "both", "mlp": "geglu_tanh", "embed_scale": True, "tied": True}
T5 = {"norm": "rms", "norm_place": "pre", "bias": False, "embed_scale": False, "head_bias": False, "scale": False}
MADE = {
    "sliding window": (("llama", "causal"), {"window": 5}, "L0.W_K", "mistral"),
    "soft caps": (("llama", "causal"), SANDWICH | {"score_cap": 3.0, "logit_cap": 4.0}, "L1.norm1_out.gain", "gemma2"),
    "alibi": (("gpt2", "causal"), {"positions": "alibi", "bias": False, "mlp": "gelu"}, "L0.W_Q", "mpt"),
    "parallel blocks": (
        ("gpt2", "causal"),
        GPT | {"parallel": True, "shared_norm": True, "attention_bias": "none", "head_bias": True},
        "L1.norm1.gain",
        "gptj",
    ),
    "norm of outputs": (
        ("llama", "causal"),
        {"norm_place": "out", "qk_norm": True, "qk_norm_whole": True},
        "L0.qnorm.gain",
        "olmo2",
    ),
    "multipliers": (
        ("llama", "causal"),
        {"embedding_factor": 3.0, "residual_factor": 0.5, "logit_factor": 0.25, "score_factor": 0.2},
        "W_E",
        "granite",
    ),
    "rotary in some layers": (("llama", "causal"), {"rope_layers": "rn", "tied": True}, "L1.W_Q", "smollm3"),
    "shared layers": (
        ("bert", "masked"),
        {"shared_layers": True, "head_transform": True, "d_embed": 16, "n_types": 1},
        "W_project",
        "albert",
    ),
    "biases by distance": (
        ("vaswani", "translate"),
        T5 | {"positions": "relative", "relative_buckets": 8, "logit_factor": 32**-0.5},
        "enc.W_rel",
        "t5",
    ),
    "one table of both sides": (
        ("vaswani", "translate"),
        T5 | {"positions": "relative", "mlp": "geglu_tanh", "tied": False, "shared_embedding": True},
        "dec.W_rel",
        "t5",
    ),
    "biases by distance alone": (("llama", "causal"), {"positions": "relative"}, "W_rel", "positions"),
    "sinks": (("llama", "causal"), {"sinks": True}, "L1.b_sink", "sinks"),
}


class _Stop(Exception):
    pass


def stop(told):
    if getattr(told, "step", 0) >= 10 and hasattr(told, "lr"):
        raise _Stop


def digest(run):
    return hashlib.sha256(run.folder.model.read_bytes()).hexdigest()


def ids_of(run):
    sizes = run.config.model.sizes
    ids = torch.randint(5, sizes.d_vocab, (2, 9), generator=torch.Generator().manual_seed(1))
    return (ids, ids[:, :6]) if run.task.name == "translate" else (ids,)


@pytest.mark.parametrize("name", MADE)
def test_an_ingredient_is_trained_resumed_and_exported(name, asked, tmp_path, monkeypatch):
    case, layout, address, wanted = MADE[name]
    given = asked(case, steps=12, report=False, watch="off")
    given["set"] |= {key if key in ("d_embed", "n_types") else f"layout.{key}": value for key, value in layout.items()}
    monkeypatch.setattr("qkv.recipe.samples._TOKENS", 1)
    run = qkv.train(**given, out=tmp_path / "whole")
    with pytest.raises(_Stop):
        qkv.train(**given, out=tmp_path / "cut", progress=stop)
    resumed = qkv.train(out=tmp_path / "cut", resume=True, report=False)
    assert resumed.summary["resumed_from_step"] > 0 and digest(resumed) == digest(run)
    assert not torch.equal(run.matrix(address), run.matrix(address, at=0))
    with torch.no_grad():
        own = run.model(*ids_of(run))
    if wanted in layout:
        with pytest.raises(ConfigError, match=f"cannot be exported: .*{wanted}"):
            run.export(tmp_path / "hf")
        return
    assert run.export(tmp_path / "hf").family.name == wanted
    with torch.no_grad():
        assert torch.equal(qkv.load(tmp_path / "hf").model(*ids_of(run)), own)
        theirs = run.to_transformers()(
            *ids_of(run)[:1], **dict(zip(["decoder_input_ids"], ids_of(run)[1:], strict=False))
        )
    assert (theirs.logits - own).abs().max() < 1e-5 * own.abs().max()
