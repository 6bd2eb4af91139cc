"""Environments whose groups carry a teacher's logprobs for each token (distillation).

    scored group --> teacher: K likeliest tokens at each position --> group, sent
                        '-- no usable answer: counted, logged, sent without the tokens

Letters: G sequences of a group, T_g tokens of sequence g, K_t teacher tokens at position t.
``serve``, ``process`` and ``evaluate`` read the flags ``--teacher.<field>`` and the YAML section
``teacher:``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC
from collections import Counter
from collections.abc import Sequence
from inspect import getattr_static
from typing import Any

from pydantic import Field

from atroposlib.envs.attributes import RuntimeSlot
from atroposlib.envs.base import BaseEnv, BaseEnvConfig, ScoredDataGroup
from atroposlib.envs.rollout.groups import groups_in
from atroposlib.envs.runtime.env_runtime import EnvRuntime, MoreServers
from atroposlib.envs.teaching.teacher import tokenizer_of
from atroposlib.envs.teaching.teacher_rows import TeacherRows, answer_start, checked_rows
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.generation.configs import ServerConfigs
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.type_definitions import Item
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

logger = logging.getLogger(__name__)


class TeacherDistillationConfig(BaseEnvConfig):
    """Settings of an environment with a teacher."""

    teacher_enabled: bool = Field(
        default=False, description="request a teacher's logprobs of every sequence"
    )
    teacher_top_k: int = Field(
        default=0,
        ge=-1,
        description="teacher tokens per position; 0: the sampled token only; -1: no request",
    )


class TeacherRuntime(EnvRuntime):
    """The runtime of an environment with a teacher."""

    def __init__(self, env: TeacherDistillationEnv) -> None:
        super().__init__(env)
        self._env = env
        self.teacher_groups = 0  # groups sent with the teacher's logprobs
        self.teacher_failures: Counter[str] = Counter()  # sent without, by kind of error

    @classmethod
    def more_servers(cls, env_cls: type[TeacherDistillationEnv]) -> dict[str, MoreServers]:
        default = env_cls.teacher_config_init()
        servers = MoreServers("teacher_server_configs", default, switch="teacher_enabled")
        return {**super().more_servers(env_cls), env_cls.teacher_namespace: servers}

    def require_same_tokens(self, teacher: ServerManager) -> None:
        """Require the same vocabulary: token ids are comparable only then.

        Raises ConfigError: a teacher has another vocabulary.
        """
        for name in {tokenizer_of(server.config) for server in teacher.servers}:
            if name == self.config.tokenizer_name:
                continue
            if load_tokenizer_named(name).get_vocab() != self.tokenizer.get_vocab():
                raise ConfigError(
                    f"teacher tokenizer {name!r} has another vocabulary than "
                    f"{self.config.tokenizer_name!r}: their token ids cannot be compared"
                )

    async def with_teacher(self, group: ScoredDataGroup, item: Item) -> ScoredDataGroup:
        """A copy of ``group`` with ``distill_*`` of the teacher, (G, T_g, K_t), or None."""
        taught = ScoredDataGroup(**group)
        taught["distill_token_ids"] = taught["distill_logprobs"] = None
        teacher, top_k = self._env.teacher_server, self.top_k_of(group)
        if teacher is None or top_k is None:
            return taught
        prompt = self._prompt_of(item)
        requests = [
            self._ask(teacher, row, answer_start(mask), prompt, top_k, item)
            for row, mask in zip(group["tokens"], group["masks"])
        ]
        try:
            rows = await gather_or_cancel(requests)
        except AtroposError as error:
            self.teacher_failures[type(error).__name__] += 1
            logger.warning(
                "group of item %r is sent without teacher logprobs: %s", item, error
            )
            return taught
        taught["distill_token_ids"] = [ids for ids, _ in rows]
        taught["distill_logprobs"] = [logprobs for _, logprobs in rows]
        self.teacher_groups += 1
        return taught

    def _prompt_of(self, item: Item) -> Sequence[int] | None:
        """The environment's ``teacher_prompt``; None if that name is no method with token ids."""
        method = getattr_static(type(self._env), "teacher_prompt")
        if not inspect.isfunction(method) or inspect.iscoroutinefunction(method):
            return None
        with boundary(self.label(), item, "teacher_prompt"):
            prompt = method(self._env, item)
        are_ids = isinstance(prompt, Sequence) and all(isinstance(i, int) for i in prompt)
        return prompt if are_ids else None

    def top_k_of(self, group: ScoredDataGroup) -> int | None:
        """Teacher tokens per position; None: this group is sent without the teacher."""
        overrides = group.get("group_overrides") or {}
        if not group["tokens"] or overrides.get("skip_teacher_top_k"):
            return None
        own = overrides.get("teacher_top_k")
        top_k = self._env.config.teacher_top_k if own is None else int(own)
        return top_k if top_k >= 0 else None

    async def _ask(
        self,
        teacher: ServerManager,
        tokens: Sequence[int],
        start: int,
        prompt: Sequence[int] | None,
        top_k: int,
        item: Item,
    ) -> TeacherRows:
        """The teacher's rows of ``tokens``; with a ``prompt`` only the answer's rows."""
        read = list(tokens) if prompt is None else [*prompt, *tokens[start:]]
        with boundary(self.label(), item, "teacher"):
            answer = await teacher.get_logprobs(
                input_ids=read, top_k=top_k, max_tokens=1, split="train"
            )
            ids, logprobs = answer["prompt_topk_token_ids"], answer["prompt_topk_logprobs"]
        ids, logprobs = checked_rows(ids, logprobs, len(read))
        if prompt is None:
            return ids, logprobs
        empty: list[list[Any]] = [[] for _ in range(start)]
        return [*empty, *ids[len(prompt) :]], [*empty, *logprobs[len(prompt) :]]

    def teacher_metrics(self) -> dict[str, int]:
        """Counts of groups with and without the teacher's logprobs."""
        counts = {
            "train/teacher_groups": self.teacher_groups,
            "train/teacher_failed": sum(self.teacher_failures.values()),
        }
        for kind, count in self.teacher_failures.items():
            counts[f"train/teacher_failed_{kind}"] = count
        return counts

    async def release(self) -> None:
        if self._env.teacher_server is not None:
            await self._env.teacher_server.close()
        await super().release()


class TeacherDistillationEnv(BaseEnv, ABC):
    """A :class:`BaseEnv` with a second set of servers that holds the teacher.

    Raises at construction:
        ConfigError: ``teacher_enabled`` without servers, or a teacher with another vocabulary.
    """

    env_config_cls = TeacherDistillationConfig
    teacher_namespace = "teacher"
    config: TeacherDistillationConfig
    _atropos = RuntimeSlot(TeacherRuntime)

    def __init__(
        self,
        config: TeacherDistillationConfig,
        server_configs: ServerConfigs,
        teacher_server_configs: ServerConfigs | bool | None = None,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        if isinstance(teacher_server_configs, bool):  # a subclass passes slurm, testing
            slurm, testing = teacher_server_configs, slurm
            teacher_server_configs = None
        super().__init__(config, server_configs, slurm, testing)
        self.teacher_server: ServerManager | None = None
        if config.teacher_enabled:
            if teacher_server_configs is None:
                raise ConfigError(
                    "teacher_enabled without a teacher: pass teacher_server_configs, set "
                    f"--{self.teacher_namespace}.base_url, or override teacher_config_init"
                )
            self.teacher_server = ServerManager(teacher_server_configs)
            self._atropos.require_same_tokens(self.teacher_server)

    @classmethod
    def teacher_config_init(cls) -> ServerConfigs | None:
        """Default servers of the teacher; None: no teacher."""
        return None

    def teacher_prompt(self, item: Item) -> Sequence[int] | None:
        """Tokens that the teacher reads in front of an answer; None: the prompt of the row.

        With the solution in this prompt a model can be its own teacher (self-distillation).
        """
        return None

    async def handle_send_to_api(
        self,
        scored_data: ScoredDataGroup | Sequence[ScoredDataGroup | None] | None,
        item: Item | None = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> list[ScoredDataGroup]:
        taught = self._atropos.with_teacher
        groups = await asyncio.gather(
            *(taught(group, item) for group in groups_in(scored_data))
        )
        return await super().handle_send_to_api(
            groups, item, do_send_to_api, abort_on_any_max_length_exceeded
        )

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        emitted = dict(wandb_metrics or {})
        if self.teacher_server is not None:
            emitted.update(self._atropos.teacher_metrics())
            await self.teacher_server.wandb_metrics(emitted, "teacher")
        await super().wandb_log(emitted)
