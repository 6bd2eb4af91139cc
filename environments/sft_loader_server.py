"""Supervised text among the rollouts: groups of a single sequence, marked ``sft``.

    python environments/sft_loader_server.py serve --env.dataset_path chats.jsonl \\
        --env.data_format oai_format

No inference server is called, and the groups have no sampler's logprobs. The override ``sft``
of a group selects the likelihood of the trained tokens as its loss in the trainer. ``evaluate``
measures the data instead of a model.
"""

import random
from enum import Enum
from typing import Annotated

from pydantic import Field

from atroposlib.environments.common.rollouts import SequentialEnv, mean
from atroposlib.envs.base import BaseEnvConfig
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.utils.datasets import LOCAL_ROWS, load_rows
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from atroposlib.wire import MASKED

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "tool": "tool"}


class DataFormat(str, Enum):
    """Format of a row."""

    COMPLETION = "completion"  # {"text": ...}: all of it is trained
    PREFIX_COMPLETION = "prefix_completion"  # {"prefix": ..., "completion": ...}
    OAI_FORMAT = "oai_format"  # {"messages": [{"role": ..., "content": ...}]}
    SHAREGPT_FORMAT = "sharegpt_format"  # {"conversations": [{"from": ..., "value": ...}]}
    QUESTION_ANSWER = "question_answer"  # {"question": ..., "answer": ...}


FIELDS = {  # fields of a row, by format
    DataFormat.COMPLETION: ("text",),
    DataFormat.PREFIX_COMPLETION: ("prefix", "completion"),
    DataFormat.OAI_FORMAT: ("messages",),
    DataFormat.SHAREGPT_FORMAT: ("conversations",),
    DataFormat.QUESTION_ANSWER: ("question", "answer"),
}


class SFTConfig(BaseEnvConfig):
    """Settings of the text."""

    group_size: int = Field(default=1, ge=1, le=1, description="every text is a group of one")
    # True would drop every group, because a group of a single sequence has equal scores.
    ensure_scores_are_not_same: bool = Field(default=False, description="drop equal scores")
    dataset_name: str | None = Field(default=None, description="data set on the hub")
    dataset_path: Annotated[str | None, LOCAL_ROWS] = Field(
        default=None, description="a .jsonl, .json or .parquet file, or a folder with train.*"
    )
    data_format: DataFormat | None = Field(
        default=None,
        description="completion, prefix_completion, oai_format, sharegpt_format or "
        "question_answer; None: by the fields of the first row",
    )
    all_turns: bool = Field(
        default=True, description="chats: train every assistant turn; false: the last only"
    )
    epochs: int = Field(default=0, ge=0, description="times through the data; 0: without end")


def chat_of(row: dict, data_format: DataFormat) -> list[dict]:
    """Messages of a chat row, with OpenAI's role names."""
    if data_format is DataFormat.OAI_FORMAT:
        return [dict(message) for message in row["messages"]]
    return [
        {"role": SHAREGPT_ROLES.get(turn["from"], turn["from"]), "content": turn["value"]}
        for turn in row["conversations"]
    ]


def format_of(row: dict) -> DataFormat:
    """The first format whose fields a row has."""
    for data_format, fields in FIELDS.items():
        if all(row.get(name) for name in fields):
            return data_format
    known = "; ".join(", ".join(fields) for fields in FIELDS.values())
    raise DatasetUnavailable(f"row 0 has {', '.join(row)}; a format has the fields {known}")


def sequence(row: dict, data_format: DataFormat, tokenizer, all_turns: bool) -> dict:
    """{"tokens", "masks"} of a row, both (T,); plain text ends with the end token."""
    if data_format in (DataFormat.OAI_FORMAT, DataFormat.SHAREGPT_FORMAT):
        return tokenize_for_trainer(
            tokenizer, chat_of(row, data_format), train_on_all_assistant_turns=all_turns
        )
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if data_format is DataFormat.COMPLETION:
        tokens = list(tokenizer.encode(row["text"])) + end
        return {"tokens": tokens, "masks": list(tokens)}
    # Encoded separately: a token across the boundary would be half prompt, half trained.
    before, after = (row[name] for name in FIELDS[data_format])
    prefix = list(tokenizer.encode(before))
    rest = list(tokenizer.encode(after, add_special_tokens=False)) + end
    return {"tokens": prefix + rest, "masks": [MASKED] * len(prefix) + rest}


class SFTLoaderEnv(SequentialEnv):
    """Sends existing text, a sequence per group."""

    name = "sft_loader"
    env_config_cls = SFTConfig
    default_settings = {"steps_per_eval": 0}

    @classmethod
    def config_init(cls):
        config, server = super().config_init()
        # Never called, but every environment needs a server.
        return config, server.model_copy(update={"health_check": False})

    async def setup(self):
        config = self.config
        if config.dataset_name is None and config.dataset_path is None:
            raise ConfigError("no text: set --env.dataset_path or --env.dataset_name")
        source = config.dataset_name or "the text"
        rows = load_rows(source, "train", path=config.dataset_path)
        self.data_format = config.data_format or format_of(rows[0])
        fields = FIELDS[self.data_format]
        for i, row in enumerate(rows):
            if missing := [name for name in fields if not row.get(name)]:
                raise DatasetUnavailable(
                    f"row {i} has no {' and no '.join(missing)}, which --env.data_format "
                    f"{self.data_format.value} reads"
                )
        self.rows = [{name: row[name] for name in fields} for row in rows]

    async def get_next_item(self):
        epoch, position = divmod(self.iter, len(self.rows))
        if self.config.epochs and epoch >= self.config.epochs:
            return None
        order = list(range(len(self.rows)))
        random.Random(f"{self.config.seed}/{epoch}").shuffle(order)
        self.iter += 1
        return {"id": f"{epoch}/{order[position]}", "row": self.rows[order[position]]}

    def sequence(self, row):
        config = self.config
        return sequence(row, self.data_format, self.tokenizer, config.all_turns)

    async def collect_trajectories(self, item):
        made = self.sequence(item["row"])
        if len(made["tokens"]) > self.config.max_token_length:
            self.log("train/text_too_long", 1.0)
            return None, []
        group = {
            "tokens": [made["tokens"]],
            "masks": [made["masks"]],
            "scores": [1.0],
            "overrides": [{"sft": True}],
            "group_overrides": {"group_size": 1, "sft": True},
        }
        if self.config.include_messages:
            shown = self.tokenizer.decode(made["tokens"])
            group["messages"] = [[{"role": "assistant", "content": shown}]]
        return group, []

    async def evaluate(self, *args, **kwargs):
        """Measure the data: share of texts that fit, lengths, share of trained tokens."""
        made = [self.sequence(row) for row in self.rows]
        lengths = [len(row["tokens"]) for row in made]
        trained = [sum(label != MASKED for label in row["masks"]) for row in made]
        await self.evaluate_log(
            {
                "texts": len(made),
                "fits": mean(length <= self.config.max_token_length for length in lengths),
                "tokens_mean": mean(lengths),
                "tokens_max": max(lengths),
                "trained_share": sum(trained) / sum(lengths),
            }
        )


if __name__ == "__main__":
    SFTLoaderEnv.cli()
