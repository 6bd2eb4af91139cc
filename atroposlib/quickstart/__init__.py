"""Quickstart: the model that it trains, and ``python -m atroposlib.quickstart``.

``example_trainer.quickstart`` starts the run.
"""
