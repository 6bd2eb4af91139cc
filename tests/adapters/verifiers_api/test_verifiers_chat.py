"""The harness of this library in verifiers 0.4: tools of a task, wrong calls, the limit of turns."""

from __future__ import annotations

import pytest

from atroposlib.adapters import verifiers as adapter

PACKAGE = "verifiers"
# Of tenacity, as verifiers calls it.
pytestmark = pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")
GIVEN = {
    "env_id": "toy_sums",
    "env_kwargs": {"taskset": {"count": 1, "task": {"tool": True}}},
    "describe_tools": True,
    "max_tokens": 200,
}


def called(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.mark.slow
async def test_tools_of_a_task_are_called_and_wrong_calls_are_told(rollout):
    prompts = []

    def reply(prompt, i):
        prompts.append(prompt)
        if "there is no tool" not in prompt:
            return called("nothing", "{}")
        return "1" if "<|tool|>1" in prompt else called("sums_add", '{"a": 0, "b": 1}')

    done = await rollout(adapter.verifiers, reply, **GIVEN)
    assert done.reward.score == 2.0 and done.reward.metrics["turns"] == 3.0
    assert "The sum of two numbers." in prompts[0]


@pytest.mark.slow
async def test_a_model_that_keeps_calling_is_stopped_and_scored(rollout):
    def reply(prompt, i):
        return called("sums_add", '{"a": 0, "b": 1}')

    done = await rollout(adapter.verifiers, reply, max_turns=2, **GIVEN)
    assert done.reward.score == 0.0
    assert (done.reward.metrics["turns"], done.reward.metrics["truncated"]) == (2.0, 1.0)
