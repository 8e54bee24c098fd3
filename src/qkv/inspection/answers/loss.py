"""How good the run is: its loss beside baselines, over-fitting, what it writes, what went wrong, what watching cost."""

import math
from collections.abc import Sequence

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.tasks import Standing, Task, standing, worse_than_nothing
from qkv.telemetry import Evaluation, Sample
from qkv.words import listed, many, number, percent, plural

__all__ = ["NOTHING", "among", "followed", "loss", "over_fitting", "samples", "trouble", "watch"]

OVER_FITTING = 0.01
"""The validation loss must have risen by this share above its lowest before it is called over-fitting."""

DEAR, LONG = 0.03, 60.0
"""The default instruments should cost no more than this share of the training time; what they cost below so many
seconds is nothing to read first."""

NOTHING = "nothing but an end"
"""What a sample without a word is called."""


def loss(evidence: Evidence) -> Answer | None:
    """The best validation loss against what needs no model."""
    best = evidence.telemetry.best_evaluation()
    if best is None:
        return None
    if evidence.task.judged and isinstance(evidence.summary.get(evidence.task.metric), float):
        return _judged(evidence, best)
    lines, margin = _baselines(evidence), evidence.telemetry.fact("loss_less_ngram")
    stands = [(f"{name} ({number(nats)})", _standing(name, best.loss - nats, margin)) for name, nats in lines]
    beaten, level, ahead = ([name for name, where in stands if where == one] for one in ("better", "level", "worse"))
    bits = "" if best.bits_per_byte is None else f" ({best.bits_per_byte:.3f} bits per byte)"
    what = f"{best.loss:.4f} nats per {evidence.unit}{bits} on {_whole(evidence)}, at step {best.step:,}"
    brief = ""
    if not lines:
        nothing = f"; knowing nothing costs {math.log(evidence.n_answers):.3f}" if evidence.n_answers else ""
        sentence = f"The lowest loss is {what}{nothing}."
    elif level:
        told = f"not significantly different from {listed(level)}"
        sentence = f"About as good as counting: {what}, is {told}{_others(beaten, ahead)}."
        brief = f"About as good as counting: {told}{_others(beaten, ahead)}."
    elif not ahead:
        sentence = f"Yes: {what}, is better than {listed(beaten)}."
    elif not beaten:
        sentence = f"No: {what}, is no better than {listed(ahead, 'or')}.{_lost(evidence, best.loss)}"
    else:
        sentence = f"Better than {listed(beaten)}, not yet than {listed(ahead, 'or')}: {what}."
        brief = (
            f"Not yet: better than {listed(beaten)}, worse than {listed(ahead)}; its loss is {number(best.loss)} nats."
        )
    return Answer(
        key="loss",
        question="Is the loss good?",
        sentence=sentence,
        brief=brief,
        more=_margin(evidence, margin) if lines else (),
        numbers={f"validation loss (nats per {evidence.unit})": best.loss, "bits per byte": best.bits_per_byte}
        | {f"{name} (nats per {evidence.unit})": nats for name, nats in lines}
        | {f"minus the best n-gram, {part}": margin[part] for part in margin or ()},
        measure="loss",
        null=_knowing_nothing(evidence),
        weight=0.5 if not lines else 0.9 if not beaten else 0.7,
    )


_NGRAM = "the best n-gram"


def _standing(name: str, difference: float, margin: JsonObject | None) -> Standing:
    """How the loss compares with a baseline: with the best n-gram by the interval of the paired `margin`, if known."""
    if margin and name.startswith(_NGRAM):
        return standing(margin["difference"], (margin["low"], margin["high"]), 0.0, higher_is_better=False)
    return "better" if difference < 0 else "worse"


def _others(beaten: Sequence[str], ahead: Sequence[str]) -> str:
    better = f", and better than {listed(beaten)}" if beaten else ""
    return f"{better}, and worse than {listed(ahead)}" if ahead else better


def _margin(evidence: Evidence, margin: JsonObject | None) -> tuple[str, ...]:
    """The loss minus that of the best n-gram, with its interval."""
    if not margin:
        return ()
    difference, low, high = (f"{margin[part]:+.3f}" for part in ("difference", "low", "high"))
    return (
        f"On the same {plural(2, evidence.unit)}, its loss minus that of {_NGRAM} is {difference} nats per "
        f"{evidence.unit} (95 % interval {low} to {high} over {margin['windows']} windows).",
    )


def _whole(evidence: Evidence) -> str:
    """What the validation loss is the mean over."""
    task = evidence.task
    return f"all validation {task.items or task.examples}" if task.judged else "the whole validation text"


def _lost(evidence: Evidence, loss: float) -> str:
    """What a loss says that is worse than that of a model which learned nothing."""
    if not worse_than_nothing(loss, evidence.n_answers):
        return ""
    return " It is worse than knowing nothing: the learning rate may be too high."


def _knowing_nothing(evidence: Evidence) -> str:
    if not evidence.n_answers:
        return ""
    return (
        f"A model that learned nothing gives every {'class' if evidence.task.target != 'token' else 'token'} the "
        f"same probability: ln {evidence.n_answers:,} = {math.log(evidence.n_answers):.3f} nats."
    )


def _judged(evidence: Evidence, best: Evaluation) -> Answer:
    """The same of a task that is judged by a metric: accuracy, BLEU; of its best weights, with their interval."""
    task, summary = evidence.task, evidence.summary
    name, own = task.metric.replace("bleu", "BLEU"), summary[task.metric]
    interval = summary.get(f"{task.metric}_interval")
    known = _known(task, summary)
    better, level, worse = _groups(task, summary)
    words = among(task, summary)
    start = ""
    if known:
        start = "Not yet: " if better and worse else "No: " if worse else "About as good: " if level else "Yes: "
    within = f" (95 % interval {number(interval[0])} to {number(interval[1])})" if interval else ""
    numbers: dict[str, float | None] = {name: own, f"validation loss (nats per {evidence.unit})": best.loss}
    loss_ = f"{best.loss:.4f} nats per {evidence.unit}, at step {best.step:,}"
    return Answer(
        key="loss",
        question="Is it good?",
        sentence=f"{start}{name} {number(own)}{within} on all validation {task.items or task.examples}"
        f"{', ' if words else ''}{words}. The lowest loss is {loss_}.",
        brief=f"{start}{name} {number(own)}{', ' if words else ''}{words}.",
        numbers=numbers | {f"{label} ({name})": value for label, value in known.items()},
        measure="loss",
        null=_knowing_nothing(evidence),
        weight=0.5 if not known else 0.9 if not better else 0.7,
    )


def _known(task: Task, summary: JsonMapping) -> dict[str, float]:
    """The task's metric of each baseline that was made, by what the baseline is called."""
    lines = {words: (summary.get("baselines") or {}).get(line) for line, words in task.yardsticks.items()}
    return {words: value for words, value in lines.items() if isinstance(value, int | float)}


def _groups(task: Task, summary: JsonMapping) -> tuple[list[str], list[str], list[str]]:
    """Baselines that the run is better than, level with and worse than, each with its metric."""
    groups: dict[Standing, list[str]] = {"better": [], "level": [], "worse": []}
    interval = summary.get(f"{task.metric}_interval")
    for words, value in _known(task, summary).items():
        stands = standing(summary[task.metric], interval, value, higher_is_better=task.higher_is_better)
        groups[stands].append(f"{words} ({number(value)})")
    return groups["better"], groups["level"], groups["worse"]


def among(task: Task, summary: JsonMapping) -> str:
    """Where the metric of a judged task stands among its baselines, as far as its interval tells; empty without any."""
    better, level, worse = _groups(task, summary)
    parts = [f"better than {listed(better)}"] if better else []
    parts += [f"not significantly better than {listed(level, 'or')}"] if level else []
    parts += [f"worse than {listed(worse)}"] if worse else []
    nats, loss = summary.get("baselines_nats") or {}, summary.get("val_loss")
    named = ((words, nats.get(line)) for line, words in task.yardsticks.items())
    lower = [f"{words} ({number(n)} nats)" for words, n in named if loss is not None and n is not None and n < loss]
    parts += [f"but with a higher loss than {listed(lower)}"] if lower and not worse else []
    return ", ".join(parts)


def _baselines(evidence: Evidence) -> list[tuple[str, float]]:
    """Name and nats per target, falling."""
    found: JsonObject = evidence.telemetry.fact("baselines") or {}
    order = found.get("ngram_order")
    names = {"unigram": "unigram", "bigram": "bigram", "ngram": f"{_NGRAM}, of order {order}", "xz": "xz"}
    names |= {name: words for name, words in evidence.task.yardsticks.items() if name not in names}
    lines = [(words, found[name]) for name, words in names.items() if isinstance(found.get(name), int | float)]
    return sorted(((w, float(v)) for w, v in lines if math.isfinite(v)), key=lambda line: -line[1])


def over_fitting(evidence: Evidence) -> Answer | None:
    """Whether and when the validation loss turned while the training loss did not."""
    found = evidence.telemetry.evaluations()
    best = evidence.telemetry.best_evaluation()
    if best is None or len(found) < 3:
        return None
    last = found[-1]
    rise = last.loss / best.loss - 1 if best.loss > 0 else 0.0
    trained = _train_losses(best, last)
    over = last.step > best.step and rise > OVER_FITTING
    if over and _both_rose(best, last):
        over = False
        sentence = (
            f"No: both losses rose after step {best.step:,}, the validation loss from {best.loss:.3f} to"
            f" {last.loss:.3f}{trained}: the training diverged. best.safetensors holds step {best.step:,}."
        )
    elif over:
        sentence = (
            f"Yes, from step {best.step:,} on: the validation loss rose from {best.loss:.3f} to {last.loss:.3f}"
            f"{trained}. best.safetensors holds step {best.step:,}."
        )
    elif last.step > best.step:
        sentence = f"Not noticeably: it was lowest at step {best.step:,} and is {percent(rise)} above that at the end."
    else:
        sentence = f"No: the validation loss is lowest at the end, step {last.step:,}{trained}."
    return Answer(
        key="over-fitting",
        question="Did it over-fit?",
        sentence=sentence,
        numbers={
            "lowest validation loss": best.loss,
            "its step": float(best.step),
            "last validation loss": last.loss,
            "last training loss": last.train_loss,
        },
        measure="loss",
        weight=0.85 if over else 0.1,
    )


def _both_rose(best: Evaluation, last: Evaluation) -> bool:
    """Whether the training loss rose as well: that is no over-fitting."""
    return best.train_loss is not None and last.train_loss is not None and last.train_loss >= best.train_loss


def _train_losses(best: Evaluation, last: Evaluation) -> str:
    if last.train_loss is None:
        return ""
    if best.step == last.step or best.train_loss is None:
        return f"; the training loss there is {last.train_loss:.3f}"
    return f" while the training loss went from {best.train_loss:.3f} to {last.train_loss:.3f}"


def followed(samples: Sequence[Sample]) -> list[Sample]:
    """Those of the prompt that was used most, the first of equals: one text from step to step."""
    prompts = [sample.prompt for sample in samples]
    prompt = max(dict.fromkeys(prompts), key=prompts.count, default="")
    return [sample for sample in samples if sample.prompt == prompt]


def samples(evidence: Evidence) -> Answer | None:
    """What the model writes now, and wrote early on."""
    found = followed(evidence.telemetry.samples())
    if not found:
        return None
    early, last = found[0], found[-1]
    more = () if early.step == last.step else (f"At step {early.step:,} it wrote: {_short(early.text)}",)
    return Answer(
        key="samples",
        question="What does it answer?" if evidence.task.judged else "What does it write?",
        sentence=f"At step {last.step:,}, after {_short(last.prompt, 60)}: {_short(last.text)}",
        brief=f"After {_short(last.prompt, 40)}: {_short(last.text, 80)}",
        more=more,
        weight=0.45,
    )


def _short(text: str, n: int = 160) -> str:
    flat = " ".join(text.split())
    if not flat:
        return NOTHING
    return f"\u201c{flat if len(flat) <= n else flat[: n - 1] + chr(0x2026)}\u201d"


def watch(evidence: Evidence) -> Answer | None:
    """What watching cost."""
    cost = evidence.telemetry.fact("watch")
    if not cost or cost["level"] == "off" or cost.get("share") is None:
        return None
    return Answer(
        key="watch",
        question="What did watching cost?",
        sentence=f"{percent(cost['share'])} of the training time, for {many(cost['numbers'], 'number')} "
        f"from {many(cost['looks'], 'look')} at every matrix.",
        numbers={"share of training time": cost["share"], "seconds": cost["seconds"]},
        null="Without watching the weights are the same, byte for byte.",
        weight=0.5 if cost["level"] == "light" and cost["share"] > DEAR and cost["seconds"] > LONG else 0.05,
    )


def trouble(evidence: Evidence) -> Answer | None:
    """What went wrong, if anything did."""
    events = [event for event in evidence.telemetry.events() if event.kind in ("nan", "spike", "diverged")]
    if not events:
        return None
    last = events[-1]
    return Answer(
        key="trouble",
        question="What went wrong?",
        sentence=f"{last.sentence[:1].upper()}{last.sentence[1:]}.",  # each says its own step
        more=tuple(f"{event.sentence[:1].upper()}{event.sentence[1:]}." for event in events[:-1][-5:]),
        address=last.address,
        weight=1.0,
    )
