"""The process behind ``math_answer``: one JSON line in, one out, until stdin closes."""

from __future__ import annotations

import json
import logging
import sys

from atroposlib.errors import AtroposError, boundary


def equal(answer: str, gold: str) -> bool:
    """Whether math-verify finds both the same; its own timeouts are off, the caller kills."""
    from math_verify import LatexExtractionConfig, parse, verify

    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    expected = parse(f"\\boxed{{{gold}}}", latex, parsing_timeout=None, raise_on_error=True)
    given = parse(f"\\boxed{{{answer}}}", latex, parsing_timeout=None)
    return bool(verify(expected, given, timeout_seconds=None, raise_on_error=True))


def main() -> None:
    """Answer ``{"answer", "gold"}`` with ``{"equal"}`` or ``{"error"}``."""
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    import math_verify  # noqa: F401  (paid before the first check, whose time is bounded)

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            with boundary("math_answer", question["answer"], "verify"):
                reply = {"equal": equal(question["answer"], question["gold"])}
        except AtroposError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        else:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
