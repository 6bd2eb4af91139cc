"""Chat messages to prompt tokens, and generated text to tool calls."""
