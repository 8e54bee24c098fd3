"""Words, subwords, characters, bytes: what changes?

The same text under tokenizers of six kinds and several vocabularies. A nat per token means something else under each,
so everything is in bits per byte of the same validation text, and what a tokenizer loses is charged. Two budgets:
"equal compute", where every arm takes as many steps of as many tokens, so that larger tokens bring more text past it
(the body computes as much; W_U of a larger vocabulary is on top, and so are its parameters); and equal text, where an
arm takes as many fewer steps as its tokens are longer, so that all see the same bytes.
"""

from typing import Any

from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, Question, make_design
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

MARGIN = 0.03
_NAMES = {"bpe": "BPE", "wordpiece": "WordPiece", "unigram": "Unigram", "word": "words"}
_TOLD = 2.0
"""Bytes of a token taken for a text that is not read."""


def _text(kind: str, vocab: int, val_bytes: int) -> Text:
    return Text(tokenizer=kind, vocab=vocab, settings=(("val_bytes", val_bytes),))


def _name(kind: str, vocab: int) -> str:
    return f"{_NAMES[kind]} {vocab}" if vocab else {"char": "characters", "byte": "bytes"}[kind]


def _arm(kind: str, vocab: int = 0, **more: Any) -> Arm:
    """As many steps as every arm."""
    what = f"{_name(kind, vocab)}, as many tokens as every arm"
    return Arm(name=_name(kind, vocab), what=what, text=_name(kind, vocab), probes=("bits",), **more)


def _equal_text(ask: Ask, kind: str, vocab: int, texts: dict[str, Text], steps: int) -> Arm:
    """As many fewer steps as its tokens are longer than characters."""
    name = _name(kind, vocab)
    longer = _TOLD if ask.named else _bytes(ask, texts[name]) / _bytes(ask, texts["characters"])
    return Arm(
        name=f"{name}, equal text", what=f"{name}, as many bytes of text as characters see", text=name,
        sizes=(("steps", max(1, round(steps / longer))),), probes=("bits",),
    )  # fmt: skip


def _bytes(ask: Ask, text: Text) -> float:
    """Of a training token."""
    train = ask.corpus(text).train
    return train.n_bytes / len(train)


def _less(arm: str, baseline: str, what: str, expected: str = "") -> Contrast:
    return Contrast(
        name=f"{arm} - {baseline}", what=what,
        terms=((1.0, arm, "bits per byte"), (-1.0, baseline, "bits per byte")), margin=MARGIN, unit="bits per byte",
        expected=expected,
    )  # fmt: skip


def _against_characters(arms: tuple[Arm, ...], expected: str = "") -> tuple[Contrast, ...]:
    return tuple(
        _less(
            arm.name, "characters",
            f"{arm.name} less characters, {'equal text' if arm.sizes else 'equal compute'}", expected,
        )
        for arm in arms
    )  # fmt: skip


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _quick(ask: Ask) -> Design:
    kinds = (("char", 0), ("bpe", 512), ("wordpiece", 512), ("unigram", 512), ("word", 2000))
    texts = {_name(kind, vocab): _text(kind, vocab, 16_384) for kind, vocab in kinds}
    characters, bpe, *others = (_arm(kind, vocab) for kind, vocab in kinds)
    short = _equal_text(ask, "bpe", 512, texts, 300)
    return make_design(
        ask,
        study="tokenizers",
        texts=texts,
        scale=Scale(
            d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=16_384, evaluations=1
        ),
        grid=Grid(),
        arms=(characters, bpe, *others, short),
        contrasts=_against_characters((bpe, short, *others)),
        replicates=6,
    )


def _full(ask: Ask) -> Design:
    cut = (
        ("bpe", 1024), ("bpe", 512), ("bpe", 2048), ("bpe", 4096), ("wordpiece", 1024), ("unigram", 1024),
        ("word", 4096),
    )  # fmt: skip
    kinds = (("char", 0), ("byte", 0), *cut)
    texts = {_name(kind, vocab): _text(kind, vocab, 32_768) for kind, vocab in kinds}
    scale = Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768)
    characters, single, *larger = (_arm(kind, vocab) for kind, vocab in kinds)
    shorter = tuple(_equal_text(ask, kind, vocab, texts, scale.steps) for kind, vocab in cut)
    return make_design(
        ask,
        study="tokenizers",
        texts=texts,
        scale=scale,
        grid=Grid(),
        arms=(characters, *larger, single, *shorter),
        contrasts=(
            *_against_characters(tuple(larger)),
            *_against_characters((single,), "near 0"),
            *_against_characters(shorter),
            _less("Unigram 1024", "BPE 1024", "which cut of as many pieces is better, equal compute"),
            _less("WordPiece 1024", "BPE 1024", "which cut of as many pieces is better, equal compute"),
        ),
        replicates=8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "its bits per byte less theirs are"
    text = _of_equal_text(findings)
    if verdict == "unresolved":
        return (
            "Whether BPE or characters make the better model from as many tokens is not settled by this run"
            f"{text}; {difference}"
        )
    if verdict == "equivalent":
        return f"From as many tokens BPE and characters make equally good models{text}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"From as many tokens characters make the better model{small}{text}: BPE trails them, and {difference}"
    return f"From as many tokens BPE makes a better model than characters{small}{text}: {difference}"


def _of_equal_text(findings: Findings) -> str:
    """How it stands where both have seen as much text."""
    name = findings.primary.contrast.name.removesuffix(" - characters")
    result = findings.effect(f"{name}, equal text - characters").result
    if result.verdict == "unresolved":
        return " (which does from as much text is open)"
    if result.verdict == "equivalent":
        return " (and from as much text equally good ones)"
    little = "a little " if result.verdict == "differs but trivially" else ""
    return f" (from as much text BPE's is {little}{'worse' if (result.effect or 0.0) > 0 else 'better'})"


QUESTION = Question(
    name="tokenizers",
    asks="Words, subwords, characters, bytes: what changes?",
    answer=(
        "bits per byte of the same validation text by tokenizer and vocabulary, from as many tokens (equal compute, but"
        " for W_U) and from as much text (equal text)"
    ),
    falsified_by=(
        "At equal compute characters are no worse than BPE; at equal text BPE is no worse than characters; WordPiece"
        " and Unigram of as many pieces differ from BPE by more than BPE does from characters."
    ),
    literature=(
        "For pretraining of BERT's size a Unigram vocabulary follows morphology more closely than BPE and does as well"
        " or better afterwards (Bostrom and Durrett 2020, arXiv 2004.03720, abstract). Losses per token do not compare"
        " between tokenizers, which is why published perplexities of different vocabularies say little; figures of"
        " vocabulary sweeps are known to us from notes only, so none is printed."
    ),
    design=_design,
    claim=_claim,
)
