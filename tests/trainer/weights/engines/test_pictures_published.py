"""Weights of a vision-language model, its vision tower included, through every publisher."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atroposlib.inference.engine.request import GenerationRequest, SamplingParams
from atroposlib.testing.tiny_vision import FAMILIES
from example_trainer.data.rows import unsampled_row
from example_trainer.weights import PUBLISHERS
from tests.trainer.weights.support.fleets import change, state
from tests.vision import drawing, vision_dir

EXACT = 1e-4


@pytest.fixture(scope="module", params=FAMILIES)
def model_dir(request, tmp_path_factory):
    return vision_dir(tmp_path_factory, request.param)


@pytest.mark.parametrize("name", sorted(PUBLISHERS))
def test_a_published_model_looks_at_the_picture_as_the_trainer_does(
    name, publisher_for, policy_for, servers
):
    publisher, announced = publisher_for(name, publish_bucket_mb=1)
    policy = policy_for(name)
    change(policy)
    publisher.publish(policy, state(1))
    assert announced == [1]
    reader = policy.pictures
    parts = [{"type": "image"}, {"type": "text", "text": "?"}]
    text = reader.render([{"role": "user", "content": parts}], add_generation_prompt=True)
    ids, pictures = reader.prompt(text, [drawing("red")])
    for server in servers:
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        request = GenerationRequest(prompt_ids=ids, pictures=pictures, params=params)
        server.engine.submit(request)
        [output] = request.future.result(600).outputs
        row = unsampled_row(ids + output.tokens, "g", [-100] * (len(ids) - 1) + output.tokens)
        row = replace(row, pictures=reader.inputs(row.tokens, [drawing("red")]))
        [ours] = policy.trained_logprobs([row])
        assert float((torch.tensor(ours) - torch.tensor(output.logprobs)).abs().max()) < EXACT
