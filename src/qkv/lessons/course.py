"""The lessons: their texts from lessons.toml with the numbers of `facts`, on a terminal and in the page.

A lesson has an aim and two or three steps. A step says what to do, asks for a prediction, and then reveals the answer.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from qkv.errors import UserError, unknown
from qkv.folder.run_folder import check_place, write_atomically
from qkv.lessons.facts import FACTS, SENTENCE
from qkv.views.learn import page as whole_page
from qkv.views.report.bundle import bundle, script_safe, static_text


@dataclass(frozen=True)
class Step:
    """One prediction and its answer; `drive` is what the page shows meanwhile."""

    do: str
    ask: str
    choices: tuple[str, ...]
    answer: str
    drive: Mapping[str, str | int | list[str]]
    """sentence, token (its place), head, at (first or last), `then` (the same once it is answered), switches."""


@dataclass(frozen=True)
class Lesson:
    """One lesson, its numbers filled in."""

    name: str
    title: str
    aim: str
    minutes: int
    steps: tuple[Step, ...]


TEXTS = tomllib.loads((files("qkv.lessons") / "lessons.toml").read_text("utf-8"))
"""Name -> the lesson as data, with braces where numbers go."""


@lru_cache
def lesson(name: str) -> Lesson:
    """The lesson of that name. Raises UserError for another name."""
    if name not in TEXTS:
        raise UserError(unknown("lesson", name, TEXTS))
    told, facts = TEXTS[name], FACTS[name]()
    steps = []
    for step in told["steps"]:
        words = {key: step[key].format(**facts) for key in ("do", "ask", "answer")}
        drive = {"sentence": SENTENCE, **step["drive"]}
        drive["head"] = int(str(drive["head"]).format(**facts))
        steps.append(Step(choices=tuple(step["choices"]), drive=drive, **words))
    return Lesson(name, told["title"], told["aim"], told["minutes"], tuple(steps))


def lines(name: str, pause: Callable[[], object] = lambda: None) -> Iterator[str]:
    """A lesson line by line for a terminal; `pause` is called between each prediction and its answer."""
    one = lesson(name)
    yield from (f"{one.title}  ({one.minutes} minutes)", f"Aim: {one.aim}", f"Sentence: {SENTENCE}")
    for number, step in enumerate(one.steps, 1):
        place = step.drive["sentence"]
        yield from ("", f"{number}. {step.ask}", f"   Predict: {' / '.join(step.choices)}")
        if place != SENTENCE:
            yield f"   Sentence: {place}"
        pause()
        yield f"   Answer: {step.answer}"


def write_page(path: Path, run: Path | None = None) -> None:
    """Write the page "What is trained in self-attention?" with the lessons in it; with `run`, that run and no lessons.

    Raises UserError where the place is none or the folder is no run, StorageError where the file cannot be written.
    """
    check_place(path)
    if run is not None:
        return whole_page.write(path, run)
    payload = json.dumps([asdict(lesson(name)) for name in TEXTS], ensure_ascii=False).replace("</", "<\\/")
    parts = (
        f"<style>{static_text('course.css')}</style>",
        f'<script type="application/json" id="lessons">{payload}</script>',
        f"<script>{script_safe(bundle('course.js'))}</script>",
    )
    before, end, after = whole_page.page().rpartition("</body>")
    write_atomically(path, "\n".join([before, *parts, end + after]).encode())
