"""TransformerLens opens our Hugging Face export as it is: the same logits, and attention patterns by its names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

PACKAGES = (
    "transformer-lens>=4 jaxtyping beartype better-abc fancy-einsum einops rich wadler-lindig"
    " transformers-stream-generator typeguard wandb datasets sentencepiece accelerate protobuf multiprocess dill xxhash"
).split()

OPENED = """
import sys
sys.path.append(sys.argv[1])
import torch, qkv
try:
    from transformer_lens.model_bridge import TransformerBridge
except ImportError as error:
    print("SKIP", error)
    sys.exit()
run = qkv.load(sys.argv[2])
lens = TransformerBridge.boot_transformers(sys.argv[3], device="cpu")
ids = torch.randint(0, run.config.model.sizes.d_vocab, (1, 12), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    logits, cache = lens.run_with_cache(ids)
    own, record = run.model.forward_recorded(ids)
patterns = [(cache[f"blocks.{i}.attn.hook_pattern"] - record[f"L{i}.pattern"]).abs().max() for i in range(2)]
print("GAP", float((logits - own).abs().max()), float(max(patterns)), float(own.std()))
"""


@pytest.fixture(scope="module")
def lens(tmp_path_factory):
    """A folder with TransformerLens, which wants other versions of what the tests use and so has a place of its own."""
    place = tmp_path_factory.mktemp("lens")
    words = [sys.executable, "-m", "pip", "install", "-q", "--target", place, "--no-deps", *PACKAGES]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("TransformerLens was not installed within 300 s")
    if done.returncode:
        pytest.skip(f"TransformerLens cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["modern", "gpt2"])
def test_transformer_lens_opens_an_export_with_the_same_logits_and_patterns(lens, preset, tmp_path):
    (tmp_path / "t.txt").write_text("the sun and the rain and the wind and the snow.\n" * 300)
    run = qkv.train(
        tmp_path / "t.txt", preset=preset, vocab=280, steps=20, out=tmp_path / "run", report=False, watch="off",
        set={"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16},
    )  # fmt: skip
    run.export(tmp_path / "hf")
    words = [sys.executable, "-W", "ignore", "-c", OPENED, lens, tmp_path / "run", tmp_path / "hf"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=300)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if last.startswith("SKIP"):
        pytest.skip(f"this TransformerLens does not load: {last}")
    assert last.startswith("GAP"), done.stderr[-2000:]
    logits, patterns, spread = map(float, last.split()[1:])
    assert spread > 0.01 and logits < 1e-4 and patterns < 1e-5


@pytest.mark.slow
def test_the_notebook_finds_the_same_numbers_in_both(lens, tmp_path):
    notebook = Path(__file__).parents[2] / "notebooks" / "open_in_transformer_lens.py"
    code = f"import sys; sys.path.append({str(lens)!r})\n" + notebook.read_text("utf-8")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    if "TransformerLens is not installed" in done.stdout:
        pytest.skip("this TransformerLens does not load")
    assert "gives the same logits and patterns" in done.stdout, done.stderr[-2000:]
    moved = re.findall(r"move by up to ([\d.]+)", done.stdout)
    assert len(moved) == 2 and moved[0] == moved[1] and float(moved[0]) > 0
