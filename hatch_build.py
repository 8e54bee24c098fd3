"""What a package index shows: the project's addresses, and a README whose links lead somewhere outside the repository.

`address` in pyproject.toml, under `tool.hatch.metadata.hooks.custom`, is the project's public address. While it is
empty, the metadata name none, and links to files of the repository become plain text.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


class Hook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling for every wheel and sdist."""
        address = self.config.get("address", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": outside(text, address)}
        metadata["urls"] = urls(address)


def outside(text: str, address: str) -> str:
    """The README with links that hold anywhere; without an address, their text alone, and no pictures."""

    def replaced(link: re.Match) -> str:
        picture, words, target = link.groups()
        if address:
            return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/main/{target})"
        return "" if picture else words

    return _LINK.sub(replaced, text)


def urls(address: str) -> dict[str, str]:
    """Label -> address, for the side bar of an index; empty where the project has none yet."""
    paths = {
        "Source": "",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Documentation": "/tree/main/docs",
    }
    return {label: address + path for label, path in paths.items()} if address else {}
