"""What is imported as it stands: tables that differ from a rule, files by what they are, whole words as examples."""

import importlib
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import SourceError
from qkv.interop import read_checkpoint
from qkv.tokenizers.tokenizer import fit_tokenizer

example = importlib.import_module("qkv.commands.import")._example


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_table_of_sines_is_compared_with_the_rule(dtype, theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "m", "marian")
    path, name = tmp_path / "m" / "model.safetensors", "model.encoder.embed_positions.weight"
    table = model.model.encoder.embed_positions.weight.detach().clone()
    plain = load_file(path)
    save_file(plain | {name: table.to(dtype)}, path, metadata={"format": "pt"})
    assert len(read_checkpoint(tmp_path / "m").state) > 0
    table[3] += 0.25
    save_file(plain | {name: table.to(dtype)}, path, metadata={"format": "pt"})
    with pytest.raises(SourceError, match=r"embed_positions.weight in .* holds other numbers .* \(up to 0.25\d* off\)"):
        read_checkpoint(tmp_path / "m")
    save_file(plain | {name: table[:5].contiguous()}, path, metadata={"format": "pt"})
    with pytest.raises(
        SourceError, match=r"embed_positions.weight in .* is \[5, 24\]; by config.json it is \[24, 24\]"
    ):
        read_checkpoint(tmp_path / "m")


def test_bare_numbers_are_no_pickle(tmp_path):
    (tmp_path / "stories.bin").write_bytes(struct.pack("7i", 64, 172, 5, 8, 4, 512, 512) + bytes(99))
    with pytest.raises(SourceError, match=r"is a file of bare numbers \(llama2.c writes such\) and no pickle"):
        read_checkpoint(tmp_path / "stories.bin")
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.bin")
    with pytest.raises(SourceError, match="pickled weights"):
        read_checkpoint(tmp_path / "a.bin")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_an_example_is_a_whole_word(kind):
    words = "children remember wonderful mountains because together something little".split()
    tokenizer = fit_tokenizer(kind, [" ".join(words * 40)], 330 if kind == "bpe" else 90)
    assert example("nothing here", tokenizer) in {*words, ""}
