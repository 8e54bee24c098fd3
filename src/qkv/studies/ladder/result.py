"""What a ladder found, as JSON, and the sentences of terminal and page."""

from collections.abc import Sequence

import numpy as np

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import baselines_of
from qkv.studies.ladder.plan import Cell, name_of
from qkv.studies.ladder.rungs import Climb
from qkv.studies.ladder.trend import NO_TREND, Figure, Trend
from qkv.studies.question import Question
from qkv.studies.verdict.sentences import two_digits
from qkv.studies.verdict.statistics import t_interval
from qkv.studies.verdict.wording import OPTIMIZERS, unit_words
from qkv.words import EN_DASH, in_words, listed, many

FORMAT = 1
FAR = 124e6
"""Weights of the model that the line is extended to: those of GPT-2 small."""
_NEAR_RATE = 0.01
"""Nats per token that count as a third of the margin where that is not in nats."""
_POINTS = 25
"""Sizes at which a line is kept with the interval of an effect there."""
_USUAL = 20.0
"""Tokens per weight that the prediction far outside is of, where the ladder has them."""


def result_of(question: Question, climb: Climb, plan: JsonMapping, spent: float) -> JsonObject:
    """`ladder.json`: the trend and its verdict, every cell, predictions and what became of them, rates, cost."""
    contrast, design = climb.contrast, climb.any
    val = design.scale.val_tokens
    baseline = baselines_of(design, lambda text: [climb.ask.corpus(text, val, part) for part in design.scored(text)])[0]
    cells = [_cell(climb, cell, baseline["nats"]) for cell in climb.cells]
    sizes = {cell.size for cell in climb.cells if climb.values(cell)}
    trend = climb.trend(climb.cells) if len(sizes) > 2 else None
    top = next(row for row in reversed(cells) if row["size"] == name_of(climb.largest))
    lines = list(dict.fromkeys(cell.per_weight for cell in climb.cells if climb.values(cell)))
    found: JsonObject = {
        "format": FORMAT, "ladder": True, "study": question.name, "asks": question.asks,
        "of": question.label(contrast.name, contrast.what), "unit": f"{contrast.unit} per tenfold weights",
        "effect_unit": contrast.unit, "margin": contrast.margin, "seeds": design.replicates, "cells": cells,
        "run": str(climb.folder.path),
        "baseline": {"ngram": baseline["nats"], "trained": top["loss"]}, "counted": baseline["what"],
        "source": {"name": design.source_name, "sha256": design.source_sha256}, "software": design.software,
        "recipe": sorted({arm.optimizer for arm in design.arms}), "expected": None, "otherwise": [],
        "predictions": _judged(climb), "rates": _rates(climb), "left_out": plan["left_out"],
        "minutes": {"budget": plan["minutes"], "predicted": plan["predicted_minutes"], "workers": plan["workers"],
                    "this_call": round(spent, 2),
                    "trained": round(sum(row["seconds"] for row in climb.folder.trainings) / 60, 2)},
        "trainings": len(climb.folder.trainings), "published": [vars(one) for one in question.ladder.published],
        "not_reached": [cell["name"] for cell in cells if cell["effect"] is None], **_trend(trend, lines),
    }  # fmt: skip
    found["condition"] = condition_words(found)
    found["sentence"] = sentence(found)
    return found


def _cell(climb: Climb, cell: Cell, ngram: float) -> JsonObject:
    """One cell in figures: its effect with the interval over seeds, losses by arm, passes and rates."""
    values, rows = climb.values(cell), climb.rows(cell)
    arms = {arm.name: [row["loss"] for (name, _), row in rows.items() if name == arm.name] for arm in climb.any.arms}
    losses = {arm: float(np.mean(of)) for arm, of in arms.items() if of} if values else {}
    loss = min(losses.values(), default=None)
    low, high = t_interval(values) if values else (None, None)
    rates = {arm: sorted({row["lr"] for (name, _), row in rows.items() if name == arm}) for arm in arms}
    return {
        "size": name_of(cell.size), "tokens_per_weight": cell.per_weight, "weights": cell.n_weights, "name": cell.name,
        "steps": cell.steps, "tokens": cell.n_tokens, "unique_tokens": cell.n_unique, "epochs": round(cell.epochs, 3),
        "effect": float(np.mean(values)) if values else None, "low": low, "high": high, "values": values, "loss": loss,
        "losses": losses, "below_ngram": loss is not None and loss >= ngram, "rates": rates,
        "diverged": sum(row["diverged"] for row in rows.values()),
    }  # fmt: skip


def _trend(trend: Trend | None, lines: Sequence[float]) -> JsonObject:
    """The trend in figures; all None where fewer than three sizes are complete."""
    if trend is None:
        names = ("effect", "low", "high", "p", "first", "last", "crossing", "far", "lack_of_fit")
        return {"verdict": NO_TREND, "lines": [], **dict.fromkeys(names)}
    slope, (first, last) = trend.slope(), (10**end for end in trend.ends)
    line = _USUAL if _USUAL in lines else lines[-1]
    far, sizes = vars(trend.predicted(FAR, line)), np.geomspace(first, FAR, _POINTS).round().tolist()
    drawn = [
        {"tokens_per_weight": one, "first": vars(trend.at(first, one)), "last": vars(trend.at(last, one)),
         "far": vars(trend.predicted(FAR, one)),
         "curve": [{"weights": size, **vars(trend.predicted(size, one))} for size in sizes]}
        for one in lines
    ]  # fmt: skip
    return {
        "verdict": trend.verdict(), "effect": slope.value, "low": slope.low, "high": slope.high, "p": None,
        "first": {"weights": round(first), **vars(trend.at(first))},
        "last": {"weights": round(last), **vars(trend.at(last))},
        "crossing": _sizes(trend.crossing(line)), "lack_of_fit": trend.lack_of_fit**0.5, "lines": drawn,
        "far": {"weights": FAR, "tokens_per_weight": line, "decades": round(float(np.log10(FAR / last)), 2), **far},
    }  # fmt: skip


def _sizes(crossing: Figure | None) -> JsonObject | None:
    """A size with its interval, whose upper end is None where it lies out of sight."""
    if crossing is None:
        return None
    return {**vars(crossing), "high": crossing.high if np.isfinite(crossing.high) else None}


def _judged(climb: Climb) -> list[JsonObject]:
    """Every prediction of the log, with what was measured afterwards and whether that lies in its interval."""
    measured = {(name_of(cell.size), cell.per_weight): climb.values(cell) for cell in climb.cells}
    judged = []
    for row in (row for row in climb.folder.rows.values() if "predictions" in row):
        for one in row["predictions"]:
            values = measured.get((one["size"], one["tokens_per_weight"]))
            effect = float(np.mean(values)) if values else None
            held = None if effect is None else one["low"] <= effect <= one["high"]
            judged.append({**one, "at": row["at"], "log_before": row["log_before"], "measured": effect, "held": held})
    return judged


def _rates(climb: Climb) -> JsonObject:
    """The law of rates, and whether half or twice the rate of an arm is better at the largest size."""
    near = climb.contrast.margin / 3 if climb.contrast.unit == "nats per token" else _NEAR_RATE
    checks = {
        arm: {"losses": three, "gain": three[1] - min(three), "better": ("half", "", "twice")[three.index(min(three))]}
        for arm, three in climb.checked.items()
    }
    return {**climb.law, "size": name_of(climb.largest), "near": near, "checks": checks,
            "holds": all(check["gain"] <= near for check in checks.values()) if checks else None}  # fmt: skip


# words

_SAID = {
    "shrinks": "The effect shrinks as models grow",
    "grows": "The effect grows with the size of the model",
    "reverses": "The effect reverses as models grow",
    "does not depend on size": "The effect does not depend on the size of the model",
    NO_TREND: "Inconclusive: these sizes do not show whether the effect depends on the size of the model",
}


def _bounds(row: JsonMapping, unit: str) -> str:
    return f"{two_digits(row['low'], unit)} to {two_digits(row['high'], unit)}"


def counting_sentence(found: JsonMapping) -> str:
    """Whether the largest models beat the best n-gram: what is said first."""
    ngram, trained = found["baseline"]["ngram"], found["baseline"]["trained"]
    top = max(found["cells"], key=lambda row: row["weights"])["size"]
    if trained is None:
        return f"The largest size, {top}, was not reached in time; the same command continues."
    compared = f"{trained:.2f} nats per token against {ngram:.2f} for the best n-gram"
    if trained < ngram:
        return f"The largest models ({top}) beat counting: {compared}."
    return (
        f"The largest models ({top}) predict worse than counting ({compared}), so this trend is about models that have"
        " not yet learned the text."
    )


def trend_sentence(found: JsonMapping) -> str:
    """The verdict with its slope, and the effect at both ends."""
    unit, said = found["effect_unit"], _SAID[found["verdict"]]
    if found["effect"] is None:
        return f"{said}; fewer than three sizes are complete."
    first, last = found["first"], found["last"]
    same = found["verdict"] == "does not depend on size"
    within = f" (change within ±{found['margin']:g} {unit_words(unit)})" * same
    return (
        f"{said}{within}. It is {two_digits(first['value'], unit)} {unit_words(unit)} at {in_words(first['weights'])}"
        f" weights, by a straight line, and {two_digits(last['value'], unit)} at {in_words(last['weights'])}. Ten times"
        f" as many weights change it by {two_digits(found['effect'], unit)} (95% interval {_bounds(found, unit)})."
    )


def sentence(found: JsonMapping) -> str:
    """The result in words: counting first, then the trend, then the prediction."""
    return " ".join(filter(None, (counting_sentence(found), trend_sentence(found), predicted_sentence(found))))


def predicted_sentence(found: JsonMapping) -> str:
    """What the smaller sizes said of the largest before it was trained, and how many such predictions held."""
    judged = [row for row in found["predictions"] if row["held"] is not None]
    if not judged:
        return ""
    unit, row = found["effect_unit"], judged[-1]
    held = sum(one["held"] for one in judged)
    return (
        f"Before {row['size']} was trained, the smaller sizes predicted {two_digits(row['value'], unit)}"
        f" ({_bounds(row, unit)}) at {row['tokens_per_weight']:g} tokens per weight; it came to"
        f" {two_digits(row['measured'], unit)}. {held} of {many(len(judged), 'prediction')} held."
    )


def further_sentences(found: JsonMapping) -> list[str]:
    """What else a reader should know: other sizes, the margin, rates, repeats, cost, what is missing."""
    unit, rates, cost = found["effect_unit"], found["rates"], found["minutes"]
    said = []
    if (far := found["far"]) and found["verdict"] == NO_TREND:
        said.append("Since these sizes show no trend, no line is continued beyond them.")
    elif far:
        said.append(
            f"Extrapolated {far['decades']:.1f} decades beyond the largest size, the line gives"
            f" {two_digits(far['value'], unit)} {unit_words(unit)} at {far['weights'] / 1e6:.0f} million weights (95%"
            f" interval {_bounds(far, unit)}, if it stays a line)."
        )
        if crossing := found["crossing"]:
            last = in_words(crossing["high"]) if crossing["high"] else "more than can be said"
            said.append(
                f"The line crosses the margin of {found['margin']:g} at about {in_words(crossing['value'])}"
                f" weights (95% interval {in_words(crossing['low'])} to {last})."
            )
        else:
            said.append(f"The line crosses the margin of {found['margin']:g} nowhere near these sizes.")
    if rates["slope"] is not None:
        sd = "" if rates["sd"] is None else f" (standard deviation {rates['sd']:.2f} over {rates['n']} tuned pairs)"
        said.append(
            "Learning rates follow a law fitted at the two smallest sizes: proportional to the number of weights to the"
            f" power of {rates['slope']:.2f}{sd}."
        )
    checked = next((row["name"] for row in found["cells"] if row["size"] == rates["size"]), rates["size"])
    for arm, check in rates["checks"].items():
        verdict = "neither half nor twice that rate is better"
        if check["better"]:
            more = "more" if check["gain"] > rates["near"] else "no more"
            verdict = f"{check['better']} that rate is better by {check['gain']:.3f} nats per token, {more} than"
            verdict += f" {'a third of the margin' * (unit == 'nats per token') or 'the limit'} ({rates['near']:g})"
        said.append(f"The arm ‘{arm}’ at {checked}, in one seed, at the rate that the law gives it: {verdict}.")
    said.append(
        f"Predicted before training: {cost['predicted']:.3g} minutes on {many(cost['workers'], 'core')}. The trainings"
        f" took {cost['trained']:.3g} core-minutes, this call {cost['this_call']:.3g} minutes."
    )
    if found["not_reached"]:
        said.append(f"Not reached in time: {', '.join(found['not_reached'])}. The same command continues.")
    if found["left_out"]:
        said.append(f"Left out before training: {found['left_out']}.")
    return said


def published_sentences(found: JsonMapping) -> list[str]:
    """What others found at other sizes, as their sources have it, and what differs there."""
    return [
        f"Published, {two_digits(row['effect'], row['unit'])} {unit_words(row['unit'])} at"
        f" {in_words(row['weights'], 3)} weights: {row['source']}. What differs: {row['differs']}."
        for row in found["published"]
    ]


def condition_words(found: JsonMapping) -> str:
    """What was trained: sizes, lengths, seeds, text and recipe, and how often tokens are read."""
    cells = found["cells"]
    sizes = list(dict.fromkeys(row["size"] for row in cells))
    lengths = [f"{n:g}" for n in dict.fromkeys(row["tokens_per_weight"] for row in cells)]
    epochs, recipe = [row["epochs"] for row in cells], [OPTIMIZERS.get(str(one), str(one)) for one in found["recipe"]]
    return (
        f"At sizes (d_model x layers) {listed(sizes)}, {listed(lengths)} tokens per weight (all weights of the model"
        f" count, embeddings included), {found['seeds']} seeds with a slice of {found['source']['name']} each, trained"
        f" with {listed(recipe)}. A slice has {cells[0]['unique_tokens']:,} tokens, which a training reads"
        f" {min(epochs):.2g} to {max(epochs):.2g} times."
    )


def cell_columns(found: JsonMapping) -> tuple[str, ...]:
    """The head of the table of cells, with a loss for each arm."""
    losses = (f"loss: {arm}" for arm in arms_of(found))
    return "size", "tokens per weight", "weights", *losses, "effect", "95% interval", "passes", "best n-gram"


def arms_of(found: JsonMapping) -> list[str]:
    """The arms of a ladder, in the order of the first complete size."""
    return list(next((row["losses"] for row in found["cells"] if row["losses"]), {}))


def cell_cells(row: JsonMapping, found: JsonMapping) -> tuple[str, ...]:
    """One cell for a table."""
    unit = found["effect_unit"]
    arms = arms_of(found)
    figures, beats = [EN_DASH] * (len(arms) + 2), EN_DASH
    if row["effect"] is not None:
        losses = (f"{row['losses'][arm]:.3f}" for arm in arms)
        figures = [*losses, two_digits(row["effect"], unit), _bounds(row, unit)]
        beats = "not beaten" if row["below_ngram"] else "beaten"
    weights = f"{row['weights']:,}"
    return row["size"], f"{row['tokens_per_weight']:g}", weights, *figures, f"{row['epochs']:.2g}", beats
