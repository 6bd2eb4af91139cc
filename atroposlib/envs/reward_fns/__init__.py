"""Rewards: a typed verdict on what a model wrote. A verdict that failed is an exception."""
