"""Training on files: supervised fine-tuning, preference training, reward models.

corpus      lines of a jsonl file -> rows with the completion as label
settings    settings and flags of the commands
commands    the commands, which load torch after parsing
loop        epochs over a corpus, validation, saving
preference  losses of pairs, and the gradient of a loss of whole rows
"""
