"""What a value of JSON looks like is told from what it does not."""

import json

import pytest

from qkv.jsontypes import WhereThere, is_like

FORM = {"n": int, "x": (float, type(None)), "names": {str: str}, "rows": [[int]]}


@pytest.mark.parametrize(
    ("text", "form", "fits"),
    [
        ('{"n": 1, "x": 1, "names": {"a": "b"}, "rows": [[1], []], "more": 1}', FORM, True),
        ('{"n": 1, "x": null, "names": {}, "rows": []}', FORM, True),
        ('{"n": 1, "x": 1e300, "names": {}, "rows": []}', FORM, True),
        (f'{{"n": 1, "x": {"9" * 400}, "names": {{}}, "rows": []}}', FORM, False),
        ('{"n": true, "x": 1, "names": {}, "rows": []}', FORM, False),
        ('{"n": 1.0, "x": 1, "names": {}, "rows": []}', FORM, False),
        ('{"n": 1, "x": 1e999, "names": {}, "rows": []}', FORM, False),
        ('{"n": 1, "x": NaN, "names": {}, "rows": []}', FORM, False),
        (f'{{"n": {"9" * 400}, "x": 1, "names": {{}}, "rows": []}}', FORM, False),
        ('{"n": 1, "x": 1, "names": {"a": 1}, "rows": []}', FORM, False),
        ('{"n": 1, "x": 1, "names": {}, "rows": [1]}', FORM, False),
        ('{"x": 1, "names": {}, "rows": []}', FORM, False),
        ('{"x": 1}', WhereThere(FORM), True),
        ('{"x": "1"}', WhereThere(FORM), False),
        ("[]", WhereThere(FORM), False),
        ("null", (int, type(None)), True),
        ('"a"', (int, type(None)), False),
        ('{"a": [1]}', {str: object}, True),
    ],
)  # fmt: skip
def test_a_form_is_told(text, form, fits):
    assert is_like(json.loads(text), form) == fits
