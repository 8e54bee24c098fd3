"""What a run of `qkv train` says where short answers of studies were measured on other models: one JSON object.

Only on next tokens of a text. The quantities are those of the studies' own probes (nearest rows by layer, paths of the
gradient, what moved q, the commonest word, rows of W_E), at the last step; and the step at which matrices are half-way,
over all layers, from the distances that the run recorded.

    python tests/campaigns/answers_elsewhere.py runs/demo-1 > docs/answers/demo.json
"""

import json
import math
import sys
from typing import Any

import qkv
from qkv.api import cache_folder
from qkv.data.baseline.text import ngram_losses_by_order
from qkv.recipe import Parts, assemble
from qkv.run import Run
from qkv.studies.engine.design import Arm, Scale, Text, Trial
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.identity import identity
from qkv.studies.probes.onsets import crossing
from qkv.studies.probes.registry import PROBES

KINDS = ("W_Q", "W_K", "W_V", "W_O")


def finished_of(run: Run, parts: Parts, loss: float) -> Finished:
    """What a probe of a study is handed: the parts with their weights as they are."""
    s, t = run.config.model.sizes, run.config.training
    corpus: Any = parts.corpus
    scale = Scale(
        d_model=s.d_model, n_layers=s.n_layers, n_heads=s.n_heads, n_ctx=s.n_ctx, batch_size=t.batch_size,
        steps=run.summary["steps"], val_tokens=len(corpus.val),
    )  # fmt: skip
    trial = Trial(
        arm=Arm(name="run", what=""), text=Text(), scale=scale, source="", source_sha256=parts.corpus.sha256,
        lr=t.optimizer.lr, seed=run.config.seed, software="",
    )  # fmt: skip
    return Finished(trial=trial, parts=parts, loss=loss)


def measures(run: Run, parts: Parts, loss: float) -> dict[str, float]:
    """What the studies' probes measure of it."""
    finished = finished_of(run, parts, loss)
    found = {name: value for name, value in identity(finished).items() if name.startswith("nearest")}
    for probe in ("gradient path", "what moved", "commonest word", "rows"):
        found |= PROBES[probe](finished)
    return {name: round(value, 6) for name, value in found.items()}


def half_way(run: Run) -> dict[str, float | None]:
    """The step at which each kind of matrix, all layers together, is half as far from its start as at the end.

    From the recorded drift, whose unit (the size of a usual start) is the same in every layer.
    """
    found = {}
    for kind in KINDS:
        drift = run.history(f"L*.{kind}", "drift").arrays()
        distances = [(int(step), math.hypot(*column)) for step, column in zip(drift.step, drift.value.T, strict=True)]
        found[kind] = crossing([(step, -d) for step, d in distances], -distances[-1][1] / 2)
    return found


def main(path: str) -> dict[str, Any]:
    """Everything about the run."""
    run = qkv.load(path, weights="last")
    corpus = run.task.load(run.config.data, cache=cache_folder())
    parts = assemble(run.config, corpus)
    orders = ngram_losses_by_order(corpus)
    parts.catalogue.load_state(run.catalogue().state())
    c, s, o = run.config, run.config.model.sizes, run.config.training.optimizer
    return {
        "preset": c.preset, "n_layers": s.n_layers, "d_model": s.d_model, "n_heads": s.n_heads, "n_ctx": s.n_ctx,
        "batch_size": c.training.batch_size, "steps": run.summary["steps"], "optimizer": o.kind,
        "weight_decay": o.weight_decay, "start_of_matrices": c.model.layout.start, "seed": c.seed,
        "text": corpus.name, "sha256": corpus.sha256, "tokenizer": c.data.tokenizer, "d_vocab": s.d_vocab,
        "val_loss": run.summary["last_val_loss"], "ngram": min(orders), "half_way": half_way(run),
        "measures": measures(run, parts, run.summary["last_val_loss"]),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
