"""Reinforcement learning of language models in environments of your own."""

__version__ = "0.2.0"
