"""The web application of the rollout API."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError

from atroposlib import __version__
from atroposlib.api.middleware import DEFAULT_MAX_BODY_BYTES, RequestBody
from atroposlib.api.replies import STATUS_OF, on_error, on_invalid_request
from atroposlib.api.routes_data import data_routes
from atroposlib.api.routes_run import run_routes
from atroposlib.api.service import RolloutService
from atroposlib.api.store import Store, open_store

STORE_VARIABLE = "ATROPOS_STORE"
DATA_DIR_VARIABLE = "ATROPOS_DATA_DIR"


def create_app(
    store: Store | None = None,
    clock: Callable[[], float] = time.time,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> FastAPI:
    """The API over ``store`` (in memory if None), which it closes when it shuts down.

    Args:
        clock: seconds; leases and liveness are measured with it. Leases outlive the
            process, so it is the wall clock and not a monotonic one.
    """
    service = RolloutService(store if store is not None else open_store("memory"), clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(title="AtroposLib API", version=__version__, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(RequestBody, max_bytes=max_body_bytes)
    for kind in STATUS_OF:
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.include_router(run_routes(service))
    app.include_router(data_routes(service))
    return app


def create_app_from_environment() -> FastAPI:
    """The app as the ATROPOS_* variables describe it; in memory if they say nothing."""
    data_dir = os.environ.get(DATA_DIR_VARIABLE)
    store = open_store(
        os.environ.get(STORE_VARIABLE, "memory"), Path(data_dir) if data_dir else None
    )
    return create_app(store)


def __getattr__(name: str) -> Any:
    # ``uvicorn atroposlib.api:app`` works; importing this module alone opens no store.
    if name == "app":
        app = globals()["app"] = create_app_from_environment()
        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
