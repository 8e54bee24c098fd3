"""Do the short answers hold for the model that `qkv train` makes, after it has learned more than counting?

The main effect of each of six questions is measured in the default recipe (Muon; rotary positions; W_O, W_out and W_U
start at 0) and in a textbook one (AdamW; learned positions; all from N(0, 0.02)), on one text, by seed in pairs, long
enough for the default recipe to pass the best n-gram. In the default recipe W_O and W_out start at 0, so holding them
there removes attention or the MLP; W_Q, W_K and W_V start at random values in both.

Rates are pooled: two replicates tune the arms of the main question, and every other arm takes the rate of the trained
arm of its recipe.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import ABOVE, AT_START, Settings, arm, cost, difference, level

_MARGIN, _SHARE, _COSINE, _POINTS = 0.03, 0.1, 0.05, 5.0
_SCALE = Scale(
    d_model=128, n_layers=2, n_heads=4, d_head=32, d_mlp=336, n_ctx=64, batch_size=16, steps=1000, val_tokens=16_384,
    evaluations=4,
)  # fmt: skip
_SHORT = 300
_DEFAULT: Settings = {"optimizer": "muon", "tune": "trained"}
_TEXTBOOK: Settings = {"optimizer": "adamw", "tune": "textbook trained"}
_TUNED: Settings = {"tune": "own"}
_RECIPES = {"": "default recipe", "textbook ": "textbook recipe"}
_WHOLE = (
    "drift", "reset", "ledger", "rows", "frequency", "order of movement", "gradient path", "what moved", "learned",
    "commonest word", "collocations", "tokens named",
)  # fmt: skip
_LARGE = ("W_E=random(1.0,train=true)",)
_HELD = {
    "QK frozen": ("W_Q and W_K frozen at random initial values", ("L*.W_[QK]=freeze",)),
    "V frozen": ("W_V frozen at random initial values", ("L*.W_V=freeze",)),
    "cut layers": ("no gradient passes into the first layer, which stays random with W_E below it",
                   ("L1.resid_pre=stop_gradient",)),
}  # fmt: skip
_GONE = {
    "QK identity": ("W_Q = W_K = I: q = k = x", ("L*.W_[QK]=identity",)),
    "no attention": ("W_O held at 0: attention adds nothing", ("L*.W_O=freeze",)),
    "no MLP": ("W_out held at 0: the MLP adds nothing", ("L*.W_out=freeze",)),
}


def _of(recipe: str, name: str, what: str, *common: Settings, **own: object) -> Arm:
    """An arm of a recipe, with the settings that its law gives at this size."""
    base, preset, lr = (_TEXTBOOK, "textbook", 0.001) if recipe else (_DEFAULT, "modern", 0.03)
    law = () if recipe else (("training.optimizer.muon_lr", 0.01), ("training.optimizer.momentum", 0.85))
    settings = (("preset", preset), *law, ("training.optimizer.lr", lr))
    made = arm(f"{recipe}{name}", f"{_RECIPES[recipe]}, {what}", base, {"lr": lr}, *common, **own)  # type: ignore[arg-type]
    return dataclasses.replace(made, settings=settings)


def _pair(recipe: str, probes: tuple[str, ...] = _WHOLE) -> tuple[Arm, Arm]:
    return (
        _of(recipe, "trained", "everything trained", _TUNED, probes=probes),
        _of(recipe, "frozen", "W_E frozen at its start", _TUNED, changes=("W_E=freeze",), probes=("frequency",)),
    )


def _arms() -> tuple[Arm, ...]:
    held = (_of(recipe, name, what, changes=changes) for name, (what, changes) in _HELD.items() for recipe in _RECIPES)
    gone = (_of("", name, what, changes=changes) for name, (what, changes) in _GONE.items())
    short: Settings = {"sizes": (("steps", _SHORT),)}
    return (
        *_pair(""),
        *(
            _of(recipe, "untrained", "untrained", AT_START, probes=("tokens named", "collocations", "gradient path"))
            for recipe in _RECIPES
        ),
        *_pair("textbook "),
        *(
            _of(recipe, "uniform", "random labels, drawn uniformly at every step", labels="uniform", probes=("drift",))
            for recipe in _RECIPES
        ),
        *held,
        *gone,
        _of("", "short trained", f"everything trained, {_SHORT} steps", short),
        _of("", "short frozen", f"W_E frozen, {_SHORT} steps", short, changes=("W_E=freeze",)),
        _of("", "large trained", "rows of W_E from N(0, 1), trained", changes=_LARGE),
        _of("", "large frozen", "rows of W_E from N(0, 1), frozen", changes=("W_E=random(1.0)",)),
        *(
            _of("", f"halves{more}", f"twice from one start, on either half of the text{words}", trainer="two halves",
                labels=labels)
            for more, words, labels in (("", "", "real"), (" uniform", ", random labels", "uniform"))
        ),
    )  # fmt: skip


def _freezing(name: str, what: str, prefix: str) -> Contrast:
    return cost(name, f"cost of freezing W_E{what}", f"{prefix}frozen", f"{prefix}trained", _MARGIN, expected=ABOVE)


def _inside(recipe: str, name: str, what: str, quantities: dict[str, float], margin: float, unit: str) -> Contrast:
    """A weighted sum of what the trained arm measured."""
    terms = tuple((weight, f"{recipe}trained", quantity) for quantity, weight in quantities.items())
    return Contrast(name=f"{recipe}{name}", what=f"{what}, {_RECIPES[recipe]}", terms=terms, margin=margin, unit=unit)


def _levels(recipe: str) -> tuple[Contrast, ...]:
    """What a finished model and its training say of the other questions."""
    path, bottom, norm = "of the gradient", "L0.resid_pre", "of its start's norm"
    rows = (
        ("reset W_E", "increase in loss when W_E is reset to its start", {"reset W_E": 1.0}, _MARGIN,
         "nats per token"),
        ("earned W_E", "drop in loss due to the change of W_E", {"earned W_E": 1.0}, _MARGIN, "nats per token"),
        ("ledger closes", "drops due to all matrices, minus the total drop", {"earned all": 1.0, "fall": -1.0},
         _MARGIN, "nats per token"),
        ("around", "share of W_E's gradient that went through no sublayer", {"around": 1.0}, _SHARE, path),
        ("V - (Q + K)", "share of the gradient through v, minus that through q and k, first layer",
         {f"{bottom} V": 1.0, f"{bottom} Q": -1.0, f"{bottom} K": -1.0}, _SHARE, path),
        ("QK - VO half way", "step at which W_Q and W_K are halfway to where they end, minus that of W_V and W_O",
         {"half way QK": 1.0, "half way VO": -1.0}, 20.0, "steps"),
        ("frequent rows", "rank correlation of how far a row moved with its token's count",
         {"row drift with count": 1.0}, _SHARE, "rank correlation"),
        ("L0.q: encodings - matrix", "share of the change of queries in layer 0 due to the encodings, minus W_Q's",
         {"L0.q encodings": 1.0, "L0.q matrix": -1.0}, _SHARE, "of the change"),
        ("the word", "mean dot product of the commonest word's row with others, minus that of other words",
         {"dot of the word over others": 1.0}, 0.2, "root-mean-square dot products"),
        ("together", "cosine of rows of words that occur together, minus those that do not",
         {"together cos(e, e)": 1.0}, _COSINE, "cosine"),
        ("shared contexts", "cosine of rows of words that share contexts, minus those that do not",
         {"shared cos(e, e)": 1.0}, _COSINE, "cosine"),
        *((f"identity {layer}", f"frequent tokens that a probe names after layer {layer}, minus those at layer 0",
           {f"identity {layer}": 1.0, "identity 0": -1.0}, _POINTS, "points of accuracy") for layer in (1, 2)),
        *((f"nearest {layer}", f"tokens that the nearest row of W_E names after layer {layer}, minus those at layer 0",
           {f"nearest {layer}": 1.0, "nearest 0": -1.0}, _POINTS, "points of accuracy") for layer in (1, 2)),
    )  # fmt: skip
    moved = difference(
        f"{recipe}W_E moved", f"relative drift of W_E on real text, minus that on random labels, {_RECIPES[recipe]}",
        f"{recipe}trained", f"{recipe}uniform", "drift W_E", 0.1, unit=norm,
    )  # fmt: skip
    return (moved, *(_inside(recipe, *row) for row in rows))


def _costs(recipe: str, names: tuple[str, ...]) -> tuple[Contrast, ...]:
    whole = f"{recipe}trained"
    return tuple(
        cost(f"{recipe}{name}", f"cost of {name}, {_RECIPES[recipe]}", f"{recipe}{name}", whole, _MARGIN)
        for name in names
    )


def _order(recipe: str) -> Contrast:
    return cost(
        f"{recipe}V - QK", f"cost of freezing W_V, minus that of freezing W_Q and W_K, {_RECIPES[recipe]}",
        f"{recipe}V frozen", f"{recipe}QK frozen", _MARGIN,
    )  # fmt: skip


_MAIN = (
    _freezing("cost of freezing W_E", ", default recipe", ""),
    _freezing("textbook cost of freezing W_E", ", textbook recipe", "textbook "),
)


def _quick(ask: Ask) -> Design:
    scale = Scale(**{**vars(_SCALE), "steps": 200, "evaluations": 2, "d_model": 64, "n_heads": 2, "d_mlp": 168})
    arms = (*_pair("", ("frequency",)), *_pair("textbook ", ("frequency",)))
    return make_design(
        ask, study="default-recipe", texts={"text": Text(tokenizer="bpe", vocab=512)}, scale=scale, arms=arms,
        contrasts=_MAIN,
    )  # fmt: skip


def _full(ask: Ask) -> Design:
    shared = (
        difference(
            f"{matrix} shared", f"agreement of how {matrix} moved on two halves of the text, minus random labels",
            "halves", "halves uniform", f"shared {matrix}", _COSINE, unit="cosine",
        )
        for matrix in ("W_E", "W_Q", "W_K", "W_V", "W_O", "MLP", "W_U")
    )  # fmt: skip
    return make_design(
        ask,
        study="default-recipe",
        texts={"text": Text(tokenizer="bpe", settings=(("specials", False),))},
        scale=_SCALE,
        grid=Grid(pooled=2),
        arms=_arms(),
        contrasts=(
            *_MAIN,
            *(contrast for recipe in _RECIPES for contrast in (*_costs(recipe, tuple(_HELD)), _order(recipe))),
            *_costs("", tuple(_GONE)),
            *(contrast for recipe in _RECIPES for contrast in _levels(recipe)),
            level("untrained nearest 1", "tokens that the nearest row of W_E names after layer 1, untrained",
                  "untrained", "nearest 1", _POINTS, unit="points of accuracy"),
            _freezing("short: cost of freezing W_E", f", after {_SHORT} steps of a schedule of its own", "short "),
            _freezing("large: cost of freezing W_E", ", rows from N(0, 1)", "large "),
            *shared,
        ),
        replicates=6,
    )  # fmt: skip


QUESTION = read_question("default-recipe", design=quick_or_full(_quick, _full))
