"""Evaluations as scripts: a class with items and ``run_item``, run by ``eval_runner``.

    class Arithmetic(EvalBase):
        def setup_data(self): return [{"question": "2 + 2 = ?", "answer": "4"}]
        async def run_item(self, server, data_item): ...  # -> metrics, samples

    asyncio.run(eval_runner(Arithmetic(pass_at_n=1, temperature=0.6, eval_dir="results")))

Failed items are counted in ``failed_items``; averages are over the other items.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.envs.rollout.causes import Repeats, gather_probed
from atroposlib.envs.rollout.groups import mean_metrics, standard_errors
from atroposlib.envs.runtime.evaluation import report_results
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.generation.configs import LOCAL_URLS, APIServerConfig
from atroposlib.generation.engines.http import server_root
from atroposlib.generation.routing.manager import ServerManager

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)

ItemResult = tuple[dict[str, float], list[Mapping[str, Any]]]  # metrics, samples


def pass_at_k(m: float, c: float, k: float) -> float:
    """Probability that ``k`` of ``m`` samples, drawn without replacement, include a right sample.

    ``c`` of the ``m`` samples are right: the unbiased estimator of pass@k of Chen et al. (2021),
    arXiv 2107.03374, equation 1. A sum of scores may give ``c`` as a float.

    Raises:
        ValueError: a number is not whole, or not 0 <= c <= m and 1 <= k <= m.
    """
    if not all(float(count).is_integer() for count in (m, c, k)):
        raise ValueError(f"pass_at_k: {m}, {c} and {k} count samples: write whole numbers")
    m, c, k = int(m), int(c), int(k)
    if not (0 <= c <= m and 1 <= k <= m):
        raise ValueError(f"pass_at_k: {c} right of {m} samples, {k} drawn, is impossible")
    if m - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / j for j in range(m - c + 1, m + 1))


def evaluate_log(
    metrics: Mapping[str, Any],
    eval_dir: str | Path | None = None,
    task_name: str | None = None,
    model_name: str | None = None,
    start_time: float | None = None,
    end_time: float | None = None,
    generation_parameters: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] | None = None,
    verbose: bool = True,
    stderr: Mapping[str, float] | None = None,
) -> None:
    """Print the table, and write ``metrics.json`` and ``samples.jsonl`` into ``eval_dir``.

    Times are seconds since the epoch. Without ``eval_dir`` nothing is written.
    """
    task = task_name or "evaluation"
    if eval_dir is None:
        logger.warning("%s: no eval_dir: the results are not written to files", task)
    report_results(
        None if eval_dir is None else Path(eval_dir),
        metrics,
        task=task,
        model_name=model_name,
        start_time=start_time,
        end_time=end_time,
        generation_parameters=generation_parameters or {},
        samples=samples,
        verbose=verbose,
        stderr=stderr,
    )


class EvalBase(ABC):
    """An evaluation; further keyword arguments become attributes.

    Known attributes: temperature, top_p, max_tokens (see :meth:`get_generation_params`),
    eval_dir (directory of results), model_name (for the results, else the server's),
    max_concurrency (items at once) and verbose.

    Args:
        pass_at_n: number of samples of an item that count as one attempt.
        pass_at_n_samples: number of samples drawn to estimate the rate.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int | None = None
    eval_dir: str | Path | None = None
    model_name: str | None = None
    max_concurrency: int = 64  # items at once
    verbose: bool = True

    def __init__(self, pass_at_n: int = 1, pass_at_n_samples: int = 1, **kwargs: Any) -> None:
        self.pass_at_n = pass_at_n
        self.pass_at_n_samples = pass_at_n_samples
        for name, value in kwargs.items():
            setattr(self, name, value)
        if self.max_concurrency < 1:
            raise ConfigError("max_concurrency: at least 1")
        rows = self.setup_data()
        if rows is not None:  # some evaluations set ``self.data`` themselves
            self.data: Iterable[Any] = rows

    @abstractmethod
    def setup_data(self) -> Iterable[Any] | None:
        """Return the items; called once, by the constructor."""

    @abstractmethod
    async def run_item(
        self, server: ServerManager, data_item: Any
    ) -> tuple[Mapping[str, float], Sequence[Mapping[str, Any]]]:
        """Return the metrics of an item, and its samples for ``samples.jsonl``."""

    async def chat_completion(
        self, server: ServerManager, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> ChatCompletion:
        """A completion with :meth:`get_generation_params`, in the slots of evaluations."""
        params = {"split": "eval", **self.get_generation_params(), **kwargs}
        return await server.chat_completion(messages=messages, **params)

    def get_generation_params(self) -> dict[str, Any]:
        """Arguments for a completion: temperature, n, top_p and, where set, max_tokens.

        A ``max_tokens`` that is not positive is left out: the server's maximum applies.
        """
        params: dict[str, Any] = {
            "temperature": self.temperature,
            "n": max(self.pass_at_n_samples, self.pass_at_n),
            "top_p": self.top_p,
        }
        if self.max_tokens is not None and self.max_tokens > 0:
            params["max_tokens"] = self.max_tokens
        return params

    @property
    def task_name(self) -> str:
        """``<Class>@<n>``, with ``:<samples>`` if more than ``n`` samples are drawn."""
        samples = self.pass_at_n_samples
        drawn = f":{samples}" if samples > self.pass_at_n else ""
        return f"{type(self).__name__}@{self.pass_at_n}{drawn}"

    async def eval(self, server_manager: ServerManager) -> dict[str, float]:
        """Run every item, write the results and return the average of each metric.

        Raises:
            ConfigError: there are no items.
            AtroposError: every item failed; this is the first failure.
            OnlyFailures: a mistake failed the first two items.
        """
        started = time.time()
        outcomes = await _run_items(self, server_manager)
        done = [outcome for outcome in outcomes if not isinstance(outcome, AtroposError)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, AtroposError)]
        if not done:
            raise failures[0] if failures else ConfigError(f"{self.task_name}: no items")
        servers = getattr(server_manager, "servers", None)
        metrics = mean_metrics(values for values, _ in done)
        if failures:
            metrics["failed_items"] = len(failures)
        evaluate_log(
            metrics,
            eval_dir=self.eval_dir,
            task_name=self.task_name,
            model_name=self.model_name or (servers[0].config.model_name if servers else None),
            start_time=started,
            generation_parameters=self.get_generation_params(),
            samples=[sample for _, samples in done for sample in samples],
            verbose=self.verbose,
            stderr=standard_errors([values for values, _ in done]),
        )
        return metrics


async def _run_items(
    evaluation: EvalBase, server_manager: ServerManager
) -> list[ItemResult | AtroposError]:
    """Results or failures of all items, at most ``max_concurrency`` at once."""

    async def one(item: Any) -> ItemResult | AtroposError:
        try:
            with boundary(evaluation.task_name, item, "run_item", evaluation.run_item):
                metrics, samples = await evaluation.run_item(server_manager, item)
                listed = [samples] if isinstance(samples, Mapping) else samples
                return _finite(metrics), list(listed or [])
        except AtroposError as failure:
            failures.count_error(failure)
            return failure

    def error_of(result: ItemResult | AtroposError) -> AtroposError | None:
        return result if isinstance(result, AtroposError) else None

    failures, places = Repeats(), itertools.count()
    items, at_once = list(evaluation.data), evaluation.max_concurrency
    return await gather_probed(items, lambda item: next(places), one, error_of, at_once)


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {name: float(value) for name, value in metrics.items()}
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {name} is {value}")
    return values


async def eval_runner(
    eval_env: EvalBase, argv: Sequence[str] | None = None
) -> dict[str, float]:
    """Run ``eval_env`` against the server of the command line: ``--server-url --model-name``.

    Without a model name, the model that the server lists is used.
    """
    parser = argparse.ArgumentParser(description=f"evaluate {eval_env.task_name}")
    parser.add_argument("--server-url", default=LOCAL_URLS[0], help="[%(default)s]")
    parser.add_argument("--model-name", help="as the server lists it [its model]")
    args = parser.parse_args(argv)
    url = f"{server_root(args.server_url)}/v1"
    name = args.model_name or eval_env.model_name or "default"
    manager = ServerManager([APIServerConfig(base_url=url, model_name=name)])
    try:
        return await eval_env.eval(manager)
    finally:
        await manager.close()
