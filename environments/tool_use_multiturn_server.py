"""Tool use over several turns: replays recorded conversations until a call differs.

    python environments/tool_use_multiturn_server.py serve --env.dataset_path FILE.jsonl

Data: interstellarninja/hermes_reasoning_tool_use or another set of its form (``conversations``
as ShareGPT turns, ``tools`` as JSON text). The model gets the question and the tools. When it
makes the recorded calls, it gets the recorded responses, and so on. Reward: the share of right
turns, a bonus if all are right, a penalty for the first mistake, which ends the replay.
"""

import logging
import time
from typing import Annotated

from pydantic import Field

from atroposlib.environments.common.rollouts import SampledConfig, SequentialEnv, mean
from atroposlib.environments.common.tool_replay import (
    UnreadableConversation,
    conversation_reward,
    made_calls,
    openai_tools,
    pair_calls,
    tools_as_text,
    turn_score,
    turns_of,
)
from atroposlib.envs.rollout.groups import from_node
from atroposlib.utils.datasets import LOCAL_ROWS, load_rows
from atroposlib.utils.gathering import gather_bounded

SYSTEM_PROMPT = (
    "You help the user with the functions that you are given. You may think inside <think> "
    "</think> tags first. Call a function as soon as it can bring you further, several at once "
    "where they do not depend on one another. If none fits, say so and call none."
)
logger = logging.getLogger(__name__)


class ToolUseConfig(SampledConfig):
    """Settings of the conversations."""

    group_size: int = Field(
        default=8, ge=1, description="replays of one conversation, scored together"
    )
    max_token_length: int = Field(default=8192, ge=1, description="most tokens of a replay")
    dataset_name: str = Field(
        default="interstellarninja/hermes_reasoning_tool_use", description="set on the hub"
    )
    dataset_path: Annotated[str | None, LOCAL_ROWS] = Field(
        default=None, description=".jsonl, .json or .parquet file of it; None: the hub"
    )
    max_turns: int = Field(
        default=8, ge=1, description="longer conversations are cut after this turn"
    )
    max_turn_tokens: int = Field(default=2048, ge=1, description="most tokens of one turn")
    success_bonus: float = Field(default=0.5, description="added when every turn is right")
    mismatch_penalty: float = Field(default=0.2, description="taken off for a wrong turn")
    eval_conversations: int = Field(
        default=100, ge=1, description="conversations held out; at most half of all"
    )


def conversation(name: str, row: dict, max_turns: int) -> dict:
    """{"id", "tools", "turns"} of a row; raises UnreadableConversation."""
    if "conversations" not in row or not row.get("tools"):
        raise UnreadableConversation("a row has conversations and tools")
    turns = turns_of(row["conversations"])[:max_turns]
    try:
        tools = openai_tools(row["tools"])
    except ValueError as error:
        raise UnreadableConversation(f"tools are not JSON: {error}") from error
    return {"id": name, "tools": tools, "turns": turns}


def load_conversations(config: ToolUseConfig) -> list[dict]:
    """Conversations that can be replayed; the number of unusable conversations is logged.

    Raises DatasetUnavailable: there are none; the message contains the reason.
    """
    rows = load_rows(
        config.dataset_name,
        "train",
        path=config.dataset_path,
        columns=("conversations", "tools"),
    )
    conversations, problem = [], None
    for i, row in enumerate(rows):
        try:
            conversations.append(conversation(f"{i}", row, config.max_turns))
        except UnreadableConversation as error:
            problem = error
    if not conversations:
        raise UnreadableConversation(
            f"{config.dataset_name}: no conversation can be replayed: {problem}"
        )
    if problem is not None:
        skipped = len(rows) - len(conversations)
        logger.warning("%d of %d conversations left out: %s", skipped, len(rows), problem)
    return conversations


class ToolUseEnv(SequentialEnv):
    """Replays recorded conversations and rewards the recorded calls."""

    name = "multiturn_tool_use"
    env_config_cls = ToolUseConfig
    default_settings = {"steps_per_eval": 100}

    async def setup(self):
        if self.server.tool_parser is None:
            self.server.tool_parser = "hermes"
        self.hold_out(load_conversations(self.config), self.config.eval_conversations)

    def system_message(self, tools):
        template = self.tokenizer.chat_template or ""
        shown = (
            [SYSTEM_PROMPT] if "tools" in template else [SYSTEM_PROMPT, tools_as_text(tools)]
        )
        return {"role": "system", "content": "\n\n".join(shown)}

    async def replay(self, item, temperature, split):
        """Replay a conversation with the model: (node, scores of the turns taken, messages).

        The node is None if the first question does not fit.
        """
        turns, scores, node = item["turns"], [], None
        messages, calls = [self.system_message(item["tools"])], []
        async with self.server.managed_server(
            tokenizer=self.tokenizer, preserve_think_blocks=True
        ) as managed:
            for turn in turns:
                messages += given_messages(turn.given, calls)
                taken = await self.next_turn(
                    managed, messages, node, temperature, split, tools=item["tools"]
                )
                if taken is None:  # the conversation does not fit, so the turn is wrong
                    scores.append(0.0)
                    break
                choice, node = taken
                made = made_calls(choice.message)
                messages.append(assistant_message(choice.message))
                scores.append(turn_score(turn.expected, made))
                if scores[-1] < 1.0 or choice.finish_reason == "length":
                    break
                calls = pair_calls(turn.expected, made)
            return node, scores, messages

    def replay_measures(self, scores, num_turns):
        """Reward of a replay, whether all its turns are right, and the share that is."""
        bonus, penalty = self.config.success_bonus, self.config.mismatch_penalty
        return {
            "reward": conversation_reward(scores, num_turns, bonus, penalty),
            "success": scores == [1.0] * num_turns,
            "turns_right": sum(score == 1.0 for score in scores) / num_turns,
        }

    async def collect_trajectory(self, item):
        config = self.config
        node, scores, messages = await self.replay(item, config.temperature, "train")
        if node is None:
            return None, []
        metrics = self.replay_measures(scores, len(item["turns"]))
        item = from_node(
            node,
            metrics.pop("reward"),
            messages=messages if config.include_messages else None,
            overrides={"turn_scores": scores},
            metrics=metrics,
        )
        return item, []

    async def evaluate(self, *args, **kwargs):
        started, config = time.time(), self.config

        async def one(item):
            _, scores, messages = await self.replay(item, config.eval_temperature, "eval")
            num_turns = len(item["turns"])
            return {
                "id": item["id"],
                "messages": messages,
                "turn_scores": scores,
                "num_turns": num_turns,
                **self.replay_measures(scores, num_turns),
            }

        samples = await gather_bounded(self.test, one, config.max_eval_workers)
        await self.evaluate_log(
            {
                name: mean(sample[name] for sample in samples)
                for name in ("success", "turns_right", "reward")
            },
            start_time=started,
            generation_parameters={"temperature": config.eval_temperature},
            samples=samples,
        )


def given_messages(given, calls):
    """Messages of a turn's ``given``; tool responses answer ``calls`` in their order."""
    messages, answered = [], iter(calls)
    for role, content in given:
        message = {"role": role, "content": content}
        if role == "tool" and (call := next(answered, None)) is not None:
            message |= {"tool_call_id": call.call_id, "name": call.name}
        messages.append(message)
    return messages


def assistant_message(message):
    """The model's turn as a message of the conversation."""
    kept = {"role": "assistant", "content": message.content or ""}
    if message.tool_calls:
        kept["tool_calls"] = [
            call if isinstance(call, dict) else call.model_dump()
            for call in message.tool_calls
        ]
    return kept


if __name__ == "__main__":
    ToolUseEnv.cli()
