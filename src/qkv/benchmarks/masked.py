"""Real tokens a second of masked language modelling, ours and Hugging Face's BERT with its standard collator.

4 layers of width 256 over BERT's own 30,522 word pieces, 15 % hidden by the rule of 2018, 32 phrases (padded to the
longest of the batch, or to that of batches of like length) or 16 windows of 128 a step. Ours lays phrases side by side
in rows and takes as many real tokens a step as theirs. A real token is one that is no padding ([CLS], which only theirs
has, is one too). Making a batch is part of the time on both sides; cutting a text
into pieces is not. Ours is measured twice: the same architecture, parameter for parameter, and our own layout.
"""

import dataclasses
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from qkv.benchmarks.processes import Side, Turn
from qkv.benchmarks.session import Session, alternate
from qkv.benchmarks.sides import our_step, precisions, their_step
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus
from qkv.models import ModelConfig, Sizes
from qkv.presets import PRESETS
from qkv.tasks import Masked

RULE = Masked(rate=0.15, random=0.1, kept=0.1)
"""What the collator of transformers does by default."""
N_CTX = 128
PHRASES, WINDOWS = 32, 16
"""A step's phrases, or full windows."""
ROWS, ROW = 3, 140
"""Rows of phrases, and their length: 420 positions a step, as 32 phrases have 419 real tokens on average."""
FEW = 20_000
"""Phrases and windows read, more than a benchmark needs."""


def our_model(d_vocab: int, preset: str = "bert", n_ctx: int = N_CTX) -> ModelConfig:
    """256 x 4; `bert` is BERT's architecture with its two kinds of segments and its transform before the logits."""
    same = preset == "bert"
    layout = dataclasses.replace(PRESETS[preset].layout, dropout=0.0, head_transform=same)
    sizes = Sizes(d_vocab=d_vocab, d_model=256, n_layers=4, n_heads=4, n_ctx=n_ctx, n_types=2 if same else 0)
    return ModelConfig(kind="MaskedLM", sizes=sizes, layout=layout).resolved()


def their_model(d_vocab: int, n_ctx: int = N_CTX) -> nn.Module:
    """BERT of that shape, without dropout."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=d_vocab,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=n_ctx,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def their_collator(vocabulary: Path) -> tuple[Any, Any]:
    """(tokenizer, collator) over a `vocab.txt`."""
    theirs = importlib.import_module("transformers")
    place = {"vocab_file": str(vocabulary), "vocab": str(vocabulary)}  # its name before and since version 5
    tokenizer = theirs.BertTokenizerFast(**place)
    return tokenizer, theirs.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


def measure(session: Session) -> None:
    """Phrases, then full windows."""
    vocabulary = session.path("BERT's vocabulary")
    if vocabulary is None:
        return
    there = session.has_transformers()
    for name, of_phrases in (("phrases", True), ("wikitext-2", False)):
        path = session.path(name)
        if path is None:
            continue
        case = f"{PHRASES} SST-2 phrases" if of_phrases else f"{WINDOWS} windows of {N_CTX} of wikitext-2"
        found: dict[str, list[float]] = {}
        peers: dict[str, str] = {}
        what = (path, vocabulary, of_phrases)
        for precision in precisions():
            sides: dict[str, Side] = {}
            how = (precision, session.asked.quick)
            for grouped in (False, True) if of_phrases and there else (False,) if there else ():
                side = f"HF BERT{', grouped by length' if grouped else ''}, {precision}"
                sides[side] = functools.partial(_theirs_timed, *what, grouped, *how)
            for preset, words in (("bert", "qkv, the same architecture"), ("shared", "qkv, its own layout")):
                side = f"{words}, {precision}"
                sides[side] = functools.partial(_ours_timed, *what, preset, *how)
                peers[side] = f"HF BERT, {precision}"
            found |= alternate(sides, session.rounds)
        session.record(case, found, "real tokens/s", peers=peers)
        grouped = {side: peer.replace("BERT", "BERT, grouped by length") for side, peer in peers.items()}
        if of_phrases and there:
            session.record(f"{case}, against grouping by length", found, "real tokens/s", peers=grouped)


def _theirs(corpus: Corpus, tokenizer: Any, of_phrases: bool) -> list[list[int]]:
    """Token ids of phrases in their frame, or of full windows; the same pieces as ours."""
    tokens = corpus.train
    if of_phrases:
        texts = [tokens.document(i).tolist() for i in range(min(FEW, tokens.n_documents))]
        return [[tokenizer.cls_token_id, *ids] for ids in texts if len(ids) < N_CTX]  # ours end with [SEP] as well
    ids = tokens.ids[: FEW * N_CTX]
    return [ids[i : i + N_CTX].tolist() for i in range(0, len(ids) - N_CTX, N_CTX)]


def _their_batches(examples: list[list[int]], size: int, grouped: bool) -> Iterator[list[dict[str, list[int]]]]:
    """Batches without end; `grouped` as the Trainer's group_by_length does: sorted inside 50 batches' worth."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(examples))
        if grouped:
            reach = 50 * size
            for first in range(0, len(order), reach):
                part = order[first : first + reach]
                order[first : first + reach] = part[np.argsort([-len(examples[i]) for i in part], kind="stable")]
        starts = rng.permutation(len(order) // size) * size if grouped else range(0, len(order) - size, size)
        for first in starts:
            yield [{"input_ids": examples[i]} for i in order[first : first + size]]


def _corpus(path: Path, vocabulary: Path) -> Corpus:
    return Masked().load(DataConfig(source=str(path), tokenizer=str(vocabulary)), cache=None)


def _theirs_timed(path: Path, vocabulary: Path, of_phrases: bool, grouped: bool, precision: str, quick: bool) -> Turn:
    tokenizer, collator = their_collator(vocabulary)
    examples = _theirs(_corpus(path, vocabulary), tokenizer, of_phrases)
    batches = _their_batches(examples, PHRASES if of_phrases else WINDOWS, grouped)
    step = their_step(their_model(len(tokenizer)), precision)

    def once() -> int:
        batch = collator(next(batches))
        step(dict(batch))
        return int(batch["attention_mask"].sum())

    return _rate(once, quick)


def _ours_timed(path: Path, vocabulary: Path, of_phrases: bool, preset: str, precision: str, quick: bool) -> Turn:
    corpus = _corpus(path, vocabulary)
    config = our_model(corpus.tokenizer.d_vocab, preset, ROW if of_phrases else N_CTX)
    step, steps = our_step(config, RULE, precision), itertools.count()
    windows = ROWS if of_phrases else WINDOWS

    def once() -> int:
        at = next(steps)
        examples = np.arange(at * windows, (at + 1) * windows)
        batch = RULE.train_batch(corpus, config.sizes, 1, at, examples)
        step(batch)
        return batch.inputs.numel() if batch.mask is None else int(batch.mask.sum())

    return _rate(once, quick)


def _rate(once: Callable[[], int], quick: bool) -> Turn:
    """A turn of four steps (one where it is quick): the real tokens that they say they took, a second."""

    def turn() -> float:
        began = time.perf_counter()
        real = sum(once() for _ in range(1 if quick else 4))
        return real / (time.perf_counter() - began)

    return turn
