"""Serves the page by Starlette and uvicorn: as HTML, with events for new records.

It only reads, in a process of its own with low priority, so it cannot disturb a run.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import regex
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rl_sync.display import text
from rl_sync.display.templating import environment
from rl_sync.page import views
from rl_sync.page.guard import Guard, is_loopback
from rl_sync.page.timeline_view import FOLLOWED_SECS, picture
from rl_sync.records.rollouts.rollout_records import ORDERS, RolloutFilter
from rl_sync.records.run_records import RunRecords, open_runs

LOOPBACK = "127.0.0.1"
FRAGMENT = "x-fragment"
"""The header of a request for only the inside of a view."""

_VIEWS_OF_ROLLOUTS = ("rollouts", "group")
_POLL_SECS = 1.0
_KEEP_ALIVE_SECS = 15.0
_MOST_PIXELS = 4096
_LEAST_SECS = 0.001
_NICENESS = 10
_GREATEST = 1e200  # Larger numbers overflow when a window is divided into pixels.


def make_app(runs: Sequence[RunRecords], *, names: Sequence[str] = (), token: str = "") -> Guard:
    """Makes the page of some runs, as an ASGI application.

    Args:
      names, token: see `Guard`.
    """
    site = _Site(runs)
    pages = {
        "/": site.overview,
        "/curves": site.curves,
        "/rollouts": site.rollouts,
        "/group": site.group,
        "/prompt": site.prompt,
        "/timeline": site.timeline,
        "/flow": site.flow,
        "/settings": site.settings,
        "/logs": site.logs,
        "/data/metrics.csv": site.metrics,
        "/data/timeline": site.timeline_data,
    }
    routes: list[BaseRoute] = [Route(path, endpoint) for path, endpoint in pages.items()]
    routes.append(Route("/events", site.events))
    routes.append(Mount("/static", StaticFiles(packages=[("rl_sync.page", "static")])))
    return Guard(Starlette(routes=routes), names, token)


class _Site:
    """The endpoints. Those that are not coroutines run in threads."""

    def __init__(self, runs: Sequence[RunRecords]):
        self._runs = runs
        self._templates = environment("rl_sync.page")

    def overview(self, request: Request) -> Response:
        return self._page(request, "overview", lambda: views.overview(self._runs))

    def curves(self, request: Request) -> Response:
        look = _look(request.query_params)
        return self._page(request, "curves", lambda: views.curves(self._runs, look))

    def settings(self, request: Request) -> Response:
        words = request.query_params.get("find", "")
        return self._page(request, "settings", lambda: views.settings(self._run(request), words))

    def logs(self, request: Request) -> Response:
        name = request.query_params.get("name")

        def values() -> views.TemplateValues:
            try:
                return views.logs(self._run(request), name)
            except KeyError as error:
                raise HTTPException(404, "The run has no such log.") from error

        return self._page(request, "logs", values)

    def metrics(self, request: Request) -> Response:
        run = self._run(request)
        run.refresh(rollouts=False)
        name = f"{re.sub(r'[^A-Za-z0-9._-]', '_', run.name)}-metrics.csv"
        return Response(
            views.table_of_metrics(run),
            media_type="text/csv",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    def flow(self, request: Request) -> Response:
        return self._page(request, "flow", lambda: views.flow(self._run(request)))

    def timeline(self, request: Request) -> Response:
        return self._page(request, "timeline", dict)

    def rollouts(self, request: Request) -> Response:
        query, page = _query(request.query_params), _whole(request.query_params, "page") or 1
        return self._page(
            request, "rollouts", lambda: views.table(self._run(request), query, page), query=query
        )

    def group(self, request: Request) -> Response:
        step, lease = _required(request, "step"), _required(request, "lease")
        return self._page(
            request, "group", lambda: views.group(self._run(request), step, lease), is_history=False
        )

    def prompt(self, request: Request) -> Response:
        prompt_id = _required(request, "prompt")
        return self._page(
            request, "group", lambda: views.history(self._run(request), prompt_id), is_history=True
        )

    def timeline_data(self, request: Request) -> Response:
        run, given = self._run(request), request.query_params
        run.refresh(rollouts=False)
        start, end = _real(given, "start"), _real(given, "end")
        found = picture(
            run,
            None if start is None or end is None else (start, end),
            secs=max(_real(given, "secs") or FOLLOWED_SECS, _LEAST_SECS),
            pixels=min(max(_whole(given, "width") or 1200, 1), _MOST_PIXELS),
            dark=bool(given.get("dark")),
        )
        return JSONResponse(found)

    async def events(self, request: Request) -> Response:
        return StreamingResponse(changes(lambda: stamp(self._runs)), media_type="text/event-stream")

    def _run(self, request: Request) -> RunRecords:
        number = _whole(request.query_params, "run") or 0
        if not 0 <= number < len(self._runs):
            raise HTTPException(404, f"run={number} is not one of the {len(self._runs)} runs.")
        return self._runs[number]

    def _page(
        self,
        request: Request,
        view: str,
        values: Callable[[], views.TemplateValues],
        **more: object,
    ) -> Response:
        """Reads new records, and fills the template of a view or only its inside."""
        run, now = self._run(request), stamp(self._runs)
        for one in self._runs:
            one.refresh(rollouts=one is run and view in _VIEWS_OF_ROLLOUTS)
        context = {
            "view": view,
            "number": self._runs.index(run),
            "names": [one.name for one in self._runs],
            "stamp": now,
            "state": text.state(run),
            "given": dict(request.query_params),
            "orders": [*ORDERS],
            **more,
            **values(),
        }
        template = f"{view}.html" if FRAGMENT in request.headers else "page.html"
        html = self._templates.get_template(template).render(context)
        return HTMLResponse(html, headers={"x-stamp": now, "x-state": text.state(run)})


def stamp(runs: Sequence[RunRecords]) -> str:
    """Returns a text that changes when one of the runs has new records, or falls silent.

    Silence counts because a killed run leaves no record of its end.
    """
    return f"{hash(tuple((text.state(run), run.stamp()) for run in runs)):x}"


async def changes(
    stamp: Callable[[], str],
    poll_secs: float = _POLL_SECS,
    keep_alive_secs: float = _KEEP_ALIVE_SECS,
) -> AsyncIterator[str]:
    """Yields server-sent events: the stamp at first, and each time that it changes.

    Args:
      stamp: function that makes the stamp; it runs in a thread.
      poll_secs: seconds between two polls.
      keep_alive_secs: maximum silence, after which a comment is sent.
    """
    last, silent_secs = "", 0.0
    yield "retry: 2000\n\n"
    while True:
        now = await run_in_threadpool(stamp)
        if now != last:
            last, silent_secs = now, 0.0
            yield f"event: change\ndata: {now}\n\n"
        elif silent_secs >= keep_alive_secs:
            silent_secs = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(poll_secs)
        silent_secs += poll_secs


def serve(
    workdirs: Sequence[str], host: str = LOOPBACK, port: int = 0, say: Callable[[str], None] = print
) -> None:
    """Serves the page of some work directories until it is interrupted.

    Args:
      host: the address to serve at; an address that others can reach gets a token.
      port: the port; 0 for any free one.
      say: called with the address, and the token if there is one.

    Raises:
      OSError: nothing can be served at this address.
    """
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        port = listener.getsockname()[1]
        app = make_app(open_runs(workdirs), names=[host], token=token)
        shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
        address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        say(f"{address}?token={token}" if token else address)
        os.nice(_NICENESS)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, ws="none"
        )
        uvicorn.Server(config).run(sockets=[listener])


def _query(given: Mapping[str, str]) -> views.Query:
    """Parses the conditions of the table in an address."""
    sort = given.get("sort") or views.Query().order
    if sort.removeprefix("-") not in ORDERS:
        raise HTTPException(
            400, f"sort={sort} must be one of {', '.join(ORDERS)}, with or without -."
        )
    words = given.get("text", "")
    flags = regex.IGNORECASE | regex.FULLCASE
    selection = RolloutFilter(
        first_step=_whole(given, "from") or 0,
        last_step=_whole(given, "to"),
        lease=_whole(given, "lease"),
        prompt_id=_whole(given, "prompt"),
        least=_real(given, "least"),
        greatest=_real(given, "greatest"),
        pattern=regex.compile(regex.escape(words), flags) if words else None,
    )
    return views.Query(selection, sort)


def _look(given: Mapping[str, str]) -> views.CurveStyle:
    """Parses the options of curves in an address."""
    by, smoothing = given.get("x") or "step", _real(given, "smooth") or 0.0
    if by not in views.AXES:
        raise HTTPException(400, f"x={by} must be one of {', '.join(views.AXES)}.")
    if not 0 <= smoothing < 1:
        raise HTTPException(400, f"smooth={smoothing:g} must be at least 0 and below 1.")
    return views.CurveStyle(by, smoothing, bool(given.get("log")), given.get("find", ""))


def _required(request: Request, name: str) -> int:
    value = _whole(request.query_params, name)
    if value is None:
        raise HTTPException(400, f"The address lacks {name}=…, a whole number.")
    return value


def _whole(given: Mapping[str, str], name: str) -> int | None:
    try:
        return int(given[name]) if given.get(name) else None
    except ValueError as error:
        raise HTTPException(400, f"{name} must be a whole number.") from error


def _real(given: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(given[name]) if given.get(name) else None
    except ValueError as error:
        raise HTTPException(400, f"{name} must be a number.") from error
    if value is not None and not abs(value) <= _GREATEST:
        raise HTTPException(400, f"{name} must be a number of at most {_GREATEST:g}.")
    return value
