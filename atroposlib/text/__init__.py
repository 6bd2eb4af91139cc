"""Meaning of sampled text: reasoning, calls, the answer, and whether the answer is right."""
