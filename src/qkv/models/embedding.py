"""The way in and the ways out: token rows or patches with positions, vectors to logits, one vector to its class."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.models.layout import Layout, Patches, Sizes
from qkv.models.norms import ACTIVATIONS, make_norm
from qkv.models.positions import SINES, Sinusoidal2D
from qkv.shapes import Float, Int, UInt8


class Embedding(nn.Module):
    """Rows of W_E [d_vocab, d_model], with positions added where a layout adds them, and a norm where it has one.

    Learned positions are rows of W_pos [n_ctx, d_model], kinds of segments rows of W_type [n_types, d_model]. With
    d_vocab = 0 there is no W_E and vectors come in. With d_embed all these are that wide, and what comes of them goes
    through W_project [d_embed, d_model] and b_project.
    """

    def __init__(self, sizes: Sizes, layout: Layout) -> None:
        super().__init__()
        d = sizes.d_embed or sizes.d_model
        self.n_ctx, self.factor = sizes.n_ctx, layout.embedding_factor * (math.sqrt(d) if layout.embed_scale else 1.0)
        self.W_E = nn.Parameter(torch.empty(sizes.d_vocab, d)) if sizes.d_vocab else None
        self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx, d)) if layout.positions == "learned" else None
        self.W_type = nn.Parameter(torch.empty(sizes.n_types, d)) if sizes.n_types else None
        self.norm_e = make_norm(layout, d) if layout.norm_e else None
        self.sines = SINES[layout.positions](d) if layout.positions in SINES else None
        self.W_project = nn.Parameter(torch.empty(d, sizes.d_model)) if sizes.d_embed else None
        self.b_project = nn.Parameter(torch.empty(sizes.d_model)) if sizes.d_embed and layout.bias else None

    def forward(
        self,
        ids: Int[Tensor, "batch pos"] | Float[Tensor, "batch pos d_model"],
        positions: Int[Tensor, "batch pos"] | None = None,
        offset: int = 0,
        types: Int[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The vectors that enter the first block, of token ids or of vectors.

        `positions` where they are not offset, offset + 1, ...; `types` says which row of W_type is added (None: the
        first).

        Raises ConfigError for a text longer than n_ctx, ids where vectors are expected, or types without a W_type.
        """
        n = ids.shape[1]
        if offset + n > self.n_ctx:
            raise ConfigError(f"a sequence of {offset + n} positions was given; this model's n_ctx is {self.n_ctx}")
        if ids.is_floating_point():
            x = ids
        elif self.W_E is None:
            raise ConfigError("token ids were given to a stack without W_E (d_vocab = 0); give vectors")
        else:
            x = F.embedding(ids, self.W_E)
        if self.factor != 1.0:
            x = x * self.factor
        if self.W_type is not None:
            x = x + (self.W_type[0] if types is None else F.embedding(types, self.W_type))
        elif types is not None:
            raise ConfigError("types were given to a model without W_type (n_types = 0)")
        table = self.W_pos
        if self.sines is not None:
            (table,) = self.sines.tables(self.n_ctx, x.dtype, x.device)
        if table is not None:
            x = x + (table[offset : offset + n] if positions is None else F.embedding(positions, table))
        x = x if self.norm_e is None else self.norm_e(x)
        return x if self.W_project is None else F.linear(x, self.W_project.t(), self.b_project)


class PatchEmbedding(nn.Module):
    """Patches of an image through W_E [n_values, d_model], a class token before them where there is one, positions.

    The patch p of an image enters as (p - mean) / std W_E + b_E: what a row of W_E is to a token, a sum of rows is to a
    patch (Dosovitskiy et al. 2020, arXiv 2010.11929; their E is our W_E, their x_class our W_token). Learned positions
    are rows of W_pos [n_ctx, d_model]; the class token is position 0.
    """

    def __init__(self, sizes: Sizes, layout: Layout, patches: Patches) -> None:
        super().__init__()
        self.n_ctx, self.patches = sizes.n_ctx, patches
        has_class = layout.pool == "class"
        self.W_E = nn.Parameter(torch.empty(patches.n_values, sizes.d_model))
        self.b_E = nn.Parameter(torch.empty(sizes.d_model)) if layout.bias else None
        self.W_token = nn.Parameter(torch.empty(1, sizes.d_model)) if has_class else None
        self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx, sizes.d_model)) if layout.positions == "learned" else None
        self.norm_e = make_norm(layout, sizes.d_model) if layout.norm_e else None
        turned = layout.positions == "sinusoidal"
        self.sines = Sinusoidal2D(sizes.d_model, patches.grid, int(has_class)) if turned else None

    def cut(
        self, pixels: UInt8[Tensor, "batch channels height width"] | Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch n_patches n_values"]:
        """The patches of images, standardised; floating-point pixels are in 0..1.

        Raises ConfigError for images of another shape.
        """
        cut = self.patches
        if tuple(pixels.shape[1:]) != (cut.channels, cut.height, cut.width):
            expected = f"[batch, {cut.channels}, {cut.height}, {cut.width}]"
            raise ConfigError(f"images of shape {list(pixels.shape)} were given; this model takes {expected}")
        if pixels.dtype == torch.uint8:
            pixels = pixels.to(self.W_E.dtype) / 255
        x = (pixels - cut.mean) / cut.std
        if any(cut.padding):
            x = F.pad(x, cut.padding)
        return F.unfold(x, cut.patch, stride=cut.step).transpose(1, 2)

    def forward(
        self,
        pixels: UInt8[Tensor, "batch channels height width"] | Float[Tensor, "batch channels height width"],
        positions: None = None,
        offset: int = 0,
        types: None = None,
    ) -> Float[Tensor, "batch n_ctx d_model"]:
        """The vectors that enter the first block; floating-point pixels are in 0..1.

        Raises ConfigError for images of another shape.
        """
        assert positions is None and offset == 0 and types is None, "an image is read whole"
        x = F.linear(self.cut(pixels), self.W_E.t(), self.b_E)
        if self.W_token is not None:
            x = torch.cat((self.W_token.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)
        table = self.W_pos
        if self.sines is not None:
            (table,) = self.sines.tables(self.n_ctx, x.dtype, x.device)
        x = x if table is None else x + table
        return x if self.norm_e is None else self.norm_e(x)


class Head(nn.Module):
    """Vectors to logits: h W_U + b_U. A tied head has no W_U of its own and is given the transpose of W_E.

    With a `transform`, h is first norm(act(h W_transform + b_transform)), W_transform [d_model, d_embed or
    d_model]: the head of masked models since Devlin et al. 2018 (arXiv 1810.04805). Then it is multiplied by `factor`.
    """

    def __init__(
        self, sizes: Sizes, *, tied: bool, bias: bool, transform: Layout | None = None, factor: float = 1.0
    ) -> None:
        super().__init__()
        d, self.factor = sizes.d_embed or sizes.d_model, factor
        self.act = None if transform is None else ACTIVATIONS[transform.gate]
        self.W_transform = None if transform is None else nn.Parameter(torch.empty(sizes.d_model, d))
        self.b_transform = nn.Parameter(torch.empty(d)) if transform is not None and transform.bias else None
        self.norm_u = None if transform is None else make_norm(transform, d)
        self.W_U = None if tied else nn.Parameter(torch.empty(d, sizes.d_vocab))
        self.b_U = nn.Parameter(torch.empty(sizes.d_vocab)) if bias else None

    def transformed(self, h: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_embed"]:
        """What W_U is applied to; h itself without a transform and a factor."""
        if self.W_transform is not None and self.act is not None and self.norm_u is not None:
            h = self.norm_u(self.act(F.linear(h, self.W_transform.t(), self.b_transform)))
        return h if self.factor == 1 else h * self.factor

    def forward(
        self, h: Float[Tensor, "*batch d_model"], W_E: Float[Tensor, "d_vocab d_embed"] | None
    ) -> Float[Tensor, "*batch d_vocab"]:
        """Logits; `W_E` is what a tied head reads."""
        h = self.transformed(h)
        if self.W_U is not None:
            return F.linear(h, self.W_U.t(), self.b_U)
        assert W_E is not None, "a tied head needs W_E"
        return F.linear(h, W_E, self.b_U)


def capped(logits: Float[Tensor, "*batch d_vocab"], cap: float) -> Float[Tensor, "*batch d_vocab"]:
    """cap * tanh(logits / cap); the logits themselves where the cap is 0."""
    return cap * (logits / cap).tanh() if cap else logits


class ClassHead(nn.Module):
    """One vector of a text (or image) to logits of its classes: h W_cls + b_cls.

    With a `pooler` (of BERT), h is first tanh(h W_pool + b_pool).
    """

    def __init__(self, d_model: int, n_classes: int, *, pooler: bool = False) -> None:
        super().__init__()
        self.W_pool = nn.Parameter(torch.empty(d_model, d_model)) if pooler else None
        self.b_pool = nn.Parameter(torch.empty(d_model)) if pooler else None
        self.W_cls = nn.Parameter(torch.empty(d_model, n_classes))
        self.b_cls = nn.Parameter(torch.empty(n_classes))

    def forward(self, h: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch n_classes"]:
        """Logits of the classes."""
        h = h if self.W_pool is None else F.linear(h, self.W_pool.t(), self.b_pool).tanh()
        return F.linear(h, self.W_cls.t(), self.b_cls)


def word_means(
    h: Float[Tensor, "batch pos d_model"], words: Int[Tensor, "batch pos"], ends: Int[Tensor, " n"]
) -> Float[Tensor, "n d_model"]:
    """The mean of the positions of each word. `words` is the number of the word in its row, -1 where there is none, and
    `ends` is where each one ends, in batch * pos. A product row by row: the same bits whatever the thread count.
    """
    most = int(words.max()) + 1
    member = words[:, None, :] == torch.arange(most, device=words.device)[:, None]
    shares = member.to(h.dtype) / member.sum(dim=2, keepdim=True).clamp_min(1).to(h.dtype)
    at = ends // words.shape[1] * most + words.flatten()[ends]
    return F.embedding(at, (shares @ h).flatten(0, 1))


def pool(
    h: Float[Tensor, "batch pos d_model"], owners: Int[Tensor, "batch pos"], n: int, *, first: bool = False
) -> Float[Tensor, "{n} d_model"]:
    """The mean of the positions that belong to each of n texts, or the `first` of them.

    `owners` is the number of the text that a position belongs to; others (such as -1 or n) belong to
    none. Several texts may share a row. A product with a matrix of shares: the same bits whatever the thread count.
    """
    member = owners.flatten()[None, :] == torch.arange(n, device=owners.device)[:, None]
    member = member & (member.cumsum(dim=1) == 1) if first else member
    shares = member.to(h.dtype) / member.sum(dim=1, keepdim=True).clamp_min(1).to(h.dtype)
    return shares @ h.flatten(0, 1)
