"""Names of the versions of a model on an inference server: NAME@VERSION."""

from __future__ import annotations


def versioned_name(name: str, version: int) -> str:
    """Example: versioned_name("policy", 12) == "policy@12"."""
    return f"{name}@{version}"


def named_version(model: str) -> int | None:
    """The version in the name of a model; None if the name has none.

    Example: named_version("policy@12") == 12
    """
    _, mark, version = model.rpartition("@")
    return int(version) if mark and version.isascii() and version.isdigit() else None
