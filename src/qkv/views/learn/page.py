"""The page as one HTML file that works offline: words that need no script, and a model that runs and trains in it."""

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from qkv.folder.run_folder import check_place, write_atomically
from qkv.views.learn.model import LearnedModel, of_run, shipped
from qkv.views.report.bundle import bundle, filled, libraries, script_safe
from qkv.views.report.packed import carried
from qkv.views.report.playground import POLICY

TITLE = "What is trained in self-attention?"


class Question(TypedDict):
    """One claim or question of the public threads, and its answer."""

    asked: str
    large: bool
    answer: str
    """At most two sentences."""
    holds: str
    """The condition."""
    study: str
    """The study that measured it; empty where it is derived."""
    measured: str
    """A sentence of that study's page; empty where it is derived."""


def questions() -> list[Question]:
    """Every claim and question of the threads, the large ones first."""
    return json.loads(files("qkv.views.learn").joinpath("questions.json").read_text(encoding="utf-8"))


def write(path: Path, run: Path | None = None) -> None:
    """Write the page to `path`; with `run`, with the model of that run folder where the page can hold it.

    Raises UserError where the place is none or the folder is no run, StorageError where the file cannot be written.
    """
    check_place(path)
    own = None if run is None else of_run(run)[0]
    write_atomically(path, page(own).encode())


def page(own: LearnedModel | None = None, answers: str = "") -> str:
    """The whole page as HTML text. `answers` is the folder that links to the pages of studies lead to; none without."""
    model = shipped()
    asked = questions()
    return filled(
        "learn.html",
        ["report.css", "learn.css"],
        "learn.js",
        policy=POLICY,
        title=TITLE,
        d_vocab=model.settings["d_vocab"],
        d_model=model.settings["d_model"],
        val_loss=f"{model.val_loss:.2f}",
        ngram=f"{model.ngram:.2f}",
        n_parameters=f"{model.parameters:,}",
        n_steps=f"{model.steps[-1]:,}",
        n_sentences=f"{model.text.count('.'):,}",
        large="\n".join(_answer(each, answers) for each in asked if each["large"]),
        small="\n".join(_answer(each, answers) for each in asked if not each["large"]),
        n_small=sum(not each["large"] for each in asked),
        payload=carried({"shipped": model, "own": own}),
        worker=script_safe(bundle("worker.js")),
        libraries=libraries(),
    )


def _answer(each: Question, answers: str) -> str:
    name = html.escape(each["study"])
    link = f'<a href="{answers}/{name}.html">{name}</a>' if answers else f"<code>{name}</code>"
    basis = (
        f"<p class='measured'><b>Measured</b> ({link}): {html.escape(each['measured'])}</p>"
        if name
        else "<p class='measured'><b>Derived</b>, not measured: it follows from the formulas above.</p>"
    )
    return (
        f"<article><h3>{html.escape(each['asked'])}</h3>\n<p>{html.escape(each['answer'])}</p>\n"
        f"<p class='holds'><b>Holds</b> {html.escape(each['holds'])}</p>\n{basis}</article>"
    )
