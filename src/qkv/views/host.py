"""Who shows a payload, and its version."""

import dataclasses
from typing import Literal

VERSION = 4
"""Of the payload's shape; a page refuses a payload of another version with a clear sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Who shows the payload, and what it can compute on demand ("text", "gradient", "tiles")."""

    kind: Literal["report", "page", "notebook"] = "report"
    can: tuple[str, ...] = ()
