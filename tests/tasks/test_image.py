"""The task `image`: batches by name, smoothing in training only, a run from the command line to its answers."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.cli import main
from qkv.data.config import DataConfig, ImageOptions
from qkv.data.images import Images, read_idx
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.randomness import generator
from qkv.tasks import find_task
from qkv.tasks.evaluation import evaluate

TASK = find_task("image")


def write_idx(path: Path, values: np.ndarray) -> None:
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(data + values.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module")
def bars(tmp_path_factory) -> Path:
    """Noise with one bright bar of three rows: where it lies is the class."""
    folder = tmp_path_factory.mktemp("bars")
    for name, n in (("train", 300), ("t10k", 60)):
        draws = generator("tests", "bars", name)
        labels, pixels = np.arange(n) % 3, draws.integers(0, 90, (n, 9, 8))
        for pixel, label in zip(pixels, labels, strict=True):
            pixel[3 * label : 3 * label + 3] += 140
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    return folder


@pytest.fixture(scope="module")
def data(bars) -> Images:
    return TASK.load(DataConfig(source=str(bars), images=ImageOptions(shift=0.2, erase=0.5)), cache=None)


@pytest.fixture(scope="module")
def model(data):
    sizes = Sizes(d_vocab=0, d_model=16, n_layers=1, n_heads=2, n_ctx=0)
    layout = Layout(tied=False, start="xavier")
    return build(
        ModelConfig(
            kind="ImageClassifier", sizes=sizes, layout=layout, patches=TASK.patches(data), classes=TASK.classes(data)
        ),
        0,
    )


def batch_of(data: Images, examples, seed: int = 1, step: int = 0, **how):
    return TASK.train_batch(data, None, seed, step, np.asarray(examples), **how)


def test_every_epoch_sees_each_image_once_in_an_order_of_its_own(data):
    epochs = [batch_of(data, np.arange(300 * e, 300 * e + 300)).targets for e in range(2)]
    for targets in epochs:
        assert np.bincount(targets).tolist() == [100, 100, 100]
    assert not torch.equal(*epochs)


def test_a_batch_is_a_function_of_seed_step_and_example(data):
    whole, part = batch_of(data, range(40)), batch_of(data, range(10, 20))
    assert torch.equal(whole.inputs[10:20], part.inputs) and torch.equal(whole.targets[10:20], part.targets)
    assert not torch.equal(batch_of(data, range(40), step=1).inputs, whole.inputs)
    assert not torch.equal(batch_of(data, range(40), seed=2).targets, whole.targets)


def test_validation_takes_every_image_once_as_it_is_with_plain_labels(data):
    batches = list(TASK.val_batches(data, None, 32))
    assert torch.equal(torch.cat([b.inputs for b in batches]), torch.from_numpy(data.val.pixels.copy()))
    assert [b.n_targets for b in batches] == [32, 28] and not any(b.smoothing for b in batches)


def test_a_smoothed_loss_is_the_mix_of_its_class_and_all_classes(data, model):
    batch = batch_of(data, range(8))
    assert batch.smoothing == 0.1
    logs = F.log_softmax(model(batch.inputs), dim=1)
    right = -logs[torch.arange(8), batch.targets].sum()
    expected = 0.9 * right - 0.1 * logs.mean(dim=1).sum()
    nats, n = TASK.loss(model, batch)
    torch.testing.assert_close(nats, expected)
    plain, _ = TASK.loss(model, batch._replace(smoothing=0.0))
    torch.testing.assert_close(plain, right)
    scores = TASK.score(model, batch)
    assert n == 8
    torch.testing.assert_close(scores.nats.sum(), right)
    assert torch.equal(scores.correct, logs.argmax(dim=1) == batch.targets)


def test_bytes_and_shares_of_one_are_the_same_image(data, model):
    pixels = torch.from_numpy(data.val.pixels[:5].copy())
    torch.testing.assert_close(model(pixels), model(pixels.float() / 255))


def test_figures_have_intervals_and_do_not_depend_on_the_batch(data, model):
    one, other = evaluate(model, TASK, data, batch_size=7), evaluate(model, TASK, data, batch_size=60)
    assert one.loss == pytest.approx(other.loss, rel=1e-5) and one.n_windows == 60
    low, high = one.accuracy_interval
    assert 0 <= low <= one.accuracy <= high <= 1 and one.bits_per_byte is None


@pytest.fixture(scope="module")
def run(bars, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "bars"
    options = dict(task="image", steps=70, seed=3, threads=1, precision="fp32")
    return qkv.train(bars, out=out, set={"d_model": 16, "n_layers": 1, "stride": 3, "patch": 3}, **options)


def test_a_run_learns_what_a_bar_is_and_its_summary_has_both_baselines(run):
    pytest.importorskip("sklearn", reason="needs the extra `study` (scikit-learn)")
    summary = run.summary
    assert summary["accuracy"] > 0.95 and summary["stopped_because"] == "steps"
    assert summary["baselines"]["majority"] == pytest.approx(1 / 3) and summary["baselines"]["linear"] > 0.9
    assert summary["tokens"] == 70 * run.config.training.batch_size * 9  # a position is a patch
    assert run.tokenizer is None and not (run.path / "tokenizer.json").exists()
    assert run.config.model.patches.grid == (3, 3) and run.config.model.sizes.n_ctx == 9


def test_predict_names_image_files_and_all_images_of_an_idx_file(run, bars, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")
    picture = np.full((18, 16), 20, np.uint8)  # twice the size: brought to the model's
    picture[6:12] = 200
    pillow.fromarray(picture).save(tmp_path / "middle.png")
    idx = bars / "t10k-images-idx3-ubyte.gz"
    assert main(["predict", str(run.path), str(tmp_path / "middle.png"), str(idx), "--json"]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert outputs[0] == "1"
    answers = outputs[1].split()
    assert np.mean([int(a) == i % 3 for i, a in enumerate(answers)]) == pytest.approx(run.summary["accuracy"])
    assert main(["predict", str(run.path), str(tmp_path / "middle.png")]) == 0
    assert capsys.readouterr().out.strip().endswith("middle.png: 1")


def test_eval_gives_accuracy_on_its_own_and_on_other_images_and_under_a_change(run, bars, capsys):
    for extra in ([], [str(bars / "t10k-images-idx3-ubyte.gz")], [str(bars)]):
        assert main(["eval", str(run.path), *extra, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(run.summary["accuracy"])
    assert main(["eval", str(run.path), "--change", "W_E=zero", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(1 / 3)


def test_other_images_are_brought_to_the_size_and_channels_of_training(run, bars, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")
    pixels, labels = (
        read_idx(bars / f"t10k-{name}-ubyte.gz", (n,)) for name, n in (("images-idx3", 3), ("labels-idx1", 1))
    )
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        coloured = pillow.fromarray(np.stack([image.repeat(2, 0).repeat(2, 1)] * 3, axis=-1))
        coloured.save(tmp_path / str(label) / f"{i}.png")
    assert main(["eval", str(run.path), str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(run.summary["accuracy"], abs=0.05)
    write_idx(tmp_path / "small-images-idx3-ubyte.gz", pixels[:, :5])
    write_idx(tmp_path / "small-labels-idx1-ubyte.gz", labels)
    assert main(["eval", str(run.path), str(tmp_path / "small-images-idx3-ubyte.gz")]) == 2
    assert "are 8 x 5 in 1 channel; expected 8 x 9 in 1 channel" in capsys.readouterr().err


def test_attention_and_activations_of_an_image_are_shown_patch_by_patch(run, bars, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")
    pillow.fromarray(np.full((9, 8), 99, np.uint8)).save(tmp_path / "grey.png")
    assert main(["show", str(run.path), "--text", str(tmp_path / "grey.png")]) == 0
    assert "0,0 0,1 0,2 1,0" in capsys.readouterr().out
    assert main(["show", str(run.path), "L0.q", "--text", str(tmp_path / "grey.png"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert np.shape(shown["values"]) == (9, 16)
    assert main(["show", str(run.path), "--text", str(bars / "t10k-images-idx3-ubyte.gz")]) == 2
    assert "60 images; give the file of one" in capsys.readouterr().err
    assert main(["embed", str(run.path), "hello"]) == 2
    assert "reads no text" in capsys.readouterr().err


def test_show_compare_and_report_know_the_run(run, tmp_path, capsys):
    assert main(["show", str(run.path), "--all"]) == 0
    shown = capsys.readouterr().out
    assert "W_cls" in shown and "one for each value of a patch" in shown and "whose token" not in shown
    assert main(["show", str(run.path), "W_E[4]"]) == 0
    assert main(["compare", str(run.path), str(run.path)]) == 0
    assert "identical" in capsys.readouterr().out
    assert "validation image 0" in run.report(tmp_path / "a.html").read_text(encoding="utf-8")
    pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")
    pillow.fromarray(np.full((9, 8), 99, np.uint8)).save(tmp_path / "grey.png")
    page = run.report(tmp_path / "b.html", texts=[str(tmp_path / "grey.png")]).read_text(encoding="utf-8")
    assert "W_cls" in page and "0,2" in page


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--tokenizer", "bpe"], "reads no text"),
        (["--set", "flip=maybe"], "expected true or false"),
        (["--set", "n_ctx=5"], "n_ctx is 5; "),
        (["--set", "d_vocab=9"], "d_vocab is 9"),
        (["--set", "shift=0.9"], "shift is 0.9"),
        (["--set", "patch=99"], "patch is 99; expected at most"),
        (["--text-column", "text"], "reads no text"),
    ],
)
def test_what_has_no_meaning_for_images_is_one_sentence_and_nothing_is_made(
    bars, tmp_path, capsys, arguments, sentence
):
    out = tmp_path / "never"
    assert main(["train", str(bars), "--task", "image", "--steps", "2", "--out", str(out), *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error and not out.exists()


def test_settings_of_images_have_no_effect_on_a_text_and_that_is_said(small_text, tmp_path, capsys):
    for setting, what in (("flip=true", "images"), ("patch=3", "patches")):
        out = tmp_path / "never"
        assert main(["train", str(small_text), "--steps", "2", "--out", str(out), "--set", setting]) == 2
        assert f"this run has no {what}" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("given", ["nowhere.png", "folder"])
def test_a_picture_that_is_none_is_one_sentence(run, tmp_path, capsys, given):
    (tmp_path / "folder").mkdir()
    assert main(["predict", str(run.path), str(tmp_path / given)]) == 2
    assert "is no file; expected an image" in capsys.readouterr().err
