"""Generated sources for every reader: whatever goes in is trained on, validated on, set aside, or left out by name.

    python tests/campaigns/conservation.py --sources 100000 --page docs/benchmarks/conservation.json

Each source is made from its number alone: a text, a folder of texts with parts of a published split and files that
are none, a table (JSON lines, CSV, TSV with and without quotes, Parquet), labelled rows and lines, line-aligned pairs,
IDX images and folders of classes; plain, gzipped or, where pyarrow is there, compressed by zstd. What every file holds
is known while it is made, and the receipt is compared with that: bytes of each file, rows, columns and classes. A
source may be refused, in one sentence; anything else that is raised is a failure. A page that is there already is
continued after its last source. Exit status 1 where one failed.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkv.data.config import DataConfig
from qkv.errors import UserError
from qkv.tasks import find_task

WORDS = "the a cat dog sat ran over under green blue fünf Straße 雨 río naïve один two three , . ! ? it's 1 22".split()


@dataclass
class Made:
    """A source, and what its receipt has to say."""

    config: DataConfig
    task: str
    sizes: dict[str, int]
    """Bytes of each file that is below the source."""
    texts: dict[str, int] = field(default_factory=dict)
    """Bytes of text in each file that is read, where that is less."""
    rows: tuple[int, int, int] = (0, 0, 0)
    """Read, set aside and left out."""
    columns: dict[str, str] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    """Files that are set aside for the test."""
    unread: frozenset[str] = frozenset()
    """Files that are left out whole."""


class Maker:
    """Makes one source in a folder."""

    def __init__(self, place: Path, number: int) -> None:
        self.place, self.draws, self.sizes = place, np.random.default_rng(number), dict[str, int]()

    def one_in(self, n: int) -> bool:
        return bool(self.draws.integers(n) == 0)

    def text(self, n: int = 12) -> str:
        """A few words; never blank."""
        return " ".join(self.draws.choice(WORDS, size=int(self.draws.integers(1, n + 1))).tolist())

    def prose(self) -> str:
        lines = [self.text() for _ in range(int(self.draws.integers(8, 60)))]
        return "".join(line + ("\r\n" if self.one_in(9) else "\n") for line in lines)

    def write(self, name: str, data: bytes, packs: bool = True) -> Path:
        """A file, perhaps with a byte order mark, perhaps compressed."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if packs and self.one_in(6):
            data = b"\xef\xbb\xbf" + data
        kind = int(self.draws.integers(8)) if packs else 9
        if kind == 0:
            path = path.with_name(f"{path.name}.gz")
            path.write_bytes(gzip.compress(data))
        elif kind == 1 and ARROW is not None:
            path = path.with_name(f"{path.name}.zst")
            with ARROW.output_stream(str(path), compression="zstd") as file:
                file.write(data)
        else:
            path.write_bytes(data)
        self.sizes[str(path)] = len(data)
        return path

    # what is read

    def one_text(self) -> Made:
        path = self.write("some.txt", self.prose().encode())
        return Made(DataConfig(source=str(path), tokenizer="char"), "causal", self.sizes)

    def folder(self) -> Made:
        named = self.one_in(2)
        names = ["a.txt", "b.md", "sub/c.txt", "sub/deeper/d"]
        parts = ["train.txt", "valid.txt", "test.txt", "wiki.test.tokens", "train/x.txt"]
        chosen = [name for name in (parts if named else names) if name == "train.txt" or not self.one_in(3)]
        aside, unread = set(), set()
        for name in chosen:
            path = self.write(name, self.prose().encode())
            if "test" in name and any(p in chosen for p in parts[:1]):
                aside.add(str(path))
        if self.one_in(2):
            unread.add(
                str(self.write("x.bin", bytes(self.draws.integers(0, 256, 90, dtype=np.uint8)) + b"\0", packs=False))
            )
        if self.one_in(3):
            unread.add(str(self.write(".hidden", b"never", packs=False)))
        if self.one_in(3):
            unread.add(str(self.write("blank.txt", b" \n\n", packs=False)))
        val = ""
        if not named and self.one_in(5):
            val = str(self.write("held/v.txt", self.prose().encode()))
        config = DataConfig(source=str(self.place), tokenizer="char", val=val)
        return Made(config, "causal", self.sizes, aside=frozenset(aside), unread=frozenset(unread))

    def marked(self) -> Made:
        texts = [self.prose() for _ in range(int(self.draws.integers(3, 9)))]
        path = self.write("some.txt", "<|endoftext|>".join(texts).encode())
        config = DataConfig(source=str(path), tokenizer="char", document_end="<|endoftext|>")
        return Made(config, "causal", self.sizes, texts={str(path): sum(len(text.encode()) for text in texts)})

    def rows(self, n: int, labelled: bool) -> tuple[list[dict[str, str]], int]:
        """Rows, and how many of them have no text."""
        classes = [str(i) for i in range(int(self.draws.integers(2, 4)))]
        rows, blank = [], 0
        for i in range(n):
            text = self.text()
            if self.one_in(3):
                text += str(self.draws.choice(['"', "\n", ",", "\\", "é", '\n"'])) + self.text(3)
            if self.one_in(12):
                text, blank = str(self.draws.choice(["", " "])), blank + 1
            row = {"text": text, "label": classes[i % len(classes)], "id": str(i)}
            rows.append(row if labelled else {name: row[name] for name in ("id", "text")})
        return rows, blank

    def table(self, labelled: bool) -> Made:
        kind = str(self.draws.choice(["jsonl", "csv", "tsv", "quoted", *(["parquet"] if ARROW else [])]))
        rows, blank = self.rows(int(self.draws.integers(40, 90)), labelled)
        if kind == "tsv":
            for row in rows:
                row["text"] = row["text"].replace("\n", " ").replace('"', "'")
        path = self._written(kind, rows)
        n_text = sum(len(row["text"].encode()) for row in rows if row["text"].strip())
        columns = {"id": "unused", "text": "text"} | ({"label": "label"} if labelled else {})
        if kind == "parquet":
            self.sizes[str(path)] = n_text
        return Made(
            DataConfig(source=str(path), tokenizer="word" if labelled else "char"),
            "classify" if labelled else "causal",
            self.sizes,
            texts={str(path): n_text},
            rows=(len(rows) - blank, 0, blank),
            columns=columns,
            classes=dict(Counter(row["label"] for row in rows if row["text"].strip())) if labelled else {},
        )

    def _written(self, kind: str, rows: list[dict[str, str]]) -> Path:
        names = list(rows[0])
        if kind == "parquet":
            path = self.place / "t.parquet"
            ARROW_PARQUET.write_table(ARROW.table({name: [row[name] for row in rows] for name in names}), path)
            return path
        if kind == "jsonl":
            ascii_ = self.one_in(2)
            lines = [json.dumps(row, ensure_ascii=ascii_) for row in rows]
            return self.write("t.jsonl", ("\n".join(lines) + "\n").encode())
        separator, end = ("," if kind == "csv" else "\t"), "\r\n" if self.one_in(3) else "\n"

        def cell(text: str) -> str:
            needs = kind != "tsv" and any(mark in text for mark in f'"\r\n{separator}')
            doubled = text.replace('"', '""')
            return f'"{doubled}"' if needs else text

        lines = [separator.join(cell(value) for value in (row[name] for name in names)) for row in rows]
        text = end.join([separator.join(names), *lines]) + end
        return self.write("t.csv" if kind == "csv" else "t.tsv", text.encode())

    def lines(self) -> Made:
        labels = ["yes", "no"]
        rows = [(labels[i % 2], self.text()) for i in range(int(self.draws.integers(40, 80)))]
        path = self.write("t.txt", "".join(f"{label} {text}\n" for label, text in rows).encode())
        return Made(
            DataConfig(source=str(path), tokenizer="word"),
            "classify",
            self.sizes,
            texts={str(path): sum(len(text.encode()) for _, text in rows)},
            rows=(len(rows), 0, 0),
            classes=dict(Counter(label for label, _ in rows)),
        )

    def pairs(self) -> Made:
        sides = [[self.text() for _ in range(60)] for _ in range(2)]
        empty = [i for i in range(60) if self.one_in(15)]
        for i in empty:
            sides[i % 2][i] = ""
        paths = [
            self.write(name, "".join(f"{line}\n" for line in side).encode())
            for name, side in zip(("t.de", "t.en"), sides, strict=True)
        ]
        kept = [i for i in range(60) if i not in empty]
        texts = {str(path): sum(len(side[i].encode()) for i in kept) for path, side in zip(paths, sides, strict=True)}
        config = DataConfig(source=f"{paths[0]}:{paths[1]}", tokenizer="word")
        return Made(config, "translate", self.sizes, texts=texts, rows=(len(kept), 0, len(empty)))

    def idx(self) -> Made:
        def both(part: str, n: int) -> None:
            pixels = self.draws.integers(0, 256, (n, 4, 4), dtype=np.uint8)
            for name, values in (("images-idx3", pixels), ("labels-idx1", np.arange(n, dtype=np.uint8) % 3)):
                head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
                path = self.place / f"{part}-{name}-ubyte"
                data = head + values.tobytes()
                if packed := self.one_in(2):
                    path = path.with_name(f"{path.name}.gz")
                path.write_bytes(gzip.compress(data) if packed else data)
                self.sizes[str(path)] = len(data)
                headers[str(path)] = values.nbytes

        headers: dict[str, int] = {}
        n, m = (int(self.draws.integers(30, 60)) for _ in range(2))
        both("train", n)
        with_val, with_test = self.one_in(2), self.one_in(2)
        if with_val:
            both("valid", m)
        if with_test:
            both("test", m)
        aside = frozenset(path for path in self.sizes if with_val and "/test-" in path)
        read = n + m * (with_val or with_test)
        classes = Counter(i % 3 for count in (n, *((m,) if with_val or with_test else ())) for i in range(count))
        return Made(
            DataConfig(source=str(self.place)),
            "image",
            self.sizes,
            texts={path: n for path, n in headers.items() if path not in aside},
            rows=(read, m if with_val and with_test else 0, 0),
            classes={str(i): classes[i] for i in range(3)},
            aside=aside,
        )

    def classes(self) -> Made:
        unread, counts = set(), Counter()
        for name in ("cats", "dogs", "emus")[: int(self.draws.integers(2, 4))]:
            for i in range(int(self.draws.integers(4, 9))):
                path = self.place / name / f"{i}.png"
                path.parent.mkdir(exist_ok=True)
                PILLOW.fromarray(self.draws.integers(0, 256, (5, 5), dtype=np.uint8)).save(path)
                self.sizes[str(path)] = path.stat().st_size
                counts[name] += 1
            if self.one_in(3):
                unread.add(str(self.write(f"{name}/other.heic", b"ftypheic", packs=False)))
        if self.one_in(3):
            unread.add(str(self.write("README.md", b"about", packs=False)))
        config = DataConfig(source=str(self.place))
        rows = (sum(counts.values()), 0, 0)
        return Made(config, "image", self.sizes, rows=rows, classes=dict(counts), unread=frozenset(unread))


try:
    import pyarrow as ARROW
    import pyarrow.parquet as ARROW_PARQUET
except ImportError:
    ARROW = ARROW_PARQUET = None
try:
    from PIL import Image as PILLOW
except ImportError:
    PILLOW = None

READERS: dict[str, Callable[[Maker], Made]] = {
    "text": Maker.one_text,
    "folder": Maker.folder,
    "marks": Maker.marked,
    "table": lambda maker: maker.table(False),
    "labelled table": lambda maker: maker.table(True),
    "labelled lines": Maker.lines,
    "pairs": Maker.pairs,
    "IDX": Maker.idx,
    **({"classes": Maker.classes} if PILLOW else {}),
}


def differences(made: Made) -> list[str]:
    """What the receipt of a source says otherwise than it was made."""
    receipt = find_task(made.task).load(made.config, cache=None).receipt
    found: list[str] = []
    for path, size in made.sizes.items():
        if path not in receipt.files:
            found.append(f"{path} is not in it")
            continue
        share = receipt.files[path]
        read = share.train + share.validation
        if read + share.test + share.left_out != size:
            found.append(f"{path} has {size} bytes and the receipt {share}")
        if (share.left_out or share.test) and not share.why:
            found.append(f"{path}: {share} says no reason")
        if min(share.train, share.validation, share.test, share.left_out) < 0:
            found.append(f"{path}: {share} is negative")
        wanted = 0 if path in made.aside or path in made.unread else made.texts.get(path)
        if wanted is not None and read + _copies(share.why, share.left_out, size - wanted) != wanted:
            found.append(f"{path} holds {wanted} bytes of text and the receipt {share}")
        if (path in made.aside) != bool(share.test):
            found.append(f"{path}: {share} {'is' if path in made.aside else 'is not'} for the test")
    if strange := set(receipt.files) - set(made.sizes):
        found.append(f"{sorted(strange)} are not below the source")
    rows = receipt.rows
    total = (rows.read + rows.left_out, rows.set_aside)
    if total != (made.rows[0] + made.rows[2], made.rows[1]) or rows.left_out < made.rows[2]:
        found.append(f"rows {made.rows} and the receipt {rows}")
    if "copy" not in rows.why and rows.left_out != made.rows[2]:
        found.append(f"{made.rows[2]} rows without text and the receipt {rows}")
    if dict(receipt.columns) != made.columns:
        found.append(f"columns {made.columns} and the receipt {receipt.columns}")
    if dict(receipt.classes) != made.classes:
        found.append(f"classes {made.classes} and the receipt {receipt.classes}")
    return found


def _copies(why: str, left_out: int, expected: int) -> int:
    """Bytes of near-copies that are left out by name, beside what is expected to be left out."""
    return left_out - expected if "near-copies" in why else 0


def tried(number: int, place: Path) -> tuple[str, str, list[str]]:
    """(reader, refusal or empty, what is wrong) of the source of that number."""
    names = list(READERS)
    name = names[number % len(names)]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    made = READERS[name](Maker(place, number))
    try:
        return name, "", differences(made)
    except UserError as error:
        said = str(error)
        return name, said, [f"a sentence of {len(said)} characters"] * ("\n" in said or not said)
    except Exception as error:
        return name, "", [f"{type(error).__name__}: {error}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--page", type=Path, help="where the count is kept, to go on from")
    args = parser.parse_args()
    state = json.loads(args.page.read_text()) if args.page and args.page.exists() else {}
    first, refused = state.get("sources", 0), Counter(state.get("refused", {}))
    read, wrong = Counter(state.get("read", {})), list(state.get("wrong", []))
    began, number = time.monotonic(), first
    with tempfile.TemporaryDirectory(prefix="qkv-conservation-") as home:
        while number < args.sources and time.monotonic() - began < 60 * args.minutes:
            name, refusal, found = tried(number, Path(home) / "s")
            (refused if refusal else read)[name] += 1
            wrong += [f"source {number} ({name}): {one}" for one in found]
            number += 1
            if number % 500 == 0 or number == args.sources:
                print(f"{number:,} sources, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
                if args.page:
                    kept = {"sources": number, "read": read, "refused": refused, "wrong": wrong[:50]}
                    args.page.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps({"sources": number, "read": read, "refused": refused, "wrong": wrong[:20]}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
