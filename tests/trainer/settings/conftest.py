"""Settings from files and from words of a command line."""

from __future__ import annotations

import pytest

from example_trainer.settings.args import build_parser, settings_of, with_set


def given(*words: str) -> dict:
    """Fields that these words of a command line set."""
    args = build_parser().parse_args(with_set(words))
    return settings_of(args).values


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "x.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
