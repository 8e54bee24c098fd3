"""The report of a run: everything that its folder tells, as one HTML file that works offline.

`read_report` makes the payload, `write_report` the file. A folder of a run that is still training, was interrupted or
was not watched gives a report of what is there; each room that has no data says why, or stays away.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qkv.data.tokenizers import Tokenizer, load_tokenizer
from qkv.errors import QkvError
from qkv.folder import RunFolder, write_atomically
from qkv.recipe import RunConfig
from qkv.tasks import find_task
from qkv.telemetry import Telemetry
from qkv.views import collect, origins
from qkv.views.answers import answers_of
from qkv.views.looking import attention_on, texts_to_show
from qkv.views.maps import map_room
from qkv.views.page import render_page
from qkv.views.payloads import AttentionText, Host, Report, RunFacts
from qkv.views.rows import rows_room
from qkv.views.verdict import verdict
from qkv.views.weights import Snapshots, matrices_room

__all__ = ["read_report", "write_report"]

_NO_MAP = "This run has no measurements (it was trained with --watch off), so there is no map of its matrices."
_NO_WEIGHTS = "No weights can be read from this folder yet, so there are no pictures of the matrices."
_NO_TEXT = 'Give a text to see attention on it: qkv report RUN --text "your text".'
_NO_IMAGE = "Give an image to see attention on it: qkv report RUN --text picture.png."


def write_report(run: str | Path, out: str | Path | None = None, texts: Sequence[str] = ()) -> Path:
    """Write the report of the run folder `run` to `out` (in the folder, as report.html) and give its path.

    `texts` are shown with every head's attention; without any, the run's last sample is. In a finished folder the
    manifest learns the new file's hash. Raises RunFolderError for a folder that is no run, StorageError where the file
    cannot be written.
    """
    folder = RunFolder.open(run)
    page = render_page(read_report(folder.path, texts)).encode()
    path = folder.report if out is None else Path(out)
    digest = write_atomically(path, page)
    if folder.is_finished and path.resolve() == folder.report.resolve():
        origins.record_hash(folder, folder.report.name, digest)
    return path


def read_report(folder: Path, texts: Sequence[str] = ()) -> Report:
    """The payload of a run folder; rooms without data are None, and `missing` says why."""
    try:
        telemetry = Telemetry(folder / "telemetry.sqlite")
    except QkvError:
        return _read(folder, None, texts)
    with telemetry:
        return _read(folder, telemetry, texts)


def _read(folder: Path, telemetry: Telemetry | None, texts: Sequence[str]) -> Report:
    settings, manifest = collect.settings_of(folder), collect.manifest_of(folder)
    sizes = collect.sizes_of(settings)
    task = find_task(settings.get("task", "causal"))
    causal = task.continues
    facts = telemetry.facts() if telemetry else {}
    n_steps = (telemetry.last_step() if telemetry else 0) or manifest.get("summary", {}).get("steps")
    tokenizer = _tokenizer(folder)
    unit = collect.unit_of(tokenizer.kind if tokenizer else "") if task.target == "token" else task.target
    n_answers = len(settings.get("model", {}).get("classes", ())) or sizes.get("d_vocab")
    snapshots = Snapshots(folder, n_steps)
    lines = collect.baselines(facts.get("baselines"), n_answers, task.yardsticks)
    loss = collect.loss_room(telemetry, lines, facts.get("baselines") or {}) if telemetry else None
    samples = collect.samples(telemetry, continues=causal, given=task.given) if telemetry else ()
    words = [tokenizer.token(i) for i in range(tokenizer.d_vocab)] if tokenizer else []
    specials = sorted(facts.get("special_tokens", {}).values())
    counts = collect.counts_of(telemetry)
    example = _example(tokenizer, counts)
    rows = rows_room(telemetry, snapshots, words, counts, specials, example) if words else None
    matrices = matrices_room(snapshots, _heads(sizes))
    chart = map_room(telemetry) if telemetry else None
    attention, why = _attention(folder, tokenizer, texts_to_show(texts, samples), task.reads)
    run = RunFacts(
        name=folder.resolve().name,
        task=str(settings.get("task", "")),
        preset=str(settings.get("preset", "")),
        verdict=verdict(loss, task.asked.format(unit=unit), n_steps),
        unit=unit,
        n_parameters=sum(_product(shape) for shape in snapshots.shapes.values()) or None,
        n_tokens=collect.tokens_seen(telemetry),
        n_steps=n_steps,
        train_seconds=collect.seconds(telemetry, manifest),
        machine=origins.machine_words(settings, manifest),
        facts=tuple(origins.head_facts(settings, manifest, tokenizer.kind if tokenizer else "", sizes.get("d_vocab"))),
        sizes=sizes,
        tied=bool(settings.get("model", {}).get("layout", {}).get("tied", False)),
    )
    absent = {
        "map": _NO_MAP if chart is None else "",
        "matrices": _NO_WEIGHTS if matrices is None else "",
        "attention": why,
    }
    return Report(
        host=Host(),
        run=run,
        answers=answers_of(folder, telemetry),
        made=origins.made_room(folder, manifest, telemetry, n_steps),
        loss=loss,
        samples=samples,
        rows=rows,
        map=chart,
        matrices=matrices,
        attention=attention,
        missing={room: why for room, why in absent.items() if why},
    )


def _tokenizer(folder: Path) -> Tokenizer | None:
    try:
        return load_tokenizer(folder / "tokenizer.json")
    except QkvError:
        return None


def _example(tokenizer: Tokenizer | None, counts: np.ndarray | None) -> int | None:
    """The token whose row is shown first: `the`, where it is one and stands in the text."""
    the = tokenizer.readable.get("the") if tokenizer else None
    return the if the is not None and (counts is None or counts[the] > 0) else None


def _attention(
    folder: Path, tokenizer: Tokenizer | None, texts: Sequence[tuple[str, str]], reads: str
) -> tuple[tuple[AttentionText, ...], str]:
    """(patterns on each text or image, why there are none)."""
    if not texts:
        return (), _NO_IMAGE if reads == "images" else _NO_TEXT
    if tokenizer is None and reads == "text":
        return (), "The tokenizer of this run cannot be read, so its model cannot be shown a text."
    try:
        found = attention_on(folder, RunConfig.read(folder / "config.toml"), tokenizer, texts)
    except QkvError as error:
        return (), f"The model of this run cannot be shown a text: {error}."
    return found, "" if found else "A text needs at least two tokens to show attention on."


def _heads(sizes: dict[str, int]) -> dict[str, int]:
    """Heads side by side in each kind of attention matrix."""
    query, shared = sizes.get("n_heads", 0), sizes.get("n_kv_heads", 0)
    return {"W_Q": query, "W_O": query, "W_K": shared, "W_V": shared}


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
