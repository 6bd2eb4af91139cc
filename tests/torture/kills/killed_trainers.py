"""kill -9 of the trainer at random moments; the run that comes out is the uninterrupted one.

A run of six steps loses its trainer up to six times: in a step, in a save, in a publish,
while starting, anywhere. Compared are batches, metrics, learning rates, random numbers,
weights and optimizer, bit for bit; and all that is on disk after a kill loads.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.torture.figures import Figures, fast_folder
from tests.trainer.checkpoint import killed_trainer as killed

STEPS = 6
MOST_KILLS = 6  # of one run
LONGEST_LIFE_S = 6.0


def trainer_campaign(kills: int, seed: int) -> Figures:
    """Raises AssertionError at the first difference; otherwise the figures."""
    from atroposlib.testing.tiny import write_tiny_model

    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    with fast_folder() as folder:
        model = write_tiny_model(folder / "model", seed=0)
        with killed.world(folder / "straight", model, STEPS) as straight:
            straight.start()
            straight.finish()
            expected = killed.outcome(straight)
        while counts["kills"] < kills:
            with killed.world(folder / f"broken-{counts['runs']}", model, STEPS) as broken:
                _interrupt(broken, rng, counts, min(MOST_KILLS, kills - counts["kills"]))
                broken.start()
                broken.finish()
                counts["checkpoints loaded"] += killed.every_checkpoint_loads(broken)
                counts["runs"] += 1
                actual = killed.outcome(broken)
                for name, value in expected.items():
                    assert actual[name] == value, f"run {counts['runs']}, seed {seed}: {name}"
    return Figures({"differences": 0, **counts})


def _interrupt(
    broken: killed.Ranks, rng: random.Random, counts: Counter[str], most: int
) -> None:
    for _ in range(most):
        name = rng.choice(("anywhere", *killed.MOMENTS))
        if name == "anywhere":
            moment = _at(time.monotonic() + rng.uniform(0.0, LONGEST_LIFE_S))
        else:
            moment = killed.after(rng.randrange(STEPS), killed.MOMENTS[name])
        broken.start()
        if not broken.kill_when(moment):
            return  # it was done before that
        counts["kills"] += 1
        counts[f"in {name}" if name in killed.MOMENTS else name] += 1
        counts["checkpoints loaded"] += killed.every_checkpoint_loads(broken)


def _at(end: float) -> Callable[[killed.Ranks], bool]:
    return lambda _: time.monotonic() >= end
