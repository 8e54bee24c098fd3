"""Which of W_Q, W_K, W_V, W_O matters, and what does W = I (so that q = k = v = x) cost?

Each matrix and the pairs QK and VO frozen at their start, set to the identity, or shared; the MLP as yardstick; with
and without skip; text and associative recall. Since scores need only W_Q W_K^T and outputs only W_V W_O, one frozen
factor may be made good by the other: the interactions QxK and VxO are the finding. On the models where everything is
trained, the cost of setting each matrix back to its start and the ledger stand beside the cost of freezing it.
"""

from qkv.presets import find as find_preset
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import LEARNS_RECALL, RECALLED, Accounts, Ask, Plain, Question, make_design, of_learned
from qkv.studies.verdict.judging import Findings
from qkv.words import amount

__all__ = ["QUESTION"]

MARGIN = 0.03
_FROZEN = {
    "Q": ("L*.W_Q=freeze",),
    "K": ("L*.W_K=freeze",),
    "QK": ("L*.W_[QK]=freeze",),
    "V": ("L*.W_V=freeze",),
    "O": ("L*.W_O=freeze",),
    "VO": ("L*.W_[VO]=freeze",),
}
_ACCOUNTS = {"Q": "W_Q", "K": "W_K", "V": "W_V", "O": "W_O", "QK": "QK", "VO": "VO", "MLP": "MLP"}
"""What is frozen -> the same in the names of probes."""


def _name(what: str) -> str:
    return f"{what} frozen"


def _frozen_arms(names: tuple[str, ...], **more: object) -> tuple[Arm, ...]:
    prefix = str(more.pop("prefix", ""))
    return tuple(
        Arm(
            name=f"{prefix}{_name(n)}", what=f"{_matrices(n)} frozen at the random start",
            changes=_FROZEN[n], **more,  # type: ignore[arg-type]
        )
        for n in names
    )  # fmt: skip


def _matrices(letters: str) -> str:
    return " and ".join(f"W_{letter}" for letter in letters)


def _interaction(pair: str) -> Contrast:
    a, b = pair
    return Contrast(
        name=f"{a} x {b}",
        what=f"cost of freezing both W_{a} and W_{b}, less the two costs of freezing one",
        terms=(
            (1.0, _name(pair), "loss"),
            (-1.0, _name(a), "loss"),
            (-1.0, _name(b), "loss"),
            (1.0, "trained", "loss"),
        ),
        margin=MARGIN,
        expected="above 0: either factor can make good for the other",
    )


def _order(prefix: str = "", expected: str = "above 0 on text") -> Contrast:
    return Contrast(
        name=f"{prefix}VO - QK",
        what="cost of freezing W_V and W_O, less cost of freezing W_Q and W_K",
        terms=((1.0, f"{prefix}{_name('VO')}", "loss"), (-1.0, f"{prefix}{_name('QK')}", "loss")),
        margin=MARGIN,
        unit="nats per answer" if prefix == "recall " else "nats per token",
        expected=expected,
    )


def _costs(names: tuple[str, ...], prefix: str = "", **more: str) -> tuple[Contrast, ...]:
    return tuple(
        cost(f"{prefix}{n} - trained", f"cost of {prefix}{n}", f"{prefix}{n}", f"{prefix}trained", MARGIN, **more)
        for n in names
    )


_OTHERS = {
    "set back": ("loss with these set back to their start, less the loss:", "reset"),
    "earned": ("nats that their movement earned:", "earned"),
}
"""Accounts of the model in which everything was trained -> in words, and the name of their probe."""


def _accounts() -> tuple[Contrast, ...]:
    """Reset-time cost and ledger of the model in which everything was trained, and whose order each of them is."""
    each = tuple(
        Contrast(
            name=f"{name} {word}",
            what=f"{words} {name}, everything trained",
            terms=((1.0, "trained", f"{probe} {place}"),),
            margin=MARGIN,
        )
        for name, place in _ACCOUNTS.items()
        for word, (words, probe) in _OTHERS.items()
    )
    order = tuple(
        Contrast(
            name=f"VO - QK, {word}",
            what=f"{words} VO, less the same of QK",
            terms=((1.0, "trained", f"{probe} VO"), (-1.0, "trained", f"{probe} QK")),
            margin=MARGIN,
        )
        for word, (words, probe) in _OTHERS.items()
    )
    return (*each, *order)


_TRAINED = Arm(name="trained", what="everything trained", probes=("reset", "ledger", "drift"))
_MLP = Arm(name="MLP frozen", what="W_in and W_out frozen: a yardstick", changes=("L*.W_in,L*.W_out=freeze",))
_QK_IDENTITY = Arm(name="QK identity", what="W_Q = W_K = I: q = k = x", changes=("L*.W_[QK]=identity",))
_ALL_IDENTITY = ("L*.W_[QKVO]=identity",)
_VO_IDENTITY = Arm(name="VO identity", what="W_V = W_O = I: v = x", changes=("L*.W_[VO]=identity",))
_ONE_IDENTITY = tuple(
    Arm(name=f"{letter} identity", what=f"W_{letter} = I: {what}, the rest trained",
        changes=(f"L*.W_{letter}=identity",))
    for letter, what in {"Q": "q = x", "K": "k = x", "V": "v = x", "O": "heads write side by side"}.items()
)  # fmt: skip


_TUTORIAL = ("positions", "norm", "mlp", "skip", "start")
"""What makes the preset `bloem`, beside one layer of one head and its change."""


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _quick(ask: Ask) -> Design:
    names = ("Q", "K", "QK", "V", "O", "VO")
    arms = (_TRAINED, *_frozen_arms(names), _MLP)
    return make_design(
        ask,
        study="which-matrix",
        texts={"text": Text(tokenizer="char")},
        scale=Scale(
            d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192, evaluations=2
        ),
        grid=Grid(ratio=3.0, points=3),
        arms=arms,
        contrasts=(
            _order(),
            *_costs(tuple(arm.name for arm in arms[1:])),
            _interaction("QK"),
            _interaction("VO"),
            *_accounts(),
        ),
        replicates=5,
    )


def _shared(a: str, b: str, n_layers: int) -> Arm:
    return Arm(
        name=f"{a} = {b}", what=f"one matrix serves as W_{a} and W_{b}",
        changes=tuple(f"L{i}.W_{b}=share(L{i}.W_{a})" for i in range(n_layers)),
    )  # fmt: skip


def _full(ask: Ask) -> Design:
    names = ("Q", "K", "QK", "V", "O", "VO")
    everything = Arm(name="all identity", what="W_Q = W_K = W_V = W_O = I: q = k = v = x", changes=_ALL_IDENTITY)
    text_arms = (
        _TRAINED, *_frozen_arms(names), _MLP, _QK_IDENTITY, _VO_IDENTITY, everything,
        _shared("Q", "K", 2), _shared("K", "V", 2), *_ONE_IDENTITY,
    )  # fmt: skip
    skipless = {"layout": (("skip", False), ("start", "xavier")), "probes": ("learned",)}
    no_skip = (
        Arm(
            name="skipless trained", what="no skip connections, everything trained from Glorot's start",
            **skipless,  # type: ignore[arg-type]
        ),
        Arm(
            name="skipless VO identity", what="no skip connections, W_V = W_O = I", changes=_VO_IDENTITY.changes,
            **skipless,  # type: ignore[arg-type]
        ),
        *_frozen_arms(("QK", "VO"), prefix="skipless ", layout=skipless["layout"]),
    )  # fmt: skip
    tutorial = {
        "layout": tuple((name, getattr(find_preset("bloem", "causal").layout, name)) for name in _TUTORIAL),
        "sizes": (("n_layers", 1), ("n_heads", 1)),
    }
    bloem = (
        Arm(
            name="bloem trained", what="one attention and nothing else, W_Q, W_K, W_V and W_O trained from I",
            **tutorial,  # type: ignore[arg-type]
        ),
        Arm(
            name="bloem identity", what="the same with W = I: the first step of a well-known tutorial",
            changes=_ALL_IDENTITY, **tutorial,  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    glorot = {"layout": (("start", "xavier"),)}
    large = (
        Arm(name="glorot trained", what="everything trained from Glorot's start", **glorot),  # type: ignore[arg-type]
        *_frozen_arms(("QK", "VO"), prefix="glorot ", **glorot),
    )
    recall_arms = (
        Arm(name="recall trained", what="associative recall, everything trained", **LEARNS_RECALL),
        *_frozen_arms(("QK", "VO"), prefix="recall ", **LEARNS_RECALL),
    )
    others = tuple(arm.name for arm in text_arms[1:])
    return make_design(
        ask,
        study="which-matrix",
        texts={"text": Text(), "recall": RECALLED},
        scale=Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768),
        grid=Grid(ratio=3.0, points=3),
        arms=(*text_arms, *no_skip, *bloem, *recall_arms, *large),
        contrasts=(
            _order(),
            *_costs(others),
            _interaction("QK"),
            _interaction("VO"),
            cost(
                "sharing: Q = K - K = V", "cost of W_Q = W_K less cost of W_K = W_V", "Q = K", "K = V", MARGIN,
                expected="above 0 in causal models",
            ),
            *of_learned(
                (
                    cost(
                        "glorot skipless: VO identity - trained", "what W_V = W_O = I costs without skip connections",
                        "skipless VO identity", "skipless trained", MARGIN,
                        expected="near 0, unlike with skip connections",
                    ),
                    *_costs(("QK frozen", "VO frozen"), "skipless "),
                ),
                ("skipless trained",),
            ),
            cost(
                "bloem identity - bloem trained", "what W = I costs where there is one attention and nothing else",
                "bloem identity", "bloem trained", MARGIN, expected="above 0",
            ),
            _order("recall ", "below 0: recall has to look up"),
            *_costs(("QK frozen", "VO frozen"), "recall ", unit="nats per answer"),
            *_accounts(),
            *_costs(("QK frozen", "VO frozen"), "glorot "),
            _order("glorot ", "near 0: random scores and values of order one are of use as they are"),
        ),
        replicates=8,
    )  # fmt: skip


_WHERE = "frozen at N(0, 0.02), where scores are near 0 and attention is nearly an even mean,"
_GLOROT = "glorot "
"""Before the names of arms and contrasts of a design that asks the same from Glorot's start too."""


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "the cost of freezing W_V and W_O less that of freezing W_Q and W_K is"
    more = _from_glorot(findings)
    if verdict == "unresolved":
        return f"Whether, {_WHERE} W_V and W_O are missed more is not settled by this run{more}; {difference}"
    where = f"{_WHERE[0].upper()}{_WHERE[1:]}"
    if verdict == "equivalent":
        return f"{where} W_V and W_O are missed as much as W_Q and W_K{more}: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"{where} W_V and W_O are missed more than W_Q and W_K{small}{more}: freezing the former costs more by"
    return f"{where} W_Q and W_K are missed more than W_V and W_O{small}{more}: {difference}"


def _from_glorot(findings: Findings) -> str:
    """What freezing costs from Glorot's start, in brackets; empty where nobody asked."""
    costs = []
    for pair in ("QK", "VO"):
        name = f"{_GLOROT}{_name(pair)} - trained"
        result = next((effect.told for effect in findings.effects if effect.contrast.name == name), None)
        if result is None or result.effect is None:
            return ""
        costs.append(f"freezing {_matrices(pair)} {_costs_what(result.verdict, result.effect)}")
    return f" (from Glorot's start, where scores are not, {' and '.join(costs)})"


def _costs_what(verdict: str, effect: float) -> str:
    """What a frozen pair costs, in words by the verdict."""
    if verdict == "unresolved":
        return "costs nothing that this run can tell"
    if verdict == "equivalent":
        return "costs nothing that matters"
    return f"{'costs' if effect > 0 else 'saves'} {amount(abs(effect), False)} nats"


def _alone(letter: str) -> tuple[str, Plain]:
    """What one matrix at I costs, the rest trained."""
    alone = f"With W_{letter} alone at I"
    return f"{letter} identity - trained", Plain(
        above=f"{alone} it is {{effect}} nats worse.",
        below=f"{alone} it is {{effect}} nats better.",
        slightly=f"{alone} it is almost exactly as good.",
        equivalent=f"{alone} it is as good.",
        unresolved=f"What W_{letter} alone at I costs, this run cannot tell.",
    )


QUESTION = Question(
    name="which-matrix",
    asks="Which of W_Q, W_K, W_V, W_O matters, and what does W = I (so Q = K = V = X) cost?",
    answer=(
        "cost in nats of each frozen, identical or shared matrix, the QxK and VxO interactions, resets and the ledger"
    ),
    falsified_by=(
        "Freezing W_Q and W_K costs more than freezing W_V and W_O on text; either interaction is negative beyond the"
        " margin; W_V = W_O = I is free with skip connections. The order is of matrices frozen at N(0, 0.02); the rows"
        " from Glorot's start say whether it is of the start."
    ),
    literature=(
        "Without the skip connection around attention (that around the MLP was kept, and patterns of attention began"
        " near the identity), W_V = W_O = I matched a standard block with its learning rate tuned (evaluation loss"
        " 1.178; 1.194 where the two were trained), while with it the identity was slightly worse (He and Hofmann"
        " 2023, arXiv 2311.01906). Here a model without skip connections has none around its MLPs either, and its"
        " patterns begin anywhere, so that row asks a harder thing. Replacing all attention maps of pretrained models"
        " by constant means and probing again lost 8 %, relatively (Hassid et al. 2022). Sharing W_K and W_V costs"
        " less than sharing W_Q and W_K in language models (Kayyam 2026, arXiv 2606.04032). No paper was found that"
        " sets the cost of freezing a matrix beside the cost of setting it back, on the same models. The arms from"
        " Glorot's start were added after the others, when their losses on two of the seeds had been seen at one"
        " learning rate."
    ),
    plain=Plain(
        above="Frozen in pairs at a small random start, W_V and W_O are missed more than W_Q and W_K.",
        below="Frozen in pairs at a small random start, W_Q and W_K are missed more than W_V and W_O.",
        slightly=(
            "Frozen in pairs at a small random start, W_Q and W_K are missed almost exactly as much as W_V and W_O."
        ),
        equivalent="Frozen in pairs at a small random start, W_Q and W_K are missed as much as W_V and W_O.",
        unresolved="Which pair is missed more, W_Q with W_K or W_V with W_O, this run cannot tell.",
    ),
    also=(
        (
            "VO - QK, earned",
            Plain(
                above=(
                    "By what their movement earned in a model that trains all of them the order is the other: W_V and"
                    " W_O earned {effect} nats more."
                ),
                below="By what their movement earned the order is the same: W_Q and W_K earned {effect} nats more.",
                slightly="By what their movement earned they are almost equals.",
                equivalent="By what their movement earned they are equals.",
                unresolved="Which earned more in a model that trains all of them, this run cannot tell.",
            ),
        ),
        (
            "all identity - trained",
            Plain(
                above="With W = I throughout, so that q = k = v = x, a model is {effect} nats a token worse.",
                below="With W = I throughout, so that q = k = v = x, a model is {effect} nats a token better.",
                slightly="With W = I throughout a model is almost exactly as good.",
                equivalent="With W = I throughout a model is as good.",
                unresolved="What W = I throughout costs, this run cannot tell.",
            ),
        ),
        *(_alone(letter) for letter in "QKV"),
    ),
    accounts=Accounts(
        columns=("frozen while the rest trains", "set back at the end", "earned on the way"),
        rows=tuple(
            (
                _matrices(name) if name != "MLP" else "W_in and W_out",
                (f"{_name(name)} - trained", f"{name} set back", f"{name} earned"),
            )
            for name in _ACCOUNTS
        ),
    ),
    heard=(
        "That W_Q asks, W_K answers and W_V speaks, so that each does a thing of its own. A model sees them in"
        " products only: scores in W_Q W_K^T, outputs in W_V W_O. So freezing one of two leaves the other free to"
        " make good for it, and what a pair costs depends on the start that it is frozen at; the rows below tell of"
        " both."
    ),
    design=_design,
    claim=_claim,
)
