"""Weights by disk: write a directory, tell every server to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from atroposlib.errors import InferenceError, PublishFailed
from example_trainer.checkpoint import TrainerState, is_tied, keep_newest, save_model
from example_trainer.config import TrainingConfig
from example_trainer.model import Policy
from example_trainer.weights.engines import Engine

T = TypeVar("T")
MAX_PARALLEL_SERVERS = 16
AFTERWARDS = (
    "Mend or remove the server, then start the trainer again; POST /resume lets a server"
    " generate with what it holds."
)


class DiskPublisher:
    """Works with every engine; needs a directory that trainer and servers all see."""

    def __init__(
        self, cfg: TrainingConfig, engines: Sequence[Engine], announce: Callable[[int], None]
    ) -> None:
        self.engines = engines
        self._announce = announce
        self._directory = cfg.published.resolve()
        self._keep = cfg.keep_published
        self._untie = cfg.untie_published_head

    def publish(self, policy: Policy, state: TrainerState) -> None:
        directory = self._directory / f"version_{state.version}"
        # Not durable: after the death of the machine the servers are gone as well.
        save_model(policy, directory, state, untie_head=self._unties(policy), durable=False)
        self._on_all("pause", lambda engine: engine.pause())
        self._on_all("load", lambda engine: engine.load(str(directory), state.version))
        held = self._on_all("verify", lambda engine: engine.version())
        for engine, version in zip(self.engines, held):
            if version != str(state.version):
                raise PublishFailed(
                    f"{engine.url} answered that it loaded version {state.version} but names"
                    f" {version!r}; all servers stay paused. {AFTERWARDS}"
                )
        self._on_all("resume", lambda engine: engine.resume())
        self._announce(state.version)
        keep_newest(self._directory, "version_*", self._keep)

    def hold(self) -> list[str]:
        answers = self._ask_all(lambda engine: engine.pause())
        return [
            e.url
            for e, answer in zip(self.engines, answers)
            if isinstance(answer, InferenceError)
        ]

    def _unties(self, policy: Policy) -> bool:
        if self._untie is not None:
            return self._untie and is_tied(policy)
        # vLLM's CPU build answers a reload with 200 and keeps its packed copy of a tied
        # head. A head of its own is always refreshed.
        return is_tied(policy) and any(engine.name == "vllm" for engine in self.engines)

    def _on_all(self, stage: str, action: Callable[[Engine], T]) -> list[T]:
        """Do it on every server at once; if one fails, stop the others from going on."""
        answers = self._ask_all(action)
        failures = [
            f"{engine.url}: {answer}"
            for engine, answer in zip(self.engines, answers)
            if isinstance(answer, InferenceError)
        ]
        if not failures:
            return [answer for answer in answers if not isinstance(answer, InferenceError)]
        silent = self.hold()
        raise PublishFailed(
            f"could not {stage} {len(failures)} of {len(answers)} servers:"
            f" {'; '.join(failures)}. Every server that answers stays paused"
            f"{' (silent: ' + ', '.join(silent) + ')' if silent else ''}. {AFTERWARDS}"
        )

    def _ask_all(self, action: Callable[[Engine], T]) -> list[T | InferenceError]:
        def ask(engine: Engine) -> T | InferenceError:
            try:
                return action(engine)
            except InferenceError as error:
                return error

        with ThreadPoolExecutor(MAX_PARALLEL_SERVERS) as pool:
            return list(pool.map(ask, self.engines))
