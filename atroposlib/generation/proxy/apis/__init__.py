"""API dialects of the agent proxy: chat, completions, Responses, Messages."""
