"""Types of values that are read from JSON, or written to it."""

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["JsonMapping", "JsonObject"]

JsonObject: TypeAlias = dict[str, Any]
"""An object of a JSON file or of a page's data: keys are strings, and each value's type is known to its reader."""
JsonMapping: TypeAlias = Mapping[str, Any]
"""The same, only read."""
