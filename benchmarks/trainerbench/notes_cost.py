"""CPU of a step with and without notes of its batch: in turn, in the same process.

The tiny model of the tests is the worst case: a step is as cheap as it can be, and what is noted
of a token costs the same with any model. Counted are the collection during the step, the notes,
their file and its compression; the thread that does the latter three is part of the process.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
import zstandard

from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import MASKED, MASKED_LOGPROB, ScoredData
from atroposlib.wire.binary import concatenate_frames
from atroposlib.wire.notes import pack_notes
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.data.rows import to_rows
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.reports import TokenValues, notes_of
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import StopSignal
from example_trainer.update.optimizer import build_optimizer
from example_trainer.update.step import learn

GROUPS, ROWS, PROMPT, LONGEST = 8, 8, 32, 224  # tokens


def measure(steps: int) -> tuple[list[float], list[float], int]:
    """CPU seconds of steps without and with notes, and the bytes of the notes."""
    torch.set_num_threads(1)
    taken: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        cfg = TrainingConfig(
            model_name=str(write_tiny_model(Path(scratch) / "tiny", seed=0)),
            device="cpu",
            seq_len=PROMPT + LONGEST,
            batch_size=GROUPS * ROWS,
            inference_urls=[],
        )
        policy = loading.load_policy(cfg)
    optimizer, groups, size = build_optimizer(policy, cfg), groups_of(random.Random(0)), 0
    for step in range(2 * steps + 2):
        batch = to_rows(groups, cfg.seq_len)
        prepared = prepare_batch(batch.rows, cfg, step)
        values = TokenValues() if step % 2 else None
        before = time.process_time()
        state = TrainerState("run", step, step, None)
        learn(cfg, policy, optimizer, prepared, state, StopSignal(), values=values)
        if values is not None:
            files = [pack_notes(notes) for notes in notes_of(groups, batch, prepared, values)]
            size = len(zstandard.ZstdCompressor(level=1).compress(concatenate_frames(files)))
        if step > 1:  # the first of each kind create optimizer state and load modules
            taken[step % 2].append(time.process_time() - before)
    return *taken, size


def groups_of(chance: random.Random) -> list[ScoredData]:
    """Groups of random tokens, of random lengths."""
    made = []
    for _ in range(GROUPS):
        prompt = [chance.randrange(5, 40) for _ in range(PROMPT)]
        lengths = [chance.randrange(LONGEST // 4, LONGEST) for _ in range(ROWS)]
        rows = [[chance.randrange(5, 40) for _ in range(n)] for n in lengths]
        made.append(
            ScoredData(
                tokens=[prompt + row for row in rows],
                masks=[[MASKED] * PROMPT + row for row in rows],
                scores=[chance.random() for _ in rows],
                inference_logprobs=[
                    [MASKED_LOGPROB] * PROMPT + [-3.5 - chance.random() for _ in row]
                    for row in rows
                ],
            )
        )
    return made


def report(steps: int) -> None:
    """Print medians and their ratio."""
    off, on, size = measure(steps)
    without, noted = statistics.median(off), statistics.median(on)
    print(
        f"{GROUPS * ROWS} rows, {steps} steps of each kind, medians; notes of {size:,} bytes"
    )
    print(
        f"notes off {without * 1e3:.1f} ms of CPU, on {noted * 1e3:.1f}: x {noted / without:.3f}"
    )
