"""Everything in a source is read, set aside or left out by name; nothing of it is lost without a word."""

import csv
import gzip
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from qkv import api
from qkv.cli import main
from qkv.data.config import DataConfig
from qkv.data.examples import encode_texts
from qkv.data.images import load_images
from qkv.data.labelled import read_labelled
from qkv.data.sources.reading import size_of
from qkv.data.sources.receipt import Receipt, make_receipt
from qkv.data.sources.source import open_source
from qkv.errors import SourceError
from qkv.tasks import find_task

CAMPAIGN = Path(__file__).parents[1] / "campaigns" / "conservation.py"
PROSE = "".join(f"line {i} of a text with words that differ {i * i}\n" for i in range(60))


def receipt_of(source: Path, task: str = "causal", **given) -> Receipt:
    given.setdefault("tokenizer", "char" if task == "causal" else "word")
    return find_task(task).load(DataConfig(source=str(source), **given), cache=None).receipt


def table(path: Path, rows: list[dict[str, str]], separator: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


# conservation


@pytest.fixture(scope="module")
def conservation():
    spec = importlib.util.spec_from_file_location("conservation", CAMPAIGN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["conservation"] = module
    spec.loader.exec_module(module)
    return module


def test_what_generated_sources_hold_is_in_their_receipts(tmp_path, conservation):
    found = [conservation.tried(number, tmp_path / "s") for number in range(4 * len(conservation.READERS))]
    assert {name for name, refusal, _ in found if not refusal} == set(conservation.READERS)
    assert [wrong for _, _, wrong in found if wrong] == []


def test_the_campaign_sees_what_is_lost(tmp_path, conservation, monkeypatch):
    numbers = [i for i, name in enumerate(conservation.READERS) if name in ("text", "table", "labelled table", "IDX")]
    whole = make_receipt

    def leaky(read, *args, **given):
        return whole([(file, train - 1, val) for file, train, val in read], *args, **given)

    for module in ("counting", "examples", "images"):
        monkeypatch.setattr(f"qkv.data.{module}.make_receipt", leaky)
    assert all(conservation.tried(number, tmp_path / "s")[2] for number in numbers)


def test_a_receipt_of_kept_tokens_is_that_of_the_first_reading(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.txt").write_text(PROSE)
    (tmp_path / "s" / "b.txt").write_text(PROSE.upper())
    config = DataConfig(source=str(tmp_path / "s"), tokenizer="word")
    first, second = (find_task("causal").load(config, cache=tmp_path / "cache").receipt for _ in range(2))
    assert first == second and sum(share.train for share in first.files.values()) > 0


def test_many_files_share_entries_and_lose_no_byte(tmp_path):
    for i in range(1100):
        (tmp_path / f"{'ab'[i % 2]}{i % 7}").mkdir(exist_ok=True)
        (tmp_path / f"{'ab'[i % 2]}{i % 7}" / f"{i}.txt").write_text(f"text {i} with words\n" * 3)
    receipt = receipt_of(tmp_path)
    assert len(receipt.files) == 14 and all(name.endswith("/") for name in receipt.files)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.txt"))
    assert sum(share.train + share.validation + share.left_out for share in receipt.files.values()) == size


def test_a_link_to_a_folder_is_not_followed_for_its_size_and_a_file_that_is_gone_has_none(tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "big.txt").write_bytes(b"x" * 100_000)
    (tmp_path / "here" / ".hidden").mkdir(parents=True)
    (tmp_path / "here" / ".hidden" / "gone").write_text("x")
    for name in ("link", ".link"):
        (tmp_path / "here" / name).symlink_to(tmp_path / "far")
    (tmp_path / "here" / "a.txt").write_text(PROSE)
    os.mkfifo(tmp_path / "here" / "pipe.gz")
    lstat = os.lstat

    def last(path):
        return lstat(path if Path(path).name != "gone" else tmp_path / "nowhere")

    monkeypatch.setattr(os, "lstat", last)
    files = receipt_of(tmp_path / "here").files
    left = {Path(name).name: share.left_out for name, share in files.items()}
    assert left.pop("link") == left.pop(".link") == len(str(tmp_path / "far"))
    assert left == {"a.txt": 0, ".hidden": 0, "pipe.gz": 0}
    assert size_of(tmp_path / "nowhere.gz") == size_of(tmp_path / "nowhere.txt") == 0


# where it is shown


def test_train_and_plan_give_the_same_receipt(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in ("train", "valid", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{part}.txt").write_text(PROSE.replace("text", part))
    sizes = {name: (tmp_path / "data" / f"{name}.txt").stat().st_size for name in ("train", "valid", "test")}
    small = "--tokenizer char --steps 2 --threads 1 --set d_model=16,n_layers=1,n_heads=1,n_ctx=16".split()
    assert main(["train", "data", *small, "--no-report", "--watch", "off", "--out", "run", "--json"]) == 0
    out, err = capsys.readouterr()
    trained = json.loads(out)["receipt"]
    none = {"train": 0, "validation": 0, "test": 0, "left_out": 0, "why": ""}
    assert trained["files"] == {
        "data/train.txt": none | {"train": sizes["train"]},
        "data/valid.txt": none | {"validation": sizes["valid"]},
        "data/test.txt": none | {"test": sizes["test"], "why": "left alone for the test"},
    }
    assert "left alone for the test" in err.partition("step 1/2")[0], "it is shown before the training"
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["receipt"] == trained == api.load("run").receipt
    assert main(["plan", "data", *small, "--receipt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == trained
    assert main(["plan", "data", *small, "--receipt"]) == 0
    assert "left alone for the test" in capsys.readouterr().out
    api.load("run").report()
    assert "left alone for the test" in (tmp_path / "run" / "report.html").read_text()


# rows and columns


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_line_ends_in_quotes_cut_no_row_in_two(tmp_path, name):
    texts = [f"first line {i}\nsecond line {i * i}" if i % 3 == 0 else f'plain "{i}"' for i in range(60)]
    rows = [{"text": text, "label": str(i % 2)} for i, text in enumerate(texts)]
    path = table(tmp_path / name, rows, "\t" if name == "t.tsv" else ",")
    assert list(open_source(DataConfig(source=str(path))).documents()) == texts
    receipt = receipt_of(path, "classify")
    assert (receipt.rows.read, receipt.rows.left_out) == (60, 0) and receipt.classes == {"0": 30, "1": 30}


def test_doubled_quotes_are_one_where_every_quoted_cell_is_whole(tmp_path):
    texts = [f'he said "no {i}" twice' if i % 2 else f"plain words {i}" for i in range(20)]
    path = table(tmp_path / "t.tsv", [{"text": text, "label": str(i % 2)} for i, text in enumerate(texts)], "\t")
    assert '""no' in path.read_text() and read_labelled(DataConfig(source=str(path))).texts == texts


def test_quotes_of_glue_stay_letters(tmp_path):
    rows = ['"so it goes\t1', 'a "quoted" word\t0', '"both"\t1', 'ends so"\t0']
    (tmp_path / "t.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    assert read_labelled(DataConfig(source=str(tmp_path / "t.tsv"))).texts == [row.split("\t")[0] for row in rows]


def test_a_late_line_end_in_quotes_is_one_sentence(tmp_path):
    rows = [f"text number {i}\t{i % 2}" for i in range(300)]
    rows[250] = '"first\nsecond"\t0'
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    with pytest.raises(SourceError, match="line 252 begins a cell in quotes that goes on in the next line"):
        list(open_source(DataConfig(source=str(tmp_path / "t.tsv"))).documents())


@pytest.mark.parametrize(
    ("label", "said"), [("NaN", "'nan', which means none"), ('"nan"', "which means none"), ("null", "no label")]
)
def test_a_missing_label_is_no_class(tmp_path, label, said):
    rows = [f'{{"text": "words {i}", "label": {label if i == 7 else i % 2}}}' for i in range(40)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    with pytest.raises(SourceError, match=f"line 8 has {said}|line 8 has the label .*{said}"):
        receipt_of(tmp_path / "t.jsonl", "classify")


def test_a_missing_text_is_a_row_left_out(tmp_path):
    rows = [f'{{"text": {"NaN" if i == 7 else json.dumps(f"words {i}")}, "label": {i % 2}}}' for i in range(40)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    for task in ("causal", "classify"):
        found = receipt_of(tmp_path / "t.jsonl", task).rows
        assert (found.read, found.left_out, found.why) == (39, 1, "1 row without text")


@pytest.mark.parametrize(
    ("labels", "said"),
    [(("POS", "pos", "neg"), "'POS' and 'pos'"), (("1", "1.0", "2"), "'1' and '1.0'"), (("a", "b", "c"), "")],
)
def test_labels_that_are_nearly_the_same_are_noticed(tmp_path, labels, said):
    rows = [{"text": f"words number {i}", "label": labels[i % 3]} for i in range(60)]
    note = read_labelled(DataConfig(source=str(table(tmp_path / "t.csv", rows)))).note
    assert ("nearly the same" in note) == bool(said) and said in note


PAIRS = [
    {"premise": f"a man number {i} walks the dog", "hypothesis": f"an animal {i * i} is outside", "label": "yn"[i % 2]}
    for i in range(60)
]


def test_a_second_column_of_text_is_asked_about_and_read_with_sep_between(tmp_path, capsys):
    path = table(tmp_path / "t.tsv", PAIRS, "\t")
    with pytest.raises(
        SourceError, match="2 columns of text: premise and hypothesis; .*--text-column premise,hypothesis"
    ):
        read_labelled(DataConfig(source=str(path)))
    config = DataConfig(source=str(path), text_column="premise,hypothesis", tokenizer="word")
    data = find_task("classify").load(config, cache=None)
    assert data.receipt.columns == {"premise": "text", "hypothesis": "text", "label": "label"}
    tokenizer, text = data.tokenizer, f"{PAIRS[0]['premise']} [SEP] {PAIRS[0]['hypothesis']}"
    assert text in data.train.texts + data.val.texts
    wanted = [
        *tokenizer.encode(PAIRS[0]["premise"]),
        tokenizer.special["[SEP]"],
        *tokenizer.encode(PAIRS[0]["hypothesis"]),
    ]
    assert encode_texts(tokenizer, [text], 2)[0].tolist() == wanted
    assert (data.train.ids == tokenizer.special["[SEP]"]).sum() == len(data.train)
    assert encode_texts(tokenizer, ["a [SEP] b"], 1)[0].tolist() == tokenizer.encode("a [SEP] b").tolist()
    alone = DataConfig(source=str(path), text_column="premise", tokenizer="word")
    assert find_task("classify").load(alone, cache=None).receipt.columns["hypothesis"] == "unused"
    with pytest.raises(SourceError, match="names two columns, which only --task classify reads"):
        open_source(config)


def test_a_run_of_pairs_answers_as_it_was_trained(tmp_path):
    path = table(tmp_path / "t.tsv", PAIRS, "\t")
    small = {"d_model": 16, "n_layers": 1, "n_heads": 1, "training.teaching.teachers": 0}
    run = api.train(
        path, task="classify", text_column="premise,hypothesis", steps=2, out=tmp_path / "run", set=small, threads=1,
        report=False, watch="off",
    )  # fmt: skip
    text = f"{PAIRS[1]['premise']} [SEP] {PAIRS[1]['hypothesis']}"
    assert run.task.columns == 2 and run.predict([text])[0] in "yn"
    ids = encode_texts(run.tokenizer, [text], 2)[0]
    assert (
        run.tokenizer.special["[SEP]"] in ids and len(ids) == len(run.tokenizer.encode(text.replace("[SEP]", ""))) + 1
    )


def test_eval_takes_the_columns_of_another_table(tmp_path, capsys):
    rows = [{"text": f"words number {i}", "label": "yn"[i % 2]} for i in range(60)]
    path = table(tmp_path / "t.csv", rows)
    other = table(tmp_path / "o.csv", [{"stars": row["label"], "said": row["text"], "n": "5"} for row in rows])
    small = (
        "--task classify --steps 2 --threads 1 --no-report --watch off --set d_model=16,n_layers=1,n_heads=1".split()
    )
    run = str(tmp_path / "run")
    assert main(["train", str(path), *small, "--set", "teachers=0", "--out", run]) == 0
    capsys.readouterr()
    columns = ["--text-column", "said", "--label-column", "stars"]
    assert main(["eval", run, str(other), *columns, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_targets"] == 60
    assert main(["eval", run, *columns]) == 2
    assert "--text-column is for another source; name it: qkv eval" in capsys.readouterr().err


def test_parquet_is_read_as_json_lines_are(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"text": f"words number {i}" if i != 9 else None, "label": i % 2} for i in range(60)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    both = [DataConfig(source=str(tmp_path / name)) for name in ("t.parquet", "t.jsonl")]
    assert [list(open_source(one).documents()) for one in both][0] == [row["text"] for row in rows if row["text"]]
    assert read_labelled(both[0]).texts == read_labelled(both[1]).texts
    assert read_labelled(both[0]).labels == read_labelled(both[1]).labels
    found = [receipt_of(Path(one.source), "classify") for one in both]
    assert found[0].rows == found[1].rows and found[0].classes == found[1].classes


# documents and annotations


def test_marks_between_documents_are_reported_and_end_them_where_asked(tmp_path):
    texts = [PROSE.replace("line", word) for word in ("one", "two", "three", "four")]
    path = tmp_path / "t.txt"
    path.write_text("<|endoftext|>".join(texts))
    plain = find_task("causal").load(DataConfig(source=str(path), tokenizer="char"), cache=None)
    assert "<|endoftext|> occurs 3 times in the text and is read as letters" in plain.note
    asked = DataConfig(source=str(path), tokenizer="char", document_end="<|endoftext|>")
    assert list(open_source(asked).documents()) == texts
    data = find_task("causal").load(asked, cache=None)
    (share,) = data.receipt.files.values()
    assert (share.left_out, share.why) == (39, "marks between documents") and "occurs" not in data.note


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) - 5, (1 << 20) - 13])
def test_a_mark_across_two_blocks_is_one(tmp_path, size):
    path = tmp_path / "t.txt"
    path.write_text("a" * size + "<|endoftext|>" + "b" * 100)
    source = open_source(DataConfig(source=str(path)))
    assert source.marks == {"<|endoftext|>": 1}
    asked = open_source(DataConfig(source=str(path), document_end="<|endoftext|>"))
    assert [len(text) for text in asked.documents()] == [size, 100]


def test_annotated_text_is_named_and_not_trained_on(tmp_path):
    word = "\t".join(["{}", "Hello", "hello", "INTJ", "UH", "_", "0", "root", "_", "_"])
    (tmp_path / "dev.conllu").write_text(
        "# sent_id = 1\n# text = Hello there\n" + word.format(1) + "\n" + word.format("2-3") + "\n\n"
    )
    with pytest.raises(SourceError, match=r"annotated text \(CoNLL-U\).*sed -n 's/\^# text = //p' .*dev.conllu"):
        open_source(DataConfig(source=str(tmp_path / "dev.conllu")))
    (tmp_path / "a.txt").write_text(PROSE)
    (share,) = [v for k, v in receipt_of(tmp_path).files.items() if k.endswith("dev.conllu")]
    assert share.left_out > 100 and "CoNLL-U" in share.why
    (tmp_path / "b.txt").write_text("-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n")
    with pytest.raises(SourceError, match="CoNLL-2003"):
        open_source(DataConfig(source=str(tmp_path / "b.txt")))


# images


@pytest.fixture
def pictures():
    return pytest.importorskip("PIL.Image", reason="image files need Pillow")


def classes(folder: Path, pictures, names=("cats", "dogs"), n: int = 6) -> Path:
    draws = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            pictures.fromarray(draws.integers(0, 256, (5, 5), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize("files", [["a.heic", "b.heic"], []])
def test_a_class_that_would_vanish_is_refused(tmp_path, pictures, files):
    classes(tmp_path, pictures)
    (tmp_path / "emus").mkdir()
    for name in files:
        (tmp_path / "emus" / name).write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(SourceError, match=r"the class 'emus' of .* would vanish: it holds (2 files \(.heic\)|no file)"):
        load_images(str(tmp_path))


def test_half_a_class_that_is_not_read_is_counted_and_named(tmp_path, pictures):
    classes(tmp_path, pictures)
    for i in range(3):
        (tmp_path / "dogs" / f"{i}.heic").write_bytes(b"\0\0\0\x18ftypheic")
    data = load_images(str(tmp_path))
    assert "not read: 3 of 'dogs' (.heic)" in data.note
    assert data.receipt.classes == {"cats": 6, "dogs": 6}
    left = [k for k, share in data.receipt.files.items() if share.left_out]
    assert len(left) == 3 and all(name.endswith(".heic") for name in left)


@pytest.mark.parametrize("kind", ["JPEG2000", "AVIF", "QOI"])
def test_other_formats_that_pillow_reads_are_read(tmp_path, pictures, kind):
    classes(tmp_path, pictures, n=4)
    ending = {"JPEG2000": "jp2", "AVIF": "avif", "QOI": "qoi"}[kind]
    try:
        pictures.new("RGB", (16, 16), (200, 10, 30)).save(tmp_path / "dogs" / f"x.{ending}", format=kind)
    except (KeyError, OSError, ValueError):
        pytest.skip(f"Pillow does not write {kind} here")
    assert load_images(str(tmp_path)).receipt.classes == {"cats": 4, "dogs": 5}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_lies_upright(tmp_path, pictures, orientation):
    from PIL import ImageOps

    pixels = np.zeros((8, 16), dtype=np.uint8)
    pixels[:, 8:] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            image, exif = pictures.fromarray(pixels // (1 if name == "a" else 2) + i), pictures.Exif()
            exif[0x0112] = orientation
            image.save(tmp_path / name / f"{i}.png", exif=exif)
    data = load_images(str(tmp_path))
    upright = np.asarray(ImageOps.exif_transpose(pictures.open(tmp_path / "a" / "0.png")))
    assert data.shape[1:] == upright.shape
    assert any((image[0] == upright).all() for image in (*data.train.pixels, *data.val.pixels))


def test_labels_of_idx_and_a_test_that_is_left_alone_are_counted(tmp_path):
    for part, n in (("train", 30), ("valid", 9), ("test", 6)):
        pixels, labels = np.zeros((n, 3, 3), np.uint8), np.arange(n, dtype=np.uint8) % 3
        pixels += labels[:, None, None] + np.arange(n, dtype=np.uint8)[:, None, None]
        for name, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))
    receipt = load_images(str(tmp_path)).receipt
    shares = {Path(name).name: share for name, share in receipt.files.items()}
    assert (shares["train-images-idx3-ubyte.gz"].train, shares["train-images-idx3-ubyte.gz"].left_out) == (270, 16)
    assert shares["valid-labels-idx1-ubyte.gz"].validation == 9 and shares["test-labels-idx1-ubyte.gz"].test == 14
    assert (receipt.rows.read, receipt.rows.set_aside) == (39, 6) and receipt.classes == {"0": 13, "1": 13, "2": 13}


# files that are something else


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.array([64, 172, 5, 8, 4, 512, 512], "<i4").tobytes() + bytes(4000), "a model file of llama2.c"),
        (b"".join(bytes([i % 10]) + bytes([7]) * 3072 for i in range(20)), "a binary file of CIFAR images"),
        (b"".join(bytes([i % 20, i % 100]) + bytes([7]) * 3072 for i in range(20)), "a binary file of CIFAR images"),
        (np.array([20240520, 1, 500, 0, 0, 0, 0, 0], "<i4").tobytes() + bytes(5000), "token ids of llm.c"),
        (bytes([200]) + bytes(5000), "binary"),
    ],
)
def test_a_bin_file_is_called_what_it_is(tmp_path, data, said):
    (tmp_path / "m.bin").write_bytes(data)
    with pytest.raises(SourceError, match=f"is {said}"):
        open_source(DataConfig(source=str(tmp_path / "m.bin")))
    if said != "binary":
        with pytest.raises(SourceError, match=f"is {said}"):
            load_images(str(tmp_path / "m.bin"))


def test_three_columns_are_read_with_sep_between_each_two(tmp_path, capsys):
    rows = [{"a": f"one {i}", "b": f"two {i}", "c": f"three {i}", "label": "yn"[i % 2]} for i in range(60)]
    path = table(tmp_path / "t.csv", rows)
    data = find_task("classify").load(DataConfig(source=str(path), text_column="a,b,c", tokenizer="word"), cache=None)
    assert "one 7 [SEP] two 7 [SEP] three 7" in data.train.texts + data.val.texts
    sep = data.tokenizer.special["[SEP]"]
    assert all((data.train.tokens.document(i) == sep).sum() == 2 for i in range(len(data.train)))
    ids, lengths = encode_texts(data.tokenizer, ["one [SEP] two [SEP] three", "one"], 3)
    one, two, three = (int(data.tokenizer.encode(word)[0]) for word in ("one", "two", "three"))
    assert ids.tolist() == [one, sep, two, sep, three, one] and lengths.tolist() == [5, 1]
    for asked in ("a,a", "a,,b"):
        with pytest.raises(SourceError, match="expected columns that differ, with one comma between"):
            read_labelled(DataConfig(source=str(path), text_column=asked))
    repeated = ["--text-column", "a", "--text-column", "c"]
    assert main(["plan", str(path), "--task", "classify", *repeated, "--receipt"]) != 1
    assert "text: a, c; label: label; unused: b" in "".join(capsys.readouterr())
