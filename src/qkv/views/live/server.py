"""The live page of a run: the modules of the report over HTTP, fed from the run folder, with Python behind them.

    GET  /                 the page; its modules under /static
    GET  /first            the head of the page and its losses, before all else is read
    GET  /payload          every section
    GET  /playground       the playground, going on from this run
    GET  /sections?names=...  some sections, as many as a training can spare, and when to ask for the rest
    GET  /events           server-sent events: a pulse whenever the run has gone on
    POST /ask/NAME         a question that needs the model (see `asking`)

Reads the folder only; a page never disturbs a training and changes no file. `guard` decides who may ask.
"""

import asyncio
import contextlib
import dataclasses
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from qkv.errors import QkvError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.jsontypes import JsonObject
from qkv.telemetry import RUN_ARM, Memory, Telemetry
from qkv.views.host import Host
from qkv.views.live.asking import Desk
from qkv.views.live.follow import Follower, Pulse, Purse, edition_of, pulse_of
from qkv.views.live.guard import App, Guard
from qkv.views.report.packed import to_json, wire
from qkv.views.report.page import LIVE_POLICY, live_page
from qkv.views.report.page_sections import Sections
from qkv.views.report.playground import POLICY, playground
from qkv.views.sections.grids import OtherRun
from qkv.views.sections.training_in_page import PlaySection
from qkv.views.sharing import Busy
from qkv.views.viewer import Viewer

LIVE_SECTIONS = ("run", "loss", "answers", "map", "grid", "matrices", "samples", "rows", "words", "ledger")


class Page(Follower[Pulse]):
    """One run as a live page; `beside` is another run to compare it with, matrix by matrix."""

    def __init__(self, folder: Path, beside: Path | None = None) -> None:
        super().__init__(folder, pulse_of)
        self._beside = beside
        self._desk = lru_cache(maxsize=1)(lambda edition: _desk_of(folder) if edition else None)
        self.purse = Purse()
        self._memory = lru_cache(maxsize=1)(lambda edition: Memory())
        self._threads = torch.get_num_threads()

    @property
    def desk(self) -> Desk | None:
        """Who answers about the run that is in the folder now; None where its model cannot be shown a text."""
        return self._desk(edition_of(self.folder))

    def as_of(self, path: str) -> Hashable:
        """The payload may be as old as the last validation or snapshot: what changes between them, a page asks for as
        soon as it is open.
        """
        if path != "/payload":
            return super().as_of(path)
        return dataclasses.replace(self.pulse, step=0, loss=None, recorded=min(self.pulse.recorded, 0))

    def spare(self) -> None:
        """Let this thread compute on one core while the run trains: two that wait for each other keep both busy."""
        torch.set_num_threads(self._threads if self.pulse.finished else 1)

    def payload(self) -> object:
        """Every section, and what may be asked. Raises RunFolderError where the run was taken away."""
        RunFolder.open(self.folder)
        desk, pulse = self.desk, self.pulse
        with Sections(self.folder, viewer=desk.viewer if desk else None, memory=self._remembered()) as sections:
            report = sections.report(Host(kind="page", can=desk.can if desk else ()))
        report = dataclasses.replace(report, pulse=pulse)
        if report.play:  # its weights come with the frame that asks for them
            report = dataclasses.replace(report, play=dataclasses.replace(report.play, weights=None))
        if self._beside is None:
            return report
        with Sections(self._beside) as sections:
            other = OtherRun(name=self._beside.resolve().name, map=sections.map(), grid=sections.grid())
        return dataclasses.replace(report, other=other)

    def first(self) -> JsonObject:
        """What a page can be opened with at once: which run it is, and its losses."""
        RunFolder.open(self.folder)
        with Sections(self.folder) as sections:
            return {"run": sections.run(), "loss": sections.loss(), "as_of": sections.n_steps or 0}

    def sections(self, names: Iterable[str]) -> JsonObject:
        """Some sections as they are now, in their order for as long as a training is spared; whole when it is finished.

        `wait` is in how many seconds it is worth asking for those that are not among them; `kept` are the steps whose
        weights are there now: a checkpoint is taken away when newer ones make it needless; `as_of` is for each section
        the last update when it was read.

        Raises UserError for one that there is none of.
        """
        for name in (names := list(names)):
            if name not in LIVE_SECTIONS:
                raise UserError(f"there is no section {name[:40]!r}; expected some of {', '.join(LIVE_SECTIONS)}")
        found, as_of = {}, {}
        for name in names:
            if self.pulse.finished or not self.purse.wait:
                found[name], as_of[name] = self.purse.pay(lambda name=name: self._read(name))
        desk = self.desk
        kept = desk.viewer.steps() if desk else list(RunFolder(self.folder).weights())
        return {"wait": 0.0 if self.pulse.finished else self.purse.wait, "kept": kept, "as_of": as_of, **found}

    def play(self) -> PlaySection | None:
        """The run as the playground takes it; None where it cannot."""
        with Sections(self.folder) as sections:
            found = sections.play()
        return found if found and found.weights is not None else None

    def _read(self, name: str) -> tuple[object, int]:
        """(a section, the last update when it was read)."""
        with Sections(self.folder, memory=self._remembered()) as sections:
            return getattr(sections, name)(), sections.n_steps or 0

    def _remembered(self) -> Memory:
        """What was read of this telemetry before."""
        return self._memory(_edition(self.folder))


def _desk_of(folder: Path) -> Desk | None:
    """Who answers about a run; None where its model cannot be shown a text, or not yet."""
    try:
        viewer = Viewer(folder)
        if viewer.has_code and not viewer.reads_images:
            viewer.tokenizer  # noqa: B018 - a run without one cannot be shown a text
        return Desk(viewer)
    except QkvError:  # a page of matrices is better than none
        return None


def _edition(folder: Path) -> tuple[str, int, int]:
    """By what telemetry is told from that of other steps: its run, its file, how often the training has gone back."""
    path = folder / "telemetry.sqlite"
    try:
        with Telemetry(path) as telemetry:
            n_rollbacks = sum(e.kind.startswith("rollback") for e in telemetry.events(RUN_ARM))
            return edition_of(folder), path.stat().st_ino, n_rollbacks
    except (QkvError, OSError):  # not written yet
        return "", 0, 0


def application(page: Follower, hosts: Iterable[str] | None, token: str = "") -> App:
    """The ASGI application; `hosts` and `token` as for `guard.Guard`."""

    async def index(request: Request) -> Response:
        headers = {**_HEADERS, "content-security-policy": LIVE_POLICY}
        return HTMLResponse(live_page(page.folder.resolve().name, page.entry), headers=headers)

    async def static(request: Request) -> Response:
        return _static(request.path_params["name"])

    def told(read: Callable[[Request], object]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _answered(page, request, lambda: JSONResponse(to_json(read(request)), headers=_HEADERS))

        return answer

    def sections(request: Request) -> JsonObject:
        return page.sections(request.query_params.get("names", "").split(","))

    async def play(request: Request) -> Response:
        headers = {**_HEADERS, "content-security-policy": f"{POLICY}; frame-ancestors 'self'"}
        return await _answered(page, request, lambda: HTMLResponse(playground(page.play()), headers=headers))

    async def events(request: Request) -> Response:
        return StreamingResponse(page.events(), media_type="text/event-stream", headers=_HEADERS)

    async def ask(request: Request) -> Response:
        try:
            body = await asyncio.wait_for(request.body(), _BODY_SECONDS)
        except TimeoutError:
            return PlainTextResponse("the question did not arrive in time", status_code=408)
        return await _answered(page, request, lambda: _answer(page, request.path_params["name"], body), body)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(page.watch())
        yield
        page.end()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    routes = [
        Route("/", index),
        Route("/static/{name:path}", static),
        Route("/first", told(lambda _: page.first())),
        Route("/payload", told(lambda _: page.payload())),
        Route("/playground", play),
        Route("/sections", told(sections)),
        Route("/rooms", told(sections)),  # its name in earlier versions
        Route("/events", events),
        Route("/ask/{name}", ask, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), hosts, token)


_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


def _static(name: str) -> Response:
    """A file of `static/`; a name is looked up among those that are there and never followed elsewhere."""
    place = files("qkv.views") / "static"
    for part in name.split("/"):
        there = place.iterdir() if place is not None and place.is_dir() else ()
        place = next((item for item in there if item.name == part), None)
    if place is None or not place.is_file():
        return PlainTextResponse("there is no such file", status_code=404)
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(place.read_bytes(), media_type=kind, headers=_HEADERS)


def _answer(page: Follower, name: str, body: bytes) -> Response:
    if (desk := page.desk) is None:
        RunFolder.open(page.folder)  # says so where the run was taken away
        raise UserError("the model of this run cannot be shown a text")
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("a question is a JSON object") from None
    return Response(wire(desk.answer(name, question)), media_type="application/octet-stream", headers=_HEADERS)


_BODY_SECONDS = 20.0
"""In which a question must have arrived."""


async def _left(request: Request) -> None:
    """Until the asker has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answered(page: Follower, request: Request, work: Callable[[], Response], body: bytes = b"") -> Response:
    """The answer, computed once for all who ask the same while the run stands still, in a thread that spares the
    training. A mistake is told as it is, anything else in general words.
    """

    def sparing() -> Response:
        page.spare()
        return RunFolder(page.folder).steadily(work)

    left = asyncio.ensure_future(_left(request))
    path = request.url.path
    key = (path, request.url.query, body, page.as_of(path))
    kept = path if request.method == "GET" else None
    try:
        return await page.answers.get(key, request.client.host if request.client else "", sparing, left, kept)
    except Busy:
        headers = {**_HEADERS, "retry-after": "2"}
        return PlainTextResponse("the server is busy; ask again in a moment", status_code=503, headers=headers)
    except QkvError as error:
        return JSONResponse({"error": str(error)}, status_code=422 if isinstance(error, UserError) else 500)
    finally:
        left.cancel()
