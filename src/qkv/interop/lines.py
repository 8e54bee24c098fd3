"""A tokenizer.json that cuts a line as `qkv.data.pairs` does (a space before it, the end token behind), and back."""

from collections.abc import Mapping
from typing import Any

__all__ = ["as_line", "without_line"]

_SPACE = {"type": "Prepend", "prepend": " "}


def as_line(form: Mapping[str, Any], end: str, end_id: int) -> dict[str, Any]:
    """What of a tokenizer.json puts a space before a text and the end token behind it."""
    before = [form["normalizer"]] if form.get("normalizer") else []
    mark = {"SpecialToken": {"id": end, "type_id": 0}}
    one, other = ([{"Sequence": {"id": name, "type_id": 0}}, mark] for name in "AB")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [_SPACE, *before]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": one,
            "pair": [*one, *other],
            "special_tokens": {end: {"id": end, "ids": [end_id], "tokens": [end]}},
        },
    }


def without_line(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tokenizer.json that `as_line` was said of; None where it was not."""
    normalizer = form.get("normalizer") or {}
    pieces = normalizer.get("normalizers") or []
    if normalizer.get("type") != "Sequence" or pieces[:1] != [_SPACE]:
        return None
    rest = pieces[1:]
    return {**form, "normalizer": rest[0] if rest else None, "post_processor": None}
