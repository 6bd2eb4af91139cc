"""Reinforcement learning of language models in environments of your own."""

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name == "load_rollouts":  # imported at its first use: the package stays light
        from atroposlib.api.archive.load import load_rollouts

        return load_rollouts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
