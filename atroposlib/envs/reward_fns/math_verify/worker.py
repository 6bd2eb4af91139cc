"""The process behind ``math_answer``: one JSON line in, one out, until stdin closes."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from atroposlib.errors import AtroposError, boundary


def equal(text: str, gold: str) -> bool:
    """Whether math-verify finds both the same; its own timeouts are off, the caller kills.

    A box comes first; beside it only an answer that is announced as one counts.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    latex = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]

    def read(source: str, strict: bool) -> Any:
        return parse(
            source,
            latex,
            extraction_mode="first_match",
            parsing_timeout=None,
            raise_on_error=strict,
        )

    expected, given = read(gold, True), read(text, False)
    return bool(verify(expected, given, timeout_seconds=None, raise_on_error=True))


def main() -> None:
    """Answer ``{"text", "gold"}`` with ``{"equal"}`` or ``{"error"}``."""
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    import math_verify  # noqa: F401  (paid before the first check, whose time is bounded)

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            with boundary("math_answer", question["text"], "verify"):
                reply = {"equal": equal(question["text"], question["gold"])}
        except AtroposError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        else:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
