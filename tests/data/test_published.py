"""Published splits are honored in every form in which people have them, and what is for the test is never read."""

import gzip
import json
import random
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.data.baseline.text import baselines
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus, load_corpus
from qkv.data.examples import load_examples
from qkv.data.labelled import read_labelled
from qkv.data.sources.published import named, published, role_of
from qkv.data.sources.source import open_source
from qkv.errors import SourceError

WORDS = {
    "train": "cat dog sun moon star".split(),
    "validation": "cat dog red blue green".split(),
    "test": "yak zebra gnu emu".split(),
    "other": "read me first".split(),
}
"""Each part has words of its own, so that what was read can be told."""


def prose(part: str, n: int = 120) -> str:
    draws = random.Random(part)
    return "".join(" ".join(draws.choices(WORDS[part], k=8)) + "\n" for _ in range(n))


def write(path: Path, part: str, n: int = 120) -> None:
    """A file of a part in the form that its name says; one for the test breaks off in bytes that are no text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    lines = prose(part, n).splitlines()
    if name.endswith((".jsonl", ".json")):
        text = "".join(json.dumps({"text": line, "label": i % 2}) + "\n" for i, line in enumerate(lines))
    elif name.endswith((".csv", ".tsv")):
        between = "," if name.endswith("csv") else "\t"
        text = f"text{between}label\n" + "".join(f"{line}{between}{i % 2}\n" for i, line in enumerate(lines))
    else:
        text = prose(part, n)
    data = text.encode()
    if part == "test":  # whoever reads beyond the first look fails
        data = data * (1 + 10_000 // len(data)) + b"\xff\xfe"
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def load(folder: Path, **more: str) -> Corpus:
    return load_corpus(DataConfig(source=str(folder), tokenizer="word", **more), cache=None)


def words_of(found: Corpus, part: str) -> set[str]:
    return {word for text in found.text(part) for word in text.replace("\0", " ").split()}


FORMS = {
    "plain files": ("train.txt", "valid.txt", "test.txt"),
    "val": ("train.txt", "val.txt", "test.txt"),
    "validation": ("train.txt", "validation.txt", "test.txt"),
    "dev": ("train.txt", "dev.txt", "test.txt"),
    "capitals": ("TRAIN.TXT", "Valid.txt", "Test.txt"),
    "WikiText": ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    "endings": ("corpus.train", "corpus.dev", "corpus.test"),
    "behind": ("data_train.txt", "data_valid.txt", "data_test.txt"),
    "before": ("train_data.txt", "dev_data.txt", "test_data.txt"),
    "one word": ("trainset.txt", "devset.txt", "testset.txt"),
    "humps": ("myTrainData.txt", "myValData.txt", "myTestData.txt"),
    "digits": ("train2014.txt", "val2014.txt", "test2015.txt"),
    "gzip": ("train.txt.gz", "valid.txt.gz", "test.txt.gz"),
    "JSON lines": ("train.jsonl", "valid.jsonl", "test.jsonl"),
    "gzipped JSON lines": ("train.jsonl.gz", "valid.jsonl.gz", "test.jsonl.gz"),
    "CSV": ("train.csv", "validation.csv", "test.csv"),
    "TSV": ("train.tsv", "dev.tsv", "test.tsv"),
    "shards": ("train-00000-of-00001.jsonl", "validation-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"),
    "folders": ("train/a.txt", "valid/a.txt", "test/a.txt"),
    "folders with other names": ("data/training/a.txt", "data/dev/b.txt", "data/testing/c.txt"),
    "files in a folder": ("raw/en/train.txt", "raw/en/valid.txt", "raw/en/test.txt"),
    "parts apart": ("text/train.txt", "held/valid.txt", "held/test.txt"),
    "files in folders of their names": ("train/train.txt", "dev/dev.txt", "test/test.txt"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_training_and_validation_and_leaves_the_test_alone(tmp_path: Path, form: str) -> None:
    for name, part in zip(FORMS[form], ("train", "validation", "test"), strict=True):
        write(tmp_path / name, part)
    found = load(tmp_path)
    assert (words_of(found, "train"), words_of(found, "val")) == (set(WORDS["train"]), set(WORDS["validation"]))
    assert {"cat", "sun"} <= set(found.tokenizer.vocabulary) and "zebra" not in found.tokenizer.vocabulary
    train, validation, test = FORMS[form]
    rule = f"published split: {train} for training, {validation} for validation; {test} left alone"
    assert found.rule == rule and rule in found.describe()
    baselines(found)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_validation_part_one_is_cut_from_training_and_the_test_is_left_alone(
    tmp_path: Path, form: str
) -> None:
    train, _, test = FORMS[form]
    write(tmp_path / train, "train")
    write(tmp_path / test, "test")
    found = load(tmp_path)
    assert words_of(found, "train") == words_of(found, "val") == set(WORDS["train"])
    assert found.rule.startswith(f"published split: {train} for training, minus ")
    assert " for validation" in found.rule and found.rule.endswith(f"; {test} left alone")
    alone = load_corpus(DataConfig(source=str(tmp_path / train), tokenizer="word"), cache=None)
    assert alone.rule in found.rule and alone.train.ids.tolist() == found.train.ids.tolist()


def test_a_folder_of_parts_is_what_its_files_are_one_by_one(tmp_path: Path) -> None:
    for part in ("train", "validation", "test"):
        write(tmp_path / f"{part}.txt", part)
    found = load(tmp_path)
    asked = load_corpus(
        DataConfig(source=str(tmp_path / "train.txt"), val=str(tmp_path / "validation.txt"), tokenizer="word"),
        cache=None,
    )
    assert found.train.ids.tolist() == asked.train.ids.tolist() and found.val.ids.tolist() == asked.val.ids.tolist()
    assert found.tokenizer.sha256 == asked.tokenizer.sha256


def test_the_test_part_changes_nothing_that_the_data_are_known_by(tmp_path: Path) -> None:
    for part in ("train", "validation"):
        write(tmp_path / f"{part}.txt", part)
    cache = tmp_path / ".cache"
    kept = [load_corpus(DataConfig(source=str(tmp_path), tokenizer="bpe"), cache=cache)]
    write(tmp_path / "test.txt", "test")
    kept.append(load_corpus(DataConfig(source=str(tmp_path), tokenizer="bpe"), cache=cache))
    assert kept[0].sha256 == kept[1].sha256
    assert [found.rule.endswith("test.txt left alone") for found in kept] == [False, True]
    write(tmp_path / "validation.txt", "validation", 60)
    assert load_corpus(DataConfig(source=str(tmp_path), tokenizer="bpe"), cache=cache).sha256 != kept[0].sha256


def test_all_shards_of_a_part_are_read_and_what_has_no_part_is_left_out(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "data" / f"train-0000{i}-of-00003.jsonl", "train", 40)
    write(tmp_path / "data" / "validation-00000-of-00001.jsonl", "validation", 40)
    write(tmp_path / "data" / "test-00000-of-00001.jsonl", "test", 40)
    write(tmp_path / "README.md", "other", 3)
    found = load(tmp_path)
    assert found.train.n_documents == 120 and found.val.n_documents == 40
    assert found.rule == (
        "published split: data/train-00000-of-00003.jsonl and 2 more for training,"
        " data/validation-00000-of-00001.jsonl for validation; data/test-00000-of-00001.jsonl left alone;"
        " README.md left out"
    )
    assert "first" not in found.tokenizer.vocabulary


def test_a_file_that_is_given_for_validation_is_that_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    for part in ("train", "validation", "test"):
        write(folder / f"{part}.txt", part)
    (folder / "held.txt").write_text("read me first " * 20)
    inside = load(folder, val=str(folder / "held.txt"))
    assert words_of(inside, "val") == {"read", "me", "first"} and words_of(inside, "train") == set(WORDS["train"])
    assert inside.rule == (
        "published split: train.txt for training, held for validation; validation.txt and test.txt left alone"
    )
    own = load(folder, val=str(folder / "validation.txt"))
    assert own.rule == (
        "published split: train.txt for training, validation for validation; test.txt left alone; held.txt left out"
    )
    (folder / "held.txt").rename(tmp_path / "held.txt")
    outside = load(folder, val=str(tmp_path / "held.txt"))
    assert words_of(outside, "val") == {"read", "me", "first"} and words_of(outside, "train") == set(WORDS["train"])


def test_of_a_folder_given_for_validation_its_part_for_that_is_measured_on(tmp_path: Path) -> None:
    for part in ("train", "validation", "test"):
        write(tmp_path / "all" / f"{part}.txt", part)
    write(tmp_path / "mine.txt", "train")
    found = load(tmp_path / "mine.txt", val=str(tmp_path / "all"))
    assert words_of(found, "val") == set(WORDS["validation"])
    assert found.rule == "mine for training, validation.txt of all for validation"
    (tmp_path / "all" / "validation.txt").unlink()
    (tmp_path / "all" / "test.txt").write_text(prose("test"))
    assert words_of(load(tmp_path / "mine.txt", val=str(tmp_path / "all")), "val") == set(WORDS["test"])


def test_a_file_of_a_plain_folder_that_is_given_for_validation_is_not_trained_on(tmp_path: Path) -> None:
    for name, part in (("a.txt", "train"), ("b.txt", "train"), ("c.txt", "other")):
        write(tmp_path / name, part)
    found = load(tmp_path, val=str(tmp_path / "c.txt"))
    assert words_of(found, "train") == set(WORDS["train"]) and words_of(found, "val") == set(WORDS["other"])
    assert "read" not in found.tokenizer.vocabulary
    with pytest.raises(SourceError, match="all that it holds for training is given for validation"):
        (tmp_path / "held").mkdir()
        for name in ("a.txt", "b.txt", "c.txt"):
            (tmp_path / name).rename(tmp_path / "held" / name)
        load(tmp_path, val=str(tmp_path / "held"))


@pytest.mark.parametrize(
    "names",
    [
        ("valid.txt", "test.txt"),
        ("train.txt", "b.txt"),
        ("latest.txt", "training-log.txt", "contest.txt"),
        ("interval.txt", "retrain.txt", "attest.txt"),
        ("train.py", "test.py", "eval.py"),
        ("train.txt", "train-dev.txt"),
        ("training/a.txt", "tests/b.txt"),
    ],
)
def test_names_that_make_no_split_are_read_as_they_were(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        write(tmp_path / name, "train" if "train" in name else "other")
    source = open_source(DataConfig(source=str(tmp_path)))
    assert source.published is None and source.held_out is None
    assert len(list(source.documents())) == len(names) and source.note == f"{len(names)} files read"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train", "train"), ("train-00000-of-00002.jsonl", "train"), ("training.csv", "train"), ("trainData", "train"),
        ("val.txt", "validation"), ("dev.conllu", "validation"), ("mnli_dev_matched.tsv", "validation"),
        ("valid_ids.txt", "validation"), ("test.en", "test"), ("t10k-images-idx3", "test"), ("eval.txt", "test"),
        ("validate.txt", ""), ("evaluate.txt", ""), ("device.txt", ""), ("latest", ""), ("traintest.txt", ""),
        ("train-dev.txt", ""), ("dev-test.txt", ""), ("train.py", ""), ("test.yaml", ""), ("trains.txt", ""),
    ],
)  # fmt: skip
def test_a_name_says_what_a_file_is_for_by_whole_words(name: str, role: str) -> None:
    assert role_of(name) == role


def test_the_outermost_parts_side_by_side_decide(tmp_path: Path) -> None:
    """A text on validation in the folder for training is for training."""
    for name in ("train/val.txt", "train/test.txt", "train/c.txt", "test/train.txt", "notes.txt"):
        write(tmp_path / name, "train", 2)
    paths = sorted(path for path in tmp_path.rglob("*.txt"))
    parts = published(tmp_path, paths)
    assert parts is not None and not parts.validation
    assert named(parts.train, tmp_path) == "train/ (3 files)" and named(parts.test, tmp_path) == "test/train.txt"
    assert named(parts.others, tmp_path) == "notes.txt"


def test_titles_of_texts_among_many_others_are_asked_about(tmp_path: Path) -> None:
    for i in range(40):
        write(tmp_path / f"Article {i}.txt", "other", 9)
    for title in ("Train.txt", "Test.txt"):
        (tmp_path / title).write_text("a short article")
    with pytest.raises(SourceError, match=r"Train.txt and Test.txt|Test.txt and Train.txt") as caught:
        open_source(DataConfig(source=str(tmp_path)))
    assert "among 40 other texts; rename them, or give a folder with nothing but the parts" in str(caught.value)


def test_labelled_tables_of_a_folder_are_its_parts(tmp_path: Path) -> None:
    for name, part in (("train.tsv", "train"), ("dev.tsv", "validation"), ("test.tsv", "test")):
        write(tmp_path / name, part)
    write(tmp_path / "README.txt", "other", 3)
    found = load_examples(DataConfig(source=str(tmp_path), tokenizer="word"), cache=None)
    assert len(found.train) == len(found.val) == 120 and found.classes == ("0", "1")
    assert found.train.texts == prose("train").splitlines() and found.val.texts == prose("validation").splitlines()
    assert found.rule == (
        "published split: train.tsv for training, dev.tsv for validation; test.tsv left alone; README.txt left out"
    )
    (tmp_path / "dev.tsv").unlink()
    found = load_examples(DataConfig(source=str(tmp_path), tokenizer="word"), cache=None)
    assert len(found.train) + len(found.val) == 120 and "zebra" not in found.tokenizer.vocabulary
    assert found.rule.startswith("published split: train.tsv for training, minus ")
    assert found.rule.endswith(
        "texts held out for validation, a tenth of each class; test.tsv left alone; README.txt left out"
    )


def test_labelled_lines_and_shards_are_parts_and_a_mistake_is_named_with_its_file(tmp_path: Path) -> None:
    for i in range(2):
        write(tmp_path / f"train-{i}.jsonl", "train", 20)
    write(tmp_path / "validation.jsonl", "validation", 20)
    found = load_examples(DataConfig(source=str(tmp_path), tokenizer="word"), cache=None)
    assert (len(found.train), len(found.val)) == (40, 20)
    (tmp_path / "validation.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 7}\n')
    with pytest.raises(SourceError, match=r"validation.jsonl' line 2 has the label '7', a class that training has not"):
        load_examples(DataConfig(source=str(tmp_path), tokenizer="word"), cache=None)
    (tmp_path / "train-1.jsonl").write_text('{"body": "a", "label": 0}\n{"body": "b", "label": 1}\n')
    with pytest.raises(SourceError, match=r"named for the same part and are read in different ways; name one of them"):
        read_labelled(DataConfig(source=str(tmp_path)))
    lines = tmp_path / "lines"
    lines.mkdir()
    for name in ("train.txt", "test.txt"):
        (lines / name).write_text("".join(f"{i % 2} some words {i}\n" for i in range(60)))
    assert len(read_labelled(DataConfig(source=str(lines))).texts) == 60
    with pytest.raises(SourceError, match="is a folder; labelled texts are read from one file"):
        (lines / "test.txt").unlink()
        read_labelled(DataConfig(source=str(lines)))


def test_a_run_says_what_was_used_for_what_and_is_evaluated_on_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "texts", tmp_path / "run"
    for part in ("train", "validation", "test"):
        write(folder / f"{part}.txt", part)
    small = ["--steps", "2", "--watch", "off", "--tokenizer", "word", "--threads", "1"]
    small += ["--set", "n_layers=1,d_model=16,n_heads=2,batch_size=4,n_ctx=16"]
    assert main(["train", str(folder), "--out", str(out), *small]) == 0
    rule = "published split: train.txt for training, validation.txt for validation; test.txt left alone"
    assert rule in capsys.readouterr().err
    assert json.loads((out / "manifest.json").read_text())["data"]["split"] == rule
    assert rule in (out / "report.html").read_text(encoding="utf-8")
    losses = []
    for source in ([], [str(folder)], [str(folder / "validation.txt")]):
        assert main(["eval", str(out), *source, "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[1] == losses[2] == pytest.approx(losses[0])


def test_a_classifier_of_a_folder_keeps_its_columns_when_the_folder_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "reviews", tmp_path / "run"
    folder.mkdir()
    for name in ("train.csv", "test.csv", "dev.csv"):
        rows = "".join(f"a {('good', 'bad')[i % 2]} film {i},{i % 5},{('up', 'down')[i % 2]}\n" for i in range(60))
        (folder / name).write_text("review,stars,mood\n" + rows)
    small = [
        "--steps",
        "2",
        "--watch",
        "off",
        "--no-report",
        "--threads",
        "1",
        "--set",
        "n_layers=1,d_model=16,n_heads=2",
    ]
    asked = ["--text-column", "review", "--label-column", "mood"]
    assert main(["train", str(folder), "--task", "classify", "--out", str(out), *asked, *small]) == 0
    assert "dev.csv for validation; test.csv left alone" in capsys.readouterr().err
    for source in (folder, folder / "test.csv"):
        assert main(["eval", str(out), str(source), "--json"]) == 0
        capsys.readouterr()


def test_wikitext_is_split_as_it_is_published(real_data: Path) -> None:
    folder = real_data / "wikitext-2"
    if not folder.is_dir():
        pytest.skip("QKV_DATA holds no wikitext-2")
    found = load_corpus(DataConfig(source=str(folder), tokenizer="byte"), cache=None)
    assert (len(found.train), len(found.val)) == (10_797_148, 1_121_681)
    assert found.rule == "published split: train.txt for training, valid.txt for validation; test.txt left alone"
