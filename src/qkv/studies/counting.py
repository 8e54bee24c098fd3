"""What counting reaches on the tokens that a study's models are scored on, so that a page says whether they know more.

Next tokens of a text have the best Kneser-Ney n-gram, counted on the training part that the arms learn from and scored
on the validation tokens that they are scored on. Tasks made by a rule have what the rule allows. Hidden tokens, classes
and images have nothing here, and the file says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qkv.data.baseline.text import MOST_COUNTED, ngram_losses_by_order
from qkv.data.corpus import Corpus
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine.design import Arm, Design, Text
from qkv.studies.synthetic.streams import markov_entropy, markov_matrix

_UNTRAINED = ("none", "contrastive", "inner study")
"""Trainers after which a loss is not that of a model that was trained on the text."""
_POSSIBLE = {
    "recall": "0 is possible: every answer can be looked up",
    "repeat": "0 is possible: every letter asked for has come before",
    "modular": "0 is possible: the rule gives every answer",
}
_NONE = {
    "masked": "none computed: an n-gram reads one side of a hidden token only",
    "classify": "none computed for classes",
    "image": "none computed for images",
}


def baselines_of(design: Design, corpora: Callable[[Text], Sequence[Corpus]]) -> list[JsonObject]:
    """For every (task, text) of a design's arms: `task`, `text`, `nats` per token or None, and `what` that is.

    Next tokens of a text also have `order`, `tokens`, how many are scored, and `uniform`, the nats of uniform guessing.
    corpora: a text of the design -> the slices of it that replicates learn from, each with the tokens that it is scored
    on. Like a model, an n-gram learns from one slice alone; its loss is the mean over slices. Takes seconds a text.
    """
    texts = dict(design.texts)
    asked = dict.fromkeys((arm.task, arm.text) for arm in design.arms)
    return [{"task": task, "text": text, **_of(task, texts[text], corpora)} for task, text in asked]


def _of(task: str, text: Text, corpora: Callable[[Text], Sequence[Corpus]]) -> JsonObject:
    if task != "causal":
        return {"nats": 0.0 if task in _POSSIBLE else None, "what": _POSSIBLE.get(task) or _NONE[task]}
    slices = corpora(text)
    orders = np.mean([ngram_losses_by_order(made) for made in slices], axis=0)
    order, counted = int(np.argmin(orders)) + 1, min(len(slices[0].train), MOST_COUNTED)
    what = f"Kneser-Ney n-gram of order {order}, counted on {counted:,} training tokens"
    what += f" in each of {len(slices)} slices" if len(slices) > 1 else ""
    if text.stream == "markov":
        s = dict(text.settings)
        least = markov_entropy(markov_matrix(s["states"], s["sharpness"], s["noise"]))
        what += f"; the source itself has {least:.3f} in the long run"
    return {
        "nats": float(orders[order - 1]),
        "order": order,
        "tokens": sum(len(made.val) - 1 for made in slices),
        "uniform": math.log(slices[0].tokenizer.d_vocab),
        "what": what,
    }


def compared(design: Design, baselines: Sequence[JsonMapping], losses: Mapping[str, float | None]) -> JsonObject:
    """`ngram` and `trained`: nats per token of counting and of the first arm that is trained on real next tokens.

    An arm on the text of the main effect comes before others. `of` arms are trained like that, of which `better` beat
    the n-gram of their own text. losses: arm -> mean loss at the end.
    """
    counted = {row["text"]: row for row in baselines if row["task"] == "causal"}
    asked = [design.arm(name).text for name in design.primary.arms]
    arms = [
        arm for arm in design.arms if arm.task == "causal" and _is_trained(arm) and losses.get(arm.name) is not None
    ]
    first = next((arm for arm in arms if arm.text in asked), arms[0] if arms else None)
    if first is None:
        nats = next((counted[text]["nats"] for text in asked if text in counted), None)
        return {"ngram": nats, "trained": None}
    row = counted[first.text]
    better = sum((losses[arm.name] or 0.0) < counted[arm.text]["nats"] for arm in arms)
    more = {"arm": first.name, "order": row["order"], "tokens": row["tokens"], "better": better, "of": len(arms)}
    return {"ngram": row["nats"], "trained": losses[first.name], **more}


def _is_trained(arm: Arm) -> bool:
    return arm.trainer not in _UNTRAINED and arm.labels == "real"


def gate(found: JsonMapping) -> str:
    """What an answer begins with where its trained model does not beat the best n-gram; else empty.

    found: `baseline` of a verdict's file.
    """
    if found["ngram"] is None or found["trained"] is None or found["trained"] < found["ngram"]:
        return ""
    return (
        f"These models predict worse than counting ({_against(found)}), so this answer is about models that have not"
        " yet learned the text."
    )


def counting_words(verdict: JsonMapping) -> str:
    """How the trained models of a study compare with counting, in a sentence."""
    found = verdict["baseline"]
    if found["ngram"] is None:
        return "No counting baseline applies to what these models predict."
    if found["trained"] is None:
        return f"This study trains no model to compare with counting ({found['ngram']:.2f} nats per token)."
    better, of = found["better"], found["of"]
    who = "The trained model" if of == 1 else f"{better or 'None'} of {of} trained models"
    beats = "does not beat" if of == 1 and not better else "beats" if better < 2 else "beat"
    return (
        f"{who} {beats} the best n-gram. On the same {found['tokens']:,} tokens: {_against(found)}, of order"
        f" {found['order']}."
    )


def _against(found: JsonMapping) -> str:
    digits = 2 if f"{found['trained']:.2f}" != f"{found['ngram']:.2f}" else 4
    return f"{found['trained']:.{digits}f} nats per token against {found['ngram']:.{digits}f} for the best n-gram"


def yardstick(verdict: JsonMapping, arm: JsonMapping) -> str:
    """What an arm's loss is to be compared with, for a table: nats and what they are of."""
    row = next((row for row in verdict["baselines"] if (row["task"], row["text"]) == (arm["task"], arm["text"])), None)
    if row is None:
        return "–"
    if "order" in row:
        return f"{row['nats']:.3f} (n-gram of order {row['order']})"
    return row["what"]
