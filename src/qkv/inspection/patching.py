"""Activation patching: which activations carry what tells two inputs apart.

Of two inputs of as many positions, the model answers one with a and the other with b. One activation of the first is
replaced by what the second has in the same place, all that follows is recomputed, and the answer may go over:

    share = (D(first) - D(patched)) / (D(first) - D(second)),    D = log p(a) - log p(b),

0 where it stays, 1 where it becomes the second's; below 0 or above 1 where others had held against it. It is what the
second's activation suffices for, in the surroundings of the first: two parts that do the same work can each have a high
share, two that need each other none, so shares do not sum to 1, and swapping the inputs asks another question.

Attribution patching estimates every share at once: to first order the patched D is D(first) plus the gradient of D, at
the first input, times the difference of the activation. It is exact where D is linear in the activation, close where
the difference is small (one head's z), and poor where it is large and what follows saturates: the whole stream, a
pattern near 0 or 1, a norm that a replaced embedding rescales (Nanda 2023, neelnanda.io/attribution-patching; Syed et
al. 2023, arXiv 2310.10348).

Sources: Vig et al. 2020 (arXiv 2004.12265); Meng et al. 2022 (arXiv 2202.05262); with the log-odds of two answers Wang
et al. 2022 (arXiv 2211.00593). Known values: a position that has the same token and nothing different before it (or, in
an encoder, anything at the embedding) carries 0; the whole stream at any layer 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.errors import UserError, unknown
from qkv.inspection.one_text import float64_copy
from qkv.models.activations import Hook, parse_activation, replacer
from qkv.models.layout import ModelConfig
from qkv.models.zoo import LanguageModel, OneStack
from qkv.shapes import Float64, Int64, Num
from qkv.tasks import Task
from qkv.tasks.image import one_image
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.words import many

STREAM, MIXER, MLP = "stream", "mixer", "mlp"
_ROWS = 32
"""Patched copies of the input that go through the model together."""
LITTLE = 0.5
"""Nats of log-odds between the two inputs, below which there is nothing to carry, and no share is shown: shares divide
by that difference, so what each part shifts either way becomes large in them (two texts 0.09 nats apart gave shares of
-4.49 and 2.60)."""
_LEAST = 1e-6
"""Nats of log-odds between the two inputs, below which float64 has little left to trace."""


@dataclass(frozen=True, eq=False)
class Asked:
    """One of the two inputs."""

    inputs: Int64[Tensor, "1 pos"] | Num[Tensor, "1 channels height width"]
    """What the model takes, one row: ids, or pixels."""
    tokens: list[str]
    """The name of each position."""
    position: int | None = None
    """Where it is answered; None where all of the input gets one answer."""


@dataclass(frozen=True, eq=False)
class Patching:
    """What each activation of the second input does to the answer to the first."""

    tokens: list[str]
    others: list[str]
    """Of the second input, place for place."""
    position: int | None
    """Where both are answered; None where all of an input gets one answer."""
    answers: tuple[int, int]
    """a and b: tokens or classes."""
    odds: tuple[float, float]
    """log p(a) - log p(b), nats, for the first input and for the second."""
    shares: dict[str, Float64[Tensor, "n_layers pos"]] = field(repr=False)
    """The activation at that position alone: `stream` is what enters a layer, `mixer` what attention (or what stands in
    its place) adds, `mlp` what the MLP adds, where there is one."""
    heads: Float64[Tensor, "n_layers n_heads"] | None = field(repr=False)
    """z of one head at all positions; None without attention."""
    one: dict[str, Float64[Tensor, "places"]] = field(repr=False)
    """The activations that were asked for by address: each position alone, then all at once."""
    is_estimate: bool = False
    """Whether effects are first-order estimates."""

    @property
    def difference(self) -> float:
        """Log-odds of the first input minus those of the second, nats: a share times this is what it carries."""
        return self.odds[0] - self.odds[1]

    @property
    def caution(self) -> str:
        """A sentence where the inputs are answered so much alike (within `LITTLE`) that shares mean nothing, and nats
        are to be read (a share times `difference`); else empty.
        """
        if abs(self.difference) >= LITTLE:
            return ""
        return (
            f"There is nothing to carry: the two differ by only {abs(self.difference):.2f} nats, so effects are shown "
            "in nats alone. Type two inputs that the model answers differently (its first guesses should differ), or "
            "name two answers with --answers A B."
        )


def asked(task: Task, tokenizer: Tokenizer | None, config: ModelConfig, text: str) -> Asked:
    """A text, or an image by its path, as a model of this task answers it.

    A causal model is asked for what follows the last token, a masked one for its [MASK], a classifier for the class.

    Raises UserError for a text that is empty or too long, or of which nothing or several things are asked.
    """
    if task.stack == "encoder-decoder":
        raise UserError("a translation has two stacks and many answers; patching takes a model of one stack")
    if not task.picks:
        raise UserError(f"the task {task.name} answers with no single class; patching takes a run that does")
    if task.reads == "images":
        return Asked(*one_image(Path(text), config))
    assert tokenizer is not None, "what reads texts has one"
    ids, n_ctx = tokenizer.encode_whole(text, special=task.marks), config.sizes.n_ctx
    if not 0 < len(ids) <= n_ctx:
        raise UserError(f"the text has {many(len(ids), 'token')}; this model reads 1 to {n_ctx}")
    position = len(ids) - 1 if config.kind == "CausalLM" else None
    if config.kind == "MaskedLM":
        hidden = np.flatnonzero(ids == tokenizer.special.get("[MASK]", -1))
        if len(hidden) != 1:
            raise UserError(f"{text!r} has {many(len(hidden), '[MASK]', '[MASK]')}; put one where an answer is wanted")
        position = int(hidden[0])
    inputs = torch.as_tensor(np.asarray(ids, dtype=np.int64))[None]
    return Asked(inputs, [tokenizer.token(int(i)) for i in ids], position)


def named(
    task: Task, tokenizer: Tokenizer | None, config: ModelConfig, answers: Sequence[str] | None
) -> tuple[int, int] | None:
    """The numbers of two answers, tokens by their addresses' names or classes; None where none are given.

    Raises UserError for another number of them, or for what is no token or class.
    """
    if answers is None:
        return None
    if isinstance(answers, str) or len(answers) != 2 or answers[0] == answers[1]:
        raise UserError(f"two different answers are compared; given: {answers!r}")
    places = {name: i for i, name in enumerate(config.classes)}
    if not places:
        assert tokenizer is not None, "what names no classes names tokens"
        places = tokenizer.readable
    for answer in answers:
        if answer not in places:
            raise UserError(unknown("class" if config.classes else "token", answer, places))
    return places[answers[0]], places[answers[1]]


def patch(
    model: OneStack,
    first: Asked,
    second: Asked,
    *,
    answers: tuple[int, int] | None = None,
    addresses: Sequence[str] = (),
    estimate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Patching:
    """Every layer and position of one stack patched by itself, in float64; or the activations at `addresses` alone.

    With `estimate`, every share is its first-order estimate (attribution patching): all of them take two passes
    forward and one backward, not one pass each.

    Without `answers`, a is the likeliest answer to the first input and b that to the second; where these are the same,
    b is the one whose probability rises most from the first to the second. `progress(done, of)` is told how many passes
    through the model are made.

    Raises UserError for inputs of unlike length, that are the same, or that the model answers alike; AddressError for
    what is no activation.
    """
    passes = Passes(float64_copy(model).requires_grad_(False), first, second, answers)
    plan, taken = passes.plan(addresses), passes.estimates if estimate else passes.shares
    found: dict[str, Tensor] = {}
    done, of = 0, sum(-(-len(places) // _ROWS) for _, places in plan.values())
    for name, (activation, places) in plan.items():
        parts = []
        for start in range(0, len(places), _ROWS):
            parts.append(taken(activation, places[start : start + _ROWS]))
            done += 1
            if progress:
                progress(done, of)
        found[name] = torch.cat(parts)
    patched = passes.found({} if addresses else found, {address: found[address] for address in addresses})
    return replace(patched, is_estimate=estimate)


Place = tuple[int | None, int | None]
"""A head and a position, None for all."""


class Passes:
    """Forward passes of the first input with activations of the second in it."""

    def __init__(self, model: OneStack, first: Asked, second: Asked, answers: tuple[int, int] | None) -> None:
        """Read both with a model in float64 whose parameters require no gradient, and choose the two answers where none
        are given; raises UserError as `patch` does."""
        if len(first.tokens) != len(second.tokens):
            cuts = " and ".join(f"{'|'.join(each.tokens)!r:.60}" for each in (first, second))
            raise UserError(
                f"the two have {len(first.tokens)} and {len(second.tokens)} tokens ({cuts}); expected as many, so that"
                " each position has a counterpart"
            )
        if first.position != second.position:
            raise UserError("the two are answered in different places; put [MASK] at the same token of both")
        if first.inputs.equal(second.inputs):
            raise UserError("the two inputs are the same, so there is nothing to trace; change a word in one of them")
        self._model, self._first, self._position = model, first, first.position
        logits, self._own = model.forward_recorded(first.inputs)
        others, self._other = model.forward_recorded(second.inputs)
        self._logs = [self._answered(each)[0].log_softmax(-1) for each in (logits, others)]
        self._n, self._names, self._others = len(first.tokens), model.activation_names(), second.tokens
        self._a, self._b = a, b = answers or self._likeliest()
        first_odds, second_odds = (float(logs[a] - logs[b]) for logs in self._logs)
        self._odds, self.gap = (first_odds, second_odds), first_odds - second_odds
        if a == b or abs(self.gap) < _LEAST:
            raise UserError(
                f"the model tells the two answers apart by {abs(self.gap):.1g} nats between these inputs; expected"
                f" {_LEAST:g} or more: take inputs that it answers differently, or name other answers"
            )

    def _answered(self, logits: Tensor) -> Tensor:
        """[batch, answer] of logits [batch, pos, answer] or [batch, answer]."""
        return logits if self._position is None else logits[:, self._position]

    def _likeliest(self) -> tuple[int, int]:
        """The two answers, where none are named."""
        one, two = (logs.exp() for logs in self._logs)
        a, b = int(one.argmax()), int(two.argmax())
        if a == b:
            rise = two - one
            rise[a] = -torch.inf
            b = int(rise.argmax())
        return a, b

    def plan(self, addresses: Sequence[str]) -> dict[str, tuple[str, list[Place]]]:
        """What is asked -> the activation and the places at which it is patched, one pass each."""
        along: list[int | None] = [*range(self._n)]
        if addresses:
            found = {address: parse_activation(address, self._names, self._model.sizes) for address in addresses}
            return {address: (name, [(head, at) for at in [*along, None]]) for address, (name, head) in found.items()}
        alone: list[Place] = [(None, at) for at in along]
        heads: list[Place] = [(head, None) for head in range(self._model.sizes.n_heads)]
        places = dict.fromkeys(("resid_pre", "attn_out", "mix_out", "mlp_out"), alone) | {"z": heads}
        parts = {name: name.rpartition(".")[2] for name in self._names}
        return {name: (name, places[part]) for name, part in parts.items() if part in places}

    def shares(self, name: str, places: Sequence[Place]) -> Tensor:
        """The share of each place of one activation, float64 [place]."""
        mixed = self._own[name].expand(len(places), *self._own[name].shape[1:]).clone()
        other = self._other[name][0]
        for row, (head, position) in enumerate(places):
            target, source = (mixed[row], other) if head is None else (mixed[row, head], other[head])
            where = slice(None) if position is None else slice(position, position + 1)
            target[..., where, :] = source[..., where, :]
        inputs = self._first.inputs.expand(len(places), *self._first.inputs.shape[1:])
        patched = self._odds_of(inputs, replacer({name: mixed}, self._names, self._model.sizes))
        return (self._odds[0] - patched) / self.gap

    def estimates(self, name: str, places: Sequence[Place]) -> Tensor:
        """The same to first order: minus the gradient of D at the first input, times the change of the activation."""
        change = (self._gradients[name] * (self._other[name] - self._own[name]))[0].sum(-1) / -self.gap
        at_heads = [change if head is None else change[head] for head, _ in places]
        at = [x.sum() if place is None else x[..., place].sum() for x, (_, place) in zip(at_heads, places, strict=True)]
        return torch.stack(at)

    @cached_property
    def _gradients(self) -> dict[str, Tensor]:
        """d D / d activation at the first input, each in its shape, from one pass forward and one backward."""
        kept: dict[str, Tensor] = {}

        def hook(name: str, x: Tensor) -> Tensor:
            kept[name] = x if kept else x.detach().requires_grad_()  # no parameter requires a gradient
            return kept[name]

        with torch.enable_grad():
            odds = self._odds_of(self._first.inputs, hook)
            found = torch.autograd.grad(odds.sum(), list(kept.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(kept, found, strict=True))

    def _odds_of(self, inputs: Tensor, hook: Hook) -> Tensor:
        """D of each row of inputs [batch], its activations as `hook` leaves them."""
        h = self._model.hidden(inputs, hook=hook)
        at = self._position  # logits of all positions would take as long again where there are many tokens
        if at is None:
            logits = self._model.answer(h, None)
        else:
            assert isinstance(self._model, LanguageModel), "others give all of an input one answer"
            logits = self._model.unembed(h[:, at])
        return logits[:, self._a] - logits[:, self._b]

    def found(self, shares: dict[str, Tensor], one: dict[str, Tensor]) -> Patching:
        """What was found: shares of whole activations by name, and of those that were asked for by address."""
        heads = [share for name, share in shares.items() if name.endswith(".z")]
        return Patching(
            tokens=self._first.tokens,
            others=self._others,
            position=self._position,
            answers=(self._a, self._b),
            odds=self._odds,
            shares=self._by_layer(shares),
            heads=torch.stack(heads) if heads else None,
            one=one,
        )

    def _by_layer(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """[layer, pos] of each kind of activation that there is."""
        kinds = {STREAM: ("resid_pre",), MIXER: ("attn_out", "mix_out"), MLP: ("mlp_out",)}
        rows = {
            kind: [shares for name, shares in found.items() if name.split(".")[-1] in parts]
            for kind, parts in kinds.items()
        }
        return {kind: torch.stack(each) for kind, each in rows.items() if each}
