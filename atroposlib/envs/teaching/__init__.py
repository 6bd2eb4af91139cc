"""Teachers on servers: logprobs of sampled tokens, also behind a prompt that only the teacher reads."""
