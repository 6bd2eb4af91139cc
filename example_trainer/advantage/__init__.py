"""Rewards to advantages per trained token."""

from example_trainer.advantage.estimators import compute

__all__ = ["compute"]
