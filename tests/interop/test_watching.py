"""A training in somebody else's loop gives the same run folder, and the same numbers, as a training of ours."""

import contextlib
import copy
import io
import math
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv
from qkv.api import verify
from qkv.changes import RunMatrix
from qkv.cli import main
from qkv.errors import ConfigError, RunFolderError, UserError
from qkv.interop.mirror import mirror_of
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.presets import find
from qkv.recipe import RunConfig, run_matrix
from qkv.tokenizers.tokenizer import fit_tokenizer


class NanoBlock(nn.Module):
    """The names of nanoGPT's block, by its source."""

    def __init__(self, d, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(d, 3 * d), "c_proj": nn.Linear(d, d)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(d, 4 * d), "c_proj": nn.Linear(4 * d, d)})

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in self.attn.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        x = x + self.attn.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class Nano(nn.Module):
    """The names of nanoGPT's model, its output tied."""

    def __init__(self, d=16, n_head=2, d_vocab=23, n_ctx=12):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(d_vocab, d),
                "wpe": nn.Embedding(n_ctx, d),
                "h": nn.ModuleList(NanoBlock(d, n_head) for _ in range(2)),
                "ln_f": nn.LayerNorm(d),
            }
        )
        self.lm_head = nn.Linear(d, d_vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe.weight[: ids.shape[1]]
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def batches(n, d_vocab=23):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n):
        yield torch.randint(0, d_vocab, (4, 9), generator=generator)


def loop(model, optimizer, n=6, watcher=None):
    for ids in batches(n):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if watcher is not None:
            watcher.log(loss=loss.detach())
        optimizer.step()


def test_two_lines_in_a_loop_of_nanogpt_give_a_run_with_split_matrices(tmp_path, capsys):
    torch.manual_seed(0)
    model = Nano()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = model.transformer.h[1].attn.c_attn.weight.detach().clone()
    watcher = qkv.watch(model, optimizer, tmp_path / "run", level="full")
    loop(model, optimizer, watcher=watcher)
    assert watcher.close() == tmp_path / "run"
    run = qkv.load(tmp_path / "run")
    q, k, v = model.transformer.h[1].attn.c_attn.weight.detach().chunk(3)
    for address, part in (("L1.W_Q", q), ("L1.W_K", k), ("L1.W_V", v)):
        torch.testing.assert_close(run.catalogue().entry(address).parameter.detach(), part.t(), rtol=0, atol=0)
        at = run.history(address, "drift")[address]
        moved = (part - start.chunk(3)["QKV".index(address[-1])]).norm()
        assert at.value[-1] == pytest.approx(float(moved / start.chunk(3)["QKV".index(address[-1])].norm()), rel=1e-4)
    head = run.matrix("L1.H1.W_Q")
    torch.testing.assert_close(head, q[8:].t(), rtol=0, atol=0)
    assert run.matrix("L0.H1.OV").singular_values().shape[-1] == 8
    assert run.catalogue(at=0).entry("L1.W_Q").parameter.equal(start[:16].t())
    assert list(run.snapshots()) == [0, 6] and run.matrix("L1.W_Q", at=6).equal(run.matrix("L1.W_Q"))
    with run.telemetry() as telemetry:
        steps = telemetry.steps()
    assert steps.step.tolist() == [1, 2, 3, 4, 5, 6] and np.isfinite(steps.loss).all()
    assert main(["show", str(run.path)]) == 0 and main(["report", str(run.path)]) == 0
    for step in ((), ("--at", "0"), ("--at", "6"), ("--at", "4")):
        assert main(["show", str(run.path), "L0.W_Q", *step]) == 0
    assert main(["predict", str(run.path), "a"]) == 2 and "not its code" in capsys.readouterr().err
    assert main(["export", str(run.path), "--out", str(tmp_path / "out")]) == 2 and not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="not its code"):
        run.model(torch.zeros(1, 3, dtype=torch.int64))
    capsys.readouterr()


def test_the_numbers_are_those_of_the_matrices_and_gradients_at_each_step(tmp_path):
    torch.manual_seed(1)
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = qkv.watch(model, optimizer, tmp_path / "run")
    weight = model.transformer.h[0].attn.c_attn.weight
    norms, grads, ratios = [], [], []
    for ids in batches(5):
        before = weight.detach()[16:32].clone()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        grads.append(float(weight.grad[16:32].norm()))
        optimizer.step()
        after = weight.detach()[16:32]
        norms.append(float(after.norm()))
        ratios.append(float((after - before).norm() / after.norm()))
    run = qkv.load(watcher.close())
    for measure, expected in (("grad_norm", grads), ("update_ratio", ratios), ("norm", norms)):
        series = run.history("L0.W_K", measure)["L0.W_K"]
        values = dict(zip(series.step.tolist(), series.value.tolist(), strict=True))
        np.testing.assert_allclose([values[step] for step in range(1, 6)], expected, rtol=2e-5)


def test_watching_changes_no_bit_of_the_training(tmp_path):
    torch.manual_seed(2)
    one = Nano()
    two = copy.deepcopy(one)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (one, two)]
    with qkv.watch(one, optimizers[0], tmp_path / "run", level="full"):
        loop(one, optimizers[0])
    loop(two, optimizers[1])
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_model_of_transformers_is_watched_and_can_be_run_by_qkv(tmp_path, theirs):
    model = theirs.make_theirs("gpt2", torch.float32).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokenizer = theirs.save_tokenizer(tmp_path / "tok")
    watcher = qkv.watch(model, optimizer, tmp_path / "run", tokenizer=tokenizer)
    for ids in batches(4, tokenizer.d_vocab):
        out = model(input_ids=ids, labels=ids)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    watcher.log(val_loss=3.25)
    run = qkv.load(watcher.close())
    with torch.no_grad():
        gap = (run.model(ids) - model.eval()(ids).logits).abs().max()
    assert gap < 1e-5
    with run.telemetry() as telemetry:
        steps = telemetry.steps()
    assert np.isfinite(steps.loss).all() and steps.tokens.tolist() == [36, 72, 108, 144]
    assert run.loss == 3.25 and run.summary["val_loss"] == 3.25
    assert len(run.predict(["the cat"])) == 1


def test_the_best_weights_are_those_of_the_lowest_loss_that_was_logged(theirs, tmp_path):
    model = theirs.make_theirs("gpt2", torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokenizer = theirs.save_tokenizer(tmp_path / "tok")
    watcher = qkv.watch(model, optimizer, tmp_path / "run", tokenizer=tokenizer)
    kept = {}
    for step, ids in enumerate(batches(4, tokenizer.d_vocab), 1):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        kept[step] = model.transformer.wte.weight.detach().clone()
        if step in (2, 4):
            watcher.log(val_loss=1.5 if step == 2 else 9.0)
    folder = watcher.close()
    assert torch.equal(qkv.load(folder).catalogue().view("W_E"), kept[2])
    assert torch.equal(qkv.load(folder, weights="last").catalogue().view("W_E"), kept[4])


def test_names_of_ones_own_model(tmp_path, capsys):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(23, 16)
            self.blocks = nn.ModuleList(
                nn.ModuleDict({"qkv": nn.Linear(16, 16 + 8), "out": nn.Linear(16, 16)}) for _ in range(2)
            )
            self.end = nn.Linear(16, 23)

        def forward(self, ids):
            x = self.tok(ids)
            for block in self.blocks:
                q, k, v = block.qkv(x).split([16, 4, 4], -1)
                x = x + block.out(q * F.pad(k + v, (0, 12)))
            return self.end(x)

    names = {
        "tok.weight": "W_E",
        "blocks.{L}.qkv.weight": "L{L}.W_Q, L{L}.W_K, L{L}.W_V",
        "blocks.{L}.out.weight": "L{L}.W_O",
        "end.weight": "W_U",
    }
    model = Own()
    mirror = mirror_of(model, names=names, n_heads=4, n_kv_heads=1)
    assert mirror.unnamed == [
        "blocks.0.qkv.bias",
        "blocks.0.out.bias",
        "blocks.1.qkv.bias",
        "blocks.1.out.bias",
        "end.bias",
    ]
    assert mirror.catalogue.addresses == [
        "W_E",
        "L0.W_Q",
        "L0.W_K",
        "L0.W_V",
        "L0.W_O",
        "L1.W_Q",
        "L1.W_K",
        "L1.W_V",
        "L1.W_O",
        "W_U",
    ]
    assert mirror.catalogue.view("L1.W_Q").shape == (4, 16, 4) and mirror.catalogue.view("L1.W_K").shape == (1, 16, 4)
    assert mirror.catalogue.view("L1.KV0.W_V").equal(model.blocks[1].qkv.weight[20:].t())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with qkv.watch(model, optimizer, tmp_path / "run", names=names, n_heads=4, n_kv_heads=1):
        loop(model, optimizer, 2)
    head = qkv.load(tmp_path / "run").matrix("L0.H3.W_K")
    assert head.shape == (16, 4)
    assert run_matrix(RunMatrix(str(tmp_path / "run"), "L0.H3.W_K", None)).equal(head)  # as load(RUN:...) asks
    assert main(["show", str(tmp_path / "run"), "L0.H3.QK"]) == 0
    told = capsys.readouterr().out
    assert "not known" in told and "Positions turn" not in told  # it has none


def test_a_gate_beside_the_way_in_is_halved_and_not_divided_into_heads():
    model = nn.ModuleDict({"w12": nn.Linear(16, 2 * 13)})
    mirror = mirror_of(model, names={"w12.weight": "L0.W_gate, L0.W_in"}, n_heads=8)
    assert mirror.catalogue.view("L0.W_in").equal(model["w12"].weight[13:].t())
    with pytest.raises(ConfigError, match=r"w12.weight is \[26, 16\], which does not divide into 3 parts"):
        mirror_of(model, names={"w12.weight": "L0.W_gate, L0.W_in, L0.W_out"}, n_heads=8)
    with pytest.raises(ConfigError, match="heads"):
        mirror_of(model, names={"w12.weight": "L0.W_Q, L0.W_in"}, n_heads=13)


def test_a_text_cannot_be_asked_of_a_model_whose_code_is_elsewhere(tmp_path, capsys):
    model = nn.ModuleDict({"tok": nn.Embedding(23, 16), "end": nn.Linear(16, 23)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = fit_tokenizer("char", ["the cat sat"], 0)
    names = {"tok.weight": "W_E", "end.weight": "W_U", "end.bias": "b_U"}
    qkv.watch(model, optimizer, tmp_path / "run", names=names, n_heads=1, tokenizer=words).close()
    run = qkv.load(tmp_path / "run")
    for ask in (run.gradient_path, run.logit_lens, run.step, lambda text: run.embed([text])):
        with pytest.raises(ConfigError, match="not its code"):
            ask("the cat")
    for command in ("step", "embed"):
        assert main([command, str(run.path), "the cat"]) == 2
        assert "not its code" in capsys.readouterr().err


def test_the_encoder_of_torch_is_known():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mirror = mirror_of(model)
    assert mirror.unnamed == []
    assert mirror.catalogue.view("L1.H3.W_V").equal(model.layers[1].self_attn.in_proj_weight[32:][12:].t())
    assert mirror.catalogue.view("L0.W_in").equal(model.layers[0].linear1.weight.t())


def test_what_cannot_be_watched_is_said(tmp_path, theirs):
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="give names="):
        qkv.watch(model, optimizer, tmp_path / "run")
    with pytest.raises(ConfigError, match="no address of a matrix"):
        qkv.watch(model, optimizer, tmp_path / "run", names={"0.weight": "L0.W_banana"}, n_heads=1)
    with pytest.raises(ConfigError, match="no parameter of the model has one of these names"):
        qkv.watch(model, optimizer, tmp_path / "run", names={"1.weight": "L0.W_Q"}, n_heads=1)
    with pytest.raises(ConfigError, match="give n_heads"):
        qkv.watch(model, optimizer, tmp_path / "run", names={"0.weight": "L0.W_Q"})
    assert not (tmp_path / "run").exists()
    nano = Nano()
    optimizer = torch.optim.SGD(nano.parameters(), lr=0.1)
    with qkv.watch(nano, optimizer, tmp_path / "run"), pytest.raises(RunFolderError):
        qkv.watch(nano, optimizer, tmp_path / "run")


def test_a_program_that_ends_without_closing_leaves_a_whole_run(tmp_path):
    code = """
import sys, torch, qkv
from torch import nn
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
qkv.watch(model, optimizer, sys.argv[1])
model(torch.randn(2, 3, 8)).square().mean().backward()
optimizer.step()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    run = qkv.load(tmp_path / "run")
    assert run.summary["steps"] == 1 and run.folder.damaged_files() == {}


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "neox", "bert", "roberta", "distilbert"]
)
def test_the_mirror_of_every_family_gives_the_live_model_s_logits(name, theirs):
    live = theirs.make_theirs(name, torch.float32)
    ids = torch.tensor([[3, 7, 5, 9, 4]])
    with torch.no_grad():
        torch.testing.assert_close(mirror_of(live).model(ids), live(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_attention_of_a_live_model_under_sdpa_is_what_eager_gives(name, theirs, tmp_path):
    import transformers

    model = theirs.make_theirs(name, torch.float32)
    kind = "wordpiece" if name == "bert" else "word"
    theirs.save_tokenizer(tmp_path, kind, specials=name == "bert")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    text = "the cat sat on a mat"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = torch.stack(model(ids, output_attentions=True).attentions)[:, 0]
    model.set_attn_implementation("sdpa")
    found = qkv.attention(model, tokenizer, text)
    assert found.patterns.shape == expected.shape and len(found.tokens) == ids.shape[1]
    np.testing.assert_allclose(found.patterns, expected.numpy(), atol=1e-5)
    assert model.config._attn_implementation == "sdpa"


class Ids:
    """A tokenizer of texts that are ids."""

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}

    def convert_ids_to_tokens(self, ids):
        return list(map(str, ids))


@pytest.mark.parametrize("cls", ["BertModel", "BertForSequenceClassification"])
def test_a_bert_without_a_head_or_with_one_for_classes_is_shown_and_watched(cls, theirs, tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**theirs.MASKED, attn_implementation="eager", num_labels=3)
    model = getattr(transformers, cls)(config).eval()
    with torch.no_grad():
        expected = torch.stack(model(torch.tensor([[3, 7, 5, 9]]), output_attentions=True).attentions)[:, 0]
    np.testing.assert_allclose(qkv.attention(model, Ids(), "3 7 5 9").patterns, expected.numpy(), atol=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with qkv.watch(model, optimizer, tmp_path / "run"):
        model.train()(torch.tensor([[3, 7, 5, 9]]))[0].square().mean().backward()
        optimizer.step()
    run = qkv.load(tmp_path / "run")
    assert run.summary["steps"] == 1 and ("b_U" in run.catalogue().addresses) == (cls == "BertModel")
    assert cls != "BertModel" or run.catalogue().view("b_U").abs().sum() == 0


def test_attention_of_a_model_without_any_is_refused():
    sizes = Sizes(d_vocab=23, d_model=8, n_layers=1, n_heads=1, n_ctx=8)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(mixer="lstm", positions="none")), 0)
    with pytest.raises(UserError, match="no attention to show"):
        qkv.attention(model, Ids(), "3 7")


@pytest.mark.parametrize("name", ["marian", "vit"])
def test_attention_of_a_model_that_does_not_read_one_text_is_refused(name, theirs):
    with pytest.raises(ConfigError, match="reads more than one text, or none"):
        qkv.attention(theirs.make_theirs(name, torch.float32), lambda text: {"input_ids": [3, 4]}, "a b")


def test_the_mirror_of_marian_holds_the_bias_that_is_a_buffer_there(theirs):
    live = theirs.make_theirs("marian", torch.float32)
    mirror = mirror_of(live)
    assert live.final_logits_bias.abs().sum() > 0 and "final_logits_bias" not in dict(live.named_parameters())
    assert mirror.catalogue.entry("b_U").parameter.equal(live.final_logits_bias[0])


def test_a_watched_model_of_our_own_parts_agrees_with_our_catalogue():
    """The mirror of the family map gives the same tensors that our catalogue gives of the imported model."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=23, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=12,
    )  # fmt: skip
    live = transformers.Qwen3ForCausalLM(config)
    mirror = mirror_of(live)
    layout = Layout(qk_norm=True, tied=False, start="normal")
    sizes = Sizes(d_vocab=23, d_model=16, n_layers=1, n_heads=4, n_kv_heads=2, d_head=4, d_mlp=24, n_ctx=12)
    ours = Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), 0))
    assert mirror.catalogue.addresses == ours.addresses
    assert mirror.catalogue.view("L0.H3.W_K").equal(live.model.layers[0].self_attn.k_proj.weight[4:].t())


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("CausalLM", Layout(tied=True, positions="sinusoidal")),
        ("MaskedLM", Layout(tied=False, positions="rotary", qk_norm=True)),
        ("EncoderDecoderLM", Layout(positions="learned")),
    ],
)
def test_a_model_that_we_built_is_watched_in_a_loop_of_ones_own(kind, layout, tmp_path):
    """The run folder holds the very weights, and the model that reads them answers as the live one does."""
    sizes = Sizes(d_vocab=23, d_model=16, n_layers=2, n_heads=2, d_mlp=24, n_ctx=12)
    live = build(ModelConfig(kind=kind, sizes=sizes, layout=layout), 3)
    optimizer = torch.optim.AdamW(live.parameters(), lr=1e-2)
    watcher = qkv.watch(live, optimizer, tmp_path / "run")
    ids = torch.randint(4, 23, (4, 12), generator=torch.Generator().manual_seed(1))
    inputs = (ids, ids) if kind == "EncoderDecoderLM" else (ids,)
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(live(*inputs)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
    watcher.close()
    run = qkv.load(tmp_path / "run")
    assert watcher.unnamed == [] and run.catalogue().addresses == Catalogue(live).addresses
    with torch.no_grad():
        assert torch.equal(run.model(*inputs), live.eval()(*inputs))
    for entry in Catalogue(live):
        series = run.history(entry.address, "norm")[entry.address]
        assert series.step[-1] == 5 and series.value[-1] == pytest.approx(
            float(entry.parameter.detach().norm()), rel=1e-5
        )


def test_tokens_that_are_told_are_not_counted_again_where_they_are_seen(tmp_path):
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = qkv.watch(model, optimizer, tmp_path / "run")
    for step, ids in enumerate(batches(4)):
        model(ids[:, :-1]).sum().backward()
        watcher.log(tokens=30 if step else 0)  # at first only the model's input is seen
        optimizer.step()
    run = qkv.load(watcher.close())
    with run.telemetry() as telemetry:
        assert telemetry.steps().tokens.tolist() == [32, 62, 92, 122]
    assert run.summary["tokens"] == 122


def test_a_validation_loss_may_be_a_tensor_and_one_that_is_no_number_is_an_event(tmp_path):
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with qkv.watch(model, optimizer, tmp_path / "run") as watcher:
        loop(model, optimizer, 2)
        watcher.log(val_loss=torch.tensor(2.5))
        loop(model, optimizer, 1)
        watcher.log(val_loss=float("nan"))
        watcher.log(val_loss=torch.tensor(float("inf")))
    run = qkv.load(tmp_path / "run")
    assert run.folder.is_finished and run.summary["val_loss"] == 2.5 and run.summary["best_step"] == 2
    with run.telemetry() as telemetry:
        assert [found.step for found in telemetry.evaluations()] == [2]
        assert [(event.step, event.kind) for event in telemetry.events()] == [(3, "nan")]


def test_a_pair_model_that_is_watched_has_a_preset_for_pairs(theirs, tmp_path):
    model = theirs.make_theirs("marian", torch.float32)
    with qkv.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run") as watcher:
        pass
    config = RunConfig.read(qkv.load(watcher.path).folder.config)
    assert find(config.preset, config.task).name == "vaswani"


def test_a_model_that_is_watched_can_be_copied_and_saved_whole(tmp_path):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1, enable_nested_tensor=False)
    with qkv.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run") as watcher:
        copy.deepcopy(model)(torch.randint(0, 5, (2, 3, 8)).float())
        torch.save(model, io.BytesIO())
    assert watcher.step == 0


def test_what_goes_wrong_in_watching_ends_it_and_not_the_training(tmp_path):
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = qkv.watch(model, optimizer, tmp_path / "run")
    loop(model, optimizer, 2)
    n_ctx, d_model = model.transformer.wpe.weight.shape
    model.transformer.wpe = nn.Embedding(n_ctx + 1, d_model)  # another shape than was watched
    with pytest.warns(UserWarning, match=rf"ended at step 2 .* was \[{n_ctx}, "):
        loop(model, optimizer, 2)
    watcher.log(val_loss=1.0)
    assert watcher.close() == tmp_path / "run" and watcher.step == 2
    with qkv.load(tmp_path / "run").telemetry() as telemetry:
        assert telemetry.steps().step.tolist() == [1, 2]


def test_a_parameter_in_anothers_place_is_followed(tmp_path):
    model = Nano()
    with qkv.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run"):
        new = nn.Parameter(torch.randn_like(model.transformer.h[0].attn.c_proj.weight))
        model.transformer.h[0].attn.c_proj.weight = new
    assert qkv.load(tmp_path / "run").catalogue().entry("L0.W_O").parameter.equal(new.t())


def test_sparse_gradients_and_weights_that_blew_up_are_watched(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 4))
    names = {"0.weight": "W_E", "1.weight": "L0.W_Q", "2.weight": "L0.W_K"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with qkv.watch(model, optimizer, tmp_path / "run", level="full", names=names, n_heads=2):
        for scale in (1.0, math.nan):
            optimizer.zero_grad()
            (scale * model(torch.tensor([[1, 2, 2]])).square().sum()).backward()
            seen = float(model[0].weight.grad.to_dense().norm())
            optimizer.step()
            if scale == 1.0:
                first = seen
    run = qkv.load(tmp_path / "run")
    assert run.folder.is_finished
    assert run.history("W_E", "grad_norm")["W_E"].value.tolist() == [pytest.approx(first)]


def test_a_loop_that_changes_its_folder_or_forks_leaves_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Nano()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = qkv.watch(model, optimizer, "run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setattr("qkv.recipe.watching.os.getpid", lambda: -1)  # as a forked process has another
    loop(model, optimizer, 1)
    watcher_in_fork_left = watcher.step == 0 and not watcher.folder.is_finished
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path / "other")
    loop(model, optimizer, 1)
    watcher.close()
    assert watcher_in_fork_left and qkv.load(tmp_path / "run").summary["steps"] == 1
    assert not any((tmp_path / "other").iterdir())


def test_numbers_of_one_s_own_are_kept_beside_ours(tmp_path):
    model = Nano()
    optimizer = torch.optim.AdamW(model.parameters())
    watcher = qkv.watch(model, optimizer, tmp_path / "run", log=lambda step: {"twice": 2 * step})
    loop(model, optimizer, 3)
    watcher.log({"once": torch.tensor(1.5)})
    watcher.close()
    found = {name: (x.tolist(), y.tolist()) for name, (x, y) in qkv.load(tmp_path / "run").logged().items()}
    assert found == {"once": ([3], [1.5]), "twice": ([1, 2, 3], [2.0, 4.0, 6.0])}


def test_a_recording_that_the_power_cut_off_at_its_start_is_unfinished_and_not_damaged(tmp_path):
    model = Nano()
    with qkv.watch(model, torch.optim.AdamW(model.parameters()), tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/step-00000000", ignore_errors=True)
    for file in (tmp_path / "cut").glob("telemetry.sqlite*"):
        file.unlink()
    with contextlib.closing(sqlite3.connect(tmp_path / "cut/telemetry.sqlite")) as empty:
        empty.execute("PRAGMA journal_mode = WAL")
    verdict = verify(tmp_path / "cut", updates=0)
    assert verdict.state == "unfinished" and not verdict.faults
    assert main(["show", str(tmp_path / "cut")]) in (0, 2)


def test_two_parameters_of_one_address_and_a_vector_for_a_matrix_are_refused():
    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)})
    with pytest.raises(ConfigError, match=r"b.weight: L0.W_Q is named for another parameter too"):
        mirror_of(model, names={"a.weight": "L0.W_Q", "b.weight": "L0.W_Q"}, n_heads=2)
    with pytest.raises(ConfigError, match=r"a.bias is \[16\]; L0.W_K is a matrix"):
        mirror_of(model, names={"a.bias": "L0.W_K"}, n_heads=2)
