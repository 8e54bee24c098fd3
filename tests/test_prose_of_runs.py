"""What a run says of itself is plain technical English, in its report and in every command, and its numbers are true.

The rules for sentences are those of `test_prose`. A small run of each task is read as a person reads it: the answers
and the captions of its report, and what the commands print.
"""

import gzip
import importlib.util
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.inspection.answers.reading import read
from qkv.randomness import generator
from qkv.views.report.report import read_report
from qkv.words import number, percent, relative, signed

HERE = Path(__file__).parent
STATIC = HERE.parent / "src" / "qkv" / "views"
TASKS = ("causal", "masked", "classify", "image", "translate")

_spec = importlib.util.spec_from_file_location("prose_rules", HERE / "test_prose.py")
rules = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rules)

SAMPLES = re.compile(r"\u201c[^\u201d]*\u201d|\"[^\"]*\"|'[^']*'(?=[ ,.:])")
"""What a model wrote, and tokens: no sentences of ours."""
RAW = re.compile(r"\*\*|\bL\*|(?<![\w.`])(?!d_model|n_ctx|d_head|d_mlp|d_vocab)[a-z]+_[a-z_]+\b|\d %|\de[-+]\d\d")
"""Globs, names of fields, percent signs after a space, and exponents."""


def images(folder: Path) -> Path:
    folder.mkdir()
    for name, n in (("train", 60), ("t10k", 20)):
        pixels, labels = generator("tests", name).integers(0, 255, (n, 8, 8)), np.arange(n) % 2
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    return folder


@pytest.fixture(scope="module")
def runs(small_text, small_pairs, tmp_path_factory):
    """A run of 24 steps of each task."""
    folder = tmp_path_factory.mktemp("prose")
    lines = small_text.read_text("utf-8").splitlines()[:300]
    table = "".join(f"{line}\t{'cat' if 'cat' in line else 'other'}\n" for line in lines)
    (folder / "labels.tsv").write_text("text\tlabel\n" + table, encoding="utf-8")
    sources = {"classify": folder / "labels.tsv", "image": images(folder / "images")}
    sources |= {"translate": ":".join(map(str, small_pairs))}
    made = {}
    for task in TASKS:
        sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2}
        sizes |= {"patch": 4} if task == "image" else {} if task == "translate" else {"n_ctx": 32}
        words = {} if task == "image" else {"tokenizer": "word" if task in ("translate", "classify") else "char"}
        made[task] = qkv.train(
            sources.get(task, small_text), out=folder / task, task=task, steps=24, set=sizes, threads=1, **words
        )
    return made


def plain(text: str) -> str:
    """Sentences alone: without tables, maps, commands to type, samples and tokens."""
    kept = []
    for line in SAMPLES.sub("X", text).splitlines():
        is_table = re.search(r"\S {2,}\S", line) or re.search(r"[\u2580-\u259f\u2581-\u2588]", line)
        kept.append("" if is_table or re.match(r" *qkv |Tokens: |It (writes|answers)", line) else line.strip())
    return "\n".join(kept)


def assert_plain(text: str, where: str) -> None:
    assert rules.faults(text) == [], where
    assert RAW.findall(re.sub(r"`[^`]*`|learning rate [\d.e-]+", "", text)) == [], where


@pytest.mark.parametrize("task", TASKS)
def test_the_report_of_a_run_is_in_plain_sentences(runs, task):
    told = read_report(runs[task].path)
    lines = [told.run.verdict, *(told.forward.notes if told.forward else ()), *told.missing.values()]
    for answer in told.answers:
        lines += [answer.question, answer.sentence, answer.brief, *answer.more, answer.null]
    assert len(told.answers) >= 5 and "%" in "".join(lines)
    assert_plain(plain("\n\n".join(lines)), task)


@pytest.mark.parametrize("task", TASKS)
def test_what_commands_print_of_a_run_is_in_plain_sentences(runs, task, capsys, monkeypatch):
    run, other = runs[task].path, runs["causal"].path
    commands = [["show", run, "--all"], ["show", run, "--measure", "norm"], ["compare", run, other], ["eval", run]]
    if task == "causal":
        commands += [["step", run, "the cat sees"], ["show", run, "--text", "the cat sees"], ["show", run, "W_E"]]
        commands += [["show", run, "--at", "8"], ["show", run, "--text", "the cat sees", "--at", "0..24"]]
        commands += [["show", run, "--text", "the cat sees", "--patch", "the dog sees"]]
    for words in commands:
        assert cli.main([str(word) for word in words]) == 0
        assert_plain(plain(capsys.readouterr().out), " ".join(map(str, words)))


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("task", TASKS)
def test_show_opens_with_the_answers_on_one_screen(runs, task, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(runs[task].path.parent)
    assert cli.main(["show", task]) == 0
    lines = capsys.readouterr().out.splitlines()
    answers = read(runs[task].path)
    assert max(map(len, lines)) <= columns and (columns < 80 or len(lines) <= 40)
    asked = [line.partition(". ")[2] for line in lines if re.match(r"\d\. ", line)]
    assert asked == [answer.question for answer in answers[:8]] and len(asked) >= 5
    text = " ".join(line.strip() for line in lines)
    assert all(" ".join((a.brief or a.sentence).split())[:30] in text for a in answers[:8])
    assert cli.main(["show", task]) == 0 and capsys.readouterr().out.splitlines() == lines, "kept and read are the same"


@pytest.mark.parametrize("task", TASKS)
def test_every_decimal_in_a_sentence_is_that_of_its_source(runs, task):
    """At the digits that the page says: rounded from the values that the answer carries, or from the configuration."""
    settings = runs[task].config.training.optimizer
    checked = 0
    for answer in read(runs[task].path):
        if answer.key in ("samples", "agreement"):
            continue
        sources = [value for value in answer.numbers.values() if value is not None]
        losses = runs[task].summary.get("baselines_nats") or {}
        sources += [value for value in losses.values() if isinstance(value, float)]
        n_answers = re.search(r"among ([\d,]+)", answer.null)
        sources += [np.log(int(n_answers[1].replace(",", "")))] if n_answers else []
        sources += [settings.weight_decay, *np.exp(sources)]
        written = {spell(abs(value)) for value in sources for spell in (number, signed, percent, relative, three)}
        ends = [value for name, value in answer.numbers.items() if name.endswith((", low", ", high"))]
        written |= {number(100 * abs(end - value), 2) for end in ends for value in sources}  # in points
        said = re.findall(
            r"\d[\d,]*\.\d+|\d+(?=%)", " ".join([answer.sentence, *answer.more]).replace("95% interval", "")
        )
        bare = {word.strip("+%").removesuffix(" times") for word in written}
        assert set(said) <= bare | {f"{value:g}" for value in (0.2, 0.3, 0.5, 95)}, (answer.key, said, sorted(bare))
        checked += len(said)
    assert checked >= 8


def three(value: float) -> str:
    return number(value, 3)


def test_captions_hold_no_phrase_that_plain_english_does_without():
    prose = re.compile(r"\"([^\"\\]{25,})\"|`([^`\\]{25,})`")
    n = 0
    for path in sorted([*STATIC.glob("static/*.js"), *STATIC.glob("play/**/*.js")]):
        if path.name in ("text.js", "vendor.js", "study.js", "margins.js"):
            continue
        code = re.sub(r"^\s*//.*$", "", path.read_text("utf-8"), flags=re.M)
        for found in prose.finditer(code):
            words = re.sub(r"\$\{[^{}]*\}", "X", found[1] or found[2])
            if words.count(" ") < 5 or re.search(r"[<>{}=;]|qkv ", words):
                continue
            wrong = [f for f in rules.faults(words) if "words per sentence" not in f and "have over" not in f]
            assert wrong == [] and not re.search(r"\d %", words), (path.name, words)
            n += 1
    assert n > 80


@pytest.mark.parametrize(
    ("value", "two", "three_", "share", "size"),
    [
        (0, "0", "0", "0%", "0%"), (0.5, "0.50", "0.500", "50%", "50%"), (3.6881, "3.7", "3.69", "369%", "3.7 times"),
        (9.96, "10", "9.96", "996%", "10 times"), (12.34, "12", "12.3", "1,234%", "12 times"),
        (123.4, "123", "123", "12,340%", "123 times"), (-3.33e-16, "about 0", "about 0", "under 0.01%", "under 0.01%"),
        (1234567.0, "1,234,567", "1,234,567", "123,456,700%", "1,234,567 times"), 
        (0.0042, "0.0042", "0.00420", "0.42%", "0.42%"),
    ],
)  # fmt: skip
def test_numbers_in_sentences_have_two_digits_and_never_an_exponent(value, two, three_, share, size):
    assert (number(value), number(value, 3), percent(value), relative(value)) == (two, three_, share, size)
