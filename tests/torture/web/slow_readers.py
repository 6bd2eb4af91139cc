"""Trainers that request a large batch and do not read it: memory is bounded, no group lost."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, closing

from tests.torture.figures import MB, Figures, fast_folder
from tests.torture.kills.api_process import ApiProcess, Caller
from tests.torture.web.bombs import forget_peak, peak_rss
from tests.torture.web.hostile import group

READERS = 8  # each costs two windows of the reply, about 4 MB
GROUPS = 16
ROWS, TOKENS = 16, 4096  # per group: two megabytes of JSON
MAY_TAKE = 96 * MB  # 53 to 66 are taken; the whole replies are 256 MB


def big_group(i: int) -> dict[str, object]:
    row = list(range(100_000, 100_000 + TOKENS))
    return group() | {
        "tokens": [row] * ROWS,
        "masks": [row] * ROWS,
        "scores": [float(i)] * ROWS,
        "inference_logprobs": [[-0.5] * TOKENS] * ROWS,
    }


def slow_reader_campaign(seconds: int) -> Figures:
    """Readers hold their connections while other calls are answered; then one reads."""
    with fast_folder() as folder:
        api = ApiProcess(folder)
        api.start()
        try:
            with closing(Caller(api.port)) as caller:
                return _campaign(api, caller, seconds)
        finally:
            api.kill()


def _campaign(api: ApiProcess, caller: Caller, seconds: int) -> Figures:
    registration = {
        **{"wandb_group": "", "wandb_project": "", "batch_size": GROUPS * ROWS},
        **{"max_token_len": TOKENS, "checkpoint_dir": "", "save_checkpoint_interval": 1},
        **{"starting_step": 0, "num_steps": 9},
    }
    status, registered = caller.call("POST", "/register", registration)
    assert status == 200, registered
    for i in range(GROUPS):
        assert caller.call("POST", "/scored_data", big_group(i))[0] == 200
    wish = {"generation": registered["generation"], "claim_id": "slow"}
    forget_peak(api.pid)
    before, worst_s = peak_rss(api.pid), 0.0
    with ExitStack() as stack:
        readers = [stack.enter_context(begin_to_read(api.port, wish)) for _ in range(READERS)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = time.monotonic()
            assert caller.call("GET", "/status")[0] == 200
            worst_s = max(worst_s, time.monotonic() - asked)
        cut = sum(was_cut(reader) for reader in readers)
    took = peak_rss(api.pid) - before
    assert took < MAY_TAKE, f"{took / MB:.0f} MB for {READERS} slow readers"
    status, got = caller.call("POST", "/batches/claim", wish)
    assert status == 200 and [one["scores"][0] for one in got["batch"]] == list(range(GROUPS))
    figures = Figures({"slow readers": READERS, "s": seconds, "cut off": cut, "lost": 0})
    figures["MB at most"] = took / MB
    figures["s worst status"] = worst_s
    return figures


def begin_to_read(port: int, wish: dict[str, object]) -> socket.socket:
    """Send the request, and read no more than the first bytes of the response."""
    body = json.dumps(wish).encode()
    head = (
        b"POST /batches/claim HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    reader = socket.create_connection(("127.0.0.1", port), timeout=300)
    reader.sendall(head + body)
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


def was_cut(reader: socket.socket) -> bool:
    """Whether the API closed the connection: the sent bytes, then end of file."""
    reader.settimeout(0.2)
    try:
        while reader.recv(MB):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
