"""Function calling in a single turn: exactly the expected calls are rewarded.

    python environments/tool_calling_server.py serve --env.dataset_path FILE.jsonl

Data: NousResearch/XLAM-Atropos, or ShareGPT ``conversations`` whose system turn shows the
tools and whose first answer holds ``<tool_call>`` blocks. 1.0 for exactly these calls, 0.0
otherwise. In a group of right answers only, shorter answers score higher.
"""

from pydantic import Field

from atroposlib.environments.common.length_penalties import brevity_scores
from atroposlib.environments.common.single_turn import SingleTurnConfig, SingleTurnEnv
from atroposlib.environments.common.tool_replay import (
    UnreadableConversation,
    calls_in,
    recorded_calls,
    turn_score,
)
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import DatasetUnavailable
from atroposlib.utils.datasets import load_rows

ROLES = {"system": "system", "human": "user", "user": "user"}


class ToolCallingConfig(SingleTurnConfig):
    """Settings of the requests."""

    dataset_name: str = Field(
        default="NousResearch/XLAM-Atropos", description="data set on the hub"
    )
    eval_temperature: float = Field(default=0.0, description="of evaluation; 0: greedy")
    eval_requests: int = Field(
        default=100, ge=1, description="requests held out; at most half of all"
    )


def request(name: str, row: dict) -> dict:
    """{"id", "messages", "expected", "answer"} of a row; raises UnreadableConversation."""
    messages = []
    for turn in row.get("conversations") or []:
        if turn["from"] in ROLES:
            messages.append({"role": ROLES[turn["from"]], "content": turn["value"]})
            continue
        expected = recorded_calls(turn["value"])
        if not messages or not expected:
            break
        return {
            "id": name,
            "messages": messages,
            "expected": expected,
            "answer": turn["value"],
        }
    raise UnreadableConversation(
        f"{name}: conversations are a question and an answer with <tool_call>s"
    )


class ToolCallingEnv(SingleTurnEnv):
    """Asks for function calls and rewards exactly the expected calls."""

    name = "tool_calling"
    env_config_cls = ToolCallingConfig
    card = Card(
        "tools",
        data="NousResearch/XLAM-Atropos",
        licence="of the source",
        gold=lambda item: item["answer"],
        wrong=lambda item: [item["answer"] * 2],
    )

    async def setup(self):
        config, requests, problem = self.config, [], None
        rows = load_rows(config.dataset_name, "train", path=config.dataset_path)
        for i, row in enumerate(rows):
            try:
                requests.append(request(f"{i}", row))
            except UnreadableConversation as error:
                problem = error
        if len(requests) < 2:
            raise DatasetUnavailable(
                f"{config.dataset_name}: {len(requests)} of {len(rows)} rows can be used: "
                f"{problem}"
            )
        self.hold_out(requests, config.eval_requests)

    def messages(self, item):
        return item["messages"]

    async def judge(self, item, text):
        return 1.0 if turn_score(item["expected"], calls_in(text)) == 1.0 else 0.0

    def group_scores(self, rewards, lengths):
        return brevity_scores(rewards, lengths, self.config.max_token_length)


if __name__ == "__main__":
    ToolCallingEnv.cli()
