"""An imported model is theirs: logits, hidden states of every layer, patterns of every head, and greedy text.

In float64 to 1e-10. Families of transformers that compute norms, rotary tables and softmax in float32 whatever the type
of the model are held twice: as they are to 5e-6, and to 1e-10 with these float32 islands computed in float64.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.interop import FAMILIES, read_checkpoint
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.tasks.generation import Sampling, generate

NAMES = (
    "gpt2", "gpt2 odd", "llama", "llama biased", "llama linear", "llama llama3", "llama yarn", "llama yarn uneven",
    "mistral", "qwen2", "qwen3", "qwen3 biased", "neox", "neox in turn", "bert", "bert untied", "roberta", "distilbert",
)  # fmt: skip
EXACT_FAMILIES = ("gpt2", "bert", "roberta", "distilbert")
"""Their families without float32 islands (in eager attention)."""


def ours_of(folder, dtype):
    imported = read_checkpoint(folder, dtype=dtype)
    model = build(imported.config, 0).to(dtype).eval()
    Catalogue(model).load_state(imported.state)
    return model, imported


def ids_and_mask(side="right"):
    ids = torch.randint(3, 61, (3, 20), generator=torch.Generator().manual_seed(5))
    mask = torch.ones(3, 20, dtype=torch.bool)
    if side == "right":
        mask[1, 13:], mask[2, 6:] = False, False
    else:
        mask[1, :7], mask[2, :14] = False, False
    return ids, mask


def worst(theirs, model, ids, mask, *, pad):
    """The largest difference of logits, hidden states and patterns at real positions."""
    ids = torch.where(mask, ids, pad)
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True)
        logits, record = model.forward_recorded(ids, mask)
        plain = model(ids, mask)
    n = model.config.sizes.n_layers
    last = "norm_f" if model.layout.norm_place == "pre" else f"L{n - 1}.resid_post"
    hidden = [record[f"L{layer}.resid_pre"] for layer in range(n)] + [record[last]]
    gaps = {"logits": (logits - out.logits)[mask], "plain": (plain - out.logits)[mask]}
    gaps |= {
        f"hidden {i}": (mine - yours)[mask]
        for i, (mine, yours) in enumerate(zip(hidden, out.hidden_states, strict=True))
    }
    assert len(out.attentions) == n
    for layer, yours in enumerate(out.attentions):
        mine = record[f"L{layer}.pattern"].transpose(1, 2)
        gaps[f"pattern {layer}"] = (mine - yours.transpose(1, 2))[mask]
    return max((float(gap.abs().max()), name) for name, gap in gaps.items())


def test_every_name_is_a_checkpoint(theirs):
    assert set(theirs.KINDS) == set(NAMES)


def test_the_page_names_every_family_with_its_classes():
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| [^|]* \| ([A-Z][\w, ]+) \|$", page, flags=re.M)
    assert [(name, classes.split(", ")[0]) for name, classes in rows] == [
        (f.model_type, f.architecture) for f in FAMILIES.values()
    ]


def test_the_page_of_measured_gaps_has_every_checkpoint_within_its_bound(theirs):
    page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == [*theirs.KINDS, *theirs.PAIRS, *theirs.IMAGES]
    for name, _, narrow, plain, wide, greedy, bytes_agree in rows:
        exact = name.split()[0] in EXACT_FAMILIES
        assert 0 < float(narrow) <= 1e-5 and 0 < float(wide) <= 1e-10, name
        assert 0 < float(plain) <= (1e-10 if exact else 5e-6), name
        assert bytes_agree == "yes" and greedy == ("" if "bert" in name or "vit" in name else "the same"), name


@pytest.mark.parametrize("name", NAMES)
def test_float64_logits_hidden_states_and_patterns_are_theirs(name, theirs, tmp_path, monkeypatch):
    model = theirs.save_theirs(tmp_path / "them", name, torch.float64)
    ours, imported = ours_of(tmp_path / "them", torch.float64)
    ids, mask = ids_and_mask()
    whole = torch.ones_like(mask)
    as_they_are = 1e-10 if imported.family.name in EXACT_FAMILIES else 5e-6
    assert worst(model, ours, ids, whole, pad=1) < (as_they_are, "")
    theirs.without_islands(model, monkeypatch)
    assert worst(model, ours, ids, whole, pad=1) < (1e-10, "")
    assert worst(model, ours, ids, mask, pad=1) < (1e-10, "")


@pytest.mark.parametrize("name", NAMES)
def test_float32_logits_hidden_states_and_patterns_are_theirs(name, theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "them", name, torch.float32)
    ours, _ = ours_of(tmp_path / "them", torch.float32)
    ids, mask = ids_and_mask()
    assert worst(model, ours, ids, mask, pad=1) < (1e-5, "")


@pytest.mark.parametrize("name", ["gpt2", "llama yarn", "qwen2", "qwen3 biased", "neox", "neox in turn"])
def test_greedy_text_is_theirs_token_for_token(name, theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "them", name, torch.float64)
    ours, _ = ours_of(tmp_path / "them", torch.float64)
    ids, _ = ids_and_mask()
    prompts = [ids[0, :4].numpy(), ids[1, :9].numpy()]
    mine = generate(ours, prompts, tokens=12, how=Sampling(temperature=0), seed=0)
    for prompt, continuation in zip(prompts, mine, strict=True):
        asked = torch.from_numpy(prompt)[None]
        with torch.no_grad():
            yours = model.generate(
                asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=12, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        np.testing.assert_array_equal(continuation, yours[0, len(prompt) :].numpy())


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
def test_left_padding_changes_no_real_position(name, theirs, tmp_path, monkeypatch):
    model = theirs.save_theirs(tmp_path / "them", name, torch.float64)
    theirs.without_islands(model, monkeypatch)
    ours, _ = ours_of(tmp_path / "them", torch.float64)
    ids, mask = ids_and_mask("left")
    positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        yours = model(ids, attention_mask=mask.long(), position_ids=positions).logits
        assert (ours(ids, mask) - yours)[mask].abs().max() < 1e-10


def test_types_of_segments_are_theirs(theirs, tmp_path):
    model = theirs.save_theirs(tmp_path / "them", "bert", torch.float64)
    ours, _ = ours_of(tmp_path / "them", torch.float64)
    ids, _ = ids_and_mask()
    types = (torch.arange(20) > 9).long().expand(3, 20)
    with torch.no_grad():
        yours = model(ids, token_type_ids=types).logits
        assert (ours.unembed(ours.hidden(ids, types=types)) - yours).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_shards_and_half_precision_give_the_same_weights(name, theirs, tmp_path):
    theirs.save_theirs(tmp_path / "whole", name)
    theirs.save_theirs(tmp_path / "shards", name, max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    whole, shards = (read_checkpoint(tmp_path / place).state for place in ("whole", "shards"))
    assert list(whole) == list(shards) and all(torch.equal(whole[a], shards[a]) for a in whole)
    theirs.save_theirs(tmp_path / "half", name, torch.bfloat16)
    half = read_checkpoint(tmp_path / "half").state
    assert all(torch.equal(half[a], whole[a].bfloat16().float()) for a in whole)
