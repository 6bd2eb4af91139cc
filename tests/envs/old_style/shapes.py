"""Small environments written as those of the original are; they must run unchanged."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple

from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    EvalHandlingEnum,
    OpenaiConfig,
    ScoredDataGroup,
    ScoredDataItem,
    ServerBaseline,
)
from atroposlib.type_definitions import Item
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer

QUESTIONS = [f"what is {i} + {i}?" for i in range(64)]


class OldStyleEnv(BaseEnv):
    """What they share: a data set with a cursor, and the constructor of old."""

    def __init__(self, config, server_configs, slurm=True, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.percent_correct_buffer = list()
        self.eval_metrics = list()

    async def setup(self):
        self.train = [{"question": question} for question in QUESTIONS]
        self.iter = 0

    async def get_next_item(self) -> Item:
        next_item = self.train[self.iter % len(self.train)]
        self.iter += 1
        return next_item

    async def evaluate(self, *args, **kwargs):
        start_time = time.time()
        completion = await self.server.chat_completion(
            messages=[{"role": "user", "content": "how are you?"}],
            n=1,
            max_tokens=self.config.max_token_length,
            temperature=0.0,
            split="eval",
        )
        self.eval_metrics.append(("eval/percent_correct", 0.5))
        await self.evaluate_log(
            metrics={"eval/percent_correct": 0.5},
            samples=[{"response": completion.choices[0].message.content}],
            start_time=start_time,
            end_time=time.time(),
            generation_parameters={"temperature": 0.0},
        )


class TokenizingEnv(OldStyleEnv):
    """One sample at a time, tokenised afterwards; one server, not in a list."""

    name = "old_tokenizing"

    @classmethod
    def config_init(cls) -> Tuple[BaseEnvConfig, APIServerConfig]:
        config = BaseEnvConfig(
            group_size=2, use_wandb=False, max_token_length=256, wandb_name="old_tokenizing"
        )
        return config, APIServerConfig(
            model_name="init", base_url="http://localhost:1/v1", api_key="x"
        )

    async def collect_trajectory(
        self, item: Item
    ) -> Tuple[Optional[ScoredDataItem], List[Item]]:
        messages = [{"role": "user", "content": item["question"]}]
        completion = await self.server.chat_completion(messages=messages, n=1, max_tokens=32)
        choice = completion.choices[0]
        messages.append({"role": "assistant", "content": choice.message.content})
        out = tokenize_for_trainer(
            self.tokenizer, messages, finish_reason=choice.finish_reason
        )
        scored = ScoredDataItem(
            tokens=out["tokens"], masks=out["masks"], scores=float(len(out["tokens"]) % 3)
        )
        return scored, []


class NodesConfig(BaseEnvConfig):
    """A subclass with more fields."""

    temperature: float = 1.0
    extra_words: List[str] = ["please"]


class NodesEnv(OldStyleEnv):
    """A group at a time, through the managed server; a list of servers."""

    name = "old_nodes"
    env_config_cls = NodesConfig

    @classmethod
    def config_init(cls) -> Tuple[NodesConfig, List[APIServerConfig]]:
        config = NodesConfig(
            group_size=2,
            use_wandb=False,
            max_token_length=256,
            eval_handling=EvalHandlingEnum.LIMIT_TRAIN,
            steps_per_eval=1,
        )
        server = APIServerConfig(
            model_name="init", base_url="http://localhost:1/v1", server_type="vllm"
        )
        return config, [server]

    async def collect_trajectories(self, item: Item) -> Tuple[ScoredDataGroup, list[Item]]:
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            await managed.chat_completion(
                messages=[{"role": "user", "content": item["question"]}],
                n=self.config.group_size,
                max_tokens=32,
                temperature=self.config.temperature,
            )
            nodes = managed.get_state()["nodes"]
        scores = ScoredDataGroup()
        scores["tokens"] = list()
        scores["masks"] = list()
        scores["scores"] = list()
        scores["inference_logprobs"] = list()
        for i, node in enumerate(nodes):
            scores["tokens"].append(node.tokens)
            scores["masks"].append(node.masked_tokens)
            scores["inference_logprobs"].append(node.logprobs)
            scores["scores"].append(1.0 if i % 2 else -1.0)
        return scores, []


class OverridingEnv(NodesEnv):
    """Metrics, checkpoints and the table of rollouts are its own; OpenaiConfig is imported."""

    name = "old_overriding"

    @classmethod
    def config_init(cls) -> Tuple[NodesConfig, List[OpenaiConfig]]:
        config, _ = super().config_init()
        return config, [
            OpenaiConfig(
                model_name="init", base_url="http://localhost:1/v1", server_type="vllm"
            )
        ]

    async def wandb_log(self, wandb_metrics: Optional[Dict] = None):
        if wandb_metrics is None:
            wandb_metrics = {}
        try:
            wandb_metrics["train/percent_correct"] = sum(self.percent_correct_buffer) / len(
                self.percent_correct_buffer
            )
        except ZeroDivisionError:
            pass
        self.percent_correct_buffer = list()
        for name, value in self.eval_metrics:
            wandb_metrics[name] = value
        self.eval_metrics = list()
        await super().wandb_log(wandb_metrics)

    async def collect_trajectories(self, item):
        group, backlog = await super().collect_trajectories(item)
        self.percent_correct_buffer.append(0.5)
        return group, backlog

    def save_checkpoint(self, step, data=None):
        if data is None:
            data = {}
        data["iter"] = self.iter
        super().save_checkpoint(step, data)

    async def add_rollouts_for_wandb(self, scored_data, item=None):
        self.rollouts_for_wandb.append(
            [(self.tokenizer.decode(row), 1.0) for row in scored_data["tokens"]]
        )
        if len(self.rollouts_for_wandb) > self.config.num_rollouts_to_keep:
            self.rollouts_for_wandb.pop(0)


class StagedEnv(NodesEnv):
    """Scores in a second pass, and a second stage through the backlog; a baseline."""

    name = "old_staged"

    @classmethod
    def config_init(cls) -> Tuple[NodesConfig, ServerBaseline]:
        config, _ = super().config_init()
        return config, ServerBaseline(model_name="init", server_type="vllm")

    async def collect_trajectories(self, item):
        group, _ = await super().collect_trajectories(item)
        to_postprocess = {"group": group, "stage": item.get("stage", 1)}
        to_backlog = []
        if to_postprocess["stage"] == 1:
            to_backlog.append({"question": item["question"] + " again", "stage": 2})
        return to_postprocess, to_backlog

    async def postprocess_histories(self, trajectories):
        group = trajectories["group"]
        group["scores"] = [score * trajectories["stage"] for score in group["scores"]]
        group["group_overrides"] = None
        return group


class HooksEnv(NodesEnv):
    """Its own steps of the runtime around the inherited ones, and timings in its metrics."""

    name = "old_hooks"

    def __init__(self, config, server_configs, slurm=True, testing=False):
        self.steps = []
        super().__init__(config, server_configs, slurm, testing)

    async def setup_wandb(self):
        self.steps.append("setup_wandb")
        await super().setup_wandb()

    async def register_env(self):
        await super().register_env()
        self.steps.append(f"register_env {self.env_id}")

    async def get_server_info(self):
        await super().get_server_info()
        self.steps.append(f"get_server_info {self.config.batch_size}")

    async def get_status(self):
        await super().get_status()
        assert self.status_dict["current_step"] >= 0

    async def handle_env(self, item_uuid):
        item = self.running_items[item_uuid]["item"]
        self.steps.append(f"handle_env {item['question']}")
        return await super().handle_env(item_uuid)

    async def env_step_checks(self):
        await super().env_step_checks()

    async def add_train_workers(self):
        await super().add_train_workers()

    async def wandb_log(self, wandb_metrics=None):
        wandb_metrics = self.perf_stats(wandb_metrics or {})
        wandb_metrics = await self.create_rollout_table(wandb_metrics)
        await super().wandb_log(wandb_metrics)


class JobEnv(TokenizingEnv):
    """A constructor whose third parameter has another name."""

    name = "old_job"

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: List[APIServerConfig],
        slurm_job_id: Optional[str] = None,
        testing: bool = False,
    ):
        super().__init__(config, server_configs, slurm_job_id, testing)


class LoaderEnv(OldStyleEnv):
    """Ready-made texts as groups of one, sent in place of rollouts; the first is broken."""

    name = "old_loader"

    @classmethod
    def config_init(cls) -> Tuple[BaseEnvConfig, ServerBaseline]:
        config = BaseEnvConfig(group_size=1, use_wandb=False, max_token_length=256)
        return config, ServerBaseline()

    async def add_train_workers(self):
        for tokens in (7, [5, 6, 7], [5, 6, 8], [5, 6, 9], [5, 6, 10]):
            group = ScoredDataGroup()
            group["tokens"] = [tokens]
            group["masks"] = [tokens]
            group["scores"] = [1]
            group["advantages"] = [1]
            group["overrides"] = [{"sft": True}]
            await self.handle_send_to_api(group)


OLD_STYLE = [TokenizingEnv, NodesEnv, OverridingEnv, StagedEnv, HooksEnv, JobEnv]
