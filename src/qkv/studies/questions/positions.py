"""What does the model know of order without positions?

Attention weighs a set; order comes in by positions. A causal model has another way: the first token sees one, the
second two, so the mask itself tells how far along a vector is. Positions are left out, added as rows (sinusoidal or
learned) or turned into q and k (rotary), in models that predict the next token and in models that see both sides.
Beside the loss: how well a linear probe reads the position from vectors, on windows held out, and what it costs to
shuffle the tokens around. Each kind of positions is compared with having none, all asked at once. The first is
rotary, the kind of today's models: no kind is the baseline of the others, so none looks good, or having none harmless,
by the weakness of another. All arms start by Glorot: at N(0, 0.02) a model that sees both sides stays for long where
only the frequencies of tokens are known, whatever its positions, and in short trainings nothing would be told.
"""

from typing import Any

from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import Accounts, Ask, Plain, Question, make_design
from qkv.studies.verdict.judging import Findings
from qkv.words import amount

__all__ = ["QUESTION"]

MARGIN = 0.03
_KNOWN = 0.05
"""Of the way from guessing a position to reading it exactly."""
_PROBES = ("position", "order")
_WORDS = {
    "none": "no positions",
    "learned": "learned rows added to the embeddings",
    "sinusoidal": "sines and cosines added to the embeddings",
    "rotary": "q and k turned by their position",
}
_TASKS = {"causal": "predicts the next token", "masked": "predicts masked tokens"}
_SHORT: tuple[tuple[str, Any], ...] = (("n_ctx", 8), ("batch_size", 64))
"""Windows in which order is learned soon, as many tokens a step as at the scale of the quick study."""
_KINDS = ("rotary", "learned", "sinusoidal")
"""What having none is compared with; the first is primary."""
_LAYERS = 2
"""Of all its models, quick and full."""
_WHERE = {"short ": "; in windows of 8", "chain ": "; of a made chain, in windows of 8"}


def _layout(positions: str) -> tuple[tuple[str, Any], ...]:
    return (("positions", positions), ("start", "xavier"))


def _arm(task: str, positions: str, prefix: str = "", **more: Any) -> Arm:
    return Arm(
        name=f"{prefix}{task}, {positions}", task=task,
        what=f"{_TASKS[task]}; {_WORDS[positions]}{_WHERE.get(prefix, '')}",
        layout=_layout(positions), probes=_PROBES, **more,
    )  # fmt: skip


def _untrained() -> Arm:
    return Arm(
        name="causal, none, untrained", what="the causal model without positions at its start",
        layout=_layout("none"), trainer="none", tune="none", probes=_PROBES,
    )  # fmt: skip


def _cost(task: str, positions: str, prefix: str = "", expected: str = "") -> Contrast:
    """What having none costs, against one kind of positions."""
    none, with_them = (f"{prefix}{task}, {p}" for p in ("none", positions))
    return cost(
        f"{none} - {with_them}", f"loss of {none}, less that of the same with {positions} positions", none, with_them,
        MARGIN, expected=expected,
    )  # fmt: skip


def _read_at(arm: str, layer: int, expected: str = "") -> Contrast:
    """How well the position is read from the vectors after so many layers; the last is told without its number."""
    place, where = ("", "the last layer's") if layer == _LAYERS else (f", layer {layer}", f"layer {layer}'s")
    return Contrast(
        name=f"position read{place}: {arm}",
        what=f"how far a linear probe of {where} vectors gets from guessing the position (0) to reading it (1)",
        terms=((1.0, arm, f"position {layer}"),), margin=_KNOWN, unit="of the way", expected=expected,
    )  # fmt: skip


def _known(arm: str, expected: str = "") -> Contrast:
    return _read_at(arm, _LAYERS, expected)


def _order(arm: str, expected: str = "", **more: Any) -> Contrast:
    return Contrast(
        name=f"order used: {arm}", what="loss with the other tokens of a window shuffled, less the loss",
        terms=((1.0, arm, "order"),), margin=MARGIN, expected=expected, **more,
    )  # fmt: skip


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _causal_contrasts() -> tuple[Contrast, ...]:
    return tuple(_cost("causal", kind, expected="above 0, and small") for kind in _KINDS)


def _read() -> tuple[Contrast, ...]:
    return (
        _known("causal, none", "above 0: the mask tells how many tokens are seen"),
        _known("causal, none, untrained"),
        _known("causal, learned", "near 1"),
        _known("masked, none", "0: nothing there tells one place from another"),
        _order("causal, none", "above 0"),
        _order("causal, rotary", "above 0"),
        _order("masked, none", "0 by construction", constant=True),
        _order("masked, rotary", "above 0"),
    )


_PROBED = ("causal, none, untrained", *(f"{task}, {kind}" for task in _TASKS for kind in ("none", *_KINDS)))
"""Arms of a full run whose vectors are read after every layer."""


def _by_layer() -> tuple[Contrast, ...]:
    """What `_read` leaves out of reading positions after every layer."""
    told = {contrast.name for contrast in _read()}
    each = (_read_at(arm, layer) for arm in _PROBED for layer in range(_LAYERS + 1))
    return tuple(contrast for contrast in each if contrast.name not in told)


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="positions",
        texts={"text": Text()},
        scale=Scale(
            d_model=32, n_layers=_LAYERS, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192, evaluations=2
        ),
        grid=Grid(),
        arms=(
            *(_arm("causal", positions) for positions in _WORDS),
            *(_arm("masked", positions, sizes=_SHORT) for positions in ("rotary", "none")),
            _untrained(),
        ),
        contrasts=(*_causal_contrasts(), _cost("masked", "rotary", expected="above 0, and large"), *_read()),
        replicates=6,
    )


def _full(ask: Ask) -> Design:
    short = (("n_ctx", 8), ("batch_size", 128))
    rule = (("states", 12), ("sharpness", 2.0), ("noise", 0.1), ("tokens", 400_000), ("val_tokens", 16_384))
    return make_design(
        ask,
        study="positions",
        texts={"text": Text(), "chain": Text(stream="markov", settings=rule)},
        scale=Scale(d_model=64, n_layers=_LAYERS, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768),
        grid=Grid(),
        arms=(
            *(_arm("causal", positions) for positions in _WORDS),
            *(_arm("masked", positions) for positions in _WORDS),
            _untrained(),
            *(_arm("masked", positions, "short ", sizes=short) for positions in ("rotary", "none")),
            *(_arm(task, p, "chain ", text="chain", sizes=short) for task in _TASKS for p in ("rotary", "none")),
        ),
        contrasts=(
            *_causal_contrasts(),
            _cost("masked", "rotary", expected="above 0, and large"),
            _cost("masked", "learned"),
            _cost("masked", "sinusoidal"),
            _cost("masked", "rotary", "short ", expected="above 0, and large"),
            Contrast(
                name="masked - causal",
                what="cost of having no positions, against rotary ones, to a masked model less that to a causal one",
                terms=(
                    (1.0, "masked, none", "loss"), (-1.0, "masked, rotary", "loss"),
                    (-1.0, "causal, none", "loss"), (1.0, "causal, rotary", "loss"),
                ),
                margin=MARGIN,
                expected="above 0",
            ),
            _cost("causal", "rotary", "chain ", expected="above 0: one place back is all there is to look at"),
            _cost("masked", "rotary", "chain ", expected="above 0, and large"),
            *_read(),
            *_by_layer(),
        ),
        replicates=8,
    )  # fmt: skip


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "without them the loss of a causal model changes by"
    rest = f" ({'; '.join([*(_of_kind(findings, kind) for kind in _KINDS[1:]), _of_masked(findings)])})"
    if verdict == "unresolved":
        return (
            f"Whether a causal model is the better for rotary positions is not settled by this run{rest}; {difference}"
        )
    if verdict == "equivalent":
        return f"A causal model does as well without positions as with rotary ones{rest}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"A causal model is better with rotary positions than without{small}{rest}: {difference}"
    return f"A causal model is better without positions than with rotary ones{small}{rest}: {difference}"


def _of_kind(findings: Findings, kind: str) -> str:
    """How a causal model with positions of another kind does beside one without."""
    result = findings.effect(f"causal, none - causal, {kind}").told
    if result.verdict == "equivalent":
        return f"with {kind} ones as well as without"
    if result.verdict == "unresolved":
        return f"whether {kind} ones help is open"
    little = "a little " if result.verdict == "differs but trivially" else ""
    way = "better" if (result.effect or 0.0) > 0 else "worse"
    return f"with {kind} ones {little}{way} than without, by {amount(abs(result.effect or 0.0), False)} nats"


def _of_masked(findings: Findings) -> str:
    """What having none costs a model that sees both sides."""
    name = "masked, none - masked, "
    result = next(e for e in findings.effects if e.contrast.name.startswith(name)).told
    if result.verdict == "unresolved":
        return "what having none does to one that sees both sides is open"
    if result.verdict == "equivalent":
        return "one that sees both sides loses nothing by having none"
    little = "a little " if result.verdict == "differs but trivially" else ""
    if (result.effect or 0.0) < 0:
        return f"one that sees both sides gains {little}by having none"
    return f"having none sets one that sees both sides back by {little}{amount(result.effect, False)} nats"


QUESTION = Question(
    name="positions",
    asks="What does the model know of order without positions?",
    answer=(
        "cost in nats of having no positions, against rotary, learned and sinusoidal ones, causal and masked; how well"
        " a linear probe reads the position by layer; what shuffling the tokens around costs"
    ),
    falsified_by=(
        "A causal model without positions tells a linear probe nothing of where a vector stands; a masked one tells it"
        " anything, or loses no more by having none than a causal one does."
    ),
    literature=(
        "Causal language models without positions are competitive with those that have them, since the mask lets them"
        " learn where they are (Haviv et al. 2022, arXiv 2203.16634, abstract), which was found with far larger models"
        " in far longer trainings: what small ones lose by having none is another matter, and told above. Models that"
        " see both sides cannot tell orders apart without positions, which is a theorem (tests hold it). Their figures"
        " are known to us from notes only, so none is printed. That rotary positions come first here was chosen after a"
        " quick run had been seen in which learned ones did; a new quick run has its seeds again, so a full run is the"
        " test of it."
    ),
    plain=Plain(
        above="A causal model does worse without positions than with rotary ones.",
        below="A causal model does better here without positions than with rotary ones.",
        slightly="A causal model does almost exactly as well without positions as with rotary ones.",
        equivalent="A causal model does as well without positions as with rotary ones.",
        unresolved="Whether a causal model needs positions, this run cannot tell.",
    ),
    also=(
        (
            "order used: causal, none",
            Plain(
                above=(
                    "It knows something of order even so, for its mask shows how much it sees: with the other tokens of"
                    " its window shuffled it is {effect} nats worse."
                ),
                below="With the other tokens of its window shuffled it is even better, by {effect} nats.",
                slightly="With the other tokens of its window shuffled it is almost exactly as good.",
                equivalent="It makes nothing of order: with the other tokens of its window shuffled it is as good.",
                unresolved="Whether it makes anything of order even so, this run cannot tell.",
            ),
        ),
        (
            "masked - causal",
            Plain(
                above="One that sees both sides misses them more, by {effect} nats a token.",
                below="One that sees both sides misses them less, by {effect} nats a token.",
                slightly="One that sees both sides misses them almost exactly as much.",
                equivalent="One that sees both sides misses them as much.",
                unresolved="Whether one that sees both sides misses them more, this run cannot tell.",
            ),
        ),
    ),
    accounts=Accounts(
        columns=tuple(f"position read, layer {layer}" for layer in range(_LAYERS + 1)),
        rows=tuple((arm, tuple(_read_at(arm, layer).name for layer in range(_LAYERS + 1))) for arm in _PROBED),
    ),
    heard=(
        "That without positions a Transformer sees a bag of words. Of models that see both sides it is a theorem:"
        " order of the input in, order of the output out, nothing else changed. A causal mask breaks it, for the"
        " third token sees three and the fourth sees four."
    ),
    design=_design,
    claim=_claim,
)
