"""qkv trains self-attention models and shows what training does to every matrix in them.

    import qkv
    run = qkv.train("my.txt", minutes=3)      # train; a Run comes back
    run = qkv.load("runs/my-1")               # read one from its folder, or a Hugging Face folder

`import qkv` is light: torch is loaded when `train`, `load` or `Run` is first used. The parts are importable alone, e.g.
`from qkv.models import MultiHeadAttention`. The command line is `qkv.cli`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.api import Run, attention, load, study, train, trial, watch
    from qkv.studies.designed import Arm, Design, Effect, Expected

_OF_STUDIES = ("Arm", "Design", "Effect", "Expected")
__all__ = ["Arm", "Design", "Effect", "Expected", "Run", "attention", "load", "study", "train", "trial", "watch"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("qkv.studies.designed" if name in _OF_STUDIES else "qkv.api"), name)
    raise AttributeError(f"module 'qkv' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
