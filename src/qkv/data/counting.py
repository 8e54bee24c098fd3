"""The data receipt of a text: what was counted while it was read, file by file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from qkv.data.sources.receipt import ReadFile, Receipt, Rows, make_receipt
from qkv.data.sources.source import Chunk, Source
from qkv.data.sources.tables import count_rows, is_table
from qkv.data.split import Split
from qkv.jsontypes import JsonObject
from qkv.tokenizers.tokens import n_utf8
from qkv.words import many


def counting(chunks: Iterable[Chunk], n_bytes: Counter[int]) -> Iterator[Chunk]:
    """The same chunks, the bytes of each added to those of its file."""
    for chunk in chunks:
        text, _, file = chunk
        n_bytes[file] += len(text) if text.isascii() else n_utf8((text,))
        yield chunk


def facts_of_reading(
    source: Source, val: Source | None, split: Split, counts: Mapping[str, Mapping[int, int]]
) -> JsonObject:
    """What `source_receipt` needs of a reading to the end, as JSON, so that it can be kept beside the tokens.

    `counts` gives the bytes of the parts train and val by the number of the file.
    """
    measured = source if val is None else val
    sides = (("train", counts["train"], source), ("val", counts["val"], measured), ("copies", split.copies, source))
    found: JsonObject = {name: [n.get(i, 0) for i in range(len(side.files))] for name, n, side in sides}
    rows = [[(f.rows.read, f.rows.blank, f.rows.n_bytes) for f in side.files] for side in (source, measured)]
    return found | {"n_copies": split.n_copies, "rows": rows}


def source_receipt(source: Source, val: Source | None, found: JsonObject, *, is_sampled: bool) -> Receipt:
    """The receipt of a text and of what it is validated on, None where that is a part of it.

    `is_sampled`: less of it is trained on than there is.
    """
    none = [0] * len(source.files)
    trained = (found["train"], found["val"] if val is None else none, found["copies"], found["rows"][0])
    sides = [(source, trained)]
    if val is not None:
        empty = [0] * len(val.files)
        sides.append((val, (empty, found["val"], empty, found["rows"][1])))
    read, columns, n_read, n_blank = [], {}, 0, 0
    for side, counts in sides:
        for file, train, validation, copies, (rows, blank, text) in zip(side.files, *counts, strict=True):
            layout, losses = file.layout, {"byte order mark": file.n_raw - file.n_bytes}
            if layout is None:
                text = file.n_bytes
            else:
                n_read, n_blank, columns = n_read + rows, n_blank + blank, columns | layout.roles()
                if layout.kind != "parquet":
                    losses["columns that are not read, and what is between cells"] = file.n_bytes - text
            losses["near-copies of other documents"] = copies
            rest = "not needed for the time given" if is_sampled and side is source else "marks between documents"
            losses[rest] = text - train - validation - copies
            read.append((ReadFile(file.path, losses), train, validation))
    n_copies = found["n_copies"] if columns else 0
    causes = ((n_blank, "without text"), (n_copies, "that copy others nearly"))
    rows = Rows(
        read=n_read - n_copies,
        set_aside=sum(count_rows(one.path) for one in source.passed if one.is_test and is_table(one.path)),
        left_out=n_blank + n_copies,
        why="; ".join(f"{many(n, 'row')} {what}" for n, what in causes if n),
    )
    return make_receipt(read, source.passed, rows=rows, columns=columns)
