"""Batches of the rollout API for trainers of other projects.

rows    a row as the sample of another trainer
trl     GRPOTrainer of TRL on the batches of the rollout API
"""
