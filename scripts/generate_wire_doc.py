"""Fill docs/wire.md from the responses of the running API; `--check` only compares.

    python scripts/generate_wire_doc.py [--check]

The prose of the page is written by hand. What stands between `<!-- NAME -->` and
`<!-- /NAME -->` comes from here: examples of a scripted session (`wire_session.py`), the
tables of endpoints and errors from the code that answers, the record from `wire.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "wire.md"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import wire_session  # noqa: E402
from generated import refresh  # noqa: E402
from wire_session import Exchange  # noqa: E402

from atroposlib.api.guards.auth import SCOPES_OF  # noqa: E402
from atroposlib.api.web.errors_http import STATUS_OF  # noqa: E402
from atroposlib.wire import SampledSpan, ScoredData  # noqa: E402
from atroposlib.wire.binary import pack_group  # noqa: E402

BLOCK = re.compile(r"(<!-- (?P<name>[^/\n][^\n]*?) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
PAGES = ("/docs", "/redoc", "/openapi.json", "/ui", "/ui/", "/ui/{asset}")
# What a caller does about each word; a word that is missing here fails the generator.
ADVICE = {
    "malformed": "correct the sender; the same bytes never pass",
    "unauthorized": "send a valid token",
    "forbidden": "use a token of the scope and the environment that the call needs",
    "unknown_env": "`POST /register-env` again; groups of the old run are void",
    "unknown_group": "list what there is: `GET /explore/rollouts`",
    "not_registered": "the trainer registers; environments ask again later",
    "fenced": "stop: another trainer, or a later delivery, owns the batch",
    "run_taken": "stop the trainer that `detail` names, or register with `take_over`",
    "cannot_rewind": "start from the checkpoint of the trainer that ran before, or a new run",
    "key_conflict": "use a fresh key for a different group",
    "uncertified": "sample through a session of this release; `detail` names row and claim",
    "invalid": "correct the sender; `detail` names field and index. Nothing was kept",
    "run_changed": "send the same again",
    "corrupt_payload": "claim again: the sound groups come in another batch",
    "store_full": "send the same again later",
    "store_failed": "send the same again later; the operator looks at the log",
}


def page(text: str) -> str:
    """``text`` with every block filled anew."""
    blocks = all_blocks()
    unknown = [m["name"] for m in BLOCK.finditer(text) if m["name"] not in blocks]
    if unknown:
        raise SystemExit(f"docs/wire.md has blocks that nothing fills: {unknown}")
    return BLOCK.sub(lambda m: m[1] + blocks[m["name"]] + m[3], text)


def all_blocks() -> dict[str, str]:
    examples = asyncio.run(wire_session.record())
    blocks = {f"example: {name}": example(text) for name, text in examples.items()}
    return blocks | {
        "endpoints": endpoints(),
        "errors": errors(),
        "record": code_block("python", inspect.getsource(ScoredData)),
        "span": code_block("python", inspect.getsource(SampledSpan)),
        "bytes": group_in_bytes(),
    }


def example(exchange: Exchange) -> str:
    return code_block("http", exchange.request) + code_block("http", exchange.reply)


def code_block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def endpoints() -> str:
    rows = ["| call | token |", "|---|---|"]
    for (method, path), scopes in SCOPES_OF.items():
        if path not in PAGES:
            needed = " or ".join(sorted(scope.value for scope in scopes)) or "none"
            rows.append(f"| `{method} {path}` | {needed} |")
    return "\n".join(rows) + "\n"


def errors() -> str:
    rows = ["| status | `status` | when | what to do |", "|---|---|---|---|"]
    for kind, (code, word) in sorted(STATUS_OF.items(), key=lambda item: item[1][0]):
        when = (kind.__doc__ or "").strip().splitlines()[0]
        shown = "absent" if code == 422 else f"`{word}`"
        rows.append(f"| {code} | {shown} | {when} | {ADVICE[word]} |")
    return "\n".join(rows) + "\n"


# --- bytes ---------------------------------------------------------------------------------


def group_in_bytes() -> str:
    """A group as JSON, its safetensors header, and every byte of the frame around it."""
    group = wire_session.group(7, env_id=0, idempotency_key="env-a-2")
    file = pack_group(group, compress=False)
    length = struct.unpack_from("<Q", file)[0]
    head: dict[str, Any] = json.loads(file[8 : 8 + length])
    frame = struct.pack("<Q", len(file)) + file
    rows = [
        row(0, frame[:8], f"length of the file, {len(file)}"),
        row(8, frame[8:16], f"length of the header, {length}"),
        f"{16:06x}  ... the header, {length} bytes of JSON, padded with spaces ...",
    ]
    tensors = {k: v for k, v in head.items() if k != "__metadata__"}
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = (16 + length + offset for offset in tensor["data_offsets"])
        shape = ", ".join(str(n) for n in tensor["shape"])
        note = f"{name}: {tensor['dtype']} [{shape}]"
        for at in range(start, end, 16):
            rows.append(row(at, frame[at : min(at + 16, end)], note if at == start else ""))
    return (
        code_block("json", wire_session.pretty(group))
        + "The header of its file:\n\n"
        + code_block("json", wire_session.pretty(head))
        + "The frame, byte by byte:\n\n"
        + code_block("text", "\n".join(rows))
    )


def row(at: int, data: bytes, note: str) -> str:
    return f"{at:06x}  {data.hex(' '):<47}  {note}".rstrip()


if __name__ == "__main__":
    stale = "docs/wire.md does not match the API; run: make wire"
    sys.exit(refresh(__doc__ or "", TARGET, page, stale))
