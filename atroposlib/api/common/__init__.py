"""Modules shared by every stage of the rollout API."""
