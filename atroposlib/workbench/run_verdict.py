"""The verdict on a run of a folder: of its API while the run goes on, else of its files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import msgspec

from atroposlib.run_status.ended import ended_verdict
from atroposlib.run_status.polling import DEFAULT_URL, URL_VARIABLE, address_in, poll
from atroposlib.run_status.verdict import StatusVerdict
from atroposlib.utils.command.folder_lock import HOLDER
from atroposlib.utils.command.run_folder import METRICS
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.workbench.run_folders import RunDirectory, RunFiles

_HOLDER = re.compile(r"process (\d+) on (\S+), since ")


def run_verdict(run: RunDirectory, files: RunFiles) -> tuple[Mapping[str, Any], str | None]:
    """The verdict, and the address of the API of a run that goes on."""
    outcome = files.outcome()
    holder = run.path / HOLDER
    # A killed launcher leaves its name and the word that the run goes on.
    is_over = outcome is not None and (
        outcome.state != "running" or (holder.exists() and not is_held(holder))
    )
    address = None if is_over else address_in(run.path)
    if address is not None:
        report = poll(address, has_token=is_trusted(address))
        is_own = report.status is None or is_same_run(report.status, files)
        if is_own and (report.verdict["state"] != "unreachable" or report.refused):
            return report.verdict, address
    if run.file(METRICS) is None and run.data == run.path:
        return asdict(data_verdict(run, files)), None
    steps = None
    if run.file(METRICS):
        steps = [row for row in files.steps() if row["step"] > 0]  # 0: an evaluation alone
    return asdict(ended_verdict(run.path, steps)), None


def is_trusted(address: str) -> bool:
    """Whether the user's token may go to an address that stands in a file of a run."""
    named = urlsplit(os.environ.get(URL_VARIABLE, DEFAULT_URL)).hostname
    with suppress(ValueError):
        return urlsplit(address).hostname in (*LOOPBACK_HOSTS, "::1", named)
    return False


def is_same_run(status: Mapping[str, Any], files: RunFiles) -> bool:
    """Whether the API serves the run of the folder: another run may have got its port since."""
    index = files.index()
    if index is None:
        return True
    with suppress(apsw.Error, msgspec.MsgspecError):
        own, served = index.run.run_id, status.get("run_id")
        return not own or not served or own == served
    return True


def is_held(holder: Path) -> bool:
    """Whether a process of this machine, or any process of another, works in a folder."""
    try:
        match = _HOLDER.match(holder.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
    if match is None or match[2] != socket.gethostname():
        return True
    return Path(f"/proc/{match[1]}").exists() if Path("/proc/self").exists() else True


def data_verdict(run: RunDirectory, files: RunFiles) -> StatusVerdict:
    """The verdict on a data directory without a launcher's folder around it."""
    steps = files.steps()
    place = f"step {int(steps[-1]['step'])}" if steps else "no step was reported"
    if is_held(run.path / HOLDER):
        line = f"{place}; its API is at work, and no file of the run has its address"
        return StatusVerdict("unreachable", line, "atropos top --api-url URL")
    return StatusVerdict("stopped", place)
