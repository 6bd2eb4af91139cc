"""The policy model: loading, attention over packed rows, logprobs, LoRA, FSDP2."""
