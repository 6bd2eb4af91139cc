"""schemathesis against a running API: every operation of the OpenAPI document, no 5xx."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.torture.figures import Figures, fast_folder
from tests.torture.kills.api_process import ApiProcess, Caller

# An endless stream of events, whose end no client sees; frames, which schemathesis cannot write.
LEFT_OUT = ("/events", "/batches/{no}/notes")
PHASES = "examples,coverage,fuzzing,stateful"


def schema_campaign(seconds: int, seed: int = 0) -> Figures:
    """Raises AssertionError with the words of schemathesis if an operation fails."""
    with fast_folder() as folder:
        api = ApiProcess(folder)
        api.start()
        try:
            figures = _campaign(api, folder, seconds, seed)
            caller = Caller(api.port)
            assert caller.call("GET", "/status")[0] == 200
            caller.close()
        finally:
            api.kill()
    return figures


def _campaign(api: ApiProcess, folder: Path, seconds: int, seed: int) -> Figures:
    command = [
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis as s; s()", "run"),
        *("--checks", "not_a_server_error", "--phases", PHASES, "--seed", str(seed)),
        *("--max-time", str(seconds), "--request-timeout", "300", "--no-color"),
        *(word for path in LEFT_OUT for word in ("--exclude-path", path)),
        f"http://127.0.0.1:{api.port}/openapi.json",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=3 * seconds + 300
    )
    words = done.stdout + done.stderr
    assert done.returncode == 0, words[-6000:]
    tested = re.search(r"(\d+)\s*/\s*(\d+)", words)
    cases = re.search(r"([\d,]+) generated", words)
    figures = Figures({"s": seconds, "operations failed": 0})
    if tested:
        figures["operations"] = int(tested[2])
    if cases:
        figures["cases"] = int(cases[1].replace(",", ""))
    return figures
