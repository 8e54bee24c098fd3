"""A GGUF file holds what llama.cpp computes: read with the `gguf` package, its logits are the model's."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import ConfigError, RunFolderError
from qkv.interop.formats import gguf as written
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.layout import RopeScaling
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS
from qkv.tokenizers.tokenizer import fit_tokenizer

gguf = pytest.importorskip("gguf", reason="needs the dev extra (gguf)")

SIZES = Sizes(d_vocab=37, d_model=24, n_layers=2, n_heads=4, n_ctx=16, n_kv_heads=2, d_head=8, d_mlp=40)
WHOLE = dataclasses.replace(SIZES, n_kv_heads=4, d_head=6)
LLAMA3 = RopeScaling(kind="llama3", factor=4.0, slow=1.0, fast=4.0, original_ctx=8)
NEOX = Layout(
    norm="layer", mlp="gelu_tanh", bias=True, start="gpt2", rope_share=0.67, tied=False, norm_eps=1e-5, parallel=True
)
LAYOUTS = {
    "modern": ("qwen3", SIZES, PRESETS["modern"].layout),
    "modern tied": ("qwen3", SIZES, dataclasses.replace(PRESETS["modern"].layout, tied=True)),
    "llama": ("llama", WHOLE, PRESETS["llama"].layout),
    "llama slowed": ("llama", WHOLE, dataclasses.replace(PRESETS["llama"].layout, rope_scaling=LLAMA3)),
    "llama biased": ("llama", WHOLE, dataclasses.replace(PRESETS["llama"].layout, attention_bias="all")),
    "llama wide heads": ("llama", SIZES, PRESETS["llama"].layout),
    "qwen2": ("qwen2", WHOLE, dataclasses.replace(PRESETS["llama"].layout, attention_bias="qkv", rope_base=500.0)),
    "qwen2 linear": (
        "qwen2",
        WHOLE,
        dataclasses.replace(
            PRESETS["llama"].layout, attention_bias="qkv", rope_scaling=RopeScaling(kind="linear", factor=2.0)
        ),
    ),
    "gpt2": ("gpt2", WHOLE, PRESETS["gpt2"].layout),
    "gpt2 untied": ("gpt2", WHOLE, dataclasses.replace(PRESETS["gpt2"].layout, tied=False)),
    "neox": ("gptneox", WHOLE, NEOX),
    "neox in turn, tied": ("gptneox", WHOLE, dataclasses.replace(NEOX, parallel=False, tied=True)),
}


def made(sizes, layout, kind="CausalLM"):
    """A model whose every parameter counts."""
    model = build(ModelConfig(kind=kind, sizes=sizes, layout=layout), 3).eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def write(model, out, tokenizer=None, **more):
    entries = Catalogue(model)
    state = entries.state()
    state |= {name: state[first] for name, first in entries.aliases.items() if not entries.entry(name).transposed}
    return written.write_gguf(model.config, state, tokenizer, out, name="a model", **more)


class Read:
    """What llama.cpp computes from a file, written from its graphs of these architectures."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
        self.architecture = self.fields["general.architecture"]
        assert all(tensor.tensor_type == gguf.GGMLQuantizationType.F32 for tensor in reader.tensors)

    def setting(self, key, otherwise=None):
        return self.fields.get(f"{self.architecture}.{key}", otherwise)

    def norm(self, x, name):
        if self.architecture in ("gpt2", "gptneox"):
            weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
            return F.layer_norm(x, x.shape[-1:], weight, bias, self.setting("attention.layer_norm_epsilon"))
        eps = self.setting("attention.layer_norm_rms_epsilon")
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.tensors[f"{name}.weight"]

    def linear(self, x, name):
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def turned(self, x):
        """Rotary positions of [batch, pos, heads, d_head]: neighbors in llama, halves elsewhere."""
        n = self.setting("rope.dimension_count")
        if n is None:
            return x
        angles = self.setting("rope.freq_base") ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
        angles = angles / self.tensors.get("rope_freqs.weight", torch.ones(n // 2))
        angles = angles / self.setting("rope.scaling.factor", 1.0)
        angles = (torch.arange(x.shape[1])[:, None] * angles)[:, None].float()
        one, other = (x[..., 0:n:2], x[..., 1:n:2]) if self.architecture == "llama" else x[..., :n].chunk(2, dim=-1)
        pair = one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()
        new = torch.stack(pair, dim=-1).flatten(-2) if self.architecture == "llama" else torch.cat(pair, dim=-1)
        return torch.cat((new, x[..., n:]), dim=-1)

    def attention(self, x, block):
        n_q, n_kv = self.setting("attention.head_count"), self.setting("attention.head_count_kv")
        d = self.setting("attention.key_length")
        if f"{block}.attn_qkv.weight" in self.tensors:
            q, k, v = self.linear(x, f"{block}.attn_qkv").split([n_q * d, n_kv * d, n_kv * d], dim=-1)
        else:
            q, k, v = (self.linear(x, f"{block}.attn_{one}") for one in "qkv")
        q, k, v = (part.unflatten(-1, (-1, d)) for part in (q, k, v))
        if f"{block}.attn_q_norm.weight" in self.tensors:
            q, k = self.norm(q, f"{block}.attn_q_norm"), self.norm(k, f"{block}.attn_k_norm")
        q, k = self.turned(q), self.turned(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(n_q // n_kv, dim=1) for part in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        return self.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{block}.attn_output")

    def mlp(self, x, block):
        hidden = self.linear(x, f"{block}.ffn_up")
        gated = f"{block}.ffn_gate.weight" in self.tensors
        hidden = F.silu(self.linear(x, f"{block}.ffn_gate")) * hidden if gated else F.gelu(hidden, approximate="tanh")
        return self.linear(hidden, f"{block}.ffn_down")

    def logits(self, ids):
        x = self.tensors["token_embd.weight"][ids]
        if self.architecture == "gpt2":
            x = x + self.tensors["position_embd.weight"][: ids.shape[1]]
        for layer in range(self.setting("block_count")):
            block = f"blk.{layer}"
            attended = self.attention(self.norm(x, f"{block}.attn_norm"), block)
            beside = x if self.setting("use_parallel_residual") else x + attended
            x = x + attended + self.mlp(self.norm(beside, f"{block}.ffn_norm"), block)
        x = self.norm(x, "output_norm")
        may_be_tied = self.architecture != "gptneox"
        table = self.tensors.get("output.weight", self.tensors["token_embd.weight"] if may_be_tied else None)
        return F.linear(x, table)


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_computed_from_the_file_are_those_of_the_model(name, tmp_path):
    architecture, sizes, layout = LAYOUTS[name]
    model = made(sizes, layout)
    fit = write(model, tmp_path / "model.gguf")
    read = Read(tmp_path / "model.gguf")
    assert read.architecture == architecture and read.fields["general.name"] == "a model"
    assert not any("GELU" in note for note in fit.notes)
    known = gguf.constants.MODEL_TENSORS[gguf.MODEL_ARCH[architecture.upper()]]
    names = {gguf.TENSOR_NAMES[kind].format(bid=i) for kind in known for i in range(sizes.n_layers)}
    assert {name.rpartition(".")[0] for name in read.tensors} <= names
    ids = torch.randint(0, sizes.d_vocab, (2, 13), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        own = model(ids)
        assert (read.logits(ids) - own).abs().max() < 1e-5 * max(1.0, float(own.abs().max()))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_reads_the_file_to_the_same_logits(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    _, sizes, layout = LAYOUTS[name]
    model = made(sizes, layout)
    write(model, tmp_path / "model.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").eval()
    ids = torch.randint(0, sizes.d_vocab, (2, 13), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (theirs(ids).logits - model(ids)).abs().max() < 1e-4


GPT2, QWEN3 = PRESETS["gpt2"].layout, PRESETS["modern"].layout


@pytest.mark.parametrize(
    ("layout", "kind", "what"),
    [
        (PRESETS["fast"].layout, "CausalLM", "has not mlp = relu2"),
        (PRESETS["vaswani"].layout, "CausalLM", "writes no architecture of llama.cpp for this model"),
        (PRESETS["bert"].layout, "MaskedLM", "a CausalLM and no MaskedLM"),
        (dataclasses.replace(QWEN3, attention_bias="all"), "CausalLM", "has not attention_bias = all"),
        (dataclasses.replace(GPT2, mlp="relu"), "CausalLM", "gpt2 has not mlp = relu"),
        (dataclasses.replace(GPT2, scale=False), "CausalLM", "scale = False"),
    ],
)
def test_a_layout_that_llama_cpp_does_not_compute_is_refused_by_its_ingredient(layout, kind, what, tmp_path):
    with pytest.raises(ConfigError, match=what) as refused:
        write(made(WHOLE, layout, kind), tmp_path / "model.gguf")
    assert "--format onnx" in str(refused.value) and not list(tmp_path.iterdir())


def test_exact_gelu_is_written_with_a_note(tmp_path):
    layout = dataclasses.replace(NEOX, mlp="gelu")
    assert "GELU" in write(made(WHOLE, layout), tmp_path / "model.gguf").notes[0]


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    (tmp_path / "model.gguf").write_text("mine")
    with pytest.raises(RunFolderError, match="is there already"):
        write(made(WHOLE, PRESETS["llama"].layout), tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_text() == "mine"


TEXTS = ["the cat sat on the mat, and the cat's hat was 12 years old", "the cat and the dog"] * 20


def test_byte_level_bpe_is_written_as_the_tokenizer_of_gpt2_with_every_row_of_the_table(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    tokenizer = fit_tokenizer("bpe", TEXTS, 290, end=True)
    sizes = dataclasses.replace(WHOLE, d_vocab=tokenizer.d_vocab + 3)
    fit = write(made(sizes, PRESETS["gpt2"].layout), tmp_path / "model.gguf", tokenizer)
    fields = Read(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"] == "gpt2" and fields["tokenizer.ggml.pre"] == "gpt-2" and fit.notes == ()
    assert len(fields["tokenizer.ggml.tokens"]) == sizes.d_vocab
    end = tokenizer.end_id
    assert fields["tokenizer.ggml.eos_token_id"] == end and fields["tokenizer.ggml.add_bos_token"] is False
    types = fields["tokenizer.ggml.token_type"]
    assert types[end] == gguf.TokenType.CONTROL and types[end + 1] == gguf.TokenType.NORMAL
    assert types[-1] == gguf.TokenType.UNUSED
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in (TEXTS[0], " two  spaces\n\nand é 猫"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()


def test_without_an_end_token_a_note_says_what_llama_cpp_does(tmp_path):
    tokenizer = fit_tokenizer("bpe", TEXTS, 290)
    sizes = dataclasses.replace(WHOLE, d_vocab=tokenizer.d_vocab)
    fit = write(made(sizes, PRESETS["gpt2"].layout), tmp_path / "model.gguf", tokenizer)
    assert "--ignore-eos" in fit.notes[0]


@pytest.mark.parametrize("kind", ["word", "char", "byte", "unigram"])
def test_a_tokenizer_that_llama_cpp_does_not_have_is_not_named_as_one(kind, tmp_path):
    tokenizer = fit_tokenizer(kind, TEXTS, 60 if kind == "unigram" else 0)
    sizes = dataclasses.replace(WHOLE, d_vocab=tokenizer.d_vocab)
    fit = write(made(sizes, PRESETS["llama"].layout), tmp_path / "model.gguf", tokenizer)
    fields = Read(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"] == "none" and fields["llama.vocab_size"] == tokenizer.d_vocab
    assert fields["tokenizer.huggingface.json"] == tokenizer.to_json()
    assert kind in fit.notes[0] and "token ids" in fit.notes[0]
