"""What a study found as one file, and in words that say no more than its verdict.

A file has two parts: what was run and measured, and what follows from it by the rule of today. A kept file is judged
again from its own numbers: `judged_again`.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import compared, gate
from qkv.studies.engine.design import Arm, Contrast, Design, Pairs
from qkv.studies.expectation import Expected
from qkv.studies.question import Plain, Question
from qkv.studies.verdict.judging import ArmFigures, Effect, Findings, judged
from qkv.studies.verdict.statistics import how_exact
from qkv.studies.verdict.wording import condition_words, scale_words, setting_words, unit_words
from qkv.words import COUNTED, amount, many

FORMAT = 2
"""Of a verdict's file."""
LONGEST_ANSWER = 60
"""Words of a short answer and the size of its models; what does not fit follows as `more`."""
_ELSEWHERE = "It may not hold for other recipes, sizes, training lengths or texts."
"""Of an answer that no run outside the study is known to contradict."""


# the file


def verdict_file(
    question: Question,
    findings: Findings,
    run: str,
    full: str = "",
    counted: str = "",
    baselines: Sequence[JsonMapping] = (),
) -> JsonObject:
    """What `verdict.json` holds and `qkv study --json` prints; no clock in it.

    full: what a full run said; counted: what was counted on the text; baselines: by `qkv.studies.counting`.
    """
    design = findings.design
    words = arms_words([figures.arm for figures in findings.arms])
    arms = [_arm_row(figures, words[figures.arm.name]) for figures in findings.arms]
    asked = {design.primary.name, *question.also}
    read = [e.contrast for e in findings.effects if e.result.n and e.contrast.name in asked]
    made = {
        "format": FORMAT,
        "study": question.name,
        "baseline": compared(design, baselines, {arm["name"]: arm["loss"] for arm in arms}),
        "baselines": list(baselines),
        "run": run,
        "quick": design.quick,
        "full_answer": full,
        "arms": arms,
        "earlier_margins": list(findings.margins),
        "taken_over": list(findings.taken_over),
        "counted": counted,
        "not_reached": list(findings.not_reached),
        "trainings": findings.trainings,
        "earlier_designs": list(findings.earlier),
        "setting": setting_words(design, read or [design.primary]),
        "replicates": design.replicates,
        "over": design.over,
        **_of_design(design),
    }
    return made | _follows(question, findings.effects, made)


def judged_again(question: Question, kept: JsonMapping) -> JsonObject:
    """A file with everything that follows from its values by the rule of today, in the words of today."""
    rows = kept["contrasts"]
    effects = judged([(contrast_of(row), dict(zip(row["replicates"], row["values"], strict=True))) for row in rows])
    lost = [dataclasses.replace(e, diverged=row["diverged"]) for e, row in zip(effects, rows, strict=True)]
    return {**kept, **_follows(question, lost, kept)}


def contrast_of(row: JsonMapping) -> Contrast:
    """The contrast of a row of a file."""
    fields = {name: row[name] for name in ("name", "what", "margin", "unit", "nominal", "tries", "constant")}
    terms = tuple((weight, arm, quantity) for weight, arm, quantity in row["terms"])
    expected = Expected.read(row["expected"], row["name"]) if row["expected"] else None
    return Contrast(**fields, terms=terms, expected=expected, beside=tuple(row["needs"]))


def _follows(question: Question, effects: Sequence[Effect], made: JsonMapping) -> JsonObject:
    """What follows from the effects, of what was run; each effect is named as a reader is told it."""
    effects = [_named(effect, question) for effect in effects]
    first, unit = effects[0], effects[0].contrast.unit
    r, rows = first.result, [effect_row(effect) for effect in effects]
    guessing, brief = _worse_than_guessing(effects, made), scale_words(made, first.contrast.arms)
    said = plainly(question, effects, guessing)
    worse = [effect.contrast.what for effect in effects if effect.contrast.name in guessing]
    lengths = accumulate(map(_n_words, said), initial=_n_words(brief))
    n_first = max(1, sum(length <= LONGEST_ANSWER for length in lengths) - 1)
    of = f"{condition_words(made['setting'])} {_replicates(first, made)}."
    measured = {effect.contrast.name for effect in effects if effect.result.n or effect.result.verdict == "left out"}
    return {
        "asks": question.asks,
        "verdict": r.verdict,
        "sentence": sentence(first, question.name, of, made),
        "plain": " ".join(filter(None, [gate(made["baseline"]), *said[:n_first]])),
        "more": " ".join(said[n_first:]),
        "brief": brief,
        "condition": f"{of} {question.elsewhere or _ELSEWHERE}",
        "answers": [name for name in dict.fromkeys((first.contrast.name, *question.also)) if name in measured],
        "math": list(question.math),
        "effect": r.effect,
        "low": r.low,
        "high": r.high,
        "unit": unit,
        "margin": first.contrast.margin,
        "seeds": r.n,
        "p": r.p,
        "intervals": how_exact(r.n) if first.contrast.nominal is None else "exact, of a rate",
        "contrasts": rows,
        "expected": rows[0]["expected"],
        "otherwise": [row["name"] for row in rows if row["outcome"] == "failed"],
        "notes": [
            *_of_the_whole(made, unit),
            *notes(effects, made["arms"]),
            *([f"Worse than uniform guessing: {'; '.join(worse)}"] if worse else []),
        ],
        "falsified_by": question.falsified_by,
        "refuted_by": _refuted_by(first),
        "literature": question.literature,
        "accounts": dataclasses.asdict(question.accounts) if question.accounts and not made["quick"] else None,
    }


def _n_words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


def _named(effect: Effect, question: Question) -> Effect:
    contrast = effect.contrast
    label = question.label(contrast.name, contrast.what)
    return dataclasses.replace(effect, contrast=dataclasses.replace(contrast, what=label))


_OF_A_RESULT = ("effect", "low", "high", "mean", "mean_is_elsewhere", "outliers", "sd", "n", "p")


def effect_row(effect: Effect) -> JsonObject:
    """One contrast in a file of a verdict."""
    contrast, r = effect.contrast, effect.result
    return {
        "name": contrast.name,
        "what": contrast.what,
        "terms": [list(term) for term in contrast.terms],
        **{name: getattr(contrast, name) for name in ("unit", "margin", "nominal", "tries", "constant")},
        "needs": list(contrast.gates),
        "expected": contrast.expected.to_json() if contrast.expected else None,
        "outcome": effect.outcome or None,
        "verdict": effect.verdict,
        **{name: getattr(r, name) for name in _OF_A_RESULT},
        "p_corrected": effect.p_corrected,
        **{name: getattr(r, name) for name in ("p_equivalent", "detectable", "needed")},
        "values": list(effect.values),
        "replicates": list(effect.replicates),
        "diverged": effect.diverged,
    }


def _arm_row(figures: ArmFigures, what: str) -> JsonObject:
    n = len(figures.losses)
    mean = sum(figures.losses) / n if n else None
    sd = math.sqrt(sum((x - mean) ** 2 for x in figures.losses) / (n - 1)) if n > 1 and mean is not None else None
    return {
        "name": figures.arm.name,
        "what": what,
        "task": figures.arm.task,
        "text": figures.arm.text,
        "changes": list(figures.arm.changes),
        "frozen": list(figures.frozen),
        "sizes": dict(figures.arm.sizes),
        "optimizer": figures.arm.optimizer,
        "loss": mean,
        "sd": sd,
        "losses": list(figures.losses),
        "rates": list(figures.rates),
        "at_edge": figures.at_edge,
        "diverged": figures.diverged,
        "trainings": figures.trainings,
        "curve": [list(point) for point in figures.curve],
    }


def _of_design(design: Design) -> JsonObject:
    """What was run, on what."""
    return {
        "sizes": dataclasses.asdict(design.scale),
        "design": design.hash,
        "protocol": design.protocol,
        "software": design.software,
        "source": {"name": design.source_name, "sha256": design.source_sha256}
        | ({"labelled": True} if design.has_labels else {})
        | ({"untuned": True} if design.quick else {})
        | ({"slices": [design.slices, design.overlapping]} if design.slices > 1 else {})
        | ({"images": list(design.images)} if design.images else {})
        | ({"vectors": design.vectors} if design.vectors else {}),
    }


# sentences


def sentence(first: Effect, study: str, of: str, made: JsonMapping) -> str:
    """The main effect, its verdict, what it holds for, and how weak it is. made: `quick` and `replicates`."""
    result, unit = first.result, first.contrast.unit
    if result.n == 0 and first.diverged:
        return (
            f"No result: in all {first.diverged} completed replicates (of {made['replicates']}) of {study} a training"
            " diverged, and a diverged training has no such measure."
        )
    if result.n == 0:
        return f"No result yet: no replicate of {study} was completed in the time."
    words = [f"{row_words(effect_row(first))}.", of]
    if result.verdict == "unresolved":
        words.append(_unresolved(first))
    if made["quick"]:
        seen = f": it detects a true effect of {two_digits(result.detectable, unit, signed=False)} four times in five"
        words.append(f"A quick run is weak{seen * (result.detectable is not None)}; drop --quick for the full one.")
    return " ".join(words)


def row_words(row: JsonMapping) -> str:
    """One effect of a file: what it is, its size and interval, and its verdict."""
    verdict, unit = row["verdict"], unit_words(row["unit"])
    effect, low, high = (two_digits(row[name], row["unit"]) for name in ("effect", "low", "high"))
    margin = two_digits(row["margin"], row["unit"], signed=False)
    n = many(row["n"], "replicate" if row["tries"] == 1 else "try", "tries" if row["tries"] > 1 else "")
    interval = f"no interval, {n}" if row["low"] is None else f"95% interval {low} to {high}, {n}"
    said = f"{effect} {unit} ({interval})"
    if verdict == "left out":
        said = "not judged, because the model learned too little for it"
    elif verdict == "constant":
        said = f"{effect} {unit}, a constant"
    elif not row["n"]:
        said = "not measured"
    elif verdict == "unresolved":
        said = f"inconclusive ({effect} {unit}, {interval})"
    elif verdict == "equivalent":
        said = f"no meaningful difference (within ±{margin}; {effect} {unit}, {interval})"
    elif verdict.startswith("differs but trivially"):
        said = f"{said}, smaller than the margin of {margin}"
    corrected = "; not significant after correction for the other effects" * verdict.endswith(")")
    return f"{row['what'][0].upper()}{row['what'][1:]}: {said}{corrected}"


def expected_words(expected: JsonMapping | None, whats: Mapping[str, str] | None = None) -> str:
    """`above 0`, `within 5 of 0`, or less than another effect; empty for None. whats: effect -> what it is called."""
    if not expected:
        return ""
    if "near" in expected:
        return f"within {expected['within']:g} of {expected['near']:g}"
    ((name, value),) = expected.items()
    if name in ("above", "below"):
        return f"{name} {value:g}"
    return f"{name.replace('_', ' ')} `{(whats or {}).get(value, value)}`"


def plainly(question: Question, effects: Sequence[Effect], guessing: Collection[str] = ()) -> list[str]:
    """The answer for a newcomer: of the main effect, and of others where more than one thing is asked.

    Empty where no replicate says anything of the first. guessing: effects that leave a model worse than guessing.
    """
    by_name = {effect.contrast.name: effect for effect in effects}
    asked = {effects[0].contrast.name: question.plain, **question.also}
    said = {name: _said(plain, by_name[name]) for name, plain in asked.items() if name in by_name}
    worse = dict.fromkeys(guessing, " That is worse than uniform guessing.")
    found = [words + worse.get(name, "") for name, words in said.items() if words]
    return found if said[effects[0].contrast.name] else []


_DAMAGE = ("reset ", "exchanged", "symmetric part", "antisymmetric part", "pruned", "order")
"""How quantities begin that are an increase in loss of a finished model that was changed."""


def _worse_than_guessing(effects: Sequence[Effect], made: JsonMapping) -> list[str]:
    """Effects of a change of a finished model after which its loss is above that of uniform guessing."""
    uniform = {row["text"]: row["uniform"] for row in made["baselines"] if row["task"] == "causal"}
    loss = {arm["name"]: (arm["loss"], uniform.get(arm["text"])) for arm in made["arms"] if arm["task"] == "causal"}
    found = []
    for effect in effects:
        (_, arm, quantity), *others = effect.contrast.terms or ((0.0, "", ""),)
        before, most = loss.get(arm, (None, None))
        if quantity.startswith(_DAMAGE) and not others and before is not None and most is not None:
            found += [effect.contrast.name] if before + (effect.result.effect or 0.0) > most else []
    return found


def _said(plain: Plain, effect: Effect) -> str:
    """The sentence of one effect's verdict; empty where no replicate says anything."""
    result, unit, what = effect.told, effect.contrast.unit, effect.contrast.what
    if result.verdict == "left out":
        return f"Not judged: {what}; the model learned too little for it."
    if result.n == 0:
        return ""
    if result.verdict == "unresolved":
        ends = f"{two_digits(result.low, unit)} to {two_digits(result.high, unit)} {unit_words(unit)}"
        begun = "A hint, not significant after correction" if effect.only_alone else "Inconclusive"
        return f"{begun}{f' ({ends})' * (result.low is not None)}: {what}."
    size = two_digits(result.effect, unit, signed=False)
    if result.verdict.startswith("differs but"):
        size = two_digits(result.effect, unit)
        return f"{plain.same} The difference ({size} {unit_words(unit)}) is significant but below the margin."
    if result.verdict == "equivalent":
        return plain.same
    return (plain.above if (result.effect or 0.0) > 0 else plain.below).format(effect=size)


def two_digits(value: float | None, unit: str, signed: bool = True) -> str:
    """An effect in prose: two digits, whole numbers of what is counted, percent of what is a share."""
    if value is None or not math.isfinite(value):
        return amount(value, signed)
    if unit.startswith("of ") and not unit.endswith("norm"):
        return f"{two_digits(100 * value, '', signed)}%"
    if value == 0:
        return "0"
    places = 0 if unit in COUNTED else max(0, 1 - int(f"{value:.1e}".partition("e")[2]))
    places += 95 <= abs(value) < 100 and unit not in COUNTED
    return f"{value if signed else abs(value):{'+' * signed},.{places}f}"


def _replicates(first: Effect, made: JsonMapping) -> str:
    """How many there are of how many were planned, and what differs between them."""
    tries = first.contrast.tries
    kind = f"paired replicates {made['over']}" if tries == 1 else "small studies"
    return f"{first.result.n:,} of {made['replicates'] * tries:,} {kind}"


def _unresolved(first: Effect) -> str:
    r = first.result
    if r.needed is None:
        return "So few replicates cannot resolve it."
    if r.needed <= r.n:
        return "The effect is too close to the margin to call; more replicates would help."
    return (
        f"To detect an effect as large as the margin four times in five takes {r.needed} replicates of this spread"
        f" (--seeds {r.needed})."
    )


def _refuted_by(effect: Effect) -> str:
    """What would show the answer itself to be wrong, whatever was expected; empty where there is no answer."""
    result, unit = effect.told, effect.contrast.unit
    margin = f"{two_digits(effect.contrast.margin, unit, signed=False)} {unit_words(unit)}"
    beyond = {
        "differs": "to 0 or past it",
        "differs but trivially": f"to 0, or beyond {margin}",
        "equivalent": f"beyond ±{margin}",
    }.get(result.verdict)
    if beyond is None or result.effect is None:
        return ""
    size = f"{two_digits(result.effect, unit)} {unit_words(unit)}"
    return f"More replicates of the same design that move the effect, {size}, {beyond}."


def _of_the_whole(made: JsonMapping, unit: str) -> list[str]:
    """What has to be known of the whole study beside its tables."""
    counted = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", made["counted"].replace(" %", "%"))
    found = list(filter(None, counted.split("; ")))
    if margins := " and ".join(two_digits(margin, unit, signed=False) for margin in made["earlier_margins"]):
        found.append(f"The same trainings were judged before with a margin of {margins}")
    if others := ", ".join(f"`{name}`" for name in made["taken_over"]):
        which = "Trainings made for other designs of this question on this text, with other effects or arms,"
        found.append(f"{which} count here too: {others}")
    return found


def notes(effects: Sequence[Effect], arms: Sequence[JsonMapping]) -> list[str]:
    """What has to be known beside a table: rates at the edge of the grid, and measures that are missing.

    arms: rows of a file.
    """
    found = []
    for arm in arms:
        names = [effect.contrast.what for effect in effects if arm["name"] in effect.contrast.arms]
        if arm["at_edge"] and names:
            found.append(
                f"In {arm['at_edge']} of {len(arm['losses'])} replicates the best learning rate was at the edge of the"
                f" grid, so a better one may lie outside, for this arm: {arm['what'].partition(';')[0]}. This affects"
                f" {'; '.join(names)}"
            )
    for effect in effects:
        if effect.diverged:
            lost = many(effect.diverged, "replicate")
            found.append(f"Missing in {lost} that diverged: {effect.contrast.what}")
        r, unit = effect.result, effect.contrast.unit
        if r.mean_is_elsewhere:
            mean, median = two_digits(r.mean, unit), two_digits(r.effect, unit)
            far = f"; {r.outliers} of {r.n} replicates are outliers" * bool(r.outliers)
            found.append(f"Mean and median differ: {effect.contrast.what}, {mean} and {median} {unit_words(unit)}{far}")
    return found


def arms_words(arms: Sequence[Arm]) -> dict[str, str]:
    """Name -> what an arm does, and where its layout is not the textbook's; where two would read alike, their sizes and
    texts too.
    """
    told = {arm.name: "; ".join(filter(None, (arm.what, _settings(arm.layout)))) for arm in arms}
    often = Counter(told.values())
    for arm in arms:
        if often[told[arm.name]] > 1:
            on = "" if arm.text == "text" else f"on {arm.text!r}"
            told[arm.name] = "; ".join(filter(None, (told[arm.name], _settings(arm.sizes), on)))
    return told


def _settings(pairs: Pairs) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)
