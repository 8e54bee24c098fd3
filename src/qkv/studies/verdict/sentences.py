"""Numbers in words: the one sentence that a study ends in, and the file that it is written to.

A sentence never says more than its verdict: what is unresolved is said to be so, with the effect that the run could
have seen and the replicates that would resolve it.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import compared
from qkv.studies.engine.design import Arm, Design, Pairs
from qkv.studies.question import Plain, Question
from qkv.studies.verdict.judging import ArmFigures, Effect, Findings
from qkv.studies.verdict.statistics import how_exact
from qkv.studies.verdict.wording import condition_words, setting_words
from qkv.words import COUNTED, amount, plural

__all__ = [
    "amount",
    "answered",
    "arms_words",
    "condition",
    "described",
    "effect_row",
    "expectations",
    "intervals",
    "judged_by",
    "made_for",
    "notes",
    "otherwise",
    "plainly",
    "refuted_by",
    "scale_words",
    "sentence",
    "unjudged",
    "verdict_file",
]


def described(effect: Effect) -> str:
    """`+0.031 nats per token (95 % interval +0.012 to +0.050)`."""
    r, unit = effect.result, effect.contrast.unit
    if r.low is None:
        return f"{amount(r.effect, unit=unit)} {unit} (no interval from {r.n} {plural(r.n, 'replicate')})"
    mean, low, high = (amount(value, unit=unit) for value in (r.effect, r.low, r.high))
    return f"{mean} {unit} (95 % interval {low} to {high})"


def scale_words(findings: Findings) -> str:
    """What the claim holds for, and of how many replicates."""
    return f"{setting_words(findings.design)}; {_replicates(findings)}"


def condition(question: Question, findings: Findings) -> str:
    """What the short answer was measured at, all effects that it tells, and where it is known not to hold."""
    asked = {findings.primary.contrast.name, *question.also}
    told = {effect.contrast.name for effect in findings.effects if effect.result.n} & asked
    read = [contrast for contrast in findings.design.contrasts if contrast.name in told]
    words = condition_words(findings.design, read or [findings.design.primary])
    return f"{words}; {_replicates(findings)}. {question.elsewhere or _ELSEWHERE}"


_ELSEWHERE = "It may not hold for other recipes, sizes, lengths of training or texts."
"""Of an answer that no run outside the study is known to contradict."""


def _replicates(findings: Findings) -> str:
    """How many there are of how many were meant."""
    primary, meant = findings.primary, findings.design.replicates
    if primary.contrast.tries > 1:
        return f"{primary.result.n:,} of {meant * primary.contrast.tries:,} independent little studies"
    return f"{primary.result.n} of {meant} paired replicates"


def sentence(question: Question, findings: Findings) -> str:
    """The answer, its verdict, what it holds for, and how weak it is."""
    primary = findings.primary
    result, margin, unit = primary.result, primary.contrast.margin, primary.contrast.unit
    if result.n == 0 and primary.diverged:
        return (
            f"Nothing can be said: in every replicate of {question.name} that was completed a training diverged"
            f" ({primary.diverged} of {findings.design.replicates}), and there is no such measure then."
        )
    if result.n == 0:
        return f"Nothing can be said yet: no replicate of {question.name} was completed in the time."
    words = [f"{question.claim(findings)}{'' if result.effect is None else f': {described(primary)}'}."]
    words.append(f"Verdict: {result.verdict} (margin {amount(margin, signed=False, unit=unit)} {unit}).")
    words.append(f"{scale_words(findings)}.")
    if result.verdict == "unresolved":
        words.append(_unresolved(findings))
    if findings.design.quick:
        seen = (
            ""
            if result.detectable is None
            else f": a true effect of {amount(result.detectable, False, unit)} it would find four times in five"
        )
        words.append(f"A quick run is weak{seen}; drop --quick for the full one.")
    return " ".join(words)


def plainly(question: Question, findings: Findings) -> str:
    """The answer for a newcomer, of the main effect alone, and of others where more than one thing is asked.

    Empty where no replicate says anything of the first.
    """
    first = findings.primary
    if first.result.n == 0 and first.result.verdict != "left out":
        return ""
    effects = [effect for name in question.also for effect in findings.effects if effect.contrast.name == name]
    words = [_said(question.plain, first), *(_said(question.also[each.contrast.name], each) for each in effects)]
    return " ".join(filter(None, words))


def otherwise(effects: Sequence[Effect]) -> list[str]:
    """Effects that came out otherwise than was expected before the first training, their size, and what was expected.

    Only what the run settles: an expectation that it leaves open is not met and not refuted.
    """
    return [
        f"{effect.contrast.name} is {amount(effect.result.effect, unit=effect.contrast.unit)} {effect.contrast.unit},"
        f" {effect.told.verdict} (expected: {effect.contrast.expected})"
        for effect in effects
        if _is_refuted(effect)
    ]


_JUDGED = ("not below 0", "above 0", "below 0", "near 0", "0")
"""How an expectation begins that `otherwise` can judge; any other is told as not judged."""


def unjudged(rows: Sequence[JsonMapping]) -> list[str]:
    """Effects whose expectation was stated before the first training and is judged by no rule, with what was found.

    rows: effects of a file.
    """
    stated = [row for row in rows if row["expected"] and not row["expected"].removeprefix("far ").startswith(_JUDGED)]
    sizes = [
        "not measured" if row["effect"] is None else f"{amount(row['effect'], unit=row['unit'])} {row['unit']}"
        for row in stated
    ]
    return [f"{row['name']} is {size} (expected: {row['expected']})" for row, size in zip(stated, sizes, strict=True)]


def _is_refuted(effect: Effect) -> bool:
    words, verdict = effect.contrast.expected.removeprefix("far "), effect.told.verdict
    sign = math.copysign(1.0, effect.result.effect or 0.0)
    if words.startswith("not below 0"):
        return verdict.startswith("differs") and sign < 0
    if words.startswith(("above 0", "below 0")):
        meant = 1.0 if words.startswith("above") else -1.0
        return verdict == "equivalent" or (verdict.startswith("differs") and sign != meant)
    return words.startswith(("near 0", "0")) and verdict == "differs"


def refuted_by(effect: Effect) -> str:
    """What would show the answer itself to be wrong, whatever had been expected; empty where there is none."""
    result, unit = effect.told, effect.contrast.unit
    margin = f"{amount(effect.contrast.margin, signed=False, unit=unit)} {unit}"
    beyond = {
        "differs": "to 0 or beyond it",
        "differs but trivially": f"to 0, or beyond {margin}",
        "equivalent": f"beyond {margin}, to either side",
    }.get(result.verdict)
    if beyond is None or result.effect is None:
        return ""
    mean = amount(result.effect, unit=unit)
    return f"More replicates of the same design that bring the effect, {mean} {unit} here, {beyond}."


def _said(plain: Plain, effect: Effect) -> str:
    """The sentence of one effect's verdict."""
    result = effect.told
    if result.n == 0 or result.verdict in ("unresolved", "left out"):
        words = plain.unresolved
    elif result.verdict == "equivalent":
        words = plain.equivalent
    elif result.verdict == "differs but trivially":
        words = plain.slightly
    else:
        words = plain.above if (result.effect or 0.0) > 0 else plain.below
    size = abs(result.effect or 0.0)
    unit = effect.contrast.unit
    told = f"{size:.1f}" if size >= 10 and unit not in COUNTED else amount(size, False, unit)
    return words.format(effect=told, interval=_interval(effect))


def _interval(effect: Effect) -> str:
    """`95% interval 0.012 to 0.050`, of the size of an effect that differs from 0; with signs, of any other."""
    result, unit = effect.told, effect.contrast.unit
    if result.low is None or result.high is None:
        return "no interval from so few replicates"
    ends = sorted(map(abs, (result.low, result.high))) if result.low * result.high > 0 else (result.low, result.high)
    return f"95% interval {' to '.join(amount(end, result.low * result.high <= 0, unit) for end in ends)}"


def _unresolved(findings: Findings) -> str:
    result = findings.primary.result
    if result.needed is None:
        return "It cannot be resolved from so few replicates."
    if result.needed <= result.n:
        return "The effect is too close to the margin to call; more replicates would tell."
    return (
        f"To find an effect as large as the margin four times in five it would take {result.needed} replicates of this"
        f" spread (--seeds {result.needed})."
    )


def intervals(effect: Effect) -> str:
    """Of which kind the interval of an effect is."""
    return how_exact(effect.result.n) if effect.contrast.nominal is None else "exact, of a rate"


def effect_row(effect: Effect) -> JsonObject:
    """One contrast in a file of a verdict."""
    r = effect.result
    return {
        "name": effect.contrast.name,
        "what": effect.contrast.what,
        "unit": effect.contrast.unit,
        "margin": effect.contrast.margin,
        "expected": effect.contrast.expected,
        "verdict": effect.verdict,
        "effect": r.effect,
        "low": r.low,
        "high": r.high,
        "sd": r.sd,
        "n": r.n,
        "p": r.p,
        "p_corrected": effect.p_corrected,
        "p_equivalent": r.p_equivalent,
        "detectable": r.detectable,
        "needed": r.needed,
        "values": list(effect.values),
    } | _more(effect)


def _more(effect: Effect) -> JsonObject:
    """What few contrasts have: one that they need, and replicates that are missing or diverged."""
    whole = effect.replicates == tuple(range(1, len(effect.values) + 1))
    more = {
        "needs": effect.contrast.needs,
        "beside": list(effect.contrast.beside),
        "replicates": [] if whole else list(effect.replicates),
        "diverged": effect.diverged,
    }
    return {name: value for name, value in more.items() if value}


def judged_by(margins: Sequence[float], unit: str) -> str:
    """That the same trainings had other margins, empty where they had none."""
    told = " and ".join(amount(margin, signed=False, unit=unit) for margin in margins)
    return f"The same trainings were judged before, by a margin of {told}" if margins else ""


def made_for(taken_over: Sequence[str]) -> str:
    """That some of the trainings were made for other designs; empty where none were."""
    if not taken_over:
        return ""
    return (
        "Trainings that were made for other designs of this question on this text, with other effects or arms, count"
        f" here too: {', '.join(taken_over)}"
    )


def notes(effects: Sequence[Effect], reads: Mapping[str, Sequence[str]], arms: Sequence[JsonMapping]) -> list[str]:
    """What has to be known beside a table: rates at the edge of what is tried, and measures that are missing.

    reads: contrast -> the arms it reads; arms: rows of a file.
    """
    found = []
    for arm in arms:
        names = [effect.contrast.name for effect in effects if arm["name"] in reads.get(effect.contrast.name, ())]
        if arm["at_edge"] and names:
            found.append(
                f"In {arm['at_edge']} of {len(arm['losses'])} replicates the best learning rate of {arm['name']} had no"
                f" worse one on one side, so a better one may lie beyond what was tried; it bears on {'; '.join(names)}"
            )
    for effect in effects:
        if effect.diverged:
            which = "a replicate" if effect.diverged == 1 else f"{effect.diverged} replicates"
            found.append(f"{effect.contrast.name} lacks {which} that diverged: there is no such measure then")
    return found


def arms_words(arms: Sequence[Arm]) -> dict[str, str]:
    """Name -> what an arm does, and where its layout is not the textbook's; where two would read alike, their sizes and
    texts too.
    """
    told = {arm.name: "; ".join(filter(None, (arm.what, _settings(arm.layout)))) for arm in arms}
    often = Counter(told.values())
    return {
        arm.name: "; ".join(filter(None, (told[arm.name], _settings(arm.sizes), _on(arm.text))))
        if often[told[arm.name]] > 1
        else told[arm.name]
        for arm in arms
    }


def _on(text: str) -> str:
    return "" if text == "text" else f"on {text!r}"


def _settings(pairs: Pairs) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)


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


def answered(question: Question, findings: Findings, effects: Sequence[Effect]) -> JsonObject:
    """What a file says first. `effects` are those that were measured, where the findings have others too."""
    measured = dataclasses.replace(findings, effects=tuple(effects))
    return {
        "verdict": findings.primary.result.verdict,
        "sentence": sentence(question, findings),
        "plain": plainly(question, measured),
        "condition": condition(question, measured),
    }


def expectations(question: Question, effects: Sequence[Effect]) -> JsonObject:
    """What was expected before the first training, what came out otherwise, and what would show it to be wrong."""
    return {
        "falsified_by": question.falsified_by,
        "accounts": None if question.accounts is None else dataclasses.asdict(question.accounts),
        "otherwise": otherwise(effects),
        "unjudged": unjudged([effect_row(effect) for effect in effects]),
        "refuted_by": refuted_by(effects[0]),
        "literature": question.literature,
    }


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
    primary, design = findings.primary, findings.design
    r = primary.result
    words = arms_words([figures.arm for figures in findings.arms])
    arms = [_arm_row(figures, words[figures.arm.name]) for figures in findings.arms]
    return {
        "study": question.name,
        "asks": question.asks,
        **answered(question, findings, findings.effects),
        "baseline": compared(design, baselines, {arm["name"]: arm["loss"] for arm in arms}),
        "baselines": list(baselines),
        "effect": r.effect,
        "low": r.low,
        "high": r.high,
        "unit": primary.contrast.unit,
        "margin": primary.contrast.margin,
        "seeds": r.n,
        "p": r.p,
        "run": run,
        "quick": design.quick,
        "full_answer": full,
        "contrasts": [effect_row(effect) for effect in findings.effects],
        "arms": arms,
        "notes": [
            *filter(None, [counted, judged_by(findings.margins, primary.contrast.unit), made_for(findings.taken_over)]),
            *notes(findings.effects, {contrast.name: contrast.arms for contrast in design.contrasts}, arms),
        ],
        "earlier_margins": list(findings.margins),
        "taken_over": list(findings.taken_over),
        "counted": counted,
        "not_reached": list(findings.not_reached),
        "trainings": findings.trainings,
        "intervals": intervals(primary),
        "earlier_designs": list(findings.earlier),
        **expectations(question, findings.effects),
        "scale": scale_words(findings),
        **_of_design(design),
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
        | ({"images": list(design.images)} if design.images else {})
        | ({"vectors": design.vectors} if design.vectors else {}),
    }
