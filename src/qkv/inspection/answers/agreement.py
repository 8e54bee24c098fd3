"""Does this run agree with the kept answers? Headlines of studies that a run could contradict, compared with the run.

A headline holds for the models it was measured on, so a run of the default recipe is compared with the study of that
recipe (`DEFAULT_CLAIMS`), any other run with the studies of the textbook one (`CLAIMS`). Both list what one causal run
has a number for, in `claims.toml`; the studies' numbers and conditions are in `kept_answers.json`, which
`docs/generate.py` writes.
A run's numbers come from its telemetry and weights, or, where a pass through the model is needed, from `passes`, which
training makes at its end and keeps as the fact `agreement`.
"""

import contextlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.errors import AddressError, QkvError
from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.changepoints import half_way
from qkv.inspection.one_text import float64_copy
from qkv.inspection.token_rows import summary
from qkv.inspection.what_moved import first_queries_moved
from qkv.instruments.gradients import gradient_path
from qkv.instruments.probe import spread_windows
from qkv.jsontypes import JsonObject
from qkv.models.layout import require_attention
from qkv.models.zoo import LanguageModel
from qkv.tasks.batch import Batch
from qkv.tasks.task import Data, Objective
from qkv.words import between, listed, many, signed

KEPT = Path(__file__).parent / "kept_answers.json"
"""What the studies found, by study and contrast."""
POSITIONS = 64
"""Of each window that is passed through the model, the first so many."""
MOST_PARAMETERS = 20_000_000
"""Of larger models no passes are made: in float64 they would take long."""
_CALLED = {
    "adamw": "AdamW",
    "muon": "Muon",
    "sgd": "SGD",
    "gpt2": "N(0, 0.02)",
    "xavier": "Glorot's",
    "zero_out": "zero output matrices",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A headline that a run could contradict."""

    study: str
    contrast: str
    """Its name in the kept results."""
    arm: str
    """The arm whose models it is about."""
    words: str
    """The headline, a clause."""
    measure: str
    """What the number is, a noun phrase."""
    within: float | None = None
    """It says that the number is within this of 0; None: it says the number's sign."""
    least: float = 0.0
    """Of the study's number, the share that the run's must reach to have the same sign in more than name."""
    is_step: bool = False
    passed: bool = True
    """Whether the run's number needs a pass through the model."""
    key: str = ""
    """What `passes` and the number's other sources call it; empty is the contrast's name."""

    @property
    def number(self) -> str:
        """The name of the run's number."""
        return self.key or self.contrast

    def agrees(self, here: float, there: float) -> bool:
        """Whether a run's number bears the headline out, given the study's."""
        if self.within is not None:
            return abs(here) <= self.within
        return here * there > 0 and abs(here) >= self.least * abs(there)


def _claims(recipe: str) -> tuple[Claim, ...]:
    rows = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))[recipe]
    return tuple(Claim(**row) for row in rows)


CLAIMS = _claims("textbook")
DEFAULT_CLAIMS = _claims("default")
"""The same of the recipe that `qkv train` uses unless told otherwise."""


@dataclass(frozen=True)
class Check:
    """One headline and what this run says of it."""

    claim: Claim
    sentence: str
    here: float | None
    """The run's number; None where it has none."""
    there: float
    verdict: str
    """agrees, differs, or cannot be compared."""


@cache
def _kept() -> JsonObject:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def agreement(evidence: Evidence) -> Answer | None:
    """The checks of a causal run, a line each; None for other tasks, and before its end."""
    if evidence.run.task.name != "causal" or not evidence.run.summary:
        return None
    found = checks(evidence)
    compared = [check for check in found if check.here is not None]
    if not compared:
        return None
    differ = [check for check in compared if check.verdict == "differs"]
    agreeing = f"{len(compared) - len(differ)} of the {many(len(compared), 'study result')}"
    sentence = f"It agrees with {agreeing} that it can be compared with"
    sentence += f" and differs from {len(differ)}." if differ else "."
    more = [check.sentence for verdict in ("differs", "agrees") for check in found if check.verdict == verdict]
    reasons: dict[str, list[str]] = {}
    for check in found:
        if check.here is None:
            reasons.setdefault(check.sentence, []).append(check.claim.study)
    more += [f"{why} ({listed(list(dict.fromkeys(studies)))})." for why, studies in reasons.items()]
    because, first = _because(evidence, differ), (differ or compared)[0].claim
    return Answer(
        key="agreement",
        question="Does this run agree with the studies?",
        sentence=sentence,
        more=(*more, *((because,) if because else ())),
        numbers={
            f"{check.claim.contrast}, {whose}": value
            for check in found
            for whose, value in (("here", check.here), ("in the study", check.there))
        },
        null=f"Each result holds for its study's models. Those of {first.study}: {_models(first.study).rstrip('.')}.",
        weight=0.42,
    )


def checks(evidence: Evidence) -> list[Check]:
    """Every headline of a study of its recipe beside this run's number."""
    passed = evidence.telemetry.fact("agreement") or {}
    own = _own(evidence)
    claims = DEFAULT_CLAIMS if (own["optimizer"], own["start"]) == ("muon", "zero_out") else CLAIMS
    return [_check(claim, *_here(evidence, claim, passed)) for claim in claims]


def _own(evidence: Evidence) -> dict[str, str | float]:
    """The settings of a run that answers depend on most."""
    layout: JsonObject = evidence.run.settings.get("model", {}).get("layout", {})
    optimizer: JsonObject = evidence.run.settings.get("training", {}).get("optimizer", {})
    return {
        "optimizer": optimizer.get("kind", ""),
        "weight_decay": evidence.weight_decay,
        "start": layout.get("start", ""),
    }


def _check(claim: Claim, here: float | None, why_not: str) -> Check:
    kept = _kept()[claim.study]["contrasts"][claim.contrast]
    there = float(kept["effect"])
    if here is None:
        return Check(claim, f"Not compared: {why_not}", None, there, "cannot be compared")
    verdict = "agrees" if claim.agrees(here, there) else "differs"
    within = "" if kept["low"] is None else f", {between(kept['low'], kept['high'])}"
    head = f"{verdict.capitalize()}: {claim.words} ({claim.study})"
    unit = "" if kept["unit"] == "rank correlation" else f" {kept['unit']}"
    bound = f" (up to ±{claim.within:g} counts as agreeing)" if claim.within else ""
    measured = f"{claim.measure[:1].upper()}{claim.measure[1:]}: {signed(here)} here{bound}"
    sentence = f"{head}. {measured}, {signed(there)}{unit} in the study{within}."
    return Check(claim, sentence, here, there, verdict)


def _models(study: str) -> str:
    """The models of a study as short sentences, and briefly where its result is known not to hold."""
    condition, known, exception = _kept()[study]["condition"].partition(". Known not to hold")
    parts = [part[:1].upper() + part[1:] for part in condition.rstrip(".").split("; ")]
    return ". ".join(parts) + (known and known + exception.partition(" (")[0])


def _because(evidence: Evidence, differ: Sequence[Check]) -> str:
    """What is known to differ between this run and the models of the headlines that it contradicts."""
    if not differ:
        return ""
    own = _own(evidence)
    arms: list[dict[str, str | float]] = [_kept()[check.claim.study]["arms"][check.claim.arm] for check in differ]
    parts = []
    for name, here in own.items():
        there = list(dict.fromkeys(arm[name] for arm in arms))
        if there != [here]:
            others = listed([_called(value) for value in there])
            parts.append(
                f"{name.replace('_', ' ').replace('start', 'initialization')} ({_called(here)}, there {others})"
            )
    if not parts:
        return "Where it differs, its optimizer, weight decay and initialization are those of the studies."
    return f"Where it differs, this run's settings differ too: {listed(parts)}. Any of these may be the reason."


def _called(value: str | float) -> str:
    """A setting as a person reads it."""
    return _CALLED.get(value, value) if isinstance(value, str) else f"{value:g}"


def _here(evidence: Evidence, claim: Claim, passed: Mapping[str, float]) -> tuple[float | None, str]:
    """(the run's number, or None with the reason)."""
    if claim.passed:
        value = passed.get(claim.number)
        return value, "" if value is not None else "the number is recorded only with a report"
    if claim.is_step:
        return _half_way_apart(evidence)
    return _of_rows(evidence, claim)


def _half_way_apart(evidence: Evidence) -> tuple[float | None, str]:
    """The step at which W_Q and W_K together were first half as far from their start as at the end, minus that of W_V
    and W_O. From the recorded drift, whose unit is the same in every layer.
    """
    steps = []
    for kinds in (("W_Q", "W_K"), ("W_V", "W_O")):
        try:
            grids = [evidence.telemetry.grid("drift", f"L*.{kind}") for kind in kinds]
        except AddressError:
            return None, "the drift of these matrices was not recorded"
        distances = np.hypot(*(np.linalg.norm(grid.value, axis=0) for grid in grids))
        known = np.isfinite(distances)
        looks = list(zip(grids[0].step[known].tolist(), distances[known].tolist(), strict=True))
        step = half_way(looks) if len(looks) > 1 else None
        if step is None:
            return None, "one pair of them did not move"
        steps.append(step)
    return steps[0] - steps[1], ""


def _of_rows(evidence: Evidence, claim: Claim) -> tuple[float | None, str]:
    """What rows of W_E say: how far they moved, and dot products of the commonest word's."""
    table = evidence.telemetry.token_table()
    counts, drift = (evidence.telemetry.vector(table, name) for name in ("row_count", "row_drift"))
    if counts is None or drift is None or len(counts) != len(drift):
        return None, "tokens were not counted or rows not recorded"
    if claim.number.startswith("the commonest word"):
        rows = evidence.matrix(table)
        return (None, "the last weights are not kept") if rows is None else (_commonest(evidence, rows, counts), "")
    rows_moved = summary(drift, counts, evidence.specials)
    if claim.number.startswith("frequent rows"):
        correlation = rows_moved.with_count
        return correlation, "" if correlation is not None else "too few tokens occur"
    never = rows_moved.largest_unseen
    return never, "" if never is not None else "every token of the vocabulary occurs in the training text"


def _commonest(evidence: Evidence, rows: np.ndarray, counts: np.ndarray) -> float | None:
    """The mean dot product of the commonest word's row with those of all other tokens met, minus the mean of the same
    over the others, in root-mean-square dot products: `dot of the word over others` of the study's probe.
    """
    counts = np.where([i in evidence.specials for i in range(len(counts))], 0, counts)
    seen = np.flatnonzero(counts)
    if len(seen) < 3:
        return None
    order = seen[np.argsort(-counts[seen], kind="stable")]
    tokenizer = evidence.run.tokenizer
    words = [i for i in order if tokenizer is not None and tokenizer.token(int(i)).strip().isalpha()]
    met = rows[seen].astype(np.float64)
    own, n = np.square(met).sum(1), len(seen)
    means = (met @ met.sum(0) - own) / (n - 1)
    spread = math.sqrt((np.square(met.T @ met).sum() - np.square(own).sum()) / (n * (n - 1)))
    place = int(np.flatnonzero(seen == (words or list(order))[0])[0])
    return float((means[place] - np.delete(means, place).mean()) / spread) if spread else None


def passes(before: LanguageModel, model: LanguageModel, task: Objective, corpus: Data) -> dict[str, float]:
    """The numbers of `CLAIMS` that need passes through the model, by contrast, over 16 windows spread over the
    validation text, in float64; `before` is the model at its start. What a model has no such number for is left out.
    """
    windows = spread_windows(task, corpus, model.config.sizes, causal=True)
    if windows is None or windows.mask is not None or sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
        return {}
    device = next(model.parameters()).device
    ids = windows.inputs[:, : POSITIONS + 1].to(device)
    found: dict[str, float] = {}
    exact = float64_copy(model)
    with contextlib.suppress(QkvError):
        path = gradient_path(exact, task, Batch(ids[:, :-1], ids[:, 1:].flatten()), first_only=True)
        shares = path.blocks[0].shares
        found["around (trained)"] = path.crossed.get(0, 0.0)
        if "V" in shares:
            found["V - (Q + K) (trained)"] = shares["V"] - shares["Q"] - shares["K"]
    with torch.no_grad():
        record = exact.forward_recorded(ids)[1]
    if exact.embedding.W_E is not None and "L0.resid_post" in record:
        named = [_named(record[name], exact.embedding.W_E, ids) for name in ("embed", "L0.resid_post")]
        found["nearest 1 - 0 (causal)"] = 100 * (named[1] - named[0])
    with contextlib.suppress(QkvError):
        require_attention(model.sizes, model.layout)
        found["L0.q: encodings - matrix (adamw)"] = _moved_q(float64_copy(before), exact, ids, record["L0.x"])
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _named(vectors: Tensor, table: Tensor, ids: Tensor) -> float:
    """The share of vectors [batch, pos, d_model] whose nearest row of W_E, by cosine, is that of their own token."""
    rows = table / table.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return float(((vectors @ rows.T).argmax(-1) == ids).double().mean())


def _moved_q(before: LanguageModel, after: LanguageModel, ids: Tensor, x: Tensor) -> float:
    """The share of the encodings in the change of `L0.q` minus that of the matrix, the mean over texts [text, pos]; `x`
    is `L0.x` of `after`.
    """
    with torch.no_grad():
        was = before.forward_recorded(ids)[1]["L0.x"]
    shares = [change.shares for change in first_queries_moved(before, after, (was, x))]
    return float(np.mean([share["encodings"] - share["matrix"] for share in shares]))
