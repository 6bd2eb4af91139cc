"""The settings of the trainer, one file per part of it; ``config`` joins them.

model       which model, in which precision, on which devices, adapters
batch       how many sequences make a step, and how they are cut into passes
optim       optimizer, learning rate, clipping
loss        the policy loss, its corrections, KL, distillation
advantage   rewards -> advantages
weights     how new weights reach the inference servers
run         rollout API, saving, recovery, evaluation
watch       where metrics go
original    what only the original's ways of running used
"""
