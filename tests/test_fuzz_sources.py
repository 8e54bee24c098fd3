"""Whatever lies in a file that is given to read, our readers answer with a value or with one of our errors.

Texts, tables, lines of labels, pairs, images, word vectors, tokenizers and configurations of models, each mangled from
a real one; as in `test_fuzz`, a longer campaign is `QKV_FUZZ=100000 pytest tests/test_fuzz_sources.py`.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.config import DataConfig
from qkv.data.images import read_idx
from qkv.data.labelled import read_labelled
from qkv.data.pairs import load_pairs
from qkv.data.sources import open_source
from qkv.data.tokenising import tokenise
from qkv.data.tokenizers import fit_tokenizer, load_tokenizer
from qkv.data.vectors import read_vectors
from qkv.errors import QkvError, RunFolderError
from qkv.interop.importing import read_model_config
from qkv.training.tensorfile import load_rows
from test_fuzz import FUZZ, JSON, mangled_bytes

TABLE = 'text,label\n"the cat, sees",1\na dog,0\n"a ""king""",1\nthe queen,0\n' * 3
LINES = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in [("the cat", "a"), ("é", "b")] * 4)
TEXT = "The cat sees a dog.\nA kïng — and a queen.\n" * 4
FILES = {
    "a.txt": TEXT.encode(),
    "a.txt.gz": gzip.compress(TEXT.encode(), mtime=0),
    "a.csv": TABLE.encode(),
    "a.tsv": TABLE.replace(",", "\t").encode(),
    "a.jsonl": LINES.encode(),
}
LABELLED = FILES | {"lines.txt": b"0 the cat\n1 a dog\n0 a king\n1 the queen\n" * 3}
IDX = b"\0\0\x08\x03" + np.array([3, 2, 2], ">i4").tobytes() + bytes(range(12))
VECTORS = {
    "a.txt": b"2 3\nthe 1 2 3\ncat 0.5 -1 1e-3\n",
    "b.vec": b"the 1 2 3\nnew york 0.5 -1 1e-3\n",
    "a.bin": b"2 3\nthe " + np.ones(3, "<f4").tobytes() + b"\ncat " + np.ones(3, "<f4").tobytes(),
    "a.bin.gz": gzip.compress(b"1 2\nthe " + np.ones(2, "<f4").tobytes(), mtime=0),
}
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50, "n_positions": 16, "n_embd": 12,
    "n_layer": 2, "n_head": 3, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "eos_token_id": 3,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50, "max_position_embeddings": 16,
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_act": "silu",
    "intermediate_size": 20, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8},
}  # fmt: skip


def answers(read: Callable[[], Any]) -> None:
    """It gives a value or one of our errors, short enough for a person."""
    try:
        read()
    except QkvError as error:
        assert 0 < len(str(error)) < 2000


def mangled_file(data: st.DataObject, folder: Path, files: dict[str, bytes]) -> Path:
    """One of these files with some bytes changed, its end cut off, or something put in the middle of it."""
    name = data.draw(st.sampled_from(sorted(files)))
    content = data.draw(mangled_bytes(files[name]))
    if data.draw(st.booleans()):
        at, odd = data.draw(st.integers(0, len(content))), data.draw(st.binary(max_size=6) | st.sampled_from(ODD))
        content = content[:at] + odd + content[at:]
    path = folder / name
    path.write_bytes(content)
    return path


ODD = [
    b'"',
    b"\0",
    b"\r",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    "²".encode(),
    b"-1",
    b"99999999999999999999",
    b"nan",
    b"1e999",
    b"{",
]


@FUZZ
@given(data=st.data())
def test_mangled_texts_and_tables(tmp_path: Path, data: st.DataObject) -> None:
    path = mangled_file(data, tmp_path, FILES)
    column = data.draw(st.sampled_from(["", "text", "label", "none"]))
    answers(lambda: list(open_source(DataConfig(source=str(path), text_column=column)).chunks()))


@FUZZ
@given(data=st.data())
def test_mangled_labels(tmp_path: Path, data: st.DataObject) -> None:
    path = mangled_file(data, tmp_path, LABELLED)
    column = data.draw(st.sampled_from(["", "label", "text"]))
    answers(lambda: read_labelled(DataConfig(source=str(path), label_column=column)))


@FUZZ
@given(data=st.data())
def test_mangled_pairs(tmp_path: Path, data: st.DataObject) -> None:
    left = mangled_file(data, tmp_path, {"left.txt": TEXT.encode() * 3})
    (tmp_path / "right.txt").write_bytes(TEXT.encode() * 3)
    answers(lambda: load_pairs(DataConfig(source=f"{left}:{tmp_path / 'right.txt'}", tokenizer="char")))


@FUZZ
@given(data=st.data())
def test_mangled_images(tmp_path: Path, data: st.DataObject) -> None:
    path = mangled_file(data, tmp_path, {"a-idx3-ubyte": IDX, "b-idx3-ubyte.gz": gzip.compress(IDX, mtime=0)})
    answers(lambda: read_idx(path, data.draw(st.sampled_from([(3,), (3, 4), (1,)]))))


@FUZZ
@given(sizes=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3))
def test_images_of_any_size_in_their_header(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "a-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + np.array(sizes, ">i4").tobytes() + bytes(12))
    answers(lambda: read_idx(path, (3,)))


@FUZZ
@given(data=st.data())
def test_mangled_word_vectors(tmp_path: Path, data: st.DataObject) -> None:
    path = mangled_file(data, tmp_path, VECTORS)
    answers(lambda: read_vectors(path))


@FUZZ
@given(count=st.integers(0, 10**22), width=st.integers(0, 10**22))
def test_word_vectors_of_any_size_in_their_header(tmp_path: Path, count: int, width: int) -> None:
    for name in ("a.txt", "a.bin"):
        path = tmp_path / name
        path.write_bytes(f"{count} {width}\n".encode() + b"the 1 2 3\n")
        answers(lambda path=path: read_vectors(path))


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return fit_tokenizer("bpe", [TEXT], 260).to_json().encode()


@FUZZ
@given(data=st.data())
def test_mangled_tokenizers(tokenizer_json: bytes, tmp_path: Path, data: st.DataObject) -> None:
    vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\ncat\n"
    path = mangled_file(data, tmp_path, {"tokenizer.json": tokenizer_json, "vocab.txt": vocabulary})
    answers(lambda: load_tokenizer(path).encode("the cat"))


@FUZZ
@given(data=st.data())
def test_mangled_configurations_of_models(tmp_path: Path, data: st.DataObject) -> None:
    config = dict(data.draw(st.sampled_from([GPT2, LLAMA])))
    if data.draw(st.booleans()):
        values = JSON | st.integers(-(2**40), 2**40) | st.floats()
        for name in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
            config[name] = data.draw(values)
        content = json.dumps(config).encode()
    else:
        content = data.draw(mangled_bytes(json.dumps(config).encode()))
    (tmp_path / "config.json").write_bytes(content)
    answers(lambda: read_model_config(tmp_path))


@FUZZ
@given(data=st.data())
def test_a_mangled_note_of_how_far_tokens_were_written(tmp_path: Path, data: st.DataObject) -> None:
    from qkv.data.sources import Chunk

    chunks, file = [Chunk(TEXT, False), Chunk(TEXT, True)], tmp_path / "train.ids"
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    tokenizer = fit_tokenizer("byte", [TEXT], 0)
    whole = tokenise(chunks, tokenizer, None, file).ids.copy()
    note = json.loads((tmp_path / "train.done").read_text())
    if data.draw(st.booleans()):
        note[data.draw(st.sampled_from(sorted(note)))] = data.draw(JSON)
        (tmp_path / "train.done").write_text(json.dumps(note))
    else:
        (tmp_path / "train.done").write_bytes(data.draw(mangled_bytes(json.dumps(note).encode())))
    answers(lambda: tokenise(chunks, tokenizer, None, file))
    assert len(whole) == 2 * len(TEXT.encode())


@FUZZ
@given(data=st.data())
def test_mangled_weights_read_by_rows(tmp_path: Path, data: st.DataObject) -> None:
    from safetensors.numpy import save

    sample = save({"W_E": np.ones((5, 3), np.float32), "updates": np.ones((), np.float32)})
    path = mangled_file(data, tmp_path, {"optimizer.safetensors": sample})
    try:
        load_rows(path, {"W_E": ((5, 3), 2, 4), "updates": ((), 0, 0)})
    except RunFolderError as error:
        assert str(path) in str(error)
