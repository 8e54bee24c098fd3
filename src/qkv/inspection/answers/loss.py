"""How good the run is: its loss beside baselines, overfitting, what it writes, what went wrong, what watching cost."""

import math
from collections.abc import Mapping, Sequence

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.events import OVER_FITTING, both_rose
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.tasks import Standing, Task, standing, worse_than_nothing
from qkv.telemetry import Evaluation, Sample
from qkv.words import as_good_as, between, listed, many, metric_name, number, percent, plural, signed, stands

DEAR, LONG = 0.03, 60.0
"""The default instruments should cost no more than this share of the training time; what they cost below so many
seconds is nothing to read first."""

NOTHING = "an empty output"
"""What a sample without a word is called."""

CLOSE = {"accuracy": 3.0, "micro_f1": 3.0, "entity_f1": 3.0, "answer_f1": 3.0, "bleu": 1.0, "loss": 0.05}
"""What a figure is about as good as differs by at most this: points of accuracy, F1 or BLEU, nats; an error in the unit
of a column by a share of it, `_CLOSE_SHARE`."""

_CLOSE_SHARE = 0.05
_SHARES = ("accuracy", "micro_f1", "entity_f1", "answer_f1")
"""Metrics that are shares, shown in percent."""

Interval = tuple[float, float]


def loss(evidence: Evidence) -> Answer | None:
    """The best validation loss against what needs no model."""
    best = evidence.telemetry.best_evaluation()
    if best is None:
        return None
    if evidence.run.task.judged and isinstance(evidence.run.summary.get(evidence.run.task.metric), float):
        return _judged(evidence, best)
    lines = _baselines(evidence)
    ngram = dict(lines).get(_NGRAM)
    margin = {} if ngram is None else evidence.telemetry.fact("loss_less_ngram")
    intervals = {_NGRAM: (ngram + margin["low"], ngram + margin["high"])} if ngram is not None and margin else {}
    groups = _groups("loss", dict(lines), best.loss, intervals)
    bits = "" if best.bits_per_byte is None else f" ({number(best.bits_per_byte, 3)} bits per byte)"
    own = f"{_nats(best.loss)} per {evidence.unit}"
    sentence = f"{_start(groups)}{own} is {stands(*groups)}.{_lost(evidence, best.loss)}"
    if not lines:
        sentence = f"The lowest validation loss is {own}, with no baseline to compare it with."
    where = f"The lowest validation loss is {own}{bits}, at step {best.step:,}, over {_whole(evidence)}."
    return Answer(
        key="loss",
        question="Is the loss good?",
        sentence=sentence,
        more=(where, *(_margin(evidence, margin) if lines else ())),
        numbers={f"validation loss (nats per {evidence.unit})": best.loss, "bits per byte": best.bits_per_byte}
        | {f"{name} (nats per {evidence.unit})": nats for name, nats in lines}
        | {f"minus the best n-gram, {part}": margin[part] for part in margin or ()},
        measure="loss",
        null=_knowing_nothing(evidence),
        weight=0.5 if not lines else 0.7 if groups[0] else 0.9,
    )


_NGRAM = "the best n-gram"


def _nats(value: float) -> str:
    return f"{number(value, 3)} nats"


def _start(groups: Sequence[Sequence[str]]) -> str:
    """Yes, no or neither, by the baselines that it is better than, level with and worse than."""
    better, level, worse = groups
    if worse:
        return "Not yet: " if better or level else "No: "
    is_open = any(words.startswith("neither") for words in level)
    return "Inconclusive: " if is_open else "Level with the best baseline: " if level else "Yes: "


def _groups(
    metric: str, known: Mapping[str, float], own: float, intervals: Mapping[str, Interval], *, higher: bool = False
) -> tuple[list[str], list[str], list[str]]:
    """The baselines that a figure is better than, level with and worse than, as phrases for `stands`.

    `intervals` are those of the figure, by the baseline that it is compared with.
    """
    groups: dict[Standing, list[str]] = {"better": [], "level": [], "worse": []}
    scale = 100 if metric in _SHARES else 1
    unit = {"loss": "nats", "rmse": "in the unit of the labels"}.get(metric, "points")
    for name, value in sorted(known.items(), key=lambda item: item[1] if higher else -item[1]):  # the best one last
        interval = intervals.get(name)
        where, size = standing(own, interval, value, higher_is_better=higher), _size(metric, value)
        said = f"{name} ({size})"
        if where == "level":
            low, high = (round(scale * (end - value), 6) for end in interval or (own, own))
            close = CLOSE.get(metric, _CLOSE_SHARE * abs(value))
            said = as_good_as(name, size, low, high, close=close, unit=unit)
        groups[where].append(said)
    better, level, worse = groups["better"], groups["level"], groups["worse"]
    if len(better) == len(known) > 1:
        better = [f"{better[-1]} and every other baseline"]
    if len(worse) == len(known) > 1:
        worse = [f"{worse[0]} and every other baseline"]
    return better, level, worse


def _size(metric: str, value: float) -> str:
    """A figure as people read it: a loss with three digits, BLEU with two, accuracy in percent."""
    return percent(value) if metric in _SHARES else number(value, 2 if metric == "bleu" else 3)


def _margin(evidence: Evidence, margin: JsonObject | None) -> tuple[str, ...]:
    """The loss minus that of the best n-gram, with its interval."""
    if not margin:
        return ()
    return (
        f"The difference from {_NGRAM} on the same {plural(2, evidence.unit)} is {signed(margin['difference'])} nats "
        f"({between(margin['low'], margin['high'])}, over {margin['windows']} windows).",
    )


def _whole(evidence: Evidence) -> str:
    """What the validation loss is the mean over."""
    task = evidence.run.task
    return f"all validation {task.items or task.examples}" if task.judged else "the whole validation text"


def _lost(evidence: Evidence, loss: float) -> str:
    """What a loss says that is worse than that of a model which learned nothing."""
    if not worse_than_nothing(loss, evidence.n_answers):
        return ""
    if worse_than_nothing((evidence.telemetry.fact("baselines") or {}).get("unigram", 0.0), evidence.n_answers):
        return " Counting tokens is also worse than uniform guessing: the validation text is unlike the training text."
    return " That is worse than uniform guessing: the learning rate may be too high."


def _knowing_nothing(evidence: Evidence) -> str:
    if not evidence.n_answers:
        return ""
    n, what = evidence.n_answers, "tokens" if evidence.run.task.target == "token" else "classes"
    return f"Uniform guessing among {n:,} {what} gives {number(math.log(n), 3)} nats (ln {n:,})."


def _judged(evidence: Evidence, best: Evaluation) -> Answer:
    """The same of a task that is judged by a metric: accuracy, BLEU; of its best weights, with their interval."""
    task, summary = evidence.run.task, evidence.run.summary
    name, own, interval = task.metric, summary[task.metric], summary.get(f"{task.metric}_interval")
    known = _known(task, summary)
    intervals = {words: (interval[0], interval[1]) for words in known} if interval else {}
    groups = _groups(name, known, own, intervals, higher=task.higher_is_better)
    label = metric_name(name)
    compared = f", {stands(*groups)}" if known else ""
    within = f", with a 95% interval of {_size(name, interval[0])} to {_size(name, interval[1])}" if interval else ""
    numbers: dict[str, float | None] = {name: own, f"validation loss (nats per {evidence.unit})": best.loss}
    numbers |= {f"{name}, low": interval[0], f"{name}, high": interval[1]} if interval else {}
    return Answer(
        key="loss",
        question="Is it good?",
        sentence=f"{_start(groups) if known else ''}{label} {_size(name, own)}{compared}.{_higher(task, summary)}",
        more=(
            f"{summary.get('note') or f'That is over {_whole(evidence)}'}{within}.",
            f"The lowest validation loss is {_nats(best.loss)} per {evidence.unit}, at step {best.step:,}.",
            *_combined(summary, name),
        ),
        numbers=numbers | {f"{words} ({name})": value for words, value in known.items()} | _parts(summary, name),
        measure="loss",
        null=_knowing_nothing(evidence),
        weight=0.5 if not known else 0.7 if groups[0] else 0.9,
    )


def _parts(summary: JsonMapping, metric: str) -> dict[str, float | None]:
    """The numbers of `_combined`."""
    names = (f"linear_{metric}", f"attention_{metric}", "attention_share", "linear_cross_validated")
    names += ("macro_f1", "pearson", "spearman", "transition_weight", "outside_penalty")
    found = {name.replace("_", " "): summary[name] for name in names if name in summary}
    for end, value in zip(("low", "high"), summary.get("linear_cross_validated_interval", ()), strict=False):
        found[f"linear cross validated, {end}"] = value
    bins = [name for name in ("calibration_error", "calibration_by_chance") if name in summary]
    return found | {f"{name.replace('_', ' ')} (points)": 100 * summary[name] for name in bins}


def _combined(summary: JsonMapping, metric: str) -> tuple[str, ...]:
    """What the linear model and attention reach alone, and how far the probabilities can be trusted."""
    said: list[str] = []
    if "attention_share" in summary:
        alone = [_size(metric, summary[f"{part}_{metric}"]) for part in ("linear", "attention")]
        share, said_by = summary["attention_share"], "predictions" if metric == "rmse" else "logits"
        how = "Attention did not help on held-out training texts, so the model answers by the linear model"
        if share:
            how = f"The model adds attention's {said_by}, times {number(share, 2)}, to those of the linear model"
        said.append(f"The linear model alone has {alone[0]}, attention alone {alone[1]}. {how}.")
    if any(decoding := [summary.get(name) or 0.0 for name in ("transition_weight", "outside_penalty")]):
        said.append(
            f"The labels of a text are chosen together: transitions between labels weigh {number(decoding[0], 2)}, and"
            f" O costs {number(decoding[1], 2)} nats more. This had the highest F1 on held-out training texts."
        )
    if "linear_cross_validated" in summary:
        low, high = summary["linear_cross_validated_interval"]
        said.append(
            f"Cross-validated on all training texts, the linear model alone has"
            f" {percent(summary['linear_cross_validated'])} ({percent(low)} to {percent(high)})."
        )
    for figure, name in (("macro_f1", "Macro F1"), ("pearson", "Pearson's correlation"), ("spearman", "Spearman's")):
        if isinstance(summary.get(figure), float):
            said.append(f"{name} is {percent(summary[figure]) if figure == 'macro_f1' else number(summary[figure])}.")
    if "calibration_error" in summary:
        off, chance = (number(100 * summary[f"calibration_{part}"], 2) for part in ("error", "by_chance"))
        said.append(
            f"Its probabilities miss its accuracy by {off} points on average, over 15 equal bins;"
            f" exact probabilities would miss by about {chance}."
        )
    return tuple(said)


def _higher(task: Task, summary: JsonMapping) -> str:
    """The baselines with a lower loss, for a task that is judged by another figure."""
    nats, loss = summary.get("baselines_nats") or {}, summary.get("stored_loss", summary.get("val_loss"))
    named = ((words, nats.get(line)) for line, words in task.yardsticks.items())
    lower = [f"{words} ({_nats(n)})" for words, n in named if loss is not None and n is not None and n < loss]
    return f" Its loss is higher than that of {listed(lower)}." if lower else ""


def _known(task: Task, summary: JsonMapping) -> dict[str, float]:
    """The task's metric of each baseline that was made, by what the baseline is called."""
    lines = {words: (summary.get("baselines") or {}).get(line) for line, words in task.yardsticks.items()}
    return {words: value for words, value in lines.items() if isinstance(value, int | float)}


def _baselines(evidence: Evidence) -> list[tuple[str, float]]:
    """Name and nats per target, falling."""
    found: JsonObject = evidence.telemetry.fact("baselines") or {}
    names = {"unigram": "unigram counts", "bigram": "bigram counts", "ngram": _NGRAM, "xz": "the compressor xz"}
    names |= {name: words for name, words in evidence.run.task.yardsticks.items() if name not in names}
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
    if over and both_rose(best, last):
        over = False
        sentence = f"No, it diverged: both losses rose after step {best.step:,}."
    elif over:
        sentence = f"Yes: the validation loss rises after step {best.step:,}."
    elif last.step > best.step:
        sentence = f"No: the validation loss was lowest at step {best.step:,} and ended only {percent(rise)} higher."
    else:
        sentence = f"No: the validation loss is lowest at the last step, {last.step:,}."
    lowest, end = number(best.loss, 3), number(last.loss, 3)
    ends = f"The validation loss was {lowest} nats at step {best.step:,} and {end} at the end"
    kept = f"The weights of step {best.step:,} are kept as the best ones."
    return Answer(
        key="over-fitting",
        question="Did it overfit?",
        sentence=sentence,
        more=(f"{ends if best.step != last.step else ''}{trained}", *([kept] if last.step > best.step else [])),
        numbers={
            "lowest validation loss": best.loss,
            "its step": float(best.step),
            "training loss then": best.train_loss,
            "last validation loss": last.loss,
            "last training loss": last.train_loss,
        },
        measure="loss",
        weight=0.85 if over else 0.1,
    )


def _train_losses(best: Evaluation, last: Evaluation) -> str:
    end = "" if best.step == last.step else "."
    if last.train_loss is None:
        return end
    if best.step == last.step or best.train_loss is None:
        return f"{end and '. '}The training loss there is {number(last.train_loss, 3)} nats."
    went = "from {} to {}".format(*(number(loss, 3) for loss in (best.train_loss, last.train_loss)))
    return f"; the training loss went {went}."


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
    more = () if early.step == last.step else (f"At step {early.step:,}: {_short(early.text)}",)
    return Answer(
        key="samples",
        question="What does it answer?" if evidence.run.task.judged else "What does it write?",
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
        sentence=f"{percent(cost['share'])} of the time: {many(cost['looks'], 'measurement')} of every matrix.",
        more=(f"They gave {many(cost['numbers'], 'number')}.",),
        numbers={"share of training time": cost["share"], "seconds": cost["seconds"]},
        null="Without watching, the weights are the same, byte for byte.",
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
