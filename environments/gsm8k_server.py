"""Grade-school maths (GSM8K): word problems whose answer is one number.

    python environments/gsm8k_server.py serve --env.dataset_path DIR_OR_JSONL
    python environments/gsm8k_server.py process --env.dataset_path test.jsonl --env.total_steps 4

The data come from ``dataset_path`` (``question`` and ``answer`` ending in ``#### n``), else
from the Hugging Face hub. The boxed answer is checked by math-verify: +1 right, -1 not.
"""

import asyncio
import json
import random
import time
from pathlib import Path

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.groups import from_nodes
from atroposlib.envs.reward_fns.math_answer import MathVerifier, Verdict
from atroposlib.errors import DatasetUnavailable
from atroposlib.wire import MASKED

SYSTEM_PROMPT = (
    "You may think at length inside <think> </think> tags before you answer. You have "
    "{budget} tokens in all: stop thinking in time. Then give the final answer, a number, "
    "in the form \\boxed{{answer}}."
)
MIN_TRAINED_TOKENS = 10  # a shorter answer is an empty turn and teaches only to be silent


class GSM8kConfig(BaseEnvConfig):
    """Settings of the word problems."""

    group_size: int = Field(
        default=8, ge=1, description="answers to one problem, scored together"
    )
    dataset_path: str | None = Field(
        default=None,
        description="a .jsonl file (trained and evaluated on alike), or a directory with "
        "gsm8k_train.jsonl and gsm8k_test.jsonl; None: the hub",
    )
    temperature: float = Field(default=1.0, description="of training rollouts")
    eval_temperature: float = Field(default=0.6, description="of evaluation")
    eval_problems: int = Field(default=-1, description="test problems evaluated; -1: all")


def load_problems(dataset_path: str | None) -> tuple[list[dict], list[dict]]:
    """(train, test) problems as {"id", "question", "answer"}, the answer a bare number.

    Raises:
        DatasetUnavailable: names what is missing and how to give it.
    """
    if dataset_path is None:
        splits = {split: load_from_hub(split) for split in ("train", "test")}
    elif Path(dataset_path).is_dir():
        splits = {
            split: read_jsonl(Path(dataset_path) / f"gsm8k_{split}.jsonl")
            for split in ("train", "test")
        }
    else:
        rows = read_jsonl(Path(dataset_path))
        splits = {"train": rows, "test": rows}
    train, test = (
        [problem(f"{split}/{i}", row) for i, row in enumerate(rows)]
        for split, rows in splits.items()
    )
    return train, test


def load_from_hub(split):
    help_text = "pass --env.dataset_path with a .jsonl file or directory of GSM8K"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DatasetUnavailable(f"the package datasets is missing: {help_text}") from error
    try:
        return list(load_dataset("gsm8k", "main", split=split))
    except (OSError, ValueError, RuntimeError) as error:
        raise DatasetUnavailable(
            f"GSM8K is not on the hub from here ({error}): {help_text}"
        ) from error


def read_jsonl(path: Path) -> list[dict]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DatasetUnavailable(
            f"{path}: {error.strerror}; --env.dataset_path is a .jsonl file, or a directory "
            "with gsm8k_train.jsonl and gsm8k_test.jsonl"
        ) from error
    return [json.loads(line) for line in lines if line.strip()]


def problem(name: str, row: dict) -> dict:
    if "question" not in row or "####" not in row.get("answer", ""):
        raise DatasetUnavailable(
            f"{name}: a row has a question, and an answer ending in '#### n'"
        )
    number = row["answer"].rpartition("####")[2].strip().replace(",", "")
    return {"id": name, "question": row["question"], "answer": number}


def length_penalty(lengths: list[int], max_length: int) -> list[float]:
    """Scores of a group in which all are right: 1.0 up to half of ``max_length`` tokens,
    from there down to 0.0 at all of it."""
    half = max_length / 2
    return [1.0 - min(1.0, max(0.0, length - half) / half) for length in lengths]


class GSM8kEnv(BaseEnv):
    """Asks word problems and rewards a right boxed number; brevity when all are right."""

    name = "gsm8k"
    env_config_cls = GSM8kConfig

    @classmethod
    def config_init(cls):
        config = cls.env_config_cls(wandb_name="gsm8k", steps_per_eval=100)
        server = APIServerConfig(
            model_name=config.tokenizer_name,
            base_url="http://localhost:9001/v1",
            server_type="vllm",
            num_requests_for_eval=256,
        )
        return config, server

    async def setup(self):
        self.train, self.test = load_problems(self.config.dataset_path)
        random.Random(self.config.seed).shuffle(self.train)
        self.verifier = MathVerifier()
        self.iter = 0

    async def get_next_item(self):
        item = self.train[self.iter % len(self.train)]
        self.iter += 1
        return item

    def messages(self, item):
        budget = self.config.max_token_length
        return [
            {"role": "system", "content": SYSTEM_PROMPT.format(budget=budget)},
            {"role": "user", "content": item["question"]},
        ]

    async def sample(self, item, n, temperature, split):
        """``n`` answers to ``item``: choices, token-exact nodes and verdicts, in order."""
        messages = self.messages(item)
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=messages,
                n=n,
                max_tokens=max(1, self.config.max_token_length - len(prompt)),
                temperature=temperature,
                split=split,
            )
            nodes = managed.nodes_for(completion)
        verdicts = [
            await self.verifier.judge(choice.message.content or "", item["answer"])
            for choice in completion.choices
        ]
        return completion.choices, nodes, verdicts

    async def collect_trajectories(self, item):
        temperature, rows = self.config.temperature, []
        for _ in range(2):  # a second draw fills up for samples too short to train on
            missing = self.config.group_size - len(rows)
            choices, nodes, verdicts = await self.sample(item, missing, temperature, "train")
            rows += [
                row
                for row in zip(choices, nodes, verdicts)
                if trained(row[1]) >= MIN_TRAINED_TOKENS
            ]
            if len(rows) == self.config.group_size:
                break
        else:
            return None, []
        right = [verdict is Verdict.CORRECT for _, _, verdict in rows]
        scores = [1.0 if correct else -1.0 for correct in right]
        nodes = [node for _, node, _ in rows]
        if all(right):
            lengths = [trained(node) for node in nodes]
            scores = length_penalty(lengths, self.config.max_token_length)
        messages = None
        if self.config.include_messages:
            messages = [
                [*self.messages(item), {"role": "assistant", "content": c.message.content}]
                for c, _, _ in rows
            ]
        group = from_nodes(
            nodes,
            scores,
            generation_params={"temperature": temperature},
            messages=messages,
            metrics={"percent_correct": sum(right) / len(right)},
        )
        return group, []

    async def evaluate(self, *args, **kwargs):
        started, temperature = time.time(), self.config.eval_temperature
        problems = (
            self.test
            if self.config.eval_problems < 0
            else self.test[: self.config.eval_problems]
        )
        room = asyncio.Semaphore(self.config.max_eval_workers)

        async def one(item):
            async with room:
                (choice,), _, (verdict,) = await self.sample(item, 1, temperature, "eval")
            return {
                "prompt": item["question"],
                "completion": choice.message.content,
                "expected": item["answer"],
                "finish_reason": choice.finish_reason,
                "reward": 1.0 if verdict is Verdict.CORRECT else -1.0,
                "exact": verdict is Verdict.CORRECT,
            }

        samples = await asyncio.gather(*(one(item) for item in problems))
        correct = sum(sample["exact"] for sample in samples) / len(samples)
        await self.evaluate_log(
            {"percent_correct": correct},
            start_time=started,
            end_time=time.time(),
            generation_parameters={"temperature": temperature},
            samples=list(samples),
        )

    def save_checkpoint(self, step, data=None):
        super().save_checkpoint(step, {"iter": self.iter})

    async def close(self):
        await self.verifier.close()
        await super().close()


def trained(node) -> int:
    """Number of tokens of a node that the model wrote."""
    return sum(label != MASKED for label in node.masked_tokens)


if __name__ == "__main__":
    GSM8kEnv.cli()
