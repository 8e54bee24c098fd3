"""A study of one's own from a TOML file: what it trains, what it says, and every mistake in words."""

import dataclasses
import json
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.cli import main
from qkv.config import flat
from qkv.errors import ConfigError, RunFolderError
from qkv.recipe.request import Request, resolve
from qkv.studies import own as module
from qkv.studies.engine import runner
from qkv.studies.engine.assembly import config_of, parts_of
from qkv.studies.engine.design import Trial
from qkv.studies.engine.estimate import Estimate
from qkv.studies.engine.training import run_trial
from qkv.studies.own import QUANTITIES, Own, read
from qkv.studies.question import Ask
from qkv.studies.verdict.judging import judged, numbered
from qkv.studies.verdict.sentences import plainly, two_digits

ROOT = Path(__file__).parents[2]
STUDY = """
question = "Does width help?"
source = "words.txt"
budget = { minutes = 600 }
steps = 20
seeds = 6
tokenizer = "char"
[base]
n_layers = 1
layout.qk_norm = false
n_ctx = 16
batch_size = 4
[arms.wide]
set = { d_model = 32 }
[arms.narrow]
set = { d_model = 8 }
[[effects]]
name = "cost of a narrow model"
of = "loss"
between = ["narrow", "wide"]
margin = 0.02
expected = { above = 0.0 }
"""


@pytest.fixture
def write(tmp_path, long_text):
    """write(text) -> the path of a study's file, beside a text."""
    (tmp_path / "words.txt").write_bytes(long_text.read_bytes()[:100_000])

    def write(text: str = STUDY, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def ask(own: Own) -> Ask:
    return Ask(source=own.source)


def trial(own: Own, arm: str, lr: float | None = None) -> Trial:
    design = own.design(ask(own), own.steps or 50)
    made = design.trial(design.arm(arm), 1, 0, source=own.source, report=True)
    return made if lr is None else dataclasses.replace(made, lr=lr)


# what is trained


@pytest.mark.parametrize("preset", ["modern", "textbook", "llama", "gpt2", "lstm", "bloem"])
@pytest.mark.parametrize("task", ["causal", "masked"])
def test_an_arm_is_configured_as_train_would_configure_it(write, preset, task):
    if task == "masked" and preset in ("llama", "gpt2"):
        pytest.skip("no preset for hidden tokens")
    layers = "" if preset == "bloem" else "layout.dropout = 0.25\n"
    text = STUDY.replace("n_layers = 1\nlayout.qk_norm = false", f'preset = "{preset}"\n{layers}weight_decay = 0.3')
    own = read(write(f'task = "{task}"\n' + text))
    corpus = ask(own).corpus(own.text)
    own_settings = {k: v for k, v in own.arms[0].settings.items() if k != "preset"}
    request = Request(
        source=own.source, task=task, preset=preset, steps=20, tokenizer="char", watch="off", threads=1,
        precision="fp32", set=own_settings,
    )  # fmt: skip
    wanted, made = (flat(each) for each in (resolve(request, None)[0], config_of(trial(own, "wide"), corpus)))
    parts = ("task", "preset", "seed", "changes", "model.", "training.")
    differs = {name for name in wanted if name.startswith(parts) and wanted[name] != made.get(name)}
    assert differs <= {"training.eval_every", "training.on_spike"} and wanted["model.sizes.d_model"] == 32
    assert wanted["training.optimizer.weight_decay"] == 0.3


def test_an_arm_ends_with_the_bits_of_train(write, tmp_path):
    own = read(write())
    run = qkv.train(
        own.source, out=tmp_path / "run", steps=20, seed=1, threads=1, precision="fp32", tokenizer="char",
        watch="off", report=False, set={**own.arms[0].settings, "machine.native": False},
    )  # fmt: skip
    made = trial(own, "wide")
    parts = parts_of(made, ask(own).corpus(own.text))
    from qkv.studies.engine.assembly import MACHINE
    from qkv.studies.engine.training import TRAINERS

    with MACHINE.active():
        TRAINERS["loop"](made, parts, ())
    theirs, ours = load_file(run.folder.path / "model.safetensors"), parts.catalogue.state()
    assert theirs.keys() == ours.keys()
    for name, values in ours.items():
        assert torch.equal(values, theirs[name]), name


def test_a_rate_is_tuned_around_the_preset_s_own_and_muon_s_moves_with_it(write):
    own = read(write())
    design = own.design(ask(own), 20)
    arm, corpus = design.arm("wide"), ask(own).corpus(own.text)
    assert (arm.tune, arm.optimizer, arm.lr) == ("own", "muon", 0.03)
    usual, slow = (config_of(trial(own, "wide", lr), corpus).training.optimizer for lr in (0.03, 0.003))
    assert usual.muon_lr == 0.01 and slow.muon_lr == pytest.approx(0.001) and slow.lr == 0.003


@pytest.mark.parametrize(
    "where", ["[base]\n", "[arms.wide]\nset.lr = 0.01\nset.optimizer.kind = 'adamw'\n[arms.narrow]\n"]
)
def test_a_rate_that_is_set_is_not_tuned(write, where):
    text = STUDY.replace("[base]\n", "[base]\nlr = 0.01\n")
    if "arms" in where:
        text = STUDY.replace("[arms.wide]\nset = { d_model = 32 }\n[arms.narrow]\n", where)
    own = read(write(text))
    design = own.design(ask(own), 20)
    tuned = {arm.name: (arm.tune, arm.lr) for arm in design.arms}
    assert tuned["wide"] == ("none", 0.01)
    assert tuned["narrow"] == (("own", 0.03) if "arms" in where else ("none", 0.01))


def test_arms_without_settings_keep_the_keys_of_their_trainings(write):
    own = read(write())
    first = trial(own, "wide")
    bare = dataclasses.replace(first, arm=dataclasses.replace(first.arm, settings=()))
    assert "settings" not in bare.arm.content() and first.key != bare.key
    assert Trial.from_json(first.to_json()) == first and Trial.from_json(first.to_json()).key == first.key


# what it finds


def typed(capsys, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.slow
def test_a_planted_difference_is_found_and_said(write, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = write(
        STUDY.replace("steps = 20", "steps = 100").replace("seeds = 6", "seeds = 9")
        + '[[effects]]\nname = "extra drift"\nof = "drift W_E"\nbetween = ["narrow", "wide"]\nmargin = 0.1\n'
    )
    status, out, err = typed(capsys, "study", path, "--json")
    assert status == 0, err
    verdict = json.loads(out)
    assert verdict["verdict"] == "differs" and verdict["low"] > 0.02
    assert verdict["asks"] == "Does width help?" and verdict["study"] == "mine"
    size, low, high = (two_digits(verdict[name], "") for name in ("effect", "low", "high"))
    first = "A narrow model costs "
    interval = f"Cost of a narrow model: {size} nats per token (95% interval {low} to {high}, 9 replicates)."
    assert first in verdict["plain"] and interval in verdict["sentence"] and "of 100 steps" in err
    assert verdict["expected"] == {"above": 0.0} and verdict["otherwise"] == []
    assert [row["outcome"] for row in verdict["contrasts"]] == ["met", None]
    assert [row["unit"] for row in verdict["contrasts"]] == ["nats per token", "times the initial norm"]
    assert (
        "modern layout (no QK-norm), 1 layer, d_model 8 and 32" in verdict["condition"]
        and "Muon" in verdict["condition"]
    )
    assert verdict["baseline"]["ngram"] > 0 and verdict["literature"] == ""
    assert Path(verdict["run"]).name.startswith("study-mine-words-")
    page = (Path(verdict["run"]) / "page.html").read_text()
    assert "cost of a narrow model" in page
    status, out, _ = typed(capsys, "study", path)
    assert status == 0 and first in out


def test_what_makes_no_difference_and_what_is_open_are_said_so(write):
    own = read(write())
    contrast = own.design(ask(own), 20).contrasts[0]
    for values, said in (
        ([0.001, -0.001, 0.002, -0.002, 0.001, -0.001], "makes no meaningful difference (within ±0.02 nats per token)"),
        ([0.5, -0.5, 0.2, -0.3, 0.4, -0.1], "Inconclusive (-0.43 to +0.46 nats per token): cost of a narrow model."),
        ([-0.51, -0.5, -0.52, -0.5, -0.5, -0.52], "narrow model lowers the loss by 0.51 nats per token."),
    ):
        assert said in plainly(own.question, judged([(contrast, numbered(values))]))[0]


def test_names_with_braces_are_said_as_they_are(write):
    own = read(write(STUDY.replace("cost of a narrow model", "effect of {d_model}")))
    effects = judged([(own.design(ask(own), 20).contrasts[0], numbered([0.5, 0.4, 0.6, 0.5, 0.5, 0.6]))])
    assert plainly(own.question, effects)[0].startswith("Effect of {d_model}: the loss of ‘narrow’ is 0.50")


def test_a_study_that_was_stopped_goes_on_and_ends_with_the_same_bytes(write, tmp_path, monkeypatch):
    text = STUDY.replace("steps = 20\n", "").replace("seeds = 6", "seeds = 2")
    path = write(text)
    monkeypatch.setattr(Own, "_readable", lambda self, design, ask, steps: min(steps, 10 + len(made)))
    made: list[object] = []
    whole = runner.run_study(str(path), within=tmp_path / "whole")
    stopped = runner.Told(progress=lambda training: made.append(training) or (len(made) == 3 and _stop()))

    def _stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_study(str(path), within=tmp_path / "parts", told=stopped)
    made += [None] * 5  # another budget would be turned into other steps now
    parts = runner.run_study(str(path), within=tmp_path / "parts")
    assert {**parts, "run": ""} == {**whole, "run": ""} and len(list((tmp_path / "parts").iterdir())) == 1
    path.write_text(text.replace("seeds = 2", "seeds = 3"))
    more = runner.run_study(str(path), within=tmp_path / "parts", minutes=5)
    assert more["seeds"] == 3 and more["run"] == parts["run"] and more["earlier_designs"] == [2]
    assert runner.run_study(str(path), within=tmp_path / "parts", seeds=2, minutes=5)["seeds"] == 2


# what a budget becomes


@pytest.fixture
def timed(monkeypatch):
    """timed(seconds a step): every training takes that, and nothing else takes any time."""

    def timed(step: float) -> None:
        def estimate(design, source, cache, workers):
            steps, each = design.scale.steps, {arm.name: 4.5 * step for arm in design.arms}
            return Estimate(
                seconds_per_replicate={name: steps * more for name, more in each.items()}, primary=design.main_arms,
                workers=1, slowest=step * steps, slowest_step=step, steps=steps, seconds_per_step=each,
            )  # fmt: skip

        monkeypatch.setattr(module, "estimate", estimate)

    return timed


def fitted(own: Own, tmp_path: Path, minutes: float):
    return own.fitted(ask(own), tmp_path / "runs", 1, minutes, lambda: 0.0)


@pytest.mark.parametrize(
    "step, steps, seeds, wanted",
    [
        (0.01, None, None, (8, 4000)),  # of 60 minutes 54 are planned: 3240 s / (2 arms x 4.5 x 8 x 1.1 x 0.01)
        (0.03, None, None, (8, 1300)),
        (0.3, None, None, (6, 180)),  # 8 replicates of 200 steps do not fit
        (1.5, None, None, (4, 54)),
        (0.01, 100, None, (12, 100)),
        (0.1, 600, None, (5, 600)),
        (0.03, None, 3, (3, 3600)),
        (0.1, 600, 4, (4, 600)),
        (0.0, None, None, (6, 50)),  # nothing is trained, as where every arm has trainer = "none"
    ],
)
def test_a_budget_becomes_replicates_then_steps(write, timed, tmp_path, step, steps, seeds, wanted):
    text = re.sub("steps = 20\nseeds = 6\n", "", STUDY)
    text = f"steps = {steps}\n" * bool(steps) + f"seeds = {seeds}\n" * bool(seeds) + text
    own = read(write(text))
    timed(step)
    design, expected = fitted(own, tmp_path, 60)
    assert expected is not None and expected.minutes(design.replicates) <= 54.1
    assert (design.replicates, design.scale.steps) == wanted


def test_a_budget_without_time_for_two_replicates_is_refused_with_what_would_do(write, timed, tmp_path):
    own = read(write(re.sub("steps = 20\nseeds = 6\n", "", STUDY)))
    timed(10.0)
    with pytest.raises(ConfigError, match=r"mine.toml: 10 minutes are too few: 2 .* 165.0 .* --minutes 184"):
        fitted(own, tmp_path, 10)
    design, _ = fitted(own, tmp_path, 184)
    assert design.replicates == 2


def test_more_than_four_passes_are_not_planned(write, timed, tmp_path):
    own = read(write(re.sub("steps = 20\nseeds = 6\n", "", STUDY)))
    timed(1e-5)
    design, _ = fitted(own, tmp_path, 60)
    n_train = len(ask(own).corpus(own.text).train)
    assert 3.5 < design.scale.steps * 4 * 16 / n_train <= 4


# what an effect can be of


def test_every_quantity_is_given_by_its_probe(write):
    from qkv.studies.engine.training import run_trial

    text = STUDY.replace("layout.qk_norm = false", 'preset = "textbook"\nn_heads = 2')
    own = read(write(text.replace("n_ctx = 16", "n_ctx = 32")))
    base = trial(own, "wide")
    probes = tuple(sorted({probe for probe, _ in QUANTITIES.values()} - {""}))
    scale = dataclasses.replace(base.scale, steps=8, val_tokens=4096)
    measures = run_trial(dataclasses.replace(base, scale=scale, arm=dataclasses.replace(base.arm, probes=probes)), None)
    for quantity, (probe, _) in QUANTITIES.items():
        names = [n for n in measures["measures"] if n == quantity or module._kind_of(n) == quantity]
        assert names or not probe, f"{probe} gives no {quantity!r}"


# the example


def test_the_example_of_the_page_is_read():
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    table = tomllib.loads(example)
    path = ROOT / "docs" / "qk-norm.toml"
    assert path.read_text(encoding="utf-8") == example
    own = read(path)
    assert [arm.name for arm in own.arms] == list(table["arms"]) == ["with", "without"]
    assert own.arms[0].settings == {"preset": "modern", "model.layout.qk_norm": True} and own.minutes == 60


def test_the_example_runs_small_in_seconds(write, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = (ROOT / "docs" / "qk-norm.toml").read_text(encoding="utf-8")
    small = "preset = 'modern'\nd_model = 16\nn_layers = 1\nn_ctx = 16\nbatch_size = 4\n"
    here = example.replace("my.txt", "words.txt").replace('preset = "modern"\n', small)
    path = write('steps = 10\nseeds = 2\ntokenizer = "char"\n' + here)
    status, out, err = typed(capsys, "study", path)
    assert status == 0 and "modern layout (in some arms no QK-norm)" in out and "cost of leaving QK-norm out" in out
    assert "2 arms x 2 replicates, about 20 trainings of 10 steps" in err


# mistakes


def changed(old: str, new: str) -> str:
    assert old in STUDY
    return STUDY.replace(old, new)


MORE = '[[effects]]\nname = "other"\nof = "loss"\nbetween = ["narrow", "wide"]\nmargin = 0.02\n'
BAD = [
    (changed('question = "Does width help?"\n', ""), "question is missing; expected text"),
    (changed('source = "words.txt"\n', ""), "source is missing"),
    (changed('"words.txt"', '"nowhere.txt"'), "nowhere.txt"),
    (changed("question =", "qestion ="), "unknown key 'qestion'; did you mean 'question'"),
    (changed("question = ", "question = 3 #"), "question is 3; expected text"),
    (changed("600 }", '"long" }'), "budget.minutes is 'long'; expected a number"),
    (changed("600 }", "-1 }"), "minutes is -1; expected a number above 0"),
    (changed("600 }", "nan }"), "minutes is nan"),
    (changed("minutes = 600", "hours = 1"), "unknown key 'budget.hours'"),
    (changed("budget = { minutes = 600 }", ""), "budget is missing; write budget = { minutes = 60 }"),
    (changed("budget = { minutes = 600 }", "budget = 30"), "budget is 30; expected a table"),
    (changed("600 }", "0.0001 }"), "minutes are too few: 6 replicates of 20 steps"),
    (changed("steps = 20", "steps = 0"), "steps is 0"),
    (changed("steps = 20", "steps = 2.5"), "steps is 2.5; expected a whole number"),
    (changed("steps = 20", "steps = true"), "steps is True; expected a whole number"),
    (changed("steps = 20", "steps = 2000000"), "too small for this study"),
    (changed("seeds = 6", "seeds = 1"), "seeds is 1; expected at least 2"),
    (changed('tokenizer = "char"', 'tokenizer = "chars"'), "unknown tokenizer 'chars'; did you mean 'char'"),
    (changed('tokenizer = "char"', 'task = "translate"'), "unknown task 'translate'"),
    (changed("n_layers = 1", "n_layer = 1"), "n_layers"),
    (changed("n_layers = 1", 'preset = "moden"'), "base: unknown preset 'moden'; did you mean 'modern'"),
    (changed("n_layers = 1", "preset = 3"), "base: preset is 3; expected text"),
    (changed("n_layers = 1", 'preset = "bert"'), "preset 'bert' is for --task masked"),
    (changed("n_layers = 1", "n_layers = 1\nsteps = 5"), "base: steps is the same for all arms"),
    (changed("n_layers = 1", "n_layers = 1\nseed = 5"), "base: seed is no setting of an arm"),
    (changed("n_layers = 1", "n_layers = 1\nkind = 'adamw'"), "base: setting 'kind' could be"),
    (changed("{ d_model = 32 }", "{ d_model = 33, n_heads = 2 }"), "arms.wide: "),
    (changed("{ d_model = 32 }", '{ d_model = "wide" }'), "expected a whole number"),
    (changed("{ d_model = 32 }", '{ "layout.qk_norm" = 3 }'), "arms.wide: model.layout.qk_norm is 3; expected true"),
    (changed("{ d_model = 32 }", '{ d_model = 32, "layout.qknorm" = true }'), "arms.wide.set: "),
    (changed("{ d_model = 32 }", '{ d_model = 32, "sizes.d_model" = 16 }'), "model.sizes.d_model is given twice"),
    (changed("{ d_model = 32 }", '{ d_model = 32, "optimizer.lr" = 0 }'), "optimizer.lr is 0"),
    (changed("{ d_model = 32 }", '{ "optimizer.kind" = "sgd", beta1 = 0.5 }'), "beta1"),
    (changed("set = { d_model = 32 }", "sets = { d_model = 32 }"), "unknown key 'arms.wide.sets'"),
    (changed("set = { d_model = 32 }", 'changes = "W_E=freeze"'), "arms.wide.changes is 'W_E=freeze'; expected a list"),
    (changed("set = { d_model = 32 }", 'changes = ["W_E=freze"]'), "freeze"),
    (changed("set = { d_model = 32 }", 'changes = ["W_X=freeze"]'), "arms.wide: "),
    (changed("set = { d_model = 32 }", 'changes = ["W_E=freeze@0..500"]').replace("steps = 20\n", ""), "set steps"),
    (changed("set = { d_model = 32 }", "set = { d_model = 8 }"), "the arms 'wide' and 'narrow' are the same"),
    (
        changed("set = { d_model = 32 }", 'changes = ["W_E=freeze"]').replace(
            "set = { d_model = 8 }", 'changes = ["W_E=freeze@0.."]'
        ),
        "the arms 'wide' and 'narrow' are the same",
    ),
    (changed("[arms.narrow]", "[arms.other]\n[arms.narrow]"), "arms.other is read by no effect"),
    (changed('["narrow", "wide"]', '["narow", "wide"]'), "unknown arm 'narow'; did you mean 'narrow'"),
    (changed('["narrow", "wide"]', '["wide", "wide"]'), "expected two arms"),
    (changed('["narrow", "wide"]', '["wide"]'), "expected two arms"),
    (changed('["narrow", "wide"]', "[1, 2]"), "effects[1].between holds 1"),
    (changed('["narrow", "wide"]', "[]"), "expected two arms"),
    (changed("margin = 0.02", "margin = 0.02\nnominal = 0.5"), "nominal is 0.5; expected a rate from 0 to 1, of one"),
    (
        changed('between = ["narrow", "wide"]', 'arm = "wide"\nnominal = 0.5').replace(
            "[arms.narrow]\nset = { d_model = 8 }\n", ""
        ),
        "nominal is for a rate, but loss is in nats per token",
    ),
    (changed("{ d_model = 32 }", '{ "optimizer.lr" = 0.5 }\ntune = "narrow"'), "sets a learning rate and takes"),
    (changed("[arms.narrow]", '[arms.narrow]\ntune = "wide"').replace("32 }", '32 }\ntune = "narrow"'), "has none of"),
    (changed("[[effects]]", "[effects]"), "effects is {"),
    (STUDY.split("[[effects]]")[0], "effects is missing; expected a list"),
    (changed("margin = 0.02", "margin = 0"), "effects[1].margin is 0; expected a number above 0"),
    (changed("margin = 0.02", ""), "effects[1].margin is missing"),
    (changed("margin = 0.02", "margins = 0.02"), "unknown key 'effects[1].margins'"),
    (changed('of = "loss"', 'of = "lost"'), "unknown of 'lost'; did you mean 'loss'"),
    (changed('of = "loss"', 'of = "drift W_Z"'), "'drift W_"),
    (changed("{ above = 0.0 }", '"above 0"'), "expected is 'above 0'; expected a table"),
    (changed("{ above = 0.0 }", "{ around = 1 }"), "cost of a narrow model"),
    (changed("{ above = 0.0 }", '{ less_than = "other" }'), "differ from 'other', which is no other effect"),
    (changed("cost of a narrow model", "other") + MORE, "two effects are called 'other'"),
    (changed("[arms.narrow]", '[arms.narrow]\ntables = { W_U = "counts" }'), "arms.narrow.tables: 'W_U' has no table"),
    (
        changed('of = "loss"', 'of = "bits per byte"').replace("{ above = 0.0 }", '{ more_than = "other" }') + MORE,
        "'cost of a narrow model' is in bits per byte and 'other' in nats per token",
    ),
    ("question = [", "not valid TOML"),
]  # fmt: skip


@pytest.mark.parametrize("text, said", BAD, ids=[said[:40] for _, said in BAD])
def test_a_mistake_is_one_sentence_that_names_the_file_and_makes_nothing(
    write, capsys, monkeypatch, tmp_path, text, said
):
    monkeypatch.chdir(tmp_path)
    path = write(text)
    status, out, err = typed(capsys, "study", path)
    last = err.strip().splitlines()[-1]
    assert status == 2 and said in last and last.count("mine.toml") == 1 and out == "" and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "options, said",
    [
        (["words.txt"], "leave SOURCE out"),
        (["--quick"], "type --minutes"),
        (["--margin", "0.1"], "leave --margin out"),
        (["--seeds", "1"], "--seeds 2"),
    ],
)
def test_options_that_the_file_gives_are_refused(write, capsys, monkeypatch, tmp_path, options, said):
    monkeypatch.chdir(tmp_path)
    status, out, err = typed(capsys, "study", write(), *options)
    assert status == 2 and said in err and out == "" and not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_is_said(capsys, monkeypatch, tmp_path, write):
    monkeypatch.chdir(tmp_path)
    write()
    status, _, err = typed(capsys, "study", "mien.toml")
    assert status == 2 and "no file 'mien.toml'; did you mean 'mine.toml'?" in err


# the form that built-in questions share

REPEATED = (
    STUDY.replace("[arms.wide]\nset = { d_model = 32 }\n[arms.narrow]\nset = { d_model = 8 }\n", "")
    + """
[usual]
margin = 0.1
[values]
sizes = [{ kind = "wide", d = 32 }, { kind = "narrow", d = 8 }]
[sets.control]
labels = "uniform"
probes = ["drift"]
[arms."{kind}"]
each = "sizes"
set = { d_model = "{d}" }
[arms."{kind} control"]
each = "together"
with = ["control"]
tune = "{kind}"
set = { d_model = "{d}" }
[[effects]]
each = { k = ["wide", "narrow"], matrix = ["W_Q", "W_E"] }
name = "{matrix} of {k}"
between = ["{k}", "{k} control"]
of = "drift {matrix}"
[[effects]]
name = "one arm"
arm = "wide"
of = ["reset W_E", "reset W_Q"]
[[effects]]
name = "sum"
terms = [[0.5, "wide", "loss"], [0.5, "narrow", "loss"], [-1.0, "wide control", "drift W_E"]]
unit = "apples"
needs = "one arm"
"""
)


def test_arms_and_effects_are_repeated_shared_and_summed(write):
    design = (own := read(write(REPEATED))).design(ask(own), 20)
    arms, effects = {arm.name: arm for arm in design.arms}, {effect.name: effect for effect in design.contrasts}
    assert list(arms) == ["wide", "wide control", "narrow", "narrow control"]
    assert [arm.labels for arm in arms.values()] == ["real", "uniform"] * 2
    assert arms["narrow control"].tune == "narrow" and arms["wide control"].probes == ("drift",)
    assert arms["wide"].probes == ("drift", "reset") and dict(arms["narrow"].sizes)["d_model"] == 8
    assert list(effects)[1:5] == ["W_Q of wide", "W_E of wide", "W_Q of narrow", "W_E of narrow"]
    assert effects["W_E of narrow"].terms == ((1.0, "narrow", "drift W_E"), (-1.0, "narrow control", "drift W_E"))
    assert effects["one arm"].terms == ((1.0, "wide", "reset W_E"), (-1.0, "wide", "reset W_Q"))
    assert (effects["one arm"].unit, effects["one arm"].margin) == ("nats per token", 0.1)
    assert (effects["sum"].unit, effects["sum"].needs, effects["sum"].terms[2][0]) == ("apples", "one arm", -1.0)
    assert own.question.also["one arm"].above == "One arm: {effect} nats per token."


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('each = "sizes"', 'each = "size"', "unknown list 'size'; did you mean 'sizes'?"),
        ('with = ["control"]', 'with = ["controls"]', "unknown set 'controls'; did you mean 'control'?"),
        ('d_model = "{d}" }\n[arms."{kind} control"]', 'd_model = "{e}" }\n[arms."{kind} control"]', "'e'"),
        ('labels = "uniform"', 'labels = "random"', "unknown labels 'random'"),
        ('labels = "uniform"', 'trainer = "pretrained"', "unknown trainer 'pretrained'"),
        ('probes = ["drift"]', 'probes = ["drifts"]', "unknown probe 'drifts'; did you mean 'drift'"),
        ('arm = "wide"\n', "", "effects[3] needs of with one of arm and between, or terms; got none"),
        ("[0.5, ", '["half", ', 'effects[4].terms holds [\'half\', "wide", "loss"]'.replace('"', "'")),
        ('needs = "one arm"', 'needs = "no arm"', "'sum' needs 'no arm', which is none of the design"),
        ('needs = "one arm"', 'when = ["quick"]', "unknown key 'effects[4].when'"),
        ('[arms."{kind}"]', '[arms."a"]', "two arms are called 'a'; where each repeats one"),
    ],
)
def test_mistakes_in_what_is_repeated_are_said(write, old, new, said):
    assert old in REPEATED
    with pytest.raises(ConfigError, match="mine.toml") as raised:
        (own := read(write(REPEATED.replace(old, new, 1)))).design(ask(own), 20)
    assert said in str(raised.value)


def test_a_loaded_file_is_part_of_what_a_training_is(write, tmp_path):
    path, made = tmp_path / "w.safetensors", []
    text = STUDY.replace("[arms.narrow]", f'[arms.narrow]\nchanges = ["L0.W_Q=load({path})@10.."]')
    for value in (0.0, 1.0):
        save_file({"L0.W_Q": torch.full((8, 8), value)}, path)
        made.append(trial(read(write(text)), "narrow"))
    assert [name for name, _ in made[0].arm.code] == [f"load({path})"] and made[0].key != made[1].key
    with pytest.raises(RunFolderError, match="bring the old file back"):
        run_trial(made[0], None)
    assert trial(read(write(text)), "wide").arm.code == ()
