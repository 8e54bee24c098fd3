"""Is an image transformer the same machine?

Patches of an image enter where tokens do: the patch projection is its W_E, and the class is predicted. The same
matrices are frozen in a model of images and in one of words, and their costs compared. With a text alone, the images
are the handwritten digits that come with scikit-learn. These are few: at these sizes it would take a hundred replicates
or more to tell costs apart. TEXT:IMAGES (IDX files, or a folder for each class) or images alone, with the text inside
Python, bring their own. A nat per image and a nat per token are different units, so costs are shares of what answer
frequencies leave open. A frozen patch projection should cost next to nothing: it has no more rows than the model is
wide, so whatever reads it linearly can undo it. A frozen table of many word pieces cannot be undone. Both start at N(0,
1), trained or frozen: frozen rows of N(0, 0.02) drown in what the blocks add to them, which is another question. The
matrices themselves are compared by the same measures.
"""

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    AT_START,
    BELOW,
    FULL,
    QUICK,
    Settings,
    arm,
    difference,
    difference_of_costs,
    near,
)

MARGIN = 0.006
"""Of what the frequencies of answers leave open: 0.03 nats, the margin of `frozen-embeddings`, of the 5.2 nats that
those of 512 pieces of Shakespeare leave. There a frozen W_E costs 0.086 nats: a margin of 0.02 was above all of it."""
_UNIT = "of what frequencies leave open"
_START = "W_E=random(1.0,train=true)"
_CHANGES = {  # in the order in which they are trained
    "W_E frozen": ("W_E=random(1.0)",),
    "QK frozen": (_START, "L*.W_[QK]=freeze"),
    "VO frozen": (_START, "L*.W_[VO]=freeze"),
    "identity": (_START, "L*.W_[QKVO]=identity"),
    "MLP frozen": (_START, "L*.W_in,L*.W_out=freeze"),
}
_WORDS = {
    "W_E frozen": "W_E frozen at N(0, 1), where it starts in all arms",
    "QK frozen": "W_Q and W_K frozen at N(0, 0.02)",
    "VO frozen": "W_V and W_O frozen at N(0, 0.02)",
    "MLP frozen": "W_in and W_out frozen at N(0, 0.02)",
    "identity": "W_Q = W_K = W_V = W_O = I: q = k = v = x",
}
_KINDS: dict[str, Settings] = {
    "pixels": {"text": "pixels", "task": "image"},
    "words": {"text": "words", "task": "causal"},
}
_SCORED = {"pixels": ("told", "accuracy"), "words": ("told",)}
"""What is measured beside the loss: classes have an accuracy."""


def _trained(kind: str) -> Arm:
    probes = (*_SCORED[kind], "roles")
    return arm(f"{kind}, trained", "everything trained", _KINDS[kind], changes=(_START,), probes=probes)


def _untrained(kind: str) -> Arm:
    what = "the same model, untrained"
    return arm(f"{kind}, untrained", what, _KINDS[kind], AT_START, changes=(_START,), probes=("roles",))


def _changed(kind: str, what: str) -> Arm:
    return arm(f"{kind}, {what}", _WORDS[what], _KINDS[kind], changes=_CHANGES[what], probes=_SCORED[kind])


def _cost(kind: str, what: str, expected: Expected = ABOVE) -> Contrast:
    """How much less is told with a change than without."""
    return difference(
        f"{kind}: {what}", f"{kind}: how much less is predicted with {_WORDS[what]}", f"{kind}, trained",
        f"{kind}, {what}", "told", MARGIN, unit=_UNIT, expected=expected,
    )  # fmt: skip


def _points(what: str) -> Contrast:
    """The same in how many images are told rightly, which a few that are told surely and wrongly do not decide."""
    return difference(
        f"pixels: {what}, accuracy", f"pixels: correctly classified images, minus those with {_WORDS[what]}",
        "pixels, trained", f"pixels, {what}", "accuracy", 1.0, unit="points of accuracy",
    )  # fmt: skip


def _between(what: str, expected: Expected | None = None) -> Contrast:
    pixels, words = ((f"{kind}, trained", f"{kind}, {what}") for kind in _KINDS)
    return difference_of_costs(
        f"{what}: pixels - words", f"cost in pixels minus cost in words: {_WORDS[what]}", pixels, words, MARGIN,
        ("told", "told"), unit=_UNIT, expected=expected,
    )  # fmt: skip


def _order(kind: str) -> Contrast:
    return difference(
        f"{kind}: VO - QK", f"{kind}: cost of freezing W_V and W_O, minus that of freezing W_Q and W_K",
        f"{kind}, QK frozen", f"{kind}, VO frozen", "told", MARGIN, unit=_UNIT, expected=ABOVE,
    )  # fmt: skip


def _matrices(kind: str) -> tuple[Contrast, ...]:
    """What training did to W_Q and W_K, against the same model untrained."""
    trained, untrained = f"{kind}, trained", f"{kind}, untrained"
    return (
        difference(
            f"{kind}: symmetric share", f"{kind}: symmetric share of |W_Q W_K^T|^2, less that untrained", trained,
            untrained, "symmetric share", 0.05, unit="of the square",
        ),
        difference(
            f"{kind}: angle QK", f"{kind}: angle between what W_Q and W_K read, less that untrained", trained,
            untrained, "angle QK", 5.0, unit="degrees",
        ),
    )  # fmt: skip


def _texts(ask: Ask) -> dict[str, Text]:
    """What is given, and beside it what comes with Python or with scikit-learn."""
    return {"pixels": _pixels(ask), "words": Text(tokenizer="bpe", vocab=512)}


def _pixels(ask: Ask) -> Text:
    if not ask.has_images():
        return Text(stream="digits")
    measured = Text(stream="images", settings=(("val_images", 2048),))
    name, sha256 = ask.images or ((made := ask.corpus(measured)).name, made.sha256)
    return Text(stream="images", settings=(("name", name), ("sha256", sha256), *measured.settings))


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="words-or-pixels",
        texts=_texts(ask),
        scale=QUICK,
        arms=(
            *(arm for kind in _KINDS for arm in (_trained(kind), _changed(kind, "W_E frozen"))),
            *(_changed("pixels", what) for what in ("QK frozen", "VO frozen")),
            *map(_untrained, _KINDS),
        ),
        contrasts=(
            _between("W_E frozen", BELOW),
            _cost("pixels", "W_E frozen", near(0.0, MARGIN)),
            _cost("words", "W_E frozen"),
            *(_cost("pixels", what) for what in ("QK frozen", "VO frozen")),
            _points("W_E frozen"),
            _order("pixels"),
            *(contrast for kind in _KINDS for contrast in _matrices(kind)),
        ),
    )


def _full(ask: Ask) -> Design:
    return make_design(
        ask,
        study="words-or-pixels",
        texts=_texts(ask),
        scale=FULL,
        arms=(
            *map(_trained, _KINDS),
            *(_changed(kind, what) for what in _CHANGES for kind in _KINDS),
            *map(_untrained, _KINDS),
        ),
        contrasts=(
            _between("W_E frozen", BELOW),
            *(_between(what) for what in _CHANGES if what != "W_E frozen"),
            *(_cost("pixels", what, near(0.0, MARGIN) if what == "W_E frozen" else ABOVE) for what in _CHANGES),
            *(_cost("words", what) for what in _CHANGES),
            *map(_points, _CHANGES),
            *map(_order, _KINDS),
            *(contrast for kind in _KINDS for contrast in _matrices(kind)),
        ),
    )


QUESTION = read_question("words-or-pixels", design=quick_or_full(_quick, _full))
