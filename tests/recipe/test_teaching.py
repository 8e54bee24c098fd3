"""A run that learns from teachers: what they answer, that they are named by the seed, kill and resume, mistakes."""

import dataclasses
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import qkv
from qkv.errors import Interrupted, RunFolderError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.randomness import generator
from qkv.recipe import RunConfig
from qkv.recipe.audit.verification import verify
from qkv.recipe.build import assemble
from qkv.recipe.request import Request, resolve
from qkv.recipe.teaching import taught, teacher_seed
from qkv.tasks import find_task

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_mlp": 32, "batch_size": 16, "dropout": 0.1}
WORDS = "good fine great bad poor awful film plot cast score the a of and".split()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 texts; the class is whether good words outnumber bad ones."""
    draws, rows = generator("tests", "teaching"), ["text\tlabel"]
    for _ in range(400):
        words = draws.choice(WORDS, size=int(draws.integers(1, 12)))
        score = sum(word in WORDS[:3] for word in words) - sum(word in WORDS[3:6] for word in words)
        rows.append(f"{' '.join(words)}\t{'up' if score > 0 else 'down'}")
    path = tmp_path_factory.mktemp("table") / "films.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.api.cache_folder", lambda: cache)


def train(table: Path, out: Path, *, teachers: int | None = 2, steps: int = 40, **options):
    more = {"teachers": teachers, "teacher_dropout": 0.1} if teachers else {} if teachers is None else {"teachers": 0}
    chosen = SMALL | more
    given = {"task": "classify", "steps": steps, "set": chosen, "precision": "fp32", "report": False} | options
    return qkv.train(table, out=out, **given)


@pytest.fixture(scope="module")
def run(table: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.api.cache_folder", lambda: cache)
        return train(table, tmp_path_factory.mktemp("runs") / "run")


def parts_of(path: Path, cache: Path):
    config = RunConfig.read(path / "config.toml")
    return assemble(config, find_task("classify").load(config.data, cache=cache))


def test_teachers_are_the_same_training_by_seeds_that_the_runs_own_names(run, table: Path, tmp_path: Path) -> None:
    kept = load_file(run.path / "teachers.safetensors")
    assert {name.split("/")[0] for name in kept} == {"1", "2"}
    for number in (1, 2):
        alone = train(table, tmp_path / f"alone-{number}", teachers=None, seed=teacher_seed(1, number))
        for address, values in load_file(alone.path / "model.safetensors").items():
            assert values.equal(kept[f"{number}/{address}"])


def test_a_batch_holds_the_mean_of_their_probabilities_and_the_loss_is_cross_entropy_with_it(run, cache: Path) -> None:
    plain = parts_of(run.path, cache)
    parts = taught(plain, RunFolder(run.path))
    sizes, examples = parts.config.model.sizes, np.arange(12)
    batch = parts.task.train_batch(parts.corpus, sizes, 1, 3, examples)
    expected = torch.zeros(12, 2)
    kept = load_file(run.path / "teachers.safetensors")
    for number in (1, 2):
        other = parts_of(run.path, cache)
        start = f"{number}/"
        other.catalogue.load_state({k.removeprefix(start): v for k, v in kept.items() if k.startswith(start)})
        for text in range(12):  # read alone, as no other code of ours does it
            ids = batch.inputs[batch.documents == text][None]
            with torch.no_grad():
                expected[text] += other.model(ids)[0].softmax(-1) / 2
    torch.testing.assert_close(batch.answers, expected, rtol=1e-4, atol=1e-5)
    nats, n = parts.task.loss(parts.model, batch)
    logits = plain.task.answers(parts.model, batch).detach().log()
    assert n == 12 and nats.item() == pytest.approx(float(-(batch.answers * logits).sum()), rel=1e-5)
    without = plain.task.train_batch(parts.corpus, sizes, 1, 3, examples)
    assert without.answers is None and without.targets.equal(batch.targets)
    hard = F.nll_loss(logits, batch.targets, reduction="sum")
    assert plain.task.loss(parts.model, without)[0].item() == pytest.approx(float(hard), rel=1e-5)


def test_texts_have_others_behind_them_whatever_the_batch(run, cache: Path) -> None:
    parts = taught(parts_of(run.path, cache), RunFolder(run.path))
    sizes, asked = parts.config.model.sizes, np.arange(40)

    def texts(joined: float, examples: np.ndarray) -> list[list[int]]:
        task = dataclasses.replace(parts.task, joined=joined, word_dropout=0.0)
        batch = task.train_batch(parts.corpus, sizes, 1, 3, examples)
        return [batch.inputs[batch.documents == text].tolist() for text in range(len(examples))]

    known = [parts.corpus.train.tokens.document(i).tolist() for i in range(len(parts.corpus.train))]
    alone, some, all_of_them = (texts(joined, asked) for joined in (0.0, 0.5, 1.0))
    for text, half, whole in zip(alone, some, all_of_them, strict=True):
        assert text in known and whole[: len(text)] == text and whole[len(text) :] in known
        assert half in (text, whole)
    assert 10 < sum(text != half for text, half in zip(alone, some, strict=True)) < 30
    assert texts(0.5, asked[7:9]) == some[7:9]
    short = dataclasses.replace(sizes, n_ctx=12)
    task = dataclasses.replace(parts.task, joined=1.0, word_dropout=0.0)
    batch = task.train_batch(parts.corpus, short, 1, 3, asked)
    lengths = [int((batch.documents == text).sum()) for text in range(40)]
    assert max(lengths) <= 12 and any(a == len(b) for a, b in zip(lengths, alone, strict=True))


def test_validation_is_of_the_labels(run, cache: Path) -> None:
    parts = taught(parts_of(run.path, cache), RunFolder(run.path))
    assert all(b.answers is None for b in parts.task.val_batches(parts.corpus, parts.config.model.sizes, 64))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Interrupted("")])
def test_teachers_that_are_done_are_kept_by_a_stop_that_says_what_to_paste(table: Path, tmp_path: Path, stop) -> None:
    out = tmp_path / "my run"

    def say(sentence: str) -> None:
        if sentence == "Teacher 2 of 2:":
            raise stop

    with pytest.raises(Interrupted, match=f"those before it are kept; continue with: qkv train --out '{out}' --resume"):
        train(table, out, steps=2, say=say)
    assert {name.split("/")[0] for name in load_file(out / "teachers.safetensors")} == {"1"}


def test_where_to_log_is_known_before_a_teacher_is_trained(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**how: object) -> None:
        raise RuntimeError("no login")

    for library, cause in ((None, "pip install wandb"), (types.SimpleNamespace(init=refused), "no login")):
        monkeypatch.setitem(sys.modules, "wandb", library)
        said: list[str] = []
        with pytest.raises(UserError, match=cause):
            train(table, tmp_path / "run", steps=2, log="wandb", say=said.append)
        assert "Teacher 1 of 2:" not in said and not (tmp_path / "run").exists()


def test_no_teachers_is_the_training_without_the_setting(table: Path, tmp_path: Path) -> None:
    a, b = train(table, tmp_path / "a", teachers=0), train(table, tmp_path / "b", teachers=None)
    for name in ("model.safetensors", "best.safetensors", "config.toml"):
        assert (a.path / name).read_bytes() == (b.path / name).read_bytes()
    assert not (a.path / "teachers.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["between teachers", "in the run"])
def test_kill_and_resume_gives_the_same_bytes(table: Path, tmp_path: Path, cache: Path, when: str) -> None:
    options = "--task classify --steps 200 --precision fp32 --threads 1 --no-report"
    settings = ",".join(f"{name}={value}" for name, value in (SMALL | {"teachers": 2}).items())
    command = [sys.executable, "-m", "qkv", "train", str(table), *options.split(), "--set", settings]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = subprocess.Popen([*command, "--out", str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    there = "teachers.safetensors" if when == "between teachers" else "checkpoints/step-0000006*"
    while process.poll() is None and not list(killed.glob(there)):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "manifest.json").exists(), "it ended before it was killed"
    if when == "between teachers":
        assert {name.split("/")[0] for name in load_file(killed / "teachers.safetensors")} == {"1"}
    subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True)
    again = [sys.executable, "-m", "qkv", "train", "--out", str(killed), "--resume", "--no-report"]
    subprocess.run(again, check=True, capture_output=True)
    for name in ("teachers.safetensors", "model.safetensors", "best.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
    with qkv.load(whole).telemetry() as a, qkv.load(killed).telemetry() as b:
        assert a.steps().loss.tolist() == b.steps().loss.tolist()


def test_verify_makes_its_updates_again_with_the_kept_teachers(run, cache: Path) -> None:
    verdict = verify(run.path, cache=cache)
    assert not [fault for check in verdict.checks for fault in check.faults]
    replayed = next(check for check in verdict.checks if check.name == "replay")
    assert replayed.compared >= 32 and "bit for bit" in replayed.what


def test_a_teacher_that_was_changed_or_lost_is_found(run, table: Path, tmp_path: Path, cache: Path) -> None:
    other = train(table, tmp_path / "other")
    path = other.path / "teachers.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    faults = [fault for check in verify(other.path, cache=cache).checks for fault in check.faults]
    assert any(fault.file == "teachers.safetensors" for fault in faults)
    path.unlink()
    with pytest.raises(RunFolderError, match="no teacher 1 of 2"):
        taught(parts_of(other.path, cache), RunFolder(other.path))


def test_teachers_go_on_from_the_body_that_the_run_goes_on_from(run, table: Path, tmp_path: Path, cache: Path) -> None:
    over = train(
        table, tmp_path / "over", steps=3, from_run=str(run.path), set={"teachers": 1, "lr": 1e-9, "muon_lr": 1e-9}
    )
    kept, body = load_file(over.path / "teachers.safetensors"), load_file(run.path / "best.safetensors")
    torch.testing.assert_close(kept["1/W_E"], body["W_E"], rtol=1e-4, atol=1e-6)


def test_by_the_clock_teachers_and_run_share_the_time(table: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    found = train(table, tmp_path / "clock", steps=None, minutes=0.2)
    assert found.summary["steps"] > 0 and time.monotonic() - began < 20
    assert {name.split("/")[0] for name in load_file(found.path / "teachers.safetensors")} == {"1", "2"}


def test_the_law_of_many_texts_has_teachers_by_a_long_clock_unless_something_is_chosen(
    tmp_path: Path, cache: Path
) -> None:
    draws, path = generator("tests", "many texts"), tmp_path / "many.tsv"
    rows = [f"{' '.join(draws.choice(WORDS, size=4))} {i}\t{'ab'[i % 2]}\n" for i in range(23_000)]
    path.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")

    def asked(**given):
        request = Request(source=str(path), task="classify", vocab=100, **({"minutes": 10.0} | given))
        return resolve(request, cache)[0]

    config = asked()
    assert config.training.teaching.teachers == 3 and config.model.layout.dropout == 0.1
    for one in (
        asked(set={"teachers": 0}),
        asked(set={"d_model": 64}),
        asked(minutes=None),
        asked(minutes=None, steps=9),
    ):
        assert one.training.teaching.teachers == 0 and one.model.layout.dropout == 0.5
    assert asked(set={"teachers": 2, "d_model": 64}).training.teaching.teachers == 2


@pytest.mark.parametrize(
    ("task", "teachers", "words"),
    [
        ("masked", 2, "does not learn from teachers"),
        ("classify", -1, "teachers is -1"),
        ("classify", 1000, "0 .no teaching. to 100"),
    ],
)
def test_a_mistake_is_one_sentence_and_makes_no_folder(table, tmp_path: Path, task, teachers, words) -> None:
    with pytest.raises(UserError, match=words):
        train(table, tmp_path / "wrong", task=task, teachers=teachers)
    assert not (tmp_path / "wrong").exists()


def test_the_setting_stays_out_of_other_tasks(table: Path) -> None:
    assert [name for name in ("causal", "masked", "classify", "image", "translate") if find_task(name).taught] == [
        "classify"
    ]
    assert dataclasses.replace(find_task("classify")).teachers is None  # type: ignore[type-var]
