"""The texts a command works on: its arguments, or the lines of stdin."""

import io
import sys
from collections.abc import Sequence

from qkv.errors import UserError


def read_texts(given: Sequence[str], command: str) -> list[str]:
    """`given`, or one text a line from stdin where nothing was given.

    Raises UserError when there is neither (stdin is a terminal, or empty), and for bytes that are no text.
    """
    if given:
        return list(given)
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError(f"no text was given. Type one, as in: {command} 'the cat sat', or pipe one a line into it.")
    if isinstance(sys.stdin, io.TextIOWrapper):  # strict UTF-8 in every locale, without a byte order mark
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    try:
        texts = [line.rstrip("\r\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise UserError(
            f"what came in on stdin is not UTF-8 (byte 0x{error.object[error.start]:02x}); convert it first, as in:"
            f" iconv -f latin1 -t utf-8 | {command}"
        ) from None
    if not texts:
        raise UserError(f"no text was given, and none came in on stdin. Type one, as in: {command} 'the cat sat'")
    return texts
