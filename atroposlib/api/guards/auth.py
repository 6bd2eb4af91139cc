"""Scopes of every route in a table, checked before the body is read.

A route that the table does not name needs the scope admin, so a new route is closed by
default. Tokens are accepted in the Authorization header only, because URLs end up in logs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from atroposlib.api.guards.busy import RETRY_AFTER_S
from atroposlib.api.guards.tokens import Caller, Scope, TokenFile
from atroposlib.errors import AccessError, Forbidden, TokensUnreadable, Unauthorized
from atroposlib.utils.http.gate import FACTS_KEY, Check, RequestFacts

log = logging.getLogger(__name__)

_REALM = 'Bearer realm="atropos"'

ANYONE: frozenset[Scope] = frozenset()
READ = frozenset({Scope.READ})  # covered by every token
ENV = frozenset({Scope.ENV})
TRAINER = frozenset({Scope.TRAINER})
PARTICIPANT = frozenset({Scope.ENV, Scope.TRAINER})
STEER = frozenset({Scope.STEER})
ADMIN = frozenset({Scope.ADMIN})

# Pages of the explorer that take a query alone, below /explore.
EXPLORED = "runs rollouts batches curves histogram weights events account tasks wins".split()
# Any of these scopes is sufficient; admin covers all scopes.
SCOPES_OF: dict[tuple[str, str], frozenset[Scope]] = {
    ("GET", "/health"): ANYONE,
    # The page without its data.
    ("GET", "/ui"): ANYONE,
    ("GET", "/ui/"): ANYONE,
    ("GET", "/ui/{asset}"): ANYONE,
    # Status.
    ("GET", "/"): READ,
    ("GET", "/docs"): READ,
    ("GET", "/redoc"): READ,
    ("GET", "/openapi.json"): READ,
    ("GET", "/status"): READ,
    ("GET", "/servers"): READ,
    ("GET", "/metrics"): READ,
    ("GET", "/events"): READ,
    ("GET", "/explore/why"): READ,
    ("GET", "/info"): READ,
    ("GET", "/wandb_info"): READ,
    ("GET", "/latest_example"): READ,
    **{("GET", f"/explore/{name}"): READ for name in EXPLORED},
    ("GET", "/explore/batches/{no}"): READ,
    ("GET", "/explore/batches/{no}/certificate"): READ,
    ("GET", "/explore/groups/{gid}"): READ,
    ("GET", "/explore/groups/{gid}/rows/{row}"): READ,
    # Environments.
    ("POST", "/register-env"): ENV,
    ("POST", "/disconnect-env"): ENV,
    ("GET", "/status-env"): ENV,
    ("POST", "/status-env"): ENV,
    ("POST", "/scored_data"): ENV,
    ("POST", "/scored_data_list"): ENV,
    ("POST", "/groups"): ENV,
    ("POST", "/drops"): ENV,
    ("POST", "/account"): ENV,
    ("POST", "/admission"): ENV,
    ("POST", "/admission/release"): ENV,
    ("POST", "/lease"): ENV,  # its former path
    ("POST", "/release"): ENV,  # its former path
    # The trainer. GET /batch leases a batch, so the scope read does not cover it.
    ("POST", "/register"): TRAINER,
    ("GET", "/batch"): TRAINER,
    ("POST", "/batches/claim"): TRAINER,
    ("POST", "/batches/{no}/ack"): TRAINER,
    ("POST", "/batches/{no}/extend"): TRAINER,
    ("POST", "/batches/{no}/commit"): TRAINER,
    ("POST", "/batches/{no}/rewind"): TRAINER,
    ("POST", "/batches/{no}/notes"): TRAINER,
    ("GET", "/batches/{no}/shards/{rank}"): TRAINER,
    ("POST", "/policy_version"): TRAINER,
    # Trainer and environments.
    ("POST", "/heartbeat"): PARTICIPANT,
    ("POST", "/steps"): PARTICIPANT,
    # Operators.
    ("GET", "/batches/dead"): READ,
    ("POST", "/steer"): STEER,
    ("POST", "/batches/{no}/revive"): STEER,
    ("POST", "/batches/{no}/drop"): ADMIN,
    ("POST", "/explore/steps/{step}/pin"): ADMIN,
    # Destructive.
    ("GET", "/reset_data"): ADMIN,
    ("POST", "/reset_data"): ADMIN,
}
_TEMPLATES = [
    (method, path, re.compile(re.sub(r"{\w+}", "[^/]+", path)))
    for method, path in SCOPES_OF
    if "{" in path
]


def route_of(method: str, path: str) -> str | None:
    """The path as the table writes it, e.g. ``/batches/{no}/ack``; None if unknown."""
    method = "GET" if method == "HEAD" else method
    if (method, path) in SCOPES_OF:
        return path
    for template_method, template, pattern in _TEMPLATES:
        if method == template_method and pattern.fullmatch(path):
            return template
    return None


def scopes_for(method: str, route: str | None) -> frozenset[Scope]:
    """The scopes of which any is sufficient; empty if the route needs no token."""
    method = "GET" if method == "HEAD" else method
    return ADMIN if route is None else SCOPES_OF[method, route]


def token_check(tokens: TokenFile | None) -> Check:
    """Check of the gate: refuses requests whose token has none of the needed scopes.

    Sets the caller of the request. WebSockets are refused: the API serves HTTP only.

    Args:
        tokens: None: no token is needed.
    """

    def check(facts: RequestFacts) -> Response | None:
        if tokens is None:
            return None
        if facts.kind != "http":
            return refusal(Forbidden("the API serves HTTP only"))
        needed = scopes_for(facts.method, facts.route)
        if not needed:
            return None
        try:
            caller = tokens.identify(bearer_token(facts))
            if not needed & caller.scopes:
                raise Forbidden(f"this call needs the scope {_names(needed)}")
        except AccessError as error:
            return refusal(error)
        facts.identify(caller)
        return None

    return check


def caller_of(request: HTTPConnection) -> Caller | None:
    """The caller; None without tokens, and on open routes."""
    caller: Caller | None = request.scope[FACTS_KEY].caller
    return caller


def require_env(caller: Caller | None, env_name: str | None) -> None:
    """Check a token that is bound to an environment.

    Args:
        env_name: the ``desired_name`` of the environment that the request concerns, or None.

    Raises:
        Forbidden: the token is bound to another environment, or the request concerns none.
    """
    if caller is not None and caller.env_name not in (None, env_name):
        raise Forbidden(f"this token is bound to the environment {caller.env_name}")


def own_id(caller: Caller | None, text: str) -> str:
    """An id chosen by a caller, in the name space of the environment of its token."""
    bound = None if caller is None else caller.env_name
    return text if bound is None else f"{bound}\x1f{text}"


# Scope that a heartbeat or a report of each role needs; tools need a token only. Rollouts and
# weights are sent to servers, so a caller that announces or reports a server needs the scope
# of the trainer.
SCOPE_OF_ROLE = {"env": Scope.ENV, "trainer": Scope.TRAINER, "inference": Scope.TRAINER}


def require_role(caller: Caller | None, role: str) -> None:
    """
    Raises:
        Forbidden: the token lacks the scope of the role.
    """
    needed = SCOPE_OF_ROLE.get(role)
    if caller is not None and needed is not None and needed not in caller.scopes:
        raise Forbidden(
            f"a heartbeat or a report of role {role} needs the scope {needed.value}"
        )


def require_name(caller: Caller | None, name: str, taken: Container[Any]) -> None:
    """Check the name of a heartbeat.

    Args:
        taken: names of live trainers, servers and tools.

    Raises:
        Forbidden: the token of an environment reports under the name of another process. The
            processes of an environment have its name, then perhaps a number and an id.
    """
    if caller is None or Scope.TRAINER in caller.scopes:
        return
    own = caller.env_name
    if own is not None and not re.fullmatch(rf"{re.escape(own)}(_\d+)?(-[0-9a-f]+)?", name):
        raise Forbidden(f"this token is bound to the environment {own}")
    if name in taken:
        raise Forbidden(f"another process has the name {name}; an environment needs its own")


# responses with a header each
_REFUSALS: dict[type[AccessError], tuple[int, str, str, str]] = {
    Unauthorized: (401, "unauthorized", "www-authenticate", _REALM),
    Forbidden: (403, "forbidden", "www-authenticate", f'{_REALM}, error="insufficient_scope"'),
    TokensUnreadable: (503, "tokens_unreadable", "retry-after", str(RETRY_AFTER_S)),
}


def refusal(error: AccessError) -> Response:
    """The response 401, 403 or 503 to ``error``, in the shape of all errors."""
    status, word, header, value = _REFUSALS[type(error)]
    if status == 503:
        log.error("every call is refused: %s", error)
    body = msgspec.json.encode({"detail": str(error), "status": word})
    return Response(body, status, {header: value}, media_type="application/json")


def bearer_token(facts: RequestFacts) -> str:
    """The token of the Authorization header.

    Raises:
        Unauthorized: no header or two: a proxy may have checked the second.
    """
    values = facts.values_of(b"authorization")
    if len(values) != 1:
        raise Unauthorized("one Authorization header is expected: Bearer and a token")
    kind, _, token = values[0].decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise Unauthorized("the Authorization header is expected to be: Bearer and a token")
    return token.strip(" ")


def _names(scopes: frozenset[Scope]) -> str:
    return " or ".join(sorted(scope.value for scope in scopes))
