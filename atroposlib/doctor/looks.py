"""Looks at a run over HTTP: the API, and the inference servers that participants name.

Only GET requests, each with a deadline. The token is sent to the rollout API alone.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atroposlib.doctor.evidence import Look, samples

URL_VARIABLE, DEFAULT_URL = "ATROPOS_API_URL", "http://127.0.0.1:8000"
API_TIMEOUT_S, SERVER_TIMEOUT_S = 5.0, 1.0
MAX_SERVERS, MAX_BYTES = 16, 2**24
FROZEN = "connected, no answer"


class Silent(Exception):
    """No usable answer; the message has the reason."""


def get(url: str, timeout_s: float, token: str | None = None) -> tuple[str, float]:
    """The body of a successful GET, and the server's time (s; 0 if it names none).

    Redirects and proxies are not followed.

    Raises:
        Silent: no answer, or another status than 200.
    """
    reached = "not reached"
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.connect()
            reached = FROZEN
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", parts.path or "/", headers=headers)
            reply = connection.getresponse()
            body = reply.read(MAX_BYTES).decode("utf-8", "replace")
            date = reply.getheader("date")
        finally:
            connection.close()
    except TimeoutError as error:
        raise Silent(f"{reached} within {timeout_s:g} s") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Silent(str(error) or type(error).__name__) from error
    if reply.status != 200:
        raise Silent(f"status {reply.status}: {body[:200]}")
    return body, parsedate_to_datetime(date).timestamp() if date else 0.0


def document(url: str, timeout_s: float, token: str | None = None) -> dict[str, Any]:
    """A JSON object. Raises Silent: there is none."""
    body, _ = get(url, timeout_s, token)
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Silent("the answer is no JSON: another program listens there") from error
    if not isinstance(parsed, dict):
        raise Silent("the answer is no object: another program listens there")
    return parsed


def look(url: str) -> Look:
    """Look at the API at ``url`` and at the servers of its participants."""
    url, token = url.rstrip("/"), os.environ.get("ATROPOS_API_TOKEN")
    begun = time.time()
    try:
        body, api_time = get(f"{url}/status", API_TIMEOUT_S, token)
        status = json.loads(body)
        if not isinstance(status, dict) or "blocked_reason" not in status:
            raise Silent("this is no rollout API")
        answer_s = time.time() - begun
        page, _ = get(f"{url}/metrics", API_TIMEOUT_S, token)
        get(f"{url}/health", API_TIMEOUT_S)
    except (Silent, ValueError) as error:
        return Look(begun, problem=str(error))
    urls = [p["name"] for p in status["participants"] if p["role"] == "inference"]
    return Look(
        api_time or begun,
        status,
        answer_s=answer_s,
        metrics=samples(page),
        servers=_servers(urls[:MAX_SERVERS]),
        elsewhere=() if status["state"] == "STARTED" else _elsewhere(url, token),
    )


def _servers(urls: Iterable[str]) -> Mapping[str, Mapping[str, Any]]:
    """The documents of the local servers among ``urls``; vLLM and SGLang have none."""
    addresses = [url.rstrip("/").removesuffix("/v1") for url in urls]

    def info(address: str) -> dict[str, Any]:
        try:
            return document(f"{address}/server_info", SERVER_TIMEOUT_S)
        except Silent as silent:
            return {"frozen": str(silent)} if FROZEN in str(silent) else {}

    with ThreadPoolExecutor(MAX_SERVERS) as pool:
        documents = zip(addresses, pool.map(info, addresses))
        return {address: known for address, known in documents if known}


def _elsewhere(url: str, token: str | None) -> tuple[str, ...]:
    """Further usual addresses at which an API has a started run."""
    answering = []
    for candidate in {os.environ.get(URL_VARIABLE, DEFAULT_URL).rstrip("/"), DEFAULT_URL} - {
        url
    }:
        try:
            # The token belongs to the first address.
            if document(f"{candidate}/status", SERVER_TIMEOUT_S).get("state") == "STARTED":
                answering.append(candidate)
        except Silent:
            continue
    return tuple(answering)


def address_in(folder: Path) -> str | None:
    """The address of the API of a run, from the files of its launcher."""
    for name in ("launch/wiring.yaml", "commands.txt"):
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except OSError:
            continue
        for word in ('"atropos_url": "', "--atropos-url "):
            if word in text:
                return text.partition(word)[2].split()[0].strip('",')
    return None
