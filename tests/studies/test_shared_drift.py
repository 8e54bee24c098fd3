"""What shared drift finds in texts whose structure is known: none, frequencies, a planted bigram, a planted copy."""

import dataclasses
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.data.corpus import Corpus
from qkv.errors import ConfigError, SourceError
from qkv.randomness import generator
from qkv.studies.engine.assembly import parts_of
from qkv.studies.engine.design import Arm, Scale, Text, Trial
from qkv.studies.engine.training import TRAINERS, run_trial
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic import streams
from qkv.studies.verdict.statistics import t_interval

PLANTED = {
    "none": (),
    "unigram": (("exponent", 1.0),),
    "bigram": (("bigram", 0.5),),
    "copy": (("copy", 0.9), ("lag", 2)),
}
STEPS = {"copy": 150}
D_VOCAB = 16
"""Of 11 words and 5 special tokens, which the streams draw as well."""


def planted(text: Text, source: str, cache: Path | None) -> Corpus:
    """Independent tokens, into which one kind of structure is planted.

    Each is drawn from all there are, the k-th most frequent with a weight of k ** -`exponent` (0: all alike). Then each
    is, with the probability `bigram`, the one successor of the token before it, a permutation, and with that of `copy`
    the token `lag` places before it. Without an exponent these leave all tokens equally frequent.
    """
    s = dict(text.settings)
    tokenizer, _ = streams._words(s["words"])
    n, found = tokenizer.d_vocab, []
    weights = np.arange(1, n + 1) ** -float(s.get("exponent", 0.0))
    successor = generator("study", "planted", n).permutation(n)
    for size, part in (("tokens", "train"), ("val_tokens", "val")):
        draws = generator("study", "planted", part)
        ids, chance = draws.choice(n, s[size], p=weights / weights.sum()), draws.random(s[size])
        follows = chance < s.get("bigram", 0.0)
        copies = ~follows & (chance < s.get("bigram", 0.0) + s.get("copy", 0.0))
        lag = s.get("lag", 1)
        for i in range(lag, len(ids)):
            if follows[i]:
                ids[i] = successor[ids[i - 1]]
            elif copies[i]:
                ids[i] = ids[i - lag]
        found.append(ids)
    return streams._made("planted", "", tokenizer, *found)


@pytest.fixture(autouse=True, scope="module")
def planted_texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "STREAMS", {**streams.STREAMS, "planted": planted})
        yield


def trial(kind: str, labels: str = "real", seed: int = 0, steps: int = 0) -> Trial:
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 8, "batch_size": 16, "evaluations": 1}
    scale = Scale(**sizes, steps=steps or STEPS.get(kind, 80), val_tokens=2000)
    settings = (("words", 11), ("tokens", 40_000), ("val_tokens", 2000), *PLANTED[kind])
    arm = Arm(name="a", what="", trainer="two halves", labels=labels)
    text = Text(stream="planted", settings=settings)
    return Trial(arm=arm, text=text, scale=scale, source="", source_sha256="", lr=0.01, seed=seed, software="")


@lru_cache
def excess(kind: str, n: int = 4) -> tuple[dict[str, np.ndarray], list[float], list[float]]:
    """Measure -> agreement less that of the control in each of n replicates; losses of both on the real text."""
    rows = [[run_trial(trial(kind, labels, seed), None) for labels in ("real", "uniform")] for seed in range(n)]
    found = {
        name.removeprefix("shared "): np.array([real["measures"][name] - null["measures"][name] for real, null in rows])
        for name in rows[0][0]["measures"]
    }
    return found, *([row[i]["loss"] for row in rows] for i in (0, 1))


def above_zero(found: dict[str, np.ndarray]) -> set[str]:
    """Measures whose 95 % interval over replicates lies above 0."""
    return {name for name, values in found.items() if t_interval(values.tolist())[0] > 0}


def test_in_a_text_without_structure_nothing_is_shared_beyond_the_control():
    found, real, null = excess("none")
    assert min(*real, *null) > math.log(D_VOCAB) - 0.01
    assert {"W_E", "W_Q", "W_K", "W_V", "W_O", "MLP", "W_U", "rows W_E", "heads W_Q"} <= set(found)
    for name, values in found.items():
        low, high = t_interval(values.tolist(), 0.995)  # of 20 measures, one 95 % interval would leave 0 out by chance
        assert low < 0 < high, name
    pooled = np.mean([found[name] for name in ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "MLP", "W_U")], axis=0)
    low, high = t_interval(pooled.tolist())
    assert low < 0 < high and high - low < 0.25


def test_frequencies_are_learned_along_one_way_by_every_matrix():
    """Also by those of attention, through which a part of the path to the logits leads."""
    found, real, null = excess("unigram")
    assert max(real) < math.log(D_VOCAB) - 0.2 and min(null) > math.log(D_VOCAB) - 0.02
    assert {"W_U", "W_O", "W_V", "MLP", "W_E"} <= above_zero(found) and found["W_U"].mean() > 0.3


def test_a_planted_bigram_is_found_in_the_embeddings_and_not_in_what_attention_looks_at():
    found, real, _ = excess("bigram")
    assert max(real) < math.log(D_VOCAB) - 0.5
    assert {"W_E", "rows W_E", "MLP", "W_U"} <= above_zero(found)
    assert min(found[name].mean() for name in ("W_E", "W_U")) > 0.4 and found["QK"].mean() < 0.15


def test_a_planted_copy_is_found_in_attention_and_not_in_the_mlp_or_the_unembedding():
    """Which token is copied does not matter, so what a token is read and answered by is each training's own."""
    found, real, _ = excess("copy")
    assert max(real) < math.log(D_VOCAB) - 1
    assert {"QK", "VO", "heads QK"} <= above_zero(found)
    assert min(found[name].mean() for name in ("QK", "VO")) > 0.15 > max(found[name].mean() for name in ("MLP", "W_U"))


# how it is made


def test_a_stream_has_the_structure_that_was_planted_and_no_other():
    def ids(kind: str) -> np.ndarray:
        return streams.corpus(trial(kind).text, "", 0, None).train.ids.astype(int)

    uniform = 40_000 / D_VOCAB
    for kind in ("none", "bigram", "copy"):
        assert np.abs(np.bincount(ids(kind), minlength=D_VOCAB) / uniform - 1).max() < (0.1 if kind == "none" else 0.3)
    same = {kind: [(ids(kind)[lag:] == ids(kind)[:-lag]).mean() for lag in (1, 2)] for kind in ("none", "copy")}
    assert same["none"] == pytest.approx([1 / 16, 1 / 16], abs=0.006)
    assert same["copy"][1] == pytest.approx(0.9 + 0.1 / 16, abs=0.01) and same["copy"][0] < 0.15
    pairs = np.zeros((D_VOCAB, D_VOCAB))
    np.add.at(pairs, (ids("bigram")[:-1], ids("bigram")[1:]), 1)
    likeliest = pairs.argmax(1)
    assert sorted(likeliest) == list(range(D_VOCAB))
    assert pairs.max(1) / pairs.sum(1) == pytest.approx(0.5 + 0.5 / 16, abs=0.04)
    counts = np.sort(np.bincount(ids("unigram")))[::-1]
    assert counts[0] / counts[3] == pytest.approx(4, rel=0.1)


def test_the_halves_are_all_tokens_once_and_the_start_is_common_while_draws_are_not():
    whole = streams.corpus(trial("bigram").text, "", 0, None)
    one, other = streams.halves(whole)
    assert np.concatenate([one.train.ids, other.train.ids]).tolist() == whole.train.ids.tolist()
    assert one.train.offsets.tolist() == other.train.offsets.tolist() == [0, 20_000] and one.val is other.val
    for labels in ("real", "uniform"):
        asked = trial("none", labels, steps=1)
        parts = parts_of(asked, whole)
        start = {address: values.clone() for address, values in parts.catalogue.state().items()}
        TRAINERS["two halves"](asked, parts, ())
        first = parts_of(asked, whole)
        TRAINERS["loop"](asked, dataclasses.replace(first, corpus=one), ())
        assert all(values.equal(first.catalogue.state()[a]) for a, values in parts.catalogue.state().items())
        assert all(torch.equal(start[address], parts.start[address]) for address in start)


def test_documents_that_a_cut_goes_through_end_in_the_first_half_and_begin_in_the_second():
    whole = streams.corpus(trial("none").text, "", 0, None)
    tokens = dataclasses.replace(whole.train, offsets=np.array([0, 5_000, 30_000, 40_000]))
    one, other = streams.halves(dataclasses.replace(whole, train=tokens))
    assert one.train.offsets.tolist() == [0, 5_000, 20_000] and other.train.offsets.tolist() == [0, 10_000, 20_000]


def test_what_has_no_halves_and_labels_that_are_gone_are_refused():
    with pytest.raises(SourceError, match="'digits' is no plain text"):
        streams.halves(streams.corpus(Text(stream="digits"), "", 0, None))
    with pytest.raises(ConfigError, match="random labels; expected real or uniform"):
        run_trial(trial("none", "random"), None)


def test_the_study_of_what_is_trained_asks_for_it_beside_drift():
    design = find("what-is-trained").design(Ask(named=("a text", "0" * 64)))
    asked = {c.name: c for c in design.contrasts if c.name.endswith("shared (adamw)")}
    assert {f"{matrix} shared (adamw)" for matrix in ("W_E", "W_Q", "W_K", "W_V", "W_O", "W_U")} <= set(asked)
    for contrast in asked.values():
        real, null = map(design.arm, contrast.arms)
        assert (real.labels, null.labels) == ("real", "uniform") and real.tune == null.tune == "adamw"
        assert real.trainer == null.trainer == "two halves"
