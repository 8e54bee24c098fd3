"""What the effects of a study were measured at, in words: texts, tasks, layout, sizes, start, optimizer.

Everything is read off the arms that those contrasts read, each with its own sizes and layout over those of the design;
where they differ, all of theirs are named.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from qkv.jsontypes import JsonMapping
from qkv.studies.engine.assembly import layout_of, preset_of
from qkv.studies.engine.design import Arm, Contrast, Design, Scale
from qkv.words import many

_STREAMS = {"digits": "the handwritten digits that come with scikit-learn", "images": "the images of {images}"}
_TASKS = {"causal": "next", "masked": "hidden"}
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}
_STARTS = {"gpt2": "N(0, 0.02)", "xavier": "Glorot", "zero_out": "W_O, W_out and W_U at 0", "recurrent": "an LSTM's"}
_PARTS: Mapping[str, Mapping[object, str]] = {
    "mixer": {"lstm": "an LSTM instead of attention", "mean": "a mean instead of attention"},
    "positions": {
        kind: f"{'no' if kind == 'none' else kind} positions" for kind in ("none", "sinusoidal", "learned", "rotary")
    },
    "norm": {"none": "no norm", "rms": "RMSNorm", "layer": "LayerNorm"},
    "mlp": {"none": "no MLP", "relu2": "squared ReLU", "swiglu": "SwiGLU"},
    "qk_norm": {True: "QK-norm", False: "no QK-norm"},
    "skip": {False: "no skip connections"},
    "scale": {False: "undivided scores"},
    "tied": {True: "W_U tied to W_E", False: "W_U and W_E untied"},
}
"""Field of a layout -> value -> words; for any other value, its name is written."""
_SILENT = ("start", "norm_eps")
"""Fields of a layout that are named elsewhere, or that nobody has to know."""


def setting_words(design: Design, contrasts: Iterable[Contrast]) -> str:
    """`On the text in char tokens; textbook layout, 2 layers, ..., AdamW, 1,000 steps (1.0 million tokens)`.

    Of all arms that those contrasts read; deviations of some layouts are in brackets.
    """
    arms = [design.arm(name) for name in dict.fromkeys(name for contrast in contrasts for name in contrast.arms)]
    each = [list(_deviations(arm).values()) for arm in arms]
    parts = dict.fromkeys(part for one in each for part in one)
    common, others = ([part for part in parts if all(part in one for one in each) == same] for same in (True, False))
    told = [*common, *([f"in some arms {', '.join(others)}"] if others else [])]
    some = f" ({', '.join(told)})" if told else ""
    sizes = [dataclasses.replace(design.scale, **dict(arm.sizes)) for arm in arms]
    tokens = sorted({each.steps * each.batch_size * each.n_ctx for each in sizes})
    optimizers = " and ".join(
        dict.fromkeys(OPTIMIZERS.get(arm.optimizer, arm.optimizer.rpartition(":")[2]) for arm in arms)
    )
    trained = [arm for arm in arms if arm.trainer not in ("none", "inner study")]
    pooled = design.grid.pooled
    how = f"learning rates tuned in {many(pooled, 'replicate')}" if pooled else "at fixed learning rates"
    of_all = not pooled and any(arm.tune != "none" for arm in arms)
    tuned = ", learning rates tuned" if of_all else f", {how}, whose error the interval leaves out"
    presets = " or ".join(dict.fromkeys(preset_of(arm).name for arm in arms))
    return (
        f"On {_texts(design, arms)}{_tasks(arms)}; {presets} layout{some}, {_sizes(design.scale, arms)}"
        f" ({_tokens(tokens)} tokens), initialization {_starts(arms)}; {optimizers}{tuned * bool(trained)}"
    )


def condition_words(setting: str) -> str:
    """What `setting_words` wrote, as sentences: the text, the models, how they were trained."""
    text, models, optimizer = setting.replace("made sentences", "generated sentences").split("; ")
    found = re.fullmatch(r"(.*), ([\d,]+(?: (?:and|to) [\d,]+)? steps of .*)", models)
    sizes, steps = found.groups() if found else (models, "")
    return f"{text}. Models: {sizes}. Training: {', '.join(filter(None, (steps, optimizer)))}."


def scale_words(made: JsonMapping, arms: Collection[str]) -> str:
    """`Measured with 2 layers, d_model 64, after 1,000 steps on tinyshakespeare.`, of some arms of a file."""
    read = [arm for arm in made["arms"] if arm["name"] in arms]
    sizes = [{**made["sizes"], **arm["sizes"]} for arm in read] or [made["sizes"]]
    layers, width, steps = (
        list(dict.fromkeys(each[name] for each in sizes)) for name in ("n_layers", "d_model", "steps")
    )
    given = {arm["text"] for arm in read} == {"text"} or made["source"]["name"] == "made"
    text = f" on {made['source']['name']}".replace("on made", "on generated text") * given
    return f"Measured with {_count(layers, 'layer')}, d_model {_span(width)}, after {_span(steps)} steps{text}."


_UNITS = {
    "of its start's norm": "times its initial norm",
    "of the row's norm": "times the row's norm",
    "points of 100": "percentage points",
    "points of accuracy": "percentage points",
    "of all little studies": "of all small studies",
    "of what frequencies leave open": "of what answer frequencies leave open",
    "of the way": "of the way from guessing to reading it",
    "ln counts, added": "in log count",
}


def unit_words(unit: str) -> str:
    """A unit of a file as a reader is told it."""
    return _UNITS.get(unit, unit)


def _tokens(counts: Sequence[int]) -> str:
    """Tokens that one training reads, the least and the most, to two digits."""
    ends = dict.fromkeys((counts[0], counts[-1]))
    return " to ".join(f"{n / 1e6:.2g} million" if n >= 1e6 else f"{float(f'{n:.2g}'):,.0f}" for n in ends)


def _texts(design: Design, arms: Sequence[Arm]) -> str:
    """Every text that is read, the made ones too."""
    texts = dict(design.texts)
    made, tokens = [], []
    for text in dict.fromkeys(texts[arm.text] for arm in arms):
        if text.stream not in ("text", "labelled"):
            words = _STREAMS.get(text.stream, f"generated sentences ({text.stream})")
            made.append(words.format(images=(design.images or ("",))[0]))
        else:
            tokens.append(f"{text.tokenizer} tokens" + (f" (vocabulary {text.vocab})" if text.vocab else ""))
    own = [f"{design.source_name} in {' and '.join(tokens)}"] if tokens else []
    return " and on ".join(dict.fromkeys([*own, *made]))


def _tasks(arms: Sequence[Arm]) -> str:
    """Which tokens of a text are predicted, where not only the next."""
    tasks = [task for task in _TASKS if task in {arm.task for arm in arms}]
    return "" if tasks in ([], ["causal"]) else f", {' and '.join(_TASKS[task] for task in tasks)} tokens predicted"


def _deviations(arm: Arm) -> dict[str, str]:
    """Field -> words, of each that differs from the textbook's and is worth naming."""
    layout, usual = vars(layout_of(arm)), vars(preset_of(arm).layout)
    told = [field for field in dict.fromkeys((*dict(arm.layout), *layout)) if field not in _SILENT]
    differing = {field: layout[field] for field in told if layout[field] != usual[field]}
    return {field: _PARTS.get(field, {}).get(value, f"{field} {value}") for field, value in differing.items()}


def _sizes(scale: Scale, arms: Sequence[Arm]) -> str:
    sizes = [dataclasses.replace(scale, **dict(arm.sizes)) for arm in arms]
    of = {
        field.name: list(dict.fromkeys(getattr(each, field.name) for each in sizes))
        for field in dataclasses.fields(Scale)
    }
    inner = [f"{name} {_span(filter(None, of[name]))}" for name in ("d_head", "d_mlp") if any(of[name])]
    return ", ".join(
        [
            _count(of["n_layers"], "layer"), f"d_model {_span(of['d_model'])}", *inner, _count(of["n_heads"], "head"),
            f"context {_span(of['n_ctx'])}", f"{_span(of['steps'])} steps of {_span(of['batch_size'])} windows",
        ]
    )  # fmt: skip


def _span(values: Iterable[int]) -> str:
    """One number, two of them, or from the least to the most."""
    found = [f"{value:,}" for value in values]
    if len(found) <= 2:
        return " and ".join(found)
    ordered = sorted(found, key=lambda number: int(number.replace(",", "")))
    return f"{ordered[0]} to {ordered[-1]}"


def _count(values: Sequence[int], what: str) -> str:
    return f"{_span(values)} {what}{'s' * (list(values) != [1])}"


def _starts(arms: Sequence[Arm]) -> str:
    starts = dict.fromkeys(_STARTS.get(layout_of(arm).start, layout_of(arm).start) for arm in arms)
    own = any(arm.tables or any("random(" in c or "identity" in c for c in arm.changes) for arm in arms)
    return " and ".join(starts) + " unless an arm says otherwise" * own
