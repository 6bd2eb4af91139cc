"""Token-exact sessions: sampled tokens with logprobs and policy versions, turn by turn."""
