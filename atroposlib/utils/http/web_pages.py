"""Checks of the gate against web pages, for every HTTP server.

A web page can reach a server on this machine in two ways. It can give its own name the address
127.0.0.1 (DNS rebinding); the Host header then holds the name of the page. Or it can send the
request from the browser; ``Sec-Fetch-Site``, ``Origin`` or ``Referer`` then name the site.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from starlette.responses import Response

from atroposlib.utils.http.gate import Check, Refuse, RequestFacts
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS, address_of

ANY_HOST = "*"
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{0,5})?")


def page_checks(
    refuse: Refuse, names: Iterable[str] | None = LOOPBACK_HOSTS
) -> tuple[Check, ...]:
    """Both checks, for a server whose GETs change nothing.

    Args:
        names: allowed names with a dot; None: any name.
    """
    return host_check(names, refuse), site_check(refuse)


def host_check(names: Iterable[str] | None, refuse: Refuse) -> Check:
    """Check against DNS rebinding: refuses unknown names in the Host header.

    Addresses cannot be rebound, and names without a dot (``node017``, a service of a compose
    file) cannot be registered, so both always pass.

    Args:
        names: pass besides; None or ``*`` passes every request.
        refuse: the response for (status, detail): 400 malformed, 421 another name.
    """
    allowed = None if names is None else frozenset(name.lower() for name in names)

    def check(facts: RequestFacts) -> Response | None:
        if allowed is None or ANY_HOST in allowed:
            return None
        hosts = facts.values_of(b"host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None:
            return refuse(400, "one well-formed Host header is expected")
        if name in allowed or "." not in name or address_of(name):
            return None
        return refuse(421, f"{name} is no name of this server: add --allow-host {name}")

    return check


def host_name(header: bytes) -> str | None:
    """The host of a Host header, ``LocalHost.:8000`` -> ``localhost``; None if malformed."""
    match = _HOST.fullmatch(header.decode("latin-1").lower())
    return match["name"].removesuffix(".") if match else None


def site_check(refuse: Refuse, changing_gets: Collection[str] = ()) -> Check:
    """Check that refuses requests which a browser sends for another site, with 403.

    Browsers open WebSockets to any site, so WebSockets are refused too.

    Args:
        changing_gets: paths whose GET changes something. A page can send it to plain HTTP
            without any sign of the page, so a browser needs ``Sec-Fetch-Site`` for it.
    """

    def check(facts: RequestFacts) -> Response | None:
        changes = facts.method == "GET" and facts.path in changing_gets
        site = other_site(facts.headers, changes)
        if site is None:
            return None
        return refuse(403, f"requests of another site ({site}) are refused")

    return check


def other_site(headers: Mapping[bytes, bytes], changing_get: bool = False) -> str | None:
    """The site for which a browser sends a request, or None. Browsers send ``Sec-Fetch-Site``
    to https and loopback only, elsewhere ``Origin`` or ``Referer``."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return None if site in (b"none", b"same-origin") else site.decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1").lower()
    pages = [headers[name] for name in (b"origin", b"referer") if name in headers]
    for page in pages:
        address = page.decode("latin-1").lower()
        if address.partition("://")[2].partition("/")[0] != host:
            return address[:200]
    browser = headers.get(b"user-agent", b"").startswith(b"Mozilla/")
    return "unknown" if changing_get and browser and not pages else None
