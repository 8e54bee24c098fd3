"""What the model writes at each stage of its training, from the snapshots that are there."""

from qkv.folder import RunFolder
from qkv.recipe.assemble import Parts, load_weights, snapshot_steps
from qkv.tasks import PredictOptions
from qkv.telemetry import Store
from qkv.training.record import Outcome

__all__ = ["write_samples"]

STEPS_EACH = 200
"""One sample of an earlier step for so many updates: a law of steps, not the clock: a resumed run has them too."""
_TOKENS = 120
_MASKED_PROMPT_WORDS = 24


def write_samples(parts: Parts, folder: RunFolder, store: Store, outcome: Outcome) -> None:
    """One sample of the last step, and up to five of earlier snapshots where there were many.

    A causal model continues the beginning of the validation text; a masked one fills every fourth word of it. The
    weights of the last step are put back at the end.
    """
    prompt = _prompt(parts)
    if not prompt:
        return
    steps = [step for step in snapshot_steps(folder.path) if 0 < step < outcome.steps]
    n = min(len(steps), 5, outcome.steps // STEPS_EACH)
    chosen = steps[-1 :: -max(1, len(steps) // max(1, n))][:n][::-1] if n else []
    last = {address: values.clone() for address, values in parts.catalogue.state().items()}
    options = PredictOptions(tokens=_TOKENS, seed=parts.config.seed)
    for step in [*chosen, outcome.steps]:
        weights = last if step == outcome.steps else load_weights(snapshot_steps(folder.path)[step])
        parts.catalogue.load_state(weights)
        store.add_sample(step, prompt, parts.task.predict(parts.model, parts.corpus.tokenizer, [prompt], options)[0])
    store.flush()
    parts.catalogue.load_state(last)


def _prompt(parts: Parts) -> str:
    """The beginning of the validation text, cut at a word; for masked tasks with every fourth word hidden."""
    ids = parts.corpus.val.ids[:160]
    words = parts.corpus.tokenizer.decode(ids).split()[:_MASKED_PROMPT_WORDS]
    if parts.task.needs_specials:
        return " ".join("[MASK]" if i % 4 == 3 else word for i, word in enumerate(words))
    return " ".join(words[:6])
