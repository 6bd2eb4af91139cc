"""Engine without HTTP: a policy that may hold other weights."""

from __future__ import annotations

from dataclasses import replace

from example_trainer.data.rows import unsampled_row

SEQUENCES = [[6, 7, 8, 9, 10, 11], [6, 12, 13]]


class InProcessEngine:
    """Engine without HTTP: a policy that may hold other weights."""

    name, url = "in-process", "the-server"
    wants_untied_head = True
    says_dtype, scales = "float32", True

    def __init__(self, policy):
        self.policy = policy

    def version(self):
        return "3"

    def dtype(self):
        return self.says_dtype

    def sample(self, tokens, count, temperature):
        sampled = [9, 10, 11][:count]
        probe = unsampled_row(tokens + sampled, "sampled")
        divisor = temperature if self.scales else 1.0
        probe = replace(probe, temperatures=[divisor] * len(probe.labels))
        return sampled, self.policy.trained_logprobs([probe])[0][-len(sampled) :]

    def token_ids(self, text):
        return self.policy.tokenizer(text)["input_ids"]

    def score(self, tokens):
        return self.policy.logprobs_of([tokens])[0]


def head_of(engine):
    return engine.policy.model.get_output_embeddings()
