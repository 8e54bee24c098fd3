"""What `tokenizers` counts on its text: how many steps each arm has, and what its figures have to be read with."""

import math

from qkv.jsontypes import JsonObject
from qkv.models.counting import n_parameters
from qkv.studies.engine.assembly import config_of
from qkv.studies.engine.design import Design, Scale, Text
from qkv.studies.question import Ask

_TOLD_BYTES, _TOLD_VOCAB = 2.0, {"char": 70, "byte": 261}
"""Bytes of a token of several characters, and sizes of vocabularies, taken for a text that is not read."""


def budgets(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """Of each tokenizer the steps that come to the compute, or the text, of characters, and how much of the other."""
    found, characters = {}, texts["characters"]
    for name, text in texts.items():
        compute = _operations(ask, characters, scale) / _operations(ask, text, scale)
        as_text = _bytes(ask, characters) / _bytes(ask, text)
        for budget, share, other in (("compute", compute, as_text), ("text", as_text, compute)):
            steps = max(1, round(scale.steps * share))
            found[f"steps of {name}, equal {budget}"] = steps
            found[f"rest of {name}, equal {budget}"] = steps / scale.steps / other
    return found


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


def counted(ask: Ask, design: Design) -> str:
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
