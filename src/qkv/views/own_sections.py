"""Sections of the page that other packages add, in the entry point group `qkv.sections`: functions of a stored run."""

import dataclasses
from collections.abc import Callable
from typing import cast

from qkv.errors import ConfigError
from qkv.extensions import Registry
from qkv.inspection.stored_run import StoredRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """What such a function returns: a heading, and below it sentences, a picture and a table."""

    heading: str
    lead: str = ""
    """Sentences, as plain text."""
    picture: str = ""
    """SVG, as text."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells, as plain text."""


Make = Callable[[StoredRun], Section | None]
"""None says that there is nothing to show of this run."""


def _function(name: str, thing: object) -> Make:
    if not callable(thing):
        raise ConfigError(f"it is {thing!r:.60}; expected a function of a stored run")
    return cast(Make, thing)


SECTIONS: Registry[Make] = Registry("sections", {}, _function)
"""By name; all are of other packages."""


def own_sections(run: StoredRun) -> tuple[Section, ...]:
    """All that other packages show of a run; where one fails, a sentence says so in its place."""
    found = []
    for name, make in SECTIONS.added().items():
        try:
            section = make(run)
            if not isinstance(section, Section | None):
                raise ConfigError(f"it gives {section!r:.60}; expected a {Section.__module__}.Section")
        except Exception as error:
            section = Section(heading=name, lead=f"{SECTIONS.failed(name, error)}.")
        found += [section] if section else []
    return tuple(found)
