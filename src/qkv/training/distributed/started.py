"""Whether this process is one of several that train together, by its environment; nothing here loads torch."""

import os

FOLDER_VARIABLE = "QKV_RANKS"
"""Names the folder in which processes of `qkv train --nproc` meet; torchrun's are found by torchrun's own variables."""
ENDED = "ended"
"""The file in that folder in which the launcher of the processes writes which of them has ended, and how."""


def is_started() -> bool:
    """Whether this is one of several processes already, started by `qkv train --nproc` or by torchrun."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_first_process() -> bool:
    """Whether this process speaks, watches and writes, also outside a training."""
    return not is_started() or os.environ["RANK"] == "0"
