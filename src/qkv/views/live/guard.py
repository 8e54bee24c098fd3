"""Who may ask the live page's server: this machine's own browser at its own address, and nobody else's page.

A web page from anywhere can make a browser send requests to 127.0.0.1, and a name that is rebound to it makes them look
local (DNS rebinding). So the Host header must name the address that was served, an Origin must be the same, and a
request that a foreign page caused is refused. Off loopback a token is needed as well. Requests beyond a size are
refused before they are read. Pure ASGI, no state.
"""

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp as App
from starlette.types import Message, Receive, Scope, Send

MOST_BYTES = 200_000
"""Of a request's body: a text of 20,000 characters in any writing system, and room around it."""
_TOO_LARGE = f"The request is larger than {MOST_BYTES:,} bytes; shorten the text."
COOKIE = "qkv-token"
SAFE = ("GET", "HEAD")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Wraps an application. `hosts` are the names (with port) that it answers to, None any; `token` "" is none."""

    def __init__(self, app: App, hosts: Iterable[str] | None, token: str = "") -> None:
        self._app, self._token = app, token
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed; answer the rest with its reason in a sentence."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        status, reason = self._verdict(HTTPConnection(scope))
        if status == 303:
            # the token goes into a cookie that scripts cannot read and other sites do not send, and out of the address:
            # that of the page itself, since a path such as //elsewhere would be another site
            cookie = f"{_cookie(scope)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await Response(status_code=303, headers={"location": "/", "set-cookie": cookie})(scope, receive, send)
        elif status:
            await _refused(status, reason)(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    def _verdict(self, asked: HTTPConnection) -> tuple[int, str]:
        """(0, "") for what may pass, else the status and why."""
        scope, headers = asked.scope, asked.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and host not in self._hosts:
            return 421, "This server answers to its own address only; open the one that qkv view printed."
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):  # https: behind a proxy
            return 403, "A page from elsewhere may not ask this server."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_visit(scope, headers):
            return 403, "A page from elsewhere may not ask this server."
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > MOST_BYTES:
            return 413, _TOO_LARGE
        if self._token and not self._is_token(asked.cookies.get(_cookie(scope), "")):
            if scope["method"] in SAFE and self._is_token(asked.query_params.get("token", "")):
                return 303, ""
            return 401, "This page needs its token; open the whole address that qkv view printed."
        return 0, ""

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what arrives: a body without a length is held to the same size."""
        seen, refused, began = 0, False, False

        async def counted() -> Message:
            nonlocal seen, refused
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MOST_BYTES and not began:
                refused = True
                await _refused(413, _TOO_LARGE)(scope, receive, send)
                return {"type": "http.disconnect"}
            return message

        async def guarded(message: Message) -> None:
            nonlocal began
            if refused:
                return
            began = True
            await send(message)

        try:
            await self._app(scope, counted, guarded)
        except Exception:
            if not refused:  # else it was told that the asker left
                raise


def _cookie(scope: Scope) -> str:
    """The name of the cookie that holds the token: a browser gives those of all ports of a machine to each of them."""
    return f"{COOKIE}-{(scope.get('server') or ('', ''))[1]}"


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """A person following a link to the page: shown, since it changes nothing and the other page cannot read it."""
    return scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"


def _refused(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status, {"connection": "close"})
