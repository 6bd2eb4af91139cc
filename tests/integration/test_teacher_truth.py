"""A teacher on a real local server: its logprobs are the trainer's own, token by token, through the wire."""

from __future__ import annotations

import pytest
import torch

from atroposlib.envs import environment
from atroposlib.testing.tiny import char_tokenizer
from example_trainer import Learner
from example_trainer.data.rows import to_rows
from tests.integration.test_sampler_truth import (
    TASKS,
    model_dir,
    policy,
    received,
    settings,
    url,
    written,
)

pytestmark = pytest.mark.slow
FIXTURES = (model_dir, policy, settings, url)
NATS = 1e-5


@environment(dataset=TASKS, group_size=2, max_tokens=6, eval_items=0)
async def plain(task, model):
    return float(len(await model.chat(task["text"])))


@environment(
    dataset=TASKS,
    group_size=2,
    max_tokens=6,
    eval_items=0,
    teacher_prompt=lambda task: f"it is {task['text']} and nothing more",
)
async def hinted(task, model):
    first = await model.complete(task["text"], max_tokens=2)
    return float(len(await model.complete(task["text"] + first + " so ")))


def prompt_of(env_cls, row):
    """The tokens that the teacher read in front of the first trained token of a row."""
    own = row.tokens[: row.trained[0] + 1]
    if env_cls is plain:
        return own
    task = next(t for t in TASKS if char_tokenizer().decode(own).startswith(t["text"]))
    text = f"<|user|>it is {task['text']} and nothing more<|end|><|assistant|>"
    return char_tokenizer().encode(text)


@pytest.mark.parametrize("env_cls", [plain, hinted])
@pytest.mark.parametrize("binary", [False, True])
def test_each_logprob_of_a_teacher_is_that_of_its_token_behind_its_prompt(
    env_cls, binary, url, policy, tmp_path
):
    teacher = {"base_url": "policy", "top_k": 3}
    groups = written(env_cls, url, tmp_path / "groups.jsonl", teacher=teacher)
    batch = to_rows([received(group, binary=binary) for group in groups], 256)
    compared = 0
    for row in [row for row in batch.rows if row.trained]:
        prompt = prompt_of(env_cls, row)
        answer = row.tokens[row.trained[0] + 1 :]
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[
                0
            ]
        ours = logits.float().log_softmax(-1)
        for j in row.trained:
            place = len(prompt) + j - row.trained[0] - 1
            assert row.teacher_ids[j][0] == row.labels[j] and len(row.teacher_ids[j]) >= 3
            for token, logprob in zip(row.teacher_ids[j], row.teacher_logprobs[j]):
                assert logprob == pytest.approx(float(ours[place, token]), abs=NATS)
                compared += 1
    assert compared > 30


@pytest.mark.parametrize(
    ("loss", "more"),
    [("reverse_kl", {}), ("distillation", {"distill_rest": "bucket"}),
     ("jsd", {"distill_rest": "bucket"})],
)  # fmt: skip
def test_a_served_teacher_that_is_the_policy_gives_no_signal(
    loss, more, url, settings, tmp_path
):
    teacher = {"base_url": url, "top_k": 3, "tokenizer": settings.model_name}
    groups = written(plain, url, tmp_path / "groups.jsonl", teacher=teacher)
    learner = Learner(settings.model_copy(update={"loss": loss, **more}))
    told = learner.step([received(group, binary=True) for group in groups])
    divergence = told["distill_jsd" if loss == "jsd" else "distill_kl"]
    assert told["distill_share"] == 1.0
    assert abs(divergence) < 1e-6 and told["grad_norm"] < 1e-5
