"""What counting reaches on the tokens that a study's models are scored on, so that a page says whether they know more.

Next tokens of a text have the best Kneser-Ney n-gram, counted on the training part that the arms learn from and scored
on the validation tokens that they are scored on. Hidden tokens, classes and images have the strongest baseline of their
task, read and scored likewise; tasks made by a rule have what counting reaches without the rule.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qkv.data.baseline.text import MOST_COUNTED, ngram_losses_by_order
from qkv.data.corpus import Corpus
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import Sizes
from qkv.studies.engine.assembly import MADE_TASKS
from qkv.studies.engine.design import Arm, Design, Text
from qkv.studies.synthetic.streams import markov_entropy, markov_matrix
from qkv.tasks import find_task
from qkv.tasks.data import Data
from qkv.tasks.task import Task
from qkv.words import listed

_UNTRAINED = ("none", "contrastive", "inner study")
"""Trainers after which a loss is not that of a model that was trained on the text."""
_ANSWERS = {
    "masked": "hidden tokens",
    "classify": "classes of texts",
    "image": "classes of images",
    "recall": "recalled values",
    "repeat": "repeated letters",
    "modular": "sums",
}


def baselines_of(design: Design, corpora: Callable[[Text], Sequence[Corpus]]) -> list[JsonObject]:
    """For every (task, text) of a design's arms: `task`, `text`, `nats` per token or None, and `what` that is.

    Next tokens of a text also have `order`, `tokens`, how many are scored, and `uniform`, the nats of uniform guessing.
    corpora: a text of the design -> the slices of it that replicates learn from, each with the tokens that it is scored
    on. Like a model, an n-gram learns from one slice alone; its loss is the mean over slices. Takes seconds a text.
    """
    texts = dict(design.texts)
    asked = dict.fromkeys((arm.task, arm.text) for arm in design.arms)
    return [{"task": task, "text": text, **_of(task, texts[text], design.scale.n_ctx, corpora)} for task, text in asked]


def _of(task: str, text: Text, n_ctx: int, corpora: Callable[[Text], Sequence[Corpus]]) -> JsonObject:
    if task in MADE_TASKS:
        made = MADE_TASKS[task](**dict(text.settings))
        return {"nats": made.by_counting, "what": f"{made.counting}; 0 is possible"}
    slices = corpora(text)
    if task != "causal":
        return _of_task(find_task(task), slices, n_ctx)
    tried = [ngram_losses_by_order(made) for made in slices]  # each until longer contexts do worse
    orders = np.mean([losses[: min(map(len, tried))] for losses in tried], axis=0)
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


def _of_task(task: Task, slices: Sequence[Data], n_ctx: int) -> JsonObject:
    """The baseline of a task whose mean loss over the slices is the lowest, at windows of n_ctx tokens."""
    found = []
    for part in slices:
        sizes = Sizes(
            **task.model_sizes(part), d_model=1, n_layers=1, n_heads=1, n_ctx=0 if task.patches(part) else n_ctx
        )
        reached = task.baselines(part, sizes, None)
        assert reached is not None, f"{task.name} has a baseline"
        found.append(reached.nats)
    known = [name for name in task.yardsticks if all(nats.get(name) is not None for nats in found)]
    means = {name: float(np.mean([nats[name] for nats in found])) for name in known}
    best = min(means, key=lambda name: means[name])
    return {"nats": means[best], "what": task.yardsticks[best].format(order=found[0].get("ngram_order"))}


def compared(design: Design, baselines: Sequence[JsonMapping], losses: Mapping[str, float | None]) -> JsonObject:
    """`ngram` and `trained`: nats per answer of counting and of the first `arm` that is trained on real answers.

    An arm of the main effect comes before others, else next tokens before other tasks. `of` arms are trained on its
    task, of which `better` beat the baseline of their own text. Next tokens have `order` and `tokens`, other tasks
    `of_what` they are and `what` counting is. `also`: the same of every other task that arms are trained on, of its
    best arm on its first text. losses: arm -> mean loss at the end.
    """
    counted = {(row["task"], row["text"]): row for row in baselines if row["nats"] is not None}
    asked = dict.fromkeys((arm.task, arm.text) for arm in map(design.arm, design.primary.arms))
    trained = [arm for arm in design.arms if arm.trainer not in _UNTRAINED and arm.labels == "real"]
    arms = [arm for arm in trained if losses.get(arm.name) is not None and (arm.task, arm.text) in counted]
    arms.sort(key=lambda arm: ((arm.task, arm.text) not in asked, arm.task != "causal"))
    if not arms:
        return {"ngram": next((counted[one]["nats"] for one in asked if one in counted), None), "trained": None}
    firsts = {arm.task: arm for arm in reversed(arms)}
    others = [[arm for arm in arms if (arm.task, arm.text) == (first.task, first.text)] for first in firsts.values()]
    best = [min(alike, key=lambda arm: losses[arm.name] or 0.0) for alike in others if alike[0].task != arms[0].task]
    also = [_beside(arm, arms, counted, losses) for arm in best]
    return _beside(arms[0], arms, counted, losses) | ({"also": also} if also else {})


def _beside(
    shown: Arm, arms: Sequence[Arm], counted: Mapping[tuple[str, str], JsonMapping], losses: Mapping[str, float | None]
) -> JsonObject:
    row, alike = counted[shown.task, shown.text], [arm for arm in arms if arm.task == shown.task]
    better = sum((losses[arm.name] or 0.0) < counted[arm.task, arm.text]["nats"] for arm in alike)
    found = {"ngram": row["nats"], "trained": losses[shown.name], "arm": shown.name, "better": better, "of": len(alike)}
    if "order" in row:
        return found | {"order": row["order"], "tokens": row["tokens"]}
    what = re.split(r";| \(", row["what"])[0]
    return found | {"of_what": _ANSWERS[shown.task], "what": f"the {what}" if what.startswith("best ") else what}


def gate(found: JsonMapping) -> str:
    """What an answer begins with where its trained models do not beat counting, in all it asks or in part; else empty.

    found: `baseline` of a verdict's file.
    """
    if _loses(found):
        return (
            f"These models predict worse than counting ({_against(found)}), so this answer is about models that have"
            " not yet learned the text."
        )
    losing = [one for one in found.get("also", ()) if _loses(one)]
    worse = [f"{one.get('of_what', 'next tokens')} ({_against(one)})" for one in losing]
    return f"Its models predict some things worse than counting: {listed(worse)}." if worse else ""


def _loses(found: JsonMapping) -> bool:
    return found["ngram"] is not None and found["trained"] is not None and found["trained"] >= found["ngram"]


def counting_words(verdict: JsonMapping) -> str:
    """How the trained models of a study compare with counting, a sentence or two for every task."""
    found = verdict["baseline"]
    if found["ngram"] is None:
        return "No counting baseline applies to what these models predict."
    if found["trained"] is None:
        return f"This study trains no model to compare with counting ({found['ngram']:.2f} nats per token)."
    return " ".join(map(_score, (found, *found.get("also", ()))))


def _score(found: JsonMapping) -> str:
    better, of = found["better"], found["of"]
    who = "The trained model" if of == 1 else f"{better or 'None'} of {of} trained models"
    beats = "does not beat" if of == 1 and not better else "beats" if better < 2 else "beat"
    if "order" in found:
        how = f"On the same {found['tokens']:,} tokens: {_against(found)}, of order {found['order']}"
        return f"{who} {beats} the best n-gram. {how}."
    return f"For {found['of_what']}, {who[0].lower()}{who[1:]} {beats} counting: {_against(found)}."


def _against(found: JsonMapping) -> str:
    digits = 2 if f"{found['trained']:.2f}" != f"{found['ngram']:.2f}" else 4
    per, what = (" per token", "the best n-gram") if "order" in found else ("", found["what"])
    return f"{found['trained']:.{digits}f} nats{per} against {found['ngram']:.{digits}f} for {what}"


def yardstick(verdict: JsonMapping, arm: JsonMapping) -> str:
    """What an arm's loss is to be compared with, for a table: nats and what they are of."""
    row = next((row for row in verdict["baselines"] if (row["task"], row["text"]) == (arm["task"], arm["text"])), None)
    if row is None:
        return "–"
    what = f"n-gram of order {row['order']}" if "order" in row else row["what"].replace(" (", ", ").replace(")", "")
    return f"{row['nats']:.3f} ({what})"
