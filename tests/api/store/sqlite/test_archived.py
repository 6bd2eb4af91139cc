"""Archive over the payload log: a full disk, and kill -9."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.api.store.sqlite import RESERVE_BYTES, SqliteStore
from atroposlib.errors import StoreFull
from tests.api.store.sql.test_archived import KEPT, retired
from tests.api.store.store_talk import ack, claim, group, put, register

ROOT = Path(__file__).resolve().parents[4]


def test_on_a_full_disk_the_archive_gives_way_and_posts_go_on(tmp_path):
    free = [10**9]
    store = SqliteStore(
        tmp_path, archive_bytes=KEPT, segment_bytes=100, free_bytes=lambda _: free[0]
    )
    generation = register(store)
    for mark in "abc":
        put(store, group(mark * 100, 8))
        ack(store, claim(store, generation), commit=True)
    put(store, group("d" * 20, 8))
    free[0] = 0
    with pytest.raises(StoreFull):
        put(store, group("e" * 50, 8))
    assert retired(store, 1) is None  # freed by the commit of the rejected put
    free[0] = RESERVE_BYTES + 60
    put(store, group("e" * 50, 8))
    assert store.read([4])[0] == b"d" * 20
    store.close()


CHILD = """
import sys
import uuid
from pathlib import Path
from atroposlib.api.store.sqlite import SqliteStore
from tests.api.store.sql.test_archived import KEPT, retired
from tests.api.store.store_talk import ack, claim, group, put, register

store = SqliteStore(Path(sys.argv[1]), archive_bytes=2**30, segment_bytes=2000)
generation = register(store)
while True:
    [one] = put(store, group(b"7" * 300, 8, key=uuid.uuid4().hex))
    print("put", one.gid, flush=True)
    batch = claim(store, generation, choose=first_of(8))
    ack(store, batch, commit=True)
    print("acked", batch.gids[0], flush=True)
"""


@pytest.mark.slow
def test_no_group_is_lost_between_queue_and_archive_by_kill_9(tmp_path):
    acknowledged = set()
    for cycle in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = [child.stdout.readline() for _ in range(5 + 7 * cycle)]
        child.send_signal(signal.SIGKILL)
        lines += child.communicate()[0].splitlines(keepends=True)
        acknowledged |= {int(line.split()[1]) for line in lines if line.endswith("\n")}
        store = SqliteStore(tmp_path, archive_bytes=2**30, segment_bytes=2000)
        lost = [gid for gid in acknowledged if retired(store, gid) != b"7" * 300]
        store.close()
        assert lost == []
