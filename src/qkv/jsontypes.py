"""Types of values that are read from JSON, or written to it."""

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""An object of a JSON file or of a page's data: keys are strings, and each value's type is known to its reader."""
JsonMapping: TypeAlias = Mapping[str, Any]
"""The same, only read."""
MOST = 1 << 53
"""What no count, step or id comes near: whole numbers up to here are the same as float64."""


class WhereThere(dict[str, object]):
    """The forms of an object's values, of which any may be missing."""


def is_like(value: object, form: object) -> bool:
    """Whether a value of JSON has a form: a type (`float` takes whole numbers too, and no number may be infinite), a
    tuple of forms that it may have, a frozenset of strings that it may be, a list of one form, an object with these
    names, with any names (`str`), or `WhereThere`.
    """
    if isinstance(form, tuple):
        return any(is_like(value, one) for one in form)
    if isinstance(form, frozenset):
        return isinstance(value, str) and value in form
    if isinstance(form, list):
        return isinstance(value, list) and all(is_like(item, form[0]) for item in value)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        if str in form:
            return all(is_like(item, form[str]) for item in value.values())
        missing = not isinstance(form, WhereThere) and not form.keys() <= value.keys()
        return not missing and all(is_like(value[name], form[name]) for name in form.keys() & value.keys())
    if form in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        most = sys.float_info.max if form is float else MOST - 1
        return (form is float or isinstance(value, int)) and abs(value) <= most  # no infinity, no NaN
    return form not in (int, float) and isinstance(form, type) and isinstance(value, form)
