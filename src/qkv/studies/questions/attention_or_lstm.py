"""What does self-attention give over an LSTM?

Two ways for a position to read those before it, with as many parameters: the textbook's attention, and two layers of
LSTM that are wide enough for it. Each has what suits it (attention Glorot's start and rotary positions, with which
short trainings get furthest) and a learning rate of its own. Beside the loss over all: the loss by how much context a
token has, since an LSTM has to carry everything in one vector where attention looks back; the loss where there is
little text; and, in full, associative recall, which is looking back and nothing else.
"""

import dataclasses
from typing import Any

from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import ModelConfig, Sizes
from qkv.presets import find as find_preset
from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import LEARNS_RECALL, RECALLED, Ask, Question, make_design
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

MARGIN = 0.03
_TOLD = 70
"""Tokens of the vocabulary of a text that is not read."""
_RECURRENT = tuple(
    (name, getattr(find_preset("lstm", "causal").layout, name))
    for name in ("mixer", "positions", "norm", "mlp", "skip", "start")
)
"""What makes the preset `lstm`."""
_KINDS = {"attention": (("start", "xavier"), ("positions", "rotary")), "LSTM": _RECURRENT}
_PROBES = {"text": ("loss by position",), "recall": ("answers",)}
_RECALL = {name: LEARNS_RECALL[name] for name in ("text", "task", "sizes")}
_EARLY = "3-4"
"""How many tokens of its window have been read for a target that has a little context."""


def _pair(ask: Ask, texts: dict[str, Text], scale: Scale, prefix: str = "", **more: Any) -> tuple[Arm, Arm]:
    """Attention and an LSTM with as many parameters."""
    own = dict(more.pop("sizes", ()))
    text = more.setdefault("text", "text")
    sizes = {"attention": own, "LSTM": own | {"n_heads": 1, "d_model": _width(ask, texts[text], scale, own)}}
    what = {"attention": "positions read one another by attention", "LSTM": "the same parameters in layers of LSTM"}
    attention, recurrent = (
        Arm(
            name=f"{prefix}{kind}", what=what[kind], layout=_KINDS[kind], sizes=tuple(sizes[kind].items()),
            probes=_PROBES.get(text, ()), **more,
        )
        for kind in _KINDS
    )  # fmt: skip
    return attention, recurrent


def _width(ask: Ask, text: Text, scale: Scale, own: dict[str, int]) -> int:
    """d_model of an LSTM with as many parameters as the attention of that scale, to the nearest 4."""
    told = ask.named and text.stream == "text"
    sizes = Sizes(
        d_vocab=_TOLD if told else ask.corpus(text).tokenizer.d_vocab, d_model=scale.d_model, n_layers=scale.n_layers,
        n_heads=scale.n_heads, n_ctx=own.get("n_ctx", scale.n_ctx),
    )  # fmt: skip
    layout = dataclasses.replace(find_preset("textbook", "causal").layout, **dict(_KINDS["attention"]))
    wanted = n_parameters(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout))
    single = Sizes(**{**vars(sizes), "n_heads": 1})
    recurrent = ModelConfig(kind="CausalLM", sizes=single, layout=find_preset("lstm", "causal").layout)
    return with_parameters(recurrent, wanted).sizes.d_model


def _less(prefix: str = "", unit: str = "nats per token", expected: str = "") -> Contrast:
    return cost(
        f"{prefix}LSTM - {prefix}attention", f"{prefix}loss of the LSTM, less that of attention", f"{prefix}LSTM",
        f"{prefix}attention", MARGIN, unit=unit, expected=expected,
    )  # fmt: skip


def _by_context(last: str) -> tuple[Contrast, ...]:
    """The same early and late in a window, and how much more attention gains from context."""

    def terms(stretch: str, sign: float = 1.0) -> tuple[tuple[float, str, str], ...]:
        return (sign, "LSTM", f"loss at {stretch}"), (-sign, "attention", f"loss at {stretch}")

    where = tuple(
        Contrast(
            name=f"at {stretch}", what=f"the same, of targets for which {stretch} tokens of their window are read",
            terms=terms(stretch), margin=MARGIN, expected=expected,
        )
        for stretch, expected in (("1", ""), (_EARLY, "at or below 0"), (last, ""))
    )  # fmt: skip
    return (
        *where,
        Contrast(
            name="gain from context", what=f"how much further ahead attention is at {last} than at {_EARLY}",
            terms=(*terms(last), *terms(_EARLY, -1.0)), margin=MARGIN, expected="above 0",
        ),
    )  # fmt: skip


def _recall_contrasts() -> tuple[Contrast, ...]:
    return (
        _less("recall ", "nats per answer", "above 0: recall is looking back"),
        Contrast(
            name="recall answers", what="answers told rightly by attention, less those by the LSTM",
            terms=((1.0, "recall attention", "answers"), (-1.0, "recall LSTM", "answers")), margin=5.0,
            unit="points of 100", expected="above 0",
        ),
    )  # fmt: skip


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _little(tokens: int) -> tuple[str, Text]:
    return f"{tokens // 1000}k", Text(settings=(("train_tokens", tokens),))


def _quick(ask: Ask) -> Design:
    scale = Scale(
        d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192, evaluations=2
    )
    name, little = _little(20_000)
    texts = {"text": Text(), name: little}
    return make_design(
        ask,
        study="attention-or-lstm",
        texts=texts,
        scale=scale,
        grid=Grid(),
        arms=(
            *_pair(ask, texts, scale),
            *_pair(ask, texts, scale, f"{name} ", text=name),
        ),
        contrasts=(_less(), *_by_context("17-32"), _less(f"{name} ", expected="below 0")),
        replicates=6,
    )


def _full(ask: Ask) -> Design:
    scale = Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=128, batch_size=8, steps=1000, val_tokens=32_768)
    sizes = dict(_little(tokens) for tokens in (60_000, 250_000))
    texts = {"text": Text(), **sizes, "recall": RECALLED}
    return make_design(
        ask,
        study="attention-or-lstm",
        texts=texts,
        scale=scale,
        grid=Grid(),
        arms=(
            *_pair(ask, texts, scale),
            *(arm for name in sizes for arm in _pair(ask, texts, scale, f"{name} ", text=name)),
            *_pair(ask, texts, scale, "recall ", **_RECALL),
        ),
        contrasts=(
            _less(),
            *_by_context("65-128"),
            *(_less(f"{name} ", expected="below 0" if i == 0 else "") for i, name in enumerate(sizes)),
            *_recall_contrasts(),
        ),
        replicates=8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "the LSTM's loss less that of attention is"
    rest = _of_context(findings)
    if verdict == "unresolved":
        what = "Whether attention or an LSTM of as many parameters does better"
        return f"{what} is not settled by this run{rest}; {difference}"
    if verdict == "equivalent":
        return f"Attention and an LSTM of as many parameters do equally well{rest}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"Attention does better than an LSTM of as many parameters{small}{rest}: {difference}"
    return f"An LSTM does better than attention with as many parameters{small}{rest}: {difference}"


def _of_context(findings: Findings) -> str:
    """Which of the two gains more from context within a window."""
    result = findings.effect("gain from context").result
    if result.verdict == "unresolved":
        return " (which of them gains more from context is open)"
    if result.verdict == "equivalent":
        return " (and they gain as much from context)"
    little = "a little " if result.verdict == "differs but trivially" else ""
    one = "attention" if (result.effect or 0.0) > 0 else "the LSTM"
    return f" ({one} gains {little}more from context)"


QUESTION = Question(
    name="attention-or-lstm",
    asks="What does self-attention give over an LSTM as a contextual encoder?",
    answer=(
        "loss with as many parameters and tuned rates, over all, by how much context a token has, with little text, and"
        " on associative recall"
    ),
    falsified_by=(
        "The LSTM gains as much from context as attention does; it recalls as well; attention is better already at the"
        " first tokens of a window and from the least text."
    ),
    literature=(
        "Random transformers whose embeddings alone are trained solve algorithmic tasks, associative recall among them"
        " (Zhong and Andreas 2024, arXiv 2410.04368, abstract). That LSTMs keep up on the first tokens of a context and"
        " fall behind later, and that they do well on little data, is known to us from notes on papers that we have not"
        " read; none of their figures is printed."
    ),
    design=_design,
    claim=_claim,
)
