"""Proxy for agents: OpenAI's and Anthropic's APIs in front of token-exact sessions."""
