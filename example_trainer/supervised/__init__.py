"""Training on files: sft, dpo and reward_model share these.

corpus    lines of a jsonl file -> rows with the completion as label
loop      epochs over a corpus: rows -> passes -> loss -> step, validation, saving
pairwise  gradients of losses of whole rows, whatever passes they stand in
flags     the command line of a small settings model
"""
