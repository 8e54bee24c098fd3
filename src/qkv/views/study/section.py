"""The section of a study, read from its folder: arms, curves with t intervals, the verdict, and every training made.

Reads `verdict.json`, `runs.jsonl` and `design-*.json`, also while the study still runs: then there is no verdict yet,
and `StudySection.missing` says how far it is. Runs nothing and estimates nothing.
"""

import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from qkv.errors import MissingExtra, RunFolderError
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import counting_words, yardstick
from qkv.studies.engine.store import read_rows
from qkv.studies.verdict.sentences import FORMAT, expected_words, two_digits
from qkv.studies.verdict.statistics import FEWEST, how_exact, t_interval
from qkv.studies.verdict.wording import unit_words
from qkv.views.host import VERSION, Host
from qkv.views.report.packed import payload
from qkv.words import COUNTED, EN_DASH, amount, decimals, many, plural


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEffect:
    """One contrast of a study; None where so few replicates cannot say."""

    name: str
    what: str
    unit: str
    margin: float
    expected: str
    """What was stated before the first training, and what became of it."""
    verdict: str
    effect: float | None
    low: float | None
    """Of the 95 % interval; `StudySection.effort` says of which kind."""
    high: float | None
    n: int
    p_corrected: float | None
    detectable: float | None
    values: tuple[float, ...]
    """One per replicate, of what the effect is of."""
    axis: int
    """Effects with the same number are drawn together; `axes` says which those are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyArm:
    """One arm: what was done, its loss over replicates, and its curve with t intervals."""

    name: str
    what: str
    frozen: tuple[str, ...]
    loss: float | None
    known: str
    """What its loss is to be compared with: the best n-gram, or what else is known."""
    sd: float | None
    low: float | None
    """Of the 95 % t interval of the loss."""
    high: float | None
    n: int
    rates: tuple[float, ...]
    """Learning rates that were chosen, one per replicate."""
    at_edge: int
    diverged: int
    trainings: int
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    """Validation loss by step, over the replicates that did not diverge."""
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    of: str
    """What its loss is of, in the design's words for text and task; losses of one thing share an axis."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training of the log."""

    arm: str
    role: str
    replicate: int
    lr: float
    loss: float | None
    diverged: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudySection:
    """Everything that a study's folder tells."""

    name: str
    asks: str = ""
    plain: str = ""
    """The answer for a newcomer; empty where no replicate says anything."""
    more: str = ""
    """What else the answer says."""
    brief: str = ""
    """Size, length and text of the main effect's models, in a sentence."""
    answers: tuple[str, ...] = ()
    """Names of the effects that the answer is about."""
    figures: tuple[tuple[str, ...], ...] = ()
    """Those effects to two digits, headings first."""
    math: tuple[str, ...] = ()
    """What is asked, as formulas."""
    condition: str = ""
    """What the answer was measured at, and where it is known not to hold."""
    counting: str = ""
    """How the trained models compare with counting."""
    sentence: str = ""
    full_answer: str = ""
    quick: bool
    effects: tuple[StudyEffect, ...] = ()
    arms: tuple[StudyArm, ...] = ()
    not_reached: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What has to be known beside the table of effects."""
    told: tuple[tuple[str, str], ...] = ()
    """Headings and words: what would change the answer, expectations, what was published."""
    design: str
    """Hash of the design."""
    designs: tuple[int, ...]
    """Replicates of every design of this protocol that was written down, in that order."""
    source: str
    software: str = ""
    runs: tuple[StudyRun, ...]
    effort: str = ""
    """Trainings made and planned, the budget, and what the intervals of effects are."""
    accounts: tuple[tuple[str, ...], ...] = ()
    """Effects that are read side by side, headings first."""
    missing: str = ""
    """Why there is no verdict, empty where there is one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyPayload:
    """What the page of a study is given."""

    host: Host
    study: StudySection
    version: int = VERSION


def is_study(folder: str | Path) -> bool:
    """Whether a folder is a study's."""
    place = Path(folder)
    return (place / "verdict.json").is_file() or any(place.glob("design-*.json"))


def read_study(folder: Path, host: Host) -> StudyPayload:
    """The payload of a study's folder. Raises RunFolderError where it is no study or was changed by hand."""
    verdict = _json(folder / "verdict.json")
    if verdict and verdict.get("format") != FORMAT:
        raise RunFolderError(
            f"{folder}/verdict.json has another format than this version writes; type the same qkv study command again:"
            " every training in the folder counts"
        )
    rows = list(read_rows(folder))
    return StudyPayload(host=host, study=study_section(verdict, rows) if verdict else _unfinished(folder, rows))


def study_section(verdict: JsonMapping, rows: Iterable[JsonMapping] = ()) -> StudySection:
    """A verdict and the log it rests on. Without the log there are mean curves and no intervals around them."""
    rows, verdict = list(rows), as_shown(verdict)
    reported = _reported(rows)
    effects = []
    for row, axis in zip(verdict["contrasts"], axes(verdict["contrasts"]), strict=True):
        own = {"unit": unit_words(row["unit"]), "expected": expected_cell(row, verdict), "values": values_of(row)}
        effects.append(payload(StudyEffect, row, **own, axis=axis))
    return payload(
        StudySection,
        verdict,
        name=verdict["study"],
        answers=tuple(row["name"] for row in answering(verdict)),
        figures=(ANSWER_COLUMNS, *map(answer_cells, answering(verdict))),
        counting=counting_words(verdict),
        effects=tuple(effects),
        arms=tuple(
            _arm(arm, reported[arm["name"]], of, yardstick(verdict, arm))
            for arm, of in zip(verdict["arms"], _of(verdict["arms"]), strict=True)
        ),
        told=tuple(expectations(verdict)),
        designs=_designs(rows, (*verdict["earlier_designs"], verdict["seeds"])),
        source=f"{verdict['source']['name']}, sha256 {verdict['source']['sha256'][:16]}",
        runs=_runs(rows),
        effort=effort(verdict),
        accounts=tuple(accounts_table(verdict)),
    )


def as_shown(verdict: JsonMapping) -> JsonMapping:
    """The verdict without rows that are empty for lack of time.

    Effects that no replicate measured are listed with the arms that were not reached. The main effect keeps its row.
    """
    if not verdict["not_reached"]:
        return verdict
    first, *others = verdict["contrasts"]
    missing = [row["what"] for row in others if not row["n"]]
    effects = [f"no replicate measured {what}" for what in missing]
    return {
        **verdict,
        "contrasts": [first, *(row for row in others if row["n"])],
        "arms": [arm for arm in verdict["arms"] if arm["trainings"]],
        "not_reached": [*verdict["not_reached"], *effects],
    }


def expectations(verdict: JsonMapping) -> list[tuple[str, str]]:
    """(heading, words): what became of the expectations, what would show the answer or them to be wrong, and what was
    published.
    """
    stated = [row for row in verdict["contrasts"] if row["expected"]]
    failed = [
        f"{row['what']}, {two_digits(row['effect'], row['unit'])} {unit_words(row['unit'])} (expected"
        f" {expected_words(row['expected'], _whats(verdict))})"
        for row in stated
        if row["outcome"] == "failed"
    ]
    met, is_open = (sum(row["outcome"] == outcome for row in stated) for outcome in ("met", "open"))
    said = " ".join([f"{len(failed)} failed, {met} met, {is_open} open.", *(f"Failed: {one}." for one in failed)])
    told = [
        ("What would show this answer to be wrong", verdict["refuted_by"]),
        (f"Expectations stated before training ({len(stated)})", said * bool(stated)),
        ("What would show the expectation to be wrong", verdict["falsified_by"]),
        ("What has been published", verdict["literature"]),
    ]
    return [(heading, words) for heading, words in told if words]


def answering(verdict: JsonMapping) -> list[JsonMapping]:
    """The rows of the effects that the answer is about; of a file that does not name them, the main effect."""
    rows = {row["name"]: row for row in verdict["contrasts"]}
    names = verdict.get("answers") or [verdict["contrasts"][0]["name"]]
    return [rows[name] for name in names if name in rows]


ANSWER_COLUMNS = ("effect", "estimate", "95% interval", "verdict", "n")


def answer_cells(row: JsonMapping) -> tuple[str, ...]:
    """One effect that an answer is about, to two digits."""
    effect, low, high = (two_digits(row[name], row["unit"]) for name in ("effect", "low", "high"))
    bounds = EN_DASH if row["low"] is None else f"{low} to {high}"
    return row["what"], f"{effect} {unit_words(row['unit'])}", bounds, row["verdict"], f"{row['n']:,}"


def _whats(verdict: JsonMapping) -> dict[str, str]:
    return {row["name"]: row["what"] for row in verdict["contrasts"]}


def expected_cell(row: JsonMapping, verdict: JsonMapping) -> str:
    """What was expected of an effect and what became of it; empty where nothing was."""
    return f"{expected_words(row['expected'], _whats(verdict))}: {row['outcome']}" if row["expected"] else ""


def number(value: float | None, unit: str = "") -> str:
    """Three decimals, or two digits; whole numbers of a `COUNTED` unit; a dash for what is undefined."""
    if unit in COUNTED and value is not None and math.isfinite(value):
        return amount(value, signed=False, unit=unit)
    return decimals(value, least=0.01, undefined=EN_DASH, infinite=EN_DASH)


def accounts_table(verdict: JsonMapping) -> list[tuple[str, ...]]:
    """Effects that are read side by side, each with its interval: a row of headings, then the rows; empty where there
    are none.
    """
    told = verdict["accounts"]
    effects = {row["name"]: row for row in verdict["contrasts"] if row["n"]}
    if not told:
        return []
    unit = next((effects[name]["unit"] for _, names in told["rows"] for name in names if name in effects), "")
    known = [(what, names) for what, names in told["rows"] if any(name in effects for name in names)]
    rows = [(what, *(_with_bounds(effects.get(name)) for name in names)) for what, names in known]
    return [(unit, *told["columns"]), *rows] if len(rows) > 1 else []


def _with_bounds(row: JsonMapping | None) -> str:
    if row is None or row["effect"] is None:
        return "–"
    bounds = "" if row["low"] is None else f" ({number(row['low'], row['unit'])} to {number(row['high'], row['unit'])})"
    return number(row["effect"], row["unit"]) + bounds


def effort(verdict: JsonMapping) -> str:
    """Trainings made and planned, the budget, and what the intervals are."""
    made = f"{many(verdict['trainings'], 'training')}"
    if "budget_minutes" in verdict:
        minutes = verdict["budget_minutes"]
        budget = f"budget of the last call {minutes:g} {plural(minutes, 'minute')}"
        made += f" (about {verdict['planned_trainings']:,} planned; {budget})"
    rule = verdict["intervals"]
    few = rule == how_exact(FEWEST) and any(1 < row["n"] < FEWEST for row in verdict["contrasts"])
    other = f"; of fewer than {FEWEST} replicates {how_exact(2)}" if few else ""
    return f"{made}; intervals: {rule}{other}"


def axes(contrasts: Sequence[JsonMapping]) -> tuple[int, ...]:
    """The number of the axis that each effect is drawn on, in their order; effects on one axis have one unit.

    Those of a unit share an axis, but for any that is more than `_LARGER` times the middle one: these have a second,
    for beside them the others would be points. The axes of a unit follow each other.
    """
    sizes: dict[str, list[float]] = defaultdict(list)
    for row in contrasts:
        sizes[row["unit"]].append(_size(row))
    middle = {unit: statistics.median_low(values) for unit, values in sizes.items()}
    keys = [(row["unit"], _size(row) > _LARGER * middle[row["unit"]]) for row in contrasts]
    units = list(middle)
    order = sorted(set(keys), key=lambda key: (units.index(key[0]), keys.index(key)))
    return tuple(map(order.index, keys))


_LARGER = 5


def _size(row: JsonMapping) -> float:
    """The furthest from 0 that anything drawn of an effect lies."""
    return max(abs(value) for value in (row["margin"], row["low"] or 0, row["high"] or 0, *values_of(row)))


def values_of(row: JsonMapping) -> tuple[float, ...]:
    """What a contrast came to in each replicate; a rate minus the one that was promised, as its effect is."""
    return tuple(value - (row["nominal"] or 0.0) for value in row["values"])


def _of(arms: Sequence[JsonMapping]) -> list[str]:
    """What each arm's loss is of: its task, and the text where the study has several for that task."""
    texts: dict[str, set[str]] = defaultdict(set)
    for arm in arms:
        texts[arm["task"]].add(arm["text"])
    return [arm["task"] + f", {arm['text']}" * (len(texts[arm["task"]]) > 1) for arm in arms]


def _arm(arm: JsonMapping, runs: Sequence[JsonMapping], of: str, known: str) -> StudyArm:
    low, high = _interval(arm["losses"])
    steps, mean, lows, highs = _curve(runs)
    if not steps and arm["curve"]:  # a verdict without its log
        steps, mean = (tuple(column) for column in zip(*arm["curve"], strict=True))
        lows = highs = (None,) * len(steps)
    curve = {"steps": steps, "mean": mean, "lows": lows, "highs": highs}
    return payload(StudyArm, arm, known=known, low=low, high=high, n=len(arm["losses"]), of=of, **curve)


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % t interval; (None, None) for fewer than two values, or where SciPy is not there to say."""
    if len(values) < 2:
        return None, None
    try:
        return t_interval(values)
    except MissingExtra:
        return None, None


Curve = tuple[tuple[int, ...], tuple[float, ...], tuple[float | None, ...], tuple[float | None, ...]]


def _curve(runs: Sequence[JsonMapping]) -> Curve:
    """(steps, mean, low, high) of the validation loss of reported runs that have a curve."""
    curves = [row["curve"] for row in runs if row.get("curve")]
    if not curves:
        return (), (), (), ()
    steps = tuple(int(point[0]) for point in curves[0])
    curves = [curve for curve in curves if tuple(int(point[0]) for point in curve) == steps]
    losses = np.array([[point[1] for point in curve] for curve in curves])
    bounds = [_interval(column.tolist()) for column in losses.T]
    lows, highs = zip(*bounds, strict=True)
    return steps, tuple(losses.mean(0).tolist()), tuple(lows), tuple(highs)


def _reported(rows: Iterable[JsonMapping]) -> dict[str, list[JsonMapping]]:
    """The reported run of each replicate, by arm: the last one where a design was followed by a larger one."""
    found: dict[str, dict[int, JsonMapping]] = defaultdict(dict)
    for row in rows:
        if row.get("role") == "report":
            found[row["arm"]][row["replicate"]] = row
    return defaultdict(list, {arm: list(by_replicate.values()) for arm, by_replicate in found.items()})


def _designs(rows: Iterable[JsonMapping], otherwise: Sequence[int]) -> tuple[int, ...]:
    return tuple(row["replicates"] for row in rows if "design" in row) or tuple(otherwise)


def _runs(rows: Iterable[JsonMapping]) -> tuple[StudyRun, ...]:
    made = (row for row in rows if "arm" in row)
    return tuple(payload(StudyRun, row, loss=None if row["diverged"] else row["loss"]) for row in made)


def _unfinished(folder: Path, rows: Sequence[JsonMapping]) -> StudySection:
    """What there is before the verdict: the question of the newest design, and the log so far."""
    written = [row["design"] for row in rows if "design" in row]
    designs = [found for path in sorted(folder.glob("design-*.json")) if (found := _json(path))]
    if not designs:
        raise RunFolderError(f"{folder} is no study: it has neither a verdict.json nor a design")
    design = next((d for d in designs if written and d["hash"] == written[-1]), designs[-1])
    done = sum("arm" in row for row in rows)
    return StudySection(
        name=design["study"],
        quick=bool(design.get("quick")),
        design=design["hash"],
        designs=_designs(rows, (design["replicates"],)),
        source=str(design.get("source_name", "")),
        runs=_runs(rows),
        missing=f"No verdict yet: {done} {plural(done, 'training')} made so far, of {len(design['arms'])} arms in "
        f"{design['replicates']} replicates and the learning rates they are tuned over.",
    )


def _json(path: Path) -> JsonObject | None:
    """A JSON object; None where there is no such file. Raises RunFolderError where it is damaged."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunFolderError(f"{path} is damaged; run the study again, it goes on from its log") from None
