"""Words, subwords, characters, bytes: what changes?

The same text under tokenizers of six kinds and several vocabularies. A nat per token means something else under each,
so everything is in bits per byte of the same validation text, and what a tokenizer loses is charged. All arms have a
body of the same sizes and read windows of equally many tokens, equally many per step; the number of steps equalizes the
budget. *Equal compute*: as many floating-point operations of training as characters take, including those of W_U with
its larger vocabulary. (Equally many tokens would not do: words would get three times the operations of characters.)
*Equal text*: as many bytes read. Each arm states what it gets of the other budget.

What a tokenizer loses (an unknown word, the kind of a space) no model has to predict. It is charged in bits per byte,
by a model of bytes that is counted on the training part and costs no compute; the notes say how large that charge is.

Not held equal is what comes with a tokenizer: parameters (rows of W_E, columns of W_U), bytes in a window, and its
vocabulary and the model of what it loses, which are counted on the whole training part.

Does a word keep its relatives under subwords? Models that read equally much text, each with a twin on another seed, are
asked which of the same frequent words are alike: by rows of W_E, where a word is the mean of the rows of its pieces,
and by contextual vectors at its last piece (`studies.probes.words`). The measure is how far a tokenizer agrees with
whole words, in rank correlation over pairs. It is compared with the most that noise between seeds allows and with the
untrained model: words that share pieces share rows, whatever was learned. That depends on the words and on no
coordinates. It is left out where a model learned no more than answer frequencies or two seeds do not agree at all.
--quick leaves it out: words get a hundred steps there.
"""

import dataclasses
import math

from qkv.models.counting import n_parameters
from qkv.studies.engine.assembly import config_of
from qkv.studies.engine.design import Arm, Contrast, Design, Scale, Text
from qkv.studies.expectation import Expected
from qkv.studies.probes.relatedness import AGAIN, UNTRAINED, compared
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import ABOVE, AT_START, FULL, QUICK, Settings, arm, difference, learned, near

MARGIN = 0.03
_AGREE_MARGIN = 0.1
_WORDS = "words 4096"
"""What relatedness under other tokenizers is held beside."""
_SPACES = {
    "W_E": "by rows of W_E, of a word the mean of those of its pieces",
    "mean": "by mean vectors after the last layer, at the last piece of a word",
}
_NAMES = {"bpe": "BPE", "wordpiece": "WordPiece", "unigram": "Unigram", "word": "words"}
_TOLD_BYTES, _TOLD_VOCAB = 2.0, {"char": 70, "byte": 261}
"""Bytes of a token of several characters, and sizes of vocabularies, taken for a text that is not read."""


def _texts(kinds: tuple[tuple[str, int], ...], val_bytes: int) -> dict[str, Text]:
    settings = (("val_bytes", val_bytes),)
    return {_name(kind, vocab): Text(tokenizer=kind, vocab=vocab, settings=settings) for kind, vocab in kinds}


def _name(kind: str, vocab: int) -> str:
    return f"{_NAMES[kind]} {vocab}" if vocab else {"char": "characters", "byte": "bytes"}[kind]


def _characters(scale: Scale) -> Arm:
    return arm("characters", f"characters in {scale.steps:,} steps", text="characters", probes=("bits",))


def _arm(ask: Ask, name: str, texts: dict[str, Text], scale: Scale, budget: str) -> Arm:
    """As many steps as come to the budget of characters, "compute" or "text"; of the other it gets what comes of it."""
    others, own = texts["characters"], texts[name]
    shares = {
        "compute": _operations(ask, others, scale) / _operations(ask, own, scale),
        "text": _bytes(ask, others) / _bytes(ask, own),
    }
    steps = max(1, round(scale.steps * shares[budget]))
    other = "text" if budget == "compute" else "compute"
    sizes: tuple[tuple[str, int], ...] = (("steps", steps),)
    if budget == "text":  # an arm of its own also where both budgets come to as many steps
        sizes += (("batch_size", scale.batch_size),)
    what = (
        f"{name} in {steps:,} steps: as much {budget} as characters, and {steps / scale.steps / shares[other]:.2f}"
        f" times their {other}"
    )
    return arm(f"{name}, equal {budget}", what, text=name, sizes=sizes, probes=("bits",))


def _operations(ask: Ask, text: Text, scale: Scale) -> int:
    """Floating-point operations of all products in training on one token of the textbook's model.

    6 (n_layers (12 d_model^2 + 2 n_ctx d_model) + d_model d_vocab): two for each multiplication that is added, once
    forwards and twice backwards; attention's scores and sums whole, the optimizer and all that is no product left out.
    """
    told = _TOLD_VOCAB.get(text.tokenizer, text.vocab)
    d_vocab = told if ask.named else ask.corpus(text).tokenizer.d_vocab
    body = scale.n_layers * (12 * scale.d_model**2 + 2 * scale.n_ctx * scale.d_model)
    return 6 * (body + scale.d_model * d_vocab)


def _bytes(ask: Ask, text: Text) -> float:
    """Of a training token."""
    if ask.named:
        return _TOLD_BYTES if text.vocab else 1.0
    train = ask.corpus(text).train
    return train.n_bytes / len(train)


def _less(arm: str, baseline: str, what: str, expected: Expected | None = None) -> Contrast:
    return difference(
        f"{arm} - {baseline}", what, arm, baseline, "bits per byte", MARGIN, unit="bits per byte", expected=expected
    )


def _against_characters(arms: tuple[Arm, ...], expected: Expected | None = None) -> tuple[Contrast, ...]:
    return tuple(
        _less(one.name, "characters", f"bits per byte of {one.what}, minus those of characters", expected)
        for one in arms
    )


_RELATED = ("relatedness of words", "learned")


def _in_twos(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Each arm with the probe, its twin on another seed at the same rate, and the same model at its start."""
    found = []
    for one in arms:
        same: Settings = {"text": one.text, "sizes": one.sizes, "probes": _RELATED[:1]}
        again = f"the same with another seed ({one.name})"
        found += [
            dataclasses.replace(one, probes=(*one.probes, *_RELATED)),
            arm(f"{one.name}{AGAIN}", again, same, trainer="other seed", tune=one.name),
            arm(f"{one.name}{UNTRAINED}", f"the same, untrained ({one.name})", same, AT_START),
        ]
    return tuple(found)


def _related(cut: Arm, words: Arm, space: str) -> tuple[Contrast, ...]:
    """Whether a tokenizer's models hold the words alike that models of words do."""
    across, ceiling = f"{space}: {cut.text} ~ {words.text}", f"{space}: ceiling {cut.text} ~ {words.text}"
    null = f"{space}: {cut.text}{UNTRAINED} ~ {words.text}"
    learnt = (learned(cut.name).name, learned(words.name).name)
    which = f"agreement of {cut.text} and words on which words are alike ({_SPACES[space]})"
    whole = tuple((0.5, one.name, across) for one in (cut, words))  # so that all that is compared is read
    most = tuple((0.5, f"{one.name}{AGAIN}", ceiling) for one in (cut, words))

    def of(
        name: str, what: str, *terms: tuple[float, str, str], expected: Expected | None = None, gated: bool = True
    ) -> Contrast:
        return Contrast(
            name=name, what=what, terms=terms, margin=_AGREE_MARGIN, unit="rank correlation", expected=expected,
            needs=ceiling if gated else "", beside=learnt if gated else (),
        )  # fmt: skip

    return (
        of(
            f"{across}, less its start", f"{which}, minus that of its untrained model", *whole,
            (-1.0, f"{cut.name}{UNTRAINED}", null), expected=ABOVE,
        ),
        of(
            f"{across}, less its ceiling", f"{which}, minus the most that noise between seeds allows", *whole,
            *((-weight, name, of) for weight, name, of in most),
        ),
        of(
            ceiling, f"the highest agreement of {cut.text} and words that noise between seeds allows ({space})", *most,
            expected=ABOVE, gated=False,
        ),
    )  # fmt: skip


def _relatedness(cuts: tuple[Arm, ...], words: Arm) -> tuple[Contrast, ...]:
    return (
        *(contrast for space in _SPACES for cut in cuts for contrast in _related(cut, words, space)),
        *(learned(one.name) for one in (*cuts, words)),
    )


def _quick(ask: Ask) -> Design:
    kinds = (("bpe", 512), ("wordpiece", 512), ("unigram", 512), ("word", 2000))
    texts = _texts((("char", 0), *kinds), 16_384)
    scale = dataclasses.replace(QUICK, val_tokens=16_384, evaluations=1)
    bpe, *others = (_arm(ask, _name(kind, vocab), texts, scale, "compute") for kind, vocab in kinds)
    as_much_text = _arm(ask, "BPE 512", texts, scale, "text")
    return make_design(
        ask,
        study="tokenizers",
        texts=texts,
        scale=scale,
        arms=(_characters(scale), bpe, *others, as_much_text),
        contrasts=_against_characters((bpe, as_much_text, *others)),
    )


def _full(ask: Ask) -> Design:
    cut = (
        ("bpe", 1024), ("bpe", 512), ("bpe", 2048), ("bpe", 4096), ("wordpiece", 1024), ("unigram", 1024),
        ("word", 4096),
    )  # fmt: skip
    texts = _texts((("char", 0), ("byte", 0), *cut), 32_768)
    as_much_compute, as_much_text = (
        tuple(_arm(ask, _name(kind, vocab), texts, FULL, budget) for kind, vocab in cut)
        for budget in ("compute", "text")
    )
    single, characters = _arm(ask, "bytes", texts, FULL, "text"), _characters(FULL)
    by_name = {one.text: one for one in as_much_text}
    cuts = tuple(by_name.pop(name) for name in ("BPE 1024", "WordPiece 1024", "Unigram 1024"))
    words, plain = by_name.pop(_WORDS), by_name.values()
    which = "which cut of as many pieces is better at equal compute, and so in as many steps"
    return make_design(
        ask,
        study="tokenizers",
        texts=texts,
        scale=FULL,
        arms=(*_in_twos((characters,)), *as_much_compute, single, *plain, *_in_twos((*cuts, words))),
        contrasts=(
            *_against_characters(as_much_compute),
            *_against_characters((single,), near(0.0, MARGIN)),
            *_against_characters(as_much_text),
            _less("Unigram 1024, equal compute", "BPE 1024, equal compute", which),
            _less("WordPiece 1024, equal compute", "BPE 1024, equal compute", which),
            *_relatedness((*cuts, characters), words),
        ),
    )


def _counted(ask: Ask, design: Design) -> str:
    """What each figure has to be read with: what a tokenizer is charged, and what it brings beside the budget."""
    return f"{_charges(ask, design)}. {_not_equal(ask, design)}"


def _not_equal(ask: Ask, design: Design) -> str:
    """Parameters, nearly all that differ in W_E and W_U, and bytes in a window, by tokenizer, most parameters last."""
    rows = []
    for one in {one.text: one for one in design.arms if one.trainer == "loop"}.values():
        trial = design.trial(one, 1, 0, source=ask.source, report=True)
        made = ask.corpus(trial.text, design.scale.val_tokens)
        n = n_parameters(config_of(trial, made).model)
        rows.append((n, f"{one.text} {n:,} and {made.bytes_per_token * trial.scale.n_ctx:.0f}"))
    return f"Not held equal are parameters and bytes in a window: {'; '.join(words for _, words in sorted(rows))}"


def _charges(ask: Ask, design: Design) -> str:
    """How much of the bits per byte of each tokenizer is the charge for what it loses."""
    charged, unknown, n_lossless = [], [], 0
    for name, text in design.texts:
        corpus = ask.corpus(text, design.scale.val_tokens)
        if corpus.charge_nats is None:
            unknown.append(name)
        elif corpus.charge_nats:
            charged.append((name, corpus.charge_nats / math.log(2) / corpus.val.n_bytes))
        else:
            n_lossless += 1
    said = "No tokenizer is charged for anything"
    if charged:
        (first, most), *rest = sorted(charged, key=lambda of: -of[1])
        said = " and ".join([f"{most:.3f} bits per byte of {first}", *(f"{bits:.3f} of {name}" for name, bits in rest)])
        said += " are a charge for what the tokenizer loses, made by a counted model of bytes at no compute"
        said += f"; the other {n_lossless} tokenizers lose nothing" * (n_lossless > 0)
    return said + (f"; what {' and '.join(unknown)} loses cannot be charged" if unknown else "")


QUESTION = read_question("tokenizers", design=quick_or_full(_quick, _full), derive=compared, counted=_counted)
