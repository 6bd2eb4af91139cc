"""The original's import path of :mod:`example_trainer.settings.args`."""

from example_trainer.settings.args import config_from_args, parse_args
