"""Bit flips in the files of a store: a damaged payload is never delivered.

Each flip hits the closed database or the payload log of a small run. Then it is opened and all payloads are
read; a damaged one must be refused by its digest, or SQLite must refuse the file.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

from atroposlib.api.common.records import Claim, NewGroup
from atroposlib.api.decisions.batching import choose, complete_buffer
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import SaveRun
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload, StoreError
from tests.torture.figures import Figures, fast_folder

GROUPS = 16
PAYLOAD_BYTES = 4_000  # so that the database is of the size of the log
REFUSED = "refused by digest"
UNREADABLE = "refused by SQLite"


def filled(folder: Path, rng: random.Random) -> list[bytes]:
    payloads = [rng.randbytes(PAYLOAD_BYTES) for _ in range(GROUPS)]
    store = SqliteStore(folder)
    run = store.do(SaveRun(b"run", 0, fence=True))
    store.put([NewGroup(payload, 4) for payload in payloads], run.revision, complete_buffer)
    claim = Claim(generation=run.generation, size=16, now=0.0, lease_s=9.0)
    store.do(
        ClaimBatch(claim, lambda queue, fair_share: choose(queue, fair_share, batch_size=16))
    )
    store.close()  # the log is in the file now
    return payloads


def flip(file: Path, bit: int) -> None:
    with open(file, "r+b") as handle:
        handle.seek(bit // 8)
        [old] = handle.read(1)
        handle.seek(bit // 8)
        handle.write(bytes([old ^ 1 << bit % 8]))


def read_after_a_flip(folder: Path, payloads: list[bytes]) -> tuple[str, int]:
    """The outcome, and the number of wrong payloads returned."""
    try:
        store = SqliteStore(folder)
    except (StoreError, ConfigError):
        return UNREADABLE, 0
    try:
        got = {}
        for gid in range(1, GROUPS + 1):
            try:
                got[gid] = store.read([gid])[0]
            except CorruptPayload:
                pass
        wrong = sum(data != payloads[gid - 1] for gid, data in got.items())
        return (REFUSED if len(got) < GROUPS else "in unused bytes"), wrong
    except StoreError:
        return UNREADABLE, 0
    finally:
        store.close()


def bit_rot_campaign(flips: int, seed: int = 0) -> Figures:
    """Raises AssertionError if one wrong byte is delivered."""
    rng, seen, wrong = random.Random(seed), Counter[str](), 0
    with fast_folder() as place:
        payloads = filled(place / "good", rng)
        good = [place / "good" / name for name in (DATABASE, "payload-00000001.log")]
        bits = [8 * file.stat().st_size for file in good]
        for i in range(flips):
            folder = place / str(i)
            folder.mkdir()
            for file in good:
                shutil.copy(file, folder / file.name)
            hit = rng.choices(range(len(good)), bits)[0]
            flip(folder / good[hit].name, rng.randrange(bits[hit]))
            what, delivered_wrong = read_after_a_flip(folder, payloads)
            seen[what] += 1
            wrong += delivered_wrong
            shutil.rmtree(folder)
    figures = Figures({"flips": flips, "wrong payloads delivered": wrong, **seen})
    assert wrong == 0, figures.line("bit rot")
    return figures
