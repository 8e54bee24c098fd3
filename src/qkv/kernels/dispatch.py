"""Calls of compiled functions (`qkv.native`), and whoever is told of them."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from torch import Tensor

Compiled = Callable[..., int | None]
"""A function of a library of `qkv.native`."""

Listener = Callable[[Compiled, tuple[object, ...], int | None], None]
"""Told of a call: the function, what it was given, what it returned."""

_hearing = threading.local()


def call(function: Compiled, *given: object) -> int | None:
    """Call a compiled function, of tensors with their memory; whoever listens in this thread is told."""
    found = function(*pointers(given))
    listener: Listener | None = getattr(_hearing, "listener", None)
    if listener is not None:
        listener(function, given, found)
    return found


def pointers(given: tuple[object, ...]) -> list[object]:
    """The same, with the addresses of tensors in their place."""
    return [g.data_ptr() if isinstance(g, Tensor) else g for g in given]


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every call that this thread makes inside."""
    before = getattr(_hearing, "listener", None)
    _hearing.listener = listener
    try:
        yield
    finally:
        _hearing.listener = before
