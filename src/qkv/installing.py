"""How qkv, and what it can use besides, is installed: the one place that composes such a command.

No index has a package named qkv: it is installed from its project folder. Every message that asks for an extra, and
the page docs/install.md, take their command from here: none of them names a package or an address that does not exist.
"""

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

PUBLIC_ADDRESS = ""
"""What `git clone` takes to get the project; empty until it is published, and then no page or message names one."""


def project_folder() -> Path | None:
    """The project folder that this code runs from; None where it was installed as a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "qkv").is_dir() else None


def install(extra: str) -> str:
    """The command that installs an extra for the Python that runs, from any folder.

    From a project folder it names that folder; of a wheel, which has none, the libraries that the extra consists of.
    """
    pip = f"{shlex.quote(sys.executable or 'python3')} -m pip install"
    root = project_folder()
    if root is not None:
        return f"{pip} -e {shlex.quote(f'{root}[{extra}]')}"
    return " ".join([pip, *map(shlex.quote, _libraries(extra))])


def update() -> str:
    """What brings a newer qkv."""
    root = project_folder()
    return f"git -C {shlex.quote(str(root))} pull" if root is not None else "install a newer qkv in place of this one"


def _libraries(extra: str) -> list[str]:
    """Requirements of an extra, as the installed package lists them: `scipy>=1.12`."""
    found = []
    for requirement in importlib.metadata.requires("qkv") or []:
        name, _, marker = requirement.partition(";")
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker):
            found.append(name.strip())
    return found
