"""Losses on the logprobs that a teacher gives for the tokens of the policy."""
