"""Large texts into ids: by several processes, gone on with after a kill, in bounded memory; always the same ids."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qkv.data import tokenizing
from qkv.data.sources.source import Chunk
from qkv.data.tokenizing import keep_tokens, kept_tokens, tokenise
from qkv.errors import RunError
from qkv.tokenizers import encoders
from qkv.tokenizers.encoders import Batch, Encoders, encode, most_workers
from qkv.tokenizers.tokenizer import fit_tokenizer

KINDS = {"char": 0, "byte": 0, "word": 300, "bpe": 300, "unigram": 300}
"""Kind -> size of its vocabulary, where that is chosen."""
SCRIPT = Path(__file__).with_name("tokenised.py")


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    """Documents of many lengths, cut in many places, with characters beyond ASCII."""
    words = ["the cat", "a döğ", "sees 12", "\n\nHome", "x" * 40, "naïve—yes", "日本語 text"]
    draws = np.random.default_rng(3)
    return [
        Chunk(
            " ".join(words[i] for i in draws.integers(len(words), size=draws.integers(1, 400))), bool(draws.integers(2))
        )
        for _ in range(199)
    ] + [Chunk("the end", True)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_BATCH_CHARS", 3000)
    monkeypatch.setattr(tokenizing, "_PIECE_CHARS", 20_000)


def same(one, other) -> bool:
    numbers = [(t.n_bytes, t.n_unknown, t.ids.dtype) for t in (one, other)]
    return (
        numbers[0] == numbers[1] and np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_give_the_ids_of_one(kind: str, chunks: list[Chunk], tmp_path: Path) -> None:
    tokenizer = fit_tokenizer(kind, [chunk.text for chunk in chunks[:100]], KINDS[kind], end=True)
    alone = tokenise(iter(chunks), tokenizer, tokenizer.end_id)
    assert len(alone) > 10_000 and alone.n_documents > 50
    told: list[int] = []
    many = tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids", told.append, workers=3)
    assert same(many, alone) and sum(told) == sum(len(chunk.text) for chunk in chunks)


@pytest.mark.parametrize("stop_at", [1, 7, 20, 33])
def test_what_broke_off_is_gone_on_with_and_only_the_last_piece_is_made_twice(
    stop_at: int, chunks: list[Chunk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = fit_tokenizer("bpe", [chunk.text for chunk in chunks], 300, end=True)
    alone = tokenise(iter(chunks), tokenizer, tokenizer.end_id)
    made: list[int] = []

    def counted(tokenizer, end_id, batch):
        if len(made) == stop_at:
            raise KeyboardInterrupt
        made.append(sum(map(len, batch.texts)))
        return encode(tokenizer, end_id, batch)

    monkeypatch.setattr(encoders, "encode", counted)
    with pytest.raises(KeyboardInterrupt):
        tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids")
    first, stop_at = sum(made), -1
    made.clear()
    told: list[int] = []
    again = tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids", told.append)
    assert same(again, alone)
    total = sum(len(chunk.text) for chunk in chunks)
    assert sum(told) == total, "progress begins where it left off"
    assert 0 <= first + sum(made) - total <= 20_000 + 3 * 3000, "more than a piece was made twice"
    made.clear()
    assert same(tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids"), alone) and not made


@pytest.mark.parametrize("damage", ["cut", "gone", "no JSON", "another"])
def test_files_that_are_not_what_was_noted_are_begun_anew(damage: str, chunks: list[Chunk], tmp_path: Path) -> None:
    tokenizer = fit_tokenizer("bpe", [chunk.text for chunk in chunks], 300, end=True)
    alone = tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids")
    ids = alone.ids.copy()
    done = tmp_path / "a.done"
    if damage == "cut":
        (tmp_path / "b.ids").write_bytes((tmp_path / "a.ids").read_bytes()[:-5])
        os.replace(tmp_path / "b.ids", tmp_path / "a.ids")
    elif damage == "gone":
        (tmp_path / "a.stops").unlink()
    else:
        done.write_text("{" if damage == "no JSON" else json.dumps({"batches": "many"}))
    again = tokenise(iter(chunks), tokenizer, tokenizer.end_id, tmp_path / "a.ids")
    assert np.array_equal(again.ids, ids)


def test_a_process_that_dies_is_one_sentence(chunks: list[Chunk]) -> None:
    tokenizer = fit_tokenizer("bpe", [chunk.text for chunk in chunks], 300)
    with pytest.raises(RunError, match="goes on from the last piece"), Encoders(tokenizer, None, 2) as processes:
        for process in processes._processes:
            process.kill()
            process.wait()
        processes.start(Batch(["some text"], np.array([True]))).result()
    assert all(process.poll() is not None for process in processes._processes)


@pytest.mark.parametrize("gone", ["start", "line", "text", "answer"])
def test_a_process_whose_asker_is_gone_ends_without_a_word(gone: str) -> None:
    """Killed while it asks, in the line or in the text behind it, or before it reads the answer."""
    tokenizer = fit_tokenizer("char", ["a text"], 0)
    about = json.dumps({"tokenizer": tokenizer.to_json(), "end": False, "share": 1}).encode() + b"\n"
    line, text = json.dumps({"sizes": [6], "ends": [True]}).encode() + b"\n", b"a text"
    asked = {
        "start": about[:9],
        "line": about + line[:9],
        "text": about + line + text[:3],
        "answer": about + line + text,
    }
    words = [sys.executable, "-c", "from qkv.tokenizers.encoders import serve; serve()"]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(words, **pipes) as process:
        process.stdout.close()
        process.stdin.write(asked[gone])
        process.stdin.close()
        assert process.stderr.read() == b""


def test_two_processes_that_make_the_same_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    tokenizer = fit_tokenizer("char", ["some text"], 0)
    folder, places = tmp_path / "kept", []

    def make(place: Path):
        places.append(place)
        if len(places) == 1:
            keep_tokens(folder, make, goes_on=True)  # as another process would, in the middle of the first
        return {"train": tokenise([Chunk("some text", True)], tokenizer, None, place / "train.ids")}, {}

    keep_tokens(folder, make, goes_on=True)
    assert len(set(places)) == 2 and not any(place.exists() for place in places)
    kept = kept_tokens(folder, in_memory=True)
    assert kept is not None and len(kept[0]["train"]) == 9
    assert sorted(path.name for path in folder.iterdir()) == ["facts.json", "train.ids", "train.offsets"]


def test_one_process_for_each_core_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    assert most_workers() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(300)), raising=False)
    assert most_workers() == encoders.MOST_WORKERS


def run(*words: object) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, words)], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_again_and_again_it_ends_with_the_same_files(workers: int, tmp_path: Path) -> None:
    """kill -9 at seven moments of 12 MB; what is there at the end is what an undisturbed run makes."""
    text = tmp_path / "text.txt"
    draws = np.random.default_rng(5)
    words = np.array(["the", "king", "sees", "a", "quéen", "at", "home.\n", "and", "the", "sea,"])
    text.write_text(" ".join(words[draws.integers(len(words), size=3_000_000)]), encoding="utf-8")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = run(text, whole, workers)
    process.communicate(timeout=600)
    assert process.returncode == 0
    kills = 0
    for _ in range(7):
        process = run(text, broken, workers)
        before = read_done(broken)
        until = time.monotonic() + 120
        while process.poll() is None and read_done(broken) <= before and time.monotonic() < until:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate(timeout=60)
    assert kills >= 5, "it was killed after it had ended"
    process = run(text, broken, workers)
    encoded = int(process.communicate(timeout=600)[0])
    assert process.returncode == 0
    assert encoded < 0.6 * text.stat().st_size, "it began anew"
    assert not list(broken.glob("tokens/.part-*"))
    first, second = ({p.relative_to(c): p.read_bytes() for p in c.rglob("tokens/*/*")} for c in (whole, broken))
    assert len(first) >= 5 and first == second


def read_done(cache: Path) -> int:
    """Batches of the training part that were noted as done, in whatever folder is unfinished."""
    try:
        return max(
            (json.loads(path.read_text())["batches"] for path in cache.glob("tokens/.part-*/train.done")), default=0
        )
    except (OSError, ValueError):
        return 0


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size(tmp_path: Path) -> None:
    """Peak resident memory for 160 MB is that for 40 MB, but for the pages of the mapped ids."""
    peaks = {}
    for megabytes in (40, 160):
        text = tmp_path / f"{megabytes}.txt"
        line = " ".join(f"word{i % 997} and" for i in range(100_000)) + "\n"
        with open(text, "w", encoding="utf-8") as file:
            while file.tell() < megabytes << 20:
                file.write(line)
        process = subprocess.run(
            [sys.executable, SCRIPT, text, tmp_path / f"cache-{megabytes}", "2", "--peak"],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        peaks[megabytes] = int(process.stdout)
    assert peaks[160] < peaks[40] + (40 << 20), peaks
