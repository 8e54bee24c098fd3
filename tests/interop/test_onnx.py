"""model.onnx gives the model's logits with onnxruntime, at any batch and length; torch.export follows our models."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.errors import ConfigError, MissingExtra, RunFolderError
from qkv.interop.formats import onnx as written
from qkv.models import ModelConfig, Sizes, build
from qkv.models.layout import Layout, Patches
from qkv.presets import PRESETS

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the dev extra (onnxruntime)")
pytest.importorskip("onnxscript", reason="needs the dev extra (onnxscript)")

SIZES = Sizes(d_vocab=37, d_model=24, n_layers=2, n_heads=4, n_ctx=16, n_kv_heads=2, d_mlp=40)
WHOLE = dataclasses.replace(SIZES, n_kv_heads=4)
PIXELS = Sizes(d_vocab=0, d_model=24, n_layers=2, n_heads=2, n_ctx=0)
CLASSES = ("bad", "so-so", "good")
CONFIGS = {
    "causal": ModelConfig(kind="CausalLM", sizes=SIZES, layout=PRESETS["modern"].layout),
    "learned positions": ModelConfig(kind="CausalLM", sizes=WHOLE, layout=PRESETS["gpt2"].layout),
    "masked": ModelConfig(kind="MaskedLM", sizes=WHOLE, layout=PRESETS["bert"].layout),
    "classify": ModelConfig(kind="Classifier", sizes=SIZES, layout=PRESETS["modern"].layout, classes=CLASSES),
    "classify from the left": ModelConfig(
        kind="CausalClassifier", sizes=WHOLE, layout=PRESETS["gpt2"].layout, classes=CLASSES
    ),
    "image": ModelConfig(
        kind="ImageClassifier",
        sizes=PIXELS,
        layout=dataclasses.replace(PRESETS["modern"].layout, tied=False),
        classes=CLASSES,
        patches=Patches(height=8, width=8, patch=4, mean=0.3, std=0.2),
    ),
    "translate": ModelConfig(kind="EncoderDecoderLM", sizes=WHOLE, layout=PRESETS["vaswani"].layout),
    "no attention": ModelConfig(
        kind="CausalLM",
        sizes=dataclasses.replace(SIZES, n_heads=1, n_kv_heads=0),
        layout=Layout(mixer="mean", positions="none", mlp="relu2", tied=False),
    ),
}


def made(config):
    """A model whose every parameter counts."""
    model = build(config, 3).eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def inputs(config, batch, n):
    """Random inputs in the order of `input_names`: of texts, padding at the end of the first one."""
    generator = torch.Generator().manual_seed(n)
    if config.patches is not None:
        cut = config.patches
        return [torch.rand(batch, cut.channels, cut.height, cut.width, generator=generator)]
    out = []
    for i in range(len(written.input_names(config)) // 2):
        length = min(config.sizes.n_ctx, n + 2 * i)
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, max(1, length - 2) :] = 0
        out += [torch.randint(0, config.sizes.d_vocab, (batch, length), generator=generator), mask]
    return out


def by_model(model, given):
    with torch.no_grad():
        return model(*given[::2], *(mask.bool() for mask in given[1::2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_onnxruntime_gives_the_logits_of_the_model_at_any_batch_and_length(name, tmp_path):
    config = CONFIGS[name].resolved()
    model = made(config)
    written.write_onnx(model, config, None, tmp_path / "out", card="about", chat={})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "README.md"}
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    assert tuple(names) == written.input_names(config) and [item.name for item in session.get_outputs()] == ["logits"]
    assert session.get_modelmeta().custom_metadata_map.get("classes", "") == "\n".join(config.classes)
    for batch, n in ((1, 1), (2, 5), (4, 16), (1, 12)):
        given = inputs(config, batch, n)
        feed = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
        own = by_model(model, given)
        assert own.std() > 0.01  # the comparison means something
        assert (torch.from_numpy(session.run(None, feed)[0]) - own).abs().max() < 1e-4, (batch, n)


EXPORTS = """
import sys, torch
from torch.export import Dim, export
from qkv.models import ModelConfig, Sizes, build
from qkv.presets import PRESETS

sizes = Sizes(d_vocab=37, d_model=24, n_layers=2, n_heads=4, n_ctx=16, d_mlp=40)
for kind, preset in (("CausalLM", "modern"), ("MaskedLM", "bert")):
    model = build(ModelConfig(kind=kind, sizes=sizes, layout=PRESETS[preset].layout), 3).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    axes = {0: Dim("batch"), 1: Dim("position", max=16)}
    program = export(model, (torch.ones(3, 7, dtype=torch.int64),), dynamic_shapes={"ids": axes})
    for batch, n in ((1, 2), (5, 16), (2, 11)):
        ids = torch.randint(0, 37, (batch, n))
        with torch.no_grad():
            gap = (program.module()(ids) - model(ids)).abs().max()
        assert gap < 1e-5, (preset, batch, n, gap)
    assert model(torch.ones(2, 9, dtype=torch.int64)).isfinite().all()  # and is what it was
print("equal")
"""


def test_torch_export_follows_a_model_with_a_dynamic_length():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", EXPORTS], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_a_recurrent_model_is_refused_with_the_reason(tmp_path):
    sizes = dataclasses.replace(SIZES, n_heads=1, n_kv_heads=0)
    layout = Layout(mixer="lstm", positions="none", tied=False, start="normal")
    config = ModelConfig(kind="CausalLM", sizes=sizes, layout=layout).resolved()
    with pytest.raises(ConfigError, match="recurrent model"):
        written.write_onnx(build(config, 0), config, None, tmp_path / "out", card="", chat={})


def test_without_the_package_the_error_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    config = CONFIGS["causal"].resolved()
    with pytest.raises(MissingExtra, match=r"--format onnx needs other libraries; type: .*exits"):
        written.write_onnx(build(config, 0), config, None, tmp_path / "out", card="", chat={})
    assert not list(tmp_path.iterdir())


# the command


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exits")
    (folder / "t.txt").write_text("the sun and the rain and the wind and the snow.\n" * 300)
    qkv.train(
        folder / "t.txt", vocab=280, steps=3, out=folder / "run", report=False, watch="off",
        set={"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16},
    )  # fmt: skip
    return folder / "run"


def test_the_command_writes_gguf_and_says_what_reads_it(trained, tmp_path, capsys):
    gguf = pytest.importorskip("gguf", reason="needs the dev extra (gguf)")
    out = tmp_path / "my.gguf"
    assert main(["export", str(trained), "--format", "gguf", "--out", str(out)]) == 0
    assert f"{out} is a Qwen3 for llama.cpp, in float32\n" in capsys.readouterr().out
    reader = gguf.GGUFReader(out)
    assert reader.fields["general.architecture"].contents() == "qwen3"
    model = qkv.load(trained).model
    assert sum(int(tensor.n_elements) for tensor in reader.tensors) == sum(p.numel() for p in model.parameters())
    assert main(["export", str(trained), "--format", "gguf", "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["export", str(trained), "--format", "gguf", "--out", str(tmp_path / "b"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(tmp_path / "b") and said["family"] == "qwen3" and said["format"] == "gguf"


def test_the_command_writes_onnx_with_the_tokenizer_and_a_card(trained, tmp_path, capsys):
    out = tmp_path / "onnx"
    assert main(["export", str(trained), "--format", "onnx", "--out", str(out)]) == 0
    assert "any batch and length" in capsys.readouterr().out
    assert {"model.onnx", "tokenizer.json", "tokenizer_config.json", "README.md"} == {p.name for p in out.iterdir()}
    model = qkv.load(trained).model
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    for batch, n in ((1, 5), (3, 16)):
        ids = torch.randint(0, model.sizes.d_vocab, (batch, n))
        with torch.no_grad():
            own = model(ids).numpy()
        feed = {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
        assert own.std() > 0.001 and abs(session.run(None, feed)[0] - own).max() < 1e-4
    card = (out / "README.md").read_text()
    assert (
        "library_name: onnx" in card and 'InferenceSession("FOLDER/model.onnx")' in card and "transformers" not in card
    )
    with pytest.raises(RunFolderError, match="is there already"):
        qkv.load(trained).export(out, format="onnx")


def test_an_unknown_format_names_the_known_ones(trained, tmp_path, capsys):
    assert main(["export", str(trained), "--format", "onx", "--out", str(tmp_path / "a")]) == 2
    assert "onnx" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="onnx"):
        qkv.load(trained).export(tmp_path / "a", format="onx")


@pytest.mark.parametrize("format", ["gguf", "onnx"])
def test_a_damaged_run_is_exported_in_no_format(trained, tmp_path, capsys, format):
    import shutil

    shutil.copytree(trained, tmp_path / "run")
    weights = next((tmp_path / "run").rglob("best*.safetensors"), None) or next(
        (tmp_path / "run").rglob("*.safetensors")
    )
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    assert main(["export", str(tmp_path / "run"), "--format", format, "--out", str(tmp_path / "a")]) == 2
    assert weights.name in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_to_transformers_gives_linear_modules_with_the_same_logits(trained):
    pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    run = qkv.load(trained)
    theirs = run.to_transformers()
    linear = {name.rpartition(".")[2] for name, module in theirs.named_modules() if type(module) is torch.nn.Linear}
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"} <= linear
    ids = torch.randint(0, run.config.model.sizes.d_vocab, (2, 9))
    with torch.no_grad():
        assert (theirs(ids).logits - run.model(ids)).abs().max() < 1e-5
