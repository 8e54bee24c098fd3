"""Which textbook sentences about attention hold in a preset's layout, exactly; tests prove every line numerically."""

from dataclasses import dataclass

from qkv.models.layout import ADDED, Layout
from qkv.presets import Preset
from qkv.tasks import TASKS

__all__ = ["Sentence", "card"]


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One textbook sentence and whether it holds in a layout."""

    key: str
    """A word for tests and links."""
    text: str
    """The sentence."""
    holds: bool
    """Whether it is true of the layout, exactly."""
    why: str
    """Why not, or under which condition."""


def card(preset: Preset) -> tuple[Sentence, ...]:
    """Which textbook sentences hold in a preset's layout, in a fixed order."""
    layout = preset.layout
    rotary, heads = layout.positions == "rotary", preset.head_width != 0
    attends = layout.mixer == "attention"
    plain_scores = attends and not (rotary or layout.qk_norm or layout.bias)
    blockers = [
        name for name, on in (("rotary positions", rotary), ("QK-norm", layout.qk_norm), ("biases", layout.bias)) if on
    ]
    between = f"{' and '.join(blockers)} stand between x W_Q and the scores" if blockers else ""
    between = between if attends else _NO_ATTENTION
    zero_out = layout.start == "zero_out"
    return (
        Sentence(
            key="scores-need-only-the-product",
            text="Scores depend on W_Q and W_K only through W_Q W_K^T.",
            holds=plain_scores,
            why=between,
        ),
        Sentence(
            key="identity-gives-x",
            text="With W_Q = W_K = W_V = I, q = k = v = x.",
            holds=plain_scores,
            why=between or ("each head is its coordinate slice of x" if heads else ""),
        ),
        Sentence(
            key="symmetric-scores",
            text="With W_Q = W_K the scores are symmetric.",
            holds=attends and not layout.bias and not (rotary and layout.qk_norm),
            why=_why_not_symmetric(layout) if attends else _NO_ATTENTION,
        ),
        Sentence(
            key="norm-gain-folds",
            text="The gain of the norm before attention folds into W_Q, W_K and W_V.",
            holds=attends and layout.norm != "none" and layout.norm_place == "pre" and not layout.bias,
            why=_why_not_folding(layout) if attends else _NO_ATTENTION,
        ),
        Sentence(
            key="heads-add-up",
            text="The output is the sum over heads of pattern x W_V W_O.",
            holds=attends and not layout.bias,
            why=_NO_ATTENTION if not attends else "b_V and b_O are added" if layout.bias else "",
        ),
        Sentence(
            key="positions-are-added",
            text="Positions are vectors added to the embedding rows.",
            holds=layout.positions in ADDED,
            why={"rotary": "they turn q and k inside attention", "none": "there are none"}.get(layout.positions, ""),
        ),
        Sentence(
            key="gradient-reaches-all",
            text="From step 0 on, gradient reaches every weight matrix.",
            holds=not zero_out,
            why="W_O, W_out (and an untied W_U) start at zero, so at step 0 none reaches what lies behind them"
            if zero_out
            else "",
        ),
        Sentence(
            key="two-tables",
            text="The rows that tokens enter with (W_E) and the columns that predict them (W_U) are two matrices.",
            holds=not layout.tied,
            why=_why_one_table(preset),
        ),
    )


_NO_ATTENTION = "there is no attention"


def _why_one_table(preset: Preset) -> str:
    one = "W_U is W_E transposed"
    if preset.layout.tied:
        return one
    tasks = " or ".join(task.name for task in TASKS.values() if task.model_kind in preset.one_table)
    return f"except with --task {tasks}, where {one}" if tasks else ""


def _why_not_folding(layout: Layout) -> str:
    if layout.norm == "none" or layout.norm_place == "post":
        return "no norm stands between the skip connection and W_Q"
    return "the norm has a bias, which would have to fold into b_Q, b_K and b_V as well" if layout.bias else ""


def _why_not_symmetric(layout: Layout) -> str:
    if layout.bias:
        return "b_Q and b_K may differ"
    mixed = layout.positions == "rotary" and layout.qk_norm
    return "the gains of QK-norm may differ, and rotary turns do not commute with them" if mixed else ""
