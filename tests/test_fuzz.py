"""Whatever is typed, given to read or lies in a run folder, our parsers answer with a value or an error of ours.

Never another exception, and never a hang: what is drawn is bounded, and so is what a parser may do with it. Inputs are
mutations of real ones, since random bytes hardly pass the first character. The seeds are fixed; a longer campaign,
which counts and keeps its seeds, is `tests/campaigns/fuzz.py`.
"""

import gzip
import io
import json
import os
import shutil
import sqlite3
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.changes.grammar import parse_changes
from qkv.commands.arguments import settings as read_settings
from qkv.commands.arguments import split_changes
from qkv.config import dump_toml, from_dict, load_toml, override, to_dict
from qkv.data.config import DataConfig
from qkv.data.images import read_idx
from qkv.data.labelled import read_labelled
from qkv.data.pairs import load_pairs
from qkv.data.sources.source import Chunk, open_source
from qkv.data.tokenizing import tokenise
from qkv.data.vectors import read_vectors
from qkv.errors import ConfigError, QkvError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import state_digest
from qkv.interop.families import FAMILIES
from qkv.interop.importing import as_model, read_model_config
from qkv.interop.settings import Always, Reading, read_config
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.models.matrices import Catalogue
from qkv.recipe.audit.verification import verify
from qkv.recipe.config import RunConfig
from qkv.telemetry import Telemetry, select
from qkv.tokenizers.tokenizer import fit_tokenizer, load_tokenizer
from qkv.training.checkpoint import latest_valid, standing
from qkv.training.config import TrainingConfig
from qkv.training.tensorfile import load_rows, load_tensors

FUZZ = settings(
    max_examples=int(os.environ.get("QKV_FUZZ", "50")),
    deadline=None,
    derandomize="QKV_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)

SELECTORS = ["W_E", "L0.W_Q", "L[0-1].W_[QK]", "L1.H0.W_V", "**", "-L0.**", "attn,-L0.W_O", "L*.H[0-1].QK", "W_E[3]"]
CHANGES = [
    "W_E=freeze",
    "L0.W_Q=random(0.02)@5..9",
    "L1.W_K=share(L1.W_Q)",
    "L0.W_V=load(a/b:W_E@8)",
    "W_U=rank(2)@..4",
]
ODD = "[]()@=.,*-:0123456789LHKVWEQ \t\n\x00é漢\"'\\/{}"


def mangled(samples: list[str]) -> st.SearchStrategy[str]:
    """A real text with up to four pieces cut out, doubled or replaced by odd characters; or odd characters alone."""

    @st.composite
    def draw(take) -> str:
        text = take(st.sampled_from(samples))
        for _ in range(take(st.integers(0, 4))):
            a, b = sorted((take(st.integers(0, len(text))), take(st.integers(0, len(text)))))
            middle = take(st.sampled_from(["", text[a:b] * 2])) + take(st.text(ODD, max_size=4))
            text = text[:a] + middle + text[b:]
        return text[:400]

    return st.one_of(draw(), st.text(ODD, max_size=30), st.text(max_size=12))


def mangled_bytes(sample: bytes) -> st.SearchStrategy[bytes]:
    """A real file with a few bytes changed, or its end cut off."""
    where = st.integers(0, max(0, len(sample) - 1))

    @st.composite
    def draw(take) -> bytes:
        data = bytearray(sample)
        for position in take(st.lists(where, max_size=6)):
            data[position] = take(st.integers(0, 255))
        return bytes(data[: take(where)] if take(st.booleans()) else data)

    return draw()


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    sizes = Sizes(d_vocab=12, d_model=8, n_layers=2, n_heads=2, n_ctx=8).resolved()
    layout = Layout(positions="rotary", norm="rms", qk_norm=False, mlp="gelu", bias=False, tied=False, dropout=0.0)
    return Catalogue(build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), 0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_text: Path) -> Path:
    """A small finished run."""
    import qkv

    patch = pytest.MonkeyPatch()
    patch.setattr("qkv.api.cache_folder", lambda: tmp_path_factory.getbasetemp() / "fuzz-cache")
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 8, "batch_size": 2}
    out = tmp_path_factory.mktemp("fuzz") / "run"
    made = qkv.train(small_text, tokenizer="char", steps=9, out=out, set=sizes, report=False)
    patch.undo()
    return made.path


@FUZZ
@given(text=mangled(SELECTORS))
def test_selectors_and_addresses(catalogue: Catalogue, text: str) -> None:
    for read in (catalogue.select, catalogue.part, catalogue.view, catalogue.circuit):
        try:
            read(text)
        except QkvError as error:
            assert 0 < len(str(error)) < 2000
    try:
        select(text, catalogue.addresses)
    except QkvError as error:
        assert len(str(error)) < 2000


@FUZZ
@given(text=mangled(CHANGES))
def test_changes(text: str) -> None:
    try:
        for change in parse_changes(text):
            assert [str(one) for one in parse_changes(str(change))] == [str(change)]
    except QkvError as error:
        assert len(str(error)) < 2000
    try:
        split_changes([text])
    except QkvError:
        pass


@FUZZ
@given(text=mangled(["d_model=128,n_layers=4", "optimizer.lr=1e-3", "training.on_spike=ignore", "steps=nan,clip=inf"]))
def test_settings_that_are_typed(text: str) -> None:
    try:
        changed = override(TrainingConfig(), dict(read_settings([text])))
    except ConfigError:
        return
    assert from_dict(TrainingConfig, to_dict(changed)) == changed


@FUZZ
@given(value=st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(max_size=20)),
    lambda inner: st.dictionaries(
        st.text(string.ascii_letters + "_", min_size=1, max_size=8), inner, min_size=1, max_size=4),
    max_leaves=12).filter(lambda value: isinstance(value, dict)))  # fmt: skip
def test_what_is_written_as_toml_is_read_back(tmp_path: Path, value: dict) -> None:
    path = tmp_path / "a.toml"
    path.write_text(dump_toml(value), encoding="utf-8")
    assert load_toml(path) == value


@FUZZ
@given(data=st.data())
def test_a_mangled_configuration(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(data.draw(mangled_bytes((run / "config.toml").read_bytes())))
    try:
        RunConfig.read(path)
    except RunFolderError as error:
        assert str(path) in str(error)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(data=st.data())
def test_a_mangled_manifest(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = RunFolder(tmp_path)
    manifest = json.loads((run / "manifest.json").read_text())
    if data.draw(st.booleans()):
        manifest[data.draw(st.sampled_from(sorted(manifest)))] = data.draw(JSON)
        content = json.dumps(manifest).encode()
    else:
        content = data.draw(mangled_bytes((run / "manifest.json").read_bytes()))
    folder.manifest.write_bytes(content)
    try:
        folder.damaged_files()
    except RunFolderError as error:
        assert len(str(error)) < 2000


@FUZZ
@given(data=st.data())
def test_a_mangled_state(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = RunFolder(tmp_path)
    path = tmp_path / "checkpoints" / "step-00000009"
    path.mkdir(parents=True, exist_ok=True)
    content = json.loads((run / "checkpoints" / "step-00000009" / "state.json").read_text())
    part = data.draw(st.sampled_from(["training", "files", "bytes"]))
    if part == "bytes":
        raw = data.draw(mangled_bytes(json.dumps(content).encode()))
    else:  # the hash made to agree: what an attacker would do
        content.pop("sha256")
        content[part][data.draw(st.sampled_from(sorted(content[part])))] = data.draw(JSON)
        content["sha256"] = state_digest(content)
        raw = json.dumps(content).encode()
    (path / "state.json").write_bytes(raw)
    standing(folder)
    latest_valid(folder)


@FUZZ
@given(data=st.data())
def test_mangled_weights(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data.draw(mangled_bytes((run / "model.safetensors").read_bytes()[:3000])))
    try:
        load_tensors(path)
    except RunFolderError as error:
        assert str(path) in str(error)


@FUZZ
@given(data=st.data())
def test_mangled_telemetry(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "telemetry.sqlite"
    path.write_bytes(data.draw(mangled_bytes((run / "telemetry.sqlite").read_bytes()[:16384])))
    try:
        with Telemetry(path) as telemetry:
            telemetry.faults(), telemetry.steps(), telemetry.evaluations(), telemetry.facts()
    except (QkvError, sqlite3.DatabaseError, ValueError) as error:
        assert isinstance(error, QkvError), repr(error)


@settings(FUZZ, max_examples=max(10, FUZZ.max_examples // 10))
@given(data=st.data())
def test_verify_of_a_mangled_run(run: Path, tmp_path: Path, data: st.DataObject) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    files = sorted(str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file() and p.name != ".lock")
    path = copy / data.draw(st.sampled_from(files))
    before = path.read_bytes()
    after = data.draw(mangled_bytes(before))
    path.unlink()
    path.write_bytes(after)
    try:
        verdict = verify(copy, updates=0)
    except RunFolderError:
        return
    if path.name not in ("source.json",):
        assert verdict.is_whole == (meaning(path, before) == meaning(path, after))


def meaning(path: Path, content: bytes) -> bytes | str:
    """What hashes of a file are made of: of JSON the values, so that a line end at its end is none."""
    try:
        return json.dumps(json.loads(content)) if path.suffix == ".json" else content
    except ValueError:
        return content


# what is given to read

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
        at, odd = data.draw(st.integers(0, len(content))), data.draw(st.binary(max_size=6) | st.sampled_from(STRANGE))
        content = content[:at] + odd + content[at:]
    path = folder / name
    path.write_bytes(content)
    return path


STRANGE = [
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


@pytest.fixture(scope="module")
def sides() -> dict[str, bytes]:
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs the dev extra (sentencepiece)")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split(".") * 20), model_writer=model, vocab_size=60, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    table = {"</s>": 0, "<unk>": 1, "\u2581the": 2, "\u2581": 3, "s": 4, "a": 5, "<pad>": 6}
    return {"source.spm": model.getvalue(), "target.spm": model.getvalue(), "vocab.json": json.dumps(table).encode()}


@FUZZ
@given(data=st.data())
def test_mangled_tokenizers_of_two_sides(sides: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    for name, content in sides.items():
        (tmp_path / name).write_bytes(content)
    mangled_file(data, tmp_path, sides)

    def read() -> None:
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.decode(tokenizer.encode("the cat")) is not None
        assert all(0 <= i < tokenizer.d_vocab for i in tokenizer.of_source.encode("a dog \u00df"))

    answers(read)


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


YARN = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8}
ODD_VALUES = [
    None, True, 0, -1, 1.5, 10**12, 10**400, 1e308, "x", "1", [], ["a"], [[]], {}, {"a": 1}, {"rope_type": ["a"]},
    YARN | {"mscale": "x"}, {"full_attention": YARN, "sliding_attention": {"rope_theta": "x"}},
    {"full_attention": {}, "sliding_attention": [1]}, {"full_attention": {}, "sliding_attention": {"rope_theta": None}},
    [[["global"], 10**12]], [[[], 10**12]],
]  # fmt: skip
BESIDE = {"use_sliding_window": True, "sliding_window": 8, "new_decoder_architecture": True, "rope_scaling": YARN}


def test_odd_values_of_every_key_of_every_family() -> None:
    seen: list[object] = []
    for family in FAMILIES.values():
        beside = {key: BESIDE[key] for piece in family.pieces for key in piece.keys if key in BESIDE}
        new = [piece for piece in family.pieces if not isinstance(piece, Always) and piece not in seen]
        seen += new
        for key in [key for piece in new for key in piece.keys]:
            for odd in ODD_VALUES:
                reading = Reading("config.json", beside | {key: odd})
                answers(lambda r=reading, f=family: (read_config(f.pieces, r), as_model(f, r)))


@FUZZ
@given(data=st.data())
def test_a_mangled_note_of_how_far_tokens_were_written(tmp_path: Path, data: st.DataObject) -> None:
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
    assert np.array_equal(tokenise(chunks, tokenizer, None, file).ids, whole)


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
