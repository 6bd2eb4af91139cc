"""Reinforcement learning of language models in environments of your own."""

__version__ = "0.1.0"
