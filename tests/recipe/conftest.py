"""What tests of whole trainings ask for: a small model of every kind, on data of our own making."""

import gzip
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.randomness import generator

STEPS = 12


@pytest.fixture(scope="session")
def sources_by_task(small_text: Path, small_pairs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A source for each task, all of our own making."""
    folder = tmp_path_factory.mktemp("sources-by-task")
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
    asked = [
        {"question": f"What comes after {line.split()[0]}?", "text": line, "answer": line.split()[1]} for line in lines
    ]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked[:300]), encoding="utf-8")
    texts = {"causal": small_text, "masked": small_text, "answer": folder / "asked.jsonl"}
    labels = {"classify": "labels.tsv", "multilabel": "sets.tsv", "regress": "numbers.txt", "tag": "words.conll"}
    texts |= {task: folder / name for task, name in labels.items()}
    return texts | {"image": images, "translate": ":".join(map(str, small_pairs))}


@pytest.fixture
def asked(sources_by_task: dict) -> Callable[..., dict]:
    """(preset, task) and more -> what `qkv.train` is given for a model of some thousand parameters."""

    def given(case: tuple[str, str], **more) -> dict:
        preset, task = case
        sizes = {"d_model": 32, "n_layers": 2} | ({} if preset == "lstm" else {"n_heads": 2})
        sizes |= {"patch": 4} if task == "image" else {"n_ctx": 32} if task != "translate" else {}
        made = {"source": str(sources_by_task[task]), "task": task, "preset": preset, "steps": STEPS, "set": sizes}
        if task != "image":
            made["tokenizer"] = "word" if task in ("translate", "classify") else "char"
        return made | {"seed": 3} | more

    return given


@pytest.fixture
def killed_and_resumed(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """What is typed after `qkv train` -> folders of a run left alone, and of one killed at a checkpoint and resumed."""

    def made(*typed: str) -> tuple[Path, Path]:
        command = [sys.executable, "-m", "qkv", "train", *typed, "--out"]
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        subprocess.run([*command, str(whole)], check=True, capture_output=True)
        process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(killed.glob("checkpoints/step-0000006*")):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (killed / "manifest.json").exists(), "it ended before it was killed"
        resumed = qkv.train(out=killed, resume=True, report=False)
        assert resumed.summary["resumed_from_step"] > 0
        return whole, killed

    return made
