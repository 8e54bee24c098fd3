"""How far imported models are from transformers: the largest gaps of every family and odd shape, as a page.

    python tests/campaigns/parity.py [--write docs/parity.md] [--only gpt2,llama]

Random checkpoints of transformers (biases and gains random too) are saved, imported, and asked the same padded batch:
logits, the hidden state of every layer, the pattern of every head. In float64 twice: as transformers computes, and with
what it computes in float32 whatever the type (RMSNorm, rotary tables, softmax, tables of sines) computed in float64.
Greedy text token for token, and whether export, import and export again give the same bytes. The checkpoints and the
comparisons are those of tests/interop. Exit status 1 where a gap is above what is promised. A minute on one core.
"""

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command import machine

from qkv.interop import exporting, read_checkpoint
from qkv.tasks.beams import Search, search
from qkv.tasks.generation import Sampling, generate

TESTS = Path(__file__).parents[1] / "interop"
FLOAT32, EXACT, ISLANDS = 1e-5, 1e-10, 5e-6
"""What is promised: in float32; in float64 without float32 islands; in float64 with them."""


def module(name: str) -> ModuleType:
    """A module of tests/interop, by its file."""
    spec = importlib.util.spec_from_file_location(f"parity_{name}", TESTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


theirs, texts, images, pairs = (module(name) for name in ("theirs", "test_parity", "test_images", "test_pairs"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one checkpoint came to."""

    name: str
    about: str
    float32: float
    as_they_are: float
    float64: float
    greedy: str
    bytes_agree: bool
    most_as_they_are: float

    @property
    def holds(self) -> bool:
        """Whether every figure is what is promised."""
        near = self.float32 <= FLOAT32 and self.float64 <= EXACT and self.as_they_are <= self.most_as_they_are
        return near and self.bytes_agree and self.greedy in ("", "the same")

    def line(self) -> str:
        """As a row of the page."""
        gaps = f"{self.float32:.1e} | {self.as_they_are:.1e} | {self.float64:.1e}"
        return f"| {self.name} | {self.about} | {gaps} | {self.greedy} | {'yes' if self.bytes_agree else 'no'} |"


def text_gap(model: Any, ours: Any) -> float:
    """The largest gap on a batch with padding, and on one without."""
    ids, mask = texts.ids_and_mask()
    both = (texts.worst(model, ours, ids, real, pad=1)[0] for real in (mask, torch.ones_like(mask)))
    return max(both)


def pair_gap(model: Any, ours: Any) -> float:
    """The largest gap of logits, states of both sides, and all three kinds of patterns."""
    return max(pairs.gaps(model, ours).values())


def image_gap(model: Any, ours: Any) -> float:
    """The largest gap of logits, states and patterns."""
    dtype = next(ours.parameters()).dtype
    pixels = images.pixels_for(ours).to(dtype)
    with torch.no_grad():
        out = model((pixels - 0.5) / 0.5, output_hidden_states=True, output_attentions=True)
        logits, record = ours.forward_recorded(pixels)
    gaps = [logits - out.logits]
    gaps += [record[f"L{i}.pattern"] - pattern for i, pattern in enumerate(out.attentions)]
    gaps += [record[f"L{i}.resid_pre"] - out.hidden_states[i] for i in range(len(out.attentions))]
    return max(float(gap.abs().max()) for gap in gaps)


def same_text(model: Any, ours: Any) -> str:
    """Whether greedy continuations agree token for token."""
    ids, _ = texts.ids_and_mask()
    prompts = [ids[0, :4].numpy(), ids[1, :9].numpy()]
    mine = generate(ours, prompts, tokens=12, how=Sampling(temperature=0), seed=0)
    same = True
    for prompt, found in zip(prompts, mine, strict=True):
        asked = torch.from_numpy(prompt)[None]
        given = {"attention_mask": torch.ones_like(asked), "do_sample": False, "max_new_tokens": 12}
        with torch.no_grad():
            yours = model.generate(asked, **given, eos_token_id=None, pad_token_id=0)[0, len(prompt) :]
        same &= bool(np.array_equal(found, yours.numpy()))
    return "the same" if same else "another"


def same_translation(model: Any, ours: Any) -> str:
    """Whether greedy translations agree token for token."""
    source = np.array([12, 7, 41, 8, 19, pairs.END])
    (mine,) = search(ours, [source], Search(end=pairs.END, start=pairs.START, beams=1, most_tokens=12))
    given = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12, "forced_eos_token_id": None}
    with torch.no_grad():
        out = model.generate(torch.from_numpy(source)[None], **given)[0, 1:]
    yours = out[: int((out == pairs.END).nonzero()[0])] if (out == pairs.END).any() else out
    return "the same" if mine.ids.tolist() == yours.tolist() else "another"


def there_and_back(folder: Path) -> bool:
    """Whether export, import and export again give the same bytes."""
    written: list[dict[str, bytes]] = []
    source = folder
    for name in ("one", "two"):
        read, target = read_checkpoint(source), folder.parent / name
        exporting.write_checkpoint(
            read.config, read.state, None, target, card="", wanted=read.family.name, marks=read.marks
        )
        written.append({path.name: path.read_bytes() for path in target.iterdir()})
        source = target
    return written[0] == written[1]


def about(config: Any) -> str:
    """The shape of a checkpoint, by what its own configuration says."""
    heads = getattr(config, "num_attention_heads", None) or config.encoder_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    words = [f"{heads} heads" + (f" on {groups}" if groups != heads else "")]
    size = getattr(config, "image_size", None)
    words.append(f"{getattr(config, 'vocab_size', 0)} tokens" if size is None else f"{size} pixels")
    if size is None:
        words.append("tied" if config.tie_word_embeddings else "untied")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        words.append(f"rotary {rope['rope_type']}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        words.append(f"rotary share {rope['partial_rotary_factor']}")
    return ", ".join(words)


def measured(name: str, gap: Callable[[Any, Any], float], greedy: Callable[[Any, Any], str] | None) -> Row:
    """Everything of one checkpoint."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        small, wide = Path(place) / "float32" / "them", Path(place) / "float64" / "them"
        narrow = gap(theirs.save_theirs(small, name, torch.float32), texts.ours_of(small, torch.float32)[0])
        model = theirs.save_theirs(wide, name, torch.float64)
        ours, imported = texts.ours_of(wide, torch.float64)
        plain = gap(model, ours)
        written = greedy(model, ours) if greedy else ""
        theirs.without_islands(model, patch)
        if name in theirs.PAIRS:  # their table of sines went through float32
            for side in (model.model.encoder, model.model.decoder):
                (table,) = ours.enc.embedding.sines.tables(theirs.N_CTX, torch.float64, torch.device("cpu"))
                side.embed_positions.weight.data.copy_(table)
        exact = imported.family.name in texts.EXACT_FAMILIES
        return Row(
            name=name, about=about(model.config), float32=narrow, as_they_are=plain, float64=gap(model, ours),
            greedy=written, bytes_agree=there_and_back(small), most_as_they_are=EXACT if exact else ISLANDS,
        )  # fmt: skip


def rows(only: set[str]) -> list[Row]:
    """One for each checkpoint of tests/interop/theirs.py."""
    found = []
    for names, gap, greedy in (
        (theirs.KINDS, text_gap, same_text),
        (theirs.PAIRS, pair_gap, same_translation),
        (theirs.IMAGES, image_gap, None),
    ):
        for name in names:
            if not only or name in only:
                causal = greedy is not same_text or "bert" not in name
                found.append(measured(name, gap, greedy if causal else None))
                print(found[-1].line(), flush=True)
    return found


PAGE = """# Parity with transformers

Written by `python tests/campaigns/parity.py --write docs/parity.md`; a test checks that every checkpoint
is listed and within its bound. {where}, transformers {version}.

Weights, biases and gains are random. Vocabulary sizes are not round numbers, and there is a batch with padding and
one without. Each figure is the largest difference in any logit, any hidden state of any layer, and any entry of any
head's pattern.

The promised bounds are:

- {float32:g} in float32;
- {exact:g} in float64 for GPT-2, BERT, RoBERTa and DistilBERT;
- {islands:g} in float64 for the others, because transformers computes some parts in float32;
- {exact:g} in float64 if those parts are computed in float64, too: RMSNorm, rotary tables, softmax, tables of sines.

Greedy text is compared token for token. *There and back* says whether export, import and a second export give the
same bytes. `tests/interop/test_parity.py` also tests shards, left padding, token types and half precision.

| checkpoint | shape | float32 | float64, as it is | float64 | greedy text | there and back |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the page there")
    parser.add_argument("--only", default="", help="these checkpoints, with commas between them")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found = rows(set(filter(None, args.only.split(","))))
    if args.write:
        given = {"where": machine(), "version": transformers.__version__, "exact": EXACT, "islands": ISLANDS}
        page = PAGE.format(float32=FLOAT32, **given)
        args.write.write_text(page + "\n".join(row.line() for row in found) + "\n", encoding="utf-8")
    print(f"{sum(row.holds for row in found)} of {len(found)} hold")
    sys.exit(not all(row.holds for row in found))


if __name__ == "__main__":
    main()
