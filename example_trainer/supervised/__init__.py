"""Training on files: supervised fine-tuning, preference training, reward models."""
