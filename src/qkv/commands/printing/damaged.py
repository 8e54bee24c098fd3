"""What is said before something is shown of a run whose files are not all whole."""

from typing import TYPE_CHECKING

from qkv.commands.printing import screen

if TYPE_CHECKING:
    from qkv.api import Run


def told(run: "Run", *, quietly: bool = False, shown: str = "What follows") -> list[dict[str, str]]:
    """Every damaged file of a run as `file` and `sentence`, for `--json`; printed too, a line each, unless `quietly`.

    What is shown after it comes from the files that are whole.
    """
    found = run.damage()
    for one in () if quietly else found:
        print(f"Not whole: {screen.shown(one.sentence)}.")
    if found and not quietly:
        print(f"{shown} comes from the files of this run that are whole.\n")
    return [vars(one) for one in found]
