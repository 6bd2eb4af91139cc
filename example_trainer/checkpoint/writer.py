"""Background writing of recovery checkpoints, never two at a time, by all ranks together.

    loop of every rank     shards in main memory --start--> train on
    thread of every rank                  write and sync its files --report-->.
    thread of rank 0       write and sync its files, wait for all reports, seal, rename, commit

Ranks that see the directory of rank 0 write into it. Ranks on a host without that disk send
their shards to rank 0 before training goes on. Reports go through the store of the process
group, so that the report of a full disk arrives.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from atroposlib.errors import CheckpointError, surviving
from example_trainer.checkpoint.shards import Shard, Written, write_shards
from example_trainer.checkpoint.snapshots import Snapshots, seal
from example_trainer.checkpoint.transfer import send_to_rank0
from example_trainer.distributed import collectives
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.settings.run import RECOVERY_WRITE_S
from example_trainer.state import Stopped

logger = logging.getLogger(__name__)
CLOSE_S = 60.0  # wait for a pending checkpoint when the trainer ends by a signal or an error
POLL_S = 0.2


@dataclass(frozen=True)
class _Job:
    """A checkpoint to write."""

    step: int
    draft: Path
    key: str  # prefix of the reports' keys in the store
    shards: Sequence[Shard]
    silent: Sequence[int]  # ranks whose shards rank 0 writes
    documents: Mapping[str, Any]
    sealed: ExitStack  # closes the draft; of rank 0
    on_whole: Callable[[], None]  # on rank 0, once it is the latest


class SnapshotWriter:
    """Writes checkpoints in a thread of each rank.

    Args:
        note: called with the name of a wait.
    """

    def __init__(
        self, world: Ranks, snapshots: Snapshots, note: Callable[[str], None]
    ) -> None:
        self._world, self._snapshots, self._note = world, snapshots, note
        self._thread: threading.Thread | None = None
        self._step = 0
        self._error: Exception | None = None
        self._is_whole = False  # on disk; its commit may be under way
        self._abandoned = threading.Event()
        self._figures: dict[str, float] = {}

    def start(
        self,
        step: int,
        shards: Sequence[Shard],
        documents: Mapping[str, Any],
        on_whole: Callable[[], None],
    ) -> None:
        """Begin to write a checkpoint; its predecessor must be finished. Collective.

        Args:
            on_whole: called on rank 0, in its thread, when the checkpoint is the latest.
        """
        world = self._world
        sealed = ExitStack()

        def open_draft() -> tuple[str, str]:
            draft = sealed.enter_context(self._snapshots.draft(step))
            key = uuid.uuid4().hex
            (draft / key).touch()
            return str(draft), key

        directory, key = run_on_rank0(world, open_draft)
        draft = Path(directory)
        sees = collectives.gather_flags(world, (draft / key).exists())
        if world.is_rank0:
            (draft / key).unlink()
        silent = [rank for rank, flag in enumerate(sees) if not flag]
        shards = send_to_rank0(world, silent, shards)
        job = _Job(step, draft, f"recover/{key}", shards, silent, documents, sealed, on_whole)
        self._step, self._error, self._is_whole = step, None, False
        self._abandoned.clear()
        self._thread = threading.Thread(
            target=self._run, args=(job,), name=f"recovery {step}", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the last write, on rank 0."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until the last checkpoint is the latest on disk. Collective.

        Raises:
            CheckpointError: it could not be written, or not within ``RECOVERY_WRITE_S``.
        """
        run_on_rank0(self._world, self._wait)
        if self._thread is not None:
            self._thread.join()  # on ranks above 0: rank 0 had their reports
            self._thread = None

    def close(self, bound_s: float = CLOSE_S) -> None:
        """Finish the last checkpoint within a bound, or abandon it. Not collective.

        An abandoned checkpoint stays behind as a draft, which the next start removes. A commit
        that is not sent is sent by the next start.
        """
        thread = self._thread
        if thread is None:
            return
        thread.join(bound_s)
        if thread.is_alive() and not self._is_whole:
            self._abandoned.set()
            logger.warning(
                f"the recovery checkpoint of step {self._step} is abandoned: it was not written"
                f" within {bound_s:.0f} s; the one before it is used"
            )
        elif self._error is not None:
            logger.warning(f"the last recovery checkpoint was not written: {self._error}")

    def take_figures(self) -> dict[str, float]:
        """Return seconds and bytes of a checkpoint that was finished since the last call."""
        figures, self._figures = self._figures, {}
        return figures

    def _wait(self) -> None:
        started = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            waited_s = time.monotonic() - started
            checkpoint = f"the recovery checkpoint of step {self._step}"
            if self._is_whole:  # the client bounds this wait, and reports it
                self._note(f"the commit of {checkpoint}; {waited_s:.0f} s")
            elif waited_s > RECOVERY_WRITE_S:
                self._abandoned.set()
                raise CheckpointError(
                    f"{checkpoint} was not written within {RECOVERY_WRITE_S:.0f} s: save_path"
                    " is on a disk that is too slow or hangs. Choose another one, or save"
                    " less often"
                )
            else:
                self._note(
                    f"the writer of {checkpoint}; {waited_s:.0f} s of at most"
                    f" {RECOVERY_WRITE_S:.0f} s"
                )
            self._thread.join(1.0)
        self.check()

    # --- in the thread ------------------------------------------------------------------

    def _run(self, job: _Job) -> None:
        work = self._write_checkpoint if self._world.is_rank0 else self._write_part
        with surviving(lambda error: self._fail(job, error)), suppress(Stopped):
            work(job)

    def _fail(self, job: _Job, error: Exception) -> None:
        self._error = error
        if not self._world.is_rank0 and not self._abandoned.is_set():
            self._report(job, {"error": f"rank {self._world.number}: {error}"})

    def _proceed(self) -> None:
        if self._abandoned.is_set():
            raise CheckpointError(f"the checkpoint of step {self._step} was abandoned")

    def _write_part(self, job: _Job) -> None:
        rank = self._world.number
        if rank not in job.silent:
            written = write_shards(job.draft, rank, job.shards, self._proceed)
            self._report(job, {"written": asdict(written)})

    def _write_checkpoint(self, job: _Job) -> None:
        started = time.monotonic()
        with job.sealed:
            written = write_shards(job.draft, 0, job.shards, self._proceed)
            for rank in range(1, self._world.count):
                if rank not in job.silent:
                    written.add(self._report_of(job, rank))
            self._proceed()
            seal(job.draft, written, job.documents)
        self._is_whole = True
        self._figures = {
            "recovery_write_s": round(time.monotonic() - started, 3),
            "recovery_bytes": sum(int(entry["bytes"]) for entry in written.files.values()),
        }
        job.on_whole()

    def _report(self, job: _Job, report: Mapping[str, Any]) -> None:
        key = f"{job.key}/{self._world.number}"
        self._world.store.set(key, msgspec.json.encode(report))

    def _report_of(self, job: _Job, rank: int) -> Written:
        """The files of another rank, once they are synced."""
        store, key = self._world.store, f"{job.key}/{rank}"
        while not store.check([key]):
            self._proceed()
            time.sleep(POLL_S)
        report = msgspec.json.decode(store.get(key))
        store.delete_key(key)
        if "error" in report:
            raise CheckpointError(report["error"])
        return Written(**report["written"])
