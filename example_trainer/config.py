"""The original's import path of :mod:`example_trainer.settings.config`."""

from example_trainer.settings.config import TrainingConfig, parse_layers
