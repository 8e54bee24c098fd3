"""What each stage of one text's way through a model is, as a formula of its very layout.

The sums and norms are those of `models.blocks`, in names of the record of a forward pass and of the catalogue; what
stands behind a comma is in words. Not for encoder-decoders, whose texts the Forward section does not follow.
"""

from qkv.models.layout import Layout, Sizes

__all__ = ["answer_formula", "embed_formula", "layer_formulas"]


def embed_formula(layout: Layout, sizes: Sizes) -> str:
    """What enters layer 0."""
    row = "W_E[token]" + (" × √d_model" if layout.embed_scale else "") + (" + W_type[0]" if sizes.n_types else "")
    if layout.positions == "learned":
        row += " + W_pos[position]"
    elif layout.positions.startswith("sinusoidal"):
        row += " + sines(position)"
    return f"norm_e({row})" if layout.norm_e else row


def layer_formulas(layout: Layout, layer: int, *, scale: float | None, causal: bool) -> dict[str, str]:
    """Name of an activation of a layer -> what it is; `scale` is what q k^T is multiplied by."""
    place = layout.norm_place if layout.norm != "none" else ""
    before = "embed" if layer == 0 else f"L{layer - 1}.resid_post"
    mixed = "attn_out" if layout.mixer == "attention" else "mix_out"

    def entering(norm: str, name: str) -> str:
        return f"{norm}({name})" if place == "pre" else name

    def summed(norm: str, name: str, out: str) -> str:
        total = f"{name} + {out}" if layout.skip else out
        return f"{norm}({total})" if place == "post" else total

    last = summed("norm2", "resid_mid", "mlp_out") if layout.mlp != "none" else "resid_mid"
    scaled = "" if scale in (None, 1.0) else f" × {scale:.3g}"
    return {
        "x": entering("norm1", before),
        **{kind.lower(): _product(layout, kind) for kind in "QKV"},
        "scores": f"q kᵀ{scaled}{', the future hidden' if causal else ''}",
        "pattern": "softmax(scores), rows sum to 1",
        "z": "pattern v",
        "attn_out": f"z W_O{' + b_O' if layout.biased == 'all' else ''}, the z of all heads side by side",
        "mix_out": "what stands in attention's place makes of each x and those that it may see",
        "resid_mid": summed("norm1", before, mixed),
        "mlp_out": f"MLP({entering('norm2', before if layout.parallel else 'resid_mid')}), each token alone",
        "resid_post": f"{before} + attn_out + mlp_out" if layout.parallel else last,
    }


def _product(layout: Layout, kind: str) -> str:
    """q, k or v."""
    made = f"x W_{kind}" + (f" + b_{kind}" if layout.biased != "none" else "")
    if kind == "V":
        return made
    made = f"{kind.lower()}norm({made})" if layout.qk_norm else made
    return f"{made}, turned by its position" if layout.positions == "rotary" else made


def answer_formula(layout: Layout, n_layers: int, *, bias: bool) -> str:
    """What the model says at each position; `bias` of the logits."""
    h = f"L{n_layers - 1}.resid_post"
    if layout.norm_place == "pre" and layout.norm != "none":
        h = f"norm_f({h})"
    if layout.head_transform:
        h = f"{layout.mlp}({h} W_transform{' + b_transform' if layout.bias else ''})"
        h = f"norm_u({h})" if layout.norm != "none" else h
    return f"softmax({h} W_U{' + b_U' if bias else ''})"
