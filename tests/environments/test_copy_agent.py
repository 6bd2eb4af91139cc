"""An agent written with the ``openai`` package, as an environment."""

from __future__ import annotations

import json

from atroposlib.environments.copy_agent import copy_agent
from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer


async def test_sampled_tokens_of_the_agent_are_scored_and_trained_exactly(tmp_path):
    groups = tmp_path / "groups.jsonl"
    with FakeInference(reply=lambda prompt, index: "abcd").running() as url:
        server = APIServerConfig(base_url=f"{url}/v1", server_type="vllm", model_name="fake")
        config = copy_agent.config_init()[0].model_copy(
            update={
                "use_wandb": False,
                "total_steps": 1,
                "group_size": 2,
                "ensure_scores_are_not_same": False,
                "data_path_to_save_groups": str(groups),
            }
        )
        env = copy_agent(config, [server])
        env.tokenizer = char_tokenizer()
        assert await env.process_manager() >= 1
    group = json.loads(groups.read_text().splitlines()[0])
    word = group["metadata"]["item"]
    right = [1.0 if a == b else 0.1 for a, b in zip("abcd", word)]
    assert group["scores"] == [sum(right) / 4] * 2
    trained = [[label for label in row if label != -100] for row in group["masks"]]
    said = [env.tokenizer.decode(row, skip_special_tokens=True) for row in trained]
    assert said == ["abcd", "abcd"]
    assert all(
        logprob != 1.0
        for labels, logprobs in zip(group["masks"], group["inference_logprobs"])
        for label, logprob in zip(labels, logprobs)
        if label != -100
    )
