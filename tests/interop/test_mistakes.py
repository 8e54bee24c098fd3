"""A folder that cannot be read as it stands: one sentence that names file and tensor, exit 2, and nothing made."""

import json
import os
import re
import struct
import sys
import types
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save_file as write_file

from qkv.cli import main
from qkv.errors import ConfigError, MissingExtra, SourceError
from qkv.installing import install
from qkv.interop import read_checkpoint


@pytest.fixture(scope="module")
def saved(theirs, tmp_path_factory):
    """Folders as transformers writes them, by name."""
    place = tmp_path_factory.mktemp("saved")
    for name in ("llama", "gpt2", "bert"):
        theirs.save_theirs(place / name, name)
        theirs.save_tokenizer(place / name, "wordpiece" if name == "bert" else "word", specials=name == "bert")
    return place


@pytest.fixture
def folder(saved, tmp_path, request):
    """A copy of one of them to break; `llama` unless the test names another."""
    import shutil

    name = getattr(request, "param", "llama")
    shutil.copytree(saved / name, tmp_path / name)
    return tmp_path / name


def change_config(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


def save_file(tensors, path, metadata):
    """Another file in its place: safetensors 0.4 writes into the old one, under the tensors that were read of it."""
    new = path.with_suffix(".new")
    write_file(tensors, new, metadata)
    os.replace(new, path)


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder, *words):
    with pytest.raises(SourceError) as caught:
        read_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message
    return message


def test_an_untouched_copy_is_read(folder):
    (note,) = read_checkpoint(folder).notes
    assert "61 rows" in note


KEY = "model.layers.1.self_attn.k_proj.weight"


def test_wrong_shapes_missing_and_extra_tensors_are_named_with_their_file(folder):
    change_tensors(folder, lambda tensors: tensors.update({KEY: torch.zeros(5, 24)}))
    refused(folder, KEY, "model.safetensors", "[5, 24]", "[12, 24]", "L1.W_K")
    change_tensors(folder, lambda tensors: tensors.pop(KEY))
    refused(folder, KEY, "model.safetensors", "missing")
    change_tensors(folder, lambda tensors: tensors.update({KEY + "s": torch.zeros(12, 24)}))
    refused(folder, KEY + "s", "model.safetensors", "did you mean", KEY)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_and_nothing_is_made(value, folder, tmp_path, capsys):
    change_tensors(folder, lambda tensors: tensors[KEY].flatten()[:1].fill_(value))
    refused(folder, KEY, "model.safetensors", "NaN or infinity")
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 2 and not (tmp_path / "run").exists()
    assert KEY in capsys.readouterr().err


def test_a_truncated_file_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, "model.safetensors", "not a whole safetensors file")
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    refused(folder, "model.safetensors", "not a whole safetensors file")
    path.write_bytes(b"")
    refused(folder, "model.safetensors", "not a whole safetensors file")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_key_value_heads": 4}, ("k_proj", "model.safetensors", "[12, 24]", "[24, 24]")),
        ({"num_attention_heads": 7, "head_dim": "gone"}, ("config.json", "24", "7")),
        ({"num_key_value_heads": 3}, ("config.json", "n_kv_heads 3")),
        ({"num_attention_heads": -4}, ("config.json", "num_attention_heads")),
        ({"num_attention_heads": "four"}, ("config.json", "num_attention_heads", "four")),
        ({"num_attention_heads": True}, ("config.json", "num_attention_heads")),
        ({"hidden_act": "gelu"}, ("config.json", "hidden_act", "gelu", "silu")),
        ({"mlp_bias": True}, ("config.json", "mlp_bias")),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ("config.json", "longrope")),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, ("dynamic",)),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, ("config.json", "0.5")),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "hook": 1}}, ("hook",)),
        (
            {"quantization_config": {"bits": 4}},
            ("config.json: the weights are quantized (4 bits); give the model as it",),
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ("the weights are quantized (gptq, 4 bits)",)),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, ("the weights are quantized (fp8)",)),
        ({"quantization": {"group_size": 64, "bits": 8}}, ("the weights are quantized (8 bits)",)),
        ({"a_new_invention": 0.5}, ("config.json", "a_new_invention")),
        ({"is_decoder": True}, ("config.json", "is_decoder")),
        ({"tie_word_embeddings": True}, ("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings")),
        ({"architectures": ["LlamaForSequenceClassification"]}, ("LlamaForSequenceClassification", "LlamaForCausalLM")),
        (
            {"model_type": "lama"},
            (
                "lama is not read: qkv has no table of its tensors' names; docs/families.md lists what is read (",
                "config.json)",
            ),
        ),
        ({"model_type": None}, ("config.json names no model_type", "docs/families.md")),
        ({"model_type": "qkv"}, ("architectures", "LlamaForCausalLM", "QkvForSeq2SeqLM")),
        ({"model_type": "qkv", "architectures": ["QkvForCausalLM"], "sizes": 3}, ("config.json", "sizes is 3")),
        (
            {"model_type": "qkv", "architectures": ["QkvForCausalLM"], "sizes": {"d_modle": 3}},
            ("config.json", "sizes.d_modle", "sizes.d_model"),
        ),
    ],
)
def test_a_config_that_lies_or_asks_for_what_is_not_here_is_refused_by_name(folder, settings, words):
    change_config(folder, **settings)
    refused(folder, *words)


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
@pytest.mark.parametrize(
    "settings", [{"scale_attn_by_inverse_layer_idx": True}, {"activation_function": "quick_gelu"}, {"n_inner": 7.5}]
)
def test_what_gpt2_can_ask_for_and_is_not_here_is_refused(folder, settings):
    change_config(folder, **settings)
    refused(folder, "config.json", next(iter(settings)))


@pytest.mark.parametrize(
    ("name", "idle", "other"),
    [
        ("llama", {"is_llama_config": True, "rope_interleaved": False}, {"rope_interleaved": True}),
        ("llama", {"activation": "swiglu", "transformers.js_config": {"dtype": "q4"}}, {"activation": "geglu"}),
        ("qwen2", {"use_mrope": False}, {"use_mrope": True}),
        ("gpt2", {"n_special": 0, "predict_special_tokens": True}, {"n_special": 3}),
        ("neox", {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0.0}, {"hidden_dropout_prob": 0.1}),
    ],
)
def test_keys_of_public_files_that_compute_nothing_are_read_and_their_other_values_refused(
    name, idle, other, theirs, tmp_path
):
    theirs.save_theirs(tmp_path / name, name)
    config = read_checkpoint(tmp_path / name).config
    change_config(tmp_path / name, **idle)
    assert read_checkpoint(tmp_path / name).config == config
    change_config(tmp_path / name, **other)
    refused(tmp_path / name, "config.json", next(iter(other)))


def test_rotary_settings_that_a_file_says_twice_must_agree(theirs, tmp_path):
    """GPT-NeoX as versions before 5 of transformers save it again: base and share by two names each."""
    folder = tmp_path / "neox"
    theirs.save_theirs(folder, "neox")
    change_config(folder, rope_parameters="gone", rotary_emb_base=500, rotary_pct=0.25)
    config = read_checkpoint(folder).config
    assert (config.layout.rope_base, config.layout.rope_share) == (500.0, 0.25)
    change_config(folder, rope_theta=500.0, partial_rotary_factor=0.25)
    assert read_checkpoint(folder).config == config
    change_config(folder, rope_theta=10000)
    refused(folder, "config.json: rope_theta is 10000; qkv reads it equal to rotary_emb_base, which is 500")
    change_config(folder, rope_theta=500, partial_rotary_factor=1.0)
    refused(folder, "partial_rotary_factor is 1.0; qkv reads it equal to rotary_pct, which is 0.25")
    change_config(folder, partial_rotary_factor="all")
    refused(folder, "partial_rotary_factor", "expected a number")


def test_a_note_that_versions_before_5_of_transformers_keep_of_their_attention_is_read_over(folder):
    config = read_checkpoint(folder).config
    change_config(folder, _attn_implementation_autoset=True)
    assert read_checkpoint(folder).config == config


def test_a_live_model_of_such_a_file_is_watched(theirs):
    """`qkv.watch` reads the configuration by the same map."""
    from qkv.interop.mirror import mirror_of

    model = theirs.make_theirs("qwen2", torch.float32)
    model.config.use_mrope = False
    assert mirror_of(model).config.layout.positions == "rotary"
    model.config.use_mrope = True
    with pytest.raises(ConfigError, match="use_mrope"):
        mirror_of(model)


def test_a_rotary_share_without_even_number_is_refused(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "neox", "neox")
    change_config(tmp_path / "neox", rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.4})
    refused(tmp_path / "neox", "config.json", "rope_share 0.4 of d_head 8 is 3")


def test_a_sliding_window_is_read_where_it_hides_something(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "m", "mistral")
    change_config(tmp_path / "m", sliding_window=9)
    assert read_checkpoint(tmp_path / "m").config.layout.window == 9
    change_config(tmp_path / "m", layer_types=["full_attention"] * 3)  # Mistral reads the width alone
    assert read_checkpoint(tmp_path / "m").config.layout.window == 9
    change_config(tmp_path / "m", sliding_window="gone", max_position_embeddings=8192)
    assert read_checkpoint(tmp_path / "m").config.layout.window == 4096  # what transformers takes for a width not said
    change_config(tmp_path / "m", sliding_window=None)
    assert read_checkpoint(tmp_path / "m").config.layout.window == 0
    change_config(tmp_path / "m", sliding_window=8192)  # as wide as the context
    assert read_checkpoint(tmp_path / "m").config.layout.window == 0


def test_two_rotary_scalings_that_disagree_are_refused(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "m", "mistral")
    said = {"rope_theta": 500.0, "rope_type": "default"}
    change_config(tmp_path / "m", rope_parameters=said, rope_scaling={"rope_type": "linear", "factor": 3.0})
    refused(tmp_path / "m", "rope_scaling", "rope_parameters says otherwise")
    change_config(tmp_path / "m", rope_scaling=said)
    assert read_checkpoint(tmp_path / "m").config.layout.rope_base == 500


def test_tokenizer_ids_beyond_the_table_are_refused(folder):
    change_tensors(
        folder,
        lambda t: t.update({k: t[k][:10].clone() for k in ("model.embed_tokens.weight", "lm_head.weight")}),
    )
    change_config(folder, vocab_size=10)
    refused(folder, "tokenizer", "ids up to", "10 rows")


def test_folders_that_are_no_model(tmp_path):
    refused(tmp_path / "nowhere", "is not there")
    refused(tmp_path, "is not a model", "config.json")
    (tmp_path / "config.json").write_text("{not json")
    refused(tmp_path, "config.json", "JSON")
    (tmp_path / "config.json").write_text("[" * 200_000)
    refused(tmp_path, "config.json", "JSON")
    (tmp_path / "config.json").write_text("[1]")
    refused(tmp_path, "config.json", "no JSON object")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    refused(tmp_path, "config.json", "JSON")


def test_a_file_in_place_of_its_folder_is_called_a_file_and_the_folder_is_named(folder, tmp_path):
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        refused(folder / name, f"{folder / name} is a file", f"give the folder with its config.json: {folder}")
    (tmp_path / "alone.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    refused(tmp_path / "alone.safetensors", "is a file of weights without their settings", "expected a folder with")
    for name, what in (("a.bin", "pickled"), ("a.gguf", "GGUF"), ("a.txt", "is a file; expected a folder")):
        (tmp_path / name).write_bytes(b"")
        refused(tmp_path / name, what, "config.json and model.safetensors")


def test_places_that_look_like_a_model_say_what_to_give(folder, tmp_path, monkeypatch):
    refused(tmp_path, "is not a model", f"give the folder with its config.json: {folder}")
    cache = tmp_path / "hub" / "models--org--name"
    (cache / "snapshots").mkdir(parents=True)
    folder.rename(cache / "snapshots" / "607a30d")
    refused(cache, "is not a model", f"give the folder with its config.json: {cache / 'snapshots' / '607a30d'}")
    (tmp_path / "config.toml").write_text("")
    refused(tmp_path, "is a run of qkv already", "qkv show")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"org/name is not there; .*; a model of the hub is named hf:org/name$"):
        read_checkpoint("org/name")


def test_a_huge_json_is_not_read(folder):
    with open(folder / "config.json", "r+b") as file:
        file.truncate(100 << 20)
    refused(folder, "config.json", "104,857,600 bytes")


@pytest.mark.skipif(os.name == "nt", reason="a file with a hole in it needs more than this on Windows")
@pytest.mark.parametrize(("name", "size"), [("tokenizer.json", 600 << 20), ("generation_config.json", 100 << 20)])
def test_other_huge_files_are_not_read_either(folder, name, size):
    with open(folder / name, "r+b") as file:
        file.truncate(size)
    refused(folder, name, f"{size:,} bytes")


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_a_shard_that_is_a_link_out_of_the_folder_is_refused(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "s", "llama", max_shard_size="20KB")
    shard = sorted((tmp_path / "s").glob("model-*.safetensors"))[1]
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    refused(tmp_path / "s", shard.name, "leads out of the folder")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt", "weights.pt"])
def test_pickled_weights_are_refused_with_the_way_to_convert(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refused(folder, name, "pickled", "save_pretrained")


def test_other_formats_and_no_weights_are_named(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "no weights", "model.safetensors")
    (folder / "model.gguf").write_bytes(b"GGUF")
    refused(folder, "GGUF", "model.gguf")


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_link_out_of_the_folder_is_refused(folder, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / name).rename(elsewhere / name)
    (folder / name).symlink_to(elsewhere / name)
    refused(folder, name, "leads out of the folder")


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_the_cache_of_the_hub_is_read_through_its_links(folder, tmp_path):
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True), snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        path.rename(blobs / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    assert read_checkpoint(snapshot).tokenizer is not None


def test_an_index_that_lies_is_refused(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "s", "llama", max_shard_size="20KB")
    path = tmp_path / "s" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]

    def with_map(**changes):
        path.write_text(json.dumps(index | {"weight_map": index["weight_map"] | changes}))

    with_map(**{KEY: first if index["weight_map"][KEY] != first else second})
    refused(tmp_path / "s", KEY, "index.json")
    with_map(**{KEY: "../other/model.safetensors"})
    refused(tmp_path / "s", "../other/model.safetensors")
    with_map(**{KEY: "gone.safetensors"})
    refused(tmp_path / "s", "gone.safetensors", "not complete")
    path.write_text("{}")
    refused(tmp_path / "s", "weight_map")


@pytest.mark.parametrize("name", ["granitemoe", "umt5", "electro", "berta", "gpt_neo2", "qwen3_moe", "mistral3"])
def test_another_kind_of_model_is_named_without_a_guess(folder, name):
    change_config(folder, model_type=name)
    assert "did you mean" not in refused(folder, f"{name} is not read: ", "docs/families.md")


def test_no_quantization_is_none(folder):
    change_config(folder, quantization_config=None)
    assert read_checkpoint(folder).config.sizes.n_layers == 3


@pytest.mark.parametrize("name", ["qweight", "scales", "weight.absmax", "weight_scale"])
def test_what_quantization_adds_to_the_tensors_is_called_that(folder, name):
    added = KEY.removesuffix("weight") + name
    change_tensors(folder, lambda tensors: tensors.update({added: torch.zeros(3, 4)}))
    assert "did you mean" not in refused(
        folder, f"{added} in ", "is part of a quantized weight; give the model as it was"
    )


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4\n"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
def test_what_git_lfs_leaves_in_place_of_a_file_is_named(folder, name):
    (folder / name).write_text(POINTER)
    assert "git lfs pull" in refused(folder, name, "is a git-lfs pointer and not the file itself")


def test_shards_that_git_lfs_has_not_fetched_are_named(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "s", "llama", max_shard_size="20KB")
    shard = sorted((tmp_path / "s").glob("model-*.safetensors"))[1]
    shard.write_text(POINTER)
    refused(tmp_path / "s", shard.name, "is a git-lfs pointer")


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"<!DOCTYPE html>\n<html>", "is a web page (HTML)"), (b"PK\x03\x04" + bytes(30), "is a zip archive")],
)
def test_weights_that_are_something_else_are_called_that(folder, data, words):
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, "model.safetensors", words, "and not a safetensors file")


@pytest.mark.parametrize("files", [("adapter_config.json", "adapter_model.safetensors"), ("adapter_model.bin",)])
def test_an_adapter_is_called_one(folder, tmp_path, files):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in files:
        (adapter / name).write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    to, do = (
        ("org/base", "--base DIR --out RUN") if len(files) > 1 else ("another model", "--base DIR; or merge the two")
    )
    refused(adapter, f"is an adapter (such as LoRA) to {to}, and not a model; give ", do)
    (adapter / "config.json").write_bytes((folder / "config.json").read_bytes())
    refused(adapter, f"is an adapter (such as LoRA) to {to}")


def test_an_adapter_among_the_weights_is_called_one(folder):
    base = KEY.removesuffix("weight")

    def unmerged(tensors):
        tensors[f"{base}base_layer.weight"] = tensors.pop(KEY)
        tensors[f"{base}lora_A.default.weight"] = torch.zeros(2, 24)

    change_tensors(folder, unmerged)
    refused(folder, "lora_A.default.weight", "is part of an adapter (LoRA) that was not merged", "--base DIR; or merge")


PREFIXES = ("_orig_mod.", "module.", "base_model.model.", "module._orig_mod.", "_orig_mod.module.", "student.net.")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("folder", ["llama", "gpt2", "bert"], indirect=True)
def test_a_prefix_before_every_name_is_taken_off_and_said(folder, prefix):
    plain = read_checkpoint(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {prefix + name: values for name, values in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    found = read_checkpoint(folder)
    assert list(found.state) == list(plain.state)
    assert all(torch.equal(found.state[address], values) for address, values in plain.state.items())
    notes = [note for note in found.notes if note not in plain.notes]
    outer = prefix.replace("_orig_mod.", "")
    assert [note for note in notes if "torch.compile" in note] == notes[: "_orig_mod" in prefix]
    assert notes[-1] == f"the prefix {outer} was taken off the names of all tensors" if outer else len(notes) == 1


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_wrappers_of_single_layers_are_taken_off(folder, wrapper):
    plain = read_checkpoint(folder).state
    tensors = load_file(folder / "model.safetensors")
    renamed = {re.sub(r"(layers\.\d+\.)", rf"\1{wrapper}.", name): values for name, values in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    found = read_checkpoint(folder)
    assert all(torch.equal(found.state[address], values) for address, values in plain.items())
    assert any(f"{wrapper}. was taken off the names of tensors" in note for note in found.notes)


def test_a_base_model_without_its_own_prefix_is_read_behind_another(theirs, tmp_path):
    folder = tmp_path / "gpt2"
    theirs.save_theirs(folder, "gpt2")
    plain = read_checkpoint(folder).state
    tensors = load_file(folder / "model.safetensors")
    bare = {"module." + name.removeprefix("transformer."): values for name, values in tensors.items()}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    found = read_checkpoint(folder).state
    assert all(torch.equal(found[address], values) for address, values in plain.items())


def test_a_tensor_behind_a_prefix_is_named_as_its_file_has_it(folder):
    tensors = {"module." + name: values for name, values in load_file(folder / "model.safetensors").items()}
    save_file(tensors | {"module." + KEY: torch.zeros(5, 24)}, folder / "model.safetensors", {"format": "pt"})
    refused(folder, f"module.{KEY} in ", "is [5, 24]; by config.json it is [12, 24]")
    save_file(tensors | {"module.extra.weight": torch.zeros(5)}, folder / "model.safetensors", {"format": "pt"})
    refused(folder, "module.extra.weight in ", "is no tensor of a Llama")


def test_names_of_which_some_have_a_prefix_stay_as_they_are(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["ema." + KEY] = tensors[KEY].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    refused(folder, f"ema.{KEY} in ", "is no tensor of a Llama")
    save_file({"_orig_mod." + KEY: tensors[KEY].clone()} | tensors, folder / "model.safetensors", {"format": "pt"})
    refused(folder, "_orig_mod." + KEY, "is no tensor of a Llama")


def test_quantized_and_broken_tokenizers_are_named(folder):
    change_tensors(folder, lambda tensors: tensors.update({KEY: torch.zeros(12, 24, dtype=torch.int8)}))
    refused(folder, KEY, "stored as I8, quantized", "model.safetensors")
    (folder / "tokenizer.json").write_text('{"model"')
    change_tensors(folder, lambda tensors: tensors.update({KEY: torch.zeros(12, 24)}))
    refused(folder, "tokenizer")


@pytest.mark.parametrize("folder", ["bert"], indirect=True)
def test_heads_of_other_uses_are_left_out_and_said(folder):
    others = {"bert.pooler.dense.weight": torch.zeros(24, 24), "bert.pooler.dense.bias": torch.zeros(24)}
    change_tensors(folder, lambda tensors: tensors.update(others))
    change_config(folder, architectures=["BertForPreTraining"])
    (note,) = [note for note in read_checkpoint(folder).notes if "pooler" in note]
    assert "2 tensors" in note and "left out" in note


def test_the_command_makes_nothing_of_a_broken_folder(folder, tmp_path, capsys):
    change_tensors(folder, lambda tensors: tensors.pop(KEY))
    assert main(["import", str(folder), "--out", str(tmp_path / "runs" / "new")]) == 2
    said = capsys.readouterr()
    assert KEY in said.err and "Traceback" not in said.err and said.out == ""
    assert not (tmp_path / "runs").exists()


def test_the_command_names_the_folder_of_a_file(folder, tmp_path, capsys):
    assert main(["import", str(folder / "model.safetensors"), "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert f"give the folder with its config.json: {folder}" in said and said.count("\n") <= 2
    assert not (tmp_path / "new").exists()


def test_every_file_that_is_read_is_fetched():
    """By the names in the source: whatever reading a folder opens there is asked of the hub."""
    from qkv.interop import folders, hub, importing, tokenizer_files
    from qkv.tokenizers import pretrained, sentencepiece, slow_files

    modules = (importing, tokenizer_files, folders, pretrained, sentencepiece, slow_files)
    text = "".join(Path(module.__file__).read_text("utf-8") for module in modules)
    names = set(re.findall(r'"([\w.]+\.(?:json|txt|spm|bpe|safetensors))"', text))
    assert {"generation_config.json", "preprocessor_config.json", "vocab.bpe", "model.safetensors"} <= names
    assert [name for name in sorted(names) if not any(fnmatch(name, pattern) for pattern in hub.PATTERNS)] == []


def test_a_model_of_the_hub_is_fetched_without_code_or_pickles(folder, monkeypatch):
    asked = []

    def snapshot_download(name, *, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        if name != "org/known":
            raise RuntimeError(f"no model {name}\nand a long story")
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert read_checkpoint("hf:org/known@main").family.name == "llama"
    ((name, revision, patterns),) = asked
    assert (name, revision) == ("org/known", "main")
    assert not any(fnmatch(file, p) for p in patterns for file in ("pytorch_model.bin", "modeling.py", "a.pkl"))
    refused("hf:org/wrong", "hf:org/wrong cannot be fetched: no model org/wrong")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=re.escape(install("hub"))):
        read_checkpoint("hf:org/known")


def test_more_layers_than_the_files_have_tensors_are_refused_before_they_are_laid_out(folder):
    change_config(folder, num_hidden_layers=1000)
    refused(folder, "1,000 layers", "tensors in all")
    change_config(folder, num_hidden_layers=100_000_000)
    refused(folder, "n_layers is 100000000", "at most 1,024")
