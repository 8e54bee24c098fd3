"""The next step that a run's own optimizer would make, as a function of gradients: for asking, never for training."""

from collections.abc import Callable, Sequence

from qkv.changes import OPS, Change, parse_changes, plan_changes
from qkv.folder.run_folder import RunFolder
from qkv.models.matrices import Catalogue, Part
from qkv.recipe.config import RunConfig
from qkv.training.checkpoint import latest_valid
from qkv.training.optimizers import make_optimizer


def own_step(folder: RunFolder, config: RunConfig) -> Callable[[Catalogue], None] | None:
    """A function that updates a catalogue's parameters from their `.grad`, once, as this run would go on.

    It clips, takes gradients from what is frozen (their `.grad` is then None), and steps at the peak rate with the
    moments of the newest whole checkpoint. None where no checkpoint holds the optimizer's state, or where this run
    would let no gradient through some activations: the gradients that are given know nothing of it.
    """
    found, _ = latest_valid(folder)
    if found is None:
        return None
    state, step = found.optimizer_state(), found.state.step
    if any(OPS[change.op].on_activations and change.acts_in(step) for change in _all(config.changes)):
        return None

    def update(catalogue: Catalogue) -> None:
        held = _held(catalogue, config.changes, step)
        for part in held:
            if part.piece is None:
                part.entry.parameter.grad = None
            elif part.entry.parameter.grad is not None:
                part.of(part.entry.parameter.grad).zero_()
        pieces = [part for part in held if part.piece is not None]
        kept = [part.of(part.entry.parameter.detach()).clone() for part in pieces]
        factored = [change for change in _all(config.changes) if change.op == "lora"]
        optimizer = make_optimizer(
            catalogue,
            config.training.optimizer,
            precision=config.machine.precision,
            low_rank=plan_changes(factored, catalogue, config.seed).low_rank(),
        )
        optimizer.load_state(state)
        with config.machine.natively():
            optimizer.clip_and_measure(config.training.optimizer.clip)
            optimizer.step(1.0)
        for part, values in zip(pieces, kept, strict=True):
            part.of(part.entry.parameter.detach()).copy_(values)

    return update


def _all(changes: Sequence[str]) -> list[Change]:
    return [change for text in changes for change in parse_changes(text)]


def _held(catalogue: Catalogue, changes: Sequence[str], step: int) -> list[Part]:
    """The matrices, heads and rows that a run's changes hold at a step."""
    held: list[Part] = []
    for change in _all(changes):
        if change.holds and change.acts_in(step):
            named = catalogue.select(change.selector)
            held += catalogue.others(named) if change.op == "only" else named
    return held
