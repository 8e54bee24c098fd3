"""Models composed of blocks: Encoder, Decoder and EncoderDecoder for any torch code, language models, classifiers.

An encoder sees both sides, a decoder what came before; each takes token ids, or vectors where d_vocab is 0. Language
models add logits at every position, classifiers one answer to the mean of a text's positions or of an image's patches.
`build` makes one from a configuration; every parameter starts by (seed, address).
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.extensions import load
from qkv.kernels.blocks import Drop
from qkv.kernels.cache import Cache, KVCache, StateCache
from qkv.models.activations import Hook, Stops, activation_names, recorder, replacer, stopper
from qkv.models.attention import MultiHeadAttention
from qkv.models.blocks import Block
from qkv.models.embedding import ClassHead, Embedding, Head, PatchEmbedding, capped, pool
from qkv.models.layout import ADDED, Layout, ModelConfig, Sizes, check, check_cross
from qkv.models.masks import Visible, visible
from qkv.models.norms import make_norm
from qkv.models.positions import Alibi, Relative, Rotary2D, positions_within
from qkv.models.start import fill
from qkv.shapes import Bool, Float, Int, Num

See = Callable[[nn.Module, Tensor], None]
"""`see(block, x)`: looks at what enters a block, [batch, pos, d_model], and leaves it as it is."""

Ids = Int[Tensor, "batch pos"]
Hidden = Float[Tensor, "batch pos d_model"]
Pixels = Num[Tensor, "batch channels height width"]
"""Of images: in 0..1, or uint8."""
Mask = Bool[Tensor, "batch pos"]
"""True for real tokens."""
SourceIds = Int[Tensor, "batch source_pos"]
TargetIds = Int[Tensor, "batch target_pos"]
SourceMask = Bool[Tensor, "batch source_pos"]
TargetMask = Bool[Tensor, "batch target_pos"]


class BlockStack(nn.Module):
    """Embedding, blocks and the final norm; abstract: `causal` and `cross` are the subclass's."""

    causal: bool
    cross: bool = False

    def __init__(self, sizes: Sizes, layout: Layout, *, scope: str = "") -> None:
        super().__init__()
        self.sizes, self.layout, self.scope = sizes.resolved(), layout, scope
        check(self.sizes, layout)
        if self.cross:
            check_cross(layout)
        self.stops: Stops = {}
        """Activations that let no gradient through, while a gradient is computed."""
        self.embedding = Embedding(self.sizes, layout)
        self.distances = _distances(sizes.n_heads, layout, causal=self.causal)
        self.blocks = nn.ModuleList(
            Block(self.sizes, layout, layer=layer, scope=scope, cross=self.cross, causal=self.causal)
            for layer in range(sizes.n_layers)
        )
        for block in self.blocks[1:] if layout.shared_layers else ():
            block.share(self.blocks[0])  # type: ignore[operator, arg-type]
        self.norm_f = make_norm(layout, sizes.d_model) if layout.norm_place != "post" else nn.Identity()

    def hidden(
        self,
        ids: Ids | Hidden | Pixels,
        *,
        mask: Bool[Tensor, "batch key_pos"] | None = None,
        documents: Int[Tensor, "batch key_pos"] | None = None,
        context: Float[Tensor, "batch context_pos d_model"] | None = None,
        context_mask: Bool[Tensor, "batch context_pos"] | None = None,
        context_documents: Int[Tensor, "batch context_pos"] | None = None,
        drop: Drop | None = None,
        cache: Cache | None = None,
        hook: Hook | None = None,
        types: Int[Tensor, "batch pos"] | None = None,
        see: See | None = None,
    ) -> Float[Tensor, "batch n_pos d_model"]:
        """The vectors after the last norm, of ids (or of vectors, or pixels of an image model).

        `mask` is True for real tokens; `documents` keeps packed documents apart, positions included. With a `cache`,
        ids are the new positions only, and mask and documents cover all positions read so far, key_pos of them; else
        those are the positions of the ids. `context` and its mask are read by cross-attention, where its documents are
        given only within equal numbers. `drop(site, x)` is called at every dropout site; `hook(name, x)` with every
        activation, by the explicit path; `see(block, x)` with what enters each block, by the fast one. `types` are rows
        of W_type, all 0 where not given.

        Raises ConfigError for a sequence longer than n_ctx, cross-attention without a context, or a context without it.
        """
        if self.cross and context is None:
            raise ConfigError("this decoder has cross-attention and was given no context to read; give context=")
        if context is not None and not self.cross:
            raise ConfigError("a context was given to a stack that reads none; build it with Decoder(..., cross=True)")
        if self.stops and torch.is_grad_enabled():
            hook = stopper(self.stops, hook)
        past, n = cache.length if cache is not None else 0, self.n_positions(ids)
        absolute = self.layout.positions in ADDED
        positions = positions_within(past + n, mask, documents) if absolute else None
        x = self.embedding(ids, None if positions is None else positions[:, past:], past, types)
        x = hook(f"{self.scope}embed", x) if hook else x
        x = drop(f"{self.scope}embed", x) if drop else x
        to, to_near = self._seen(past, x, mask, documents)
        to_context = None
        if context is not None:
            readers = documents[:, past:] if documents is not None and context_documents is not None else None
            to_context = visible(
                n,
                context.shape[1],
                causal=False,
                keys=context_mask,
                documents=context_documents,
                query_documents=readers,
                like=x,
            )
        for block in self.blocks:
            if see:
                see(block, x)
            seen = to if to_near is None or not block.is_windowed else to_near
            x = block(x, seen, context=context, to_context=to_context, cache=cache, drop=drop, hook=hook)
        if cache is not None:
            cache.advance(n)
        x = self.norm_f(x)
        return hook(f"{self.scope}norm_f", x) if hook else x

    def _seen(
        self, past: int, x: Tensor, mask: Tensor | None, documents: Tensor | None
    ) -> tuple[Visible, Visible | None]:
        """What the positions of x see behind `past` others, and what they see in windowed layers, where there are."""
        n = x.shape[1]
        see_to = partial(visible, n, past + n, causal=self.causal, keys=mask, documents=documents, like=x)
        to, to_near = see_to(), see_to(window=self.layout.window) if self.layout.window else None
        if self.distances is not None:
            scored = self.distances.bias(n, past + n, x)
            to = to._replace(bias=scored if to.bias is None else to.bias + scored)
            if to_near is not None and to_near.bias is not None:
                to_near = to_near._replace(bias=to_near.bias + scored)
        return to, to_near

    def n_positions(self, ids: Ids | Hidden | Pixels) -> int:
        """How many positions an input has."""
        return ids.shape[1]

    def new_cache(self, batch: int, n_ctx: int = 0) -> Cache:
        """An empty cache for `batch` sequences of up to `n_ctx` positions (0: the model's)."""
        sizes, like = self.sizes, next(self.parameters())
        room = n_ctx or sizes.n_ctx
        if self.layout.mixer == "lstm":
            return StateCache(batch, room)
        return KVCache(
            sizes.n_layers, batch, sizes.n_kv_heads, room, sizes.d_head, dtype=like.dtype, device=like.device
        )

    def activation_names(self) -> list[str]:
        """The names that `forward_recorded` records and `forward_with` can replace, in order."""
        return activation_names(self.sizes, self.layout, scope=self.scope, cross=self.cross)


def _distances(n_heads: int, layout: Layout, *, causal: bool) -> Alibi | Relative | None:
    """What is added to scores by the distance of query and key."""
    if layout.positions == "relative":
        return Relative(n_heads, layout.relative_buckets, layout.relative_reach, causal=causal)
    return Alibi(n_heads) if layout.positions == "alibi" else None


class Encoder(BlockStack):
    """A stack in which every position sees every real position: `Encoder(Sizes(...), Layout(...))(ids, mask)`."""

    causal = False

    def __init__(self, sizes: Sizes, layout: Layout | None = None, *, seed: int | None = 0, scope: str = "") -> None:
        super().__init__(sizes, layout or Layout(), scope=scope)
        fill(self, self.layout.start, sizes.n_layers, seed)

    def forward(self, ids: Ids | Hidden, mask: Mask | None = None) -> Hidden:
        """The vectors of token ids, or of vectors; `mask` is True for real tokens."""
        return self.hidden(ids, mask=mask)

    def forward_recorded(self, ids: Ids | Hidden, mask: Mask | None = None) -> tuple[Hidden, dict[str, Tensor]]:
        """The vectors, and every activation by its name inside this stack (`L0.pattern`), by the explicit path."""
        hook, record = recorder()
        h = self.hidden(ids, mask=mask, hook=hook)
        return h, {name.removeprefix(self.scope): values for name, values in record.items()}


class Decoder(BlockStack):
    """A stack in which a position sees itself and what came before, and a context where `cross`."""

    causal = True

    def __init__(
        self, sizes: Sizes, layout: Layout | None = None, *, cross: bool = False, seed: int | None = 0, scope: str = ""
    ) -> None:
        self.cross = cross
        super().__init__(sizes, layout or Layout(), scope=scope)
        fill(self, self.layout.start, sizes.n_layers, seed)

    def forward(
        self,
        ids: Ids | Hidden,
        context: Float[Tensor, "batch context_pos d_model"] | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Bool[Tensor, "batch context_pos"] | None = None,
    ) -> Hidden:
        """The vectors of token ids, or of vectors; masks are True for real tokens."""
        return self.hidden(ids, mask=mask, context=context, context_mask=context_mask)


class EncoderDecoder(nn.Module):
    """A decoder that reads an encoder: `EncoderDecoder(Sizes(...))(source, target)` (Vaswani et al. 2017).

    Both have the same sizes. Tied, W_E of both and W_U are one matrix, named `enc.W_E`; with a shared embedding W_U is
    another.
    """

    def __init__(self, sizes: Sizes, layout: Layout | None = None, *, seed: int | None = 0) -> None:
        super().__init__()
        layout = layout or Layout()
        self.sizes, self.layout = sizes.resolved(), layout
        check_cross(layout)
        self.enc = Encoder(sizes, layout, seed=None, scope="enc.")
        self.dec = Decoder(sizes, layout, cross=True, seed=None, scope="dec.")
        self._tie()
        how = {"tied": layout.tied, "bias": layout.head_bias, "factor": layout.logit_factor}
        self.head = Head(self.sizes, **how) if sizes.d_vocab else None
        fill(self, layout.start, sizes.n_layers, seed)

    def _tie(self) -> None:
        if self.layout.tied or self.layout.shared_embedding:
            self.dec.embedding.W_E = self.enc.embedding.W_E

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EncoderDecoder":
        """What moves parameters (`to`, `to_empty`) may make two of one that is shared."""
        super()._apply(fn, recurse)
        self._tie()
        return self

    def forward(
        self,
        source: SourceIds | Float[Tensor, "batch source_pos d_model"],
        target: TargetIds | Float[Tensor, "batch target_pos d_model"],
        source_mask: SourceMask | None = None,
        target_mask: TargetMask | None = None,
    ) -> Float[Tensor, "batch target_pos d_model"]:
        """The decoder's vectors, which `unembed` turns into logits; masks are True for real tokens."""
        context = self.enc(source, source_mask)
        return self.dec(target, context, mask=target_mask, context_mask=source_mask)

    def unembed(self, h: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of vectors."""
        assert self.head is not None, "a stack of vectors has no logits"
        return self.head(h, self.enc.embedding.W_E)


class _Answering(BlockStack):
    """A stack with an answer of its own to what was read; abstract: `_add_ends` and `answer` are the subclass's."""

    def __init__(self, config: ModelConfig, *, seed: int | None = 0) -> None:
        self.config = config.resolved()
        super().__init__(self.config.sizes, self.config.layout)
        self._add_ends()
        fill(self, self.layout.start, self.sizes.n_layers, seed)

    def _add_ends(self) -> None:
        """Add the way out, and the way in where it is another one than that of texts."""
        raise NotImplementedError

    def answer(self, h: Hidden, mask: Mask | None) -> Float[Tensor, "..."]:
        """The model's output from the vectors after the last norm."""
        raise NotImplementedError

    @property
    def reader(self) -> "_Answering":
        """What reads a text by itself: the model."""
        return self

    def forward(self, ids: Ids | Hidden | Pixels, mask: Mask | None = None) -> Float[Tensor, "..."]:
        """The answer to token ids (or pixels of an image model); `mask` is True for real tokens."""
        return self.answer(self.hidden(ids, mask=mask), mask)

    def forward_recorded(
        self, ids: Ids | Hidden | Pixels, mask: Mask | None = None
    ) -> tuple[Float[Tensor, "..."], dict[str, Tensor]]:
        """The answer, and every activation by name (`activation_names` lists them), computed by the explicit path.

        q, z [batch, n_heads, pos, d_head] and k, v [batch, n_kv_heads, pos, d_head], q and k after QK-norm and rotary
        turns; scores, pattern [batch, n_heads, query_pos, key_pos]; the rest [batch, pos, d_model]. `x` is what enters
        W_Q, W_K, W_V.
        """
        hook, record = recorder()
        return self.answer(self.hidden(ids, mask=mask, hook=hook), mask), record

    def forward_with(
        self, ids: Ids | Hidden | Pixels, replace: Mapping[str, Tensor], mask: Mask | None = None
    ) -> Float[Tensor, "..."]:
        """The answer with some activations replaced: `replace={"L0.H3.z": z, "L1.resid_pre": x}`.

        Raises AddressError for an activation this model does not have, ChangeError for a shape that does not fit.
        """
        hook = replacer(replace, self.activation_names(), self.sizes)
        return self.answer(self.hidden(ids, mask=mask, hook=hook), mask)


class _LanguageModel(_Answering):
    """A stack with logits, [batch, pos, d_vocab]; abstract."""

    def _add_ends(self) -> None:
        bias = self.layout.head_bias or (self.layout.bias and not self.causal)
        transform = self.layout if self.layout.head_transform else None
        factor = self.layout.logit_factor
        self.head = Head(self.sizes, tied=self.layout.tied, bias=bias, transform=transform, factor=factor)

    def unembed(self, h: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of vectors."""
        return capped(self.head(h, self.embedding.W_E), self.layout.logit_cap)

    def answer(self, h: Hidden, mask: Mask | None) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits at every position."""
        return self.unembed(h)


class EncoderDecoderLM(EncoderDecoder):
    """Predicts the next token of a target from those before and a whole source: a translation model.

    Addresses begin with `enc.` and `dec.`; the decoder's attention over the encoder is `dec.L0.cross.W_Q` and so on.
    """

    def __init__(self, config: ModelConfig, *, seed: int | None = 0) -> None:
        self.config = config.resolved()
        super().__init__(self.config.sizes, self.config.layout, seed=seed)

    @property
    def reader(self) -> Encoder:
        """What reads a text by itself: the encoder."""
        return self.enc

    def encode(
        self,
        source: SourceIds,
        mask: SourceMask | None = None,
        documents: Int[Tensor, "batch source_pos"] | None = None,
        drop: Drop | None = None,
        hook: Hook | None = None,
    ) -> Float[Tensor, "batch source_pos d_model"]:
        """The encoder's vectors, which cross-attention reads."""
        return self.enc.hidden(source, mask=mask, documents=documents, drop=drop, hook=hook)

    def hidden(
        self,
        source: SourceIds,
        target: TargetIds,
        *,
        source_mask: SourceMask | None = None,
        target_mask: TargetMask | None = None,
        source_documents: Int[Tensor, "batch source_pos"] | None = None,
        target_documents: Int[Tensor, "batch target_pos"] | None = None,
        drop: Drop | None = None,
        hook: Hook | None = None,
    ) -> Float[Tensor, "batch target_pos d_model"]:
        """The decoder's vectors after its last norm.

        Masks are True for real tokens. Documents (given for both sides or none) keep pairs apart that are packed into
        one row: a target sees the tokens before it of its own number, and the source of its own number.

        Raises ConfigError for a sequence longer than n_ctx.
        """
        context = self.encode(source, source_mask, source_documents, drop, hook)
        return self.dec.hidden(
            target,
            mask=target_mask,
            documents=target_documents,
            context=context,
            context_mask=source_mask,
            context_documents=source_documents,
            drop=drop,
            hook=hook,
        )

    def forward(
        self,
        source: SourceIds,
        target: TargetIds,
        source_mask: SourceMask | None = None,
        target_mask: TargetMask | None = None,
    ) -> Float[Tensor, "batch target_pos d_vocab"]:
        """Logits of the token after each of the target's."""
        return self.unembed(self.hidden(source, target, source_mask=source_mask, target_mask=target_mask))

    def forward_recorded(
        self,
        source: SourceIds,
        target: TargetIds,
        source_mask: SourceMask | None = None,
        target_mask: TargetMask | None = None,
    ) -> tuple[Float[Tensor, "batch target_pos d_vocab"], dict[str, Tensor]]:
        """Logits, and every activation by name, computed by the explicit path; see `_LanguageModel.forward_recorded`.

        `dec.L0.cross.pattern` [batch, n_heads, target_pos, source_pos] says where each target position looks in the
        source.
        """
        hook, record = recorder()
        h = self.hidden(source, target, source_mask=source_mask, target_mask=target_mask, hook=hook)
        return self.unembed(h), record

    def forward_with(
        self,
        source: SourceIds,
        target: TargetIds,
        replace: Mapping[str, Tensor],
        source_mask: SourceMask | None = None,
        target_mask: TargetMask | None = None,
    ) -> Float[Tensor, "batch target_pos d_vocab"]:
        """Logits with some activations replaced: `replace={"enc.L0.H3.z": z, "dec.L1.cross.pattern": p}`.

        Raises AddressError for an activation this model does not have, ChangeError for a shape that does not fit.
        """
        hook = replacer(replace, self.activation_names(), self.sizes)
        return self.unembed(self.hidden(source, target, source_mask=source_mask, target_mask=target_mask, hook=hook))

    def activation_names(self) -> list[str]:
        """The names that `forward_recorded` records and `forward_with` can replace, in order."""
        return [*self.enc.activation_names(), *self.dec.activation_names()]


class CausalLM(_LanguageModel):
    """Predicts the next token from those before."""

    causal = True


class MaskedLM(_LanguageModel):
    """Predicts hidden tokens from both sides."""

    causal = False


class _PooledModel(_Answering):
    """A stack that tells classes apart by the mean of a text's positions: logits [batch, n_classes]; abstract.

    With pool = first it is the first position instead.
    """

    def _add_ends(self) -> None:
        self.head = ClassHead(self.sizes.d_model, len(self.config.classes), pooler=self.layout.pool == "first")

    def pooled(self, h: Hidden, owners: Int[Tensor, "batch pos"], n: int) -> Float[Tensor, "{n} d_model"]:
        """What the head reads of each of n texts (`embedding.pool`)."""
        return pool(h, owners, n, first=self.layout.pool == "first")

    def answer(self, h: Hidden, mask: Mask | None) -> Float[Tensor, "batch n_classes"]:
        """Logits of the mean over real positions."""
        rows = torch.arange(h.shape[0], device=h.device)[:, None].expand(h.shape[:2])
        return self.head(self.pooled(h, rows if mask is None else torch.where(mask, rows, -1), h.shape[0]))


class Classifier(_PooledModel):
    """Tells classes apart; every position sees every real position."""

    causal = False


class CausalClassifier(_PooledModel):
    """Tells classes apart over the body of a causal model: a position sees what came before."""

    causal = True


class ImageClassifier(_Answering):
    """Names the class of an image: patches through W_E, an encoder over them, one vector pooled, W_cls to classes.

    Called with pixels [batch, channels, height, width], in 0..1 or uint8, it gives logits [batch, n_classes]. A
    position is a patch. Dosovitskiy et al. 2020 (arXiv 2010.11929); with the mean over patches instead of a class token
    as in Beyer et al. 2022 (arXiv 2205.01580). Sinusoidal and rotary positions are those of two dimensions.
    """

    causal = False

    def _add_ends(self) -> None:
        assert self.config.patches is not None, "an image model has patches"
        self.patches, before = self.config.patches, int(self.layout.pool == "class")
        self.embedding = PatchEmbedding(self.sizes, self.layout, self.patches)
        if self.layout.positions == "rotary":
            grid, share = self.patches.grid, self.layout.rope_share
            turns = Rotary2D(self.sizes.d_head, self.layout.rope_base, grid, before, share)
            for block in self.blocks:
                block.attention.rotary = turns  # type: ignore[union-attr]
        self.head = ClassHead(self.sizes.d_model, len(self.config.classes))

    def n_positions(self, ids: Ids | Hidden | Pixels) -> int:
        """Patches, and the class token where there is one."""
        return self.sizes.n_ctx

    def pooled(self, h: Float[Tensor, "batch n_ctx d_model"]) -> Float[Tensor, "batch d_model"]:
        """What the head reads."""
        return h[:, 0] if self.layout.pool == "class" else h.mean(dim=1)

    def answer(
        self, h: Float[Tensor, "batch n_ctx d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch n_classes"]:
        """Logits of what is pooled; an image has no padding."""
        return self.head(self.pooled(h))


LanguageModel = CausalLM | MaskedLM
TextClassifier = Classifier | CausalClassifier
OneStack = LanguageModel | TextClassifier | ImageClassifier
Model = LanguageModel | TextClassifier | ImageClassifier | EncoderDecoderLM
"""What a task trains."""

MODELS: Mapping[str, type[Model]] = {
    kind.__name__: kind
    for kind in (CausalLM, MaskedLM, Classifier, CausalClassifier, ImageClassifier, EncoderDecoderLM)
}
"""Kind of a `ModelConfig` -> its class."""


def stacks_of(model: nn.Module) -> list[BlockStack]:
    """The stacks of a model: itself, or its encoder and its decoder; none where it is of other parts."""
    return [module for module in model.modules() if isinstance(module, BlockStack)]


def model_class(config: ModelConfig) -> type[Model]:
    """The class of a configuration, that of one's own where it names one.

    Raises ConfigError where that is not there, or is no subclass of the class that is built otherwise.
    """
    base = MODELS[config.kind]
    if not config.code:
        return base
    found = load(config.code, "model.kind")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"model.kind is {config.code!r}, which is not a subclass of qkv.models.{config.kind}")
    if [*inspect.signature(found).parameters][:2] != ["config", "seed"]:
        raise ConfigError(
            f"model.kind is {config.code!r}, whose constructor is {found.__name__}{inspect.signature(found)}; expected"
            " (config, *, seed), as that of the class that it extends"
        )
    return found


def build(config: ModelConfig, seed: int, *, materialise: bool = True) -> Model:
    """The model of a configuration, every parameter started by (seed, address), float32.

    With `materialise` False the parameters are on the meta device: shapes without memory, for plans and for loading.

    Raises ConfigError for a configuration that cannot be built.
    """
    with nullcontext() if materialise else torch.device("meta"):
        model = model_class(config)(config, seed=seed if materialise else None)
    for module in model.modules() if config.code else ():
        if isinstance(module, Block | MultiHeadAttention):  # fast paths would not call parts of one's own
            module.by_formula = True
    return model
