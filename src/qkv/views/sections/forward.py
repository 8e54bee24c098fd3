"""One text (image, pair) all the way through the user's model: every activation of a layer, and what is predicted.

Everything comes from the model's own recorded forward pass. A page that can ask gets the layer it shows; a report
carries the layers that fit. The way back (`backward`) is the gradient of the text's own loss, in float64.

What each stage is, is said by a formula of the very layout: the sums and norms of `models.blocks`, in names of the
record of a forward pass and of the catalogue; what stands behind a comma is in words. Of an encoder-decoder the text is
what the decoder reads; its `encoder` has the source, and a layer of the decoder its cross-attention.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.data.pairs import end_of
from qkv.errors import UserError
from qkv.inspection.gradient_step import one_step
from qkv.inspection.one_text import one_text
from qkv.models.layout import ADDED, Layout, ModelConfig, Sizes
from qkv.models.zoo import BlockStack, EncoderDecoderLM
from qkv.tasks import find_task
from qkv.views.report.packed import Packed, pack, payload
from qkv.views.sections.attention import Pair, read_pair
from qkv.views.sections.heads import Picture
from qkv.views.viewer import Viewer, Words

LONGEST_FORWARD = 48
"""Tokens of a text that is followed through the model."""
LONGEST_CARRIED = 24
"""The same in a report."""
CARRIED_BYTES = 1_300_000
N_TOP = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attended:
    """One attention of a layer; None where something else mixes. Of cross-attention the keys are the source."""

    q: Packed | None
    """[head, pos, d_head], as is z; k and v by key/value head."""
    k: Packed | None
    v: Packed | None
    scores: Packed | None
    """[head, query_pos, key_pos], scaled; NaN where the mask hides a key."""
    pattern: Packed | None
    """[head, query_pos, key_pos]; rows sum to 1."""
    z: Packed | None
    attn_out: Packed | None
    """[pos, d_model]"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardLayer(Attended):
    """Every activation of one layer on one text, float32."""

    layer: int
    x: Packed
    """[pos, d_model], as are resid_mid, mlp_out and resid_post."""
    mix_out: Packed | None
    """[pos, d_model]: what stands in attention's place gives (an LSTM, a mean); None where the model attends."""
    resid_mid: Packed | None
    """None where attention and MLP stand side by side."""
    mlp_out: Packed | None
    resid_post: Packed
    cross: Attended | None
    """None where no other stack is read."""
    formulas: dict[str, str]
    """Name of an activation -> what it is in this layout; also of some that this layer has not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardText:
    """One text on its way through the model."""

    text: str
    tokens: tuple[str, ...]
    n_all: int
    """Tokens of the whole text."""
    step: int
    changes: tuple[str, ...]
    changed: tuple[str, ...]
    """A sentence for each change: which matrices, and who shares them."""
    causal: bool
    n_layers: int
    n_heads: int
    """0 where nothing attends."""
    n_kv_heads: int
    embed: Packed
    """[pos, d_model]: rows of W_E, positions included."""
    layers: tuple[ForwardLayer, ...]
    """Those that are carried."""
    formulas: dict[str, str]
    """What `embed` and the prediction are in this layout."""
    losses: Packed | None = None
    """float32 [pos]: nats that the next token cost, NaN where none is known; None where no next token is predicted."""
    loss: float | None = None
    """Their mean."""
    top_tokens: tuple[tuple[str, ...], ...] = ()
    """[pos][rank]: what is thought likeliest at each position; one row of classes where the answer is `pooled`."""
    top: Packed | None = None
    """[pos, rank]: their probabilities; None of an encoder."""
    notes: tuple[str, ...] = ()
    """What this layout does besides the textbook's formulas."""
    scope: str = ""
    """What names in the record begin with: `enc.`, `dec.`."""
    pooled: str = ""
    """What the one answer is read from, in words; empty where every position has its own."""
    keys: tuple[str, ...] = ()
    """The source that cross-attention reads."""
    written: tuple[str, ...] = ()
    """What each position should write, where that is not the next of `tokens`."""
    encoder: "ForwardText | None" = None
    picture: Picture | None = None
    """The image whose patches `tokens` are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathShare:
    """The share of each path in the gradient that reaches what enters one block."""

    address: str
    shares: dict[str, float | None]
    """skip, V, Q, K, MLP; they sum to 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPart:
    """One matrix under one step of gradient descent on one text."""

    address: str
    norm: float
    grad_norm: float
    first_order: float
    """Nats, of this matrix moved alone."""
    actual: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """The way back on one text, in float64."""

    step: int
    tokens: tuple[str, ...]
    loss: float
    rate: float
    """Of the gradient descent."""
    reached: Packed
    """[pos]: |gradient| at what enters the first block."""
    paths: tuple[PathShare, ...]
    """By block."""
    crossed: dict[str, float]
    """How many sublayers the gradient went through -> its share."""
    parts: tuple[StepPart, ...]
    """By size of gradient."""
    first_order: float
    """Nats, of all matrices moved at once."""
    actual: float


def forward(
    viewer: Viewer,
    text: str,
    step: int | None,
    *,
    layers: Sequence[int] | None = None,
    changes: Sequence[str] = (),
    longest: int = LONGEST_FORWARD,
) -> ForwardText:
    """Follow `text` through the model of a step, with `changes` made first; `layers` None is all of them.

    Of an encoder-decoder the text is `SOURCE => TARGET`, or a source whose target the newest weights write.

    Raises UserError for a text that is too short, a layer that is not there, or a change that does not fit.
    """
    n_layers = viewer.config.model.sizes.n_layers
    layers = range(n_layers) if layers is None else layers
    if any(not 0 <= layer < n_layers for layer in layers):
        raise UserError(f"there is no layer {max(layers)}; this model has layers 0 to {n_layers - 1}")
    follow = functools.partial(_stack, viewer, text, step, layers, changes)
    model, config = viewer.model(step, changes), viewer.config.model
    if viewer.encodes:
        return _pair(viewer, follow, model, read_pair(viewer, text, longest))
    words = viewer.words(text, longest)
    with torch.inference_mode():
        logits, record = model.forward_recorded(words.ids)
    found = dataclasses.replace(follow(model, record, words.tokens), n_all=words.n_all)
    if config.classes:
        first = config.layout.pool == "first"
        return _classified(found, logits, config, "the first token" if first else "the mean over tokens")
    ids = words.ids[0]
    asked = ids[1:] if viewer.causal and len(ids) > 1 else None
    return _predicted(viewer, found, logits[0], asked, bias=model.head.b_U is not None)


def forward_image(viewer: Viewer, image: Words, name: str, picture: Picture, layers: Sequence[int]) -> ForwardText:
    """The same of an image under the newest weights, patches for tokens."""
    model = viewer.model()
    with torch.inference_mode():
        logits, record = model.forward_recorded(image.ids)
    found = _stack(viewer, name, None, layers, (), model, record, image.tokens)
    pooled = "the class token" if picture.pooled == "class" else "the mean over patches"
    return dataclasses.replace(_classified(found, logits, viewer.config.model, pooled), picture=picture)


def _stack(
    viewer: Viewer,
    text: str,
    step: int | None,
    layers: Sequence[int],
    changes: Sequence[str],
    stack: BlockStack,
    record: dict[str, Tensor],
    tokens: tuple[str, ...],
) -> ForwardText:
    """The activations of one stack, without an answer."""
    scope, sizes, layout = stack.scope, viewer.config.model.sizes, viewer.config.model.layout
    attention = stack.blocks[0].attention  # None where an LSTM or a mean stands in its place
    scale = float(attention.scale) if attention else None  # type: ignore[union-attr, arg-type]
    told = {"scale": scale, "causal": stack.causal, "cross": stack.cross}
    return ForwardText(
        text=text,
        tokens=tokens,
        n_all=len(tokens),
        step=viewer.nearest(step),
        changes=tuple(changes),
        changed=viewer.changed(step, changes),
        causal=stack.causal,
        n_layers=sizes.n_layers,
        n_heads=sizes.n_heads if attention else 0,
        n_kv_heads=sizes.n_kv_heads if attention else 0,
        embed=_packed(record[f"{scope}embed"][0]),
        layers=tuple(
            _layer(record, layer, f"{scope}L{layer}.", layer_formulas(layout, layer, **told)) for layer in layers
        ),
        formulas={
            "embed": patch_formula(layout) if viewer.reads_images else embed_formula(layout, sizes),
            "prediction": last_formula(layout, sizes.n_layers),
        },
        notes=tuple(_notes(viewer)),
        scope=scope,
    )


def _pair(viewer: Viewer, follow: Callable[..., ForwardText], model: EncoderDecoderLM, pair: Pair) -> ForwardText:
    """The decoder on a pair, with the encoder on its source."""
    with torch.inference_mode():
        logits, record = model.forward_recorded(pair.source, pair.inputs)
    encoder = dataclasses.replace(follow(model.enc, record, pair.source_tokens), n_all=pair.n_all)
    found = follow(model.dec, record, pair.input_tokens)
    end = torch.tensor([end_of(viewer.tokenizer)])
    asked = torch.cat([pair.inputs[0, 1:], end])
    assert model.head is not None, "a model that translates has logits"
    found = _predicted(viewer, found, logits[0], asked, bias=model.head.b_U is not None)
    return dataclasses.replace(found, encoder=encoder, keys=pair.source_tokens, written=pair.written)


def _predicted(viewer: Viewer, found: ForwardText, logits: Tensor, asked: Tensor | None, *, bias: bool) -> ForwardText:
    """With the tokens that are likeliest at each position, and the nats of those that are `asked` at the first ones."""
    logs = logits.double().log_softmax(-1)
    top = logs.topk(min(N_TOP, logs.shape[-1]))
    config, losses = viewer.config.model, None
    if asked is not None:
        losses = np.full(len(logs), np.nan)
        losses[: len(asked)] = -logs[: len(asked)].gather(1, asked[:, None])[:, 0].numpy()
    prediction = answer_formula(config.layout, config.sizes.n_layers, bias=bias)
    return dataclasses.replace(
        found,
        losses=None if losses is None else pack(losses),
        loss=None if losses is None else float(np.nanmean(losses)),
        top_tokens=tuple(tuple(viewer.tokenizer.token(int(i)) for i in row) for row in top.indices),
        top=pack(top.values.exp().numpy()),
        formulas=found.formulas | {"prediction": prediction},
    )


def _classified(found: ForwardText, logits: Tensor, config: ModelConfig, pooled: str) -> ForwardText:
    """With the likeliest classes, which the head reads from one vector."""
    top = logits.double().softmax(-1).topk(min(N_TOP, len(config.classes)))
    h = found.formulas["prediction"]
    h = f"mean({h})" if pooled.startswith("the mean") else f"{h}[0]"
    h = f"tanh({h} W_pool + b_pool)" if config.layout.pool == "first" else h
    return dataclasses.replace(
        found,
        top_tokens=tuple(tuple(config.classes[int(i)] for i in row) for row in top.indices),
        top=pack(top.values.numpy()),
        formulas=found.formulas | {"prediction": f"softmax({h} W_cls + b_cls)"},
        pooled=pooled,
    )


def _packed(tensor: Tensor) -> Packed:
    return pack(tensor.float().numpy())


def _layer(record: dict[str, Tensor], layer: int, stem: str, formulas: dict[str, str]) -> ForwardLayer:
    def of(name: str) -> Packed | None:
        found = record.get(f"{stem}{name}")
        if found is None:
            return None
        hidden = found[0].isinf() if name.endswith("scores") else torch.tensor(False)
        return _packed(torch.where(hidden, math.nan, found[0]))

    x, resid_post = of("x"), of("resid_post")
    assert x is not None and resid_post is not None, "every block has these two"
    names = [field.name for field in dataclasses.fields(Attended)]
    attention = {name: of(name) for name in names}
    others = {name: of(name) for name in ("mix_out", "resid_mid", "mlp_out")}
    crossed = {name: of(f"cross.{name}") for name in names}
    cross = Attended(**crossed) if crossed["q"] else None
    return ForwardLayer(layer=layer, x=x, resid_post=resid_post, cross=cross, formulas=formulas, **attention, **others)


def _notes(viewer: Viewer) -> list[str]:
    """What a reader of textbooks would look for in vain."""
    layout, companion = viewer.config.model.layout, find_task(viewer.config.task).companion
    has_companion = bool(companion) and (viewer.folder / companion).is_file()
    notes = [
        (layout.pre and layout.norm != "none", "x is taken after the norm in front of attention."),
        (layout.qk_norm, "q and k are shown after QK-norm, as used in the scores."),
        (layout.positions == "rotary", "q and k are shown after the rotation by their position."),
        (layout.mixer == "lstm", "An LSTM replaces attention: mix_out is its state after each token."),
        (layout.mixer == "mean", "A mean replaces attention: mix_out is the mean of all visible x."),
        (layout.positions in ADDED, "Rows of W_E have their position added before layer 0."),
        (layout.pool == "class", "Position 0 is the class token, a learned vector W_token in place of a patch."),
        (has_companion, "qkv predict also adds the logits of a linear model; they are not shown here."),
    ]
    return [sentence for holds, sentence in notes if holds]


def layers_that_fit(viewer: Viewer, n_tokens: int) -> list[int]:
    """Layers that a report can carry: all, else the first, the last, and as many between them as fit; at least one of
    a text, which is short."""
    sizes = viewer.config.model.sizes
    inner = sizes.n_heads * sizes.d_head
    attention = n_tokens * 4 * inner + 2 * sizes.n_heads * n_tokens**2
    one = n_tokens * 5 * sizes.d_model + (attention if viewer.config.model.layout.mixer == "attention" else 0)
    one *= 3 if viewer.encodes else 1  # encoder, decoder and cross-attention
    section = max(int(not viewer.reads_images), int(CARRIED_BYTES / (one * 4 * 4 / 3)))
    order = [0, sizes.n_layers - 1, *range(1, sizes.n_layers - 1)]
    return sorted(set(order[:section]))


def backward(viewer: Viewer, text: str, step: int | None, changes: Sequence[str] = ()) -> Backward:
    """How the gradient of this text's mean loss reaches each token and each matrix, by path, and what a step would buy.

    Raises UserError for a text that does not fit one window, or a task that predicts no tokens.
    """
    config = viewer.config
    words = viewer.words(text, LONGEST_FORWARD)
    one = one_text(find_task(config.task), viewer.as_read(words), config.model.sizes, text)
    found = one_step(viewer.model(step, changes), find_task(config.task), one, vocabulary=viewer.tokenizer.readable)
    first = found.path.blocks[0]
    return payload(
        Backward,
        found,
        step=viewer.nearest(step),
        tokens=tuple(one.tokens),
        reached=pack(first.total[0].norm(dim=-1).numpy()),
        paths=tuple(
            PathShare(
                address=parts.address, shares={p: s if math.isfinite(s) else None for p, s in parts.shares.items()}
            )
            for parts in found.path.blocks
        ),
        crossed={str(n): share for n, share in found.path.crossed.items()},
        parts=tuple(
            payload(StepPart, part, first_order=part.descent.first_order, actual=part.descent.actual)
            for part in found.parts
        ),
        first_order=found.descent.first_order,
        actual=found.descent.actual,
    )


def embed_formula(layout: Layout, sizes: Sizes) -> str:
    """What enters layer 0."""
    row = "W_E[token]" + (" × √d_model" if layout.embed_scale else "") + _times(layout.embedding_factor)
    row += " + W_type[0]" if sizes.n_types else ""
    if layout.positions == "learned":
        row += " + W_pos[position]"
    elif layout.positions.startswith("sinusoidal"):
        row += " + sines(position)"
    row = f"norm_e({row})" if layout.norm_e else row
    return f"({row}) W_project" + (" + b_project" if layout.bias else "") if sizes.d_embed else row


def patch_formula(layout: Layout) -> str:
    """The same of an image."""
    row = "(patch - mean) / std W_E" + (" + b_E" if layout.bias else "")
    row += {"learned": " + W_pos[position]", "sinusoidal": " + sines(position)"}.get(layout.positions, "")
    return f"norm_e({row})" if layout.norm_e else row


def _times(factor: float) -> str:
    return "" if factor == 1 else f" × {factor:.3g}"


def layer_formulas(
    layout: Layout, layer: int, *, scale: float | None, causal: bool, cross: bool = False
) -> dict[str, str]:
    """Name of an activation of a layer -> what it is; `scale` is what q k^T is multiplied by, `cross` says that another
    stack is read."""
    place = layout.norm_place if layout.norm != "none" else ""
    before = "embed" if layer == 0 else f"L{layer - 1}.resid_post"
    factor = _times(layout.residual_factor)
    mixed = "attn_out" if layout.mixer == "attention" else "mix_out"

    def entering(norm: str, name: str) -> str:
        return f"{norm}({name})" if place in ("pre", "both") else name

    def finished(norm: str, out: str) -> str:
        norm = {"out": norm, "both": f"{norm}_out"}.get(place, "")
        return (f"{norm}({out})" if norm else f"({out})" if factor else out) + factor

    def summed(norm: str, name: str, out: str) -> str:
        total = f"{name} + {out}" if layout.skip else out
        return f"{norm}({total})" if place == "post" else total

    middle = summed("norm1", before, mixed)
    last = summed("norm2", "resid_mid", "mlp_out") if layout.mlp != "none" else "resid_mid"
    plain = "q kᵀ" + ("" if scale in (None, 1.0) else f" × {scale:.3g}")
    plain = f"{layout.score_cap:g} tanh({plain} / {layout.score_cap:g})" if layout.score_cap else plain
    scores = plain + {"alibi": " - slope × distance", "relative": " + W_rel[bucket of the distance]"}.get(
        layout.positions, ""
    )
    scores += f", {layout.window} positions seen" if layout.windowed(layer) else ""
    mlp_in = entering("norm1" if layout.shared_norm else "norm2", before if layout.parallel else "resid_mid")
    b_O = " + b_O" if layout.biased in ("out", "all") else ""
    pattern = "softmax(scores, b_sink) without the sink" if layout.sinks else "softmax(scores), rows sum to 1"
    heads = "with the z of all heads concatenated"
    read = {"Q": entering("norm_cross", middle), "K": "enc.norm_f", "V": "enc.norm_f"}
    crossed = {f"cross.{kind.lower()}": _product(layout, kind, x, "cross.") for kind, x in read.items()} | {
        "cross.scores": plain,
        "cross.pattern": pattern,
        "cross.z": "pattern v",
        "cross.attn_out": f"{finished('norm_cross', f'z cross.W_O{b_O}')}, {heads}",
        "resid_mid": summed("norm_cross", middle, "cross.attn_out"),
    }
    turned = ", turned by its position" if layout.turned(layer) else ""
    return {
        "x": entering("norm1", before) if layer or layout.first_norm else before,
        **{kind.lower(): _product(layout, kind, "x") + turned * (kind != "V") for kind in "QKV"},
        "scores": f"{scores}{', the future masked' if causal else ''}",
        "pattern": pattern,
        "z": "pattern v",
        "attn_out": f"{finished('norm1', f'z W_O{b_O}')}, {heads}",
        "mix_out": "the output of what replaces attention",
        "resid_mid": middle,
        "mlp_out": f"{finished('norm2', f'MLP({mlp_in})')}, token by token",
        "resid_post": f"{before} + attn_out + mlp_out" if layout.parallel else last,
        **(crossed if cross else {}),
    }


def _product(layout: Layout, kind: str, x: str, where: str = "") -> str:
    """q, k or v, before any turn; `where` names the attention."""
    x = f"({x})" if " + " in x and not x.endswith(")") else x
    made = f"{x} {where}W_{kind}" + (f" + {where}b_{kind}" if layout.biased in ("qkv", "all") else "")
    return f"{where}{kind.lower()}norm({made})" if layout.qk_norm and kind != "V" else made


def last_formula(layout: Layout, n_layers: int) -> str:
    """What leaves a stack."""
    h = f"L{n_layers - 1}.resid_post"
    return f"norm_f({h})" if layout.norm_place != "post" and layout.norm != "none" else h


def answer_formula(layout: Layout, n_layers: int, *, bias: bool) -> str:
    """What the model says at each position; `bias` of the logits."""
    h = last_formula(layout, n_layers)
    if layout.head_transform:
        h = f"{layout.gate}({h} W_transform{' + b_transform' if layout.bias else ''})"
        h = f"norm_u({h})" if layout.norm != "none" else h
    h = f"({h}{_times(layout.logit_factor)})" if layout.logit_factor != 1 else h
    logits, cap = f"{h} W_U{' + b_U' if bias else ''}", layout.logit_cap
    return f"softmax({cap:g} * tanh(({logits}) / {cap:g}))" if cap else f"softmax({logits})"
