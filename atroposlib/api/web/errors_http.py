"""Responses to errors: status, word and detail of each."""

from __future__ import annotations

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from atroposlib import errors
from atroposlib.api.guards.auth import route_of
from atroposlib.api.guards.busy import RETRY_AFTER_S
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.web.routes import of_json
from atroposlib.utils.http.gate import RequestFacts
from atroposlib.wire.safetensors import MalformedBody

# Response to each error: status code, and the word in ``status``.
STATUS_OF: dict[type[Exception], tuple[int, str]] = {
    MalformedBody: (400, "malformed"),
    errors.Unauthorized: (401, "unauthorized"),
    errors.Forbidden: (403, "forbidden"),
    errors.UnknownEnv: (404, "unknown_env"),
    errors.UnknownGroup: (404, "unknown_group"),
    errors.NotRegistered: (409, "not_registered"),
    errors.StaleGeneration: (409, "fenced"),
    errors.RunTaken: (409, "run_taken"),
    errors.CannotRewind: (409, "cannot_rewind"),
    errors.KeyConflict: (409, "key_conflict"),
    errors.Uncertified: (422, "uncertified"),
    errors.InvalidGroup: (422, "invalid"),
    errors.ConfigError: (422, "invalid"),
    errors.RunChanged: (503, "run_changed"),
    errors.CorruptPayload: (503, "corrupt_payload"),  # its batch is dissolved: claim again
    errors.StoreFull: (503, "store_full"),
    errors.StoreError: (503, "store_failed"),
}
_MAX_DETAIL_BYTES = 900  # an error response stays below 1 kB


def error_response(error: Exception) -> Response:
    """The response to an error of this package, by ``STATUS_OF``."""
    status_code, word = STATUS_OF[_kind_of(error)]
    body: dict[str, str] = {"detail": _cut(str(error))}
    if status_code != 422:
        body["status"] = word
    response = of_json(body, status_code)
    if status_code == 503:
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    if status_code == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


class ErrorResponses:
    """Response to every error that a route of the API may raise; refusals are counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, error: Exception, facts: RequestFacts) -> Response | None:
        """The response; None for an error without a response, which is a fault of the API."""
        if isinstance(error, tuple(STATUS_OF)):
            self._metrics.refused.labels(STATUS_OF[_kind_of(error)][1]).inc()
            return error_response(error)
        if isinstance(error, RequestValidationError):
            self._metrics.refused.labels("invalid").inc()
            return invalid_response(error)
        if isinstance(error, HTTPException):
            if error.status_code == 405:
                return method_response(facts.path)
            detail = {"detail": error.detail}
            return JSONResponse(detail, error.status_code, headers=error.headers)
        return None


def invalid_response(error: RequestValidationError) -> Response:
    """The response to a body that breaks its model: place and reason, never the value."""
    problems = [
        f"{'.'.join(str(part)[:100] for part in problem['loc'])}: {problem['msg'][:200]}"
        for problem in error.errors()[:3]
    ]
    return of_json({"detail": _cut("; ".join(problems))}, 422)


def method_response(path: str) -> Response:
    """405 with the methods of all routes at ``path``; the framework names methods of a single route."""
    allowed = [method for method in ("GET", "POST") if route_of(method, path)]
    response = of_json({"detail": "Method Not Allowed", "status": "method"}, 405)
    response.headers["allow"] = ", ".join(allowed)
    return response


def page_response(status: int, detail: str) -> Response:
    """The response to a web page that calls under another name or for another site."""
    word = "cross_site" if status == 403 else "wrong_host"
    response = of_json({"detail": detail, "status": word}, status)
    response.headers["connection"] = "close"
    return response


def _kind_of(error: Exception) -> type[Exception]:
    return next(kind for kind in type(error).__mro__ if kind in STATUS_OF)


def _cut(text: str) -> str:
    """``text`` cut by its encoded size, because keys of the sender may consist of escapes."""
    while len(msgspec.json.encode(text)) > _MAX_DETAIL_BYTES:
        text = text[: len(text) * 3 // 4]
    return text
