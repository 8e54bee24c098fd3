"""Numbers in words: the one sentence that a study ends in, and the file that it is written to.

A sentence never says more than its verdict: what is unresolved is said to be so, with the effect that the run could
have seen and the replicates that would resolve it.
"""

import math
from typing import Any

from qkv.studies.design import Arm, Design
from qkv.studies.question import Question
from qkv.studies.statistics import how_exact
from qkv.studies.verdicts import ArmFigures, Effect, Findings

__all__ = ["amount", "arm_words", "described", "effect_row", "intervals", "scale_words", "sentence", "verdict_file"]

_STREAMS = {"digits": "On the handwritten digits that come with scikit-learn"}
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}


def amount(value: float | None, signed: bool = True) -> str:
    """Three decimals, or as many as show two digits; with its sign."""
    if value is None:
        return "?"
    if math.isinf(value):
        return "beyond any number"
    digits = 3 if value == 0 or abs(value) >= 0.01 else min(6, 1 - math.floor(math.log10(abs(value))))
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def described(effect: Effect) -> str:
    """`+0.031 nats per token (95 % interval +0.012 to +0.050)`."""
    r, unit = effect.result, effect.contrast.unit
    if r.low is None:
        return f"{amount(r.effect)} {unit} (no interval from {r.n} replicate{'s' * (r.n != 1)})"
    return f"{amount(r.effect)} {unit} (95 % interval {amount(r.low)} to {amount(r.high)})"


def scale_words(findings: Findings) -> str:
    """Scale, optimizer and start: what the claim holds for."""
    design, scale = findings.design, findings.design.scale
    optimizers = dict.fromkeys(_OPTIMIZERS[design.arm(name).optimizer] for name in design.primary.arms)
    tuned = any(design.arm(name).tune == "own" for name in design.main_arms)
    return (
        f"{source_words(design)}; textbook layout of {_count(scale.n_layers, 'layer')},"
        f" d_model {scale.d_model},"
        f" {_count(scale.n_heads, 'head')}, context {scale.n_ctx}, {scale.steps:,} steps of"
        f" {scale.batch_size} windows, start"
        " N(0, 0.02) where an arm does not say otherwise;"
        f" {' and '.join(optimizers)}"
        + (", the learning rate tuned afresh in every replicate" if tuned else "")
        + f"; {_replicates(findings)}"
    )


def _replicates(findings: Findings) -> str:
    """How many there are of how many were meant."""
    primary, meant = findings.primary, findings.design.replicates
    if primary.contrast.tries > 1:
        return f"{primary.result.n:,} of {meant * primary.contrast.tries:,} independent little studies"
    return f"{primary.result.n} of {meant} paired replicates"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def source_words(design: Design) -> str:
    """The tokens that the primary contrast was measured on."""
    texts = dict(design.texts)
    text = texts[design.arm(design.primary.arms[0]).text]
    if text.stream != "text":
        return _STREAMS.get(text.stream, f"On made sentences ({text.stream})")
    vocabulary = f" (vocabulary {text.vocab})" if text.vocab else ""
    return f"On {design.source_name} in {text.tokenizer} tokens{vocabulary}"


def sentence(question: Question, findings: Findings) -> str:
    """The answer, its verdict, what it holds for, and how weak it is."""
    primary = findings.primary
    result, margin = primary.result, primary.contrast.margin
    if result.n == 0:
        return f"Nothing can be said yet: no replicate of {question.name} was completed in the time."
    words = [f"{question.claim(findings)}: {described(primary)}."]
    words.append(f"Verdict: {result.verdict} (margin {amount(margin, signed=False)} {primary.contrast.unit}).")
    words.append(f"{scale_words(findings)}.")
    if result.verdict == "unresolved":
        words.append(_unresolved(findings))
    if findings.design.quick:
        seen = (
            ""
            if result.detectable is None
            else f": it sees effects of about {amount(result.detectable, False)} and more"
        )
        words.append(f"A quick run is weak{seen}; drop --quick for the full one.")
    return " ".join(words)


def _unresolved(findings: Findings) -> str:
    result = findings.primary.result
    if result.needed is None:
        return "It cannot be resolved from so few replicates."
    if result.needed <= result.n:
        return "The effect is too close to the margin to call; more replicates would tell."
    return (
        f"To find an effect as large as the margin it would take about {result.needed} replicates"
        f" (--seeds {result.needed})."
    )


def intervals(effect: Effect) -> str:
    """Of which kind the interval of an effect is."""
    return how_exact(effect.result.n) if effect.contrast.nominal is None else "exact, of a rate"


def effect_row(effect: Effect) -> dict[str, Any]:
    """One contrast in a file of a verdict."""
    r = effect.result
    return {
        "name": effect.contrast.name,
        "what": effect.contrast.what,
        "unit": effect.contrast.unit,
        "margin": effect.contrast.margin,
        "expected": effect.contrast.expected,
        "verdict": r.verdict,
        "effect": r.effect,
        "low": r.low,
        "high": r.high,
        "sd": r.sd,
        "n": r.n,
        "p": r.p,
        "p_holm": effect.p_holm,
        "p_signs": r.p_signs,
        "p_equivalent": r.p_equivalent,
        "detectable": r.detectable,
        "needed": r.needed,
        "values": list(effect.values),
    } | ({"needs": effect.contrast.needs} if effect.contrast.needs else {})


def arm_words(arm: Arm) -> str:
    """What an arm does, and where its layout is not the textbook's, which `scale_words` leaves to it."""
    return "; ".join((arm.what, *([", ".join(f"{name} {value}" for name, value in arm.layout)] if arm.layout else [])))


def _arm_row(figures: ArmFigures) -> dict[str, Any]:
    n = len(figures.losses)
    mean = sum(figures.losses) / n if n else None
    sd = math.sqrt(sum((x - mean) ** 2 for x in figures.losses) / (n - 1)) if n > 1 and mean is not None else None
    return {
        "name": figures.arm.name,
        "what": arm_words(figures.arm),
        "task": figures.arm.task,
        "text": figures.arm.text,
        "changes": list(figures.arm.changes),
        "frozen": list(figures.frozen),
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


def verdict_file(question: Question, findings: Findings, run: str, full: str = "") -> dict[str, Any]:
    """What `verdict.json` holds and `qkv study --json` prints; no clock in it. `full`: what a full run said."""
    primary = findings.primary
    r = primary.result
    return {
        "study": question.name,
        "asks": question.asks,
        "verdict": r.verdict,
        "sentence": sentence(question, findings),
        "effect": r.effect,
        "low": r.low,
        "high": r.high,
        "unit": primary.contrast.unit,
        "margin": primary.contrast.margin,
        "seeds": r.n,
        "p": r.p,
        "run": run,
        "quick": findings.design.quick,
        "full_answer": full,
        "contrasts": [effect_row(effect) for effect in findings.effects],
        "arms": [_arm_row(figures) for figures in findings.arms],
        "not_reached": list(findings.not_reached),
        "trainings": findings.trainings,
        "intervals": intervals(primary),
        "earlier_designs": list(findings.earlier),
        "falsified_by": question.falsified_by,
        "literature": question.literature,
        "scale": scale_words(findings),
        "design": findings.design.hash,
        "protocol": findings.design.protocol,
        "software": findings.design.software,
        "source": {"name": findings.design.source_name, "sha256": findings.design.source_sha256}
        | ({"labelled": True} if findings.design.has_labels else {}),
    }
