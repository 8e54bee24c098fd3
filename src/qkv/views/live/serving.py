"""`serve`: a socket, a server and a browser for the live page of a run."""

import asyncio
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import UserError
from qkv.folder.run_folder import RunFolder
from qkv.training.memory import share_freed_memory
from qkv.views.browser import open_browser
from qkv.views.live.follow import Follower
from qkv.views.live.guard import is_loopback
from qkv.views.live.server import Page, application
from qkv.views.study.section import is_study
from qkv.views.study.server import StudyPage
from qkv.views.workbench.board import is_workbench
from qkv.views.workbench.server import WorkbenchPage

SILENT_SECONDS = 10.0
"""In which a connection must have sent the whole head of a request."""
MOST_CONNECTIONS = 512
MOST_OF_ONE = 256
"""Connections from one address: a proxy is one."""
_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

SWITCH_SECONDS = 0.0005
"""After which a thread that computes an answer lets the one that serves go on; Python's own is ten times as long."""
PORT = 8642
"""Tried first where no port was asked for."""


def serve(
    run: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    beside: str | Path | None = None,
    say: Callable[[str], None] = print,
    browser: Callable[[str], bool] | None = None,
) -> None:
    """Serve the live page of a run or a study until it is interrupted, and open `browser` on it (the system's, if any).

    `beside` is another run, to stand beside this one in the grid of matrices. Without `port` the usual one is taken, or
    any free one where that is in use. A host that other machines can reach needs a token, which is in the address that
    is said.

    Raises RunFolderError for what is no run, UserError for a port that is in use or a host that is not this machine's.
    """
    share_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    page = shown_of(run, beside)
    listener = _listen(host, port)
    port = int(listener.getsockname()[1])
    shown = f"[{host}]" if ":" in host else host
    token, hosts = "", _names(shown, port)
    if not is_loopback(host):
        token = secrets.token_urlsafe(24)
    reached = socket.gethostname() if shown in ("0.0.0.0", "[::]") else shown  # these stand for every address of it
    address = f"http://{reached}:{port}/" + (f"?token={token}" if token else "")
    say(f"{page.folder} is shown at {address}  (Ctrl-C ends it)")
    server = make_server(page, None if token else hosts, token)
    opening = threading.Timer(0.3, browser or open_browser, [address])
    opening.daemon = True
    opening.start()
    try:
        server.run(sockets=[listener])
    finally:
        opening.cancel()
        listener.close()


def shown_of(folder: str | Path, beside: str | Path | None = None) -> Follower:
    """What is shown of a folder: a run, beside another or not, a study, or all the runs in it.

    Raises RunFolderError for what is none of these, UserError for several that are to stand beside something.
    """
    several = not is_study(folder) and is_workbench(Path(folder))
    if is_study(folder) or several:
        if beside is not None:
            what = "holds many runs" if several else "is a study"
            raise UserError(f"{folder} {what}, and --beside compares two runs; leave --beside out")
        return WorkbenchPage(Path(folder)) if several else StudyPage(Path(folder))
    return Page(RunFolder.open(folder).path, None if beside is None else RunFolder.open(beside).path)


class _Connection(H11Protocol):
    """A connection that ends, or makes room for another, while it asks nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, in the place of one that asks nothing where there are too many; refuse it where all ask."""
        super().connection_made(transport)
        self.since = self.loop.time()
        there = [one for one in self.connections if isinstance(one, _Connection)]
        own = [one for one in there if one.client and self.client and one.client[0] == self.client[0]]
        crowd = own if len(own) > MOST_OF_ONE else there if len(there) > MOST_CONNECTIONS else []
        silent = [one for one in crowd if one.is_silent and one is not self]
        if silent:
            min(silent, key=lambda one: one.since).transport.close()
        elif crowd:
            transport.write(_REFUSED)
            transport.close()
        self._look()

    @property
    def is_silent(self) -> bool:
        """Whether no whole request has come since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        """An answer has left."""
        self.since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        if self.is_silent and self.loop.time() - self.since > SILENT_SECONDS:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(1.0, self._look)


class _Server(uvicorn.Server):
    """Tells the page that it ends, so that connections which stay open for events are not waited for."""

    def __init__(self, config: uvicorn.Config, page: Follower) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what streams, then what uvicorn ends."""
        self._page.end()
        await super().shutdown(sockets)


def make_server(page: Follower, hosts: Iterable[str] | None, token: str = "") -> uvicorn.Server:
    """A server of one page; `run(sockets=[...])` serves it. `hosts` and `token` as for `guard.Guard`."""
    config = uvicorn.Config(
        application(page, hosts, token),  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=int(SILENT_SECONDS),
        http=_Connection,
    )
    return _Server(config, page)


def _names(shown: str, port: int) -> set[str]:
    """What a browser on this machine may call the server; it leaves out port 80."""
    names = (shown, "127.0.0.1", "localhost", "[::1]")
    return {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Raises UserError where there cannot be one."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {host} is no address of this machine; expected one such as 127.0.0.1") from None
    for wanted in [port] if port is not None else [PORT, 0]:
        listener = socket.socket(kind, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place[0], wanted, *place[2:]))
            listener.listen(MOST_CONNECTIONS)
            return listener
        except OSError as error:
            listener.close()
            if wanted != PORT or port is not None:
                raise UserError(_why(error, host, wanted)) from None
    raise AssertionError("the last port tried is any free one")


def _why(error: OSError, host: str, port: int) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; give another one, such as --port {port + 1}, or --port 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by you; give one from 1024 up, such as --port {PORT}"
    return f"--host {host} is no address of this machine ({error.strerror}); expected one such as 127.0.0.1"
