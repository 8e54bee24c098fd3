"""The documentation is what the code says."""

import dataclasses
import hashlib
import importlib.util
import inspect
import json
import pkgutil
import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import qkv
from qkv.cli import command_parser
from qkv.commands import COMMANDS
from qkv.config import flat
from qkv.errors import QkvError
from qkv.presets import PRESETS
from qkv.recipe.request import Request, resolve
from qkv.tasks import find_task

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("2*.md"))
NOT_SAID = (
    "not to be told from", "that nothing could tell", "less the same of", "less that of", "as it began",
    "as they began", "anew", "stands in", "stands beside", "of a hundred", "needs both to have", "is missed more",
    "of which the", "whoever", "let go of", "gone on with", "had here", "to the bit", "by so many", "is told",
    "what is made of", "what is asked of", "whatever else", "in turn", "earned", "a look at", "came out otherwise",
    "holds for itself",
)  # fmt: skip
"""Phrases that plain technical English does without."""
RESULTS = sorted((DOCS / "answers" / "results").glob("*.json"))
LOGS = sorted((DOCS / "answers" / "runs").glob("study-*"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted(m.name for m in pkgutil.walk_packages(qkv.__path__, "qkv.") if m.name != "qkv.__main__")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh(generate):
    assert generate.stale() == [], "run: make docs"


@pytest.mark.parametrize("task", ["causal", "masked", "classify"])
@pytest.mark.parametrize("minutes", [None, 0.5])
def test_a_default_of_the_settings_page_is_what_a_run_gets_that_sets_nothing(task, minutes, tmp_path):
    page, stated = (DOCS / "settings.md").read_text(encoding="utf-8"), {}
    for table, rows in re.findall(r"^## (.*)$([^#]*)", page, flags=re.M):
        for name, default in re.findall(r"^\| `(\w+)` \| .*? \| `(.*?)` \|", rows, flags=re.M):
            stated["" if table == "The run" else f"{table}.", name] = default
    labels = "".join(f"the {'good' if i % 2 else 'bad'} one of {i}\t{i % 2}\n" for i in range(3_000))
    source = tmp_path / f"a.{'tsv' if task == 'classify' else 'txt'}"
    source.write_text(f"text\tlabel\n{labels}" if task == "classify" else labels, encoding="utf-8")
    budget = {"steps": 2} if minutes is None else {"minutes": minutes}
    assert len(stated) > 60
    for preset in [name for name, one in PRESETS.items() if find_task(task).stack in one.stacks and not one.matches]:
        asked = Request(source=str(source), task=task, preset=preset, tokenizer="char", **budget)
        made = flat(resolve(asked, None)[0])
        options = {"source": made["data.source"], "steps": made["training.schedule.steps"]}
        for (table, name), default in stated.items():
            if f"{table}{name}" in made and name not in options:
                found = str(made[table + name])
                assert {"True": "true", "False": "false", "": '""'}.get(found, found) == default, (preset, table, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_and_its_examples_parse(name):
    assert f"## qkv {name}\n" in (DOCS / "cli.md").read_text(encoding="utf-8")
    parser = command_parser(name)
    examples = re.findall(rf"^  qkv {name}\b(.*)$", parser.epilog, flags=re.M)
    assert examples
    for example in examples:
        words = shlex.split(example)
        parser.read([w for w in words if w != "<"][: words.index("<")] if "<" in words else words)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_verdict_of_an_answer_is_that_of_its_values_by_the_rule_of_today(path, generate):
    pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")
    from qkv.studies.engine.design import OF_TRAININGS
    from qkv.studies.questions import find
    from qkv.studies.verdict.comparison import compare_rate
    from qkv.studies.verdict.sentences import FORMAT
    from qkv.studies.verdict.statistics import how_exact, judge
    from qkv.studies.verdict.wording import unit_words

    kept, kind = json.loads(path.read_text(encoding="utf-8")), path.stem.rpartition("-")[2]
    assert kept["format"] == FORMAT and ("-labelled-" in path.stem) == kept["source"].get("labelled", False)
    page = (DOCS / "answers" / f"{kept['study']}.md").read_text(encoding="utf-8")
    where = [words for end, words in generate.ELSEWHERE.items() if end in path.stem.removeprefix(kept["study"])]
    title = f"## {kind.capitalize()} run{''.join(where)}\n"
    text = page.partition(title)[2].partition("\n## ")[0]
    question = find(kept["study"])

    def label(row):
        return question.label(row["name"], row["what"])

    for place, row in enumerate(kept["contrasts"]):
        if place and kept["not_reached"] and not row["n"]:
            assert f"- Not reached in time: no replicate measured {label(row)}." in text
            continue
        values, margin = row["values"], row["margin"]
        if row["constant"]:
            wanted = "constant"
        elif needs := row["needs"]:
            first = [other for other in kept["contrasts"] if other["name"] in needs]
            told = [one for one in first if len(one["values"]) > 1 and judge(one["values"], one["margin"]) == "differs"]
            there = len(told) == len(first) and all(min(one["values"]) > 0 for one in told)
            wanted = "left out" if not there else judge(values, margin) if len(values) > 1 else "unresolved"
        elif len(values) < 2:
            wanted = "unresolved"
        elif row["unit"] == OF_TRAININGS:
            wanted = compare_rate(values, 0.0, margin, 1).verdict
        elif row["nominal"] is not None:
            wanted = compare_rate(values, row["nominal"], margin, row["tries"]).verdict
        else:
            wanted = judge(values, margin)
        start = f"| {label(row)} ({unit_words(row['unit'])}) | "
        (line,) = [line for line in text.splitlines() if line.startswith(start)]
        assert line.split(" | ")[3].removesuffix(" (not after correction)") == wanted
        assert place or row["nominal"] is not None or f"intervals: {how_exact(row['n'])};" in text


def by_bytes(arm: str) -> bool:
    """Whether an arm's steps are by the bytes in its tokens, of a text that is not read here; a byte has one."""
    return "equal text" in arm and not arm.startswith("bytes")


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_a_kept_log_gives_the_kept_verdict_without_one_training(log, tmp_path):
    pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")
    from qkv.studies.engine.design import Grid
    from qkv.studies.engine.store import StudyFolder, loss_of, read_rows
    from qkv.studies.engine.tuning import known_keys, pending
    from qkv.studies.question import Ask
    from qkv.studies.questions import find
    from qkv.studies.verdict.judging import findings

    (kept,) = [r for r in map(json.loads, (p.read_text("utf-8") for p in RESULTS)) if Path(r["run"]).name == log.name]
    source, replicates = kept["source"], len(kept["contrasts"][0]["values"])  # seeds counts the tries of each
    more = {key: source[key] for key in ("labelled", "vectors") if key in source}
    more |= {"images": tuple(source["images"])} if "images" in source else {}
    named = (source["name"], source["sha256"])
    ask = Ask(named=named, quick=kept["quick"], seeds=replicates, tuned="untuned" not in source, **more)
    question = find(kept["study"])
    design = dataclasses.replace(question.design(ask), software=kept["software"])
    arms = design.arms
    if json.loads(min(log.glob("design-*.json")).read_text("utf-8")).get("format", 1) == 1:  # the law of then
        design = dataclasses.replace(design, grid=Grid(ratio=3.0, reach=4, fitted=False), format=1)
        labels = {"uniform": "random"}  # controls of format 1 kept the frequencies of labels
        arms = [dataclasses.replace(arm, labels=labels.get(arm.labels, arm.labels)) for arm in arms]
    names = {row["name"] for row in kept["contrasts"]}  # some were asked later
    asked_then = tuple(contrast for contrast in design.contrasts if contrast.name in names)
    read = {arm for contrast in asked_then for arm in contrast.arms}
    arms = [arm for arm in arms if arm.name in read or arm.name in {row["name"] for row in kept["arms"]}]
    design = dataclasses.replace(design, arms=tuple(arms), contrasts=asked_then)
    rows = {row["key"]: row for row in read_rows(log)}
    shutil.copytree(log, tmp_path / log.name)
    with StudyFolder.begin(design, tmp_path) as folder:
        folder.adopt(design, known_keys(design, "", lambda key: loss_of(rows.get(key))))
        left = [job for job in pending(design, "", folder.loss) if not by_bytes(job.trial.arm.name)]
        assert kept["not_reached"] or not left, "nothing is left to train"
        found = findings(design, folder, "", question.derive)
    told = [[effect.contrast.name, list(effect.values)] for effect in found.effects]
    asked = {contrast.name for contrast in design.contrasts}  # some are asked only of a text that is read
    by_text = {c.name for c in design.contrasts if any(map(by_bytes, c.arms)) or c.name == "more pieces cost more"}
    told = [[name, values] for name, values in told if name not in by_text]
    assert told == [[row["name"], row["values"]] for row in kept["contrasts"] if row["name"] in asked - by_text]
    others = {row["name"] for row in kept["contrasts"]} - asked
    assert (
        all(name.startswith(("analogies ", "nearer to one of its kind")) for name in others)
        and kept["contrasts"][0]["name"] in asked
    )
    assert sum("arm" in row for row in read_rows(log)) == kept["trainings"]
    unread = sum(by_bytes(row.get("arm", "")) for row in read_rows(log))
    assert found.trainings == kept["trainings"] - unread


_READS_SEVERAL = ("calibrate", "end-task", "heads-and-scale", "static-or-contextual", "tokenizers")
"""Questions some of whose effects read several trainings at once."""


def test_the_finding_marks_every_effect_that_is_not_significant_after_correction(generate):
    template, page = ((DOCS / name).read_text("utf-8") for name in ("finding.template", "finding.md"))
    marked = []
    for study, name in re.findall(r"\{([a-z-]+): ([^{}]+)\}", template):
        rows = generate._result(f"{study}-full")["contrasts"] if study != "ladder" else []
        for row in (row for row in rows if row["name"] == name):
            alone = row["verdict"].startswith("differs") and (row["p_corrected"] or 0.0) >= 0.05
            ends = [generate.two_digits(row[end], row["unit"]).removeprefix("+") for end in ("effect", "low", "high")]
            marked += [name] * alone
            assert "{} ({} to {}{})".format(*ends, "; a hint" * alone) in page, name
    assert {"together", "V - (Q + K)", "textbook V - (Q + K)", "V frozen"} <= set(marked)


@pytest.mark.skipif(not LOGS, reason="the source package has no logs of studies")
@pytest.mark.parametrize("kept", sorted(path.stem for path in RESULTS if path.stem.endswith("-full")))
def test_a_page_of_numpy_derives_every_effect_again_from_the_kept_log(kept, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["derive.py", kept])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(DOCS / "answers" / "derive.py"))
    *derived, last = capsys.readouterr().out.splitlines()
    n = len(json.loads((DOCS / "answers" / "results" / f"{kept}.json").read_text("utf-8"))["contrasts"])
    differ, left_out = map(int, re.findall(r"\d+", last))
    assert ended.value.code == 0 and differ == 0 and len(derived) + left_out == n
    assert (left_out > 0) == kept.startswith(_READS_SEVERAL)


def test_a_page_with_a_log_says_which_text_and_version_add_to_it():
    for log in LOGS:
        name = re.match("study-(.*)-[a-z0-9]+-[0-9a-f]{8}$", log.name)[1]
        page = (DOCS / "answers" / f"{name}.md").read_text("utf-8")
        design = json.loads(next(log.glob("design-*.json")).read_text("utf-8"))
        asked = page.partition(f"runs/{log.name}/archive.json.bz2")[2].partition("\n\n")[0]
        named = design["source_sha256"] != "made"
        assert (f"{design['software']} and a TEXT of the sha256 above" in asked) == named
        assert (f"`qkv study {name} TEXT" in asked) == named and f"`qkv study {name}" in asked
        assert f"sha256 `{design['source_sha256'][:16]}`" in page.partition(f"runs/{log.name}/archive.json.bz2")[0]


def test_what_is_told_beside_a_benchmark_is_what_the_kept_run_says():
    row = json.loads((DOCS / "answers" / "results" / "attention-or-lstm-full.json").read_text("utf-8"))["contrasts"][0]
    told = " ".join((DOCS / "without-attention.md").read_text("utf-8").split())
    assert f"the LSTM ahead on the same characters, by {-row['effect']:.3f} nats ({-row['high']:.3f} to" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    assert [a.dest for a in command_parser(name)._actions if not a.help] == []


def test_train_help_names_every_preset_and_task():
    from qkv.presets import PRESETS
    from qkv.tasks import TASKS

    text = " ".join(command_parser("train").format_help().split())
    assert [name for name in (*PRESETS, *TASKS) if not re.search(rf"\b{name}\b", text)] == []
    for usual, of in (("preset", lambda task: task.preset), ("tokenizer", lambda task: task.tokenizer)):
        others = [f"{t.name}: {of(t)}" for t in TASKS.values() if of(t) not in ("", of(TASKS["causal"]))]
        assert f"{of(TASKS['causal'])} (the default; {', '.join(others)})" in text, usual


def test_every_dependency_is_named_with_its_reason_and_nothing_else_is():
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    for section, wanted in [("Core", PROJECT["dependencies"]), *((f"Extra `{n}`", v) for n, v in _extras().items())]:
        body = page.split(f"## {section}\n")[1].split("\n## ")[0]
        named = re.findall(r"^\| `([\w.-]+)` \| \S+", body, flags=re.M)
        assert sorted(named) == sorted(re.match(r"[\w.-]+", item)[0] for item in wanted)


def _extras() -> dict[str, list[str]]:
    return PROJECT["optional-dependencies"]


def test_doctor_knows_every_extra():
    from qkv.commands.doctor import EXTRAS

    assert set(EXTRAS) == set(_extras())


def test_constraints_pin_every_direct_dependency():
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.M)
    pinned = {name.lower().replace("_", "-") for name in pins}
    direct = {re.match(r"[\w.-]+", d)[0].lower() for d in [*PROJECT["dependencies"], *sum(_extras().values(), [])]}
    assert direct - {d.replace("_", "-") for d in pinned} == set()


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in [*DOCS.glob("*.md"), *DOCS.glob("decisions/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.name} -> {target}")
    assert broken == []


@pytest.mark.parametrize("name", MODULES)
def test_everything_exported_has_a_docstring(name):
    module = __import__(name, fromlist=["_"])
    bare = []
    alike = ("configure", "run") if name.removeprefix("qkv.commands.") in COMMANDS else ()  # said once, in the package
    defined = [word for word, thing in vars(module).items() if getattr(thing, "__module__", "") == name]
    for word in getattr(
        module, "__all__", [word for word in defined if not word.startswith("_") and word not in alike]
    ):
        thing = getattr(module, word)
        ours = getattr(thing, "__module__", "").startswith("qkv")  # a shape is an alias of jaxtyping's
        if word not in alike and ours and (inspect.isclass(thing) or inspect.isfunction(thing)) and not thing.__doc__:
            bare.append(word)
    assert bare == []


def test_every_error_is_in_the_tree_of_the_docstring():
    from qkv import errors

    kinds = [n for n, k in vars(errors).items() if inspect.isclass(k) and issubclass(k, QkvError)]
    assert [n for n in kinds if n not in errors.__doc__] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts_in_plain_words(page):
    assert re.fullmatch(r"20\d\d-\d\d-\d\d(-[a-z0-9]+)+", page.stem)
    text = page.read_text("utf-8")
    title, first, *parts = text.rstrip("\n").split("\n\n")
    assert re.fullmatch(r"# [^\n]+[^.\n]", title)
    assert re.fullmatch(r"Decided 20\d\d-\d\d-\d\d[^\n]*\.", first)
    wanted = ["Context", "Decision", "Tried and left", "Consequences and how to check"]
    assert [m[1] for part in parts if (m := re.match(r"\*\*([^*.]+)\.?\*\*", part)) and m[1][0].isupper()] == wanted
    assert re.search(r"`(?:tests|benchmarks|docs)/", parts[-1]), "no way to check it"
    words = [word for word in text.split() if re.search(r"\w", word)]
    assert len(words) <= 330
    sentences = re.split(r"(?<=[.:;?])\s+|\n- |\n\n", "\n".join(x for x in text.split("\n") if not x.startswith("|")))
    lengths = [len(sentence.split()) for sentence in sentences]
    assert max(lengths) <= 40 and sum(lengths) / len(lengths) <= 18
    low = " ".join(text.lower().split())
    assert [phrase for phrase in NOT_SAID if re.search(rf"\b{phrase}\b", low)] == []


def test_the_index_of_decisions_has_every_page_once_under_its_title():
    index = (DOCS / "decisions" / "README.md").read_text("utf-8")
    lines = re.findall(r"^- (\S+): \[(.+)\]\((\S+)\.md\)$", index, flags=re.M)
    titles = [(page.stem[:10], page.read_text("utf-8").partition("\n")[0][2:], page.stem) for page in DECISIONS]
    assert len(titles) > 50 and sorted(lines) == sorted(titles)


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *DECISIONS], ids=lambda page: page.stem)
def test_every_test_that_a_page_names_is_there(page):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8"))
    measured = re.findall(r"`((?:benchmarks|docs)/[\w./-]+)`", page.read_text("utf-8")) if page in DECISIONS else []
    assert [file for file in measured if not (ROOT / file).exists()] == []
    assert page.stem != "faults" or len(named) > 25
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert not name or f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_what_a_migrant_is_told_to_type_is_there():
    section = (DOCS / "coming-from.md").read_text("utf-8").partition("## nanoGPT")[2].partition("## TransformerLens")[0]
    here = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")]
    here.append(section.partition("    qkv train input.txt")[2].partition("\n\n")[0])
    settings = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "settings.md").read_text("utf-8"), flags=re.M))
    options = set(re.findall(r"--[\w-]+", (DOCS / "cli.md").read_text("utf-8")))
    told = {name for cell in here for name in re.findall(r"(\w+)=[\w.]", cell)} - {"from_run", "path"}
    assert len(told) > 12 and told <= settings, told - settings
    assert {option for cell in here for option in re.findall(r"--[\w-]+", cell)} <= options


README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (DOCS / "tour.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    prose = re.sub(r"^```.*?^```|<!--.*?-->|\]\([^)]*\)|[|*#·]", " ", README, flags=re.M | re.S)
    assert len(prose.split()) < 900


def _typed_in_the_readme() -> list[list[str]]:
    """The words of every qkv command in the blocks of the README and of the tour."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README + TOUR, flags=re.M | re.S)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line[:4] == "qkv "]


def test_every_command_of_the_readme_and_the_tour_is_read_by_its_parser():
    found = _typed_in_the_readme()
    assert len(found) > 20
    for _, name, *words in found:
        command_parser(name).read(words)


@pytest.mark.parametrize("vocab", [1728, 1984, 2496, 8128])
def test_the_tour_s_two_texts_to_patch_differ_in_one_token_of_the_demo_s_tokenizer(vocab, python_docs):
    """The law gives about 1,984 tokens to the text inside Python; texts of other versions get some more or less."""
    from qkv.tokenizers.tokenizer import fit_tokenizer

    (command,) = [words for words in _typed_in_the_readme() if "--patch" in words]
    tokenizer = fit_tokenizer("bpe", python_docs, vocab)
    texts = [command[command.index(option) + 1] for option in ("--text", "--patch")]
    first, second = (tokenizer.encode(text).tolist() for text in texts)
    assert len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=True)) == 1
    assert first[-1] == second[-1], "the word that differs is not the one asked at: something has to carry it"


@pytest.fixture(scope="module")
def python_docs():
    from qkv.data.sources.default_corpus import default_documents

    return default_documents()


@pytest.fixture(scope="module")
def pictures():
    """docs/pictures.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_pictures", DOCS / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_made_of_a_run_that_beats_counting_and_of_no_other(pictures):
    def run(loss, baselines):
        return SimpleNamespace(path="runs/x", loss=loss, summary={"baselines_nats": baselines})

    assert pictures.beats_counting(run(3.376, {"ngram": 3.478})) == "3.376 nats per token, the best n-gram 3.478"
    for loser, why in ((run(4.647, {"ngram": 3.478}), "does not beat counting"), (run(3.3, None), "has no loss next")):
        with pytest.raises(QkvError, match=why):
            pictures.beats_counting(loser)


RECORD = json.loads((DOCS / "images" / "pictures.json").read_text(encoding="utf-8"))


def test_every_picture_is_the_one_that_the_command_drew_and_the_readme_has_its_run_s_numbers():
    shown = set(re.findall(r"!\[[^]]*\]\((?:docs/)?images/([^)]+)\)", README + TOUR))
    assert shown == {path.name for path in (DOCS / "images").glob("*.png")}
    assert shown == {f"{name}.png" for name in RECORD["pictures"]}
    for name, drawn in RECORD["pictures"].items():
        found = hashlib.sha256((DOCS / "images" / f"{name}.png").read_bytes()).hexdigest()
        assert found == drawn["sha256"], f"{name}.png is not the picture of the record; run: make pictures RUN=..."
    run = RECORD["run"]
    said = f"{run['steps']} updates: {run['loss']:.2f} nats per token on held-out text, where the best n-gram has"
    assert run["loss"] < run["ngram"]
    assert f"{said} {run['ngram']:.2f}." in " ".join(README.split())
    assert f"{run['steps']} updates" in TOUR
    assert "docs/pictures.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.browser
def test_the_pictures_show_today_s_sections_and_fields(pictures, tmp_path, small_text, browser):
    """Where this fails, the pages have changed since the pictures were drawn; run: make pictures RUN=..."""
    run = tmp_path / "run"
    small = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4}
    qkv.train(small_text, steps=4, vocab=300, out=run, report=False, set=small)
    report = Path(pictures.write_report(run, tmp_path / "report.html", texts=["the cat"])).resolve().as_uri()
    context = browser.new_context(viewport={"width": 1180, "height": pictures.HEIGHT}, offline=True)
    today = {}
    for name, (address, selectors) in pictures.scenes(report, pictures.last_compared_step(run)).items():
        address = address.replace("step=250", "step=1")  # of the playground, whose labels are there from the first
        today[name] = pictures.words_of(context.new_page(), address, selectors)
    context.close()
    assert today == {name: drawn["words"] for name, drawn in RECORD["pictures"].items()}
