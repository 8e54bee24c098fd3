"""Ctrl-C and SIGTERM as a request: the step in progress is finished, then the loop saves and stops.

A second signal does not wait. In a thread other than the main one Python delivers no signals; nothing is installed.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from qkv.errors import Interrupted

__all__ = ["StopSignals"]

Handler = Callable[[int, FrameType | None], object] | int | None
"""What Python does on a signal, as `signal.signal` tells it."""

_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """While entered, notes SIGINT and SIGTERM in `exit_status` instead of dying of them."""

    def __init__(self) -> None:
        self.exit_status = 0
        """130 or 143 once a signal came; 0 before."""
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _STATUS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def received(self) -> bool:
        """Whether a signal has come."""
        return self.exit_status != 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        status = _STATUS[signal.Signals(number)]
        if self.exit_status:
            raise Interrupted("stopped at once; what the last checkpoint holds is kept", exit_status=status)
        self.exit_status = status
