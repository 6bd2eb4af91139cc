"""More environments of the original's making, each with other overrides and habits."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    ScoredDataGroup,
    ServerBaseline,
)
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from tests.envs.old_style.shapes import NodesConfig, NodesEnv, OldStyleEnv, TokenizingEnv

SERVER = {"model_name": "init", "base_url": "http://localhost:1/v1", "server_type": "vllm"}
SMALL = {"group_size": 2, "use_wandb": False, "max_token_length": 256}


class ClassDefaultsEnv(NodesEnv):
    """No config_init: the class names its configuration, and a baseline serves."""

    name = "old_class_defaults"

    class Settings(BaseEnvConfig):
        group_size: int = 2
        use_wandb: bool = False
        max_token_length: int = 256
        temperature: float = 1.0

    env_config_cls = Settings

    @classmethod
    def config_init(cls):
        return cls.env_config_cls(), ServerBaseline(model_name="init", server_type="vllm")


class ServerListEnv(NodesEnv):
    """A list of one server, with a slot count."""

    name = "old_server_list"

    @classmethod
    def config_init(cls):
        return NodesConfig(**SMALL), [APIServerConfig(**SERVER, num_max_requests_at_once=4)]


class ConfigOfItsOwnEnv(NodesEnv):
    """Keeps the caller's configuration object, and a sixth attribute of each name."""

    name = "old_config_of_its_own"

    def __init__(self, config, server_configs, slurm=True, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.config = config
        self.config_class = type(config)


class KeywordEnv(NodesEnv):
    """A constructor that takes everything by keyword."""

    name = "old_keyword"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = kwargs


class PoolEnv(TokenizingEnv):
    """Pools of threads, a lock, a queue and an event under the usual names."""

    name = "old_pool"

    def __init__(self, config, server_configs, slurm=True, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.executor = self.pool
        self.lock = multiprocessing.Lock()
        self.queue = deque(maxlen=8)
        self.sender = self.serving = self.group_file = "mine"

    async def collect_trajectory(self, item):
        await asyncio.get_running_loop().run_in_executor(self.pool, lambda: item["question"])
        return await super().collect_trajectory(item)

    def close(self):
        """Of the author: nothing of the library calls it."""
        raise RuntimeError("called")


class LabelEnv(NodesEnv):
    """Labels, logs and statistics under names of the runtime."""

    name = "old_label"

    def __init__(self, config, server_configs, slurm=True, testing=False):
        self.label = "positive"
        self.log = {"lines": 0}
        self.machinery = ["engine"]
        super().__init__(config, server_configs, slurm, testing)
        self.group_stats = self.metrics_logger = self.joined_run = None

    async def collect_trajectories(self, item):
        self.log["lines"] += 1
        return await super().collect_trajectories(item)


class ScoringEnv(OldStyleEnv):
    """Completions first, then a method ``score`` that drops hard groups."""

    name = "old_scoring"

    @classmethod
    def config_init(cls):
        return BaseEnvConfig(**SMALL), [APIServerConfig(**SERVER)]

    async def score(self, rollout_group_data):
        scores = ScoredDataGroup(tokens=[], masks=[], scores=[])
        random.shuffle(rollout_group_data)
        for number, (messages, finish_reason) in enumerate(rollout_group_data):
            out = tokenize_for_trainer(self.tokenizer, messages, finish_reason=finish_reason)
            scores["tokens"].append(out["tokens"])
            scores["masks"].append(out["masks"])
            scores["scores"].append(1.0 if number else -1.0)
        if self.iter % 3 == 0:
            return None
        return scores

    async def collect_trajectories(self, item):
        messages = [{"role": "user", "content": item["question"]}]
        completions = await self.server.chat_completion(
            messages=messages, n=self.config.group_size, max_tokens=32
        )
        to_score = [
            (
                [*messages, {"role": "assistant", "content": choice.message.content}],
                choice.finish_reason,
            )
            for choice in completions.choices
        ]
        return await self.score(to_score), []


class SeldomEnv(ScoringEnv):
    """Most items give no group; an item in nine does."""

    name = "old_seldom"

    async def collect_trajectories(self, item):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls % 9:
            return (None, []) if self.calls % 2 else ([], [])
        self.iter = 1
        return await super().collect_trajectories(item)


class TextCompletionEnv(OldStyleEnv):
    """Text completions, tokenised by hand."""

    name = "old_text"

    @classmethod
    def config_init(cls):
        return BaseEnvConfig(**SMALL), [APIServerConfig(**SERVER)]

    async def collect_trajectories(self, item):
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": item["question"]}],
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        assert ids == self.tokenizer.apply_chat_template(
            [{"role": "user", "content": item["question"]}], add_generation_prompt=True
        )
        completion = await self.server.completion(prompt=prompt, n=2, max_tokens=16)
        group = ScoredDataGroup(tokens=[], masks=[], scores=[])
        for choice in completion.choices:
            row = self.tokenizer.encode(prompt + choice.text, add_special_tokens=False)
            group["tokens"].append(row)
            group["masks"].append([-100] * len(ids) + row[len(ids) :])
            group["scores"].append(float(choice.index))
        return group, []


class SeveralGroupsEnv(NodesEnv):
    """Two groups of an item, one of them None."""

    name = "old_several"

    async def collect_trajectories(self, item):
        group, _ = await super().collect_trajectories(item)
        return [group, None], []


class ListPostprocessEnv(NodesEnv):
    """A list goes into the second pass, and comes out shorter."""

    name = "old_list_postprocess"

    async def collect_trajectories(self, item):
        first, _ = await super().collect_trajectories(item)
        return [first, first], []

    async def postprocess_histories(self, trajectories):
        return trajectories[:1]


class OverridesEnv(NodesEnv):
    """Groups with overrides, advantages and generation parameters."""

    name = "old_overrides"

    async def collect_trajectories(self, item):
        group, backlog = await super().collect_trajectories(item)
        group["overrides"] = [{"set_advantage_to_zero": False} for _ in group["tokens"]]
        group["group_overrides"] = {"temperature": 1.0}
        group["advantages"] = [[0.5] * len(row) for row in group["tokens"]]
        group["ref_logprobs"] = None
        return group, backlog


class CheckpointEnv(NodesEnv):
    """Its own checkpoints."""

    name = "old_checkpoint"
    saved: list = []

    def save_checkpoint(self, step, data=None):
        self.saved.append((step, self.curr_step))
        super().save_checkpoint(step, {"iter": self.iter})

    def load_checkpoint(self):
        super().load_checkpoint()


class CleanupEnv(NodesEnv):
    """Releases a resource after each rollout; the release fails at times."""

    name = "old_cleanup"

    async def cleanup(self):
        self.cleaned = getattr(self, "cleaned", 0) + 1
        if self.cleaned == 1:
            raise OSError("the sandbox is gone")


class WandbEnv(NodesEnv):
    """Tables and metrics by the attributes of the base class."""

    name = "old_wandb"

    async def setup_wandb(self):
        await super().setup_wandb()
        self.table = []

    async def add_rollouts_for_wandb(self, scored_data, item=None):
        self.rollouts_for_wandb.append(
            [
                (
                    self.tokenizer.decode(scored_data["tokens"][i]),
                    scored_data["scores"][i],
                    "x",
                )
                for i in range(len(scored_data["tokens"]))
            ]
        )
        if len(self.rollouts_for_wandb) > self.config.num_rollouts_to_keep:
            self.rollouts_for_wandb.pop(0)

    async def create_rollout_table(self, wandb_metrics):
        wandb_metrics["train/rows"] = len(self.rollouts_for_wandb)
        self.rollouts_for_wandb = []
        return wandb_metrics

    async def wandb_log(self, wandb_metrics=None):
        wandb_metrics = wandb_metrics or {}
        wandb_metrics["train/lengths"] = len(self.completion_lengths)
        wandb_metrics["train/workers"] = len(self.workers) + len(self.eval_workers)
        await self.create_rollout_table(wandb_metrics)
        await super().wandb_log(wandb_metrics)


class SendingEnv(NodesEnv):
    """Changes groups at the moment of sending."""

    name = "old_sending"

    async def handle_send_to_api(
        self,
        scored_data,
        item=None,
        do_send_to_api=True,
        abort_on_any_max_length_exceeded=True,
    ):
        scored_data["scores"] = [score * 2 for score in scored_data["scores"]]
        return await super().handle_send_to_api(
            scored_data,
            item=item,
            do_send_to_api=do_send_to_api,
            abort_on_any_max_length_exceeded=abort_on_any_max_length_exceeded,
        )


class SilentSendingEnv(NodesEnv):
    """Hands groups on at the moment of sending, and returns nothing, as the original does."""

    name = "old_silent_sending"

    async def handle_send_to_api(self, scored_data, item=None, *settings, **more):
        await super().handle_send_to_api(scored_data, item, *settings, **more)


class HandledByHandEnv(NodesEnv):
    """A ``handle_env`` of the author, with the steps of the original's."""

    name = "old_handled_by_hand"

    async def handle_env(self, item_uuid):
        item = self.running_items.get(item_uuid)["item"]
        collected, backlog = await self.collect_trajectories(item)
        self.backlog.extend(backlog)
        collected = await self.postprocess_histories(collected)
        self.running_items.pop(item_uuid, None)
        await self.handle_send_to_api(collected, item)
        await self.cleanup()
        return collected


class WorkersByHandEnv(NodesEnv):
    """An ``add_train_workers`` of the author, which keeps the sets of the base class."""

    name = "old_workers_by_hand"

    async def add_train_workers(self):
        while len(self.workers) < min(self.max_num_workers, 2):
            item = self.backlog.pop() if self.backlog else await self.get_next_item()
            item_uuid = str(uuid.uuid4())
            entry = {"item": item, "worker": None, "start_time": time.time()}
            self.running_items[item_uuid] = entry
            worker = asyncio.create_task(self.handle_env(item_uuid))
            self.running_items[item_uuid]["worker"] = worker
            self.workers.add(worker)
            worker.add_done_callback(self.workers.discard)


class StatusEnv(NodesEnv):
    """Reads the status and the places of the runtime as the original names them."""

    name = "old_status"

    async def env_step_checks(self):
        self.step_seen = self.status_dict["current_step"]
        await super().env_step_checks()

    async def add_train_workers(self):
        assert self.max_num_workers >= 1 and isinstance(self.running_items, dict)
        assert self.derived_batch_size >= 1 and self.max_token_len > 0
        await super().add_train_workers()

    async def handle_env(self, item_uuid):
        item = self.running_items[item_uuid]["item"]
        assert item["question"]
        data = await super().handle_env(item_uuid)
        self.last = self.last_completed_item
        return data


class BacklogEnv(NodesEnv):
    """Uses the backlog itself."""

    name = "old_backlog"

    async def setup(self):
        await super().setup()
        self.backlog = [{"question": "from the backlog?"}]

    async def get_next_item(self):
        if self.iter == 1:
            self.backlog.append({"question": "again?"})
            self.backlog.extend([{"question": "and again?"}])
        return await super().get_next_item()


class ClassAttributesEnv(NodesEnv):
    """Annotations and defaults of the class under names of the runtime."""

    name = "old_class_attributes"
    pool: list = []
    label: str = "x"
    phase = "collect"
    client = None
    runtime: dict = {}
    process_mode = "train"
    sandbox = shutdown = stats = status = rollouts = None


class MixinEnv(NodesEnv):
    """Helpers of every kind under names of the runtime."""

    name = "old_mixin"

    @property
    def sender(self):
        return "a property without a setter"

    @staticmethod
    def measured_at():
        return 3

    @classmethod
    def more_servers(cls):
        return ["a judge"]

    def update_weight(self, weight, bias):
        return weight + bias

    async def new_job(self, name):
        return name

    async def close(self, door):
        raise RuntimeError("called")


class EvalWorkersEnv(OldStyleEnv):
    """Evaluates by tasks in ``eval_workers``; trains by samples."""

    name = "old_eval_workers"
    config_init = TokenizingEnv.config_init
    collect_trajectory = TokenizingEnv.collect_trajectory

    async def rollout_and_score_eval(self, question):
        await self.server.chat_completion(
            messages=[{"role": "user", "content": question}], n=1, max_tokens=8, split="eval"
        )
        return 0.5

    async def evaluate(self, *args, **kwargs):
        tasks = [asyncio.ensure_future(self.rollout_and_score_eval(q)) for q in ("a", "b")]
        self.eval_workers |= set(tasks)
        scores = await asyncio.gather(*tasks)
        self.eval_workers.clear()
        await self.evaluate_log({"eval/percent_correct": sum(scores) / len(scores)})


class BareEnv(BaseEnv):
    """Nothing but the two abstract methods, setup and a sample."""

    name = "old_bare"
    config_init = TokenizingEnv.config_init
    collect_trajectory = TokenizingEnv.collect_trajectory

    async def setup(self):
        self.i = 0

    async def get_next_item(self):
        self.i += 1
        return {"question": f"{self.i}?"}

    async def evaluate(self, *args, **kwargs):
        return await self.evaluate_log({"eval/percent_correct": 0.5})


MORE = [
    *(ClassDefaultsEnv, ServerListEnv, ConfigOfItsOwnEnv, KeywordEnv, PoolEnv, LabelEnv),
    *(ScoringEnv, SeldomEnv, TextCompletionEnv, SeveralGroupsEnv, ListPostprocessEnv),
    *(OverridesEnv, CheckpointEnv, CleanupEnv, WandbEnv, SendingEnv, StatusEnv, BacklogEnv),
    *(SilentSendingEnv, HandledByHandEnv, WorkersByHandEnv),
    *(ClassAttributesEnv, MixinEnv, EvalWorkersEnv, BareEnv),
]
