"""Runs of every task in layouts of our own: our file beside the weights gives the same logits, ids and translations."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch

import qkv
from qkv.cli import main
from qkv.data.pairs import encode_lines
from qkv.errors import ConfigError
from qkv.interop import exporting, read_checkpoint
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.layout import Patches
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS
from qkv.tasks import PredictOptions
from qkv.tokenizers.tokenizer import fit_tokenizer

SIZES = Sizes(d_vocab=37, d_model=24, n_layers=2, n_heads=2, n_ctx=16, n_kv_heads=1, d_mlp=40)
IMAGE = dataclasses.replace(SIZES, d_vocab=0, n_ctx=0)
WORDS = "cat dog sun moon tree house river stone bread wine king queen ship road bird fish".split()
CLASSES = ("good", "bad", "so so")


def own_module():
    path = files("qkv.interop").joinpath("standalone", "modeling_qkv.py")
    specification = importlib.util.spec_from_file_location("modeling_qkv", str(path))
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # as any import does; transformers 5.0 looks there
    specification.loader.exec_module(module)
    return module


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def exported(config, folder, tokenizer=None):
    """A model with generic numbers, and what transformers makes of its export."""
    model = build(config, 3).eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    fit = exporting.write_checkpoint(model.config, Catalogue(model).state(), tokenizer, folder, card="")
    assert fit.family is None and fit.why_not and fit.auto.startswith("AutoModelFor")
    again = read_checkpoint(folder)
    assert again.config == model.config and all(
        torch.equal(again.state[a], v) for a, v in Catalogue(model).state().items()
    )
    exporting.write_checkpoint(
        again.config, again.state, again.tokenizer, folder.with_name("again"), card="", marks=again.marks
    )
    assert contents(folder.with_name("again")) == contents(folder)
    stem = f"Qkv{fit.auto.removeprefix('AutoModel')}"
    loaded, report = getattr(own_module(), stem).from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model, loaded.eval()


def close(theirs, own):
    assert (theirs - own).abs().max() < 1e-5 * max(1.0, float(own.abs().max()))


def texts():
    ids = torch.randint(3, 37, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 8:], mask[2, :5] = False, False
    return torch.where(mask, ids, 1), mask


EXTRA = Layout(
    positions="learned", norm="layer", norm_place="post", norm_e=True, mlp="gelu", bias=True, tied=False,
    attention_bias="qkv", embed_scale=True, start="bert",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["Classifier", "CausalClassifier"])
@pytest.mark.parametrize("name", ["modern", "fast", "vaswani", "textbook", "extra"])
def test_a_classifier_of_texts_gives_the_same_logits(kind, name, tmp_path):
    layout = EXTRA if name == "extra" else dataclasses.replace(PRESETS[name].layout, tied=False)
    config = ModelConfig(kind=kind, sizes=SIZES, layout=layout, classes=CLASSES)
    model, loaded = exported(config, tmp_path / "out")
    ids, mask = texts()
    with torch.no_grad():
        out = loaded(input_ids=ids, attention_mask=mask.long(), labels=torch.tensor([0, 1, 2]))
        close(out.logits, model(ids, mask))
        close(loaded(input_ids=ids).logits, model(ids))
    assert loaded.config.id2label == dict(enumerate(CLASSES)) and out.loss.isfinite()


CUTS = {
    "whole": Patches(height=12, width=8, patch=4, mean=0.3, std=0.2),
    "overlapping, padded, colour": Patches(height=10, width=7, channels=3, patch=4, stride=3),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("pool", ["mean", "class"])
@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "none"])
def test_an_image_model_gives_the_same_logits(cut, pool, positions, tmp_path):
    layout = Layout(positions=positions, pool=pool, tied=False, bias=pool == "class", norm="layer", mlp="relu2")
    config = ModelConfig(kind="ImageClassifier", sizes=IMAGE, layout=layout, classes=CLASSES, patches=CUTS[cut])
    model, loaded = exported(config, tmp_path / "out")
    patches = CUTS[cut]
    shape = 3, patches.channels, patches.height, patches.width
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(loaded((pixels - patches.mean) / patches.std).logits, model(pixels))
    assert json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())["size"]["height"] == patches.height


@pytest.mark.parametrize("name", ["modern", "fast", "vaswani", "textbook", "extra"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_encoder_decoder_gives_the_same_logits_and_the_same_greedy_translations(name, tied, tmp_path):
    layout = EXTRA if name == "extra" else PRESETS[name].layout
    config = ModelConfig(kind="EncoderDecoderLM", sizes=SIZES, layout=dataclasses.replace(layout, tied=tied))
    model, loaded = exported(config, tmp_path / "out")
    ids, mask = texts()
    mask[2] = True
    target = ids[:, :7].flip(1)
    with torch.no_grad():
        out = loaded(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=target)
        close(out.logits, model(ids, target, mask))
        written = loaded.generate(
            ids, attention_mask=mask.long(), decoder_start_token_id=0, eos_token_id=None, max_new_tokens=6,
            do_sample=False,
        )  # fmt: skip
        mine = torch.zeros(3, 1, dtype=torch.int64)
        for _ in range(6):
            mine = torch.cat((mine, model(ids, mine, mask)[:, -1:].argmax(-1)), dim=1)
    assert written.tolist() == mine.tolist()


def test_a_tied_decoder_of_no_layers_may_have_no_parameter(tmp_path):
    layout = Layout(positions="none", norm_place="post", tied=True)
    config = ModelConfig(kind="EncoderDecoderLM", sizes=dataclasses.replace(SIZES, n_layers=0), layout=layout)
    model, loaded = exported(config, tmp_path / "out")
    ids, _ = texts()
    with torch.no_grad():
        close(loaded(input_ids=ids, decoder_input_ids=ids[:, :7]).logits, model(ids, ids[:, :7]))


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_lines_of_a_pair_are_cut_as_the_model_learned_them(kind, tmp_path):
    import transformers

    lines = ["the cat sat", "a dog", "the dog saw the cat, and ran!"]
    tokenizer = fit_tokenizer(kind, (f" {line}" for line in lines), 300 if kind == "bpe" else 60, end=True)
    sizes = dataclasses.replace(SIZES, d_vocab=tokenizer.d_vocab)
    exported(
        ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=PRESETS["fast"].layout), tmp_path / "out", tokenizer
    )
    ids, lengths = encode_lines(tokenizer, lines)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    wanted = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert theirs(lines)["input_ids"] == wanted
    assert theirs(lines, padding=True)["attention_mask"][1] == [1] * len(wanted[1]) + [0] * (
        max(map(len, wanted)) - len(wanted[1])
    )


def test_a_model_without_attention_is_refused():
    with pytest.raises(ConfigError, match="without attention"):
        exporting.find_family(ModelConfig(kind="Classifier", sizes=SIZES, layout=Layout(mixer="mean"), classes=CLASSES))


@pytest.mark.slow
def test_a_run_of_labels_and_one_of_pairs_are_found_by_the_auto_classes(tmp_path, capsys):
    rows = [(("good", "bad")[i % 2], ("nice", "dull")[i % 2], WORDS[i % 16], WORDS[i // 16]) for i in range(256)]
    (tmp_path / "labels.txt").write_text("".join(f"{c} the {a} film of {x} and {y}\n" for c, a, x, y in rows))
    for side in ("de", "en"):
        (tmp_path / f"t.{side}").write_text(
            "".join(f"{side} {WORDS[i % 16]} sees {WORDS[i // 16]}\n" for i in range(256))
        )
    more = ["--steps", "3", "--no-report", "--set", "d_model=32,n_layers=1"]
    assert main(["train", str(tmp_path / "labels.txt"), "--task", "classify", "--out", str(tmp_path / "c"), *more]) == 0
    pairs = f"{tmp_path / 't.de'}:{tmp_path / 't.en'}"
    assert main(["train", pairs, "--task", "translate", "--out", str(tmp_path / "t"), *more]) == 0
    for name, auto in (("c", "AutoModelForSequenceClassification"), ("t", "AutoModelForSeq2SeqLM")):
        capsys.readouterr()
        assert main(["export", str(tmp_path / name), "--out", str(tmp_path / f"hf-{name}")]) == 0
        assert main(["import", str(tmp_path / f"hf-{name}"), "--out", str(tmp_path / f"back-{name}")]) == 0
        asked = ["the nice film", "de cat sees moon"]
        mine, back = (qkv.load(tmp_path / run).predict(asked) for run in (name, f"back-{name}"))
        assert mine == back
        assert auto in capsys.readouterr().out and auto in (tmp_path / f"hf-{name}" / "README.md").read_text()
    code = """
import sys, json, transformers as t
how = dict(trust_remote_code=True)
c, m = (
    auto.from_pretrained(folder, **how)
    for auto, folder in zip((t.AutoModelForSequenceClassification, t.AutoModelForSeq2SeqLM), sys.argv[1:])
)
x, y = (t.AutoTokenizer.from_pretrained(folder, **how) for folder in sys.argv[1:])
texts = x(["the nice film", "a dull film of the sun"], padding=True, return_tensors="pt")
asked = {name: texts[name] for name in ("input_ids", "attention_mask")}
label = [c.config.id2label[i] for i in c(**asked).logits.argmax(-1).tolist()]
lines = y(["de cat sees moon", "de dog"], padding=True, return_tensors="pt")
asked = {name: lines[name] for name in ("input_ids", "attention_mask")}
written = m.generate(**asked, max_new_tokens=8, do_sample=False)
print(json.dumps([label, y.batch_decode(written, skip_special_tokens=True)]))
"""
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "hf-c"), str(tmp_path / "hf-t")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0 and "UNEXPECTED" not in done.stderr, done.stderr
    label, written = json.loads(done.stdout.splitlines()[-1])
    assert label == qkv.load(tmp_path / "c").predict(["the nice film", "a dull film of the sun"])
    mine = qkv.load(tmp_path / "t").predict(["de cat sees moon", "de dog"], PredictOptions(temperature=0))
    assert [" ".join(line.split()[:3]) for line in written] == [" ".join(line.split()[:3]) for line in mine]
