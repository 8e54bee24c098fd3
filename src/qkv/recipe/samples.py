"""What the model writes at each stage of its training, from the snapshots that are there."""

from qkv.folder.run_folder import RunFolder
from qkv.recipe.build import Parts
from qkv.recipe.load_model import load_weights
from qkv.tasks import PredictOptions
from qkv.telemetry import Store
from qkv.training.record import Outcome

STEPS_EACH = 200
"""One sample of an earlier step for so many updates: a law of steps, not the clock: a resumed run has them too."""
_TOKENS = 120


def write_samples(parts: Parts, folder: RunFolder, store: Store, outcome: Outcome) -> None:
    """One sample of the last step, and up to five of earlier snapshots where there were many.

    Inputs are those of `Task.sample_inputs`; what the task keeps for a reader's eyes (`Task.keepsakes`) is written too.
    A judged task ends with its best weights, as `qkv predict` answers; completed by a companion, which was fitted to
    them, it has no earlier sample. The weights of the last step are put back at the end.
    """
    for key, value in parts.task.keepsakes(parts.corpus).items():
        store.set_fact(key, value)
    inputs = parts.task.sample_inputs(parts.corpus)
    if not inputs:
        return
    kept, companion = folder.weights(), parts.task.companion
    is_best = parts.task.judged and folder.best.is_file()
    end = outcome.best_step if is_best else outcome.steps
    completed = companion and (folder.path / companion).is_file()
    steps = [] if completed else [step for step in kept if 0 < step < end]
    n = min(len(steps), 5, outcome.steps // STEPS_EACH)
    chosen = steps[-1 :: -max(1, len(steps) // max(1, n))][:n][::-1] if n else []
    last = {address: values.clone() for address, values in parts.catalogue.state().items()}
    options = PredictOptions(tokens=_TOKENS, seed=parts.config.seed, cut=True)
    ends = load_weights(folder.best) if is_best else last
    for step in [*chosen, end]:
        parts.catalogue.load_state(ends if step == end else load_weights(kept[step]))
        outputs = parts.task.predict(parts.model, parts.corpus.tokenizer, inputs, options)
        for text, output in zip(inputs, outputs, strict=True):
            store.add_sample(step, text, output)
    store.flush()
    parts.catalogue.load_state(last)
