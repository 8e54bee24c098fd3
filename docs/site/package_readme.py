"""The README as a package shows it, apart from its repository: pictures go, and links to files become their text.

Hatchling calls it where a package is built (pyproject.toml).
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

GUIDES = "The guides named here are in the folder `docs` of the project.\n"


def without_links_to_files(markdown: str) -> str:
    """The text without what only the repository has; links to the web stay."""
    markdown = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", markdown)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", markdown)


class Readme(MetadataHookInterface):
    """Sets the metadata field `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = without_links_to_files((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": f"{text}\n{GUIDES}"}
