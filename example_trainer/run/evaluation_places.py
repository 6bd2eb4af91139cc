"""Servers of an evaluation that runs while training goes on: where its version is kept.

    held    a share of the fleet: publishes pass these servers over until the evaluation is over
    dir     a server outside of the fleet, which loads an export of the weights

    take -> export -> load, check -> the programs run -> check -> give_back

``take`` and ``export`` are steps of the trainer's loop; the rest is of the evaluation's thread.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing

from atroposlib.errors import ConfigError, InferenceError
from example_trainer.model.model_dir import TrainerState, save_model
from example_trainer.model.policy import Policy
from example_trainer.settings.config import EvaluatorSettings
from example_trainer.weights.agreement import Agreement, Tokens
from example_trainer.weights.engines import InferenceServer, connect_engine
from example_trainer.weights.mismatch import Mismatch, mismatch_of
from example_trainer.weights.publisher import Publisher
from example_trainer.weights.verify import PROBE_TEXTS

logger = logging.getLogger(__name__)
EXPORT = "evaluation"  # beginning of the name of an export, below the published versions
PROBES = 2  # texts whose logprobs prove that a server holds the export


class EvaluationPlace(ABC):
    """Servers for a single evaluation at a time."""

    def __init__(self, cfg: EvaluatorSettings, publisher: Publisher, policy: Policy) -> None:
        self._cfg, self._publisher, self._policy = cfg, publisher, policy

    @abstractmethod
    def take(self, state: TrainerState) -> list[str]:
        """Addresses of the servers from now on; none if no server can be spared now. Rank 0."""

    @abstractmethod
    def version(self, state: TrainerState) -> int:
        """The version that is evaluated."""

    def export(self, state: TrainerState) -> None:
        """Write what the servers need; raises CheckpointError. Collective."""

    def load(self, urls: Sequence[str], version: int) -> None:
        """Bring the version to the servers; raises InferenceError."""

    @abstractmethod
    def give_back(self, urls: Sequence[str]) -> None:
        """Leave the servers, and remove their files. Never raises."""

    def engine_name(self, url: str) -> str:
        """Name of the protocol of a server."""
        with closing(self._connect(url)) as engine:
            return engine.name

    def check(self, urls: Sequence[str], version: int) -> None:
        """Raise InferenceError unless every server names this version."""
        for url in urls:
            with closing(self._connect(url)) as engine:
                named = engine.version()
            if named != str(version):
                raise InferenceError(
                    f"{url} holds version {named!r} and not {version}: it restarted, or the"
                    " trainer needed it"
                )

    def _connect(self, url: str) -> InferenceServer:
        """A connection for the evaluation alone: its waits are none of the trainer."""
        return connect_engine(
            url,
            self._cfg.inference_engine,
            timeout_s=min(self._cfg.publish_timeout_s, self._cfg.eval_timeout_s),
            wait_s=0.0,
            on_wait=lambda what: None,
            token=self._cfg.server_token,
        )


class HeldServers(EvaluationPlace):
    """A share of the fleet keeps the version that it holds."""

    def __init__(self, cfg: EvaluatorSettings, publisher: Publisher, policy: Policy) -> None:
        super().__init__(cfg, publisher, policy)
        if not cfg.follows_directory:
            raise ConfigError(
                "eval_where held needs inference_urls directory:// (a run of `atropos run` has"
                " it): environments that follow the directory send no rollouts to held servers"
            )

    def take(self, state: TrainerState) -> list[str]:
        urls = self._publisher.fleet.hold(self._cfg.eval_share, state.version)
        if not urls:
            logger.warning("evaluation put off: eval_where held needs two servers that answer")
        return urls

    def version(self, state: TrainerState) -> int:
        return state.version

    def give_back(self, urls: Sequence[str]) -> None:
        self._publisher.fleet.release(urls)


class OwnServer(EvaluationPlace):
    """A server of the evaluation loads the weights of the step from a directory.

    Its logprobs of texts are compared with the trainer's, as logprobs of the fleet are.
    """

    _probes: Sequence[tuple[list[int], Sequence[float]]] = ()  # tokens, the trainer's logprobs

    def __init__(self, cfg: EvaluatorSettings, publisher: Publisher, policy: Policy) -> None:
        super().__init__(cfg, publisher, policy)
        if cfg.eval_url is None:
            raise ConfigError(
                "eval_where dir needs a server: start one and set eval_url, or start the run by"
                " `atropos run`"
            )
        self._url = cfg.eval_url.rstrip("/").removesuffix("/v1")
        self._directory = cfg.published.resolve() / EXPORT

    def take(self, state: TrainerState) -> list[str]:
        for left in self._directory.parent.glob(
            f"*{EXPORT}_*"
        ):  # by a trainer that was killed
            shutil.rmtree(left, ignore_errors=True)
        # A name that was never used: the server may still map files of an earlier export.
        name = f"{EXPORT}_{secrets.token_hex(3)}_{state.step}"
        self._directory = self._directory.with_name(name)
        return [self._url]

    def version(self, state: TrainerState) -> int:
        return state.step  # the weights of the step, published or not

    def export(self, state: TrainerState) -> None:
        policy = self._policy
        untie = self._publisher.needs_untying(policy)
        save_model(policy, self._directory, state, untie_head=untie, durable=False)
        texts: list[list[int]] = [
            policy.tokenizer(text)["input_ids"] for text in PROBE_TEXTS[:PROBES]
        ]
        self._probes = list(zip(texts, policy.logprobs_of(texts)))

    def load(self, urls: Sequence[str], version: int) -> None:
        for url in urls:
            with closing(self._connect(url)) as engine:
                engine.pause()
                engine.load(str(self._directory), version)
                engine.resume()
                self._compare(engine)

    def _compare(self, engine: InferenceServer) -> None:
        agreement = Agreement.of(self._cfg.compute_dtype, self._cfg.max_logprob_mismatch)
        found = Mismatch()
        for tokens, ours in self._probes:
            found += mismatch_of(ours, engine.score(tokens), agreement.tolerance)
        if not agreement.judge(found, Tokens.GIVEN, source=engine.url):
            raise InferenceError(
                f"{engine.url} and the trainer disagree on the weights that it loaded: {found};"
                f" at most {agreement.text(Tokens.GIVEN)}. Start it with the trainer's model"
            )

    def give_back(self, urls: Sequence[str]) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def make_place(
    cfg: EvaluatorSettings, publisher: Publisher, policy: Policy
) -> EvaluationPlace | None:
    """The place of the settings; None: the trainer waits for its evaluations.

    Raises ConfigError: there is no server for evaluations.
    """
    kind = PLACES.get(cfg.eval_where)
    return kind(cfg, publisher, policy) if kind is not None and cfg.evaluates else None


PLACES: dict[str, type[EvaluationPlace]] = {
    "held": HeldServers,
    "dir": OwnServer,
}
