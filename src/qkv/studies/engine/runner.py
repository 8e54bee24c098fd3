"""A study from the question to the verdict: design, estimate, trainings, findings, file.

Nothing is made before everything that can be wrong with what was asked for was looked at. The design is on disk before
the first training, every training is appended to the log when it ends, and the same command goes on with whatever is
missing, so a study may be killed at any moment and is never worse off than one training.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data.config import whole_source
from qkv.errors import ConfigError, Interrupted
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import baselines_of
from qkv.studies.designed import STUDIES
from qkv.studies.designed import Design as Designed
from qkv.studies.engine.cluster import Cluster, is_cluster
from qkv.studies.engine.design import Design
from qkv.studies.engine.estimate import Estimate, estimate
from qkv.studies.engine.store import StudyFolder, folder_of, folders_beside, full_answer, loss_of, read_rows, unlike
from qkv.studies.engine.tuning import Job, expected_runs, known_keys, pending
from qkv.studies.engine.workers import Workers, places
from qkv.studies.own import Own, of_design
from qkv.studies.own import read as read_own
from qkv.studies.question import FULL_MINUTES, QUICK_MINUTES, Ask, Question
from qkv.studies.questions import find, questions
from qkv.studies.quick import as_begun, first_words, power_words, sized
from qkv.studies.verdict.judging import findings
from qkv.studies.verdict.sentences import verdict_file
from qkv.studies.verdict.statistics import scipy
from qkv.training.session import StopSignals
from qkv.words import many, plural

_LAST_SECONDS = 8.0
"""Of a budget, to judge and to write what was found."""

Due = Callable[[], Iterable[Job]]
"""The trainings that can be made now and are missing, the most useful first."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """One training that ended, for whoever shows progress."""

    done: int
    """Trainings of this design so far."""
    expected: int
    """About how many there will be."""
    arm: str
    role: str
    loss: float


@dataclass(frozen=True, kw_only=True)
class Told:
    """Who is told what happens, and since when the clock runs."""

    progress: Callable[[Made], None] = lambda made: None
    say: Callable[[str], None] = lambda sentence: None
    started: float = 0.0
    """`time.monotonic()` when the command was typed; 0 is now."""


def run_study(
    name: str | Designed,
    source: str = "",
    *,
    seeds: int | None = None,
    minutes: float | None = None,
    quick: bool = False,
    margin: float | None = None,
    within: Path = Path("runs"),
    cache: Path | None = None,
    workers: int = 1,
    on: str = "local",
    told: Told | None = None,
) -> JsonObject:
    """Answer a question on a text; returns the verdict, which is also `verdict.json` in the study's folder.

    A study that has been begun takes any budget: what there is when it is spent is what the verdict is of. `on` is
    where it trains: local (`workers` trainings at a time), ray, or ray://HOST:PORT.

    Raises UserError for what cannot be done as asked (nothing is made then), Interrupted where it was stopped: the same
    call goes on from there.
    """
    told = told or Told()
    started = told.started or time.monotonic()
    own = own_study(name, source, quick=quick, margin=margin)
    if own and not (minutes or own.minutes):
        how = "write budget = { minutes = 60 }, or type --minutes 60" if isinstance(name, str) else "give minutes=60"
        raise ConfigError(f"{own.path}: budget is missing; {how}")
    question = own.question if own else find(str(name))
    scipy()  # without it there is no verdict, however long was trained
    if workers < 1:
        raise ConfigError(f"workers is {workers}; expected at least 1")
    is_cluster(on)  # a place that there is none of is said before anything is read
    source = own.source if own else whole_source(source)
    ask = Ask(source=source, seeds=seeds, quick=quick, margin=margin, cache=cache)
    budget = minutes if minutes is not None else own.minutes if own else QUICK_MINUTES if quick else FULL_MINUTES
    told.say(first_words(question, ask, budget))
    with places(on, workers, cache) as (size, make):
        design, expected = _sized(question, own, ask, within, size, budget, started, told)
        keys, _ = _earlier_trainings(design, source, within)
        for other in folders_beside(design, within):
            if why := unlike(design, other):
                told.say(f"No training in {other} can be used: {why}.")
        told.say(_plan(design, expected, budget) + ("" if is_cluster(on) else _few_threads(size)))
        with StudyFolder.begin(design, within) as folder:
            folder.adopt(design, keys)
            told.say(f"The design stands in {folder.path}.")
            val = design.scale.val_tokens
            baselines = baselines_of(design, lambda text: [ask.corpus(text, val, part) for part in design.scored(text)])
            with contextlib.closing(make(_expected(design))) as pool:
                end = started + 60 * budget - expected.slowest - _LAST_SECONDS
                train(lambda: pending(design, source, folder.loss), _expected(design), folder, pool, end, told)
            return _conclude(question, design, ask, folder, budget, baselines)


def own_study(
    name: str | Designed, source: str = "", *, quick: bool = False, margin: float | None = None
) -> Own | None:
    """A study of one's own, or of another package; None for a question that is built in.

    Raises ConfigError for options that it gives itself, or that it has not.
    """
    if isinstance(name, str) and name not in questions() and name in STUDIES:
        name, source = dataclasses.replace(STUDIES[name], name=name, source=source or STUDIES[name].source), ""
    if isinstance(name, str) and not name.endswith(".toml"):
        return None
    own = of_design(name) if isinstance(name, Designed) else read_own(Path(name))
    name = str(own.path)
    for option, given in (("SOURCE", source), ("--margin", margin), ("--quick", quick)):
        if given:
            how = "type --minutes for less time" if option == "--quick" else "change it there"
            raise ConfigError(f"{name} says what is trained on and judged, so leave {option} out; {how}")
    return own


def _sized(
    question: Question, own: Own | None, ask: Ask, within: Path, workers: int, budget: float, started: float, told: Told
) -> tuple[Design, Estimate]:
    """The design, as large as its time allows if that decides, and what it takes; says what it will answer.

    One that was begun keeps its size and takes any budget. Raises ConfigError for a budget that is too small.
    """

    def spent() -> float:
        return (time.monotonic() - started) / 60

    expected, again = None, as_begun(question.design, ask, within) if ask.quick else None
    if own:
        design, expected = own.fitted(ask, within, workers, budget, spent)
        begun = expected is None
    else:
        design = question.design(again or ask)
        begun = again is not None or _earlier_trainings(design, ask.source, within)[1]

    def enough(main: Estimate) -> None:
        nonlocal design
        if begun:
            return
        if ask.quick and design.primary.tries == 1:
            design = question.design(sized(question.design, ask, design, main, budget - spent()))
        longer = main.of_steps(design.scale.steps)
        longer.check(design, budget, spent())
        told.say(_main_words(design, longer, budget))

    if expected is None:
        expected = estimate(design, ask.source, ask.cache, workers, enough).of_steps(design.scale.steps)
    elif not begun:
        told.say(_main_words(design, expected, budget))
    if not begun:
        told.say(expected.reach(design, budget, spent()))
    return design, expected


def _earlier_trainings(design: Design, source: str, within: Path) -> tuple[frozenset[str], bool]:
    """Keys of trainings that may be taken over from folders beside, and whether any training counts already."""
    beside = folders_beside(design, within)
    own, *others = ({row["key"]: row for row in read_rows(path)} for path in (folder_of(design, within), *beside))
    there = {key: row for rows in (*others, own) for key, row in rows.items() if "arm" in row}
    keys = known_keys(design, source, lambda key: loss_of(there.get(key))) if others else frozenset()
    return keys, bool(keys) or any("arm" in row for row in own.values())


def _plan(design: Design, expected: Estimate, budget: float) -> str:
    """What is about to be done, in one line."""
    steps = sorted({design.scale.steps, *(dict(arm.sizes).get("steps", design.scale.steps) for arm in design.arms)})
    return (
        f"{len(design.arms)} arms x {design.replicates} replicates, about {_expected(design):,} trainings of"
        f" {' to '.join(f'{n:,}' for n in dict.fromkeys((steps[0], steps[-1])))} steps:"
        f" {expected.minutes(design.replicates):.1f} minutes on {many(expected.workers, 'core')} in all;"
        f" the budget is {budget:g} {plural(budget, 'minute')}."
    )


def _main_words(design: Design, main: Estimate, budget: float) -> str:
    """What the main question will have, and how small an effect it can see, before anything is trained."""
    arms, text = [name for name in main.primary if name in design.primary.arms], dict(design.texts)
    words = [
        power_words(design, budget),
        f"Its main question takes {design.replicates} replicates of {' and '.join(arms)}, {design.scale.steps:,} steps"
        f" each, about {main.minutes(design.replicates, main.primary):.1f} minutes.",
    ]
    if design.slices == 1 and any(text[design.arm(name).text].stream == "text" for name in arms):
        words.append(
            "Replicates share the text, which is too short for a slice each or is measured whole: the interval is over"
            " seeds on one text."
        )
    return " ".join(filter(None, words))


def _few_threads(workers: int) -> str:
    """Why so few trainings run at a time here, where many more could, and how to have more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers >= min(cores, max(2, cores // 2)):
        return ""
    return (
        f" That is one training for each thread torch may use; this machine has {cores} processors, and"
        f" OMP_NUM_THREADS={cores} (in Python torch.set_num_threads({cores})) lets a study use them all."
    )


def _expected(design: Design) -> int:
    return round(sum(expected_runs(design, arm) for arm in design.arms) * design.replicates)


def train(due: Due, expected: int, folder: StudyFolder, pool: Workers | Cluster, deadline: float, told: Told) -> None:
    """Make every training that is due, as long as there is time. `expected`: about how many there are in all.

    Raises Interrupted where it was stopped.
    """
    running: dict[str, Job] = {}
    done = sum(1 for row in folder.trainings)
    with StopSignals() as signals:
        while True:
            over = signals.received() or time.monotonic() >= deadline
            if not over:
                _fill(due, pool, running)
            if not running:
                break
            try:
                job, row = pool.finished(signals.received)
            except Interrupted as stopped:
                raise _stopped(folder, signals.exit_status or stopped.exit_status) from None
            del running[job.trial.key]
            about = {"key": job.trial.key, "arm": job.trial.arm.name, "replicate": job.replicate, "role": job.role}
            folder.append({**about, "k": job.k, **row})
            done += 1
            told.progress(Made(done=done, expected=expected, arm=job.trial.arm.name, role=job.role, loss=row["loss"]))
        if signals.received():
            raise _stopped(folder, signals.exit_status)


def _fill(due: Due, pool: Workers | Cluster, running: dict[str, Job]) -> None:
    """Give every free worker something to do."""
    if len(running) >= pool.size:
        return
    for job in due():
        if job.trial.key not in running:
            running[job.trial.key] = job
            pool.start(job)
            if len(running) >= pool.size:
                return


def _stopped(folder: StudyFolder, status: int) -> Interrupted:
    return Interrupted(
        f"stopped; {many(len(folder.trainings), 'training')} kept in {folder.path}, and the same command"
        " goes on from there",
        exit_status=status,
    )


def _conclude(
    question: Question, design: Design, ask: Ask, folder: StudyFolder, budget: float, baselines: Sequence[JsonMapping]
) -> JsonObject:
    """Work out what was found and write it down."""
    found = findings(design, folder, ask.source, question.derive)
    full = full_answer(design, folder.path.parent) if design.quick else ""
    counted = question.counted(ask, design) if question.counted else ""
    verdict = verdict_file(question, found, str(folder.path), full, counted, baselines)
    verdict |= {"budget_minutes": budget, "planned_trainings": _expected(design)}
    folder.conclude(verdict)
    return verdict
