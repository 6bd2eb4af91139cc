"""Held-out samples of an evaluation that may be ended early: its results so far are in files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import TaskItem
from atroposlib.envs.function_env.rollouts import (
    EvalSample,
    draw_all,
    errors_of_means,
    evaluation_metrics,
)
from atroposlib.envs.runtime.evaluation import report_results

PARTIAL = "partial"  # folder of the results so far, below the folder of the results
PARTIAL_EVERY_S = 2.0


async def draw_held_out(
    config: FunctionEnvConfig,
    items: Sequence[TaskItem],
    draw: Callable[[TaskItem], Awaitable[EvalSample]],
    code: Callable[..., Any],
    folder: str | None,
) -> list[EvalSample]:
    """Samples of the held-out tasks; meanwhile the results so far are below ``folder``."""
    times, finished = config.eval_samples, list[EvalSample]()
    measured = 0  # samples at the last look

    def measure() -> tuple[dict[str, float], dict[str, float]] | None:
        nonlocal measured
        if len(finished) == measured or all(sample.error for sample in finished):
            return None
        measured = len(finished)
        return evaluation_metrics(finished, times), errors_of_means(finished, times)

    directory = None if folder is None else Path(folder)
    async with partial_results(directory, len(items) * times, measure):
        return await draw_all(
            items,
            times,
            draw,
            at_once=config.max_eval_workers,
            tries=config.max_item_retries + 1,
            code=code,
            finished=finished.append,
        )


@asynccontextmanager
async def partial_results(
    directory: Path | None,
    of_samples: int,
    measure: Callable[[], tuple[Mapping[str, Any], Mapping[str, float]] | None],
    every_s: float = PARTIAL_EVERY_S,
) -> AsyncIterator[None]:
    """Keep the results so far in ``directory/partial`` while an evaluation runs.

    They stay where the evaluation is ended early, and are removed at its own end.

    Args:
        directory: of the whole results; None: nothing is written.
        of_samples: samples of the whole evaluation.
        measure: metrics and standard errors so far; None: nothing new.
    """

    async def write() -> None:
        while directory is not None:
            await asyncio.sleep(every_s)
            if (results := measure()) is not None:
                report_results(
                    directory / PARTIAL,
                    results[0],
                    task=PARTIAL,
                    model_name=None,
                    start_time=None,
                    end_time=None,
                    generation_parameters={},
                    samples=None,
                    measured_at={"partial_of": of_samples},
                    verbose=False,
                    stderr=results[1],
                )

    writing = asyncio.create_task(write(), name="partial results")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    if directory is not None:
        shutil.rmtree(directory / PARTIAL, ignore_errors=True)
