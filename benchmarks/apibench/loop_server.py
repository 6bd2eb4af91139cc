"""The rollout API on SQLite under a chosen event loop and HTTP parser.

python loop_server.py PORT DATA_DIR uvloop|asyncio httptools|h11
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store


def main(port: str, data_dir: str, loop: str, protocol: str) -> None:
    app = create_app(open_store("sqlite", Path(data_dir)))
    uvicorn.run(
        app,
        port=int(port),
        loop=loop,
        http=protocol,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
