"""Reinforcement learning of language models in environments of your own."""

import os

__version__ = "0.5.0"


def name_clash() -> str | None:
    """A sentence if the archived original is installed over this package; None otherwise.

    Its distribution ``atroposlib`` holds a package of the same name. Read from the names in the
    folder of this package: importlib.metadata would take ten times as long to import.
    """
    beside = os.listdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not any(
        name.startswith("atroposlib-") and name.endswith(".dist-info") for name in beside
    ):
        return None
    return (
        "the distribution atroposlib (the archived original) is installed in the same package"
        " folder as atropos-rl: pip uninstall atroposlib && pip install --force-reinstall atropos-rl"
    )


def __getattr__(name: str) -> object:
    if name == "load_rollouts":  # imported at its first use: the package stays light
        from atroposlib.api.archive.load import load_rollouts

        return load_rollouts
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if _problem := name_clash():
    import warnings

    warnings.warn(_problem, stacklevel=2)
