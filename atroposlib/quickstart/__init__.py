"""Quickstart: the model that it trains, and ``python -m atroposlib.quickstart``.

The run itself is in ``example_trainer.quickstart``.
"""
