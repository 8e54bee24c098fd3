"""One step of gradient descent on one text: what would move, and what it would buy.

With g the gradient of the text's mean loss (nats per target) and L the loss:

    gradient descent   dW = -eta g              to first order L changes by <g, dW> = -eta |g|^2
    the run's own      dW = W_after - W         by <g, dW>; its cosine with -g says how far it is another direction

An Adam step divides by the root of a second moment, a Muon step by all singular values, and both go on with momentum
from other texts: to first order such a step may even raise the loss of this one. What the first order leaves out is
curvature: the loss is computed again after each step, in float64, so both numbers stand side by side. `alone` moves one
matrix and holds the others; the first orders of parts sum to that of all, what they buy in fact need not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspection.one_text import OneText, float64_copy
from qkv.instruments.gradients import GradientPath, gradient_path
from qkv.models.matrices import Catalogue, Part
from qkv.models.zoo import LanguageModel
from qkv.tasks.task import Task
from qkv.words import many

BUYS = 1e-3
"""Nats that the default rate buys to first order: small enough for the first order to hold."""

OwnStep = Callable[[Catalogue], None]
"""Makes one update of a catalogue's parameters from their `.grad`, as a run's optimizer would."""


@dataclass(frozen=True)
class Move:
    """One way to move a part, or everything chosen."""

    size: float
    """|dW|"""
    first_order: float
    """<g, dW>, nats: below 0 lowers the loss."""
    actual: float
    """L(W + dW) - L(W), nats, with everything else held."""
    cosine: float | None
    """Between dW and -g, -1 to 1; None where one of them is 0."""


@dataclass(frozen=True)
class PartStep:
    """One matrix, head or row."""

    address: str
    norm: float
    """|W|"""
    grad_norm: float
    """|g|, nats per unit of a weight."""
    descent: Move
    """Gradient descent at the rate, this part alone."""
    own: Move | None
    """The run's optimizer, this part alone; None where there is none, or the part is frozen."""


@dataclass(frozen=True, eq=False)
class OneStep:
    """What one step on one text would do."""

    loss: float
    """Mean nats per target before."""
    n_targets: int
    rate: float
    """eta of the gradient descent."""
    descent: Move
    """All parts at once."""
    own: Move | None
    """All parts at once by the run's optimizer."""
    parts: list[PartStep]
    """In falling order of |g|."""
    path: GradientPath
    """How the gradient reaches the embedding rows."""

    def __repr__(self) -> str:
        own = "" if self.own is None else f", own {self.own.actual:+.2e} nats"
        return (
            f"OneStep(loss {self.loss:.3f}; descent at rate {self.rate:.3g} {self.descent.actual:+.2e} nats{own};"
            f" {many(len(self.parts), 'part')})"
        )


def one_step(
    model: LanguageModel,
    task: Task,
    text: OneText,
    on: str = "**",
    *,
    vocabulary: Mapping[str, int] | None = None,
    rate: float | None = None,
    own: OwnStep | None = None,
) -> OneStep:
    """Take one step on `text` with the matrices, heads or rows that `on` selects, on a float64 copy of `model`.

    `vocabulary` (token -> row) lets `on` name rows by token. `rate` None is the one at which gradient descent on all of
    them buys `BUYS` nats to first order (1 where g is 0).

    Raises AddressError for a selector that matches nothing, UserError for a rate that is no step down.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise UserError(f"rate is {rate}; expected a number above 0")
    copied = float64_copy(model)
    path = gradient_path(copied, task, text.batch)
    catalogue = Catalogue(copied, vocabulary)
    chosen = catalogue.select(on)
    trial = _Trial(copied, task, text, catalogue)
    if rate is None:
        square = sum(float(trial.gradient(part).square().sum()) for part in chosen)
        rate = BUYS / square if square else 1.0
    descent = {entry.address: -rate * trial.gradients[entry.address] for entry in catalogue}
    moved = trial.own_step(own) if own is not None else {}
    found = [
        PartStep(
            address=part.address,
            norm=float(part.of(part.entry.parameter.detach()).norm()),
            grad_norm=float(trial.gradient(part).norm()),
            descent=trial.move([part], descent),
            own=trial.move([part], moved) if part.entry.storage in moved else None,
        )
        for part in chosen
    ]
    return OneStep(
        loss=trial.loss,
        n_targets=text.n_targets,
        rate=rate,
        descent=trial.move(chosen, descent),
        own=trial.move([p for p in chosen if p.entry.storage in moved], moved) if moved else None,
        parts=sorted(found, key=lambda part: -part.grad_norm),
        path=path,
    )


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float | None:
    """Of two lists of tensors, each taken as one vector; None where one is 0."""
    inner = sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
    sizes = [sum(float(x.square().sum()) for x in side) ** 0.5 for side in (a, b)]
    return inner / (sizes[0] * sizes[1]) if all(sizes) else None


class _Trial:
    """A model on one text: its gradient, and its loss after trying a move."""

    def __init__(self, model: LanguageModel, task: Task, text: OneText, catalogue: Catalogue) -> None:
        self._model, self._task, self._text, self._catalogue = model, task, text, catalogue
        nats, n = task.loss(model, text.batch)
        addresses = catalogue.addresses
        parameters = [catalogue.entry(address).parameter for address in addresses]
        found = torch.autograd.grad(nats / n, parameters, allow_unused=True, materialize_grads=True)
        self.loss = float(nats.detach()) / n
        self.gradients = dict(zip(addresses, found, strict=True))

    def gradient(self, part: Part) -> Tensor:
        """Of a part, in the storage's order."""
        return part.of(self.gradients[part.entry.storage])

    @torch.no_grad()
    def own_step(self, own: OwnStep) -> dict[str, Tensor]:
        """What an optimizer would add to each parameter; frozen ones are left out."""
        entries = list(self._catalogue)
        before = {e.address: e.parameter.detach().clone() for e in entries}
        for e in entries:
            e.parameter.grad = self.gradients[e.address].clone()
        own(self._catalogue)
        trained = [e for e in entries if e.parameter.grad is not None]
        moved = {e.address: e.parameter.detach() - before[e.address] for e in trained}
        for e in entries:
            e.parameter.copy_(before[e.address])
            e.parameter.grad = None
        return moved

    @torch.no_grad()
    def move(self, parts: Sequence[Part], by: dict[str, Tensor]) -> Move:
        """Try `by` (address -> what is added) on these parts alone."""
        steps = [part.of(by[part.entry.storage]) for part in parts]
        slopes = [self.gradient(part) for part in parts]
        places = [part.of(part.entry.parameter.detach()) for part in parts]
        before = [place.clone() for place in places]
        for place, step in zip(places, steps, strict=True):
            place.add_(step)
        nats, n = self._task.loss(self._model, self._text.batch)
        for place, values in zip(places, before, strict=True):
            place.copy_(values)
        return Move(
            size=sum(float(step.square().sum()) for step in steps) ** 0.5,
            first_order=sum(float((g * step).sum()) for g, step in zip(slopes, steps, strict=True)),
            actual=float(nats) / n - self.loss,
            cosine=cosine(steps, [-g for g in slopes]),
        )
