"""How does the error at the output reach each matrix and each token's embedding? Does it pass through all layers?

The gradient at a block's input is a sum over the edges by which it arrives: skip, V, Q, K, MLP; shares sum to 1.
Measured on trained and on untrained models, with and without skip connections, with the norm before and after each
sublayer, and with small and large rows of W_E.

The size of the rows decides. A norm stands before every sublayer and divides by the size of what comes in, so on the
way back the gradient through the first sublayers is divided by the size of the rows, that around them only by the size
of what the last norm reads. Rows of N(0, 0.02) stay small while blocks write vectors twenty times as long: nearly all
gradient then comes through the blocks, and much of it through k. Rows of N(0, 1) keep up, and more comes around.
"""

from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.sentences import amount
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

MARGIN = 0.1
_PROBES = ("gradient path",)
_UNIT = "of the gradient"


def _share(arm: str, quantity: str, what: str, expected: str = "") -> Contrast:
    return Contrast(
        name=f"{quantity} ({arm})",
        what=what,
        terms=((1.0, arm, quantity),),
        margin=MARGIN,
        unit=_UNIT,
        expected=expected,
    )


def _paths(arm: str, layer: int) -> tuple[Contrast, ...]:
    return tuple(
        _share(arm, f"L{layer}.resid_pre {path}", f"share that reaches the input of layer {layer} through {path}")
        for path in ("skip", "V", "Q", "K", "MLP")
    )


def _value_over_scores(arm: str, expected: str = "") -> Contrast:
    return Contrast(
        name=f"V - (Q + K) ({arm})",
        what="share through v, less that through q and k, at the first layer",
        terms=(
            (1.0, arm, "L0.resid_pre V"),
            (-1.0, arm, "L0.resid_pre Q"),
            (-1.0, arm, "L0.resid_pre K"),
        ),
        margin=MARGIN,
        unit=_UNIT,
        expected=expected,
    )


_LARGE = Arm(
    name="large rows", what="rows of W_E from N(0, 1) instead of N(0, 0.02)", changes=("W_E=random(1.0,train=true)",),
    probes=_PROBES,
)  # fmt: skip
_SIZE = Contrast(
    name="around: large rows - trained",
    what="share around all sublayers with large rows, less that with small ones",
    terms=((1.0, "large rows", "around"), (-1.0, "trained", "around")),
    margin=MARGIN,
    unit=_UNIT,
    expected="above 0: the norm divides by the size of the rows",
)


def _design(ask: Ask) -> Design:
    quick = ask.quick
    trained = Arm(name="trained", what="norm before each sublayer, skip connections", probes=_PROBES)
    untrained = Arm(name="untrained", what="the same at its start", trainer="none", tune="none", probes=_PROBES)
    skipless = Arm(name="skipless", what="no skip connections", layout=(("skip", False),), probes=_PROBES)
    after = Arm(name="norm after", what="norm after each sum", layout=(("norm_place", "post"),), probes=_PROBES)
    sgd = Arm(name="sgd", what="trained by SGD", optimizer="sgd", lr=0.5, probes=_PROBES)
    common = (trained, _LARGE, untrained, skipless)
    arms = common if quick else (*common, after, sgd)
    names = [arm.name for arm in arms]
    return make_design(
        ask,
        study="gradient-path",
        texts={"text": Text()},
        scale=Scale(d_model=32, n_layers=3, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192)
        if quick
        else Scale(d_model=64, n_layers=4, n_heads=2, n_ctx=64, batch_size=16, steps=1000, val_tokens=32_768),
        grid=Grid(),
        arms=arms,
        contrasts=(
            _share(
                "trained", "around", "share that reaches the embeddings through no sublayer", "small: rows are small"
            ),
            _SIZE,
            *_paths("trained", 0),
            *(_share(name, "around", "the same") for name in names if name not in ("trained", "skipless")),
            *(_value_over_scores(name, "above 0" if name == "large rows" else "") for name in names),
            cost(
                "skipless - trained",
                "what removing the skip connections costs (from N(0, 0.02) such models hardly learn)",
                "skipless",
                "trained",
                0.03,
            ),
        ),
        replicates=6 if quick else 8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    larger = findings.effect("around (large rows)").told
    but = f" (with large rows, N(0, 1), that share is {amount(larger.effect)})" if larger.verdict == "differs" else ""
    if verdict == "unresolved":
        return "Whether gradient reaches the embeddings around all layers is not settled by this run; that share is"
    if verdict == "equivalent":
        return (
            f"Where rows of W_E start small, next to no gradient reaches them around the layers{but}: it passes through"
            " them; the share around is"
        )
    small = ", less than would matter" if verdict == "differs but trivially" else ""
    if effect < 0:
        return f"What reaches the embeddings around all layers works against the rest{small}; that share is"
    if small:
        return (
            f"Where rows of W_E start small, little gradient reaches them around the layers{small}{but}: nearly all"
            " passes through them; the share around is"
        )
    return (
        f"The error need not pass through the layers to reach the embeddings{but}: along skip connections alone comes a"
        " share of"
    )


QUESTION = Question(
    name="gradient-path",
    asks=(
        "How does the error at the output reach each matrix and each token's embedding? Does it pass"
        " through all layers?"
    ),
    answer="share of each path (skip, V, Q, K, MLP) at every layer, trained and untrained, with and without skip",
    falsified_by=(
        "Larger rows of W_E do not raise the share that comes around all layers; with large rows q and k carry more"
        " than v."
    ),
    literature=(
        "Theory of early training has W_U learn first, W_V next, W_Q and W_K last (Im et al. 2026, arXiv 2601.19208,"
        " abstract). That is about how fast matrices move; from it we had expected more gradient through v than through"
        " q and k. A first quick run found the opposite for small rows, and next to nothing around the layers;"
        " an arm with large rows was added afterwards, for the reason is their size. Shares of paths at these sizes"
        " have not been found published."
    ),
    plain=Plain(
        above=(
            "It need not pass through the layers: a part of the error reaches the embeddings along the skip"
            " connections alone."
        ),
        below="What reaches the embeddings along the skip connections alone works against the rest.",
        slightly=(
            "Nearly all of it passes through the layers: next to nothing reaches the embeddings along the skip"
            " connections alone, where rows of W_E start small."
        ),
        equivalent=(
            "It passes through the layers: next to nothing reaches the embeddings along the skip connections alone,"
            " where rows of W_E start small."
        ),
        unresolved=(
            "How much of the error reaches the embeddings along the skip connections alone, this run cannot tell."
        ),
    ),
    heard=(
        "That skip connections are a motorway on which the gradient passes all layers by. How much takes it is a"
        " matter of size: a norm divides a vector by its length on its way into a layer, so short vectors get large"
        " gradients through layers, and long ones small."
    ),
    design=_design,
    claim=_claim,
)
