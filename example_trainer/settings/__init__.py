"""Settings of the trainer, one file per section; ``config`` joins them.

model       which model, in which precision, on which devices, adapters
batch       how many sequences make a step, and how they are cut into micro-batches
optim       optimizer, learning rate, clipping
loss        the policy loss, its corrections, KL, distillation
advantage   rewards -> advantages
weights     how new weights reach the inference servers
run         rollout API, saving, recovery, evaluation, metrics, ranks
section     base class; option names of earlier releases; commands with placeholders
files       YAML files and key=value; args: flags; areal/: AReaL's names
"""
