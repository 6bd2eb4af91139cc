"""The workbench as a server on this machine: its page, its data, and the page of each run.

    /ui/                        the page
    /workbench/...              what the page shows, JSON
    /run/KEY/ui/                the page of a run; its data come from its API while it goes on, else
                                from its folder

No route changes a run, and the gate refuses pages of a foreign site.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from anyio.to_thread import run_sync as in_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from atroposlib.api.archive.filters import require_known_filters
from atroposlib.api.server import create_view
from atroposlib.api.web.errors_http import STATUS_OF, error_response, page_response
from atroposlib.api.web.routes import of_json
from atroposlib.errors import ConfigError, UnknownGroup
from atroposlib.text.lines import strict
from atroposlib.ui.routes import asset_response, page_routes
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.web_pages import page_checks
from atroposlib.workbench.catalogue import (
    Catalogue,
    CatalogueEntry,
    curves_document,
    runs_document,
)
from atroposlib.workbench.overlay import AXES, Axis
from atroposlib.workbench.run_diff import diff_of_runs
from atroposlib.workbench.run_verdict import is_trusted
from atroposlib.workbench.task_answers import answers_document
from atroposlib.workbench.task_results import ROLLOUT_METRIC, task_results, task_table
from atroposlib.workbench.views import Views

STATIC = Path(__file__).with_name("static")
MAX_RUNS = 24  # runs of a comparison
SWEEP_S = 5.0  # pause between two searches for idle views
API_TIMEOUT_S = 30.0
MAX_REPLY = 64 * 2**20
READ = ("explore", "status")  # first words of the paths of a run that are read
JSON = "application/json"


class WorkbenchData:
    """Answers to the questions of the page, by the query of a request. Blocking; for threads."""

    def __init__(self, root: Path) -> None:
        self.catalogue = Catalogue(root)
        self.views = Views(create_view)

    def runs(self, query: dict[str, str]) -> dict[str, Any]:
        require_known_filters(query)
        return runs_document(self.catalogue.root, self.catalogue.refresh())

    def curves(self, query: dict[str, str]) -> dict[str, Any]:
        require_known_filters(query, "runs", "keys", "by", "apart")
        entries, axis = self._entries_of(query), query.get("by", "step")
        if axis not in AXES:
            raise ConfigError(f"by: one of {', '.join(AXES)}")
        known: dict[str, Axis] = {name: name for name in AXES}
        for entry in entries:
            entry.read()
        is_grouped = query.get("apart", "") == ""
        return curves_document(entries, query.get("keys", ""), known[axis], is_grouped)

    def tasks(self, query: dict[str, str]) -> dict[str, Any]:
        require_known_filters(query, "runs", "metric", "step")
        files = [entry.files for entry in self._entries_of(query)]
        metric = query.get("metric", ROLLOUT_METRIC)
        results = task_results(files, metric, query.get("step") or None)
        return {
            "runs": [{"key": f.run.key, "name": f.run.name} for f in files],
            "source": results[0].source,
            "about": [result.about for result in results],
            "tasks": task_table(results),
        }

    def answers(self, query: dict[str, str]) -> dict[str, Any]:
        require_known_filters(query, "runs", "task", "source")
        entries, task = self._entries_of(query), query.get("task", "")
        return answers_document(entries, task, query.get("source", ""), self.views)

    def diff(self, query: dict[str, str]) -> dict[str, Any]:
        require_known_filters(query, "runs")
        entries = self._entries_of(query)
        if len(entries) != 2:
            raise ConfigError("runs: the keys of two runs are expected")
        a, b = (entry.run for entry in entries)
        return diff_of_runs(a, b, ROLLOUT_METRIC, 1.0, None)

    def _entries_of(self, query: dict[str, str]) -> list[CatalogueEntry]:
        entries = self.catalogue.entries(query.get("runs", ""))
        if not 1 <= len(entries) <= MAX_RUNS:
            raise ConfigError(f"runs: keys of 1 to {MAX_RUNS} runs are expected")
        return entries

    def close(self) -> None:
        self.views.close()
        self.catalogue.close()


class RunPage:
    """ASGI app of the page of a run, below ``/run/KEY``."""

    def __init__(self, data: WorkbenchData) -> None:
        self._data = data
        # trust_env off: a proxy must not receive requests to the servers of a run.
        self._client = httpx.AsyncClient(timeout=API_TIMEOUT_S, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        entry = await in_thread(self._data.catalogue.entry, scope["path_params"]["key"])
        path = scope["path"].removeprefix(scope["root_path"]).lstrip("/")
        if path.startswith("ui/"):
            scope["path_params"] = {"asset": path.removeprefix("ui/")}
            await asset_response(request)(scope, receive, send)
            return
        if entry.address is not None:
            response = await self._reply_of_api(request, entry.address, path)
            if response is not None:
                await response(scope, receive, send)
                return
            await in_thread(entry.read)  # it has ended since the last look
        await self._show_folder(entry, scope, receive, send)

    async def _show_folder(
        self, entry: CatalogueEntry, scope: Scope, receive: Receive, send: Send
    ) -> None:
        stack = ExitStack()
        try:
            view = await in_thread(stack.enter_context, self._data.views.use(entry.run))
            await view.app(scope, receive, send)
        finally:
            await in_thread(stack.close)

    async def _reply_of_api(
        self, request: Request, address: str, path: str
    ) -> Response | None:
        """The reply of the API of a live run; None if it does not answer.

        The browser could not ask it: for the API this page is another site.
        """
        words = path.split("/")
        # The client resolves dots, and a GET of an old route takes a batch away.
        if request.method != "GET" or words[0] not in READ or {".", ".."} & {*words}:
            raise UnknownGroup(f"{request.method} of a live run: open {address}/ui/ for that")
        names = ("authorization",) if is_trusted(address) else ()
        headers = {n: v for n in names if (v := request.headers.get(n)) is not None}
        url = f"{address}/{path}"
        query = request.url.query
        try:
            async with self._client.stream(
                "GET", f"{url}?{query}" if query else url, headers=headers
            ) as reply:
                content = b""
                async for piece in reply.aiter_bytes():
                    content += piece
                    if len(content) > MAX_REPLY:
                        return page_response(502, "the reply of the API is too long")
        except httpx.HTTPError:
            return None
        return Response(content, reply.status_code, {"cache-control": "no-store"}, JSON)

    async def close(self) -> None:
        await self._client.aclose()


def create_workbench(root: Path) -> Starlette:
    """The workbench over the runs below ``root``, behind its gate."""
    data = WorkbenchData(root)
    page = RunPage(data)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_close_idle_views(data.views))
        yield
        sweeper.cancel()
        with suppress(asyncio.CancelledError):
            await sweeper
        await page.close()
        await in_thread(data.close)

    async def to_page(_: Request) -> Response:
        return RedirectResponse("ui/")

    async def on_error(_: Request, error: Exception) -> Response:
        return error_response(error)

    answers = (data.runs, data.curves, data.tasks, data.answers, data.diff)
    app = Starlette(
        routes=[
            Route("/", to_page),
            *page_routes(STATIC),
            *(
                Route(f"/workbench/{answer.__name__}", _json_route(answer))
                for answer in answers
            ),
            Mount("/run/{key}", page),
        ],
        exception_handlers={kind: on_error for kind in STATUS_OF},
        lifespan=lifespan,
    )
    app.middleware_stack = Gate(app.build_middleware_stack(), page_checks(page_response))
    return app


def _json_route(answer: Callable[[dict[str, str]], dict[str, Any]]) -> Any:
    async def get(request: Request) -> Response:
        document = await in_thread(answer, dict(request.query_params))
        response = of_json(strict(document))
        response.headers["cache-control"] = "no-store"
        return response

    return get


async def _close_idle_views(views: Views) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await in_thread(views.close_idle)
