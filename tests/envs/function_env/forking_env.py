"""An environment whose rollouts start and end processes; ``python -m`` runs it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from concurrent.futures import ProcessPoolExecutor

from tests.envs.toys import ToyEnv

FORK = multiprocessing.get_context("fork")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


class ForkingEnv(ToyEnv):
    async def collect_trajectories(self, item):
        with FORK.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        late = FORK.Process(target=signal.pause)
        late.start()
        late.terminate()
        late.join()
        assert late.exitcode == -signal.SIGTERM
        with ProcessPoolExecutor(2, FORK) as pool:
            assert isinstance(pool.submit(interrupt).exception(), KeyboardInterrupt)
        return await super().collect_trajectories(item)


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # forks and threads
    ForkingEnv.cli()
