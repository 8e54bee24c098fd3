"""What qkv writes, transformers loads: the same logits and the same text; and qkv reads it back, byte for byte."""

import dataclasses
import errno
import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.errors import ConfigError, RunFolderError, StorageError
from qkv.interop import exporting, read_checkpoint
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS

NAMES = (
    "gpt2 odd", "llama biased", "llama yarn", "mistral", "qwen2", "qwen3", "neox", "bert untied", "bert", "roberta",
    "distilbert",
)  # fmt: skip


def ids_and_mask(d_vocab):
    ids = torch.randint(3, d_vocab, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 8:] = False
    return torch.where(mask, ids, 1), mask


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "README.md"}


@pytest.mark.parametrize("name", NAMES)
def test_export_import_export_gives_the_same_bytes_and_their_class_the_same_logits(name, theirs, tmp_path):
    import transformers

    model = theirs.save_theirs(tmp_path / "them", name)
    kind = "wordpiece" if "bert" in name else "word"
    theirs.save_tokenizer(tmp_path / "them", kind, specials="bert" in name)
    first = read_checkpoint(tmp_path / "them")
    for source, target in (("them", "one"), ("one", "two")):
        read = read_checkpoint(tmp_path / source)
        fit = exporting.write_checkpoint(
            read.config, read.state, read.tokenizer, tmp_path / target, card="", wanted=read.family.name
        )
        assert fit.family is first.family and fit.why_not == ""
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert {"config.json", "model.safetensors", "tokenizer.json"} < set(contents(tmp_path / "one"))
    auto = getattr(transformers, first.family.auto)
    loaded, report = auto.from_pretrained(tmp_path / "one", output_loading_info=True, attn_implementation="eager")
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert type(loaded) is type(model)
    ids, mask = ids_and_mask(61)
    with torch.no_grad():
        gap = loaded.eval()(ids, attention_mask=mask.long()).logits - model(ids, attention_mask=mask.long()).logits
    assert gap[mask].abs().max() < 1e-6


def own_module():
    from importlib.resources import files

    path = files("qkv.interop").joinpath("standalone", "modeling_qkv.py")
    specification = importlib.util.spec_from_file_location("modeling_qkv", str(path))
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # as any import does; transformers 5.0 looks there
    specification.loader.exec_module(module)
    return module


FITS = {"modern": "qwen3", "llama": "llama", "gpt2": "gpt2"}
KINDS = {"decoder": "CausalLM", "encoder": "MaskedLM"}
SIZES = Sizes(d_vocab=37, d_model=24, n_layers=2, n_heads=4, n_ctx=16, n_kv_heads=2, d_mlp=40)


def layouts():
    for preset in PRESETS.values():
        for stack, kind in KINDS.items():
            if stack in preset.stacks and preset.layout.mixer == "attention":
                single = preset.head_width == 0
                sizes = dataclasses.replace(SIZES, n_heads=1, n_kv_heads=0) if single else SIZES
                yield pytest.param(preset.name, ModelConfig(kind=kind, sizes=sizes, layout=preset.layout),
                                   id=f"{preset.name}-{kind}")  # fmt: skip
    extra = Layout(
        positions="learned", norm="layer", norm_place="post", mlp="relu2", bias=True, head_transform=True, start="bert"
    )
    yield pytest.param("", ModelConfig(kind="MaskedLM", sizes=SIZES, layout=extra), id="transform")
    extra = Layout(
        rope_share=0.7, parallel=True, norm="layer", mlp="gelu", bias=True, attention_bias="qkv", start="gpt2"
    )
    yield pytest.param("", ModelConfig(kind="CausalLM", sizes=SIZES, layout=extra), id="parallel")
    extra = Layout(positions="sinusoidal_halves", mlp="silu", head_bias=True, start="xavier")
    yield pytest.param("", ModelConfig(kind="CausalLM", sizes=SIZES, layout=extra), id="biased output")
    yield pytest.param(
        "", ModelConfig(kind="MaskedLM", sizes=SIZES, layout=Layout(head_bias=True)), id="biased masked output"
    )


@pytest.mark.parametrize(("preset", "config"), list(layouts()))
def test_every_preset_is_written_for_a_class_of_transformers_or_with_a_file_of_ours(preset, config, theirs, tmp_path):
    import transformers

    model = build(config, 3).eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    state = Catalogue(model).state()
    fit = exporting.write_checkpoint(model.config, state, None, tmp_path / "out", card="")
    wanted = FITS.get(preset) if config.kind == "CausalLM" and (preset != "gpt2" or not SIZES.n_kv_heads) else None
    assert (fit.family.name if fit.family else None) == wanted
    if fit.family:
        loaded = getattr(transformers, fit.family.auto).from_pretrained(tmp_path / "out")
    else:
        assert fit.why_not and (tmp_path / "out" / "modeling_qkv.py").is_file()
        stem = "QkvForCausalLM" if config.kind == "CausalLM" else "QkvForMaskedLM"
        loaded, report = getattr(own_module(), stem).from_pretrained(tmp_path / "out", output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    ids, mask = ids_and_mask(37)
    with torch.no_grad():
        own = model(ids, mask)
        gap = loaded.eval()(ids, attention_mask=mask.long()).logits - own
    assert gap[mask].abs().max() < 1e-5 * max(1.0, float(own.abs().max()))


@pytest.mark.parametrize(("norm_eps", "family"), [(1e-12, "distilbert"), (1e-5, None)])
def test_a_model_without_types_of_segments_is_no_bert_since_every_token_of_one_has_a_type(norm_eps, family, tmp_path):
    import transformers

    layout = dataclasses.replace(PRESETS["bert"].layout, head_transform=True, norm_eps=norm_eps)
    sizes = dataclasses.replace(SIZES, n_kv_heads=0)
    model = build(ModelConfig(kind="MaskedLM", sizes=sizes, layout=layout), 3).eval()
    fit = exporting.write_checkpoint(model.config, Catalogue(model).state(), None, tmp_path / "out", card="")
    assert (fit.family.name if fit.family else None) == family
    loader = transformers.AutoModelForMaskedLM if family else own_module().QkvForMaskedLM
    ids, _ = ids_and_mask(37)
    with torch.no_grad():
        gap = loader.from_pretrained(tmp_path / "out").eval()(ids).logits - model(ids)
    assert gap.abs().max() < 1e-5


@pytest.mark.parametrize("name", ["lstm", "bag"])
def test_a_model_without_attention_is_refused(name):
    config = ModelConfig(kind="CausalLM", sizes=dataclasses.replace(SIZES, n_kv_heads=0), layout=PRESETS[name].layout)
    with pytest.raises(ConfigError, match="without attention"):
        exporting.find_family(config)


def test_the_gpt2_preset_is_gpt2_and_says_what_stands_in_the_way_otherwise():
    sizes = dataclasses.replace(SIZES, n_kv_heads=0)
    config = ModelConfig(kind="CausalLM", sizes=sizes, layout=PRESETS["gpt2"].layout).resolved()
    assert exporting.find_family(config).family.name == "gpt2"
    grouped = ModelConfig(kind="CausalLM", sizes=SIZES, layout=PRESETS["gpt2"].layout).resolved()
    assert exporting.find_family(grouped).why_not == "the nearest known layout, GPT-2, has not n_kv_heads = 2"


def test_a_family_that_cannot_read_the_settings_at_all_is_not_the_nearest():
    sizes = dataclasses.replace(SIZES, n_kv_heads=0)
    bert = ModelConfig(kind="MaskedLM", sizes=sizes, layout=PRESETS["bert"].layout).resolved()
    said = exporting.find_family(bert).why_not
    assert said == "the nearest known layout, DistilBERT, has not head_transform = False"
    modern = ModelConfig(kind="MaskedLM", sizes=sizes, layout=PRESETS["modern"].layout).resolved()
    said = exporting.find_family(modern).why_not
    assert said.startswith("the nearest known layout, BERT, cannot hold it: type_vocab_size is 0; expected")


@pytest.fixture(scope="module")
def trained(small_text, tmp_path_factory):
    """A short run of the default preset."""
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ["--steps", "8", "--vocab", "300", "--set", "d_model=32,n_layers=2,n_ctx=32", "--no-report"]
    assert main(["train", str(small_text), "--out", str(out), *words]) == 0
    return out


def test_the_default_preset_writes_the_same_text_in_transformers(trained, tmp_path, theirs):
    import transformers

    assert main(["export", str(trained), "--out", str(tmp_path / "hf")]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    run = qkv.load(trained)
    text = "the cat sees a dog"
    asked = tokenizer(text, return_tensors="pt")
    assert asked["input_ids"][0].tolist() == run.tokenizer.encode(text).tolist()
    yours = model.generate(**asked, do_sample=False, max_new_tokens=20)
    from qkv.tasks import PredictOptions

    (mine,) = run.predict([text], PredictOptions(tokens=20, temperature=0))
    assert tokenizer.decode(yours[0]) == text + mine
    card = (tmp_path / "hf" / "README.md").read_text()
    assert f"{run.summary['parameters']:,} parameters" in card and f"{run.summary['val_loss']:.4f}" in card
    manifest = run.folder.read_manifest()
    assert manifest["data"]["sha256"] in card


def test_an_export_is_imported_as_the_same_model_and_exported_as_the_same_bytes(trained, tmp_path):
    qkv.load(trained).export(tmp_path / "one")
    assert main(["import", str(tmp_path / "one"), "--out", str(tmp_path / "again")]) == 0
    a, b = qkv.load(trained), qkv.load(tmp_path / "again")
    assert all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True))
    assert main(["export", str(tmp_path / "again"), "--out", str(tmp_path / "two")]) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert "imported from" in (tmp_path / "two" / "README.md").read_text()


def greedy(config, state, prompts):
    from qkv.tasks.generation import Sampling, generate

    model = build(config, 0).eval()
    Catalogue(model).load_state(state)
    return [ids.tolist() for ids in generate(model, prompts, tokens=20, how=Sampling(temperature=0), seed=0)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "neox"])
def test_a_text_goes_on_where_a_token_has_the_number_that_their_class_ends_at_by_itself(name, theirs, tmp_path):
    import transformers

    theirs.save_theirs(tmp_path / "them", name, bos_token_id=None, eos_token_id=None)
    read = read_checkpoint(tmp_path / "them")
    prompts = torch.arange(4, 8)[:, None].numpy()
    places = torch.arange(61)
    early = greedy(read.config, read.state, prompts)[0][0]
    places[2], places[early] = early, 2
    state = read.state | {"W_E": read.state["W_E"][places]}
    state |= {"W_U": state["W_U"][:, places]} if "W_U" in state else {}
    for target in ("one", "two"):
        exporting.write_checkpoint(read.config, state, None, tmp_path / target, card="", wanted=read.family.name)
        again = read_checkpoint(tmp_path / target)
        assert again.marks == {} and all(torch.equal(again.state[address], state[address]) for address in state)
        state = again.state
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    mine = greedy(read.config, state, prompts)
    assert any(2 in ids[:-1] for ids in mine)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    asked = dict(attention_mask=torch.ones(1, 1), do_sample=False)
    kept = transformers.GenerationConfig.from_model_config(model.config)  # what older versions write with
    kept.max_new_tokens = model.generation_config.max_new_tokens = 20
    for how in (None, kept):
        yours = [model.generate(torch.from_numpy(p)[None], generation_config=how, **asked)[0, 1:] for p in prompts]
        assert [ids.tolist() for ids in yours] == mine


def test_shards_are_read_by_both(theirs, tmp_path):
    import transformers

    theirs.save_theirs(tmp_path / "them", "qwen3")
    read = read_checkpoint(tmp_path / "them")
    exporting.write_checkpoint(read.config, read.state, None, tmp_path / "out", card="", largest_file=9000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 3
    again = read_checkpoint(tmp_path / "out")
    assert all(torch.equal(again.state[address], values) for address, values in read.state.items())
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_a_place_that_is_taken_and_a_full_disk_leave_nothing(trained, tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("x")
    assert main(["export", str(trained), "--out", str(tmp_path / "taken")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for here in (".", "../empty", str(tmp_path / "empty")):
        assert main(["export", str(trained), "--out", here]) == 2
        assert "is the folder that you are in; choose another --out" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").rmdir()
    with pytest.raises(RunFolderError):
        qkv.load(trained).export(tmp_path / "taken")

    def full(tensors):
        yield b"begun"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "streamed", full)
    with pytest.raises(StorageError, match="disk is full"):
        qkv.load(trained).export(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_what_a_killed_export_left_is_swept_by_the_next(trained, tmp_path):
    """That of a running one is not: `tests/test_staging.py`."""
    script = (
        "import os, sys, qkv; from qkv.interop import exporting; exporting._write_tensors = lambda *given: os._exit(9);"
        "qkv.load(sys.argv[1]).export(sys.argv[2])"
    )
    words = [sys.executable, "-c", script, str(trained), str(tmp_path / "out")]
    assert subprocess.run(words, capture_output=True).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".part-out-") and (left / "config.json").is_file()
    qkv.load(trained).export(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and not list((tmp_path / "out").glob(".*"))


def test_weights_that_share_are_written_under_each_name(small_text, tmp_path, theirs):
    words = ["--steps", "1", "--tokenizer", "char", "--set", "d_model=32,n_layers=2,n_ctx=16", "--no-report"]
    words += ["--change", "L1.W_V=share(L0.W_V)"]
    assert main(["train", str(small_text), "--out", str(tmp_path / "run"), *words]) == 0
    qkv.load(tmp_path / "run").export(tmp_path / "out")
    state = read_checkpoint(tmp_path / "out").state
    assert torch.equal(state["L1.W_V"], state["L0.W_V"])


@pytest.mark.slow
def test_the_file_of_ours_is_found_by_the_auto_classes(small_text, tmp_path):
    words = ["--task", "masked", "--steps", "2", "--vocab", "300", "--set", "d_model=32,n_layers=1,n_ctx=32"]
    assert main(["train", str(small_text), "--out", str(tmp_path / "run"), *words, "--no-report"]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "hf")]) == 0
    assert (tmp_path / "hf" / "README.md").read_text().count('.from_pretrained("FOLDER", trust_remote_code=True)') == 2
    code = """
import sys, json, torch, transformers
model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = tokenizer("the cat sees a dog", return_tensors="pt")
asked = {name: ids[name] for name in ("input_ids", "attention_mask")}
print(json.dumps([ids["input_ids"][0].tolist(), model(**asked).logits[0].tolist()]))
"""
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hf")], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ids, logits = json.loads(done.stdout.splitlines()[-1])
    run = qkv.load(tmp_path / "run")
    assert ids == run.tokenizer.encode("the cat sees a dog").tolist()
    torch.testing.assert_close(run.model(torch.tensor([ids]))[0], torch.tensor(logits), rtol=1e-5, atol=1e-5)
