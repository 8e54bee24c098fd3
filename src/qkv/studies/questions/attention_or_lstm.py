"""What does self-attention give over an LSTM?

Two ways for a position to read those before it, with equal parameters in all, W_E and W_U included: the textbook's
attention, and two layers of LSTM wide enough for it. An LSTM's width grows by pairs of coordinates, which is a tenth of
its parameters where it is narrow, so the MLP beside attention makes up for the rest; the counts are given with the
effects. Each gets what suits it (attention Glorot initialization and rotary positions, which help short trainings most)
and its own learning rate. Measured are the loss over all tokens; the loss by how much context a token has, since an
LSTM carries everything in one vector where attention looks back; the loss with little text; and, in full, associative
recall.

As contextual encoders the two are compared on words, in full only (--quick has no time for two more tuned arms): how
alike one word's vectors in different contexts are, beyond those of different words, and how alike the vectors of a
window are to their mean, beyond shuffled windows (`studies.probes.contextual`, after Ethayarajh 2019). Both are
measured after the last layer. Both are cosines, so they are properties of this parametrization and may change with the
basis. The baseline is the same model untrained. Nothing is said about a model that learned no more than answer
frequencies.
"""

import dataclasses
from collections.abc import Mapping

from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import ModelConfig, Sizes
from qkv.presets import find as find_preset
from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Scale, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    BELOW,
    FULL,
    QUICK,
    RECALL_SIZES,
    RECALLED,
    Settings,
    arm,
    cost,
    difference,
    difference_of_costs,
    learned,
    of_recalling,
)

MARGIN = 0.03
_ALIKE_MARGIN = 0.05
_TOLD = 70
"""Tokens of the vocabulary of a text in characters that is not read."""
_WORDS = Text(tokenizer="word", vocab=2000)
_AT_START = " at its start"
_ALIKE = {
    "self-similarity": "how alike one word's vectors in different contexts are, beyond those of different words",
    "in a window": "how alike vectors are to the mean of their window, beyond shuffled windows",
}
"""Measure of the probe `contextual` -> what it is."""
_RECURRENT = tuple(
    (name, getattr(find_preset("lstm", "causal").layout, name))
    for name in ("mixer", "positions", "norm", "mlp", "skip", "start")
)
"""What makes the preset `lstm`."""
_KINDS: Mapping[str, Pairs] = {"attention": (("start", "xavier"), ("positions", "rotary")), "LSTM": _RECURRENT}
_PROBES = {"text": ("loss by position",), "recall": ("answers",), "words": ("contextual", "learned")}
_EARLY = "3-4"
"""How many tokens of its window have been read for a target that has a little context."""


def _pair(
    ask: Ask,
    texts: dict[str, Text],
    scale: Scale,
    text: str = "text",
    *,
    unit: str = "nats per token",
    expected: Expected | None = None,
    own: Settings | None = None,
) -> tuple[tuple[Arm, Arm], Contrast]:
    """Attention and an LSTM with as many parameters, and by how much their losses differ."""
    same, prefix = own or {}, "" if text == "text" else f"{text} "
    given = dict(same.get("sizes", ()))
    sizes, counts = _matched(ask, texts[text], scale, given)
    what = {
        "attention": f"positions read one another by attention, MLP of width {sizes['attention']['d_mlp']}",
        "LSTM": f"layers of LSTM of width {sizes['LSTM']['d_model']}",
    }
    attention, recurrent = (
        arm(
            f"{prefix}{kind}", f"{what[kind]}; {counts[kind]:,} parameters", same, text=text, layout=layout,
            sizes=tuple((given | sizes[kind]).items()), probes=_PROBES.get(text, ()),
        )
        for kind, layout in _KINDS.items()
    )  # fmt: skip
    numbers = f"{counts['LSTM']:,} and {counts['attention']:,}, {counts['LSTM'] / counts['attention'] - 1:+.1%}"
    less = cost(
        f"{recurrent.name} - {attention.name}",
        f"{prefix}loss of the LSTM minus that of attention with as many parameters ({numbers.replace('%', ' %')})",
        recurrent.name, attention.name, MARGIN, unit=unit, expected=expected,
    )  # fmt: skip
    return (attention, recurrent), less


def _matched(
    ask: Ask, text: Text, scale: Scale, own: dict[str, int]
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Sizes of the two with as many parameters, and these: the nearest LSTM, and the MLP that makes up for the rest.

    The MLP stays within an eighth of the usual 4 d_model; what a pair of coordinates of an LSTM brings is more than
    that where the tables are of thousands of tokens.
    """
    told = ask.named and text.stream == "text"
    d_vocab = (text.vocab or _TOLD) if told else ask.corpus(text).tokenizer.d_vocab
    given = vars(scale) | own
    shape: dict[str, int] = {name: given[name] for name in ("d_model", "n_layers", "n_heads", "n_ctx")}

    def model(kind: str, **sizes: int) -> ModelConfig:
        layout = dataclasses.replace(find_preset("textbook", "causal").layout, **dict(_KINDS[kind]))
        return ModelConfig(kind="CausalLM", sizes=Sizes(**(shape | sizes), d_vocab=d_vocab), layout=layout)

    usual = 4 * scale.d_model
    one, more = (n_parameters(model("attention", d_mlp=usual + i)) for i in range(2))
    near = with_parameters(model("LSTM", n_heads=1), one).sizes.d_model
    widths = {w: n_parameters(model("LSTM", n_heads=1, d_model=w)) for w in (near - 2, near, near + 2)}
    d_model = min(widths, key=lambda w: abs(widths[w] - one))
    d_mlp = usual + min(max(round((widths[d_model] - one) / (more - one)), -usual // 8), usual // 8)
    sizes = {"attention": {"d_mlp": d_mlp}, "LSTM": {"n_heads": 1, "d_model": d_model}}
    return sizes, {kind: n_parameters(model(kind, **sizes[kind])) for kind in _KINDS}


def _by_context(last: str) -> tuple[Contrast, ...]:
    """The same early and late in a window, and how much more attention gains from context."""
    pair = ("LSTM", "attention")
    where = (
        difference(
            f"at {stretch}", f"the same, of targets with {stretch} {unit} of their window before them", *pair,
            f"loss at {stretch}", MARGIN, expected=expected,
        )
        for stretch, unit, expected in (
            ("1", "token", None), (_EARLY, "tokens", Expected(below=MARGIN)), (last, "tokens", None),
        )
    )  # fmt: skip
    return *where, difference_of_costs(
        "gain from context", f"how much farther ahead attention is at {last} than at {_EARLY}", pair, pair, MARGIN,
        (f"loss at {last}", f"loss at {_EARLY}"), expected=ABOVE,
    )  # fmt: skip


def _recalled() -> Contrast:
    return difference(
        "recall answers", "correct answers of attention minus those of the LSTM", "recall attention",
        "recall LSTM", "answers", 5.0, unit="points of 100", expected=ABOVE,
    )  # fmt: skip


def _still(trained: Arm) -> Arm:
    """The same model before it learned anything."""
    name, what = f"{trained.name}{_AT_START}", f"the same, untrained ({trained.name})"
    return dataclasses.replace(trained, name=name, what=what, trainer="none", tune="none", probes=("contextual",))


def _contextual(pair: tuple[Arm, Arm], last: int) -> tuple[Contrast, ...]:
    """Of both after the last layer: each measure beyond that at the start, then the LSTM's less that of attention."""
    attention, recurrent = (arm.name for arm in pair)

    def of(name: str, what: str, measure: str, *terms: tuple[float, str], expected: Expected | None = None) -> Contrast:
        gates = tuple(learned(arm).name for _, arm in terms if not arm.endswith(_AT_START))
        return Contrast(
            name=f"{measure}: {name}", what=f"{_ALIKE[measure]}, after the last layer: {what}",
            terms=tuple((weight, arm, f"{measure} {last}") for weight, arm in terms), margin=_ALIKE_MARGIN,
            unit="cosine", expected=expected, needs=gates[0], beside=gates[1:],
        )  # fmt: skip

    found = []
    for measure in _ALIKE:
        more = ABOVE if measure == "in a window" else None
        found += [
            of("LSTM - attention", "LSTM minus attention", measure, (1.0, recurrent), (-1.0, attention), expected=more),
            *(of(arm, arm, measure, (1.0, arm)) for arm in (attention, recurrent)),
            *(
                of(f"{arm}, by training", f"{arm}, minus the same untrained", measure, (1.0, arm),
                   (-1.0, f"{arm}{_AT_START}"))
                for arm in (attention, recurrent)
            ),
        ]  # fmt: skip
    return (*found, learned(attention), learned(recurrent))


def _little(tokens: int) -> tuple[str, Text]:
    return f"{tokens // 1000}k", Text(settings=(("train_tokens", tokens),))


def _quick(ask: Ask) -> Design:
    name, little = _little(20_000)
    texts = {"text": Text(), name: little}
    both, less = _pair(ask, texts, QUICK)
    both_little, less_little = _pair(ask, texts, QUICK, name, expected=BELOW)
    return make_design(
        ask,
        study="attention-or-lstm",
        texts=texts,
        scale=QUICK,
        arms=(*both, *both_little),
        contrasts=(less, *_by_context("17-32"), less_little),
    )


def _full(ask: Ask) -> Design:
    scale = dataclasses.replace(FULL, n_ctx=128, batch_size=8)
    little = dict(_little(tokens) for tokens in (60_000, 250_000))
    texts = {"text": Text(), **little, "recall": RECALLED, "words": _WORDS}
    both, less = _pair(ask, texts, scale)
    of_little = [_pair(ask, texts, scale, name, expected=None if i else BELOW) for i, name in enumerate(little)]
    recall, less_recall = _pair(
        ask, texts, scale, "recall", unit="nats per answer", expected=ABOVE,
        own={"task": "recall", "sizes": RECALL_SIZES},
    )  # fmt: skip
    words, less_words = _pair(ask, texts, scale, "words")
    return make_design(
        ask,
        study="attention-or-lstm",
        texts=texts,
        scale=scale,
        arms=(*both, *(arm for arms, _ in of_little for arm in arms), *recall, *words, *map(_still, words)),
        contrasts=(
            less,
            *_by_context("65-128"),
            *(contrast for _, contrast in of_little),
            *of_recalling((less_recall, _recalled()), "recall attention"),
            less_words,
            *_contextual(words, scale.n_layers),
        ),
    )


QUESTION = read_question("attention-or-lstm", design=quick_or_full(_quick, _full))
