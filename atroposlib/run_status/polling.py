"""GET requests at a rollout API for people who ask how a run is: its status and its verdict.

The token is sent to the API alone, and no redirect or proxy is followed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from atroposlib.run_status.evidence import Evidence, Finding, RunSample
from atroposlib.run_status.rules_processes import two_apis
from atroposlib.run_status.verdict import cause_line, judge

URL_VARIABLE, DEFAULT_URL = "ATROPOS_API_URL", "http://127.0.0.1:8000"
API_TIMEOUT_S, ELSEWHERE_TIMEOUT_S = 5.0, 1.0
MAX_BYTES = 2**24
ENDPOINT = "launch/endpoints/api"
_ADDRESS = re.compile(r"""(?:"atropos_url": "|--atropos-url )([^\s",]+)""")


class Silent(Exception):
    """No usable answer; the message has the reason."""


@dataclass(frozen=True)
class RunReport:
    """Answer to how a run is: the status and the verdict, as in GET /status."""

    url: str
    at: float  # s since the epoch, clock of the API where its answer has a time
    status: Mapping[str, Any] | None  # None: no answer
    verdict: Mapping[str, Any]
    refused: bool = False  # an API is there, and refuses this caller


def poll(url: str, has_token: bool = True) -> RunReport:
    """The report of the API at ``url``; without an answer the verdict has the reason.

    Args:
        has_token: send ATROPOS_API_TOKEN; an address out of a file may be anything.
    """
    url = url.rstrip("/")
    token = os.environ.get("ATROPOS_API_TOKEN") if has_token else None
    began = time.time()
    try:
        status, api_time = _document(f"{url}/status", API_TIMEOUT_S, token)
        if "verdict" not in status:
            raise Silent("the answer has no verdict: an older rollout API, or another program")
    except Silent as silent:
        problem = _problem_of_store(url) or str(silent)
        sample = RunSample(began, problem=problem)
        verdict = asdict(judge(Evidence(url, sample, sample)))
        return RunReport(url, began, None, verdict, refused="status 40" in problem)
    verdict = status.pop("verdict")
    if (elsewhere := _another_api(url, status)) is not None:
        verdict = _led_by(elsewhere, verdict)
    return RunReport(url, api_time or began, status, verdict)


def get(url: str, timeout_s: float, token: str | None = None) -> tuple[str, float]:
    """The body of a successful GET, and the server's time (s; 0 if it names none).

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
            reached = "connected, no answer"
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("GET", target, headers=headers)
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


def _document(url: str, timeout_s: float, token: str | None) -> tuple[dict[str, Any], float]:
    body, at = get(url, timeout_s, token)
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Silent("the answer is no JSON: another program listens there") from error
    if not isinstance(parsed, dict):
        raise Silent("the answer is no object: another program listens there")
    return parsed, at


def _problem_of_store(url: str) -> str:
    """The problem that GET /health reports, which answers where a silent store cannot."""
    try:
        get(f"{url}/health", API_TIMEOUT_S)
    except Silent as silent:
        return str(silent) if "store_silent" in str(silent) else ""
    return ""


def _another_api(url: str, status: Mapping[str, Any]) -> Finding | None:
    """The finding that a run goes on at another usual address, and waits here.

    Only a caller can know it: the API asks no server.
    """
    if status.get("state") == "STARTED":
        return None
    candidates = {os.environ.get(URL_VARIABLE, DEFAULT_URL).rstrip("/"), DEFAULT_URL} - {url}
    answering = []
    for candidate in candidates:
        try:
            # The token belongs to the first address.
            there, _ = _document(f"{candidate}/status", ELSEWHERE_TIMEOUT_S, None)
        except Silent:
            continue
        if there.get("state") == "STARTED":
            answering.append(candidate)
    sample = RunSample(time.time(), status, elsewhere=tuple(answering))
    return two_apis(Evidence(url, sample, sample))


def _led_by(stuck: Finding, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with a finding of the caller in front, which explains the absent trainer."""
    known = [finding for finding in verdict["findings"] if finding["key"] != "no-trainer"]
    return {
        **verdict,
        "state": "stuck",
        "line": cause_line(stuck),
        "remedy": stuck.remedy,
        "findings": [asdict(stuck), *known],
    }


def address_in(folder: Path) -> str | None:
    """The address of the API of a run, from the files of its launcher."""
    for name in ("launch/wiring.yaml", "commands.txt"):
        if (match := _ADDRESS.search(_text_of(folder / name))) is not None:
            address = match[1]
            # On a cluster the API writes its address into a file of the run.
            is_file = address.startswith("file://")
            return _text_of(folder / ENDPOINT).strip() or None if is_file else address
    return None


def _text_of(path: Path) -> str:
    """The text of a file; empty for a file that cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
