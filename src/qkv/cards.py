"""Which textbook sentences about attention hold in a preset's layout, exactly; tests prove every line numerically."""

from dataclasses import dataclass

from qkv.models.layout import ADDED, Layout
from qkv.presets import Preset
from qkv.tasks import TASKS


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


_TEXTS = {
    "scores-need-only-the-product": "Scores depend on W_Q and W_K only through W_Q W_K^T.",
    "identity-gives-x": "With W_Q = W_K = W_V = I, q = k = v = x.",
    "symmetric-scores": "With W_Q = W_K the scores are symmetric.",
    "norm-gain-folds": "The gain of the norm before attention folds into W_Q, W_K and W_V.",
    "heads-add-up": "The output is the sum over heads of pattern x W_V W_O.",
    "positions-are-added": "Positions are vectors added to the embedding rows.",
    "gradient-reaches-all": "From step 0 on, gradient reaches every weight matrix.",
    "two-tables": ("The rows that tokens enter with (W_E) and the columns that predict them (W_U) are two matrices."),
}
_NO_ATTENTION = "there is no attention"


def card(preset: Preset) -> tuple[Sentence, ...]:
    """Which textbook sentences hold in a preset's layout, in a fixed order."""
    layout = preset.layout
    rotary, heads = layout.positions == "rotary", preset.head_width != 0
    attends, zero_out = layout.mixer == "attention", layout.start == "zero_out"
    plain_scores = attends and not (rotary or layout.qk_norm or layout.bias)
    blockers = [
        name for name, on in (("rotary positions", rotary), ("QK-norm", layout.qk_norm), ("biases", layout.bias)) if on
    ]
    between = f"{' and '.join(blockers)} stand between x W_Q and the scores" if blockers else ""
    between = between if attends else _NO_ATTENTION
    behind = "W_O, W_out (and an untied W_U) start at zero, so at step 0 none reaches what lies behind them"
    found: dict[str, tuple[bool, str]] = {
        "scores-need-only-the-product": (plain_scores, between),
        "identity-gives-x": (plain_scores, between or ("each head is its coordinate slice of x" if heads else "")),
        "symmetric-scores": (
            attends and not layout.bias and not (rotary and layout.qk_norm),
            _why_not_symmetric(layout) if attends else _NO_ATTENTION,
        ),
        "norm-gain-folds": (
            attends and layout.norm != "none" and layout.norm_place == "pre" and not layout.bias,
            _why_not_folding(layout) if attends else _NO_ATTENTION,
        ),
        "heads-add-up": (
            attends and not layout.bias,
            _NO_ATTENTION if not attends else "b_V and b_O are added" if layout.bias else "",
        ),
        "positions-are-added": (
            layout.positions in ADDED,
            {"rotary": "they turn q and k inside attention", "none": "there are none"}.get(layout.positions, ""),
        ),
        "gradient-reaches-all": (not zero_out, behind if zero_out else ""),
        "two-tables": (not layout.tied, _why_one_table(preset)),
    }
    return tuple(Sentence(key=key, text=_TEXTS[key], holds=holds, why=why) for key, (holds, why) in found.items())


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
