"""A Transformer in one file: every formula forward, every formula backward, in NumPy.

    python -m qkv.one_file my.txt [STEPS]

A causal language model over characters: the layout of the preset `textbook` (norm before attention and MLP, learned
positions, GELU, no biases, W_U apart from W_E). Nothing here differentiates by itself: each function is followed by its
gradient, written by hand. A bar over a name is the gradient of the loss with respect to it: `q_bar` is dL/dq. The tests
compare the loss and every gradient with torch's.

Axes: b batch, i and j positions (of the query and of the key), d d_model, h heads, e d_head, m d_mlp, t tokens.
"""

import math
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np

Array = np.ndarray
Arrays = dict[str, Array]
"""Address -> matrix: W_E, W_pos, L0.norm1.gain, L0.W_Q, ..., norm_f.gain, W_U."""


def initial(
    d_vocab: int, d_model: int = 64, n_layers: int = 2, n_heads: int = 4, n_ctx: int = 64, seed: int = 1
) -> Arrays:
    """Matrices before training: N(0, 0.02), gains 1; what writes into the residual stream is smaller in deep models."""
    rng, d_head = np.random.default_rng(seed), d_model // n_heads

    def normal(*shape: int, std: float = 0.02) -> Array:
        return rng.normal(0.0, std, shape)

    W = {"W_E": normal(d_vocab, d_model), "W_pos": normal(n_ctx, d_model)}
    for layer in range(n_layers):
        small = 0.02 / math.sqrt(2 * n_layers)
        W |= {
            f"L{layer}.norm1.gain": np.ones(d_model),
            f"L{layer}.W_Q": normal(n_heads, d_model, d_head),
            f"L{layer}.W_K": normal(n_heads, d_model, d_head),
            f"L{layer}.W_V": normal(n_heads, d_model, d_head),
            f"L{layer}.W_O": normal(n_heads, d_head, d_model, std=small),
            f"L{layer}.norm2.gain": np.ones(d_model),
            f"L{layer}.W_in": normal(d_model, 4 * d_model),
            f"L{layer}.W_out": normal(4 * d_model, d_model, std=small),
        }
    return W | {"norm_f.gain": np.ones(d_model), "W_U": normal(d_model, d_vocab)}


# attention


def attention(x: Array, W_Q: Array, W_K: Array, W_V: Array, W_O: Array) -> tuple[Array, tuple[Array, ...]]:
    """softmax(q k^T / sqrt(d_head)) v W_O, summed over heads; a position sees itself and those before it.

    x [b, i, d]; W_Q, W_K, W_V [h, d, e]; W_O [h, e, d]. Also returns what the backward pass needs.
    """
    q = np.einsum("bid,hde->bhie", x, W_Q)  # linear in x: there is no activation here
    k = np.einsum("bjd,hde->bhje", x, W_K)
    v = np.einsum("bjd,hde->bhje", x, W_V)
    scores = np.einsum("bhie,bhje->bhij", q, k) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
    pattern = np.exp(scores - scores.max(-1, keepdims=True))
    pattern /= pattern.sum(-1, keepdims=True)
    z = np.einsum("bhij,bhje->bhie", pattern, v)
    return np.einsum("bhie,hed->bid", z, W_O), (x, q, k, v, pattern, z)


def attention_backward(
    out_bar: Array, kept: tuple[Array, ...], W_Q: Array, W_K: Array, W_V: Array, W_O: Array
) -> tuple[Array, Arrays]:
    """Gradients of x and of the four matrices, from that of the output.

    The matrices are trained by W_Q_bar = x^T q_bar and so on. The input x, which in the first layer is made of rows of
    W_E, gets q_bar W_Q^T + k_bar W_K^T + v_bar W_V^T: so it is trained through all three, even where they are frozen.
    """
    x, q, k, v, pattern, z = kept
    z_bar = np.einsum("bid,hed->bhie", out_bar, W_O)
    v_bar = np.einsum("bhij,bhie->bhje", pattern, z_bar)
    pattern_bar = np.einsum("bhie,bhje->bhij", z_bar, v)
    scores_bar = pattern * (pattern_bar - (pattern_bar * pattern).sum(-1, keepdims=True))  # of a softmax
    scores_bar /= math.sqrt(q.shape[-1])
    q_bar = np.einsum("bhij,bhje->bhie", scores_bar, k)
    k_bar = np.einsum("bhij,bhie->bhje", scores_bar, q)
    gradients = {
        "W_Q": np.einsum("bid,bhie->hde", x, q_bar),
        "W_K": np.einsum("bjd,bhje->hde", x, k_bar),
        "W_V": np.einsum("bjd,bhje->hde", x, v_bar),
        "W_O": np.einsum("bhie,bid->hed", z, out_bar),
    }
    x_bar = (
        np.einsum("bhie,hde->bid", q_bar, W_Q)
        + np.einsum("bhje,hde->bjd", k_bar, W_K)
        + np.einsum("bhje,hde->bjd", v_bar, W_V)
    )
    return x_bar, gradients


# the MLP and the norm, each at every position by itself

_erf = np.vectorize(math.erf, otypes=[float])


def mlp(x: Array, W_in: Array, W_out: Array) -> tuple[Array, tuple[Array, ...]]:
    """gelu(x W_in) W_out, where gelu(a) = a Phi(a) and Phi is the normal distribution function."""
    a = x @ W_in
    phi = (1 + _erf(a / math.sqrt(2))) / 2
    return (a * phi) @ W_out, (x, a, phi)


def mlp_backward(out_bar: Array, kept: tuple[Array, ...], W_in: Array, W_out: Array) -> tuple[Array, Arrays]:
    """gelu'(a) = Phi(a) + a times the normal density at a."""
    x, a, phi = kept
    density = np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    a_bar = (out_bar @ W_out.T) * (phi + a * density)
    gradients = {"W_in": np.einsum("bid,bim->dm", x, a_bar), "W_out": np.einsum("bim,bid->md", a * phi, out_bar)}
    return a_bar @ W_in.T, gradients


def norm(x: Array, gain: Array) -> tuple[Array, tuple[Array, ...]]:
    """(x - mean) / sqrt(variance + 1e-5), times a gain for each coordinate."""
    centered = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    unit = centered / scale
    return unit * gain, (unit, scale)


def norm_backward(out_bar: Array, kept: tuple[Array, ...], gain: Array) -> tuple[Array, Array]:
    """What would only shift or stretch x is taken out of its gradient."""
    unit, scale = kept
    unit_bar = out_bar * gain
    along = (unit_bar * unit).mean(-1, keepdims=True) * unit
    return (unit_bar - unit_bar.mean(-1, keepdims=True) - along) / scale, (out_bar * unit).sum((0, 1))


# the model


def _of_layer(W: Arrays, layer: int, names: str) -> list[Array]:
    return [W[f"L{layer}.{name}"] for name in names.split()]


_ATTENTION, _MLP = "W_Q W_K W_V W_O", "W_in W_out"


def predict(W: Arrays, ids: Array) -> tuple[Array, tuple[list, tuple[Array, ...], Array]]:
    """Logits [b, i, t] for the token after each position of ids [b, i], and what the backward pass needs."""
    x, kept = W["W_E"][ids] + W["W_pos"][: ids.shape[1]], []
    for layer in range(sum(name.endswith("W_Q") for name in W)):
        normed, norm1 = norm(x, W[f"L{layer}.norm1.gain"])
        out, attended = attention(normed, *_of_layer(W, layer, _ATTENTION))
        x = x + out  # the skip connection
        normed, norm2 = norm(x, W[f"L{layer}.norm2.gain"])
        out, hidden = mlp(normed, *_of_layer(W, layer, _MLP))
        x = x + out
        kept.append((norm1, attended, norm2, hidden))
    x, norm_f = norm(x, W["norm_f.gain"])
    return x @ W["W_U"], (kept, norm_f, x)


def loss_and_gradients(W: Arrays, ids: Array, targets: Array) -> tuple[float, Arrays]:
    """Mean cross-entropy in nats per token, and its gradient for every matrix.

    ids, targets [b, i]: targets are the tokens that follow.
    """
    logits, (kept, norm_f, x) = predict(W, ids)
    logits = logits - logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_p, targets[..., None], -1).mean()

    logits_bar = (np.exp(log_p) - np.eye(logits.shape[-1])[targets]) / targets.size
    G = {"W_U": np.einsum("bid,bit->dt", x, logits_bar)}
    x_bar, G["norm_f.gain"] = norm_backward(logits_bar @ W["W_U"].T, norm_f, W["norm_f.gain"])
    for layer in reversed(range(len(kept))):
        norm1, attended, norm2, hidden = kept[layer]
        normed_bar, of_mlp = mlp_backward(x_bar, hidden, *_of_layer(W, layer, _MLP))
        through, gain2_bar = norm_backward(normed_bar, norm2, W[f"L{layer}.norm2.gain"])
        x_bar = x_bar + through  # the skip connection hands its gradient down unchanged
        normed_bar, of_attention = attention_backward(x_bar, attended, *_of_layer(W, layer, _ATTENTION))
        through, gain1_bar = norm_backward(normed_bar, norm1, W[f"L{layer}.norm1.gain"])
        x_bar = x_bar + through
        found = {**of_attention, **of_mlp, "norm1.gain": gain1_bar, "norm2.gain": gain2_bar}
        G |= {f"L{layer}.{name}": gradient for name, gradient in found.items()}
    G["W_pos"], G["W_E"] = np.zeros_like(W["W_pos"]), np.zeros_like(W["W_E"])
    G["W_pos"][: ids.shape[1]] = x_bar.sum(0)
    np.add.at(G["W_E"], ids, x_bar)  # a row of W_E gets the sum over all positions that hold its token
    return float(loss), G


def adam(W: Arrays, G: Arrays, state: dict[str, tuple[Array, Array]], step: int, rate: float) -> None:
    """One update in place (Kingma and Ba 2014). step counts from 1."""
    for name, gradient in G.items():
        first, second = state.get(name, (0.0, 0.0))
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        state[name] = first, second
        W[name] -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)


def generate(W: Arrays, ids: list[int], n: int, seed: int = 1) -> list[int]:
    """n more tokens, each drawn from the model's distribution."""
    rng, n_ctx = np.random.default_rng(seed), len(W["W_pos"])
    for _ in range(n):
        logits = predict(W, np.array([ids[-n_ctx:]]))[0][0, -1]
        p = np.exp(logits - logits.max())
        ids = [*ids, int(rng.choice(len(p), p=p / p.sum()))]
    return ids


def _mistake(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(2)


def main(path: str, steps: int = 300) -> None:
    """Train on the characters of a text, print the loss, and write a little."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _mistake(f"{path} cannot be read as text: {error}")
    letters = sorted(set(text))
    ids, n_ctx = np.array([letters.index(letter) for letter in text]), 64
    if len(ids) <= n_ctx:
        _mistake(f"{path} has {len(ids)} characters; expected more than {n_ctx}")
    W, state, rng = initial(len(letters), n_ctx=n_ctx), {}, np.random.default_rng(1)
    for step in range(1, steps + 1):
        begins = rng.integers(0, len(ids) - n_ctx, 16)[:, None] + np.arange(n_ctx)
        loss, G = loss_and_gradients(W, ids[begins], ids[begins + 1])
        adam(W, G, state, step, rate=0.003)
        if step % 20 == 0 or step == 1:
            print(f"step {step:4}  loss {loss:.3f} nats per character  (guessing: {math.log(len(letters)):.3f})")
    print("".join(letters[i] for i in generate(W, list(map(int, ids[:1])), 200)))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not all(word.isdecimal() and int(word) for word in sys.argv[2:]):
        _mistake("expected a text and perhaps a number of steps: python -m qkv.one_file my.txt 300")
    main(sys.argv[1], *map(int, sys.argv[2:]))
