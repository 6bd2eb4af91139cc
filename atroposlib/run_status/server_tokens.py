"""Tokens that an inference server generated since its start, by its own counter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from atroposlib.errors import ConfigError
from atroposlib.run_status.polling import API_TIMEOUT_S, Silent, get

# Counters of vLLM and SGLang in GET /metrics; SGLang has it with --enable-metrics.
COUNTERS = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
LOCAL_COUNTER = "generated_tokens_total"  # field of GET /server_info, local server


def counter(text: str, name: str) -> float | None:
    """Return the sum of a counter over its labels, in Prometheus' text format."""
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


def metric_of_engine(text: str) -> float | None:
    """Generated tokens in the metrics of vLLM or SGLang."""
    return next((n for name in COUNTERS if (n := counter(text, name)) is not None), None)


def generated_by(urls: Iterable[str]) -> int:
    """Tokens that the servers at ``urls`` generated since their start.

    Raises:
        ConfigError: a server does not answer, or has no such counter.
    """
    return sum(_generated(url.rstrip("/").removesuffix("/v1")) for url in urls)


def _generated(url: str) -> int:
    number, problem = None, ""
    try:
        text, _ = get(f"{url}/server_info", API_TIMEOUT_S)
        number = json.loads(text).get(LOCAL_COUNTER)
    except (Silent, ValueError, AttributeError) as error:
        problem = str(error)
    if number is None:
        try:
            text, _ = get(f"{url}/metrics", API_TIMEOUT_S)
            number, problem = metric_of_engine(text), f"no {' or '.join(COUNTERS)}"
        except Silent as silent:
            problem = str(silent)
    if number is None:
        raise ConfigError(
            f"{url} gives no count of generated tokens ({problem}); vLLM has it in /metrics, SGLang "
            "with --enable-metrics, the local server in /server_info"
        )
    return int(number)
