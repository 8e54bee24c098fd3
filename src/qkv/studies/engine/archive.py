"""The log of a finished study in a tenth of the space: its rows as columns, in one compressed JSON file.

`archive.json.bz2` is a list of blocks. A block holds the rows that have the same fields, as
{"rows": [place of each in the log], "columns": {field: [its value in each row]}}; the measures of a training are fields
whose names begin with "measures ". So twenty lines of any language read it: decompress, parse, pick the columns.
Nothing is rounded: the log that `rows` gives back has the same bytes as the one that was packed.
"""

import bz2
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from qkv.errors import RunFolderError
from qkv.jsontypes import JsonMapping, JsonObject

ARCHIVE = "archive.json.bz2"
_MEASURES = "measures"


def pack(log: Iterable[JsonMapping]) -> bytes:
    """The content of `archive.json.bz2` for the rows of a log, in their order."""
    blocks: dict[tuple[str, ...], tuple[list[int], dict[str, list[object]]]] = {}
    for place, row in enumerate(log):
        flat = {name: value for name, value in row.items() if name != _MEASURES}
        flat |= {f"{_MEASURES} {name}": value for name, value in row.get(_MEASURES, {}).items()}
        if _MEASURES in row:
            flat[_MEASURES] = None  # also where none was taken
        places, columns = blocks.setdefault(tuple(sorted(flat)), ([], {name: [] for name in sorted(flat)}))
        places.append(place)
        for name, value in flat.items():
            columns[name].append(value)
    content = [{"rows": places, "columns": columns} for places, columns in blocks.values()]
    return bz2.compress(json.dumps(content, separators=(",", ":")).encode())


def rows(folder: Path) -> Iterator[JsonObject]:
    """The rows that were packed, in their order.

    Raises RunFolderError where the file is not one that `pack` made.
    """
    path = folder / ARCHIVE
    try:
        blocks = json.loads(bz2.decompress(path.read_bytes()))
        placed = {place: row for block in blocks for place, row in _rows_of(block)}
        found = [placed[place] for place in range(len(placed))]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError):
        raise RunFolderError(f"{path} is damaged; get it again from where the study came from") from None
    yield from found


def _rows_of(block: JsonMapping) -> Iterator[tuple[int, JsonObject]]:
    for i, place in enumerate(block["rows"]):
        flat = {name: values[i] for name, values in block["columns"].items()}
        row = {name: value for name, value in flat.items() if not name.startswith(_MEASURES)}
        if _MEASURES in flat:
            start = f"{_MEASURES} "
            row[_MEASURES] = {name.removeprefix(start): flat[name] for name in flat if name.startswith(start)}
        yield place, row
