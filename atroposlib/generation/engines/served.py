"""Model behind an address: its name, and its directory or hub name, by GET /v1/models.

vLLM and atropos-infer list the directory as ``root``, SGLang in /get_model_info.
"""

from __future__ import annotations

from pathlib import Path

from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.generation.engines.http import HttpClient

UNNAMED = "default"  # model_name where none is set
# owned_by of servers that serve listed models only.
LOCAL, SGLANG, VLLM = "atropos-local", "sglang", "vllm"
GENERATION_PATHS = ("/generate", "/generate/", "/v1/completions", "/v1/chat/completions")


async def served_model(http: HttpClient, root: str, wanted: str) -> tuple[str, str | None]:
    """The name that requests use for ``wanted``; the directory of the served model, or None."""
    listed = await http.field("GET", f"{root}/v1/models", "data")
    cards = [card for card in listed or () if isinstance(card, dict)]
    if not cards:
        await _require_generation(http, root)
        return wanted, None
    bases = [card for card in cards if not card.get("parent")] or cards  # adapters have one
    ids = list(dict.fromkeys(str(card.get("id")) for card in [*bases, *cards]))
    owner, roots = bases[0].get("owned_by"), {card.get("root") for card in bases}
    directory = roots.pop() if len(roots) == 1 else None
    if owner == SGLANG:
        directory = await http.field("GET", f"{root}/get_model_info", "tokenizer_path")
    is_path = owner == LOCAL and Path(wanted).resolve() == Path(directory or "").resolve()
    if is_path or wanted == UNNAMED and (directory or len(bases) == 1):
        return ids[0], directory
    adapted = wanted.rpartition(":")[0] if owner == SGLANG else wanted  # base:adapter
    if owner in (LOCAL, SGLANG, VLLM) and not {wanted, adapted}.intersection(ids):
        # vLLM with this route gets the names of adapters while it runs.
        later = await http.send("GET", f"{root}/v1/load_lora_adapter")
        if owner == LOCAL or later.status_code == 404:
            raise ConfigError(
                f"model {wanted!r} is not served at {root}: set --openai.model_name to "
                f"{' or '.join(ids)}, or leave it out"
            )
    return wanted, directory


async def _require_generation(http: HttpClient, root: str) -> None:
    """Require a route that generates: it answers an empty body by 401, 500 or JSON."""
    for path in GENERATION_PATHS:
        found = await http.send("POST", root + path, json={})
        is_json, code = "json" in found.headers.get("content-type", ""), found.status_code
        if code in (502, 503, 504):
            raise InferenceUnavailable(f"POST {root}{path}: status {code}")
        if code in (401, 403, 500) or is_json and code not in (404, 405, 501):
            return
    raise ConfigError(
        f"{root} answers, but is no inference server: correct --openai.base_url, or start one "
        "at a free port: atropos-infer --model MODEL_DIR --port 9001"
    )
