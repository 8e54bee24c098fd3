"""A synthetic run folder, for tests only: the contract's files with made-up dynamics, so that views can be tested alone.

The numbers are smooth inventions; they are consistent with each other (drifts are those of the written weights), which is
what the tests compare. Nothing of this ships.
"""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.telemetry import NULL_ARM, AddressRow, MeasureRow, Store

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
STEPS = [0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *range(128, 1000, 32), 1000]
SNAPSHOTS = [0, 1, 4, 16, 64, 256, 1000]
PROMPT = "ROMEO:"
REACH = {"W_E": 0.9, "W_Q": 1.3, "W_K": 1.2, "W_V": 0.8, "W_O": 1.0, "W_in": 0.9, "W_gate": 0.8, "W_out": 0.85, "W_U": 1.6}
NULL_REACH = 0.42


def start_weights(rng, d_model=48, n_heads=4, n_layers=3, d_mlp=96, d_vocab=len(CHARACTERS) + 2, tied=False):
    shapes = {"W_E": (d_vocab, d_model)}
    for layer in range(n_layers):
        for kind in ("W_Q", "W_K", "W_V", "W_O"):
            shapes[f"L{layer}.{kind}"] = (d_model, d_model)
        shapes |= {f"L{layer}.W_gate": (d_model, d_mlp), f"L{layer}.W_in": (d_model, d_mlp), f"L{layer}.W_out": (d_mlp, d_model)}
        shapes |= {f"L{layer}.norm1.gain": (d_model,), f"L{layer}.norm2.gain": (d_model,)}
    shapes["norm_f.gain"] = (d_model,)
    if not tied:
        shapes["W_U"] = (d_model, d_vocab)
    return {
        name: np.ones(shape, np.float32) if len(shape) == 1 else (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def directions(rng, start, n_unseen):
    """Where each matrix goes: a low-rank part with structure, of the start's norm."""
    out = {}
    for name, weights in start.items():
        if weights.ndim == 1:
            out[name] = 0.3 * rng.normal(size=weights.shape).astype(np.float32)
            continue
        rows, columns = weights.shape
        left = rng.normal(size=(rows, 3)) * np.exp(rng.normal(size=(rows, 1)))
        right = rng.normal(size=(3, columns)) * np.exp(rng.normal(size=(1, columns)))
        move = left @ right
        if name == "W_E":
            move[rows - n_unseen :] = 0
        out[name] = (move / np.linalg.norm(move) * np.linalg.norm(weights)).astype(np.float32)
    return out


def progress(step):
    return float((1 - np.exp(-step / 260)) * 0.75 + 0.25 * np.sqrt(step / 1000))


def weights_at(start, move, step, reach=1.0):
    out = {}
    for name, weights in start.items():
        kind = name.rsplit(".", 1)[-1]
        layer = int(name[1]) if name.startswith("L") else 0
        far = REACH.get(kind, 0.4) * (1 - 0.12 * layer) * reach
        out[name] = weights + np.float32(far * progress(step)) * move[name]
    return out


def make_run(
    folder: Path, *, null=True, snapshots=True, tied=False, sample_text=None, name_token=None, seed=7, telemetry=True
) -> SimpleNamespace:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    n_unseen = 2
    start = start_weights(rng, tied=tied)
    move = directions(rng, start, n_unseen)
    last = weights_at(start, move, STEPS[-1])
    save_file(last, folder / "model.safetensors")
    save_file(last, folder / "best.safetensors")
    if snapshots:
        for step in SNAPSHOTS:
            place = folder / "checkpoints" / f"step-{step:08d}"
            place.mkdir(parents=True, exist_ok=True)
            save_file(weights_at(start, move, step), place / "model.safetensors")
    d_vocab = start["W_E"].shape[0]
    tokens = [*CHARACTERS, "ß", name_token or "€"]
    write_config(folder, d_vocab, tied)
    write_tokenizer(folder, tokens)
    if telemetry:
        write_telemetry(folder, start, move, rng, null=null, sample_text=sample_text, d_vocab=d_vocab, n_unseen=n_unseen)
    return SimpleNamespace(folder=folder, start=start, last=last, move=move, tokens=tokens, steps=STEPS, n_unseen=n_unseen)


def write_config(folder, d_vocab, tied):
    (folder / "config.toml").write_text(
        f'''task = "causal"
preset = "textbook"
seed = 1

[data]
source = "input.txt"
tokenizer = "char"

[model]
kind = "CausalLM"

[model.sizes]
d_vocab = {d_vocab}
d_model = 48
n_layers = 3
n_heads = 4
n_ctx = 64
n_kv_heads = 4
d_head = 12
d_mlp = 96

[model.layout]
positions = "rotary"
norm = "rms"
mlp = "swiglu"
tied = {str(tied).lower()}
start = "gpt2"
''',
        encoding="utf-8",
    )
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("model.safetensors", "config.toml")}
    (folder / "manifest.json").write_text(json.dumps({"format_version": 1, "files": hashes}), encoding="utf-8")


def write_tokenizer(folder, tokens):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_telemetry(folder, start, move, rng, *, null, sample_text, d_vocab, n_unseen):
    from qkv.instruments.registry import MEASURES

    with Store(folder / "telemetry.sqlite") as store:
        store.register_addresses([address_row(name, w) for name, w in start.items()])
        rows = [MEASURES[n].row() for n in ("norm", "grad_norm", "update_ratio", "drift", "row_drift")]
        store.register_measures([*rows, MeasureRow(name="token_count", property_of="function")])
        write_arm(store, 0, start, move, rng, STEPS, 1.0, d_vocab, n_unseen)
        if null:
            write_arm(store, NULL_ARM, start, move, rng, [s for s in STEPS if s <= 320], NULL_REACH, d_vocab, n_unseen)
        texts = ["qZ;wn\n!kAe b'sR", "the the and, he then", "ROMEO:\nWhat the wor", "O Romeo, Romeo! wherefore art thou so?\nI am\nthe day."]
        for step, text in zip((0, 128, 512, 1000), texts, strict=True):
            store.add_sample(step, PROMPT, sample_text if sample_text and step == 1000 else text)
        counts = np.maximum(0, (4e5 / np.arange(1, d_vocab + 1)).astype(np.int64))
        counts[d_vocab - n_unseen :] = 0
        store.add_vector(0, "token_count", "W_E", counts)


def address_row(name, weights):
    layer = int(name[1]) if name.startswith("L") else None
    kind = name.rsplit(".", 1)[-1]
    site = "norm" if weights.ndim == 1 else "embed" if name == "W_E" else "head" if name == "W_U" else "mlp" if kind in ("W_in", "W_gate", "W_out") else "attn"
    return AddressRow(address=name, site=site, layer=layer, kind=kind, shape=weights.shape)


def write_arm(store, arm, start, move, rng, steps, reach, d_vocab, n_unseen):
    names = list(start)
    floor, ceiling = (1.52, np.log(d_vocab)) if arm == 0 else (3.3, np.log(d_vocab))
    for step in range(1, steps[-1] + 1):
        loss = floor + (ceiling - floor) * (0.55 * np.exp(-step / 25) + 0.45 * np.exp(-step / 230)) + 0.04 * rng.normal()
        store.add_step(step, tokens=step * 4096, loss=float(loss), lr=0.001, grad_norm=0.5, arm=arm)
    for step in steps:
        now = weights_at(start, move, step, reach)
        before = weights_at(start, move, max(0, step - 1), reach)
        norms = {n: float(np.linalg.norm(now[n].astype(np.float64))) for n in names}
        store.add_values(step, "norm", names, [norms[n] for n in names], arm=arm)
        drifts = [float(np.linalg.norm(now[n].astype(np.float64) - start[n]) / np.linalg.norm(start[n])) for n in names]
        store.add_values(step, "drift", names, drifts, arm=arm)
        moved = np.linalg.norm(now["W_E"] - start["W_E"], axis=1) / np.linalg.norm(start["W_E"], axis=1)
        store.add_vector(step, "row_drift", "W_E", moved.astype(np.float32), arm=arm)
        if step:
            store.add_values(step, "update_ratio", names, [float(np.linalg.norm(now[n] - before[n]) / norms[n]) for n in names], arm=arm)
            store.add_values(step, "grad_norm", names, [float(0.3 * np.exp(-step / 400) * rng.uniform(0.5, 1.5)) for n in names], arm=arm)
        if arm == 0 and (step % 128 == 0 or step == 1000):
            loss = floor + 0.05 + (ceiling - floor) * (0.55 * np.exp(-step / 25) + 0.45 * np.exp(-step / 230))
            store.add_evaluation(step, float(loss), is_best=True, bits_per_byte=float(loss / np.log(2)))
            store.add_clock(step, step * 0.05, tokens_per_second=80000.0)
    baselines = {"unigram": 3.32, "bigram": 2.47, "ngram": 1.558, "ngram_order": 6, "xz": 2.03}
    baselines["bits_per_byte"] = {k: baselines[k] / np.log(2) for k in ("unigram", "bigram", "ngram", "xz")}
    store.set_fact("baselines", baselines)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "shakespeare-1")


@pytest.fixture
def make(tmp_path):
    return lambda **options: make_run(tmp_path / "run", **options)


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine; browser tests are left out")
    return path
