"""Every instrument on every preset and task: it works there, or it says in one sentence why it does not."""

import gzip
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.instruments.attention_stats import STATISTICS
from qkv.instruments.pieces import head_rows
from qkv.instruments.registry import CIRCUIT, LIGHT, SPECTRAL
from qkv.presets import PRESETS
from qkv.randomness import generator
from qkv.tasks import TASKS
from qkv.telemetry import NULL_ARM

CASES = {
    f"{p.name}-{t.name}": (p.name, t.name) for t in TASKS.values() for p in PRESETS.values() if t.stack in p.stacks
}
CORE = ("fast-causal", "bert-masked", "bert-classify", "llama-causal", "vaswani-translate", "modern-image")
TEXTS = {"translate": "der Hund sieht die Katze => the dog sees the cat"}
STEPS = 16


@pytest.fixture(scope="session")
def sources(small_text: Path, small_pairs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A source for each task, all of our own making."""
    folder = tmp_path_factory.mktemp("sources")
    lines = small_text.read_text("utf-8").splitlines()
    table = "".join(f"{line}\t{'cat' if 'cat' in line else 'other'}\n" for line in lines[:300])
    (folder / "labels.tsv").write_text("text\tlabel\n" + table, encoding="utf-8")
    numbers = "".join(f"{len(line)}.5\t{line}\n" for line in lines[:300])
    (folder / "numbers.txt").write_text(numbers, encoding="utf-8")
    sets = "".join(f"{line}\t{'|'.join(w for w in ('cat', 'dog') if w in line)}\n" for line in lines[:300])
    (folder / "sets.tsv").write_text("text\tlabels\n" + sets, encoding="utf-8")
    words = ("".join(f"{word} {word[0]}\n" for word in line.split()) + "\n" for line in lines[:300])
    (folder / "words.conll").write_text("".join(words), encoding="utf-8")
    images = folder / "images"
    images.mkdir()
    for name, n in (("train", 60), ("t10k", 20)):
        pixels, labels = generator("tests", name).integers(0, 255, (n, 8, 8)), np.arange(n) % 2
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (images / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    pairs = ":".join(map(str, small_pairs))
    asked = [
        {"question": f"What comes after {line.split()[0]}?", "text": line, "answer": line.split()[1]} for line in lines
    ]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked[:300]), encoding="utf-8")
    texts = {"causal": small_text, "masked": small_text, "answer": folder / "asked.jsonl"}
    labels = {"classify": "labels.tsv", "multilabel": "sets.tsv", "regress": "numbers.txt", "tag": "words.conll"}
    texts |= {task: folder / name for task, name in labels.items()}
    return texts | {"image": images, "translate": pairs}


def train(case: tuple[str, str], sources: dict, out: Path, **more):
    preset, task = case
    sizes = {"d_model": 32, "n_layers": 2, "ledger.every": 8, "ledger.windows": 2}
    sizes |= {"n_heads": 2} if PRESETS[preset].head_width else {}
    sizes |= {"patch": 4} if task == "image" else {"n_ctx": 32} if task != "translate" else {}
    tokenizer = {} if task == "image" else {"tokenizer": "word" if task in ("translate", "classify") else "char"}
    return qkv.train(
        sources[task], out=out, task=task, preset=preset, steps=STEPS, set=sizes | more, watch="full", threads=1,
        precision="fp32", **tokenizer,
    )  # fmt: skip


def case_params() -> list:
    return [pytest.param(c, id=n, marks=() if n in CORE else pytest.mark.slow) for n, c in CASES.items()]


@pytest.mark.parametrize("case", case_params())
def test_every_instrument_works_or_says_why_not(case, sources, tmp_path, capsys):
    run = train(case, sources, tmp_path / "run")
    assert_recorded(run)
    text = TEXTS.get(case[1], "the cat sees a dog at home.")
    commands = [
        ["show", run.path],
        ["show", run.path, "--text", text],
        ["show", run.path, "--text", text, "--at", f"0..{STEPS}"],
        ["step", run.path, text],
        ["embed", run.path, "--measures"],
        *(["show", run.path, address] for address in addresses(run)),
    ]
    for words in commands:
        capsys.readouterr()
        status = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert status == 0 and out.strip() or status == 2 and is_one_sentence(err), (words, status, out[-300:], err)


def addresses(run) -> list[str]:
    """One of each kind that the model has."""
    found: dict[str, str] = {}
    with run.telemetry() as telemetry:
        for row in telemetry.addresses():
            found.setdefault(re.sub(r"\d+", "", row.address), row.address)
    return list(found.values())


def is_one_sentence(err: str) -> bool:
    lines = [line for line in err.strip().splitlines() if line.strip()]
    return len(lines) == 1 and "Traceback" not in err and len(lines[0]) < 400


def assert_recorded(run) -> None:
    """Every matrix and head, every circuit, every pattern of every attention, and a ledger that closes."""
    catalogue = run.catalogue()
    with run.telemetry() as telemetry:
        there = [row.address for row in telemetry.addresses()]
        parts = [f",**.{part}*.**" for part in ("H", "KV") if any(re.search(rf"\.{part}\d", name) for name in there)]
        last = {row.about.address: row.values for row in telemetry.latest("**" + "".join(parts))}
        nulls = {pair.address for pair in telemetry.against_null("drift")}
        assert telemetry.last_step(NULL_ARM) >= 1
    stems = []
    for entry in catalogue:
        names = [entry.address, *(row.address for row in head_rows(entry))]
        for name in names:
            assert set([*LIGHT][:5]) - {"turn"} <= set(last[name]), name
        assert entry.address in nulls
        if entry.kind == "W_Q":
            stems.append((entry.address.removesuffix("W_Q"), entry.n_heads))
    assert stems or run.model.config.layout.mixer != "attention"
    for stem, n_heads in stems:
        cross = ".cross." in f".{stem}"
        for head in range(n_heads):
            for kind in ("QK", "OV"):
                expected = (set(CIRCUIT) | set(SPECTRAL)) - {"symmetric_share", "turn"}
                assert expected <= set(last[f"{stem}H{head}.{kind}"]), (stem, kind)
            pattern = last[f"{stem}H{head}.pattern"]
            undefined = {"own_mass", "previous_mass", "distance"} if cross else set()
            for name in set(STATISTICS) - undefined:
                assert pattern[name] is not None and np.isfinite(pattern[name]), (stem, name)
            assert all(pattern.get(name) is None for name in undefined)
    ledger = run.ledger()
    assert ledger is not None and abs(ledger.error) < 0.02 * abs(ledger.change) + 1e-4
